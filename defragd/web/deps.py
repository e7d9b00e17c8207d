"""What API and UI are given: ports, values and callables. The composition root builds one `ApiDeps`; no I/O here.

Every callable may be called from any worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from defragd.core.plan import Refusal, Score
from defragd.core.run import Run
from defragd.obs.pools import PoolOf, pool_of
from defragd.ports import Clock, ClusterReader, EventSink, Hook, Leadership, PlacementStore, RunStore, Written


@dataclass(frozen=True, slots=True)
class StartView:
    """One coming start; ``local`` is RFC 3339 in the policy's zone. ``allowed`` False: a window denies it."""

    utc: datetime
    local: str = ""
    allowed: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A policy as people see it. ``error`` is the newest reload's error ("" = fine): the last good one is in force.

    A file that never was good is a view with ``name`` (its path), ``error`` and nothing else.
    """

    name: str
    source: str = ""
    digest: str = ""
    strategy: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "DryRun"
    schedule: str = ""
    time_zone: str = ""
    next_starts: Sequence[StartView] = ()
    last_start: datetime | None = None
    last_run: str = ""
    waiting: str = ""
    """Why it does not run now (breaker, cooldown, window, trigger), "" = nothing holds it back."""
    error: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The policy's spec with its defaults filled in, as JSON."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Who asks for what, before it is done. ``headers`` has lower-case names; ``verb`` is approve, pause, resume,
    cancel (resource runs), run (resource policies) or create (resource placements, with their ``namespace``); ``read``
    is the verb of guarded reads (resource "")."""

    verb: str
    resource: str
    name: str
    headers: Mapping[str, str]
    remote: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated and authorised user, for the audit trail."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """Why not: ``status`` 401 (who are you) or 403 (you may not)."""

    reason: str
    detail: str
    status: int = 403


Authorize = Callable[[WriteRequest], User | Denied]
Check = Callable[[], str]
"""A health check: "" when fine, else why not in one line. An exception counts as failed with its text."""


def deny_writes(_request: WriteRequest) -> User | Denied:
    """The default: nobody may write."""
    return Denied("WritesDisabled", "changes through the API are switched off; enable them in the configuration")


class Explain(Protocol):
    """Answers why. ``kind`` is pod, node or device; ``name`` is ns/name, a node's name or a UUID.

    Returns JSON-like data, or None when there is no such object. Raises defragd.errors.ConfigError for bad input.
    """

    def __call__(self, kind: str, name: str, policy: str | None) -> Mapping[str, Any] | None: ...


class Exposition(Protocol):
    """What ``/metrics`` needs (obs.metrics.Metrics)."""

    content_type: str

    def render(self) -> bytes: ...


PlanNow = Callable[[str, User], Run | Refusal]
"""(policy name, user) -> the new run, or why there is none. May raise NotLeader and KeyError (no such policy)."""


CreatePlacement = Callable[[Mapping[str, Any], User], Written]
"""(HamiPodPlacement object, user) -> what the API server said to its creation; ``body`` is the created object."""


def _nothing(_event: str, _fields: Mapping[str, Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ApiDeps:
    """Everything `create_app` uses. Only the first five are required.

    reader, placements, runs, leadership, clock: ports.
    policies: all policies, good and broken.
    score: fragmentation of the whole cluster, cached by the giver (None = not known yet).
    pool_scores: fragmentation by pool, cached by the giver; {} = not computed.
    metrics: body of /metrics.
    plan_now: plan a policy at once in its own mode; None = not offered.
    create_placement: create one on a person's word; None = not offered.
    explain: why (not) movable, a target, drainable; None = not offered.
    live, ready: health checks by name; ready ones also are what /readyz lists.
    authorize: may this user do this? Default: nobody.
    authorize_read: guards API and UI reads when given (health and metrics stay open); None = open.
    settings: the effective configuration without secrets, served under /api/v1/settings.
    events: audit trail of writes as Kubernetes Events; hook: request counts and faults.
    pools: which pool a node belongs to.
    token_field: the UI's forms ask for a bearer token (for set-ups where no proxy authenticates the browser).
    title: shown in the UI's head line, e.g. the cluster's name.
    view_max_age: seconds for which the computed view of the cluster is reused while it changes.
    """

    reader: ClusterReader
    placements: PlacementStore
    runs: RunStore
    leadership: Leadership
    clock: Clock
    policies: Callable[[], Sequence[PolicyView]] = tuple
    score: Callable[[], Score | None] = lambda: None
    pool_scores: Callable[[], Mapping[str, Score]] = dict
    metrics: Exposition | None = None
    plan_now: PlanNow | None = None
    create_placement: CreatePlacement | None = None
    explain: Explain | None = None
    live: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)
    authorize: Authorize = deny_writes
    authorize_read: Authorize | None = None
    writes_enabled: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: EventSink | None = None
    hook: Hook = _nothing
    pools: PoolOf = pool_of
    token_field: bool = False
    title: str = ""
    view_max_age: float = 2.0
