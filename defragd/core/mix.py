"""The request mix: what pods usually ask for, and how much of the demand each kind of request is.

Definitions are states/README section 3.2. Pending GPU pods count in the running mix only through `pending_mix`: they
hold nothing, so the normative running mix leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from defragd.core.model import Pod
from defragd.core.rules import MixClass
from defragd.core.snapshot import Snapshot

COVER = Fraction(95, 100)
"""Classes are taken, heaviest first, until they cover this share of the demand."""


@dataclass(frozen=True, slots=True, order=True)
class ClassKey:
    """One kind of request, per pod: host CPU and memory, devices, and what it asks of each device."""

    cpu_milli: int
    memory_bytes: int
    gpus: int
    cores: int
    memory_pct: int
    memory_mib: int
    use_types: str = ""
    nouse_types: str = ""
    vendor: str = ""

    @property
    def label(self) -> str:
        """For people: "2 devices, 100 cores, 47 %, 12 CPU"."""
        memory = f"{self.memory_mib} MiB" if self.memory_mib else f"{self.memory_pct} %"
        count = "1 device" if self.gpus == 1 else f"{self.gpus} devices"
        text = (
            f"{count}, {self.cores} cores, {memory}, {self.cpu_milli / 1000:g} CPU, {self.memory_bytes >> 20} MiB host"
        )
        if self.use_types:
            text += f", only {self.use_types}"
        if self.nouse_types:
            text += f", not {self.nouse_types}"
        return text


@dataclass(frozen=True, slots=True)
class Mix:
    """Classes with their weights (they sum to 1). ``name`` is "running" or "given"."""

    name: str
    classes: tuple[tuple[ClassKey, float], ...]


def class_of(pod: Pod) -> ClassKey | None:
    """The class a pod's requests fall in; None when it asks for no device.

    Several requesting containers: devices add up, the largest request (cores, then percent, then MiB) stands for all.
    """
    if not pod.requests:
        return None
    big = max(pod.requests, key=lambda r: (r.cores, r.memory_pct, r.memory_mib))
    wants = pod.scheduling.resources
    return ClassKey(
        wants.cpu_milli,
        wants.memory_bytes,
        sum(r.count for r in pod.requests),
        big.cores,
        0 if big.memory_mib else big.memory_pct,
        big.memory_mib,
        ",".join(pod.selection.use_types),
        ",".join(pod.selection.nouse_types),
        big.vendor,
    )


def running_mix(snapshot: Snapshot) -> Mix:
    """Demand of the pods that hold a device, cut at 95 % (exact arithmetic, so ties never depend on rounding)."""
    counts: dict[tuple[ClassKey, int, int, int, int], int] = {}
    devices = snapshot.devices
    for pod in snapshot.pods.values():
        if not (pod.live and pod.booked_node and pod.allocations):
            continue
        key = class_of(pod)
        if key is None:
            continue
        for entry in pod.allocations:
            device = devices.get(entry.uuid)
            if device is not None and device.cores and device.memory_mib:
                item = (key, entry.cores, device.cores, entry.memory_mib, device.memory_mib)
                counts[item] = counts.get(item, 0) + 1
    weights: dict[ClassKey, Fraction] = {}
    for (key, cores, all_cores, mib, all_mib), count in counts.items():
        share = max(Fraction(cores, all_cores), Fraction(mib, all_mib))
        weights[key] = weights.get(key, Fraction(0)) + share * count
    return Mix("running", cut(weights.items()))


def cut(weights: Iterable[tuple[ClassKey, Fraction]]) -> tuple[tuple[ClassKey, float], ...]:
    """Heaviest classes up to 95 % of the whole; the class that reaches it is in. Ties: smallest key first."""
    order = sorted(weights, key=lambda item: (-item[1], item[0]))
    total = sum((weight for _, weight in order), Fraction(0))
    kept: list[tuple[ClassKey, Fraction]] = []
    reached = Fraction(0)
    for key, weight in order:
        if reached >= COVER * total:
            break
        kept.append((key, weight))
        reached += weight
    return tuple((key, float(weight / reached)) for key, weight in kept) if reached else ()


def given_mix(classes: Sequence[MixClass], vendor: str = "") -> Mix:
    """A mix from the policy; nothing is cut and the weights stay as written."""
    return Mix(
        "given",
        tuple(
            (
                ClassKey(
                    c.cpu_milli,
                    c.memory_bytes,
                    c.gpus,
                    c.cores,
                    0 if c.memory_mib else c.memory_pct,
                    c.memory_mib,
                    c.use_types,
                    c.nouse_types,
                    vendor,
                ),
                c.weight,
            )
            for c in classes
        ),
    )


def accepts_type(use: str, nouse: str, model: str) -> bool:
    """HAMi's type selection: comma-separated parts, matched as substrings, case ignored."""
    low = model.lower()

    def inside(words: str) -> bool:
        return any(part.strip().lower() in low for part in words.split(",") if part.strip())

    return (not use.strip() or inside(use)) and not (nouse.strip() and inside(nouse))
