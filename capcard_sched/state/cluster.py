"""The cluster as the scheduler knows it, changed only by deltas and by the scheduler's own placements (D2).

Every sum (job, queue and node amounts, counters per status) is kept exact at every change: a change first takes the
task's contribution out (`_leave`), then mutates it, then puts it back (`_enter`). The property tests rebuild all of
it from scratch and compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import Job
from capcard_sched.model.node import Node
from capcard_sched.model.pods import facts_of, template_of
from capcard_sched.model.quantity import QuantityError
from capcard_sched.model.resources import ResourceColumns
from capcard_sched.model.status import (
    ALLOCATED_STATUSES,
    COMPLETED_STATUSES,
    PLACED_STATUSES,
    PodGroupPhase,
    TaskStatus,
)
from capcard_sched.model.task import Task
from capcard_sched.state.classes import ClassTable
from capcard_sched.state.columns import NodeTable
from capcard_sched.state.intake import group_facts, node_facts, queue_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, QueueObject
    from capcard_sched.model.pods import PodFacts
    from capcard_sched.model.queue import Queue

    Kind = Literal["Pod", "PodGroup", "Queue", "Node"]

#: Groups made for pods that name none are called this plus a uid (controllers reference §2.2).
_AUTOMATIC_GROUP = "podgroup-"
#: The uid of a job that stands for pods without a group.
_IMPLICIT = "implicit"
#: How many label sets and classes that no pod has any more may stay, beyond as many as there are pods.
_SPARE = 1024
_NO_LABELS: Mapping[str, str] = {}
_BEST_EFFORT = len(TaskStatus)  # slot of pending best-effort tasks in the per-role counters


class Dirty:
    """What changed since the last session opened."""

    __slots__ = ("everything", "jobs", "nodes", "queues", "recount")

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        #: The next session is to look at everything, whenever there is one; no reason to open it.
        self.recount = False
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
        #: Of these, as of the last session's opening, the ones with something to do: not admitted yet, or with pending
        #: tasks. A superset inside a session.
        self.active: dict[str, Job] = {}
        #: Jobs with a PodGroup that names a queue nobody knows.
        self.orphans: dict[str, Job] = {}
        #: Objects that could not be read, with what is wrong.
        self.problems: dict[ObjectRef, str] = {}
        self._problem_refs: dict[tuple[str, str, str], ObjectRef] = {}
        self.dirty = Dirty(everything=True)
        #: Bindings of ours that the watch has shown since last asked: tasks that went from BINDING to a node.
        self.confirmed: list[Task] = []
        self._node_objects: dict[str, Node] = {}
        self._by_name: dict[str, dict[str, Task]] = {}
        self._label_sets: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._priority_classes: dict[str, tuple[int, bool]] = {}
        self._default_priority = 0
        self._width = self.columns.width
        #: Pods of ours that name no group, by uid: the queue each asks for. They make the jobs without PodGroup.
        self._groupless: dict[str, str] = {}
        #: The oldest of them in each job that has no PodGroup, by job key.
        self._oldest: dict[str, Task] = {}
        #: What evicted tasks were before, by uid, until the API server has answered.
        self._former: dict[str, TaskStatus] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            deltas.PodChanged: lambda delta: self._apply_pod(delta.pod),
            deltas.PodGone: lambda delta: self._drop_pod(delta.namespace, delta.name, delta.uid),
            deltas.NodeChanged: lambda delta: self._apply_node(delta.node),
            deltas.NodeGone: lambda delta: self._drop_node(delta.name),
            deltas.PodGroupChanged: lambda delta: self._apply_group(delta.group),
            deltas.PodGroupGone: lambda delta: self._drop_group(delta.namespace, delta.name, delta.uid),
            deltas.QueueChanged: lambda delta: self._apply_queue(delta.queue),
            deltas.QueueGone: lambda delta: self._drop_queue(delta.name),
            deltas.PriorityClassChanged: self._apply_priority_class,
            deltas.PriorityClassGone: self._drop_priority_class,
            deltas.BindFailed: self._bind_failed,
            deltas.EvictFailed: self._evict_failed,
        }

    # --- deltas -----------------------------------------------------------------------------------------------------

    def apply(self, delta: deltas.Delta) -> None:
        """Take in one fact. Never raises for bad content: the object is set aside in `problems`."""
        self._match_width()
        self._handlers[type(delta)](delta)

    def _apply_priority_class(self, delta: deltas.PriorityClassChanged) -> None:
        item = delta.priority_class
        self._priority_classes[item.metadata.name] = (item.value, bool(item.global_default))
        self._refresh_priorities()

    def _drop_priority_class(self, delta: deltas.PriorityClassGone) -> None:
        self._priority_classes.pop(delta.name, None)
        self._refresh_priorities()

    def _bind_failed(self, delta: deltas.BindFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.BINDING:
            self._move(task, TaskStatus.PENDING, None)

    def _evict_failed(self, delta: deltas.EvictFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.RELEASING and not task.deleting:
            self._move(task, self._former.pop(task.uid, TaskStatus.RUNNING), task.node)

    # --- pods -------------------------------------------------------------------------------------------------------

    def _apply_pod(self, pod: PodObject) -> None:
        meta = pod.metadata
        namespace, name, uid = meta.namespace or "default", meta.name, meta.uid
        known = self._by_name.get(namespace, {}).get(name)
        if known is not None and known.uid != uid:
            self._drop_pod(namespace, name, known.uid)
            known = None
        ours = (pod.spec.scheduler_name or "default-scheduler") in self.scheduler_names
        if known is None and not ours and not pod.spec.node_name:
            return
        ref = ObjectRef("Pod", namespace, name, uid)
        try:
            template = template_of(pod)
        except QuantityError as error:
            self._set_problem(ref, str(error))
            if known is not None:
                self._forget(known)
            return
        self._set_problem(ref, "")
        facts = facts_of(pod)
        cls = self.classes.intern(template, facts.class_annotations, facts.owner_kind, namespace)
        self._match_width()
        status, node_name = _settled(known, facts, pod.spec.node_name or "")
        own_group = f"{_AUTOMATIC_GROUP}{facts.controller_uid or uid}" if ours else ""
        group = facts.group_name or own_group
        job_key = f"{namespace}/{group}" if group else ""
        # The controllers write the name of the group they made for a pod into the pod: it still names none of its own.
        wanted_queue = facts.queue_name if ours and group == own_group else None
        labels = self._share(meta.labels or {})
        after = (
            cls, status, node_name, job_key, facts.role, facts.priority, facts.preemptable, facts.gated,
            facts.deleting, ours, facts.nominated_node, facts.assigned_card, labels, wanted_queue,
        )  # fmt: skip
        former_job: Job | None = None
        former_node: Node | None = None
        if known is not None:
            former_job, former_node = known.job, known.node
            before = (
                known.cls, known.status, known.node.name if known.node is not None else "",
                known.job.key if known.job is not None else "", known.role, known.priority, known.preemptable,
                known.gated, known.deleting, known.ours, known.nominated_node, known.assigned_card, known.labels,
                self._groupless.get(uid),
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
        task.node = self._node(node_name) if node_name else None
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
        task.job = (self.jobs.get(job_key) or self._new_job(job_key)) if job_key else None
        if wanted_queue is None:
            self._groupless.pop(uid, None)
        else:
            self._groupless[uid] = wanted_queue
        self._enter(task)
        self._drop_placeholder(former_node)
        if former_job is not None and former_job is not task.job:
            self._left_groupless(former_job, task)
        if task.job is not None:
            self._joined_groupless(task.job, task)

    def _drop_pod(self, namespace: str, name: str, uid: str) -> None:
        task = self._by_name.get(namespace, {}).get(name)
        if task is not None and (not uid or task.uid == uid):
            self._forget(task)
        self._clear_problem("Pod", namespace, name, uid)

    def _forget(self, task: Task) -> None:
        job, node = task.job, task.node
        self._leave(task)
        self._groupless.pop(task.uid, None)
        self._former.pop(task.uid, None)
        task.job, task.node = None, None
        del self.tasks[task.uid]
        named = self._by_name[task.namespace]
        del named[task.name]
        if not named:
            del self._by_name[task.namespace]
        self._drop_placeholder(node)
        if job is not None:
            self._left_groupless(job, task)

    # --- problems ---------------------------------------------------------------------------------------------------

    def _set_problem(self, ref: ObjectRef, problem: str) -> None:
        """What is wrong with an object now, "" for nothing; an earlier object of the name no longer counts."""
        if not problem and not self.problems:
            return
        name = (ref.kind, ref.namespace, ref.name)
        before = self._problem_refs.pop(name, None)
        if before is not None:
            del self.problems[before]
        if problem:
            self.problems[ref] = problem
            self._problem_refs[name] = ref

    def _clear_problem(self, kind: Kind, namespace: str, name: str, uid: str = "") -> None:
        """The object is gone; an empty uid means whichever has the name."""
        ref = self._problem_refs.get((kind, namespace, name))
        if ref is not None and (not uid or ref.uid == uid):
            self._set_problem(ref, "")

    def _share(self, labels: dict[str, str]) -> Mapping[str, str]:
        if not labels:
            return _NO_LABELS
        sets = self._label_sets
        if len(sets) > 2 * len(self.tasks) + _SPARE:
            self._label_sets = sets = {
                tuple(sorted(task.labels.items())): task.labels for task in self.tasks.values() if task.labels
            }
        return sets.setdefault(tuple(sorted(labels.items())), labels)

    # --- contributions of one task ----------------------------------------------------------------------------------

    def _leave(self, task: Task) -> None:
        self._contribute(task, -1)

    def _enter(self, task: Task) -> None:
        self._contribute(task, +1)

    def _contribute(self, task: Task, sign: int) -> None:
        """Add (+1) or take out (-1) everything a task means to its job, queue and node, at its present status."""
        if task.job is not None:
            self._contribute_to_job(task.job, task, sign)
        node = task.node
        if node is None:
            return
        if task.status in PLACED_STATUSES or task.status is TaskStatus.PIPELINED:
            if sign > 0:
                node.tasks[task.uid] = task
            else:
                del node.tasks[task.uid]
            self.dirty.nodes.add(node.name)
            if node.known:
                self._charge_row(node.row, task, sign)

    def _contribute_to_job(self, job: Job, task: Task, sign: int) -> None:
        status, cls = task.status, task.cls
        self.dirty.jobs.add(job.key)
        pending = status is TaskStatus.PENDING and not task.gated
        if sign > 0:
            job.tasks[task.uid] = task
            if pending:
                job.pending[task.uid] = task
        else:
            del job.tasks[task.uid]
            if pending:
                del job.pending[task.uid]
        job.counts[status] += sign
        pending_best_effort = status is TaskStatus.PENDING and cls.best_effort
        if pending_best_effort:
            job.pending_best_effort += sign
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

    def _charge_row(self, row: int, task: Task, sign: int) -> None:
        table, cls = self.nodes, task.cls
        if task.status is TaskStatus.PIPELINED:
            table.pipelined[row] += sign * cls.request
        else:
            table.charged[row] += sign * cls.charge
            table.total_used += sign * cls.request
            if task.status is TaskStatus.RELEASING:
                table.releasing[row] += sign * cls.request
        table.touch(row)

    def _move(self, task: Task, status: TaskStatus, node: Node | None) -> None:
        former = task.node
        self._leave(task)
        task.status, task.node = status, node
        self._enter(task)
        self._drop_placeholder(former)

    # --- placements, from statements --------------------------------------------------------------------------------

    def place(self, job: Job, tasks: list[Task], nodes: list[Node], status: TaskStatus) -> None:
        """Put pending tasks of one class on known nodes, as ALLOCATED or PIPELINED. Marks nothing dirty."""
        count = len(tasks)
        counts = job.counts
        counts[TaskStatus.PENDING] -= count
        counts[status] += count
        cls = tasks[0].cls
        pending = job.pending
        table = self.nodes
        request = cls.request
        allocated = status is TaskStatus.ALLOCATED
        target, amounts = (table.charged, cls.charge) if allocated else (table.pipelined, request)
        serial = table.serial = table.serial + 1
        stamps = table.stamps
        fills: dict[int, int] = {}
        for task, node in zip(tasks, nodes, strict=True):
            task.status = status
            task.node = node
            uid = task.uid
            node.tasks[uid] = task
            del pending[uid]
            row = node.row
            fills[row] = fills.get(row, 0) + 1
        for row, fill in fills.items():
            stamps[row] = serial
            target[row] += amounts if fill == 1 else amounts * fill
        if cls.best_effort:
            job.pending_best_effort -= count
        if job.min_task_member:
            self._shift_roles(job, tasks, TaskStatus.PENDING, status)
        if allocated:
            change = request if count == 1 else request * count
            table.total_used += change
            job.allocated += change
            queue = self._queue_of(job)
            if queue is not None:
                queue.allocated += change

    def unplace(self, job: Job, tasks: list[Task]) -> None:
        """Undo `place`: the tasks pend again."""
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

    def set_binding(self, job: Job, tasks: list[Task]) -> None:
        """ALLOCATED tasks become BINDING: the commit. Amounts stay as they are."""
        count = len(tasks)
        job.counts[TaskStatus.ALLOCATED] -= count
        job.counts[TaskStatus.BINDING] += count
        if job.min_task_member:
            self._shift_roles(job, tasks, TaskStatus.ALLOCATED, TaskStatus.BINDING)
        for task in tasks:
            task.status = TaskStatus.BINDING
        self.dirty.nodes.update([task.node.name for task in tasks if task.node is not None])
        self.dirty.jobs.add(job.key)
        self.dirty.queues.add(job.queue)

    def release(self, task: Task) -> TaskStatus:
        """A running or bound task starts to leave (eviction). Returns the former status for `unrelease`."""
        former = self._former[task.uid] = task.status
        self._move(task, TaskStatus.RELEASING, task.node)
        return former

    def unrelease(self, task: Task, former: TaskStatus) -> None:
        """Undo `release`."""
        self._former.pop(task.uid, None)
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

    def _drop_placeholder(self, node: Node | None) -> None:
        """Forget a node that no object and no task speaks of any more."""
        if node is not None and not node.known and not node.tasks:
            self._node_objects.pop(node.name, None)

    def _apply_node(self, obj: NodeObject) -> None:
        name = obj.metadata.name
        node = self._node(name)
        facts, problem = node_facts(obj)
        ref = ObjectRef("Node", "", name)
        self._set_problem(ref, problem)
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
        self.nodes.touch(node.row)
        self.dirty.nodes.add(name)

    def _drop_node(self, name: str) -> None:
        node = self._node_objects.get(name)
        self._clear_problem("Node", "", name)
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

    # Pods of ours that name no group form one of their own until its PodGroup appears under the same key. What it needs
    # to know comes from the oldest of them, whatever order they arrived in. Pods that name a missing PodGroup wait.

    def _joined_groupless(self, job: Job, task: Task) -> None:
        """Settle a job without PodGroup after a task of it came or changed; nothing for one that has a PodGroup."""
        if job.uid and not job.implicit:
            return
        oldest = self._oldest.get(job.key)
        if task.uid in self._groupless:
            if oldest is None or _age(task) <= _age(oldest):
                self._stand_in(job, task)
        elif oldest is task:
            self._find_oldest(job)

    def _left_groupless(self, job: Job, task: Task) -> None:
        """Settle a job without PodGroup after a task left it."""
        if job.uid and not job.implicit:
            return
        if not job.tasks:
            self._remove_job(job)
        elif self._oldest.get(job.key) is task:
            self._find_oldest(job)

    def _find_oldest(self, job: Job) -> None:
        groupless = [task for task in job.tasks.values() if task.uid in self._groupless]
        if groupless:
            self._stand_in(job, min(groupless, key=_age))
        else:
            self._make_invisible(job)

    def _stand_in(self, job: Job, oldest: Task) -> None:
        """Let the oldest of a job's tasks say what a PodGroup would."""
        if not job.implicit:
            job.uid = _IMPLICIT
            job.implicit = True
            job.min_available = 1
            job.min_resources, job.min_task_member, job.roles = None, {}, {}
            job.annotations, job.labels, job.owner_kinds = {}, {}, ()
            job.conditions, job.status_counts = (), (0, 0, 0)
        self._oldest[job.key] = oldest
        job.created = oldest.created
        job.priority_class_name = oldest.cls.priority_class_name
        job.priority = self._priority_of(job.priority_class_name)
        self._set_queue(job, self._groupless[oldest.uid] or self.default_queue)

    def _make_invisible(self, job: Job) -> None:
        """A job whose PodGroup nobody has seen: its tasks are counted, no session looks at it."""
        job.uid, job.implicit = "", False
        self._oldest.pop(job.key, None)
        self._detach(job)
        job.queue = ""
        self.schedulable.pop(job.key, None)
        self.orphans.pop(job.key, None)

    def _apply_group(self, obj: PodGroupObject) -> None:
        facts, problem = group_facts(obj, self.default_queue)
        ref = ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid)
        self._set_problem(ref, problem)
        key = f"{facts.namespace}/{facts.name}"
        job = self.jobs.get(key) or self._new_job(key)
        if job.uid == facts.uid and facts.matches(job):
            return
        taken_over = job.implicit
        self._oldest.pop(key, None)
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
        self._clear_problem("PodGroup", namespace, name, uid)
        job = self.jobs.get(f"{namespace}/{name}")
        if job is None or job.implicit or not job.uid or (uid and job.uid != uid):
            return
        self._make_invisible(job)
        self.dirty.jobs.add(job.key)
        if job.tasks:
            self._find_oldest(job)
        else:
            self._remove_job(job)

    def _remove_job(self, job: Job) -> None:
        self._detach(job)
        self._oldest.pop(job.key, None)
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
        self._set_problem(ref, problem)
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
        self._clear_problem("Queue", "", name)
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
        self._match_width()
        if len(self.classes) > 2 * len(self.tasks) + _SPARE:
            self.classes.prune({task.cls for task in self.tasks.values()})
        self.nodes.settle()
        dirty, self.dirty = self.dirty, Dirty()
        dirty.everything |= dirty.recount
        for key in dirty.jobs:
            job = self.schedulable.get(key)
            if job is not None and (job.pending or job.phase is PodGroupPhase.PENDING):
                self.active[key] = job
            else:
                self.active.pop(key, None)
        return dirty


def _settled(known: Task | None, facts: PodFacts, node_name: str) -> tuple[TaskStatus, str]:
    """Status and node after an update: what the pod says, unless we know of a binding or an eviction under way."""
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


def _age(task: Task) -> tuple[float, str]:
    return task.created, task.uid


_LIVE = frozenset({TaskStatus.PENDING, TaskStatus.BOUND, TaskStatus.RUNNING})
