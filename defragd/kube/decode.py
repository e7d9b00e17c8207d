"""Bytes of a list page or a watch event -> wire structs; one broken object is set aside and named, the rest goes on.

Fast path: the whole page at once. Only when that fails is it taken apart and decoded item by item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from defragd.core.model import Problem
from defragd.kube.errors import Status
from defragd.kube.wire import ListMeta

T = TypeVar("T")

UNREADABLE = "UnreadableObject"


class _Identity(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


class _RawPage(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class _RawEvent(msgspec.Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Broken:
    key: str
    revision: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    revision: str
    continue_: str
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """``type``: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR. ``item`` is None for the last two and broken objects."""

    type: str
    item: T | None
    key: str = ""
    revision: str = ""
    broken: Broken | None = None
    status: Status | None = None


def key_of(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


class ListDecoder(Generic[T]):
    """Decodes pages and events of one kind. ``title`` names cluster-scoped objects in problems (Kind/name)."""

    def __init__(self, struct: type[T], title: str, *, compact: Callable[[T], None] | None = None) -> None:
        """``compact`` gets every decoded object, to drop and share what it can."""
        self._title, self._compact = title, compact
        fields: list[Any] = [
            ("metadata", ListMeta, msgspec.field(default_factory=ListMeta)),
            ("items", list[struct], []),  # type: ignore[valid-type]
        ]
        page = msgspec.defstruct(f"{title}Page", fields)
        self._page = msgspec.json.Decoder(page)
        self._raw_page = msgspec.json.Decoder(_RawPage)
        self._event = msgspec.json.Decoder(_RawEvent)
        self._item = msgspec.json.Decoder(struct)
        self._named = msgspec.json.Decoder(_Named)
        self._status = msgspec.json.Decoder(Status)

    def page(self, data: bytes) -> Page[T]:
        """Raises msgspec.DecodeError when the page itself is no list (a cut connection, a proxy's HTML)."""
        try:
            fast: Any = self._page.decode(data)
            if self._compact is not None:
                for item in fast.items:
                    self._compact(item)
            return Page(fast.items, fast.metadata.resource_version, fast.metadata.continue_)
        except msgspec.ValidationError:
            pass
        slow = self._raw_page.decode(data)
        items: list[T] = []
        broken: list[Broken] = []
        for raw in slow.items or ():
            try:
                items.append(self.item(raw))
            except msgspec.DecodeError as err:
                broken.append(self.broken(raw, err))
        return Page(items, slow.metadata.resource_version, slow.metadata.continue_, tuple(broken))

    def item(self, data: bytes | msgspec.Raw) -> T:
        """One object, such as the answer of a write. Raises msgspec.DecodeError."""
        item = self._item.decode(data)
        if self._compact is not None:
            self._compact(item)
        return item

    def event(self, line: bytes) -> Event[T]:
        """Raises msgspec.DecodeError when the line is no event."""
        event = self._event.decode(line)
        if event.type == "ERROR":
            return Event(event.type, None, status=self._status.decode(event.object))
        if event.type == "BOOKMARK":
            return Event(event.type, None, revision=self._named.decode(event.object).metadata.resource_version)
        try:
            item: Any = self.item(event.object)
        except msgspec.DecodeError as err:
            found = self.broken(event.object, err)
            return Event(event.type, None, found.key, found.revision, found)
        meta = item.metadata
        return Event(event.type, item, key_of(meta.namespace, meta.name), meta.resource_version)

    def broken(self, raw: msgspec.Raw, err: Exception) -> Broken:
        """Name an object that cannot be decoded, as far as its metadata can be."""
        try:
            meta = self._named.decode(raw).metadata
        except msgspec.DecodeError:
            meta = _Identity(name="(without a readable name)")
        key = key_of(meta.namespace, meta.name)
        shown = key if self._title == "Pod" else f"{self._title}/{key}"
        return Broken(key, meta.resource_version, Problem(shown, UNREADABLE, f"cannot be read and is left out: {err}"))
