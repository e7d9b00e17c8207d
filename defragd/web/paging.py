"""List answers: filter, page, envelope, ETag. Tokens name the last item seen, so lists may change between pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flask import Request, Response

from defragd.web.problems import Problem

T = TypeVar("T")
MAX_LIMIT = 1000
DEFAULT_LIMIT = 500
_TIGHT = (",", ":")


def read_limit(request: Request, default: int = DEFAULT_LIMIT) -> int:
    """``limit`` of the query, 1..1000. Raises Problem 400."""
    text = request.args.get("limit")
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LIMIT):
        raise Problem(400, f"limit={text[:40]!r}: want a whole number from 1 to {MAX_LIMIT}", reason="BadLimit")
    return int(text)


def read_number(request: Request, name: str, default: int, most: int) -> int:
    """A whole number of the query, 0..``most``. Raises Problem 400."""
    text = request.args.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= most):
        raise Problem(400, f"{name}={text[:40]!r}: want a whole number from 0 to {most}", reason="BadNumber")
    return int(text[:20])


def encode_token(key: str) -> str:
    return base64.urlsafe_b64encode(b"1:" + key.encode()).decode().rstrip("=")


def read_token(request: Request) -> str | None:
    """The key in ``continue``. Raises Problem 400 for a token that is not ours."""
    text = request.args.get("continue")
    if not text:
        return None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if not raw.startswith(b"1:"):
            raise ValueError
        return raw[2:].decode()
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise Problem(400, "continue: not a token of this API; start again without it", reason="BadToken") from error


def page(
    request: Request, items: Sequence[T], key: Callable[[T], str], *, newest_first: bool = False
) -> tuple[list[T], str | None]:
    """The asked-for page of ``items``, ordered by ``key``, and the token of the next one (None = last page)."""
    limit, last = read_limit(request), read_token(request)
    ordered = sorted(items, key=key, reverse=newest_first)
    if last is not None:
        ordered = [item for item in ordered if (key(item) < last if newest_first else key(item) > last)]
    chosen = ordered[:limit]
    more = len(ordered) > limit
    return chosen, encode_token(key(chosen[-1])) if more else None


def respond(request: Request, body: dict[str, Any], *, status: int = 200) -> Response:
    """JSON with an ETag over everything but ``asOf``; 304 when the caller has it already."""
    text = json.dumps({name: value for name, value in body.items() if name != "asOf"}, default=str, separators=_TIGHT)
    tag = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    if "asOf" in body:  # spliced in, so that large answers are encoded once
        joint = "," if len(text) > 2 else ""
        text = f'{text[:-1]}{joint}"asOf":{json.dumps(body["asOf"])}}}'
    if status == 200 and request.method in ("GET", "HEAD") and request.if_none_match.contains_weak(tag):
        answer = Response(status=304)
    else:
        answer = Response(text, status=status, content_type="application/json")
    answer.set_etag(tag, weak=True)
    return answer
