"""The world as the core sees it: nodes, devices, pods and what they hold. Frozen values, no Kubernetes types.

Units are in the names: ``memory_mib`` is MiB of device memory, ``cores`` is percent of one device (100 = all of it,
more when HAMi scales cores), ``cpu_milli`` and ``memory_bytes`` belong to the host. Times are aware UTC datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

EMPTY: Mapping[str, Any] = {}
"""Shared default; never written (a plain dict because snapshots travel to the planner's process by pickle)."""


# -- selectors and constraints ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expression:
    """One requirement on labels (or fields): ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector; no expressions selects everything, ``None`` in a field that holds one selects nothing."""

    expressions: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One term of a required node affinity: all expressions and all fields must hold. An empty term matches nothing."""

    expressions: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required pod (anti-)affinity term. ``namespaces`` empty and no namespace selector = the pod's own namespace."""

    topology_key: str
    selector: Selector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with whenUnsatisfiable = DoNotSchedule."""

    topology_key: str
    max_skew: int
    selector: Selector | None
    min_domains: int | None = None
    honor_affinity: bool = True
    honor_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a pod, as far as it limits where the pod may run.

    ``kind``: claim, hostPath, emptyDir, ephemeral, local-or-other names of inline drivers.
    For claims ``claim`` names the PVC; ``node_terms`` is the bound PV's node affinity where known, ``known`` is False
    when PVC or PV could not be read (then the pod may not leave its node), ``access_modes`` are the PVC's.
    """

    kind: str
    claim: str = ""
    known: bool = True
    access_modes: tuple[str, ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    zones: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a pod asks of a host, or what a host can give. ``extended`` maps resource name to an integer count."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 1
    ephemeral_bytes: int = 0
    extended: Mapping[str, int] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Everything kube-scheduler (not HAMi) looks at for one pod. Equal for all replicas, so they share one."""

    node_selector: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    node_terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resources: Resources = field(default_factory=Resources)
    unjudged: tuple[str, ...] = ()
    """What the data cannot tell (resource claims, ...): such a pod "does not fit" anywhere else, and that is said."""


# -- devices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigProfile:
    name: str
    memory_mib: int
    cores: int
    slice_count: int
    placements: tuple[tuple[int, int], ...]
    """(start, size) pairs."""


PLUGIN_GONE = "no device plugin"
"""How the doubt about a device begins whose plugin is gone: it cannot receive, but what is on it is known."""


@dataclass(frozen=True, slots=True)
class Device:
    """One physical accelerator as its node registers it. ``position`` is its place in the register annotation
    (HAMi's tie-break order); ``vendor`` is HAMi's word for the backend, ``model`` the registered type string."""

    uuid: str
    node: str
    vendor: str
    model: str
    index: int = 0
    position: int = 0
    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    numa: int = 0
    mode: str = ""
    healthy: bool = True
    cordoned: bool = False
    registered: bool = True
    """HAMi's scheduler knows it; False once the device plugin is gone (allocatable 0) though the annotation is left."""
    distrusted: str = ""
    """Why the books on this device are not believed (duplicate UUID, metrics differ, ...); "" = trusted."""
    mig_profiles: tuple[MigProfile, ...] = ()
    custom: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    @property
    def usable(self) -> bool:
        """May receive a pod at all: healthy, not cordoned, trusted."""
        return self.healthy and self.registered and not self.cordoned and not self.distrusted


@dataclass(frozen=True, slots=True)
class NodeLock:
    """HAMi's ``hami.io/mutex.lock``: who is being bound on the node. ``since`` None = malformed (no expiry, ever)."""

    holder: str
    since: datetime | None
    raw: str


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Only the annotations that vendors or protections read; never the whole map."""
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    schedulable: bool = True
    allocatable: Resources = field(default_factory=Resources)
    devices: tuple[Device, ...] = ()
    pair_scores: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: EMPTY)
    lock: NodeLock | None = None

    @property
    def usable(self) -> bool:
        return self.ready and self.schedulable


# -- pods -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What one container asks of one vendor, resolved as HAMi does (reference section 2.1).

    ``memory_mib`` > 0 is MiB per device; 0 means ``memory_pct`` of each device (1..100). ``cores`` is percent per
    device, 0 = no core reservation. ``container`` counts init containers first.
    """

    container: int
    init: bool
    sidecar: bool
    vendor: str
    count: int
    memory_mib: int = 0
    memory_pct: int = 0
    cores: int = 0

    def memory_on(self, device: Device) -> int:
        """MiB this request takes on ``device`` (int32 truncation, as HAMi)."""
        return self.memory_mib or device.memory_mib * self.memory_pct // 100


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container holds on one device, from the allocated annotation. ``slot`` is the position of the
    non-empty slot (k-th slot = k-th requesting container), ``init`` whether that container is an init container."""

    slot: int
    uuid: str
    memory_mib: int
    cores: int
    vendor: str = "NVIDIA"
    init: bool = False
    hami_init: bool = False
    """HAMi itself takes the slot for one of an init container (its slots are packed, so it may be wrong)."""


@dataclass(frozen=True, slots=True)
class MigReservation:
    uuid: str
    profile: str
    start: int
    size: int
    container: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod (first ownerReference with controller = true)."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Device selection by the pod's own annotations (reference section 3). ``None`` = no constraint."""

    use_uuids: frozenset[str] | None = None
    nouse_uuids: frozenset[str] = frozenset()
    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    mode: str = ""
    numa_bind: bool = False
    node_policy: str = ""
    device_policy: str = ""
    weights: tuple[int, int, int] | None = None
    pinned_by_us: bool = False
    """The UUID list (and node affinity) on the pod is our own pin, which planning ignores; ``use_uuids`` is then what
    the user had set before."""
    pin_uuids: frozenset[str] | None = None
    pin_node: str = ""
    """Our own pin, taken out of the constraints. HAMi and kube-scheduler still obey it (simulation does too)."""
    steered_uuids: frozenset[str] = frozenset()
    """Members of ``nouse_uuids`` that we added; planning ignores them."""
    invalid: str = ""
    """Why HAMi would answer with an error for this pod (malformed weights, ...)."""


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Only ``defragd.io/*``, ``scheduling.hami.placement.com/*`` and what a vendor reads; never the whole map."""
    owner: Owner | None = None
    scheduler: str = ""
    node: str = ""
    """spec.nodeName, "" while unbound."""
    booked_node: str = ""
    """hami.io/vgpu-node: where HAMi's books count this pod, bound or not."""
    bind_phase: str = ""
    phase: str = "Running"
    ready: bool = True
    ready_since: datetime | None = None
    created: datetime | None = None
    deleting: bool = False
    deletion_deadline: datetime | None = None
    grace_seconds: int = 30
    gates: tuple[str, ...] = ()
    priority: int = 0
    init_done: bool = False
    """All init containers ended well (their allocations no longer count)."""
    shrunk: bool = False
    """HAMi's own books count only the app slots by now (never with a sidecar)."""
    has_init: bool = False
    init_count: int = 0
    """Number of init containers, whether they ask for devices or not."""
    app_count: int = 0
    """Number of app containers; 0 = not known."""
    requests: tuple[DeviceRequest, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    mig: tuple[MigReservation, ...] = ()
    selection: Selection = field(default_factory=Selection)
    selections: Mapping[str, Selection] = field(default_factory=lambda: EMPTY)
    """One per vendor word, only for pods that ask several vendors; ``selection`` is then that of the first."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    unschedulable: str = ""
    """Message of PodScheduled=False, "" otherwise."""
    revision: str = ""
    """resourceVersion, the eviction precondition; "" in files that have none."""
    problem: str = ""
    """Why this pod cannot be judged (undecodable allocation, devices of an unknown vendor); it is then fixed."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def live(self) -> bool:
        """Counts in HAMi's books: neither Succeeded nor Failed."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def devices(self) -> tuple[str, ...]:
        """Distinct UUIDs held, in order of first appearance."""
        return tuple(dict.fromkeys(a.uuid for a in self.allocations))


@dataclass(frozen=True, slots=True)
class Workload:
    """An owner that recreates pods (ReplicaSet, StatefulSet, Job, ...). ``top`` is the root owner (Deployment, ...)."""

    kind: str
    namespace: str
    name: str
    uid: str
    replicas: int | None = None
    ready: int | None = None
    paused: bool = False
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Only ``defragd.io/*``."""
    top: Owner | None = None
    deleting: bool = False
    recreate: bool = False
    """A Deployment that never lets two generations of its pods run at once (strategy Recreate)."""
    surged_by: str = ""
    """UID of the placement whose surge wrote the replica count last; "" = anybody else did."""
    revision: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. ``allowed`` is status.disruptionsAllowed, or computed where a file has no status."""

    namespace: str
    name: str
    selector: Selector | None
    allowed: int
    healthy: int = 0
    desired: int = 0
    observed: bool = True
    """status is of the current generation; False = the API server refuses evictions for now."""
    always_allow_unhealthy: bool = False
    expected: int = 0
    """Pods that the budget's controller counts (status.expectedPods)."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Quota:
    """HAMi's view of a namespace quota: per vendor limits in MiB and core percent, None = not limited."""

    namespace: str
    name: str
    vendor: str
    memory_mib: int | None
    cores: int | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Room promised to a coming pod by an open placement, counted like an allocation on its target."""

    placement: str
    node: str
    allocations: tuple[Allocation, ...]
    resources: Resources = field(default_factory=Resources)
    pod_uid: str = ""
    """UID of the pod that has claimed it; once that pod is booked by HAMi the hold is no longer counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken or doubtful object that was set aside: ``object`` is ns/name for pods, Kind/name otherwise."""

    object: str
    reason: str
    detail: str
