"""Arguments of the nodeorder plugin (plugins reference §8.1)."""

from __future__ import annotations

import msgspec


class NodeOrderArguments(msgspec.Struct, frozen=True):
    """What each score counts."""

    #: Nodes with much left. Of this score and the others, 0 to 100 each: 0 leaves it out, a negative weight turns it
    #: round.
    least_requested: int = msgspec.field(name="leastrequested.weight", default=1)
    #: Nodes with little left.
    most_requested: int = msgspec.field(name="mostrequested.weight", default=0)
    #: Nodes whose cpu and memory are used alike.
    balanced_resource: int = msgspec.field(name="balancedresource.weight", default=1)
    #: Nodes that the pod's preferred node affinity names.
    node_affinity: int = msgspec.field(name="nodeaffinity.weight", default=2)
    #: Nodes that have the pod's images.
    image_locality: int = msgspec.field(name="imagelocality.weight", default=1)
    #: Nodes near the pods, or far from those, that preferred pod affinities name.
    pod_affinity: int = msgspec.field(name="podaffinity.weight", default=2)
    #: Nodes with few `PreferNoSchedule` taints that the pod does not tolerate.
    taint_toleration: int = msgspec.field(name="tainttoleration.weight", default=3)
    #: Nodes that keep `ScheduleAnyway` spread constraints.
    topology_spread: int = msgspec.field(name="podtopologyspread.weight", default=2)
