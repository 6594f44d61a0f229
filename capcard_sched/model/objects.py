"""Kubernetes objects: only the fields the scheduler reads.

Every struct decodes from Kubernetes JSON (`msgspec.json.decode(data, type=PodObject)` or
`msgspec.convert(mapping, PodObject)`); unknown fields are skipped. Quantities stay strings (or numbers) here;
`model.quantity` parses them when the state applies the object, so that an invalid quantity affects one object only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from capcard_sched.model.annotations import POD_QUEUE_NAME
from capcard_sched.model.in_tree_volumes import InTreeSources
from capcard_sched.model.unsupported import ExtendedClaimStatus, PodClaimStatus, UnsupportedFields

#: An unparsed quantity: a string, or a number in YAML.
RawQuantity: TypeAlias = str | int | float
RawAmounts: TypeAlias = dict[str, RawQuantity]


class ApiStruct(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """Base: camelCase on the wire, immutable here."""


class OwnerReference(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


# --- selectors, affinity, tolerations -------------------------------------------------------------------------------


class Requirement(ApiStruct, frozen=True):
    """One expression of a label or node selector."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class LabelSelector(ApiStruct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class NodeSelectorTerm(ApiStruct, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(ApiStruct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredSchedulingTerm, ...] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class PodAffinityTerm(ApiStruct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class WeightedPodAffinityTerm(ApiStruct, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(ApiStruct, frozen=True):
    """Both podAffinity and podAntiAffinity."""

    required: tuple[PodAffinityTerm, ...] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(ApiStruct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(ApiStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """`key=value:effect`, or `key:effect` without a value."""
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


class TopologySpreadConstraint(ApiStruct, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] | None = None


class HostPort(msgspec.Struct, frozen=True, order=True):
    """A host port of a pod; an empty address means every address."""

    address: str
    protocol: str
    port: int


# --- pods -----------------------------------------------------------------------------------------------------------


class ResourceRequirements(ApiStruct, frozen=True):
    requests: RawAmounts | None = None
    limits: RawAmounts | None = None


class ContainerPort(ApiStruct, frozen=True):
    host_port: int | None = None
    container_port: int = 0
    protocol: str | None = None
    host_ip: str | None = msgspec.field(name="hostIP", default=None)


class RestartRule(ApiStruct, frozen=True):
    action: str = ""


class VolumeMount(ApiStruct, frozen=True):
    bind_mount_options: tuple[str, ...] | None = None


class Container(ApiStruct, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements | None = None
    ports: tuple[ContainerPort, ...] | None = None
    #: "Always" on an init container makes it a sidecar.
    restart_policy: str | None = None
    restart_policy_rules: tuple[RestartRule, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None


class SchedulingGate(ApiStruct, frozen=True):
    name: str = ""


class ClaimSource(ApiStruct, frozen=True):
    claim_name: str = ""


class EphemeralSource(ApiStruct, frozen=True):
    """A generic ephemeral volume; only its presence is read."""


class Volume(InTreeSources, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class PodSpec(ApiStruct, UnsupportedFields, frozen=True):
    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    overhead: RawAmounts | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    host_network: bool | None = None
    host_users: bool | None = None
    volumes: tuple[Volume, ...] | None = None
    resources: ResourceRequirements | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None


class PodConditionObject(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerStatus(ApiStruct, frozen=True):
    name: str = ""
    #: For `pod list`, as the number of restarts; the scheduler reads neither.
    ready: bool | None = None
    restart_count: int | None = None
    allocated_resources: RawAmounts | None = None
    resources: ResourceRequirements | None = None


class PodStatus(ApiStruct, frozen=True):
    phase: str | None = None
    #: Why a pod failed: `Evicted`.
    reason: str | None = None
    #: `Infeasible` in clusters before Kubernetes 1.33, which have no condition PodResizePending.
    resize: str | None = None
    #: Of the pod, where the kubelet resizes `spec.resources`.
    allocated_resources: RawAmounts | None = None
    resources: ResourceRequirements | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    conditions: tuple[PodConditionObject, ...] | None = None
    resource_claim_statuses: tuple[PodClaimStatus, ...] | None = None
    extended_resource_claim_status: ExtendedClaimStatus | None = None


class PodObject(ApiStruct, frozen=True, tag="Pod", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- nodes ----------------------------------------------------------------------------------------------------------


class ImageObject(ApiStruct, frozen=True):
    names: tuple[str, ...] | None = None
    size_bytes: int = 0


class NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeStatus(ApiStruct, frozen=True):
    allocatable: RawAmounts | None = None
    capacity: RawAmounts | None = None
    images: tuple[ImageObject, ...] | None = None
    declared_features: tuple[str, ...] | None = None
    conditions: tuple[PodConditionObject, ...] | None = None


class NodeObject(ApiStruct, frozen=True, tag="Node", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- scheduling.volcano.sh ------------------------------------------------------------------------------------------


class PodGroupCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    transition_id: str = msgspec.field(name="transitionID", default="")
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


class NetworkTopologySpec(ApiStruct, frozen=True):
    mode: str | None = None
    highest_tier_allowed: int | None = None
    highest_tier_name: str | None = None


class PodGroupSpec(ApiStruct, frozen=True):
    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    min_resources: RawAmounts | None = None
    network_topology: NetworkTopologySpec | None = None
    #: Read by `model.groups` and `model.group_affinity`.
    sub_group_policy: Any = None
    topology_affinity: Any = None


class PodGroupStatus(ApiStruct, frozen=True):
    phase: str | None = None
    conditions: tuple[PodGroupCondition, ...] | None = None
    running: int | None = None
    succeeded: int | None = None
    failed: int | None = None


class PodGroupObject(ApiStruct, frozen=True, tag="PodGroup", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class Guarantee(ApiStruct, frozen=True):
    resource: RawAmounts | None = None


class NodeGroupTerms(ApiStruct, frozen=True):
    required: tuple[str, ...] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[str, ...] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class QueueAffinity(ApiStruct, frozen=True):
    node_group_affinity: NodeGroupTerms | None = None
    node_group_anti_affinity: NodeGroupTerms | None = None


class QueueSpec(ApiStruct, frozen=True):
    weight: int | None = None
    priority: int | None = None
    reclaimable: bool | None = None
    parent: str | None = None
    capability: RawAmounts | None = None
    deserved: RawAmounts | None = None
    guarantee: Guarantee | None = None
    affinity: QueueAffinity | None = None
    dequeue_strategy: str | None = None
    #: Namespaces whose NamespaceQueues may have the queue as parent.
    allowed_namespaces: tuple[str, ...] | None = None


class QueueStatus(ApiStruct, frozen=True):
    state: str | None = None
    allocated: RawAmounts | None = None


class QueueObject(ApiStruct, frozen=True, tag="Queue", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class NamespaceObject(ApiStruct, frozen=True, tag="Namespace", tag_field="kind"):
    """The labels of a namespace, and its default queue."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def default_queue(self) -> str:
        """The queue of PodGroups that name none; "" without one."""
        return (self.metadata.annotations or {}).get(POD_QUEUE_NAME, "")


class ConfigMapObject(ApiStruct, frozen=True, tag="ConfigMap", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class PriorityClassObject(ApiStruct, frozen=True, tag="PriorityClass", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool | None = None
    preemption_policy: str | None = None
