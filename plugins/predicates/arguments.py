"""Arguments of the predicates plugin (plugins reference §5.1)."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ShapePoint(msgspec.Struct, frozen=True):
    """One point of the storage capacity scoring curve."""

    #: Percent of the volumes that is used.
    utilization: Annotated[int, msgspec.Meta(ge=0, le=100)]
    score: Annotated[int, msgspec.Meta(ge=0, le=10)]


class PredicatesArguments(msgspec.Struct, frozen=True):
    """Which checks run. The DRA keys are accepted so that confs load; nothing here acts on them.

    `predicate.CacheEnable` is accepted too: static answers are always kept, with their reasons (§5.5).
    """

    node_affinity: bool = msgspec.field(name="predicate.NodeAffinityEnable", default=True)
    taint_toleration: bool = msgspec.field(name="predicate.TaintTolerationEnable", default=True)
    node_ports: bool = msgspec.field(name="predicate.NodePortsEnable", default=True)
    pod_affinity: bool = msgspec.field(name="predicate.PodAffinityEnable", default=True)
    node_volume_limits: bool = msgspec.field(name="predicate.NodeVolumeLimitsEnable", default=True)
    volume_zone: bool = msgspec.field(name="predicate.VolumeZoneEnable", default=True)
    topology_spread: bool = msgspec.field(name="predicate.PodTopologySpreadEnable", default=True)
    volume_binding: bool = msgspec.field(name="predicate.VolumeBindingEnable", default=True)
    dynamic_resources: bool = msgspec.field(name="predicate.DynamicResourceAllocationEnable", default=False)
    cache: bool = msgspec.field(name="predicate.CacheEnable", default=False)
    bind_timeout_seconds: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="volumebinding.bindTimeoutSeconds", default=600
    )
    volume_binding_weight: int = msgspec.field(name="volumebinding.weight", default=1)
    #: Points by rising utilization; volumes are not scored without it.
    volume_binding_shape: tuple[ShapePoint, ...] | None = msgspec.field(name="volumebinding.shape", default=None)
    filter_timeout_seconds: int = msgspec.field(name="dynamicresources.filterTimeoutSeconds", default=10)
