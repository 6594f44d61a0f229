"""Arguments of the nodeorder plugin."""

from __future__ import annotations

from typing import Literal

import msgspec


class NodeOrderArguments(msgspec.Struct, frozen=True):
    """Weights of the scores, and their scale."""

    #: `volcano`: preferred node affinity scores the sum of the weights of the matching terms (up to 100 per term), and
    #: required pod affinity of existing pods does not score. `kube-scheduler`: preferred node affinity is normalized to
    #: 0 to 100 over the candidates, and each required pod affinity term of an existing pod that selects the pod counts
    #: with weight 1. All other scores are 0 to 100 in both.
    scoring: Literal["volcano", "kube-scheduler"] = msgspec.field(name="nodeorder.scoring", default="volcano")

    #: Prefers nodes with more free cpu and memory. A weight multiplies its score; 0 disables the score, a negative
    #: weight inverts it.
    least_requested: int = msgspec.field(name="leastrequested.weight", default=1)
    #: Prefers nodes with less free cpu and memory.
    most_requested: int = msgspec.field(name="mostrequested.weight", default=0)
    #: Prefers nodes with balanced use of cpu and memory.
    balanced_resource: int = msgspec.field(name="balancedresource.weight", default=1)
    #: Prefers nodes that match the pod's preferred node affinity.
    node_affinity: int = msgspec.field(name="nodeaffinity.weight", default=2)
    #: Prefers nodes that have the pod's images.
    image_locality: int = msgspec.field(name="imagelocality.weight", default=1)
    #: Prefers nodes by preferred pod affinity and anti-affinity.
    pod_affinity: int = msgspec.field(name="podaffinity.weight", default=2)
    #: Prefers nodes with fewer `PreferNoSchedule` taints that the pod does not tolerate.
    taint_toleration: int = msgspec.field(name="tainttoleration.weight", default=3)
    #: Prefers nodes that satisfy `ScheduleAnyway` spread constraints.
    topology_spread: int = msgspec.field(name="podtopologyspread.weight", default=2)
