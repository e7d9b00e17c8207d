"""The policy file as one model: ``apiVersion: defragd/v1``, ``kind: DefragPolicy``. Every field says what it does.

The same model validates files, prints ``defragd policy show`` and generates the shipped JSON Schema. A field that is
absent has its default; ``null`` means "no limit" where the type allows it. Places and nearest names of errors are the
business of `policy.problems`, the values for the core that of `policy.convert`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from defragd.policy.cron import parse_cron
from defragd.policy.fields import (
    CapSpec,
    Count,
    Duration,
    MomentField,
    PositiveDuration,
    Rate,
    Section,
    SelectorSpec,
    Zone,
    load_zone,
    to_camel,
)

API_VERSION = "defragd/v1"
KIND = "DefragPolicy"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
Share = Annotated[float, Field(ge=0, le=1)]


def check_cron(value: str | None) -> str | None:
    """A cron expression that can be read and fires; ValueError otherwise."""
    if value is not None:
        parse_cron(value, load_zone("UTC"))
    return value


class Metadata(Section):
    """Who the policy is."""

    name: str
    """Unique among all policies: lower-case letters, digits and "-", at most 63."""
    labels: dict[str, str] = Field(default_factory=dict)
    """For people; not interpreted."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """For people; not interpreted."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(
                f'"{value[:70]}" is no name; use lower-case letters, digits and "-", at most 63, as in nightly-1'
            )
        return value


class StrategySpec(Section):
    """What to aim for."""

    name: str = Field(min_length=1)
    """best-fit, gpu-drain, node-drain, make-room, or an installed plug-in (entry point group defragd.strategies)."""
    args: dict[str, Any] = Field(default_factory=dict)
    """The strategy's own arguments; see the documentation of the strategy."""


class ScheduleSpec(Section):
    """When runs start. Without any schedule a policy runs on demand only."""

    cron: str
    """Five fields (minute hour day month weekday), lists, ranges, steps, names, or @hourly, @daily, @weekly, @monthly,
    @yearly. Weekday 0 and 7 are Sunday. With day and weekday both restricted either one is enough, as in cron."""
    time_zone: Zone = "UTC"
    """IANA time zone of the cron fields. A start that the clock skips happens at the first valid instant after the gap;
    one that comes twice happens the first time only, except where the hour field begins with "*"."""
    starting_deadline: Duration | None = Field(default="15m", validate_default=True)
    """A start missed by more than this is skipped. Of several missed starts at most the last one is made up for.
    null: made up for however late."""
    max_duration: PositiveDuration | None = Field(default="2h", validate_default=True)
    """No wave starts that could not end within this time from the start of the run. null: no limit."""

    _cron_is_cron = field_validator("cron")(check_cron)


class SpanSpec(Section):
    """A recurring span (``cron`` and ``duration``) or one with dates (``from`` and ``to``). The end is exclusive."""

    cron: str | None = None
    """When the span begins, as in a schedule."""
    duration: PositiveDuration | None = None
    """How long it lasts."""
    from_: MomentField | None = Field(default=None, alias="from")
    """Begin of a dated span: a date, a local time, or a time with offset."""
    to: MomentField | None = None
    """End of a dated span, exclusive."""
    time_zone: Zone | None = None
    """Zone of cron fields and local times; the first schedule's zone unless given."""

    _cron_is_cron = field_validator("cron")(check_cron)

    @model_validator(mode="after")
    def _one_form(self) -> SpanSpec:
        recurring = self.cron is not None or self.duration is not None
        dated = self.from_ is not None or self.to is not None
        if recurring == dated:
            raise ValueError("needs either cron and duration, or from and to")
        if recurring and (self.cron is None or self.duration is None):
            raise ValueError(f"{'duration' if self.cron else 'cron'} is missing; cron and duration belong together")
        if dated and (self.from_ is None or self.to is None):
            raise ValueError(f"{'to' if self.from_ else 'from'} is missing; from and to belong together")
        return self


class WindowSpec(Section):
    """One window: ``allow`` or ``deny``. With any allow, moves start inside an allow only; deny always wins."""

    allow: SpanSpec | None = None
    """Moves may start in this span."""
    deny: SpanSpec | None = None
    """No move starts in this span."""

    @model_validator(mode="after")
    def _one_kind(self) -> WindowSpec:
        if (self.allow is None) == (self.deny is None):
            raise ValueError("needs exactly one of allow and deny")
        return self


class LightNodesSpec(Section):
    """Run only when at least so many nodes are partly used and light."""

    count: Count = 2
    """Number of such nodes."""
    used_at_most: Share = 0.5
    """Highest used share of a node's devices (more than 0 is used) to count as light."""


class FragmentedSpec(Section):
    """Start when fragmentation stays high, once per rise."""

    above: Share
    """L at or above this for the whole of ``for`` starts a run."""
    rearm_below: Share | None = None
    """L must have been at or below this before the next start of this kind; default four fifths of ``above``."""
    for_: PositiveDuration = Field(default="30m", validate_default=True, alias="for")
    """How long L must stay high."""

    @model_validator(mode="after")
    def _below_above(self) -> FragmentedSpec:
        if self.rearm_below is not None and self.rearm_below >= self.above:
            raise ValueError(f"rearmBelow ({self.rearm_below:g}) must be less than above ({self.above:g})")
        return self


class AfterSpec(Section):
    """Start when something has lasted for a while."""

    after: Duration = Field(default="2m", validate_default=True)
    """How long it must have lasted."""


class StartOnSpec(Section):
    """What starts runs besides the schedule. Windows, suspend and the other conditions hold for these runs too."""

    fragmentation: FragmentedSpec | None = None
    """Fragmentation above a limit for a while."""
    pending_pods: AfterSpec | None = None
    """A device pod waits that fits nowhere now although the idle capacity would do. Never for a pod that should fit
    already: then the scheduler's books are wrong, and no move helps."""
    unhealthy_devices: AfterSpec | None = None
    """A device with pods on it is unhealthy (for gpu-drain with unhealthy: true)."""
    interval: PositiveDuration = Field(default="10m", validate_default=True)
    """Least time between two starts of this kind."""


class RecentFailuresSpec(Section):
    """Do not start while moves fail."""

    at_most: Annotated[int, Field(ge=0)] = 3
    """Failed moves, of all policies, that do not hold a run back yet."""
    within: PositiveDuration = Field(default="1h", validate_default=True)
    """How far back they count."""


class TriggerSpec(Section):
    """What must hold for a start to become a run, and what starts runs besides the schedule. Runs that a person asks
    for ignore it."""

    min_fragmentation: Share | None = 0.15
    """Lowest fragmentation L at which a run is worth it. The default applies to best-fit and plug-ins only; drains and
    make-room have a goal of their own and look at it only where it is written."""
    max_pending_pods: Annotated[int, Field(ge=0)] | None = 50
    """With more pods pending than this the cluster is in trouble and no run starts. null: do not look."""
    light_nodes: LightNodesSpec | None = None
    """Run only with enough lightly used nodes."""
    since_last_eviction: Duration | None = None
    """Run only when the last eviction of ours is at least this long ago."""
    recent_failures: RecentFailuresSpec | None = None
    """Run only when few moves failed lately. null: do not look."""
    start_on: StartOnSpec = Field(default_factory=StartOnSpec)
    """What starts runs besides the schedule; empty: nothing."""


class NamespacesSpec(Section):
    """Namespaces by name."""

    include: list[str] = Field(default_factory=list)
    """Only these; empty: all."""
    exclude: list[str] = Field(default_factory=lambda: ["kube-system"])
    """Never these; wins over include."""


class ScopeSpec(Section):
    """Which pods and places the policy deals with."""

    node_selector: SelectorSpec = Field(default_factory=SelectorSpec)
    """Nodes that are sources and targets."""
    namespaces: NamespacesSpec = Field(default_factory=NamespacesSpec)
    """Namespaces whose pods may be moved."""
    pod_selector: SelectorSpec = Field(default_factory=SelectorSpec)
    """Pods that may be moved."""
    vendors: list[str] = Field(default_factory=lambda: ["NVIDIA"])
    """HAMi's words for the backends whose devices are dealt with."""
    device_types: list[str] = Field(default_factory=list)
    """Parts of device type names (``A100``); empty: all types."""


class OwnerKindsSpec(Section):
    """Kinds of owners, the direct one or the root (ReplicaSet or Deployment)."""

    include: list[str] = Field(default_factory=list)
    """Only pods of these; empty: all."""
    exclude: list[str] = Field(default_factory=lambda: ["Job", "DaemonSet"])
    """Never pods of these. An eviction counts against a Job's backoffLimit."""


class ProtectSpec(Section):
    """Who is left alone."""

    min_pod_age: Duration = Field(default="30m", validate_default=True)
    """Younger pods stay."""
    min_replicas: Annotated[int, Field(ge=0, le=100_000)] = 2
    """Pods of workloads with fewer replicas stay, unless annotated defragd.io/move: allow."""
    priority_at_most: Annotated[int, Field(ge=-2_147_483_648, le=2_147_483_647)] | None = 100_000
    """Pods of a higher priority stay. null: no limit."""
    owner_kinds: OwnerKindsSpec = Field(default_factory=OwnerKindsSpec)
    """By the kind of the owner."""
    require_pdb: bool = False
    """Only pods that a PodDisruptionBudget covers may move."""
    local_storage: bool = False
    """Pods with emptyDir, hostPath or ephemeral volumes may move; their data is lost."""
    volumes: bool = True
    """Pods with volume claims may move where the claim can follow."""
    not_ready: bool = False
    """Pods that are not Ready may move; drains move them anyway."""
    gangs: Literal["Whole", "Members", "Never"] = "Whole"
    """Gangs move whole or not at all; member by member above their known minimum; or never."""


class MixClassSpec(Section):
    """One class of expected requests."""

    cpu_milli: Annotated[int, Field(ge=0)] = 0
    """CPU request, thousandths."""
    memory_mib: Annotated[int, Field(ge=0)] = 0
    """Host memory request, MiB."""
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices per pod."""
    cores: Annotated[int, Field(ge=0, le=100)] = 0
    """Cores per device, percent."""
    mem_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Memory per device, percent; 0 when memMiB is given."""
    mem_mib: Annotated[int, Field(ge=0)] = 0
    """Memory per device, MiB; 0 when memPercent is given."""
    types: list[str] = Field(default_factory=list)
    """Admissible device types."""
    nouse_types: list[str] = Field(default_factory=list)
    """Device types not wanted."""
    weight: Annotated[float, Field(gt=0)]
    """Share of this class; the sum need not be 1."""


class MixSpec(Section):
    """The requests to make room for, in place or in a file (JSON or YAML with ``classes``)."""

    classes: list[MixClassSpec] = Field(default_factory=list)
    """The classes themselves."""
    file: str | None = None
    """File with the classes, relative to the policy file."""

    @model_validator(mode="after")
    def _one_source(self) -> MixSpec:
        if bool(self.classes) == (self.file is not None):
            raise ValueError("needs classes or file (or write expectedMix: auto)")
        return self


class GainSpec(Section):
    """How much a plan must bring. Nothing is ever moved without positive gain."""

    per_move: Annotated[float, Field(ge=0)] = 0.0
    """Least gain of a single move, in the unit of the objective (points of L or phi, devices, nodes)."""
    total: Annotated[float, Field(ge=0)] = 0.0
    """Least gain of the whole plan, in the same unit."""
    expected_mix: Literal["auto"] | MixSpec = "auto"
    """Requests that fragmentation is measured against: auto is the mix that runs now."""
    accept_partial: bool = False
    """Start also when only a part of the goal can be reached (fewer nodes than asked for)."""

    @field_validator("expected_mix", mode="before")
    @classmethod
    def _file_name(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) and value != "auto" else value


class BudgetsSpec(Section):
    """How much may happen. All limits hold together and are counted over all policies where that is said."""

    total: Count | None = 50
    """Moves of one run."""
    per_day: Count | None = None
    """Moves in any 24 hours, over all policies."""
    concurrent: Count | None = 5
    """Moves in flight at once."""
    per_source_node: CapSpec = Field(default={"inFlight": 2}, validate_default=True)
    """By the node that pods leave."""
    per_target_node: CapSpec = Field(default={"inFlight": 1}, validate_default=True)
    """By the node that pods go to; HAMi binds one pod at a time on a node."""
    per_namespace: CapSpec = Field(default={"inFlight": 10}, validate_default=True)
    """By namespace."""
    per_workload: CapSpec = Field(default={"inFlight": 1}, validate_default=True)
    """By root owner (Deployment, StatefulSet, ...): a number, or a share of its replicas such as "25%" (rounded down,
    at least one)."""
    spacing: Duration = Field(default="30s", validate_default=True)
    """Pause between the end of a move of a workload and the next move of it."""
    rate: Rate | None = Field(default="10/m", validate_default=True)
    """Moves started per period. null: no limit."""

    @field_validator("per_source_node", "per_target_node", "per_namespace", "per_workload", mode="before")
    @classmethod
    def _in_flight_keeps_its_default(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict) and "inFlight" not in value:
            return {**cls.model_fields[info.field_name or ""].default, **value}
        return value

    @model_validator(mode="after")
    def _shares_of_workloads_only(self) -> BudgetsSpec:
        for name in ("per_source_node", "per_target_node", "per_namespace"):
            if isinstance(getattr(self, name).in_flight, str):
                raise ValueError(f"{to_camel(name)} takes a number; a share is possible for perWorkload only")
        return self


class TimeoutsSpec(Section):
    """Limits of the phases of one move, each from the phase's own begin."""

    hold: PositiveDuration = Field(default="2m", validate_default=True)
    """Until the target is proven and held."""
    evict: PositiveDuration = Field(default="10m", validate_default=True)
    """Until the eviction is granted and the old pod has gone."""
    start: PositiveDuration = Field(default="5m", validate_default=True)
    """Until the replacement is Ready; defragd.io/start-limit on a workload overrides it."""
    pod: PositiveDuration = Field(default="1h", validate_default=True)
    """How long a placement that evicts nobody waits for its pod."""


class ExecutionSpec(Section):
    """How moves are carried out."""

    handover: Literal["EvictFirst", "SurgeFirst"] = "EvictFirst"
    """EvictFirst: the old pod leaves, then the new one starts. SurgeFirst where a workload can have one pod more."""
    timeouts: TimeoutsSpec = Field(default_factory=TimeoutsSpec)
    """Limits per phase."""
    settle: Duration = Field(default="60s", validate_default=True)
    """How long a replacement must stay Ready to count as done."""
    abort_above: Share | None = 0.3
    """Share of failed moves above which the run stops. null: never."""
    cooldown: Duration = Field(default="6h", validate_default=True)
    """Rest of a workload after a move, over all policies; drains do not wait for it."""
    node_cooldown: Duration | None = None
    """Rest of a node after it received a moved pod: its other pods stay for so long; drains do not wait for it. Default
    1h, but never more than cooldown."""
    approval_expires: PositiveDuration = Field(default="24h", validate_default=True)
    """mode Approve: a plan that nobody approved by then is dropped."""


class FreeSpec(Section):
    """What costs nothing and is done before any eviction. Never in mode DryRun."""

    deletion_cost: bool = False
    """Annotate replicas with controller.kubernetes.io/pod-deletion-cost so that, when a ReplicaSet scales in anyway,
    the pod goes first whose place helps most. Costs that somebody else wrote are left alone."""


class PolicySpec(Section):
    """What to do, when, with whom, how much."""

    strategy: StrategySpec
    """The strategy and its arguments."""
    mode: Literal["DryRun", "Approve", "Auto"] = "DryRun"
    """DryRun plans and reports; Approve waits for a person before it moves anything; Auto moves."""
    suspend: bool = False
    """The schedule starts nothing while true."""
    schedule: list[ScheduleSpec] = Field(default_factory=list)
    """One schedule or a list of them."""
    windows: list[WindowSpec] = Field(default_factory=list)
    """When moves may and may not start."""
    trigger: TriggerSpec = Field(default_factory=TriggerSpec)
    """What holds scheduled runs back."""
    scope: ScopeSpec = Field(default_factory=ScopeSpec)
    """Which pods and places."""
    protect: ProtectSpec = Field(default_factory=ProtectSpec)
    """Pods that are left alone."""
    gain: GainSpec = Field(default_factory=GainSpec)
    """What it must bring."""
    budgets: BudgetsSpec = Field(default_factory=BudgetsSpec)
    """Limits on the number of moves."""
    free: FreeSpec = Field(default_factory=FreeSpec)
    """Defragmentation without evictions."""
    execution: ExecutionSpec = Field(default_factory=ExecutionSpec)
    """Handover, limits per phase, when to stop, rest afterwards."""

    @field_validator("schedule", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, (dict, str)) else value


class DefragPolicy(Section):
    """A policy of defragd."""

    model_config = ConfigDict(title=KIND)

    api_version: Literal["defragd/v1"]
    """Always defragd/v1."""
    kind: Literal["DefragPolicy"]
    """Always DefragPolicy."""
    metadata: Metadata
    """Name and remarks."""
    spec: PolicySpec
    """What the policy does."""
