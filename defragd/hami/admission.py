"""What HAMi's mutating webhook, and the API server behind it, make of a pod that is created (reference section 5).

Works on the raw JSON object, because that is what a webhook gets and what a simulated API server stores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from defragd.core.fit_state import hami_collapse
from defragd.core.snapshot import Snapshot
from defragd.hami.backend import pick
from defragd.hami.config import AscendChip, HamiConfig, Names
from defragd.hami.keys import METAX_APP_CLASS, METAX_QOS, VNPU_MODE, WEBHOOK_LABEL
from defragd.hami.quantity import canonical, parse, units, whole
from defragd.hami.requests import ContainerNeeds, resolve_container

HOOK = 'admission webhook "vgpu.hami.io" denied the request: '
SOFT_MODE = "hami-core"


@dataclass(frozen=True, slots=True)
class Denial:
    """The API server's answer to a pod that is refused."""

    code: int
    message: str


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


def _default_requests(container: dict[str, Any]) -> None:
    """The API server's defaulting: a limit without a request becomes the request too."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return
    for part in ("limits", "requests"):
        if resources.get(part):
            resources[part] = {name: canonical(value) for name, value in resources[part].items()}
        else:
            resources.pop(part, None)
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _containers(pod: Mapping[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    spec = pod["spec"]
    return [
        (part, place, container)
        for part in ("initContainers", "containers")
        for place, container in enumerate(spec.get(part) or ())
    ]


def _amounts(container: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    resources = container.get("resources") or {}
    return resources.get("limits") or {}, resources.get("requests") or {}


def _set_limit(container: dict[str, Any], name: str, value: int) -> None:
    resources = container.setdefault("resources", {})
    resources["limits"] = {**(resources.get("limits") or {}), name: canonical(value)}


def _set_both(container: dict[str, Any], name: str, value: int) -> None:
    _set_limit(container, name, value)
    resources = container["resources"]
    if name in (resources.get("requests") or {}):
        resources["requests"] = {**resources["requests"], name: canonical(value)}


def _nvidia(container: dict[str, Any], pod: dict[str, Any], config: HamiConfig) -> bool:
    names = config.nvidia
    limits, requests = _amounts(container)
    percent = pick(limits, requests, names.percent)
    if percent is not None:
        number = units(percent)
        if not 0 <= number <= 100:
            raise _Refused(
                500,
                f"{HOOK}invalid {names.percent} value {number} in container {container['name']}: "
                "must be an integer between 0 and 100",
            )
    if names.priority in limits:
        priority = units(limits[names.priority])
        container.setdefault("env", []).append({"name": "CUDA_TASK_PRIORITY", "value": str(priority)})
    if config.core_policy and config.core_policy != "default":
        container.setdefault("env", []).append({"name": "GPU_CORE_UTILIZATION_POLICY", "value": config.core_policy})
    asked = names.count in limits
    if not asked and config.default_count > 0 and any(n in limits for n in (names.memory, names.percent, names.cores)):
        _set_limit(container, names.count, config.default_count)
        asked = True
    limits, requests = _amounts(container)
    if pick(limits, requests, names.count) is not None and pick(limits, requests, names.cores) is None:
        plain = pick(limits, requests, names.memory) is None
        if plain if percent is None else units(percent) == 100:
            _set_limit(container, names.cores, 100)
            asked = True
    if asked:
        if config.runtime_class and not pod["spec"].get("runtimeClassName"):
            pod["spec"]["runtimeClassName"] = config.runtime_class
    elif config.overwrite_env:
        container.setdefault("env", []).append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})
    return asked


def _ascend(container: dict[str, Any], pod: dict[str, Any], chip: AscendChip) -> bool:
    names = chip.names
    limits, requests = _amounts(container)
    if names.count not in limits:
        return False
    count = asked = units(limits[names.count])
    if chip.super_pod:
        if count == 1:
            asked = 2
            _set_both(container, names.count, asked)
        elif count % 2:
            raise _Refused(500, f"{HOOK}Ascend910C device request must be 1 or 2*n, got {count}")
    soft = (pod["metadata"].get("annotations") or {}).get(VNPU_MODE) == SOFT_MODE
    if not soft and units(pick(limits, requests, names.cores)) > 0:
        raise _Refused(500, f"{HOOK}{names.cores} is only supported in hami-core (soft split) mode")
    memory = chip.allocatable_mib
    if names.memory in limits:
        wanted = units(limits[names.memory])
        memory = wanted if soft else _slice(chip, wanted)
        if not soft and memory <= 0:
            raise _Refused(500, f"{HOOK}{names.memory} {wanted} is invalid")
    if count > 1 and not soft and memory != chip.allocatable_mib:
        raise _Refused(500, f"{HOOK}vNPU not supported for multiple devices")
    resources = container["resources"]
    for part in ("limits", "requests"):
        resources[part] = {**(resources.get(part) or {}), names.memory: canonical(memory)}
    if chip.runtime_class and not pod["spec"].get("runtimeClassName"):
        pod["spec"]["runtimeClassName"] = chip.runtime_class
    return True


def _slice(chip: AscendChip, wanted: int) -> int:
    """The first template that holds ``wanted`` MiB, else the whole chip up to its capacity, else 0."""
    found = next((t.memory_mib for t in chip.templates if t.memory_mib >= wanted), None)
    if found is not None:
        return found
    return chip.allocatable_mib if wanted <= chip.capacity_mib else 0


def _iluvatar(container: dict[str, Any], names: Names) -> bool:
    limits, _ = _amounts(container)
    if names.count not in limits:
        return False
    count = units(limits[names.count])
    if count > 1:
        _set_limit(container, names.cores, 100 * count)
    env = container.setdefault("env", [])
    if container.get("name") and not any(e.get("name") == "SOL_CONTINER_NAME" for e in env):
        env.append({"name": "SOL_CONTINER_NAME", "value": container["name"]})
    return True


def _mthreads(container: dict[str, Any], pod: dict[str, Any], config: HamiConfig) -> bool:
    names = config.mthreads
    limits, requests = _amounts(container)
    asked = pick(limits, requests, names.count)
    if asked is None:
        return False
    count = units(asked)
    if count <= 0:
        raise _Refused(500, f"{HOOK}{names.count} must be greater than 0")
    per_device = config.mthreads_memory_per_device[0]
    if count > 1:
        _set_limit(container, names.cores, 16 * count)
        _set_limit(container, names.memory, per_device * count)
        pod["metadata"]["annotations"] = {
            **(pod["metadata"].get("annotations") or {}),
            "mthreads.com/request-gpu-num": str(count),
        }
        return True
    if names.memory not in limits:
        _set_limit(container, names.cores, 16)
        _set_limit(container, names.memory, per_device)
    elif (whole(limits[names.memory]) or 0) not in (2, 4, 8, 16, 32, 64, 96):
        raise _Refused(500, f"{HOOK}sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]")
    return True


def _metax(container: dict[str, Any], pod: dict[str, Any], config: HamiConfig) -> bool:
    limits, _ = _amounts(container)
    if config.metax_shared.count not in limits:
        return False
    annotations = pod["metadata"].get("annotations") or {}
    wanted = annotations.get(METAX_APP_CLASS)
    if wanted is not None:
        if wanted not in ("online", "offline"):
            raise _Refused(500, f"{HOOK}{METAX_APP_CLASS} must be set one of [online, offline]")
        if units(limits[config.metax_shared.count]) != 1:
            raise _Refused(500, f"{HOOK}app-class pod must request single device")
    if wanted == "online":
        return True
    quality = annotations.get(METAX_QOS)
    if quality is None:
        pod["metadata"]["annotations"] = {**annotations, METAX_QOS: "best-effort"}
    elif quality not in ("best-effort", "fixed-share", "burst-share"):
        raise _Refused(500, f"{HOOK}{METAX_QOS} must be set one of [best-effort, fixed-share, burst-share]")
    return True


def _xpu(container: dict[str, Any], names: Names) -> bool:
    limits, _ = _amounts(container)
    if names.count not in limits:
        return False
    if names.memory in limits:
        wanted = units(limits[names.memory])
        memory = next((s for s in (24576, 49152) if wanted <= s), 98304)
        resources = container["resources"]
        for part in ("limits", "requests"):
            resources[part] = {**(resources.get(part) or {}), names.memory: canonical(memory)}
    return True


def _amd(container: dict[str, Any], names: Names) -> bool:
    limits, _ = _amounts(container)
    if names.count in limits and names.cores in limits and not 1 <= (whole(limits[names.cores]) or 0) <= 100:
        raise _Refused(500, f"{HOOK}{names.cores} must be an integer percentage between 1 and 100")
    return any(name in limits for name in (names.count, names.memory, names.cores))


def _enflame(container: dict[str, Any], names: Names) -> bool:
    limits, requests = _amounts(container)
    slices = pick(limits, requests, names.count)
    if slices is not None:
        if units(slices) <= 0:
            raise _Refused(500, f"{HOOK}{names.count} must be greater than 0")
        return True
    memory, cores = pick(limits, requests, names.memory), pick(limits, requests, names.cores)
    if memory is not None and units(memory) <= 0:
        raise _Refused(500, f"{HOOK}{names.memory} must be greater than 0")
    if cores is not None and not 0 < units(cores) <= 100:
        raise _Refused(500, f"{HOOK}{names.cores} must be in range (0,100]")
    return memory is not None or cores is not None


def _mutate(container: dict[str, Any], pod: dict[str, Any], config: HamiConfig) -> bool:
    """All backends on one container; whether any of them is asked."""
    found = [_nvidia(container, pod, config)]
    found += [_ascend(container, pod, chip) for chip in config.ascend]
    found += [_iluvatar(container, chip.names) for chip in config.iluvatar]
    found += [
        _mthreads(container, pod, config),
        _metax(container, pod, config),
        _xpu(container, config.kunlun_shared),
        _amd(container, config.amd),
        _enflame(container, config.enflame_shared),
    ]
    limits, requests = _amounts(container)
    plain = ("hygon", "cambricon", "metax", "kunlun", "enflame", "vastai", "biren")
    found += [getattr(config, name).count in limits for name in plain]
    neuron = config.neuron
    found.append(any(pick(limits, requests, name) is not None for name in (neuron.count, neuron.cores)))
    return any(found)


def _needs(container: Mapping[str, Any], init: bool) -> ContainerNeeds:
    limits, requests = _amounts(container)
    return ContainerNeeds(tuple(limits.items()), tuple(requests.items()), init)


def _within_quota(pod: Mapping[str, Any], config: HamiConfig, snapshot: Snapshot) -> bool:
    """HAMi's pre-check: the request with the configured defaults (a percentage counts no memory, and no factor is on a
    default) on top of what the books hold."""
    namespace = pod["metadata"].get("namespace", "default")
    limits: dict[str, tuple[int | None, int | None]] = {}
    for quota in snapshot.quotas:
        if quota.namespace == namespace:
            old = limits.get(quota.vendor, (None, None))
            limits[quota.vendor] = (
                old[0] if quota.memory_mib is None else quota.memory_mib,
                old[1] if quota.cores is None else quota.cores,
            )
    for word, (memory_limit, core_limit) in limits.items():
        used = [0, 0]
        for other in snapshot.pods.values():
            if other.namespace == namespace and other.live and other.booked_node:
                held = hami_collapse(other, tuple(a for a in other.allocations if a.vendor == word))
                used[0] += sum(m for _, m, _ in held.values())
                used[1] += sum(c for _, _, c in held.values())
        ask = _asks(pod, word, config)
        if ask == (0, 0):
            continue
        if memory_limit is not None and used[0] + ask[0] > memory_limit:
            return False
        if core_limit is not None and used[1] + ask[1] > core_limit:
            return False
    return True


def _asks(pod: Mapping[str, Any], word: str, config: HamiConfig) -> tuple[int, int]:
    init, app = [(0, 0)], [(0, 0)]
    for part, _, container in _containers(pod):
        for found, count, memory, _percent, cores in resolve_container(_needs(container, False), config):
            if found == word:
                (init if part == "initContainers" else app).append((count * memory, count * cores))
    return (
        max(sum(m for m, _ in app), *(m for m, _ in init)),
        max(sum(c for _, c in app), *(c for _, c in init)),
    )


def _validate(pod: Mapping[str, Any]) -> None:
    """The API server's own rules for extended resources that HAMi's changes can break."""
    errors = []
    for part, place, container in sorted(_containers(pod), key=lambda found: found[0] == "initContainers"):
        limits, requests = _amounts(container)
        where = f"spec.{part}[{place}].resources"
        for kind, amounts in (("limits", limits), ("requests", requests)):
            for name in sorted(amounts):
                value = parse(amounts[name])
                if value is not None and value < 0:
                    errors.append(
                        f'{where}.{kind}[{name}]: Invalid value: "{amounts[name]}": must be greater than or equal to 0'
                    )
        for name in sorted(requests):
            limit = limits.get(name)
            if "/" in name and limit is not None and parse(limit) != parse(requests[name]):
                errors.append(
                    f'{where}.requests: Invalid value: "{requests[name]}": must be equal to {name} limit of {limit}'
                )
    if errors:
        text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise _Refused(422, f'Pod "{pod["metadata"].get("name", "")}" is invalid: {text}')


def admit_pod(
    submitted: Mapping[str, Any],
    config: HamiConfig,
    snapshot: Snapshot,
    *,
    webhook: bool = True,
    namespace_labels: Mapping[str, str] | None = None,
) -> dict[str, Any] | Denial:
    """The pod as the API server would store it (quantities canonical), or why it is refused. ``webhook`` False: HAMi's
    webhook does not see the pod (label on pod or namespace, or an outage)."""
    pod: dict[str, Any] = json.loads(json.dumps(submitted))
    pod.setdefault("metadata", {})
    ignored = (pod["metadata"].get("labels") or {}).get(WEBHOOK_LABEL) == "ignore"
    ignored = ignored or (namespace_labels or {}).get(WEBHOOK_LABEL) == "ignore"
    for _, _, container in _containers(pod):
        _default_requests(container)
    pod["spec"].setdefault("schedulerName", "default-scheduler")
    try:
        if webhook and not ignored:
            _hook(pod, config, snapshot)
        for _, _, container in _containers(pod):
            _default_requests(container)
        _validate(pod)
    except _Refused as refused:
        return Denial(refused.code, refused.message)
    return pod


def _hook(pod: dict[str, Any], config: HamiConfig, snapshot: Snapshot) -> None:
    spec = pod["spec"]
    if not spec.get("containers"):
        raise _Refused(403, f"{HOOK}pod has no containers")
    name = spec["schedulerName"]
    if name != config.scheduler_name and not (name == "default-scheduler" and config.overwrite_default_scheduler):
        return
    containers = [container for _, _, container in _containers(pod)]
    privileged = next((c["name"] for c in containers if (c.get("securityContext") or {}).get("privileged")), "")
    asks = [_mutate(container, pod, config) for container in containers]
    if not any(asks):
        return
    if privileged:
        raise _Refused(403, f"{HOOK}container {privileged} is privileged")
    spec["schedulerName"] = config.scheduler_name
    if spec.get("nodeName"):
        raise _Refused(403, f"{HOOK}pod has node assigned")
    if not _within_quota(pod, config, snapshot):
        raise _Refused(403, f"{HOOK}exceeding resource quota")
