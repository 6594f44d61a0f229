"""The snapshot of the cluster in a session: the tables of the state, under the names that plugins use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.unsupported import device_class_of, device_class_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.devices.inventory import DeviceInventory
    from capcard_sched.devices.ledger import DeviceLedger
    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.model.card_budgets import CardBudget
    from capcard_sched.model.device_objects import ResourceClaimTemplateSpec
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

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        #: Resource names and their columns.
        self.resources: ResourceColumns = state.columns
        #: Every job with a PodGroup whose queue exists, by key.
        self.jobs: Mapping[str, Job] = state.schedulable
        #: All queues by name.
        self.queues: Mapping[str, Queue] = state.queues
        #: Known nodes in order of name.
        self.nodes: NodeTable = state.nodes
        #: All tasks.
        self.tasks_by_uid: Mapping[str, Task] = state.tasks
        #: Claims, volumes and what is assumed of them.
        self.volumes: Storage = state.volumes
        #: Value of each PriorityClass, and whether it is the default.
        self.priority_classes: Mapping[str, tuple[int, bool]] = state.priority_classes
        #: Labels of the known namespaces, by name.
        self.namespaces: Mapping[str, Mapping[str, str]] = state.namespaces
        #: Extended resource to the DeviceClass that offers it.
        self.device_classes: Mapping[str, str] = state.device_classes
        #: The devices of ResourceSlices, and the ledger of their allocations to claims.
        self.devices: DeviceInventory = state.devices
        self.claims: DeviceLedger = state.claims
        #: ResourceClaimTemplates by `namespace/name`.
        self.claim_templates: Mapping[str, ResourceClaimTemplateSpec] = state.claim_templates
        #: ResourceQuotas by namespace and name.
        self.quotas: Mapping[str, Mapping[str, Quota]] = state.quotas
        #: PodDisruptionBudgets by namespace and name.
        self.budgets: Mapping[str, Mapping[str, Budget]] = state.budgets
        #: Valid CardBudgets by name.
        self.card_budgets: Mapping[str, CardBudget] = state.card_budgets
        #: Measured load by node name, including names of unknown nodes.
        self.usage: Mapping[str, NodeUsage] = state.usage
        #: Numatopology facts, by node name.
        self.numa: Mapping[str, NumaFacts] = state.numa
        #: Data of the ConfigMaps that plugins read, by `namespace/name`.
        self.config_maps: Mapping[str, Mapping[str, str]] = state.config_maps
        #: The classes of all tasks, possibly with some that no task has any more.
        self.classes: Iterable[TaskClass] = state.classes
        #: Those with affinity or topology spread constraints.
        self.classes_with_terms: Iterable[TaskClass] = state.classes.with_terms
        self._shared_devices: SharedDevices | None = None
        #: `total` where registered devices raise it.
        self._total: Vector | None = None

    @property
    def tree(self) -> HyperNodeTree:
        """HyperNodes and the nodes under them."""
        return self.state.tree

    @property
    def total(self) -> Vector:
        """Sum of allocatable over all nodes; of shared devices at least the registered amounts."""
        return self.state.nodes.total_allocatable if self._total is None else self._total

    @property
    def share_columns(self) -> Rows:
        """Columns of shared devices, which queues limit only where they name them: intp [shares]."""
        columns = self.state.columns
        return np.array([columns.column(name) for name in sorted(self.state.shares)], dtype=np.intp)

    def claimed_resource(self, cls: TaskClass) -> str:
        """Why no node offers a requested resource: only a DeviceClass does, without support of claims; "" otherwise."""
        if self.state.supports_claims:
            return ""
        for resource in cls.requests:
            name = device_class_of(resource, self.device_classes)
            if name and not self._is_offered(resource):
                return device_class_text(resource, name)
        return ""

    def _is_offered(self, resource: str) -> bool:
        column, totals = self.resources.find(resource), self.state.nodes.total_allocatable
        return column is not None and column < len(totals) and totals.item(column) > 0

    @property
    def shared_devices(self) -> SharedDevices | None:
        """The shared devices of all nodes; None without a plugin that shares devices."""
        return self._shared_devices

    def set_shared_devices(self, devices: SharedDevices) -> None:
        """Offer shared devices to other plugins; for the hook `prepare`."""
        self._shared_devices = devices

    def set_device_totals(self, totals: Mapping[str, int]) -> None:
        """Set the registered amounts of shared devices, by resource, in thousandths."""
        known = {name: amount for name, amount in totals.items() if name in self.resources}
        offered = self.resources.fit(self.state.nodes.total_allocatable)
        raised = np.maximum(offered, self.resources.vector(known))
        self._total = None if np.array_equal(raised, offered) else raised
