"""What HAMi's scheduler Deployment tells about an installation: its version, and policies set by flag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from defragd.hami.config import HamiConfig
from defragd.hami.version import scheduler_image, version_of

_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def _words(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments as single words; some charts put a whole shell line into one."""
    lines = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [word for line in lines for word in str(line).split()]


def flags(deployment: Mapping[str, Any]) -> dict[str, str]:
    """Flags of the container that runs HAMi's scheduler: ``--name=value``, ``--name value`` or ``--name`` ("true")."""
    found: dict[str, str] = {}
    for container in _containers(deployment):
        words = _words(container)
        for place, word in enumerate(words):
            if not word.startswith("-"):
                continue
            name, equal, value = word.lstrip("-").partition("=")
            after = words[place + 1] if place + 1 < len(words) else "-"
            found[name] = value if equal else "true" if after.startswith("-") else after
    return found


def _containers(deployment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pod = deployment.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod.get("containers") or ():
        if any(word.lstrip("-").startswith("device-config-file") for word in _words(container)):
            yield container


def with_deployments(config: HamiConfig, deployments: Iterable[Mapping[str, Any]]) -> HamiConfig:
    """``config`` with the version and the flags of the first HAMi scheduler among the Deployments; the same object
    where there is none."""
    for deployment in deployments:
        if not any(_containers(deployment)):
            continue
        said, tag = flags(deployment), version_of(scheduler_image(deployment))
        return replace(
            config,
            version=f"{tag[0]}.{tag[1]}" if tag != (0, 0) else config.version,
            version_told=tag != (0, 0) or config.version_told,
            scheduler_name=said.get("scheduler-name", config.scheduler_name),
            node_policy=said.get("node-scheduler-policy", config.node_policy),
            device_policy=said.get("gpu-scheduler-policy", config.device_policy),
            overwrite_default_scheduler=said.get("force-overwrite-default-scheduler", "") not in _FALSE,
        )
    return config
