"""Wire objects of one store as core values, translated once per revision; the mapping is never written after it is
given out, so snapshots share it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from defragd.core.model import Problem
from defragd.errors import DefragError
from defragd.kube.decode import UNREADABLE
from defragd.kube.store import Store

T = TypeVar("T")
V = TypeVar("V")


class View(Generic[T, V]):
    """The one reader of a store's changes. ``convert`` may raise: then the object is left out and named."""

    def __init__(self, store: Store[T], convert: Callable[[T], V], title: str) -> None:
        self._store, self._convert, self._title = store, convert, title
        self._lock = threading.Lock()
        self._values: dict[str, V] = {}
        self._problems: dict[str, Problem] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        """Grows with every change of the mapping."""
        return self._generation

    def read(self) -> Mapping[str, V]:
        """The present values by key; the same object as long as nothing changed."""
        with self._lock:
            changes = self._store.take_changes()
            if not changes:
                return self._values
            values = dict(self._values)
            for key, item in changes.items():
                self._problems.pop(key, None)
                if item is None:
                    values.pop(key, None)
                    continue
                try:
                    values[key] = self._convert(item)
                except DefragError as err:
                    values.pop(key, None)
                    self._problems[key] = self._problem(key, str(err))
                except Exception as err:  # noqa: BLE001 - one odd object must never stop the rest
                    values.pop(key, None)
                    self._problems[key] = self._problem(key, f"{type(err).__name__}: {err}")
            self._values = values
            self._generation += 1
            return values

    def problems(self) -> list[Problem]:
        with self._lock:
            return list(self._problems.values())

    def _problem(self, key: str, detail: str) -> Problem:
        shown = key if self._title == "Pod" else f"{self._title}/{key}"
        return Problem(shown, UNREADABLE, f"cannot be read and is left out: {detail}")


def identity(item: Any) -> Any:
    return item
