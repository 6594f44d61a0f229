"""Arguments of the nodeorder plugin (plugins reference §8.1)."""

from __future__ import annotations

import msgspec


class NodeOrderArguments(msgspec.Struct, frozen=True):
    """What each score of 0 to 100 counts; 0 leaves it out, a negative weight turns it round."""

    least_requested: int = msgspec.field(name="leastrequested.weight", default=1)
    most_requested: int = msgspec.field(name="mostrequested.weight", default=0)
    balanced_resource: int = msgspec.field(name="balancedresource.weight", default=1)
    node_affinity: int = msgspec.field(name="nodeaffinity.weight", default=2)
    image_locality: int = msgspec.field(name="imagelocality.weight", default=1)
    pod_affinity: int = msgspec.field(name="podaffinity.weight", default=2)
    taint_toleration: int = msgspec.field(name="tainttoleration.weight", default=3)
    topology_spread: int = msgspec.field(name="podtopologyspread.weight", default=2)
