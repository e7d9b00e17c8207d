"""The next page is asked for ahead, by a token in the page's head, and used only when the decoded page confirms it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from defragd.errors import ClusterError
from defragd.kube.pages import Pages, continue_of


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"abc"},"items":[]}', "abc"),
        (b'{"metadata": {"continue" : "a\\u003db"}, "items": []}', "a=b"),
        (b'{"metadata":{"continue":""},"items":[]}', ""),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{"continue":"no"}]}', ""),
        (b'{"items":[{"continue":"no"}],"metadata":{"continue":"late"}}', ""),
        (b'{"metadata":{"continue":"bad \\x"},"items":[]}', ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_token_is_read_from_the_head_only(data: bytes, token: str) -> None:
    assert continue_of(data) == token


class Server:
    def __init__(self, fail: str = "") -> None:
        self.asked: list[str] = []
        self.fail = fail

    def get(self, path: str, query: dict[str, str], timeout: float) -> Any:
        token = query.get("continue", "")
        self.asked.append(token)
        if token and token == self.fail:
            raise ClusterError("gone")
        return SimpleNamespace(data=b'{"metadata":{"continue":"%s"},"items":[]}' % (b"n" if not token else b""))


def test_each_page_is_asked_for_once() -> None:
    server = Server()
    with Pages(server, "/pods", {}) as pages:  # type: ignore[arg-type]
        pages.ahead(pages.get(""))
        pages.ahead(pages.get("n"))
    assert server.asked == ["", "n"]


def test_what_the_decoded_page_does_not_confirm_is_not_used() -> None:
    server = Server()
    with Pages(server, "/pods", {}) as pages:  # type: ignore[arg-type]
        pages.ahead(pages.get(""))
        pages.get("other")
    assert "other" in server.asked


def test_a_failure_ahead_comes_out_where_the_page_is_taken() -> None:
    with Pages(Server(fail="n"), "/pods", {}) as pages:  # type: ignore[arg-type]
        pages.ahead(pages.get(""))
        with pytest.raises(ClusterError, match="gone"):
            pages.get("n")
