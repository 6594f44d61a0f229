"""What changed since the last session opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Changes:
    """Names of what changed. One object lives as long as the state and collects; each session takes what is there."""

    __slots__ = (
        "budgets", "everything", "hyper_nodes", "jobs", "namespaces", "nodes", "numa", "queues", "quotas", "recount",
        "regrouped", "usage", "volumes",
    )  # fmt: skip

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        #: The next session is to look at everything, whenever there is one; no reason to open it.
        self.recount = False
        self.jobs: set[str] = set()
        self.queues: set[str] = set()
        self.nodes: set[str] = set()
        #: Keys of claims, and kind and name of other storage objects.
        self.volumes: set[str] = set()
        #: Namespaces whose labels changed, with the former ones (None: not seen before). No reason for a session by
        #: itself: `regrouped` is, that some pod's namespace selector answers differently for one of them.
        self.namespaces: dict[str, Mapping[str, str] | None] = {}
        self.regrouped = False
        #: Namespaces of which a ResourceQuota, or a PodDisruptionBudget, changed. A reason for a session only where a
        #: plugin wakes on them (`Plugin.wakes_on`).
        self.quotas: set[str] = set()
        self.budgets: set[str] = set()
        #: Nodes whose load was measured; a reason as those are.
        self.usage: set[str] = set()
        #: HyperNodes that changed: jobs with a network topology may go elsewhere, whatever the plugins.
        self.hyper_nodes: set[str] = set()

        #: Nodes whose Numatopology changed; a reason as those are.
        self.numa: set[str] = set()

    def __bool__(self) -> bool:
        return bool(
            self.everything
            or self.jobs
            or self.queues
            or self.nodes
            or self.volumes
            or self.regrouped
            or self.hyper_nodes
        )

    def take(self) -> Changes:
        """Hand over what was collected, and start collecting anew."""
        taken = Changes(everything=self.everything or self.recount)
        taken.jobs, taken.queues, taken.nodes, taken.volumes = self.jobs, self.queues, self.nodes, self.volumes
        taken.namespaces, taken.regrouped = self.namespaces, self.regrouped
        taken.quotas, taken.budgets = self.quotas, self.budgets
        taken.usage, self.usage = self.usage, set()
        taken.hyper_nodes, self.hyper_nodes = self.hyper_nodes, set()
        taken.numa, self.numa = self.numa, set()
        self.everything = self.recount = self.regrouped = False
        self.namespaces, self.quotas, self.budgets = {}, set(), set()
        self.jobs, self.queues, self.nodes, self.volumes = set(), set(), set(), set()
        return taken
