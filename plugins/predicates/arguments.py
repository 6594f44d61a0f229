"""Arguments of the predicates plugin (plugins reference §5.1)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

#: Beginnings of keys that older user guides show here, and the plugins that took them over.
MOVED_KEYS: Final = (
    ("predicate.GPUSharingEnable", "deviceshare"),
    ("predicate.GPUNumberEnable", "deviceshare"),
    ("predicate.ProportionalEnable", "resource-strategy-fit, argument proportional"),
    ("predicate.resources", "resource-strategy-fit, argument proportional"),
)


class ShapePoint(msgspec.Struct, frozen=True):
    """One point of the storage capacity scoring curve."""

    #: Percent of the volumes that is used.
    utilization: Annotated[int, msgspec.Meta(ge=0, le=100)]
    score: Annotated[int, msgspec.Meta(ge=0, le=10)]


class PredicatesArguments(msgspec.Struct, frozen=True):
    """Which checks run, and how volumes are scored."""

    #: Whether node selectors and required node affinity are checked.
    node_affinity: bool = msgspec.field(name="predicate.NodeAffinityEnable", default=True)
    #: Whether taints are checked.
    taint_toleration: bool = msgspec.field(name="predicate.TaintTolerationEnable", default=True)
    #: Whether host ports are checked.
    node_ports: bool = msgspec.field(name="predicate.NodePortsEnable", default=True)
    #: Whether required pod affinity and anti-affinity are checked.
    pod_affinity: bool = msgspec.field(name="predicate.PodAffinityEnable", default=True)
    #: Whether it is checked how many volumes a node attaches.
    node_volume_limits: bool = msgspec.field(name="predicate.NodeVolumeLimitsEnable", default=True)
    #: Whether zones and regions of volumes are checked.
    volume_zone: bool = msgspec.field(name="predicate.VolumeZoneEnable", default=True)
    #: Whether `DoNotSchedule` spread constraints are checked.
    topology_spread: bool = msgspec.field(name="predicate.PodTopologySpreadEnable", default=True)
    #: Whether claims are checked, and given volumes.
    volume_binding: bool = msgspec.field(name="predicate.VolumeBindingEnable", default=True)
    #: Accepted, so that files load; without effect.
    dynamic_resources: bool = msgspec.field(name="predicate.DynamicResourceAllocationEnable", default=False)
    #: Accepted, so that files load: static answers are always kept, with their reasons.
    cache: bool = msgspec.field(name="predicate.CacheEnable", default=False)
    #: How long the volumes of a pod may take before its binding counts as failed.
    bind_timeout_seconds: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="volumebinding.bindTimeoutSeconds", default=600
    )
    #: Times the score by `volumebinding.shape`.
    volume_binding_weight: int = msgspec.field(name="volumebinding.weight", default=1)
    #: Points by rising utilization; volumes are not scored without it.
    volume_binding_shape: tuple[ShapePoint, ...] | None = msgspec.field(name="volumebinding.shape", default=None)
    #: Accepted, so that files load; without effect.
    filter_timeout_seconds: int = msgspec.field(name="dynamicresources.filterTimeoutSeconds", default=10)
