"""The few fields we read of each Kubernetes kind, as msgspec structs; unknown fields are skipped without being built.

Attribute names are the API's, in snake case. Absent objects, lists and maps are empty or None, never missing.
A broken object must not spoil a list: callers decode item by item where a whole list fails (see `kube.decode`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class Wire(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    pass


class OwnerReference(Wire):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class ListMeta(Wire):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class LabelRequirement(Wire):
    key: str = ""
    operator: str = "In"
    values: list[str] | None = None


class LabelSelector(Wire):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None


class NodeSelectorTerm(Wire):
    match_expressions: list[LabelRequirement] | None = None
    match_fields: list[LabelRequirement] | None = None


class NodeSelector(Wire):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(Wire):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinity(Wire):
    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None


class Affinity(Wire):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(Wire):
    key: str = ""
    value: str = ""
    effect: str = ""


class TopologySpreadConstraint(Wire):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ResourceRequirements(Wire):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: list[Any] | None = None


class ContainerPort(Wire):
    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    protocol: str = "TCP"


class SecurityContext(Wire):
    privileged: bool | None = None


class Container(Wire):
    name: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None
    security_context: SecurityContext | None = None


class ClaimSource(Wire):
    claim_name: str = ""


class Present(Wire):
    """Only that it is there; its fields decide nothing (and a Secret's name is nobody's business)."""


class EmptyDir(Wire):
    medium: str = ""


class Volume(Wire):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    host_path: Present | None = None
    empty_dir: EmptyDir | None = None
    ephemeral: Present | None = None
    config_map: Present | None = None
    secret: Present | None = None
    projected: Present | None = None
    downward_api: Present | None = msgspec.field(default=None, name="downwardAPI")
    csi: Present | None = None


class NamedGate(Wire):
    name: str = ""


class PodSpec(Wire):
    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    overhead: dict[str, str | int | float] | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_gates: list[NamedGate] | None = None
    runtime_class_name: str | None = None
    resource_claims: list[Any] | None = None
    host_network: bool | None = None
    resources: ResourceRequirements | None = None


class PodCondition(Wire):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class ContainerStateTerminated(Wire):
    exit_code: int = 0
    reason: str | None = None


class ContainerStateWaiting(Wire):
    reason: str | None = None
    message: str | None = None


class ContainerState(Wire):
    terminated: ContainerStateTerminated | None = None
    waiting: ContainerStateWaiting | None = None


class ContainerStatus(Wire):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState | None = None


class PodStatus(Wire):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    start_time: str | None = None


class Pod(Wire):
    metadata: ObjectMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeSpec(Wire):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(Wire):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[PodCondition] | None = None


class Node(Wire):
    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class PdbSpec(Wire):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PdbStatus(Wire):
    disruptions_allowed: int | None = None
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int | None = None


class PodDisruptionBudget(Wire):
    metadata: ObjectMeta
    spec: PdbSpec = msgspec.field(default_factory=PdbSpec)
    status: PdbStatus | None = None


class ManagedField(Wire):
    """Who last wrote some fields; the entry goes when others have written all of them."""

    manager: str = ""
    subresource: str = ""


class WorkloadMeta(ObjectMeta):
    managed_fields: list[ManagedField] | None = None


class RolloutStrategy(Wire):
    type: str = ""


class WorkloadSpec(Wire):
    replicas: int | None = None
    paused: bool | None = None
    suspend: bool | None = None
    parallelism: int | None = None
    strategy: RolloutStrategy | None = None


class WorkloadStatus(Wire):
    replicas: int | None = None
    ready_replicas: int | None = None
    active: int | None = None
    ready: int | None = None


class WorkloadObject(Wire):
    """ReplicaSet, StatefulSet, Deployment, Job, ReplicationController; ``kind`` is filled by the reader."""

    metadata: WorkloadMeta
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)
    kind: str = ""
    api_version: str = ""


class Namespace(Wire):
    metadata: ObjectMeta


class QuotaSpec(Wire):
    hard: dict[str, str | int | float] | None = None


class ResourceQuota(Wire):
    metadata: ObjectMeta
    spec: QuotaSpec = msgspec.field(default_factory=QuotaSpec)


class PvcSpec(Wire):
    volume_name: str = ""
    access_modes: list[str] | None = None
    storage_class_name: str | None = None


class PersistentVolumeClaim(Wire):
    metadata: ObjectMeta
    spec: PvcSpec = msgspec.field(default_factory=PvcSpec)


class PvNodeAffinity(Wire):
    required: NodeSelector | None = None


class PvSpec(Wire):
    node_affinity: PvNodeAffinity | None = None
    access_modes: list[str] | None = None


class PersistentVolume(Wire):
    metadata: ObjectMeta
    spec: PvSpec = msgspec.field(default_factory=PvSpec)
