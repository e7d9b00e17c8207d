"""The extender's decision: which node and which cards, or why none. Pure: a world and a pod in, an answer out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ground.hami import books, fit
from tests.ground.hami.books import Booking, Card, Inventory, Piece
from tests.ground.hami.quota import Quotas
from tests.ground.hami.request import Ask, resolve


@dataclass
class World:
    """HAMi's two caches and its settings."""

    nodes: dict[str, Inventory] = field(default_factory=dict)
    bookings: dict[str, Booking] = field(default_factory=dict)
    """By pod UID."""
    quotas: Quotas = field(default_factory=Quotas)
    nvidia: Mapping[str, Any] = field(default_factory=dict)
    node_policy: str = "binpack"
    gpu_policy: str = "spread"


@dataclass(frozen=True)
class Fits:
    """A node that fits, its score and what would be written on the pod."""

    node: str
    score: float
    slots: tuple[tuple[Piece, ...], ...]
    reservations: tuple[dict[str, Any], ...] = ()

    @property
    def written(self) -> dict[str, str]:
        record = books.encode(self.slots)
        found = {books.TO_ALLOCATE: record, books.ALLOCATED: record}
        if self.reservations:
            found[books.MIG] = books.json.dumps(list(self.reservations), separators=(",", ":"))
        return found


@dataclass(frozen=True)
class Answer:
    """``passed``: no device asked for. ``winners``: all nodes that tie for first place; HAMi may take any."""

    passed: bool = False
    fitting: Mapping[str, Fits] = field(default_factory=dict)
    winners: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


def asks_of(pod: Mapping[str, Any], nvidia: Mapping[str, Any]) -> tuple[list[Ask | None], list[Ask | None]]:
    """Requests of init and app containers."""
    spec = pod["spec"]
    return (
        [resolve(c, nvidia) for c in spec.get("initContainers") or []],
        [resolve(c, nvidia) for c in spec["containers"]],
    )


def decide(world: World, pod: Mapping[str, Any], names: Sequence[str]) -> Answer:
    """The answer of ``/filter`` for these node names. The pod's own booking does not count."""
    inits, apps = asks_of(pod, world.nvidia)
    if not any([*inits, *apps]):
        return Answer(passed=True)
    annotations = pod["metadata"].get("annotations") or {}
    weights = _weights(annotations.get(fit.WEIGHTS))
    if isinstance(weights, str):
        return Answer(error=weights)
    wish = fit.Pod(annotations, annotations.get(fit.GPU_POLICY, world.gpu_policy), weights)
    uid = pod["metadata"].get("uid", "")
    others = [b for key, b in world.bookings.items() if key != uid]
    fitting: dict[str, Fits] = {}
    reasons: dict[str, str] = {}
    for name in names:
        known = world.nodes.get(name)
        if known is None:
            reasons[name] = "node unregistered"
            continue
        found = _node(world, known, others, pod, inits, apps, wish)
        if isinstance(found, Fits):
            fitting[name] = found
        else:
            reasons[name] = found
    if not fitting:
        return Answer(reasons=reasons)
    policy = annotations.get(fit.NODE_POLICY, world.node_policy)
    scores = [found.score for found in fitting.values()]
    best = min(scores) if policy == "spread" else max(scores)
    return Answer(fitting=fitting, winners=tuple(n for n, f in fitting.items() if f.score == best), reasons=reasons)


def _weights(text: str | None) -> tuple[int, int, int] | str:
    if text is None:
        return (1, 1, 1)
    found = dict(re.findall(r"(?:^|,)\s*(\w+)\s*=\s*(\d+)\s*(?=,|$)", text))
    if set(found) != {"slot", "core", "memory"} or text.count(",") != 2 or not any(int(n) for n in found.values()):
        return f"invalid {fit.WEIGHTS} value {text!r}"
    return int(found["slot"]), int(found["core"]), int(found["memory"])


def _node_score(cards: Sequence[Card]) -> float:
    """How full the node is now, in float32; the incoming pod does not count."""
    totals = [sum(getattr(c, name) for c in cards) for name in ("slots", "cores", "memory")]
    used = [sum(getattr(c, name) for c in cards) for name in ("used", "used_cores", "used_memory")]
    if not all(totals):
        return 0.0
    parts = [np.float32(u) / np.float32(t) for u, t in zip(used, totals, strict=True)]
    return float(np.float32(10) * (parts[0] + parts[1] + parts[2]))


def _node(
    world: World,
    known: Inventory,
    others: Sequence[Booking],
    pod: Mapping[str, Any],
    inits: Sequence[Ask | None],
    apps: Sequence[Ask | None],
    wish: fit.Pod,
) -> Fits | str:
    cordoned = [part.strip() for part in known.annotations.get(books.CORDON, "").split(",") if part.strip()]
    namespace = pod["metadata"].get("namespace", "default")
    slots: list[list[Piece]] = []
    reserved: list[dict[str, Any]] = []

    def one(cards: list[Card], ask: Ask, earlier: Sequence[Sequence[Piece]]) -> str:
        def within(pieces: list[Piece]) -> bool:
            # HAMi counts the first len(initContainers) entries as init ones: the greatest, not the sum.
            use = books.collapse([*earlier, pieces], len(inits)).values()
            return world.quotas.allows(namespace, others, sum(m for _, m, _ in use), sum(c for _, _, c in use))

        chosen, reason = fit.fit_container(cards, ask, wish, cordoned, known.scores, within)
        if reason:
            return reason
        position = len(slots)  # like the slots: containers without a request are not counted
        slots.append([c.piece for c in chosen])
        for number, choice in enumerate(chosen):
            if choice.placement:
                start, size = choice.placement
                reserved.append(
                    {
                        "containerIndex": position, "deviceIndex": number, "gpuUUID": choice.piece.uuid,
                        "profile": choice.profile, "placement": {"start": start, "size": size},
                    }
                )  # fmt: skip
        return ""

    for ask in inits:
        if ask and (reason := one(books.used_cards(known, others), ask, [])):
            return reason
    cards = books.used_cards(known, others)
    score = _node_score(cards)
    first_app = len(slots)
    for ask in apps:
        if ask and (reason := one(cards, ask, slots[first_app:])):
            return reason
    return Fits(known.name, score, tuple(tuple(slot) for slot in slots), tuple(reserved))
