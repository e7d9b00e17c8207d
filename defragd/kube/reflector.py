"""List once, then watch: keeps one store equal to one kind of object on the API server.

Our own loop, because the client's redelivers events after every server close (it never advances the revision) and
builds models. A watch that breaks goes on from its last revision; only 410 (or an ERROR event) lists again.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from defragd.core.model import Problem
from defragd.errors import ClusterError, DefragError, Forbidden, MissingResource
from defragd.kube.client import Client
from defragd.kube.decode import Event, ListDecoder, key_of
from defragd.kube.errors import Expired
from defragd.kube.pages import Pages
from defragd.kube.store import Store
from defragd.ports import Hook

T = TypeVar("T")

WATCH_SECONDS = 270
"""The server ends a watch after this (± 10 %), so that connections spread over the API servers again."""
SILENCE = 75.0
"""The server sends a bookmark about every minute; a stream that is silent for longer may be dead and is opened again.
Older servers send none for kinds without any event; there the new watch is the proof of life. Healthy data may so be
this old, and whoever sets a limit for the age of data must leave room above it (design: I9)."""
RETRY_UNAVAILABLE = 300.0
"""Seconds until a kind that is forbidden or not served is tried again."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind to read: ``name`` as in messages and metrics, ``title`` as in Kind/name, list ``path`` and ``query``."""

    name: str
    title: str
    path: str
    struct: type[T]
    query: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    compact: Callable[[], Callable[[T], None]] | None = None
    """Makes what compacts decoded objects, one per decoder."""

    def decoder(self) -> ListDecoder[T]:
        return ListDecoder(self.struct, self.title, compact=self.compact() if self.compact else None)


class Backoff:
    """0.1 s, doubled up to 30 s, with jitter so that replicas do not come back all at once."""

    def __init__(self, first: float = 0.1, longest: float = 30.0) -> None:
        self._first, self._longest, self._next = first, longest, first

    def reset(self) -> None:
        self._next = self._first

    def pause(self) -> float:
        value = self._next
        self._next = min(self._next * 2, self._longest)
        return value * random.uniform(0.6, 1.0)


class _GcPause:
    """No garbage collection while a list is decoded: it makes hundreds of thousands of objects and no garbage, and the
    collector would walk through all of them again and again (half of the time, measured)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_on = True

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_on:
                gc.enable()


_GC_PAUSE = _GcPause()


def list_all(
    client: Client, kind: Kind[T], decoder: ListDecoder[T]
) -> tuple[dict[str, tuple[T, str]], str, dict[str, Problem]]:
    """All pages of one consistent list: items with their revisions by key, the list's revision, what was set aside."""
    with _GC_PAUSE:
        return _list_pages(client, kind, decoder)


def _list_pages(
    client: Client, kind: Kind[T], decoder: ListDecoder[T]
) -> tuple[dict[str, tuple[T, str]], str, dict[str, Problem]]:
    items: dict[str, tuple[T, str]] = {}
    problems: dict[str, Problem] = {}
    with Pages(client, kind.path, kind.query) as pages:
        token = ""
        while True:
            data = pages.get(token)
            pages.ahead(data)
            try:
                page = decoder.page(data)
            except msgspec.DecodeError as err:
                raise ClusterError(f"GET {kind.path}: the answer is no {kind.title} list: {err}") from err
            for item in page.items:
                meta: Any = item.metadata  # type: ignore[attr-defined]
                items[key_of(meta.namespace, meta.name)] = (item, meta.resource_version)
            for broken in page.broken:
                problems[broken.key] = broken.problem
            if not page.continue_:
                return items, page.revision, problems
            token = page.continue_


class Reflector(Generic[T]):
    """One thread per kind. ``on_vanished`` hears of objects that left (or were deleted), with their last state."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        store: Store[T],
        *,
        hook: Hook,
        on_vanished: Callable[[T], None] | None = None,
        watch_seconds: float = WATCH_SECONDS,
        silence: float = SILENCE,
        retry_unavailable: float = RETRY_UNAVAILABLE,
    ) -> None:
        self.kind, self.store = kind, store
        self._client, self._hook, self._on_vanished = client, hook, on_vanished
        self._watch_seconds, self._silence, self._retry_unavailable = watch_seconds, silence, retry_unavailable
        self._decoder = kind.decoder()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._open: urllib3.BaseHTTPResponse | None = None
        self._proof = float("-inf")
        self.error: DefragError | None = None
        """The last failure while nothing has been read since; start-up reports it."""

    # -- control ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"watch-{self.kind.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends a blocked read at once by closing its socket."""
        self._stop.set()
        with self._guard:
            response, self._open = self._open, None
        if response is not None:
            _shut(response)

    def join(self, timeout: float) -> bool:
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def age_seconds(self) -> float:
        """Since the last list, event, bookmark or successful watch request; infinite before the first."""
        return time.monotonic() - self._proof

    # -- loop ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff()
        revision = ""
        while not self._stop.is_set():
            try:
                if not revision:
                    revision = self._list()
                revision = self._watch(revision, backoff)
            except Expired as err:
                revision = ""
                self._restarting(f"listing again: {err}", backoff)
            except (Forbidden, MissingResource) as err:
                revision = ""
                self.error = err
                self.store.mark_unavailable(str(err))
                self._hook("watch.unavailable", {"kind": self.kind.name, "reason": str(err)})
                self._stop.wait(self._retry_unavailable if self.kind.optional else min(30.0, self._retry_unavailable))
            except DefragError as err:
                self.error = err
                self._restarting(str(err), backoff)
            except Exception as err:  # noqa: BLE001 - a dead watch thread would be stale data for ever
                revision = ""
                self.error = ClusterError(f"watch of {self.kind.name}: {type(err).__name__}: {err}")
                self._restarting(str(self.error), backoff)

    def _restarting(self, reason: str, backoff: Backoff) -> None:
        if self._stop.is_set():
            return
        self._hook("watch.restart", {"kind": self.kind.name, "reason": reason})
        self._stop.wait(backoff.pause())

    def _list(self) -> str:
        items, revision, problems = list_all(self._client, self.kind, self._decoder)
        self.store.replace(items, revision, problems)
        for problem in problems.values():
            self._hook("object.broken", {"object": problem.object, "reason": problem.reason, "detail": problem.detail})
        self._proven()
        return revision

    def _watch(self, revision: str, backoff: Backoff) -> str:
        """Applies events until the server ends the watch; returns the revision to go on from."""
        seconds = self._watch_seconds * random.uniform(0.9, 1.1)
        query = {
            **self.kind.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": revision,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        response = self._client.stream(self.kind.path, query, read_timeout=self._silence)
        with self._guard:
            self._open = response
        began, seen = time.monotonic(), 0
        reason = ""
        try:
            if self._stop.is_set():
                return revision
            self._proven()
            for line in _lines(response):
                event = self._decoder.event(line)
                if event.type == "ERROR":
                    status = event.status
                    raise Expired(f"watch of {self.kind.name}: {status.message if status else 'error event'}")
                self._apply(event)
                seen += 1
                revision = event.revision or revision
                self._proven()
        except msgspec.DecodeError as err:
            raise Expired(f"watch of {self.kind.name}: the stream is not readable ({err})") from err
        except ReadTimeoutError:
            # No news is no trouble; when the server is gone, opening the next watch says so.
            seen += 1
        except (HTTPError, OSError, ValueError, AttributeError) as err:
            # Broken connections, half a line at a close (ValueError), or our own stop that took the socket away.
            reason = f"connection broke: {type(err).__name__}"
        finally:
            with self._guard:
                self._open = None
            # Closed, not released: a stream that was cut must not go back to the pool.
            with contextlib.suppress(Exception):
                response.close()
        if seen or time.monotonic() - began > self._silence / 2:
            backoff.reset()
        if reason or (not seen and time.monotonic() - began < 1.0):
            self._restarting(reason or "the server ended the watch at once", backoff)
        return revision

    def _apply(self, event: Event[T]) -> None:
        if event.type == "BOOKMARK":
            self.store.advance(event.revision)
            return
        if event.type == "DELETED":
            self.store.remove(event.key, event.revision)
            if event.item is not None and self._on_vanished is not None:
                self._on_vanished(event.item)
        elif event.broken is not None:
            problem = event.broken.problem
            self.store.set_aside(event.key, problem)
            self._hook("object.broken", {"object": problem.object, "reason": problem.reason, "detail": problem.detail})
        elif event.item is not None:
            self.store.upsert(event.key, event.item, event.revision)

    def _proven(self) -> None:
        self._proof = time.monotonic()
        self.error = None


def _lines(response: urllib3.BaseHTTPResponse) -> Any:
    """Whole lines as soon as they are there; an unfinished last line of a cut stream is dropped."""
    rest = b""
    while True:
        part = response.read1(1 << 16)
        if not part:
            return
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _shut(response: urllib3.BaseHTTPResponse) -> None:
    """Wakes a thread that is blocked in a read of this response."""
    with contextlib.suppress(Exception):
        response.shutdown()
