"""The pages of one consistent list; the next one is asked for while the last one is decoded.

A server stamps the way to the next page in front of the items, so it is known before they are decoded. What was
asked for ahead is used only when the decoded page confirms it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from defragd.kube.client import Client

PAGE = 500
"""Objects per list request, as client-go does: kind to the API server, and one page decodes in milliseconds."""
TIMEOUT = 60.0

_HEAD = 4096
_CONTINUE = re.compile(rb'"continue"\s*:\s*("(?:[^"\\]|\\.)*")')


def continue_of(data: bytes) -> str:
    """The token in a page's head; "" when there is none in front of the items."""
    head = data[:_HEAD]
    found = _CONTINUE.search(head[: max(head.find(b'"items"'), 0)])
    if found is None:
        return ""
    try:
        return msgspec.json.decode(found.group(1), type=str)
    except msgspec.DecodeError:
        return ""


class Pages:
    """``with Pages(...) as pages:`` then ``get("")``, and ``ahead(data)`` before and ``get(token)`` after decoding."""

    def __init__(self, client: Client, path: str, query: Mapping[str, str]) -> None:
        self._client, self._path, self._query = client, path, query
        self._pool = ThreadPoolExecutor(1, "list-ahead")
        self._token = ""
        self._next: Future[bytes] | None = None

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ahead(self, data: bytes) -> None:
        """Asks for the page after ``data``, if its head names one."""
        if token := continue_of(data):
            self._token, self._next = token, self._pool.submit(self._read, token)

    def get(self, token: str) -> bytes:
        """The page for ``token`` ("" is the first). Raises what `Client.get` raises."""
        following, self._next = self._next, None
        if following is not None and self._token == token:
            return following.result()
        return self._read(token)

    def _read(self, token: str) -> bytes:
        query = {**self._query, "limit": str(PAGE), **({"continue": token} if token else {})}
        return self._client.get(self._path, query, timeout=TIMEOUT).data
