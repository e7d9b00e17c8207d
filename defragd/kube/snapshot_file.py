"""Snapshot files: a Kubernetes ``v1 List`` as `kubectl get nodes,pods,pdb,rs,hpp -A -o json` prints it, JSON or YAML,
also gzipped. Reading goes through the same structs and the same translation as the API server's lists.

A file that we write holds the fields a plan needs and nothing else: no environment, no arguments, no secrets.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from defragd.core.model import EMPTY, Problem
from defragd.core.placement import PLURAL as PLACEMENTS
from defragd.core.snapshot import Snapshot
from defragd.errors import SnapshotError
from defragd.hami.config import HamiConfig
from defragd.kube import kinds
from defragd.kube.anonymize import Anonymizer
from defragd.kube.decode import key_of
from defragd.kube.errors import BrokenObject
from defragd.kube.placements import placement_from_wire
from defragd.kube.reflector import Kind
from defragd.kube.slim import slim
from defragd.kube.snapshot_hami import KINDS as HAMI_KINDS
from defragd.kube.snapshot_hami import hami_in_file
from defragd.kube.store import Hub, Store
from defragd.kube.times import format_time, parse_time
from defragd.kube.translation import Translation
from defragd.kube.view import View

KNOWN = "defragd.io/known"
TAKEN_AT = "defragd.io/taken-at"
"""Annotations in the list's metadata: what was read, and when. Files of kubectl have neither."""

_NOT_IN_FILE = "not in the file"
_GZIP = b"\x1f\x8b"

CLUSTER_WIDE = frozenset({"Node", "Namespace", "PersistentVolume"})
"""Kinds in no namespace."""


class _ListMeta(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _File(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: _ListMeta | None = None
    items: list[msgspec.Raw] | None = None


class _Kinded(msgspec.Struct):
    kind: str = ""


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Times stay text, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def load(path: str, *, config: HamiConfig | None = None) -> Snapshot:
    """``path`` "-" is standard input. Raises SnapshotError: one line with the file and what to do."""
    raws: list[msgspec.Raw] = []
    stores, meta = load_stores(path, raws)
    config = config or hami_in_file(path, raws, meta)
    placements = View(stores[PLACEMENTS], placement_from_wire, "HamiPodPlacement")
    try:
        taken = parse_time((meta or {}).get(TAKEN_AT))
    except BrokenObject:
        taken = None
    snapshot = Translation(stores, placements, config or HamiConfig()).snapshot(taken or datetime.now(UTC))
    if taken is None:
        # A file of kubectl does not say when it was made; nobody should take the present for it.
        snapshot = replace(snapshot, taken_at=None)
    return snapshot


def load_stores(
    path: str, hami: list[msgspec.Raw] | None = None
) -> tuple[dict[str, Store[Any]], Mapping[str, str] | None]:
    """The wire objects by kind, and the annotations of the list. ``hami`` takes the items that may tell of HAMi."""
    found = _parse(path, _read(path))
    table = {kind.title: kind for kind in (*kinds.world_kinds(), kinds.placements_kind(optional=True))}
    decoders = {title: kind.decoder() for title, kind in table.items()}
    items: dict[str, dict[str, tuple[Any, str]]] = {title: {} for title in table}
    problems: dict[str, dict[str, Problem]] = {title: {} for title in table}
    every = found.kind.removesuffix("List") if found.kind != "List" else ""
    seen: set[str] = set()
    kinded = msgspec.json.Decoder(_Kinded)
    for number, raw in enumerate(found.items or (), start=1):
        try:
            kind = kinded.decode(raw).kind or every
        except msgspec.DecodeError as err:
            raise SnapshotError(f"{path}: item {number} is no Kubernetes object ({err})") from err
        if not kind:
            raise SnapshotError(f"{path}: item {number} has no kind; want a List as kubectl get -A -o json prints it")
        seen.add(kind)
        if kind in HAMI_KINDS and hami is not None:
            hami.append(raw)
        if kind not in table:
            continue
        try:
            item: Any = decoders[kind].item(bytes(raw))
        except msgspec.DecodeError as err:
            broken = decoders[kind].broken(raw, err)
            problems[kind][broken.key] = broken.problem
            continue
        if kind not in CLUSTER_WIDE and not item.metadata.namespace:
            item.metadata.namespace = "default"  # as kubectl reads manifests without one
        if not item.metadata.name:
            raise SnapshotError(f"{path}: item {number}, a {kind}, has no metadata.name")
        items[kind][key_of(item.metadata.namespace, item.metadata.name)] = (item, item.metadata.resource_version)
    if not items["Node"] and not problems["Node"]:
        there = ", ".join(sorted(seen)) or "nothing"
        raise SnapshotError(
            f"{path}: holds {there} but no Node; make it with: kubectl get nodes,pods,pdb,rs,deploy,sts -A -o json"
        )
    annotations = found.metadata.annotations if found.metadata else None
    return _fill(table, items, problems, (annotations or {}).get(KNOWN)), annotations


def _fill(
    table: Mapping[str, Kind[Any]],
    items: Mapping[str, Mapping[str, tuple[Any, str]]],
    problems: Mapping[str, Mapping[str, Problem]],
    said: str | None,
) -> dict[str, Store[Any]]:
    """A kind without objects is unknown, unless the file says that it was read or a sister kind is there."""
    hub = Hub()
    known = set(said.split(",")) if said is not None else set()
    here = {table[title].name for title, found in items.items() if found or problems[title]}
    for word, names in kinds.KNOWN:
        if word in known or (said is None and here & set(names)):
            here |= set(names)
    stores: dict[str, Store[Any]] = {}
    for title, kind in table.items():
        store: Store[Any] = Store(hub)
        if kind.name in here or not kind.optional:
            store.replace(items[title], "", problems[title])
        else:
            store.mark_unavailable(_NOT_IN_FILE)
        stores[kind.name] = store
    return stores


def save(
    stores: Mapping[str, Store[Any]],
    path: str | None,
    *,
    anonymize: bool = False,
    now: datetime,
    hami: tuple[Mapping[str, str], Sequence[Mapping[str, Any]]] = (EMPTY, ()),
) -> int:
    """Writes the List (gzipped when the name ends in .gz; None or "-" is standard output); the number of objects.

    ``stores``: `KubeCluster.stores()` or `cluster.read_stores(client)`. With ``anonymize`` names, namespaces, label
    keys and values, UUIDs and UIDs are replaced, the same word always by the same one. ``hami``: annotations and items
    that describe HAMi itself (`snapshot_hami`), written as they are.
    """
    items: list[dict[str, Any]] = []
    table = (*kinds.world_kinds(), kinds.placements_kind(optional=True))
    readable = {kind.name for kind in table if kind.name in stores and stores[kind.name].synced}
    readable -= {name for name in readable if stores[name].unavailable}
    for kind in table:
        if kind.name in readable:
            for _, item in sorted(stores[kind.name].items().items()):
                items.append(slim(kind.title, api_version(kind), msgspec.to_builtins(item)))
    if anonymize:
        items = Anonymizer(items).run()
    known = sorted(word for word, names in kinds.KNOWN if set(names) <= readable)
    document = {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {
            "resourceVersion": "",
            "annotations": {KNOWN: ",".join(known), TAKEN_AT: format_time(now), **hami[0]},
        },
        "items": [*items, *hami[1]],
    }
    _write(path, msgspec.json.encode(document) + b"\n")
    return len(items)


def api_version(kind: Kind[Any]) -> str:
    """From the list path: /api/v1/... or /apis/GROUP/VERSION/..."""
    parts = kind.path.strip("/").split("/")
    return parts[1] if parts[0] == "api" else f"{parts[1]}/{parts[2]}"


def _read(path: str) -> bytes:
    if path == "-" and sys.stdin is None:
        raise SnapshotError("-: there is no standard input; give a file or pipe a List in")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as err:
        raise SnapshotError(f"{path}: cannot be read: {err.strerror or err}") from err
    if data[:2] == _GZIP:
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as err:
            raise SnapshotError(f"{path}: the gzip file is cut off or damaged ({err}); make it anew") from err
    if not data.strip():
        raise SnapshotError(f"{path}: is empty; make it with: kubectl get nodes,pods,pdb,rs,deploy,sts -A -o json")
    return data


def _parse(path: str, data: bytes) -> _File:
    if data.lstrip()[:1] != b"{":
        data = _yaml_to_json(path, data)
    try:
        found = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as err:
        raise SnapshotError(f"{path}: is no Kubernetes List: {err}") from err
    except msgspec.DecodeError as err:
        raise SnapshotError(f"{path}: is neither JSON nor YAML: {err}") from err
    if found.kind.endswith("List") and found.items is None:
        raise SnapshotError(f"{path}: is a {found.kind} without items; the file is cut off or not what kubectl prints")
    if not found.kind.endswith("List") or found.items is None:
        what = f"a {found.kind}" if found.kind else "no Kubernetes object"
        raise SnapshotError(
            f"{path}: is {what}, want a v1 List as kubectl get nodes,pods,pdb,rs,deploy,sts -A -o json prints it"
        )
    return found


def _yaml_to_json(path: str, data: bytes) -> bytes:
    try:
        return msgspec.json.encode(yaml.load(data, Loader=_Loader))
    except yaml.YAMLError as err:
        raise SnapshotError(f"{path}: is neither JSON nor YAML: {' '.join(str(err).split())[:200]}") from err
    except (UnicodeDecodeError, TypeError, ValueError) as err:
        raise SnapshotError(f"{path}: cannot be read as YAML: {err}") from err


def _write(path: str | None, data: bytes) -> None:
    if path is None or path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        # No time in the gzip header: the same cluster gives the same file.
        Path(path).write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)
    except OSError as err:
        raise SnapshotError(f"{path}: cannot be written: {err.strerror or err}") from err
