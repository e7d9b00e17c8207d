"""Makes a world in which both sides disagree as small as it gets, by leaving things out while they still do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Raw = dict[str, Any]
Path = tuple[str | int, ...]
REGISTER = "hami.io/node-nvidia-register"


def _at(record: Raw, path: Path) -> Any:
    found: Any = record
    for step in path:
        found = found[step]
    return found


def _changed(record: Raw, path: Path, value: Any) -> Raw:
    copy: Raw = json.loads(json.dumps(record))
    _at(copy, path[:-1])[path[-1]] = value
    return copy


def _lists(record: Raw) -> Iterator[tuple[Path, int]]:
    """Lists of which elements can go, and how many must stay; the large things first."""
    for part, least in (("queries", 1), ("nodes", 1), ("pods", 0), ("quotas", 0)):
        if record.get(part):
            yield (part,), least
    for number, query in enumerate(record["queries"]):
        for part, least in (("initContainers", 0), ("containers", 1)):
            if query.get("submitted", {}).get("spec", {}).get(part):
                yield ("queries", number, "submitted", "spec", part), least


def _maps(record: Raw) -> Iterator[Path]:
    """Mappings of which keys can go."""
    for number, _ in enumerate(record["nodes"]):
        yield ("nodes", number, "metadata", "annotations")
    for number, query in enumerate(record["queries"]):
        if "submitted" not in query:
            continue
        base: Path = ("queries", number, "submitted")
        yield (*base, "metadata", "annotations")
        for part in ("initContainers", "containers"):
            for place, box in enumerate(query["submitted"]["spec"].get(part) or []):
                if box.get("resources", {}).get("limits"):
                    yield (*base, "spec", part, place, "resources", "limits")


def smaller(record: Raw) -> Iterator[Raw]:
    """Copies of the record with one thing left out."""
    for path, least in _lists(record):
        items = _at(record, path)
        if len(items) > max(3, least):
            half = len(items) // 2
            yield _changed(record, path, items[half:])
            yield _changed(record, path, items[:half])
        for number in range(len(items) if len(items) > least else 0):
            yield _changed(record, path, items[:number] + items[number + 1 :])
    for path in _maps(record):
        items = _at(record, path)
        for key in items:
            if key != REGISTER:
                yield _changed(record, path, {k: v for k, v in items.items() if k != key})
                continue
            devices = json.loads(items[key])
            for number in range(len(devices) if len(devices) > 1 else 0):
                yield _changed(record, (*path, key), json.dumps(devices[:number] + devices[number + 1 :]))


def shrink(record: Raw, disagree: Callable[[Raw], str], *, tries: int = 400) -> tuple[Raw, str]:
    """The smallest record found within ``tries`` questions, and the disagreement in it ("" = there is none)."""
    text = disagree(record)
    progress = bool(text)
    while progress and tries > 0:
        progress = False
        for candidate in smaller(record):
            tries -= 1
            found = disagree(candidate)
            if found:
                record, text, progress = candidate, found, True
                break
            if tries <= 0:
                break
    return record, text
