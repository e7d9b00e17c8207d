"""Errors of this adapter only, and how an HTTP answer becomes one of `defragd.errors` or a `ports.Written`."""

from __future__ import annotations

from typing import Any

import msgspec

from defragd.errors import ClusterError, DefragError, Forbidden, MissingResource
from defragd.ports import Outcome, Written


class BrokenObject(DefragError):
    """One object that cannot be read; it is set aside and named, the rest goes on."""


class Expired(ClusterError):
    """410 or an ERROR event: the revision is too old, list again."""


class StatusCause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class StatusDetails(msgspec.Struct, rename="camel"):
    causes: list[StatusCause] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct):
    """A Kubernetes Status object, as far as it decides what happens next."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


_DECODER = msgspec.json.Decoder(Status)


def decode_status(data: bytes) -> Status:
    """Never raises: a proxy's HTML page becomes a short message."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return Status(message=" ".join(data[:200].decode("utf-8", "replace").split()))


def retry_after(headers: Any, status: Status) -> float | None:
    """Seconds from the Retry-After header (dates are ignored: servers send seconds) or the Status details."""
    text = headers.get("Retry-After") if headers is not None else None
    if text and text.strip().isdigit():
        return min(float(text), 600.0)
    if status.details is not None and status.details.retry_after_seconds:
        return status.details.retry_after_seconds
    return None


def read_error(method: str, path: str, code: int, status: Status) -> ClusterError:
    """The error of a failed read: one line with the place and what to do."""
    said = status.message or "no message"
    place = f"{method} {path.partition('?')[0]}"
    if code == 401:
        return Forbidden(
            f"{place}: the API server does not accept these credentials (401 {said}); renew the token or log in again"
        )
    if code == 403:
        return Forbidden(f"{place}: {said}; grant it, see the ClusterRole of the chart")
    if code == 404:
        return MissingResource(f"{place}: not found ({said})")
    if code == 410:
        return Expired(f"{place}: {said}")
    return ClusterError(f"{place}: the API server answered {code}: {said}")


def written(code: int, data: bytes, headers: Any) -> Written:
    """What a write came to (hami-protocol section 11.5 for evictions; the same table serves every write)."""
    if 200 <= code < 300:
        return Written(Outcome.OK)
    status = decode_status(data)
    said = status.message or f"the API server answered {code}"
    wait = retry_after(headers, status)
    if code == 429:
        return Written(Outcome.BLOCKED, said, retry_after=wait)
    if code == 404:
        return Written(Outcome.GONE, said)
    if code == 409:
        # AlreadyExists included: for a create it means "somebody was first", look before anything else.
        return Written(Outcome.CONFLICT, said)
    if code == 500 and "more than one PodDisruptionBudget" in said:
        return Written(Outcome.REFUSED, said)
    if code >= 500 or code == 0:
        return Written(Outcome.UNKNOWN, said, retry_after=wait)
    return Written(Outcome.REFUSED, said)
