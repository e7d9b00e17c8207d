"""What a replica's webhook answers: one seam, two ways. With scheduling gates a pod for which a placement waits is
gated (`core.admission`); without them it is pinned as it is created, on a claim written within the admission.

An admission must be quick whatever happens: all waiting and writing together stays under the webhook's timeout, and
whatever is unclear ends in an unpinned pod, kept off the held places.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

from defragd.core.admission import Op, admit
from defragd.core.model import Pod
from defragd.core.placement_claims import Ask, ask, claimed, pin_ops
from defragd.core.validate import SCHEDULERS
from defragd.core.vendor import Vendor
from defragd.ports import ClaimWriter, Clock, ClusterReader, Hook, Outcome, PlacementStore

PATIENCE = 0.9
"""Seconds that a creation is kept waiting at most for what decides about its claim (the write apart)."""
KEPT = 600.0
"""Seconds for which a token's first sight is remembered."""


class Admission:
    """``decide`` is the webhook's answer. Runs on every replica, in many threads at once."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        clock: Clock,
        vendors: Mapping[str, Vendor],
        hook: Hook,
        mode: str = "gate",
        claims: ClaimWriter | None = None,
        read_pod: Callable[[Mapping[str, Any]], Pod | None] = lambda raw: None,
        schedulers: Collection[str] = SCHEDULERS,
        resources: Collection[str] = (),
        token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``mode``: "gate" or "pin". ``claims`` is needed for "pin"; ``read_pod`` makes a pod being created a value,
        for placements without a pod to evict, which must judge what comes."""
        self._reader, self._placements, self._clock, self._vendors = reader, placements, clock, vendors
        self._hook, self.mode, self._claims, self._read_pod = hook, mode, claims, read_pod
        self._schedulers, self._resources, self._token = schedulers, resources, token
        self._first_seen: dict[str, float] = {}

    def decide(self, request: Mapping[str, Any]) -> list[Op]:
        """JSON patch operations; [] leaves the pod as it is. From the cache; only a claim writes."""
        if self.mode == "pin" and self._claims is not None:
            pinned = self._claim(request, self._claims)
            if pinned:
                return pinned
        return admit(
            request,
            [p for p in self._placements.list() if p.open],
            now=self._clock.now(),
            mode=self.mode,
            vendors=self._vendors,
            schedulers=self._schedulers,
            resources=self._resources,
        )

    def _claim(self, request: Mapping[str, Any], claims: ClaimWriter) -> list[Op]:
        began = self._clock.monotonic()
        while True:
            version = self._reader.version()
            found, wait = self._ask(request), PATIENCE
            if found.placement is not None:
                token, placement = self._token(), found.placement
                answer = claims.claim(placement, claimed(placement, token, self._clock.now()))
                fields = {"placement": placement.key, "result": str(answer.outcome), "reason": answer.message}
                self._hook("claim", fields)
                self._first_seen.setdefault(token, self._clock.monotonic())
                if answer.ok:
                    return pin_ops(request, placement, found.devices, token, self._vendors)
                if answer.outcome is not Outcome.CONFLICT:
                    return []
            else:
                wait = min(found.wait, PATIENCE)
            tick = self._clock.monotonic()
            if tick >= began + wait:
                return []
            came = self._reader.wait(version, min(began + wait - tick, 0.1)) > version
            if not came and self._clock.monotonic() <= tick:
                return []  # simulated time stands still during an admission

    def _ask(self, request: Mapping[str, Any]) -> Ask:
        raw = request.get("object")
        waiting = [p for p in self._placements.list() if p.open]
        tick = self._clock.monotonic()
        for placement in waiting:
            if placement.status.claim:
                self._first_seen.setdefault(placement.status.claim, tick)
        if not waiting or not isinstance(raw, Mapping):
            return Ask()
        if len(self._first_seen) > 4096:
            self._first_seen = {t: since for t, since in self._first_seen.items() if tick - since < KEPT}
        return ask(
            request,
            waiting,
            self._reader.snapshot(),
            pod=self._readable(raw),
            known_for=lambda claim: tick - self._first_seen.get(claim, tick),
            vendors=self._vendors,
            schedulers=self._schedulers,
            resources=self._resources,
        )

    def _readable(self, raw: Mapping[str, Any]) -> Pod | None:
        try:
            return self._read_pod(raw)
        except Exception:  # noqa: BLE001 - a pod that cannot be read is not judged, and never kept from being created
            return None
