"""HAMi's mutating webhook (NVIDIA): what it makes of a pod at CREATE, or why it refuses."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.ground.hami.decide import World
from tests.ground.hami.request import integer, resolve


class Denied(Exception):
    """Refused with an HTTP status in the review."""

    def __init__(self, message: str, code: int = 403) -> None:
        super().__init__(message)
        self.code = code


def admit(world: World, pod: Mapping[str, Any], namespace: str, *, scheduler: str = "hami-scheduler") -> dict[str, Any]:
    """The pod as HAMi's webhook leaves it. Raises Denied."""
    changed: dict[str, Any] = copy.deepcopy(dict(pod))
    spec = changed["spec"]
    if not spec.get("containers"):
        raise Denied("pod has no containers")
    if spec.get("schedulerName") not in (None, "", scheduler, "default-scheduler"):
        return changed
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    asking = [container for container in every if _mutate(container, world.nvidia)]
    if not asking:
        return changed
    for container in every:
        if (container.get("securityContext") or {}).get("privileged"):
            raise Denied(f"container {container['name']} is privileged")
    spec["schedulerName"] = scheduler
    if spec.get("nodeName"):
        raise Denied("pod has node assigned")
    if world.nvidia.get("runtimeClassName") and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = world.nvidia["runtimeClassName"]
    memory, cores = _asked(changed, world.nvidia)
    # A pod that asks neither memory nor cores in figures is not held against the quota here.
    asked = bool(memory or cores)
    if asked and not world.quotas.allows(namespace, list(world.bookings.values()), memory, cores):
        raise Denied("exceeding resource quota")
    return changed


def _mutate(container: dict[str, Any], nvidia: Mapping[str, Any]) -> bool:
    """Completes one container's limits; True when it asks for devices."""
    limits = (container.get("resources") or {}).get("limits") or {}
    count, memory = nvidia["resourceCountName"], nvidia["resourceMemoryName"]
    percent, cores = nvidia["resourceMemoryPercentageName"], nvidia["resourceCoreName"]
    if percent in limits:
        value = integer(limits[percent])
        if value is None or not 0 <= value <= 100:
            raise Denied(
                f"invalid {percent} value {limits[percent]} in container {container['name']}: "
                "must be an integer between 0 and 100",
                500,
            )
    if nvidia["resourcePriorityName"] in limits:
        entry = {"name": "CUDA_TASK_PRIORITY", "value": str(limits[nvidia["resourcePriorityName"]])}
        container.setdefault("env", []).append(entry)
    if count not in limits and any(name in limits for name in (memory, percent, cores)):
        limits[count] = str(nvidia["defaultGPUNum"])
    if count not in limits:
        return False
    whole = integer(limits[percent]) == 100 if percent in limits else memory not in limits
    if cores not in limits and whole:
        limits[cores] = "100"
    return True


def _asked(pod: Mapping[str, Any], nvidia: Mapping[str, Any]) -> tuple[int, int]:
    """(MiB, cores) as resolved with the configured defaults: a percentage counts as no memory; init containers one by
    one, app ones together."""

    def of(container: Mapping[str, Any]) -> tuple[int, int]:
        ask = resolve(container, nvidia)
        return (ask.count * ask.memory, ask.count * ask.cores) if ask else (0, 0)

    inits = [of(c) for c in pod["spec"].get("initContainers") or []]
    apps = [of(c) for c in pod["spec"]["containers"]]
    return (
        max([sum(m for m, _ in apps), *(m for m, _ in inits)]),
        max([sum(c for _, c in apps), *(c for _, c in inits)]),
    )
