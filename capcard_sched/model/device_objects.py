"""Objects of dynamic resource allocation: only the fields the scheduler reads (see `model.objects`).

Fields of features that are not supported are read as well, so that their use is refused by name.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from capcard_sched.model.objects import ApiStruct, NodeSelector, ObjectMeta, RawQuantity, Taint, Toleration

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"
#: Annotation of claims for the extended resources of their owner, with the value "true".
EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
_Int: TypeAlias = int
_Bool: TypeAlias = bool
#: Devices of a claim, and consumers of a claim.
MAX_RESULTS: Final = 32
MAX_CONSUMERS: Final = 256
#: Alternatives of a request (`firstAvailable`).
MAX_ALTERNATIVES: Final = 8


# --- slices ---------------------------------------------------------------------------------------------------------


class DeviceAttribute(ApiStruct, frozen=True):
    """One of the values is set."""

    int: _Int | None = None
    bool: _Bool | None = None
    string: str | None = None
    version: str | None = None
    #: Lists: alpha.
    ints: tuple[Any, ...] | None = None
    bools: tuple[Any, ...] | None = None
    strings: tuple[Any, ...] | None = None
    versions: tuple[Any, ...] | None = None


class CapacityRange(ApiStruct, frozen=True):
    min: RawQuantity | None = None
    max: RawQuantity | None = None
    step: RawQuantity | None = None


class CapacityPolicy(ApiStruct, frozen=True):
    """How a requested share of a capacity is rounded."""

    default: RawQuantity | None = None
    valid_values: tuple[RawQuantity, ...] | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiStruct, frozen=True):
    value: RawQuantity = "0"
    request_policy: CapacityPolicy | None = None


class Counter(ApiStruct, frozen=True):
    value: RawQuantity = "0"


class CounterSet(ApiStruct, frozen=True):
    name: str = ""
    counters: dict[str, Counter] | None = None


class CounterConsumption(ApiStruct, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None
    #: Alpha.
    compatibility_groups: tuple[str, ...] | None = None


class SliceDevice(ApiStruct, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: tuple[CounterConsumption, ...] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[Taint, ...] | None = None
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    allow_multiple_allocations: bool | None = None
    #: Alpha.
    node_allocatable_resources: dict[str, Any] | None = None


class ResourcePool(ApiStruct, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ApiStruct, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[SliceDevice, ...] | None = None
    per_device_node_selection: bool | None = None
    shared_counters: tuple[CounterSet, ...] | None = None


class ResourceSliceObject(ApiStruct, frozen=True, tag="ResourceSlice", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


# --- classes and taint rules ----------------------------------------------------------------------------------------


class CelSelector(ApiStruct, frozen=True):
    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(ApiStruct, frozen=True):
    selectors: tuple[DeviceSelector, ...] | None = None
    config: tuple[dict[str, Any], ...] | None = None
    #: The extended resource by which pods request devices of the class.
    extended_resource_name: str | None = None


class DeviceClassObject(ApiStruct, frozen=True, tag="DeviceClass", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(ApiStruct, frozen=True):
    """Set fields must match."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ApiStruct, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: Taint = Taint()


class DeviceTaintRuleObject(ApiStruct, frozen=True, tag="DeviceTaintRule", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


# --- claims ---------------------------------------------------------------------------------------------------------


class CapacityRequirements(ApiStruct, frozen=True):
    requests: dict[str, RawQuantity] | None = None


class ExactRequest(ApiStruct, frozen=True):
    """A request without alternatives, or one of the alternatives of a request; then it has a name."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] | None = None
    capacity: CapacityRequirements | None = None
    #: Alpha.
    derived_attributes: tuple[Any, ...] | None = None


class DeviceRequest(ApiStruct, frozen=True):
    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] | None = None


class DeviceConstraint(ApiStruct, frozen=True):
    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(ApiStruct, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] | None = None
    #: Each with `requests` and `opaque`; passed on to the driver.
    config: tuple[dict[str, Any], ...] | None = None


class ResourceClaimSpec(ApiStruct, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(ApiStruct, frozen=True):
    """One result of an allocation."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, RawQuantity] | None = None


class AllocatedDevices(ApiStruct, frozen=True):
    results: tuple[AllocatedDevice, ...] | None = None
    config: tuple[dict[str, Any], ...] | None = None


class Allocation(ApiStruct, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()
    #: None: usable on every node.
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class Consumer(ApiStruct, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiStruct, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ResourceClaimObject(ApiStruct, frozen=True, tag="ResourceClaim", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class RequestMapping(ApiStruct, frozen=True):
    """An extended resource of a container, and the request of the pod's claim that provides devices for it."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ResourceClaimTemplateSpec(ApiStruct, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplateObject(ApiStruct, frozen=True, tag="ResourceClaimTemplate", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()
