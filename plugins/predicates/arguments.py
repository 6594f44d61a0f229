"""Arguments of the predicates plugin."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from capcard_sched.model.unsupported import DYNAMIC_RESOURCES

SHAPE_KEY: Final = "volumebinding.shape"
#: Prefixes of keys that older versions of Volcano read here, and the plugins that read them now.
MOVED_KEYS: Final = (
    ("predicate.GPUSharingEnable", "deviceshare"),
    ("predicate.GPUNumberEnable", "deviceshare"),
    ("predicate.ProportionalEnable", "resource-strategy-fit, argument proportional"),
    ("predicate.resources", "resource-strategy-fit, argument proportional"),
)


class ShapePoint(msgspec.Struct, frozen=True):
    """One point of the storage capacity scoring curve."""

    #: Percent of the capacity that is used.
    utilization: Annotated[int, msgspec.Meta(ge=0, le=100)]
    score: Annotated[int, msgspec.Meta(ge=0, le=10)]


class PredicatesArguments(msgspec.Struct, frozen=True):
    """Switches of the checks, and the volume score."""

    #: Whether node selectors and required node affinity are checked.
    node_affinity: bool = msgspec.field(name="predicate.NodeAffinityEnable", default=True)
    #: Whether taints are checked.
    taint_toleration: bool = msgspec.field(name="predicate.TaintTolerationEnable", default=True)
    #: Whether host ports are checked.
    node_ports: bool = msgspec.field(name="predicate.NodePortsEnable", default=True)
    #: Whether required pod affinity and anti-affinity are checked.
    pod_affinity: bool = msgspec.field(name="predicate.PodAffinityEnable", default=True)
    #: Whether the attach limits of CSI drivers, and drivers with `preventPodSchedulingIfMissing`, are checked.
    node_volume_limits: bool = msgspec.field(name="predicate.NodeVolumeLimitsEnable", default=True)
    #: Whether zones and regions of volumes are checked.
    volume_zone: bool = msgspec.field(name="predicate.VolumeZoneEnable", default=True)
    #: Whether `DoNotSchedule` spread constraints are checked.
    topology_spread: bool = msgspec.field(name="predicate.PodTopologySpreadEnable", default=True)
    #: Whether claims are checked and bound to volumes.
    volume_binding: bool = msgspec.field(name="predicate.VolumeBindingEnable", default=True)
    #: Whether devices are allocated to ResourceClaims; without it pods with claims are never bound.
    dynamic_resources: bool = msgspec.field(name=DYNAMIC_RESOURCES, default=True)
    #: Seconds after the allocation of a claim until the binding of its pods fails because a device is not ready.
    device_binding_timeout: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(
        name="predicate.DRABindingTimeout", default=600
    )
    #: Multiplier of the score of nodes by the alternatives (`firstAvailable`) that the claims of a pod get there.
    prioritized_list_weight: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="draPrioritizedList.weight", default=2
    )
    #: Accepted for compatibility, ignored: static results are always cached.
    cache: bool = msgspec.field(name="predicate.CacheEnable", default=False)
    #: Seconds until the binding of a pod fails because its volumes are not bound.
    bind_timeout_seconds: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="volumebinding.bindTimeoutSeconds", default=600
    )
    #: Multiplier of the score by `volumebinding.shape`.
    volume_binding_weight: int = msgspec.field(name="volumebinding.weight", default=1)
    #: Points `{utilization, score}` by increasing utilization; without it volumes are not scored.
    volume_binding_shape: tuple[ShapePoint, ...] | None = msgspec.field(name=SHAPE_KEY, default=None)
    #: Accepted for compatibility, ignored.
    filter_timeout_seconds: int = msgspec.field(name="dynamicresources.filterTimeoutSeconds", default=10)
