"""What a snapshot file says of HAMi's own installation: its device configuration, its version, its policies by flag.

A file of ours carries HAMi's ConfigMap as an item and the rest in an annotation of the list; a file of kubectl may hold
the ConfigMap and the scheduler's Deployment as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import yaml

from defragd.errors import ConfigError, Forbidden, MissingResource, SnapshotError
from defragd.hami.config import HamiConfig, parse_device_config
from defragd.hami.installation import with_deployments
from defragd.kube.client import Client
from defragd.kube.discovery import read_installation

HAMI = "defragd.io/hami"
"""Annotation in the list's metadata."""
DEVICE_CONFIG = "device-config.yaml"
KINDS = frozenset({"ConfigMap", "Deployment"})
_FIELDS = {
    "version": "version",
    "versionTold": "version_told",
    "schedulerName": "scheduler_name",
    "nodePolicy": "node_policy",
    "devicePolicy": "device_policy",
    "overwriteDefaultScheduler": "overwrite_default_scheduler",
}


def hami_in_file(
    path: str, items: Iterable[bytes | msgspec.Raw], annotations: Mapping[str, str] | None
) -> HamiConfig | None:
    """``items``: ConfigMaps and Deployments of the file. None where it says nothing. Raises SnapshotError for a device
    configuration that cannot be read: wrong resource names would make every pod look empty."""
    found: HamiConfig | None = None
    deployments: list[Any] = []
    for raw in items:
        item = msgspec.json.decode(raw)
        text = (item.get("data") or {}).get(DEVICE_CONFIG) if isinstance(item.get("data"), dict) else None
        if item.get("kind") == "Deployment":
            deployments.append(item)
        elif isinstance(text, str):
            found = _parsed(path, text)
    said = _marks((annotations or {}).get(HAMI))
    base = found or HamiConfig()
    completed = replace(with_deployments(base, deployments), **said)
    return found if completed == base else completed


def _parsed(path: str, text: str) -> HamiConfig:
    try:
        return parse_device_config(yaml.safe_load(text) or {})
    except (yaml.YAMLError, ConfigError, AttributeError, TypeError) as error:
        why = " ".join(str(error).split())[:200]
        raise SnapshotError(f"{path}: HAMi's {DEVICE_CONFIG} in it cannot be read: {why}") from None


def _marks(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    want = HamiConfig()
    return {
        field: value[name] for name, field in _FIELDS.items() if isinstance(value.get(name), type(getattr(want, field)))
    }


def hami_marks(config: HamiConfig) -> dict[str, str]:
    """The annotation that `hami_in_file` reads back."""
    return {HAMI: json.dumps({name: getattr(config, field) for name, field in _FIELDS.items()})}


def hami_of_cluster(client: Client, namespace: str, name: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Annotations and items that describe the cluster's HAMi; as far as it may be read."""
    config = read_installation(client, namespace, name)
    if config is None:
        return {}, []
    try:
        data = client.get_json(f"/api/v1/namespaces/{namespace}/configmaps/{name}").get("data") or {}
    except (MissingResource, Forbidden):
        data = {}
    meta = {"name": "hami-scheduler-device", "namespace": "kube-system"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {DEVICE_CONFIG: data.get(DEVICE_CONFIG)}}
    return hami_marks(config), [body] if isinstance(data.get(DEVICE_CONFIG), str) else []
