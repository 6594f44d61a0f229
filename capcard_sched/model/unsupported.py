"""Features of pods that this scheduler does not support: one table for decoding, sessions, admission and `validate`.

A pod that uses one is never bound. Its field, the text of the refusal and the accepted form are in one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.quoting import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class _SpecPart(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """As `ApiStruct`."""


class PodResourceClaim(_SpecPart, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(_SpecPart, frozen=True):
    """A claim that was generated from a template; part of the status of a pod."""

    name: str = ""
    #: None: the entry needs no claim.
    resource_claim_name: str | None = None


class MappedResource(_SpecPart, frozen=True):
    resource_name: str = ""


class ExtendedClaimStatus(_SpecPart, frozen=True):
    """The claim for the extended resources of a pod that a DeviceClass offers; part of the status of a pod."""

    resource_claim_name: str = ""
    request_mappings: tuple[MappedResource, ...] | None = None

    @property
    def resources(self) -> frozenset[str]:
        """The resources for which the claim has devices."""
        return frozenset([each.resource_name for each in self.request_mappings or ()])


class SchedulingGroup(_SpecPart, frozen=True):
    pod_group_name: str | None = None


class WorkloadReference(_SpecPart, frozen=True):
    name: str | None = None
    pod_group: str | None = None


class UnsupportedFields(_SpecPart, frozen=True):
    """Fields of a pod spec that the table below reads."""

    resource_claims: tuple[PodResourceClaim, ...] | None = None
    #: Kubernetes 1.36 and later.
    scheduling_group: SchedulingGroup | None = None
    #: Kubernetes 1.35.
    workload_ref: WorkloadReference | None = None


class PodFeature(NamedTuple):
    """One feature of pods."""

    #: Name of the field in `spec`.
    field: str
    #: Subject of the sentence.
    name: str
    #: What replaces it.
    accepted: str
    #: The objects that the field of a pod names; None for a pod without the feature.
    names: Callable[[UnsupportedFields], Sequence[str] | None]
    #: Predicate of the sentence.
    lacks: str = "is not supported"

    def text(self, names: Sequence[str]) -> str:
        """The reason of pods that use it."""
        return f"{self.name} {self.lacks} (spec.{self.field}: {brief(names)})"


class Unsupported(NamedTuple):
    """One use of a feature by a pod."""

    feature: PodFeature
    #: The objects that the field names: `ResourceClaim gpu`.
    names: str
    #: `a scheduling group without a PodGroup is not supported (spec.schedulingGroup: without podGroupName)`.
    text: str


def _claims(spec: UnsupportedFields) -> Sequence[str] | None:
    if not spec.resource_claims:
        return None
    found = []
    for claim in spec.resource_claims:
        if claim.resource_claim_name:
            found.append(f"ResourceClaim {claim.resource_claim_name}")
        elif claim.resource_claim_template_name:
            found.append(f"ResourceClaimTemplate {claim.resource_claim_template_name}")
        else:
            found.append(f"claim {claim.name}")
    return list(dict.fromkeys(found))


def _group(spec: UnsupportedFields) -> Sequence[str] | None:
    group = spec.scheduling_group
    return ["without podGroupName"] if group is not None and not group.pod_group_name else None


def _workload(spec: UnsupportedFields) -> Sequence[str] | None:
    workload = spec.workload_ref
    if workload is None:
        return None
    return [f"Workload {workload.name}" if workload.name else "without a name"]


#: Dynamic resource allocation in messages.
DRA: Final = "dynamic resource allocation (DRA)"
#: The argument of the plugin predicates that enables it.
DYNAMIC_RESOURCES: Final = "predicate.DynamicResourceAllocationEnable"
_NEEDED: Final = f"needs the plugin predicates, without {DYNAMIC_RESOURCES}: false"
#: What replaces claims.
DEVICES_FORM: Final = (
    f"the plugin predicates with {DYNAMIC_RESOURCES}: true in the scheduler-conf, "
    "or resources of a device plugin in the limits of the containers"
)
_GROUP_FORM: Final = "annotation scheduling.k8s.io/group-name and a PodGroup of scheduling.volcano.sh"
CLAIMS: Final = PodFeature("resourceClaims", DRA, DEVICES_FORM, _claims, _NEEDED)
#: A further feature is a field of `UnsupportedFields` and a row here. Claims come first.
FEATURES: Final = (
    CLAIMS,
    PodFeature("schedulingGroup", "a scheduling group without a PodGroup", _GROUP_FORM, _group),
    PodFeature("workloadRef", "a Workload of scheduling.k8s.io", _GROUP_FORM, _workload),
)


def unsupported_by(spec: UnsupportedFields, *, claims: bool = False) -> Iterator[Unsupported]:
    """The uses of unsupported features by a pod spec, in the order of the table. `claims`: claims are supported."""
    for feature in FEATURES[1:] if claims else FEATURES:
        names = feature.names(spec)
        if names is not None:
            yield Unsupported(feature, brief(names), feature.text(names))


def needed_instead(texts: Iterable[str]) -> str:
    """What replaces the features that the reasons of pods name, ` and ` between them; "" for none."""
    text = "\n".join(texts)
    return " and ".join(feature.accepted for feature in FEATURES if feature.name in text)


def unsupported_text(spec: UnsupportedFields, *, claims: bool = False) -> str:
    """The reason for which a pod is never bound; "" for a pod without unsupported features.

    `claims`: whether claims are supported.
    """
    if (claims or spec.resource_claims is None) and spec.scheduling_group is None and spec.workload_ref is None:
        return ""
    return "; ".join(found.text for found in unsupported_by(spec, claims=claims))


#: Prefix of the resource of every DeviceClass, whatever its `extendedResourceName`.
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


def device_class_of(resource: str, by_resource: Mapping[str, str]) -> str:
    """The DeviceClass that offers an extended resource; "" for other resources. `by_resource`: those of the cluster."""
    if resource.startswith(DEVICE_CLASS_PREFIX):
        return resource.removeprefix(DEVICE_CLASS_PREFIX)
    return by_resource.get(resource, "")


def device_class_text(resource: str, name: str) -> str:
    """The reason of pods that request a resource that only a DeviceClass offers."""
    return f"no node offers {resource}: DeviceClass {name} offers it by {DRA}, which {_NEEDED}"


def foreign_gates(gates: Sequence[str]) -> tuple[str, ...]:
    """The scheduling gates that other components remove: all but the queue allocation gate."""
    return tuple(gate for gate in gates if gate != QUEUE_ALLOCATION_GATE)


def gates_text(gates: Sequence[str]) -> str:
    """`scheduling gate a`, with the gates of other components; "" without any."""
    foreign = foreign_gates(gates)
    return f"scheduling {'gate' if len(foreign) == 1 else 'gates'} {brief(foreign)}" if foreign else ""
