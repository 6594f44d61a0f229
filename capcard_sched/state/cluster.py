"""The scheduler cache: only deltas and the scheduler's own placements change it.

`ClusterState` applies the deltas. `Accounting` keeps the sums over tasks and the scheduler's own placements, `JobTable`
the jobs and their queues, `NodeTable` the node amounts, `ClassTable` the classes of equal pods.
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.annotations import DEVICE_ANNOTATIONS
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import Node, Task
from capcard_sched.model.pods import facts_of
from capcard_sched.model.quantity import QuantityError
from capcard_sched.model.resources import ResourceColumns
from capcard_sched.model.status import ALLOCATED_STATUSES, COMPLETED_STATUSES, PodGroupPhase, TaskStatus
from capcard_sched.model.task_class import NO_ACCOUNTING
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS
from capcard_sched.state.accounting import Accounting
from capcard_sched.state.changes import Changes
from capcard_sched.state.classes import ClassTable
from capcard_sched.state.columns import NodeTable
from capcard_sched.state.config_maps import ConfigMapTable
from capcard_sched.state.decode import group_facts, node_facts, queue_facts
from capcard_sched.state.hyper_nodes import HyperNodeTable
from capcard_sched.state.ignored_edits import IgnoredEdits, describe_edits
from capcard_sched.state.invalid_objects import InvalidObjects
from capcard_sched.state.jobs import JobTable
from capcard_sched.state.limits import LimitTable
from capcard_sched.state.namespaces import NamespaceTable
from capcard_sched.state.numa import NumaTable
from capcard_sched.state.usage import UsageTable
from capcard_sched.state.volumes import VolumeTable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, QueueObject
    from capcard_sched.model.pods import PodFacts
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import DeviceAccounting
    from capcard_sched.model.term_limits import TermLimits

#: Prefix of the PodGroups that controllers create for pods without one; a uid follows.
_AUTOMATIC_GROUP = "podgroup-"
#: Unused label sets and classes that may stay cached, beyond twice the number of pods.
_SPARE = 1024
_NO_LABELS: Mapping[str, str] = {}
#: Statuses of an evicted pod's object before its deletion timestamp arrives.
_LIVE = frozenset({TaskStatus.PENDING, TaskStatus.BOUND, TaskStatus.RUNNING})

#: Kind to the delta that deletes an object of this namespace and name.
_GONE: dict[str, Callable[[str, str], deltas.Delta]] = {
    "Pod": deltas.PodGone,
    "PodGroup": deltas.PodGroupGone,
    "Queue": lambda _, name: deltas.QueueGone(name),
    "Node": lambda _, name: deltas.NodeGone(name),
    "PersistentVolumeClaim": deltas.PersistentVolumeClaimGone,
    "PersistentVolume": lambda _, name: deltas.PersistentVolumeGone(name),
    "StorageClass": lambda _, name: deltas.StorageClassGone(name),
    "CSINode": lambda _, name: deltas.CSINodeGone(name),
    "CSIStorageCapacity": deltas.CSIStorageCapacityGone,
    "Numatopology": lambda _, name: deltas.NumatopologyGone(name),
    "HyperNode": lambda _, name: deltas.HyperNodeGone(name),
    "ConfigMap": deltas.ConfigMapGone,
}


class ClusterState:
    """Nodes, tasks, jobs and queues. `apply` takes deltas in any order; placements go through `place` and `unplace`."""

    def __init__(
        self, scheduler_names: Iterable[str], default_queue: str, term_limits: TermLimits = DEFAULT_TERM_LIMITS
    ) -> None:
        self.scheduler_names = frozenset(scheduler_names)
        self.default_queue = default_queue
        self.term_limits = term_limits
        self.columns = ResourceColumns()
        self.nodes = NodeTable(self.columns.width)
        self.classes = ClassTable(self.columns, term_limits)
        self.changes = Changes(everything=True)
        self.tasks: dict[str, Task] = {}
        self.queues: dict[str, Queue] = {}
        #: Schedulable jobs with work as of the opening of the last session: not admitted yet, or with pending tasks. A
        #: superset inside a session.
        self.active: dict[str, Job] = {}
        #: Number of times this scheduler became leader.
        self.terms = 0
        #: Tasks whose binding the watch has confirmed since the last read of this list.
        self.confirmed: list[Task] = []
        #: Version of the way devices are counted.
        self._device_accounting: Hashable = NO_ACCOUNTING.version
        self._node_objects: dict[str, Node] = {}
        self._by_name: dict[str, dict[str, Task]] = {}
        self._label_sets: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._width = self.columns.width
        #: Latest objects of pods that changed while their binding was in flight, by uid.
        self._deferred: dict[str, PodObject] = {}
        #: Edits of bound pods and of their PodGroups without effect.
        self.ignored_edits = IgnoredEdits()

        self._invalid = InvalidObjects()
        #: Invalid objects and their problems.
        self.problems = self._invalid.problems

        self._job_table = JobTable(self.columns, self.queues, self.changes, default_queue, self.ignored_edits)
        self.jobs = self._job_table.by_key
        self.schedulable = self._job_table.schedulable
        self.orphans = self._job_table.orphans
        self.groups_missing = self._job_table.groups_missing
        #: Deleted queues with bound pods, by name.
        self.deleted_queues = self._job_table.deleted_queues
        #: PriorityClasses: value, and whether it is the default.
        self.priority_classes = self._job_table.priority_classes

        self._namespace_table = NamespaceTable(self.classes, self.changes)
        #: Labels of namespaces by name.
        self.namespaces = self._namespace_table.labels

        self._limit_table = LimitTable(self.changes)
        #: ResourceQuotas and PodDisruptionBudgets by namespace and name.
        self.quotas = self._limit_table.quotas
        self.budgets = self._limit_table.budgets

        self._usage_table = UsageTable(self.changes)
        #: Measured load of nodes by name.
        self.usage = self._usage_table.usage

        self._hyper_node_table = HyperNodeTable(self.changes, self._invalid)
        #: HyperNodes by name; the tree they form is `tree`.
        self.hyper_nodes = self._hyper_node_table.known

        self._numa_table = NumaTable(self.changes, self._invalid)
        #: NUMA facts by node name.
        self.numa = self._numa_table.numa

        self._config_map_table = ConfigMapTable(self.changes)
        #: Data of the ConfigMaps that plugins read, by `namespace/name`.
        self.config_maps = self._config_map_table.data

        self._volume_table = VolumeTable(self.changes, self._invalid)
        self.volumes = self._volume_table.storage
        self.assume_volumes = self._volume_table.assume

        self._accounting = Accounting(self.nodes, self.queues, self.deleted_queues, self.changes)
        # Statements call these once per gang: bound methods without a call in between.
        self.place = self._accounting.place
        self.unplace = self._accounting.unplace
        self.set_binding = self._accounting.set_binding
        self.release = self._accounting.release
        self.unrelease = self._accounting.unrelease

        self._handlers: dict[type, Callable[[Any], None]] = {
            **self._namespace_table.handlers,
            **self._limit_table.handlers,
            **self._hyper_node_table.handlers,
            **self._usage_table.handlers,
            **self._numa_table.handlers,
            **self._config_map_table.handlers,
            **self._volume_table.handlers,
            deltas.PodChanged: lambda delta: self._apply_pod(delta.pod),
            deltas.PodGone: lambda delta: self._drop_pod(delta.namespace, delta.name, delta.uid),
            deltas.NodeChanged: lambda delta: self._apply_node(delta.node),
            deltas.NodeGone: lambda delta: self._drop_node(delta.name),
            deltas.PodGroupChanged: lambda delta: self._apply_group(delta.group),
            deltas.PodGroupGone: self._drop_group,
            deltas.QueueChanged: lambda delta: self._apply_queue(delta.queue),
            deltas.QueueGone: lambda delta: self._drop_queue(delta.name),
            deltas.PriorityClassChanged: self._apply_priority_class,
            deltas.PriorityClassGone: lambda delta: self._job_table.drop_priority_class(delta.name),
            deltas.ObjectUnreadable: self._apply_undecodable,
            deltas.BindFailed: self._bind_failed,
            deltas.BindRetry: self._bind_retry,
            deltas.Takeover: self._apply_takeover,
            deltas.EvictFailed: self._evict_failed,
        }

    def apply(self, delta: deltas.Delta) -> None:
        """Apply one delta. Never raises for invalid content: the object is listed in `problems`."""
        self._match_width()
        self._handlers[type(delta)](delta)

    def _apply_undecodable(self, delta: deltas.ObjectUnreadable) -> None:
        ref = delta.object
        gone = _GONE[ref.kind](ref.namespace, ref.name)
        self._handlers[type(gone)](gone)
        self._invalid.note(ref, delta.problem)

    def open_session(self) -> Changes:
        """Sort the rows, refresh the tree, and drain the changes."""
        self._match_width()
        self._job_table.live = True
        if len(self.classes) > 2 * len(self.tasks) + _SPARE:
            self.classes.prune({task.cls for task in self.tasks.values()})
        self.nodes.sort_rows()
        self._volume_table.release_unused(self.tasks)
        changed = self.changes.drain()
        self._hyper_node_table.refresh(self.nodes, changed)
        for key in changed.jobs:
            job = self.schedulable.get(key)
            if job is not None and job.uid and (job.pending or job.phase is PodGroupPhase.PENDING):
                self.active[key] = job
            else:
                self.active.pop(key, None)
        return changed

    @property
    def tree(self) -> HyperNodeTree:
        """HyperNodes and the nodes below them, as of the opening of the last session."""
        return self._hyper_node_table.tree

    def refresh_tree(self) -> None:
        """Update `tree` and the problems of HyperNodes between two sessions. O(nodes)."""
        self._hyper_node_table.refresh(self.nodes)

    def _match_width(self) -> None:
        """Pad every vector and matrix after resource columns were added beyond the present width."""
        width = self.columns.width
        if width == self._width:
            return
        self._width = width
        self.nodes.widen(width)
        self.classes.widen()
        for job in self.jobs.values():
            job.allocated = self.columns.fit(job.allocated)
            job.total_request = self.columns.fit(job.total_request)
            job.releasing = self.columns.fit(job.releasing)
        for queue in (*self.queues.values(), *self.deleted_queues.values()):
            queue.allocated = self.columns.fit(queue.allocated)
            queue.releasing = self.columns.fit(queue.releasing)

    # --- pods -------------------------------------------------------------------------------------------------------

    def _apply_pod(self, pod: PodObject) -> None:
        meta = pod.metadata
        namespace, name, uid = intern(meta.namespace or "default"), meta.name, meta.uid
        known = self._by_name.get(namespace, {}).get(name)
        if known is not None and known.uid != uid:
            self._drop_pod(namespace, name, known.uid)
            known = None
        ours = (pod.spec.scheduler_name or "default-scheduler") in self.scheduler_names
        if known is None and not ours and not pod.spec.node_name:
            return
        ref = ObjectRef("Pod", namespace, name, uid)
        facts = facts_of(pod)
        own_group = f"{_AUTOMATIC_GROUP}{facts.controller_uid or uid}" if ours else ""
        group = facts.group_name or own_group
        job_key = f"{namespace}/{group}" if group else ""
        # Controllers annotate a pod with the group they create for it; such a pod names no group of its own.
        requested_queue = facts.queue_name if ours and group == own_group else None
        if known is not None and self._job_table.live and (known.bound or known.status is TaskStatus.BINDING):
            facts, job_key, requested_queue = self._keep_bound_facts(known, pod, facts, job_key, requested_queue)
        try:
            cls = self.classes.of(pod, facts, namespace)
        except QuantityError as error:
            self._invalid.note(ref, str(error))
            if known is not None:
                self._forget(known)
            return
        self._invalid.note(ref, "")
        self._match_width()
        status, node_name = _resolve_status(known, facts, pod.spec.node_name or "")
        labels = self._share(meta.labels or {})
        after = (
            cls, status, node_name, job_key, facts.role, facts.priority, facts.preemptable, facts.gated,
            facts.deleting, ours, facts.nominated_node, facts.assigned_card, labels, requested_queue, facts.cooldown,
            facts.device_notes,
        )  # fmt: skip
        former_job: Job | None = None
        former_node: Node | None = None
        if known is not None:
            former_job, former_node = known.job, known.node
            before = (
                known.cls, known.status, known.node.name if known.node is not None else "",
                known.job.key if known.job is not None else "", known.role, known.priority, known.preemptable,
                known.gated, known.deleting, known.ours, known.nominated_node, known.assigned_card, known.labels,
                self._job_table.requested_queue(known), known.cooldown, known.device_notes,
            )  # fmt: skip
            if before == after:
                return
            if (
                known.status is TaskStatus.BINDING
                and status in (TaskStatus.BOUND, TaskStatus.RUNNING)
                and known.node is not None
                and known.node.name == node_name  # else another scheduler bound it
            ):
                self.confirmed.append(known)
            self._accounting.subtract(known)
            task = known
        else:
            task = Task(uid, namespace, name, cls)
            self.tasks[uid] = task
            self._by_name.setdefault(namespace, {})[name] = task
        task.cls = cls
        task.status = status
        task.node = self._node(node_name) if node_name else None
        task.role = facts.role
        task.priority = facts.priority
        task.preemptable = facts.preemptable
        task.gated = facts.gated
        task.bound = bool(pod.spec.node_name)
        task.deleting = facts.deleting
        task.cooldown = facts.cooldown
        task.grace = facts.grace
        task.ours = ours
        task.created = facts.created
        task.index = facts.index
        task.nominated_node = facts.nominated_node
        task.assigned_card = facts.assigned_card
        if status is not TaskStatus.BINDING:  # then it is known what the binding writes
            task.device_notes = facts.device_notes
        task.labels = labels
        task.job = self._job_table.get_or_create(job_key) if job_key else None
        self._job_table.set_requested_queue(task, requested_queue)
        self._accounting.add(task)
        self._drop_placeholder(former_node)
        if task.bound:
            self._deferred.pop(uid, None)
        if former_job is not None and former_job is not task.job:
            self._job_table.task_removed(former_job, task)
        if task.job is not None:
            self._job_table.task_added(task.job, task)

    def _keep_bound_facts(
        self, known: Task, pod: PodObject, facts: PodFacts, job_key: str, requested_queue: str | None
    ) -> tuple[PodFacts, str, str | None]:
        """Replace the facts that the binding of a pod fixes: job, requested queue, card annotations, owner."""
        fixed = msgspec.structs.replace(
            facts,
            class_annotations=dict(known.cls.annotations),
            owner_kind=known.cls.owner_kind,
            assigned_card=known.assigned_card if known.bound else facts.assigned_card,
        )
        fixed_key = known.job.key if known.job is not None else ""
        fixed_queue = self._job_table.requested_queue(known)
        if (fixed, fixed_key, fixed_queue) == (facts, job_key, requested_queue):
            self._deferred.pop(known.uid, None)
            return facts, job_key, requested_queue
        detail = describe_edits(fixed, facts, (fixed_key, fixed_queue), (job_key, requested_queue))
        if detail:
            self.ignored_edits.note(ObjectRef("Pod", known.namespace, known.name, known.uid), detail)
        if not pod.spec.node_name:
            self._deferred[known.uid] = pod
        return fixed, fixed_key, fixed_queue

    def _unbind(self, task: Task) -> None:
        """Return a task whose binding failed to PENDING, with the edits made during the binding."""
        former = task.node
        self._accounting.move(task, TaskStatus.PENDING, None)
        self._drop_placeholder(former)
        if task.job is not None:
            self._job_table.bound_changed(task.job)
        pod = self._deferred.pop(task.uid, None)
        if pod is not None:
            self._apply_pod(pod)

    def assume_device_notes(self, task: Task, annotations: Mapping[str, str]) -> None:
        """The binding of a pod writes these annotations: those about devices count at once."""
        found = DEVICE_ANNOTATIONS & annotations.keys()
        task.device_notes = {key: annotations[key] for key in sorted(found)} if found else {}

    def account_devices(self, accounting: DeviceAccounting) -> bool:
        """Count the devices of all pods this way from now on. Whether that changes anything; O(pods) when it does."""
        if accounting.version == self._device_accounting:
            return False
        self._device_accounting = accounting.version
        for task in self.tasks.values():
            self._accounting.subtract(task)
        self.classes.account_devices(accounting)
        self._match_width()
        self._job_table.set_uncounted(accounting.uncounted)
        for task in self.tasks.values():
            self._accounting.add(task)
        return True

    def _drop_pod(self, namespace: str, name: str, uid: str) -> None:
        task = self._by_name.get(namespace, {}).get(name)
        if task is not None and (not uid or task.uid == uid):
            self._forget(task)
        self._invalid.forget("Pod", namespace, name, uid)

    def _forget(self, task: Task) -> None:
        job, node = task.job, task.node
        self._accounting.remove(task)
        self._deferred.pop(task.uid, None)
        self.ignored_edits.forget("Pod", task.key)
        self._job_table.set_requested_queue(task, None)
        task.job, task.node = None, None
        del self.tasks[task.uid]
        named = self._by_name[task.namespace]
        del named[task.name]
        if not named:
            del self._by_name[task.namespace]
        self._drop_placeholder(node)
        if job is not None:
            self._job_table.task_removed(job, task)

    def _bind_failed(self, delta: deltas.BindFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.BINDING:
            self._unbind(task)
            if delta.retry_after > 0:
                self._accounting.hold(task, held=True)

    def _bind_retry(self, delta: deltas.BindRetry) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.held:
            self._accounting.hold(task, held=False)

    def _apply_takeover(self, _: deltas.Takeover) -> None:
        self.terms += 1
        self.changes.everything = True
        for task in list(self.tasks.values()):
            if task.status is TaskStatus.BINDING:
                self._unbind(task)
            elif task.status is TaskStatus.RELEASING and not task.deleting:
                self._accounting.restore(task)
            if task.held:
                self._accounting.hold(task, held=False)

    def _evict_failed(self, delta: deltas.EvictFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.RELEASING and not task.deleting:
            self._accounting.restore(task)

    def _share(self, labels: dict[str, str]) -> Mapping[str, str]:
        if not labels:
            return _NO_LABELS
        sets = self._label_sets
        if len(sets) > 2 * len(self.tasks) + _SPARE:
            self._label_sets = sets = {
                tuple(sorted(task.labels.items())): task.labels for task in self.tasks.values() if task.labels
            }
        return sets.setdefault(tuple(sorted(labels.items())), labels)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        node = self._node_objects.get(name)
        if node is None:
            node = self._node_objects[name] = Node(name)
        return node

    def _drop_placeholder(self, node: Node | None) -> None:
        """Remove a node without object and without tasks."""
        if node is not None and not node.known and not node.tasks:
            self._node_objects.pop(node.name, None)

    def _apply_node(self, obj: NodeObject) -> None:
        name = obj.metadata.name
        node = self._node(name)
        facts, problem = node_facts(obj)
        ref = ObjectRef("Node", "", name)
        self._invalid.note(ref, problem)
        if node.known and facts == (
            node.uid, node.labels, node.annotations, node.allocatable, node.capacity, node.taints, node.unschedulable,
            node.images,
        ):  # fmt: skip
            return
        (
            node.uid, node.labels, node.annotations, node.allocatable, node.capacity, node.taints, node.unschedulable,
            node.images,
        ) = facts  # fmt: skip
        amounts = self.columns.vector(node.allocatable)
        self._match_width()
        fresh = not node.known
        if fresh:
            node.known = True
            self.nodes.add(node)
        self.nodes.set_allocatable(node.row, self.columns.fit(amounts))
        if fresh:
            for task in node.tasks.values():
                self._accounting.charge_row(node.row, task, +1)
        node.generation += 1
        self.nodes.generation += 1
        self.nodes.touch(node.row)
        self.changes.nodes.add(name)

    def _drop_node(self, name: str) -> None:
        node = self._node_objects.get(name)
        self._invalid.forget("Node", "", name)
        if node is None or not node.known:
            return
        self.nodes.remove(node)
        node.known = False
        node.labels, node.annotations, node.allocatable, node.taints = {}, {}, {}, ()
        node.generation += 1
        self.nodes.generation += 1
        self.changes.nodes.add(name)
        if not node.tasks:
            del self._node_objects[name]

    # --- PodGroups --------------------------------------------------------------------------------------------------

    def _apply_group(self, obj: PodGroupObject) -> None:
        facts, problem = group_facts(obj, self.default_queue)
        self._invalid.note(ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid), problem)
        self._job_table.update(facts)

    def _drop_group(self, delta: deltas.PodGroupGone) -> None:
        self._invalid.forget("PodGroup", delta.namespace, delta.name, delta.uid)
        self._job_table.drop(f"{delta.namespace}/{delta.name}", delta.uid)

    def _apply_priority_class(self, delta: deltas.PriorityClassChanged) -> None:
        item = delta.priority_class
        self._job_table.set_priority_class(item.metadata.name, item.value, is_default=bool(item.global_default))

    # --- queues -----------------------------------------------------------------------------------------------------

    def _apply_queue(self, obj: QueueObject) -> None:
        name = obj.metadata.name
        fresh, problem = queue_facts(obj, self.columns)
        ref = ObjectRef("Queue", "", name)
        self._invalid.note(ref, problem)
        known = self.queues.get(name)
        if known is not None:
            fresh.jobs, fresh.allocated, fresh.releasing = known.jobs, known.allocated, known.releasing
            if all(
                getattr(fresh, slot) == getattr(known, slot)
                for slot in type(fresh).__slots__
                if slot not in ("jobs", "allocated", "releasing")
            ):
                return
            for slot in type(fresh).__slots__:
                setattr(known, slot, getattr(fresh, slot))
        else:
            self.queues[name] = fresh
            self._job_table.adopt(name)
        self.changes.queues.add(name)

    def _drop_queue(self, name: str) -> None:
        queue = self.queues.pop(name, None)
        self._invalid.forget("Queue", "", name)
        if queue is None:
            return
        self._job_table.orphan(queue)
        self.changes.queues.add(name)


def _resolve_status(known: Task | None, facts: PodFacts, node_name: str) -> tuple[TaskStatus, str]:
    """Status and node after an update: those of the pod object, unless a binding or an eviction is in flight."""
    status = facts.status
    if status in COMPLETED_STATUSES:
        return status, ""
    if known is not None:
        here = known.node.name if known.node is not None else ""
        if not node_name and known.status in ALLOCATED_STATUSES and status is TaskStatus.PENDING:
            return known.status, here
        if known.status is TaskStatus.RELEASING and not known.deleting and status in _LIVE:
            return known.status, here
    return status, node_name
