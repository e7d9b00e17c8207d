"""What the watches know, by key: thread-safe, never going back in time, with one change counter for all kinds.

A store keeps wire structs; whoever translates them asks for the keys that changed since the last time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from defragd.core.model import Problem

T = TypeVar("T")

_TOMBSTONES = 4096
"""Deletions remembered per store, against answers of older writes that arrive late."""


def newer(revision: str, than: str) -> bool:
    """Resource versions of one server grow as numbers; anything else counts as newer, as the watch's order is right."""
    try:
        return int(revision) > int(than)
    except ValueError:
        return True


class Hub:
    """The lock, the version and the waiting room that all stores of one cluster share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    def bump(self) -> None:
        with self.lock:
            self._version += 1
            self._changed.notify_all()

    def wait(self, after: int, timeout: float) -> int:
        """Returns the version as soon as it has passed ``after``, or after ``timeout`` seconds as it is."""
        end = time.monotonic() + timeout
        with self.lock:
            while self._version <= after:
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            return self._version


class Store(Generic[T]):
    """Objects of one kind by ns/name (or name). Reads take the hub's lock for a copy of the references only."""

    def __init__(self, hub: Hub, same: Callable[[T, T], bool] | None = None) -> None:
        """``same``: whether a new version says nothing new, so that nobody needs to wake up for it."""
        self._hub, self._same = hub, same
        self._items: dict[str, T] = {}
        self._revisions: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._dirty: set[str] = set()
        self._problems: dict[str, Problem] = {}
        self._synced = False
        self._latest = 0
        self.unavailable = ""
        """Why the kind cannot be read (no permission, not served), "" while it can."""

    # -- written by reflector and own writes ----------------------------------------------------------------------

    def replace(self, items: Mapping[str, tuple[T, str]], revision: str, problems: Mapping[str, Problem]) -> None:
        """A fresh list of ``revision``. Own writes that are newer than the list stay."""
        with self._hub.lock:
            before = self._revisions
            merged = {key: item for key, (item, _) in items.items()}
            revisions = {key: rev for key, (_, rev) in items.items()}
            for key, rev in before.items():
                if revision and newer(rev, revision):
                    merged[key], revisions[key] = self._items[key], rev
            self._items, self._revisions = merged, revisions
            self._problems = dict(problems)
            self._dirty |= before.keys() - revisions.keys()
            self._dirty |= (
                {key for key, rev in revisions.items() if before.get(key) != rev} if before else revisions.keys()
            )
            changed = before != revisions or not self._synced or bool(problems)
            self._synced, self.unavailable = True, ""
            self.advance(revision)
            if changed:
                self._hub.bump()

    def upsert(self, key: str, item: T, revision: str, *, force: bool = False, current: bool = True) -> bool:
        """False when the store has a newer one (or a newer deletion) already; ``force`` takes it all the same.
        ``current`` False: an own write that says nothing of what others wrote before it."""
        with self._hub.lock:
            known = self._revisions.get(key) or self._gone.get(key)
            if known and not force and not newer(revision, known):
                return False
            if current:
                self.advance(revision)
            old = self._items.get(key)
            self._items[key], self._revisions[key] = item, revision
            if old is not None and self._same is not None and self._same(old, item):
                return True
            self._problems.pop(key, None)
            self._gone.pop(key, None)
            self._dirty.add(key)
            self._hub.bump()
            return True

    def remove(self, key: str, revision: str) -> None:
        with self._hub.lock:
            known = self._revisions.get(key)
            if known and revision and newer(known, revision):
                return
            self._items.pop(key, None)
            self._revisions.pop(key, None)
            self._problems.pop(key, None)
            self._gone[key] = revision
            self.advance(revision)
            while len(self._gone) > _TOMBSTONES:
                del self._gone[next(iter(self._gone))]
            self._dirty.add(key)
            self._hub.bump()

    def set_aside(self, key: str, problem: Problem) -> None:
        """A broken object takes its last good version with it: nothing is decided on what is known to be old."""
        with self._hub.lock:
            self._items.pop(key, None)
            self._revisions.pop(key, None)
            self._problems[key] = problem
            self._dirty.add(key)
            self._hub.bump()

    def mark_unavailable(self, why: str) -> None:
        """Nothing is known of this kind (any more); readers treat it with caution."""
        with self._hub.lock:
            if self.unavailable == why:
                return
            self._dirty |= self._items.keys()
            self._items, self._revisions, self._problems = {}, {}, {}
            self.unavailable = why
            self._hub.bump()

    def advance(self, revision: str) -> None:
        """The store is known to be current up to here (lists, events, bookmarks)."""
        with contextlib.suppress(ValueError):
            self._latest = max(self._latest, int(revision))

    # -- read -----------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def latest(self) -> int:
        """The newest revision taken in; 0 before the first list."""
        return self._latest

    def get(self, key: str) -> T | None:
        with self._hub.lock:
            return self._items.get(key)

    def revision(self, key: str) -> str:
        with self._hub.lock:
            return self._revisions.get(key, "")

    def items(self) -> dict[str, T]:
        with self._hub.lock:
            return dict(self._items)

    def values(self) -> list[T]:
        with self._hub.lock:
            return list(self._items.values())

    def problems(self) -> list[Problem]:
        with self._hub.lock:
            return list(self._problems.values())

    def take_changes(self) -> dict[str, T | None]:
        """Keys that changed since the last call, with what they are now (None = gone). One reader per store."""
        with self._hub.lock:
            changed = {key: self._items.get(key) for key in self._dirty}
            self._dirty.clear()
            return changed

    def touch(self, keys: Iterable[str]) -> None:
        """Let the reader look at these again (something they depend on has changed)."""
        with self._hub.lock:
            self._dirty.update(key for key in keys if key in self._items)

    def __len__(self) -> int:
        return len(self._items)
