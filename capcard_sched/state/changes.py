"""Changes of the state since the last session opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True, eq=False, repr=False)
class Changes:
    """Names of changed objects. The state owns one instance for its lifetime; each session drains it.

    True while a session has a reason to open. `namespaces`, `quotas`, `budgets`, `card_budgets`, `usage`, `numa` and
    `config_maps` are no reason by themselves: plugins declare which of them they wake on (`Plugin.reads`).
    """

    #: The next session considers everything, and opens for that reason.
    everything: bool = False
    #: The next session considers everything, without opening for that reason.
    force_resync: bool = False
    #: A pod's namespace selector gives another result for a changed namespace.
    selectors_changed: bool = False
    jobs: set[str] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    #: Uids of pods that went from one node to another: another scheduler bound them.
    moved: set[str] = field(default_factory=set)
    #: Keys of claims, and kind and name of other storage objects.
    volumes: set[str] = field(default_factory=set)
    #: Keys of ResourceClaims, and kind and name of other objects of dynamic resource allocation.
    devices: set[str] = field(default_factory=set)
    hyper_nodes: set[str] = field(default_factory=set)
    #: Namespaces whose labels changed, with the former labels (None: new namespace).
    namespaces: dict[str, Mapping[str, str] | None] = field(default_factory=dict)
    #: Namespaces with a changed ResourceQuota, and with a changed PodDisruptionBudget.
    quotas: set[str] = field(default_factory=set)
    budgets: set[str] = field(default_factory=set)
    #: Changed CardBudgets.
    card_budgets: set[str] = field(default_factory=set)
    #: Nodes with a new load measurement, and with a changed Numatopology.
    usage: set[str] = field(default_factory=set)
    numa: set[str] = field(default_factory=set)
    #: Changed ConfigMaps, `namespace/name`.
    config_maps: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.everything
            or self.jobs
            or self.queues
            or self.nodes
            or self.volumes
            or self.devices
            or self.selectors_changed
            or self.hyper_nodes
        )

    @property
    def size(self) -> int:
        """The number of names."""
        named = (getattr(self, name) for name in self.__slots__)
        return sum(len(each) for each in named if not isinstance(each, bool))

    def drain(self) -> Changes:
        """Return the collected changes and reset this instance."""
        drained = Changes(*[getattr(self, name) for name in self.__slots__])
        Changes.__init__(self)
        drained.everything |= drained.force_resync
        drained.force_resync = False
        return drained
