"""Oscillation: a known state of the cluster returns with our moves in between, so moving again would go in circles.

Every run that moves records a digest of where the pods' devices were when it was planned. A new plan from the same
digest, with moves of ours done since, opens the breaker: no further runs of that policy until a person lifts it
(approves the run that opened it) or the time is over. All of it is read from run records, so restarts forget nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from defragd.core.pdb import YES, Permit
from defragd.core.reasons import Reason
from defragd.core.run import MoveState, Run
from defragd.core.snapshot import Snapshot
from defragd.core.workloads import workload_key

STATE = "defragd.io/state"
"""Annotation of a run: the digest it was planned from."""
OPEN_FOR = timedelta(hours=24)
LOOK_BACK = timedelta(days=7)


def digest(snapshot: Snapshot) -> str:
    """Of which workload holds how much of which device. Names and UIDs of pods do not matter: replicas are alike."""
    held = sorted(
        f"{workload_key(snapshot, pod)}|{a.uuid}|{a.memory_mib}|{a.cores}"
        for pod in snapshot.pods.values()
        if pod.live and pod.allocations and not pod.deleting
        for a in pod.allocations
    )
    return hashlib.sha256("\n".join(held).encode()).hexdigest()[:16]


def judge(runs: Iterable[Run], policy: str, state: str, now: datetime) -> Permit:
    """Whether ``policy`` may move from ``state``. ``cap`` of a refusal: "opened" (by this look) or "open" (already)."""
    known = [r for r in runs if r.created is not None and now - r.created < LOOK_BACK]
    openers = [r for r in known if _opener(r) and r.policy == policy]
    for run in openers:
        assert run.created is not None
        if run.desired != "Approved" and now - run.created < OPEN_FOR:
            since = (
                f"open since {run.created:%Y-%m-%d %H:%M} UTC; set spec.desired: Approved on run {run.name} to lift it"
            )
            return Permit(False, Reason.BREAKER_OPEN, f"{run.message} ({since})", "open")
    settled = max((r.created for r in openers if r.created), default=None)
    for run in known:
        moved = sum(1 for s in run.moves if s.state is MoveState.DONE)
        if moved and run.annotations.get(STATE) == state and (settled is None or (run.created or now) > settled):
            return Permit(
                False,
                Reason.BREAKER_OPEN,
                f"the cluster is again as it was before run {run.name}, which moved {moved} pods: something moves them "
                "back",
                "opened",
            )
    return YES


def _opener(run: Run) -> bool:
    return run.reason == Reason.BREAKER_OPEN and STATE in run.annotations


def keeps(run: Run, now: datetime) -> bool:
    """The record holds the breaker open, so it must not be tidied away."""
    return _opener(run) and run.created is not None and now - run.created < OPEN_FOR
