"""The snapshot of the cluster in a session: the tables of the state, under the names that plugins use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.limits import Budget, Quota
    from capcard_sched.model.numa import NumaFacts
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns, Vector
    from capcard_sched.model.storage import Storage
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.state.cluster import ClusterState
    from capcard_sched.state.columns import NodeTable


class Snapshot:
    """Read-only views: plugins read them and change nothing."""

    state: ClusterState
    #: `total` where registered devices raise it.
    _total: Vector | None = None

    @property
    def resources(self) -> ResourceColumns:
        """Resource names and their columns."""
        return self.state.columns

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Every job with a PodGroup whose queue exists, by key."""
        return self.state.schedulable

    @property
    def queues(self) -> Mapping[str, Queue]:
        """All queues by name."""
        return self.state.queues

    @property
    def nodes(self) -> NodeTable:
        """Known nodes in order of name."""
        return self.state.nodes

    @property
    def tasks_by_uid(self) -> Mapping[str, Task]:
        """All tasks."""
        return self.state.tasks

    @property
    def volumes(self) -> Storage:
        """Claims, volumes and what is assumed of them."""
        return self.state.volumes

    @property
    def priority_classes(self) -> Mapping[str, tuple[int, bool]]:
        """Value of each PriorityClass, and whether it is the default."""
        return self.state.priority_classes

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels of the known namespaces, by name."""
        return self.state.namespaces

    @property
    def quotas(self) -> Mapping[str, Mapping[str, Quota]]:
        """ResourceQuotas by namespace and name."""
        return self.state.quotas

    @property
    def budgets(self) -> Mapping[str, Mapping[str, Budget]]:
        """PodDisruptionBudgets by namespace and name."""
        return self.state.budgets

    @property
    def usage(self) -> Mapping[str, NodeUsage]:
        """Measured load by node name, including names of unknown nodes."""
        return self.state.usage

    @property
    def numa(self) -> Mapping[str, NumaFacts]:
        """Numatopology facts, by node name."""
        return self.state.numa

    @property
    def config_maps(self) -> Mapping[str, Mapping[str, str]]:
        """Data of the ConfigMaps that plugins read, by `namespace/name`."""
        return self.state.config_maps

    @property
    def tree(self) -> HyperNodeTree:
        """HyperNodes and the nodes under them."""
        return self.state.tree

    @property
    def classes(self) -> Iterable[TaskClass]:
        """The classes of all tasks, possibly with some that no task has any more."""
        return self.state.classes

    @property
    def total(self) -> Vector:
        """Sum of allocatable over all nodes; of shared devices at least the registered amounts."""
        return self.state.nodes.total_allocatable if self._total is None else self._total

    @property
    def share_columns(self) -> Rows:
        """Columns of shared devices, which queues limit only where they name them: intp [shares]."""
        columns = self.state.columns
        return np.array([columns.column(name) for name in sorted(self.state.shares)], dtype=np.intp)

    def set_device_totals(self, totals: Mapping[str, int]) -> None:
        """Set the registered amounts of shared devices, by resource, in thousandths."""
        known = {name: amount for name, amount in totals.items() if name in self.resources}
        offered = self.resources.fit(self.state.nodes.total_allocatable)
        raised = np.maximum(offered, self.resources.vector(known))
        self._total = None if np.array_equal(raised, offered) else raised
