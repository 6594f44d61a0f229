"""Sums over tasks: amounts of jobs, queues and nodes, and counters per status.

Every sum is exact at every change: a change subtracts the task's contribution, mutates the task, and adds the
contribution again. `add_alike`, `place`, `unplace` and `set_binding` update a run of tasks at once, to the same sums.
The property tests rebuild all sums from scratch and compare.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import numpy as np

from capcard_sched.model.job import NO_ENTRIES
from capcard_sched.model.status import (
    ALLOCATED,
    ALLOCATED_STATUSES,
    BINDING,
    BOUND_STATUSES,
    PENDING,
    PIPELINED,
    PLACED_STATUSES,
    RELEASING,
    TaskStatus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.columns import NodeTable

#: Rows. Above this number, one array operation charges all rows.
_FEW_ROWS = 3
#: Statuses of tasks on a node that do not leave it.
_STAYING = ALLOCATED_STATUSES & BOUND_STATUSES
_BEST_EFFORT = len(TaskStatus)  # index of pending best-effort tasks in the per-role counters


class Accounting:
    """The only writer of the sums over tasks, and of status and node of existing tasks."""

    def __init__(
        self,
        nodes: NodeTable,
        queues: Mapping[str, Queue],
        deleted_queues: Mapping[str, Queue],
        changes: Changes,
    ) -> None:
        self._nodes = nodes
        self._queues = queues
        self._deleted_queues = deleted_queues
        self._changes = changes
        #: Status of evicted tasks before the eviction, by uid, until the API server responds.
        self._former: dict[str, TaskStatus] = {}
        #: By key of a job: allocated amounts of resources without a column, in base units.
        self.unoffered: dict[str, Counter[str]] = {}

    def add(self, task: Task) -> None:
        """Add the task's contribution at its present status."""
        self._contribute(task, +1)

    def add_alike(self, tasks: Sequence[Task]) -> None:
        """Add the contributions of tasks of one job, class and status that are gated and held alike."""
        first = tasks[0]
        if first.job is not None:
            self._contribute_to_job(first.job, tasks, +1)
        if first.status not in PLACED_STATUSES:
            return
        fills: dict[int, int] = {}
        for task in tasks:
            node = task.node
            if node is not None:
                node.tasks[task.uid] = task
                self._changes.nodes.add(node.name)
                if node.known:
                    fills[node.row] = fills.get(node.row, 0) + 1
        if fills:
            table, cls = self._nodes, first.cls
            self._fill_rows(fills, table.charged, cls.charge)
            if first.status is RELEASING:
                self._fill_rows(fills, table.releasing, cls.request)
            table.total_used += cls.request * sum(fills.values())

    def subtract(self, task: Task) -> None:
        """Subtract the contribution that `add` added, before the task changes."""
        self._contribute(task, -1)

    def remove(self, task: Task) -> None:
        """Subtract the contribution of a task that is deleted."""
        self._contribute(task, -1)
        self._former.pop(task.uid, None)

    def move(self, task: Task, status: TaskStatus, node: Node | None) -> None:
        """Change status and node of the task."""
        self._contribute(task, -1)
        task.status, task.node = status, node
        self._contribute(task, +1)

    def confirm(self, task: Task) -> bool:
        """The binding of a pod is done: BINDING becomes BOUND on the same node, and the sums over charges stay.

        As `subtract` before and `add` after it, which take three times as long. False, without a change, for a pod of
        which other facts count, too: its role, or the labels that name its subgroup.
        """
        job, node = task.job, task.node
        if node is None or (job is not None and (job.min_task_member or job.groups is not None)) or task.cls.unoffered:
            return False
        task.status = TaskStatus.BOUND
        if job is not None:
            self._changes.jobs.add(job.key)
            job.tasks[task.uid] = job.tasks.pop(task.uid)
            job.counts[TaskStatus.BINDING] -= 1
            job.counts[TaskStatus.BOUND] += 1
            queue = self._queue_of(job)
            if queue is not None:
                self._changes.queues.add(queue.name)
        node.tasks[task.uid] = node.tasks.pop(task.uid)
        self._changes.nodes.add(node.name)
        if node.known:
            self._nodes.touch(node.row)
        return True

    def hold(self, task: Task, *, held: bool) -> None:
        """Exclude a task from placement during its backoff, or include it again."""
        self._contribute(task, -1)
        task.held = held
        self._contribute(task, +1)

    def charge_row(self, row: int, task: Task, sign: int) -> None:
        """Add (+1) the task's amounts to the row of its node, or subtract (-1) them."""
        table, cls = self._nodes, task.cls
        change = np.add if sign > 0 else np.subtract
        if task.status is PIPELINED:
            change(amounts := table.pipelined[row], cls.request, amounts)
        else:
            change(amounts := table.charged[row], cls.charge, amounts)
            change(amounts := table.total_used, cls.request, amounts)
            if task.status is RELEASING:
                change(amounts := table.releasing[row], cls.request, amounts)
        table.touch(row)

    def _contribute(self, task: Task, sign: int) -> None:
        """Add (+1) or subtract (-1) the task's contribution to job, queue and node at its present status."""
        if task.job is not None:
            self._contribute_to_job(task.job, (task,), sign)
        node = task.node
        if node is None:
            return
        if task.status in PLACED_STATUSES or task.status is PIPELINED:
            if sign > 0:
                node.tasks[task.uid] = task
            else:
                del node.tasks[task.uid]
            self._changes.nodes.add(node.name)
            if node.known:
                self.charge_row(node.row, task, sign)

    def _contribute_to_job(self, job: Job, tasks: Sequence[Task], sign: int) -> None:
        """The same for the job of tasks that are alike, as in `add_alike`."""
        first, count = tasks[0], sign * len(tasks)
        status, cls = first.status, first.cls
        self._changes.jobs.add(job.key)
        if sign > 0:
            _join(job, tasks)
        else:
            _leave(job, tasks)
        job.counts[status] += count
        if status is PENDING and cls.best_effort and not first.gated:
            job.pending_best_effort += count
        if job.min_task_member or job.groups is not None:
            for task in tasks:
                _count_member(job, task, sign)
        # Vectors of jobs are replaced, never changed in place: jobs without usage, or with equal pods, share them.
        job.total_request = cls.changed_sum(job.total_request, len(job.tasks) - count, count)
        bound = status in BOUND_STATUSES and first.node is not None
        if bound:
            job.bound += count
            if cls.unoffered:
                self._count_unoffered(job, cls, count)
        if status in ALLOCATED_STATUSES:
            self._charge(job, cls, count, releasing=False)
        elif bound:
            self._charge(job, cls, count, releasing=True)

    def _charge(self, job: Job, cls: TaskClass, count: int, *, releasing: bool) -> None:
        """Adds the amounts of `count` tasks to those allocated or releasing, of a job and of its queue."""
        queue, change = self._queue_of(job), cls.request_of(count)
        if releasing:
            job.releasing = job.releasing + change
        else:
            job.allocated = cls.changed_sum(job.allocated, job.allocated_tasks - count, count)
        if queue is not None:
            amounts = queue.releasing if releasing else queue.allocated
            amounts += change
            self._changes.queues.add(queue.name)

    def _count_unoffered(self, job: Job, cls: TaskClass, count: int) -> None:
        """Add the requests of `count` bound pods, below 0 to subtract: of nodes that are gone, or stopped offering."""
        amounts = self.unoffered.setdefault(job.key, Counter())
        amounts.update({name: count * cls.requests[name] for name in cls.unoffered})
        if count < 0:
            amounts = self.unoffered[job.key] = +amounts
            if not amounts:
                del self.unoffered[job.key]

    def _queue_of(self, job: Job) -> Queue | None:
        queue = self._queues.get(job.queue) or self._deleted_queues.get(job.queue)
        return queue if queue is not None and job.key in queue.jobs else None

    def place(self, job: Job, tasks: list[Task], nodes: list[Node], status: TaskStatus) -> None:
        """Put pending tasks of one class on known nodes, as ALLOCATED or PIPELINED. Marks no change.

        On a node that is not known only the amounts of the job and its queue change.
        """
        count = len(tasks)
        counts = job.counts
        counts[PENDING] -= count
        counts[status] += count
        cls = tasks[0].cls
        table = self._nodes
        request = cls.request
        allocated = status is ALLOCATED
        target, amounts = (table.charged, cls.charge) if allocated else (table.pipelined, request)
        rows = [node.row for node in nodes if node.known]
        fills = dict.fromkeys(rows, 1)
        for row in fills if len(fills) < count else ():
            fills[row] = rows.count(row)
        for task, node in zip(tasks, nodes, strict=True):
            task.status = status
            task.node = node
            node.tasks[task.uid] = task
        if count == len(job.pending):
            job.pending = NO_ENTRIES
        else:
            job.pending = _without(dict(job.tasks) if job.pending is job.tasks else job.pending, tasks)
        if rows:
            self._fill_rows(fills, target, amounts)
        if cls.best_effort:
            job.pending_best_effort -= count
        if job.min_task_member or job.groups is not None:
            _shift_members(job, tasks, PENDING, status)
        if allocated:
            change = cls.request_of(count)
            if rows:
                table.total_used += change
            job.allocated = cls.changed_sum(job.allocated, job.allocated_tasks - count, count)
            queue = self._queue_of(job)
            if queue is not None:
                queue.allocated += change

    def _fill_rows(self, fills: dict[int, int], target: Matrix, amounts: Vector) -> None:
        """Add to each row the amounts as often as `fills` has it."""
        table = self._nodes
        serial = table.serial = table.serial + 1
        stamps = table.stamps
        if len(fills) > _FEW_ROWS and len(fills) == sum(fills.values()):
            rows = np.array([*fills], dtype=np.intp)
            stamps[rows] = serial
            charged = target.take(rows, axis=0)
            charged += amounts
            target[rows] = charged
        else:
            for row, fill in fills.items():
                stamps[row] = serial
                target[row] += amounts if fill == 1 else amounts * fill

    def unplace(self, job: Job, tasks: list[Task]) -> None:
        """Undo `place`: the tasks are pending again."""
        for task in reversed(tasks):
            status, cls, node = task.status, task.cls, task.node
            assert node is not None, task
            job.counts[status] -= 1
            job.counts[PENDING] += 1
            del node.tasks[task.uid]
            if node.known:
                self.charge_row(node.row, task, -1)
            if status in ALLOCATED_STATUSES:
                job.allocated = cls.changed_sum(job.allocated, job.allocated_tasks + 1, -1)
                queue = self._queue_of(job)
                if queue is not None:
                    queue.allocated -= cls.request
            if cls.best_effort:
                job.pending_best_effort += 1
            if job.min_task_member or job.groups is not None:
                _shift_members(job, [task], status, PENDING)
            task.status, task.node = PENDING, None
            job.pending = _with(job.pending, (task,))

    def set_binding(self, job: Job, tasks: list[Task]) -> None:
        """Commit: ALLOCATED tasks become BINDING. Amounts do not change."""
        count = len(tasks)
        job.counts[ALLOCATED] -= count
        job.counts[BINDING] += count
        job.bound += count
        if job.min_task_member or job.groups is not None:
            _shift_members(job, tasks, ALLOCATED, BINDING)
        mark = self._changes.nodes.add
        for task in tasks:
            task.status = BINDING
            if task.node is not None:
                mark(task.node.name)
        self._changes.jobs.add(job.key)
        self._changes.queues.add(job.queue)

    def release(self, task: Task) -> TaskStatus:
        """Evict a running or bound task: it becomes RELEASING. Returns the former status for `unrelease`."""
        former = self._former[task.uid] = task.status
        self._turn(task, RELEASING)
        return former

    def unrelease(self, task: Task, former: TaskStatus) -> None:
        self._former.pop(task.uid, None)
        self._turn(task, former)

    def _turn(self, task: Task, status: TaskStatus) -> None:
        """`move` of a task that stays on its node and begins to leave, or stays after all: few sums change."""
        job, node, before, request = task.job, task.node, task.status, task.cls.request
        leaves = status is RELEASING
        few = (before if leaves else status) in _STAYING and (leaves or before is RELEASING)
        if job is None or node is None or task.cls.unoffered or not few:
            self.move(task, status, node)
            return
        for tasks in (job.tasks, node.tasks):  # it becomes the last one, as by `move`
            tasks[task.uid] = tasks.pop(task.uid)
        counted = bool(job.min_task_member) or job.groups is not None
        if counted:
            _count_member(job, task, -1)
        job.counts[before] -= 1
        job.counts[status] += 1
        task.status = status
        if counted:
            _count_member(job, task, +1)
        change = request if leaves else -request
        job.allocated, job.releasing = job.allocated - change, job.releasing + change
        changes, queue = self._changes, self._queue_of(job)
        if queue is not None:
            queue.allocated -= change
            queue.releasing += change
            changes.queues.add(queue.name)
        changes.jobs.add(job.key)
        changes.nodes.add(node.name)
        if node.known:
            amounts = self._nodes.releasing[node.row]
            amounts += change
            self._nodes.touch(node.row)

    def restore(self, task: Task) -> None:
        """Undo `release` after a failed eviction: the task gets its former status, by default RUNNING."""
        self.move(task, self._former.pop(task.uid, TaskStatus.RUNNING), task.node)


def _with(waiting: Mapping[str, Task], tasks: Sequence[Task]) -> Mapping[str, Task]:
    """Waiting tasks of a job with further ones: the same mapping, unless it was empty."""
    found = {} if waiting is NO_ENTRIES else cast("dict[str, Task]", waiting)
    for task in tasks:
        found[task.uid] = task
    return found


def _without(waiting: Mapping[str, Task], tasks: Sequence[Task]) -> Mapping[str, Task]:
    """Waiting tasks of a job without some of them; a job without any keeps no mapping of its own."""
    found = cast("dict[str, Task]", waiting)
    for task in tasks:
        del found[task.uid]
    return found or NO_ENTRIES


def _join(job: Job, tasks: Sequence[Task]) -> None:
    """Add tasks that are alike to the mappings of their job."""
    first = tasks[0]
    waits = first.status is PENDING and not (first.gated or first.held)
    if job.pending is job.tasks and not waits:
        job.pending = dict(job.tasks) or NO_ENTRIES
    for task in tasks:
        job.tasks[task.uid] = task
    if waits and len(job.tasks) == len(tasks):
        job.pending = job.tasks
    elif waits and job.pending is not job.tasks:
        job.pending = _with(job.pending, tasks)
    elif first.status is PENDING and first.gated:
        job.gated = _with(job.gated, tasks)


def _leave(job: Job, tasks: Sequence[Task]) -> None:
    """Undo `_join`."""
    first = tasks[0]
    for task in tasks:
        del job.tasks[task.uid]
    if first.status is not PENDING or (first.held and not first.gated):
        return
    if first.gated:
        job.gated = _without(job.gated, tasks)
    elif job.pending is not job.tasks:
        job.pending = _without(job.pending, tasks)


def _role_of(job: Job, task: Task) -> list[int]:
    if job.roles is NO_ENTRIES:
        job.roles = {}
    roles = cast("dict[str, list[int]]", job.roles)
    return roles.setdefault(task.role, [0] * (_BEST_EFFORT + 1))


def recount_members(job: Job) -> None:
    """Rebuild the counters of roles and subgroups of a job after their minimums changed."""
    job.roles = NO_ENTRIES
    if job.min_task_member or job.groups is not None:
        for task in job.tasks.values():
            _count_member(job, task, +1)


def _count_member(job: Job, task: Task, sign: int) -> None:
    """Add (+1) a task to the counters of its role and subgroup, or subtract (-1) it."""
    if job.min_task_member:
        role = _role_of(job, task)
        role[task.status] += sign
        if task.status is PENDING and task.cls.best_effort and not task.gated:
            role[_BEST_EFFORT] += sign
    if job.groups is not None:
        if sign > 0:
            job.groups.add(task)
        else:
            job.groups.subtract(task)


def _shift_members(job: Job, tasks: list[Task], before: TaskStatus, after: TaskStatus) -> None:
    if job.groups is not None:
        job.groups.shift(tasks, before, after)
    for task in tasks if job.min_task_member else ():
        role = _role_of(job, task)
        role[before] -= 1
        role[after] += 1
        if task.cls.best_effort:
            role[_BEST_EFFORT] += (after is PENDING) - (before is PENDING)
