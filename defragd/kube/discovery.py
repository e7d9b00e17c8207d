"""What this API server can do: version, scheduling gates, our custom resources, HAMi's own configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from defragd.core.placement import GROUP, PLURAL, VERSION
from defragd.errors import ClusterError, ConfigError, Forbidden, MissingResource
from defragd.hami.config import HamiConfig, parse_device_config
from defragd.hami.installation import with_deployments
from defragd.kube.client import Client
from defragd.kube.runs import PLURAL as RUNS

GATES_SINCE = (1, 27)
"""Scheduling gates are on by default since then (stable since 1.30); before, pods are pinned at admission."""
OLDEST = (1, 24)


@dataclass(frozen=True, slots=True)
class ServerVersion:
    major: int
    minor: int
    text: str

    @property
    def gates(self) -> bool:
        return (self.major, self.minor) >= GATES_SINCE

    @property
    def supported(self) -> bool:
        return (self.major, self.minor) >= OLDEST


def server_version(client: Client) -> ServerVersion:
    """From /version, which everybody may read. Providers write minors like "27+"."""
    found: Mapping[str, Any] = client.get_json("/version")
    numbers = [re.match(r"\d+", str(found.get(name, ""))) for name in ("major", "minor")]
    if None in numbers:
        text = str(found.get("gitVersion", ""))
        parts = re.match(r"v?(\d+)\.(\d+)", text)
        if parts is None:
            raise ClusterError(f"{client.server} does not say its version ({text or 'empty'}); is it a Kubernetes API?")
        return ServerVersion(int(parts[1]), int(parts[2]), text)
    major, minor = (int(number[0]) for number in numbers if number is not None)
    return ServerVersion(major, minor, str(found.get("gitVersion", f"v{major}.{minor}")))


def require_resources(client: Client) -> None:
    """Raises MissingResource with the mend when one of our custom resources is not served."""
    try:
        served = client.get_json(f"/apis/{GROUP}/{VERSION}")
        names = {str(item.get("name")) for item in served.get("resources") or ()}
    except MissingResource:
        names = set()
    except Forbidden:
        return  # discovery is closed here; the first list will tell
    for plural in (PLURAL, RUNS):
        if plural not in names:
            raise MissingResource(
                f"{client.server} does not serve {plural}.{GROUP}/{VERSION}: "
                "install the CRDs (kubectl apply -f crds/, or the chart with crds.enabled=true)"
            )


def read_device_config(client: Client, namespace: str, name: str) -> HamiConfig | None:
    """HAMi's device-config.yaml from its ConfigMap; None when there is none or it may not be read (HAMi's defaults then
    apply). Raises ConfigError when it is there and broken: wrong resource names would make every pod look empty."""
    try:
        data = client.get_json(f"/api/v1/namespaces/{namespace}/configmaps/{name}").get("data") or {}
    except (MissingResource, Forbidden):
        return None
    text = data.get("device-config.yaml")
    if not isinstance(text, str):
        return None
    place = f"ConfigMap {namespace}/{name}, device-config.yaml"
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ConfigError(f"{place} is not YAML: {' '.join(str(err).split())}") from err
    if not isinstance(document, dict):
        raise ConfigError(f"{place} is no mapping")
    return parse_device_config(document)


def read_installation(client: Client, namespace: str, name: str) -> HamiConfig | None:
    """`read_device_config`, completed by what HAMi's scheduler Deployment says (version, policies by flag); None where
    neither can be read."""
    config = read_device_config(client, namespace, name)
    try:
        found = client.get_json(f"/apis/apps/v1/namespaces/{namespace}/deployments").get("items") or ()
    except (MissingResource, Forbidden):
        return config
    known = config or HamiConfig()
    completed = with_deployments(known, found)
    return config if completed is known else completed
