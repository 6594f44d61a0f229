"""Node groups that an autoscaler extends: the shape of their nodes, and how many it may add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.objects import Taint
from capcard_sched.model.resources import PODS
from capcard_sched.model.selectors import matches_node_selector, untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Collection

    from capcard_sched.model.task_class import TaskClass


class AutoscaledGroup(msgspec.Struct, frozen=True):
    """One entry of `nodeGroups` of the scheduler-conf."""

    name: str
    #: Allocatable amounts of one node in base units.
    resources: Mapping[str, int]
    #: Cards of one node in thousandths, with the resource that pods request for them.
    cards: Mapping[str, tuple[int, str]]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    #: The most nodes that the autoscaler adds; None for any number.
    max_size: int | None = None

    def pods_per_node(self, cls: TaskClass, wanted: Collection[str] | None) -> int:
        """The pods of a class that an empty node holds. `wanted`: the cards of which it must have one; None for any."""
        if wanted is not None and not any(card in self.cards for card in wanted):
            return 0
        if untolerated_taint(self.taints, cls.tolerations) is not None:
            return 0
        if any(self.labels.get(key) != value for key, value in cls.node_selector.items()):
            return 0
        affinity = cls.affinity.node_affinity if cls.affinity is not None else None
        if affinity is not None and not matches_node_selector(affinity.required, self.labels, ""):
            return 0
        requested = [(name, amount) for name, amount in cls.requests.items() if amount > 0 and name != PODS]
        fits = [self.resources.get(name, 0) // amount for name, amount in requested]
        return min([*fits, self.resources[PODS]])


def places_of(groups: Collection[AutoscaledGroup], cls: TaskClass, wanted: Collection[str] | None) -> int | None:
    """The pods of a class that the nodes of all groups hold; None for any number."""
    found = 0
    for group in groups:
        pods = group.pods_per_node(cls, wanted)
        if pods and group.max_size is None:
            return None
        found += pods * (group.max_size or 0)
    return found
