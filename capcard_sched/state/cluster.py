"""The cluster as the scheduler knows it, changed only by deltas and by the scheduler's own placements (D2).

Every sum (job, queue and node amounts, counters per status) is kept exact at every change: a change first takes the
task's contribution out (`_leave`), then mutates it, then puts it back (`_enter`). The property tests rebuild all of
it from scratch and compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import Job
from capcard_sched.model.node import Node
from capcard_sched.model.pods import facts_of, template_of
from capcard_sched.model.quantity import QuantityError
from capcard_sched.model.resources import ResourceColumns
from capcard_sched.model.status import ALLOCATED_STATUSES, PLACED_STATUSES, TaskStatus
from capcard_sched.model.task import Task
from capcard_sched.state.classes import ClassTable
from capcard_sched.state.columns import NodeTable
from capcard_sched.state.intake import group_facts, node_facts, queue_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, QueueObject
    from capcard_sched.model.queue import Queue

#: Groups made for pods that name none are called this plus a uid (controllers reference §2.2).
_AUTOMATIC_GROUP = "podgroup-"
_BEST_EFFORT = len(TaskStatus)  # slot of pending best-effort tasks in the per-role counters


class Dirty:
    """What changed since the last session opened."""

    __slots__ = ("everything", "jobs", "nodes", "queues")

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        self.jobs: set[str] = set()
        self.queues: set[str] = set()
        self.nodes: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.everything or self.jobs or self.queues or self.nodes)


class ClusterState:
    """Nodes, tasks, jobs and queues. `apply` takes deltas in any order; placements go through `place` and `unplace`."""

    def __init__(self, scheduler_names: Iterable[str], default_queue: str) -> None:
        self.scheduler_names = frozenset(scheduler_names)
        self.default_queue = default_queue
        self.columns = ResourceColumns()
        self.nodes = NodeTable(self.columns.width)
        self.classes = ClassTable(self.columns)
        self.tasks: dict[str, Task] = {}
        #: All jobs by key, those without PodGroup included.
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Queue] = {}
        #: Jobs that a session may look at: PodGroup seen (or implicit) and queue known.
        self.schedulable: dict[str, Job] = {}
        #: Jobs with a PodGroup that names a queue nobody knows.
        self.orphans: dict[str, Job] = {}
        #: Objects that could not be read, with what is wrong.
        self.problems: dict[ObjectRef, str] = {}
        self.dirty = Dirty(everything=True)
        #: Bindings of ours that the watch has shown since last asked: tasks that went from BINDING to a node.
        self.confirmed: list[Task] = []
        self._node_objects: dict[str, Node] = {}
        self._by_name: dict[str, dict[str, Task]] = {}
        self._label_sets: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._priority_classes: dict[str, tuple[int, bool]] = {}
        self._default_priority = 0
        self._width = self.columns.width

    # --- deltas -----------------------------------------------------------------------------------------------------

    def apply(self, delta: deltas.Delta) -> None:
        """Take in one fact. Never raises for bad content: the object is set aside in `problems`."""
        match delta:
            case deltas.PodChanged(pod):
                self._apply_pod(pod)
            case deltas.NodeChanged(node):
                self._apply_node(node)
            case deltas.PodGroupChanged(group):
                self._apply_group(group)
            case deltas.QueueChanged(queue):
                self._apply_queue(queue)
            case deltas.PodGone(namespace, name, uid):
                self._drop_pod(namespace, name, uid)
            case deltas.NodeGone(name):
                self._drop_node(name)
            case deltas.PodGroupGone(namespace, name, uid):
                self._drop_group(namespace, name, uid)
            case deltas.QueueGone(name):
                self._drop_queue(name)
            case deltas.PriorityClassChanged(item):
                self._priority_classes[item.metadata.name] = (item.value, bool(item.global_default))
                self._refresh_priorities()
            case deltas.PriorityClassGone(name):
                self._priority_classes.pop(name, None)
                self._refresh_priorities()
            case deltas.BindFailed(_, _, uid, _):
                task = self.tasks.get(uid)
                if task is not None and task.status is TaskStatus.BINDING:
                    self._move(task, TaskStatus.PENDING, None)
            case deltas.EvictFailed(_, _, uid, _):
                task = self.tasks.get(uid)
                if task is not None and task.status is TaskStatus.RELEASING and not task.deleting:
                    self._move(task, TaskStatus.RUNNING, task.node)

    # --- pods -------------------------------------------------------------------------------------------------------

    def _apply_pod(self, pod: PodObject) -> None:
        meta = pod.metadata
        namespace, name, uid = meta.namespace or "default", meta.name, meta.uid
        known = self._by_name.get(namespace, {}).get(name)
        if known is not None and known.uid != uid:
            self._forget(known)
            known = None
        ours = (pod.spec.scheduler_name or "default-scheduler") in self.scheduler_names
        if known is None and not ours and not pod.spec.node_name:
            return
        ref = ObjectRef("Pod", namespace, name, uid)
        try:
            template = template_of(pod)
        except QuantityError as error:
            self.problems[ref] = str(error)
            if known is not None:
                self._forget(known)
            return
        self.problems.pop(ref, None)
        facts = facts_of(pod)
        cls = self.classes.intern(template, facts.class_annotations, facts.owner_kind, namespace)
        self._match_width()
        status, node_name = facts.status, pod.spec.node_name or ""
        if known is not None and not node_name and known.status in ALLOCATED_STATUSES and status is TaskStatus.PENDING:
            status, node_name = known.status, known.node.name if known.node is not None else ""
        group = facts.group_name or (f"{_AUTOMATIC_GROUP}{facts.controller_uid or uid}" if ours else "")
        labels = self._share(meta.labels or {})
        after = (
            cls, status, node_name, f"{namespace}/{group}" if group else "", facts.role, facts.priority,
            facts.preemptable, facts.gated, facts.deleting, ours, facts.nominated_node, facts.assigned_card, labels,
        )  # fmt: skip
        if known is not None:
            before = (
                known.cls, known.status, known.node.name if known.node is not None else "",
                known.job.key if known.job is not None else "", known.role, known.priority, known.preemptable,
                known.gated, known.deleting, known.ours, known.nominated_node, known.assigned_card, known.labels,
            )  # fmt: skip
            if before == after:
                return
            if known.status is TaskStatus.BINDING and status in (TaskStatus.BOUND, TaskStatus.RUNNING):
                self.confirmed.append(known)
            self._leave(known)
            task = known
        else:
            task = Task(uid, namespace, name, cls)
            self.tasks[uid] = task
            self._by_name.setdefault(namespace, {})[name] = task
        task.cls = cls
        task.status = status
        task.node = self._node(node_name) if node_name and status not in _ENDED else None
        task.role = facts.role
        task.priority = facts.priority
        task.preemptable = facts.preemptable
        task.gated = facts.gated
        task.deleting = facts.deleting
        task.ours = ours
        task.created = facts.created
        task.started = facts.started
        task.index = facts.index
        task.nominated_node = facts.nominated_node
        task.assigned_card = facts.assigned_card
        task.labels = labels
        job_key = after[3]
        if job_key:
            job = self.jobs.get(job_key) or self._new_job(job_key)
            if not facts.group_name and not job.uid:
                self._make_implicit(job, facts.queue_name, facts.created, template.priority_class_name)
            task.job = job
        self._enter(task)
        if known is not None and task.job is None:
            self._collect_garbage()

    def _drop_pod(self, namespace: str, name: str, uid: str) -> None:
        task = self._by_name.get(namespace, {}).get(name)
        if task is not None and (not uid or task.uid == uid):
            self._forget(task)
        self.problems.pop(ObjectRef("Pod", namespace, name, uid), None)

    def _forget(self, task: Task) -> None:
        job = task.job
        self._leave(task)
        task.job, task.node = None, None
        del self.tasks[task.uid]
        named = self._by_name[task.namespace]
        del named[task.name]
        if not named:
            del self._by_name[task.namespace]
        if job is not None and not job.tasks and (not job.uid or job.implicit):
            self._remove_job(job)

    def _collect_garbage(self) -> None:
        for job in [job for job in self.jobs.values() if not job.tasks and (not job.uid or job.implicit)]:
            self._remove_job(job)

    def _share(self, labels: dict[str, str]) -> Mapping[str, str]:
        if not labels:
            return {}
        return self._label_sets.setdefault(tuple(sorted(labels.items())), labels)

    # --- contributions of one task ----------------------------------------------------------------------------------

    def _leave(self, task: Task) -> None:
        self._contribute(task, -1)

    def _enter(self, task: Task) -> None:
        self._contribute(task, +1)

    def _contribute(self, task: Task, sign: int) -> None:
        """Add (+1) or take out (-1) everything a task means to its job, queue and node, at its present status."""
        status, cls, job, node = task.status, task.cls, task.job, task.node
        if job is not None:
            self.dirty.jobs.add(job.key)
            if sign > 0:
                job.tasks[task.uid] = task
            else:
                del job.tasks[task.uid]
            job.counts[status] += sign
            pending_best_effort = status is TaskStatus.PENDING and cls.best_effort
            if pending_best_effort:
                job.pending_best_effort += sign
            if status is TaskStatus.PENDING and not task.gated:
                if sign > 0:
                    job.pending[task.uid] = task
                else:
                    del job.pending[task.uid]
            if job.min_task_member:
                role = job.roles.setdefault(task.role, [0] * (_BEST_EFFORT + 1))
                role[status] += sign
                if pending_best_effort:
                    role[_BEST_EFFORT] += sign
            change = cls.request if sign > 0 else -cls.request
            job.total_request += change
            if status in ALLOCATED_STATUSES:
                job.allocated += change
                queue = self._queue_of(job)
                if queue is not None:
                    queue.allocated += change
                    self.dirty.queues.add(queue.name)
        if node is not None:
            if status in PLACED_STATUSES or status is TaskStatus.PIPELINED:
                if sign > 0:
                    node.tasks[task.uid] = task
                else:
                    del node.tasks[task.uid]
                self.dirty.nodes.add(node.name)
                if node.known:
                    self._charge_row(node.row, task, sign)
            if sign < 0 and not node.known and not node.tasks:
                self._node_objects.pop(node.name, None)

    def _charge_row(self, row: int, task: Task, sign: int) -> None:
        table, cls = self.nodes, task.cls
        change = cls.request if sign > 0 else -cls.request
        if task.status is TaskStatus.PIPELINED:
            table.pipelined[row] += change
        else:
            table.used[row] += change
            table.total_used += change
            table.nonzero_used[row, 0] += sign * cls.nonzero_cpu_milli
            table.nonzero_used[row, 1] += sign * cls.nonzero_memory_bytes
            if task.status is TaskStatus.RELEASING:
                table.releasing[row] += change
        table.touched.append(row)

    def _move(self, task: Task, status: TaskStatus, node: Node | None) -> None:
        self._leave(task)
        task.status, task.node = status, node
        self._enter(task)

    # --- placements, from statements --------------------------------------------------------------------------------

    def place(self, job: Job, tasks: list[Task], nodes: list[Node], status: TaskStatus) -> None:
        """Put pending tasks of one class on known nodes, as ALLOCATED or PIPELINED. Not marked dirty: see `mark`."""
        count = len(tasks)
        counts = job.counts
        counts[TaskStatus.PENDING] -= count
        counts[status] += count
        cls = tasks[0].cls
        pending = job.pending
        table = self.nodes
        request = cls.request
        target = table.used if status is TaskStatus.ALLOCATED else table.pipelined
        nonzero = (cls.nonzero_cpu_milli, cls.nonzero_memory_bytes)
        touched = table.touched
        fills: dict[int, int] = {}
        for task, node in zip(tasks, nodes, strict=True):
            task.status = status
            task.node = node
            uid = task.uid
            node.tasks[uid] = task
            del pending[uid]
            row = node.row
            fills[row] = fills.get(row, 0) + 1
        nonzero_used = table.nonzero_used
        for row, fill in fills.items():
            touched.append(row)
            target[row] += request if fill == 1 else request * fill
            if status is TaskStatus.ALLOCATED:
                nonzero_used[row, 0] += nonzero[0] * fill
                nonzero_used[row, 1] += nonzero[1] * fill
        if cls.best_effort:
            job.pending_best_effort -= count
        if job.min_task_member:
            self._shift_roles(job, tasks, TaskStatus.PENDING, status)
        if status is TaskStatus.ALLOCATED:
            change = request if count == 1 else request * count
            table.total_used += change
            job.allocated += change
            queue = self._queue_of(job)
            if queue is not None:
                queue.allocated += change

    def unplace(self, job: Job, tasks: list[Task]) -> None:
        """Undo `place`: the tasks pend again."""
        table = self.nodes
        for task in reversed(tasks):
            status, cls, node = task.status, task.cls, task.node
            assert node is not None, task
            job.counts[status] -= 1
            job.counts[TaskStatus.PENDING] += 1
            del node.tasks[task.uid]
            if node.known:
                self._charge_row(node.row, task, -1)
            if status in ALLOCATED_STATUSES:
                job.allocated -= cls.request
                queue = self._queue_of(job)
                if queue is not None:
                    queue.allocated -= cls.request
            if cls.best_effort:
                job.pending_best_effort += 1
            if job.min_task_member:
                self._shift_roles(job, [task], status, TaskStatus.PENDING)
            task.status, task.node = TaskStatus.PENDING, None
            job.pending[task.uid] = task
        del table

    def set_binding(self, job: Job, tasks: list[Task]) -> None:
        """ALLOCATED tasks become BINDING: the commit. Amounts stay as they are."""
        count = len(tasks)
        job.counts[TaskStatus.ALLOCATED] -= count
        job.counts[TaskStatus.BINDING] += count
        if job.min_task_member:
            self._shift_roles(job, tasks, TaskStatus.ALLOCATED, TaskStatus.BINDING)
        nodes = self.dirty.nodes
        for task in tasks:
            task.status = TaskStatus.BINDING
            nodes.add(task.node.name)  # type: ignore[union-attr]
        self.dirty.jobs.add(job.key)
        self.dirty.queues.add(job.queue)

    def release(self, task: Task) -> TaskStatus:
        """A running or bound task starts to leave (eviction). Returns the former status for `unrelease`."""
        former = task.status
        self._move(task, TaskStatus.RELEASING, task.node)
        return former

    def unrelease(self, task: Task, former: TaskStatus) -> None:
        """Undo `release`."""
        self._move(task, former, task.node)

    def _shift_roles(self, job: Job, tasks: list[Task], before: TaskStatus, after: TaskStatus) -> None:
        for task in tasks:
            role = job.roles.setdefault(task.role, [0] * (_BEST_EFFORT + 1))
            role[before] -= 1
            role[after] += 1
            if task.cls.best_effort:
                role[_BEST_EFFORT] += (after is TaskStatus.PENDING) - (before is TaskStatus.PENDING)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        node = self._node_objects.get(name)
        if node is None:
            node = self._node_objects[name] = Node(name)
        return node

    def _apply_node(self, obj: NodeObject) -> None:
        name = obj.metadata.name
        node = self._node(name)
        facts, problem = node_facts(obj)
        ref = ObjectRef("Node", "", name)
        if problem:
            self.problems[ref] = problem
        else:
            self.problems.pop(ref, None)
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
                self._charge_row(node.row, task, +1)
        node.generation += 1
        self.nodes.generation += 1
        self.nodes.touched.append(node.row)
        self.dirty.nodes.add(name)

    def _drop_node(self, name: str) -> None:
        node = self._node_objects.get(name)
        self.problems.pop(ObjectRef("Node", "", name), None)
        if node is None or not node.known:
            return
        self.nodes.remove(node)
        node.known = False
        node.labels, node.annotations, node.allocatable, node.taints = {}, {}, {}, ()
        node.generation += 1
        self.nodes.generation += 1
        self.dirty.nodes.add(name)
        if not node.tasks:
            del self._node_objects[name]

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _new_job(self, key: str) -> Job:
        job = self.jobs[key] = Job(key, self.columns.zeros(), self.columns.zeros())
        return job

    def _make_implicit(self, job: Job, queue_name: str, created: float, priority_class: str) -> None:
        """A pod of ours that names no group is a group of its own until its PodGroup appears under the same key."""
        job.uid = "implicit"
        job.implicit = True
        job.min_available = 1
        job.created = created
        job.priority_class_name = priority_class
        self._set_queue(job, queue_name or self.default_queue)
        job.priority = self._priority_of(priority_class)

    def _apply_group(self, obj: PodGroupObject) -> None:
        facts, problem = group_facts(obj, self.default_queue)
        ref = ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid)
        if problem:
            self.problems[ref] = problem
        else:
            self.problems.pop(ref, None)
        key = f"{facts.namespace}/{facts.name}"
        job = self.jobs.get(key) or self._new_job(key)
        if job.uid == facts.uid and facts.matches(job):
            return
        taken_over = job.implicit
        job.uid = facts.uid
        job.implicit = False
        job.created = facts.created
        job.min_available = facts.min_member
        job.min_resources = facts.min_resources
        job.annotations = facts.annotations
        job.labels = facts.labels
        job.owner_kinds = facts.owner_kinds
        job.conditions = facts.conditions
        job.status_counts = facts.status_counts
        job.priority_class_name = facts.priority_class_name
        job.priority = self._priority_of(facts.priority_class_name)
        if not taken_over or facts.phase is not job.phase.PENDING:
            job.phase = facts.phase
        if facts.min_task_member != job.min_task_member:
            job.min_task_member = facts.min_task_member
            self._recount_roles(job)
        self._set_queue(job, facts.queue)
        self.dirty.jobs.add(key)

    def _recount_roles(self, job: Job) -> None:
        job.roles = {}
        if not job.min_task_member:
            return
        for task in job.tasks.values():
            role = job.roles.setdefault(task.role, [0] * (_BEST_EFFORT + 1))
            role[task.status] += 1
            if task.status is TaskStatus.PENDING and task.cls.best_effort:
                role[_BEST_EFFORT] += 1

    def _drop_group(self, namespace: str, name: str, uid: str) -> None:
        job = self.jobs.get(f"{namespace}/{name}")
        if job is None or job.implicit or (uid and job.uid != uid):
            return
        job.uid = ""
        self.schedulable.pop(job.key, None)
        self.orphans.pop(job.key, None)
        self._detach(job)
        self.problems.pop(ObjectRef("PodGroup", namespace, name, uid), None)
        self.dirty.jobs.add(job.key)
        if not job.tasks:
            self._remove_job(job)
        else:
            self._revive_implicit(job)

    def _revive_implicit(self, job: Job) -> None:
        """Pods that named no group keep being scheduled when the group made for them goes."""
        first = min(job.tasks.values(), key=lambda task: (task.created, task.uid))
        queue, job.queue = job.queue, ""
        if job.name.startswith(_AUTOMATIC_GROUP) and all(task.ours for task in job.tasks.values()):
            self._make_implicit(job, queue, first.created, first.cls.priority_class_name)

    def _remove_job(self, job: Job) -> None:
        self._detach(job)
        self.jobs.pop(job.key, None)
        self.schedulable.pop(job.key, None)
        self.orphans.pop(job.key, None)
        self.dirty.jobs.add(job.key)

    def _detach(self, job: Job) -> None:
        queue = self.queues.get(job.queue)
        if queue is not None and queue.jobs.pop(job.key, None) is not None:
            queue.allocated -= job.allocated
            self.dirty.queues.add(queue.name)

    def _set_queue(self, job: Job, name: str) -> None:
        if job.queue != name:
            self._detach(job)
            job.queue = name
        queue = self.queues.get(name)
        if queue is None:
            self.schedulable.pop(job.key, None)
            self.orphans[job.key] = job
            return
        if job.key not in queue.jobs:
            queue.jobs[job.key] = job
            queue.allocated += job.allocated
            self.dirty.queues.add(name)
        self.orphans.pop(job.key, None)
        self.schedulable[job.key] = job
        self.dirty.jobs.add(job.key)

    def _queue_of(self, job: Job) -> Queue | None:
        queue = self.queues.get(job.queue)
        return queue if queue is not None and job.key in queue.jobs else None

    def _priority_of(self, class_name: str) -> int:
        found = self._priority_classes.get(class_name)
        return found[0] if found is not None else self._default_priority

    def _refresh_priorities(self) -> None:
        defaults = [value for value, is_default in self._priority_classes.values() if is_default]
        self._default_priority = max(defaults, default=0)
        for job in self.jobs.values():
            priority = self._priority_of(job.priority_class_name)
            if priority != job.priority:
                job.priority = priority
                self.dirty.jobs.add(job.key)

    # --- queues -----------------------------------------------------------------------------------------------------

    def _apply_queue(self, obj: QueueObject) -> None:
        name = obj.metadata.name
        fresh, problem = queue_facts(obj, self.columns.zeros())
        ref = ObjectRef("Queue", "", name)
        if problem:
            self.problems[ref] = problem
        else:
            self.problems.pop(ref, None)
        known = self.queues.get(name)
        if known is not None:
            fresh.jobs, fresh.allocated = known.jobs, known.allocated
            if all(
                getattr(fresh, slot) == getattr(known, slot)
                for slot in type(fresh).__slots__
                if slot not in ("jobs", "allocated")
            ):
                return
            for slot in type(fresh).__slots__:
                setattr(known, slot, getattr(fresh, slot))
        else:
            self.queues[name] = fresh
            for job in [job for job in self.orphans.values() if job.queue == name]:
                self._set_queue(job, name)
        self.dirty.queues.add(name)

    def _drop_queue(self, name: str) -> None:
        queue = self.queues.pop(name, None)
        self.problems.pop(ObjectRef("Queue", "", name), None)
        if queue is None:
            return
        for job in queue.jobs.values():
            self.schedulable.pop(job.key, None)
            self.orphans[job.key] = job
            self.dirty.jobs.add(job.key)
        self.dirty.queues.add(name)

    # --- columns ----------------------------------------------------------------------------------------------------

    def _match_width(self) -> None:
        """Pad every vector and matrix when resource columns were added beyond the present width."""
        width = self.columns.width
        if width == self._width:
            return
        self._width = width
        self.nodes.widen(width)
        self.classes.widen()
        for job in self.jobs.values():
            job.allocated = self.columns.fit(job.allocated)
            job.total_request = self.columns.fit(job.total_request)
        for queue in self.queues.values():
            queue.allocated = self.columns.fit(queue.allocated)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def open_session(self) -> Dirty:
        """Settle the rows, hand over what changed, and start collecting anew."""
        self.nodes.settle()
        self.nodes.touched.clear()
        dirty, self.dirty = self.dirty, Dirty()
        return dirty


_ENDED = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})
