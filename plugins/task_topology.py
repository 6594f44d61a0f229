"""Task affinity and anti-affinity inside a job.

Buckets are built when a session opens. Placements of the session, and undoing them, move tasks of a bucket between
waiting and bound; nothing else changes.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import OTHER_NODES, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, invalid_annotation
from capcard_sched.framework.toolkit.label_groups import add_to
from capcard_sched.model.quantity import is_in_bytes
from capcard_sched.model.status import ALLOCATED_STATUSES
from capcard_sched.model.task_topology import FORMS, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.model.task_topology import TaskAffinityGroups

    Counts = npt.NDArray[np.int64]


#: Priorities of a role by its part in the topology; the highest applies.
APART_FROM_ITSELF, WITH_OTHERS, WITH_ITSELF, APART_FROM_OTHERS = 4, 3, 2, 1

_MEBI: Final = 1 << 20
#: The order key of tasks in no bucket: after all others.
OUTSIDE: Final = (1, 0, 0, 0, 0)


class Relations:
    """Affinity and anti-affinity between the roles of a job."""

    def __init__(self, topology: TaskAffinityGroups) -> None:
        together, apart = _pairs(topology.affinity), _pairs(topology.anti_affinity)
        #: Role to other roles: +1 affinity, -1 anti-affinity, 0 both.
        self.gain: dict[str, dict[str, int]] = {}
        for pair in together | apart:
            self.gain.setdefault(pair[0], {})[pair[1]] = (pair in together) - (pair in apart)
        #: Role to the roles of its anti-affinity, sorted.
        self.apart: dict[str, list[str]] = {}
        for role, other in sorted(apart):
            self.apart.setdefault(role, []).append(other)
        self.roles = topology.names()
        #: Role to its rank in the user's task order, the first the highest; 0 for a role that is not listed.
        self.wanted = {role: len(topology.order) - place for place, role in enumerate(topology.order)}
        self.priority = {
            role: max(
                [APART_FROM_ITSELF] * ((role, role) in apart)
                + [WITH_OTHERS] * any(one == role != other for one, other in together)
                + [WITH_ITSELF] * ((role, role) in together)
                + [APART_FROM_OTHERS] * any(one == role != other for one, other in apart)
            )
            for role in self.roles
        }

    def order(self, role: str) -> tuple[int, int]:
        """Smaller first: the user's order, then the role's priority."""
        return -self.wanted.get(role, 0), -self.priority[role]

    def net(self, role: str, counts: Iterable[tuple[str, int]]) -> int:
        """Net affinity of a task of the role to a bucket with these counts by role."""
        gain = self.gain.get(role, {})
        return sum(gain.get(other, 0) * count for other, count in counts)


def _pairs(groups: Iterable[tuple[str, ...]]) -> set[tuple[str, str]]:
    """Ordered pairs of roles; a group of one role pairs the role with itself."""
    return {pair for group in groups for pair in (permutations(group, 2) if len(group) > 1 else [(group[0], group[0])])}


class Bucket:
    """Tasks for one node."""

    __slots__ = ("_columns", "_requests", "bound", "index", "members", "positions", "roles", "size", "waiting")

    def __init__(self, index: int) -> None:
        self.index = index
        #: Number of tasks by role.
        self.roles: dict[str, int] = {}
        #: Sum of `size_of` over the waiting tasks.
        self.size = 0
        #: Row to its number of tasks of the bucket.
        self.bound: dict[int, int] = {}
        #: Tasks that were waiting when the session opened, the largest first.
        self.members: list[Task] = []
        #: uid to the position in `members`.
        self.positions: dict[str, int] = {}

    def seal(self) -> None:
        """Build the arrays after the last task was added."""
        self.members.sort(key=lambda task: (-size_of(task.cls), task.name, task.uid))
        self.positions = {task.uid: position for position, task in enumerate(self.members)}
        #: bool [members]: tasks that are still waiting.
        self.waiting = np.ones(len(self.members), dtype=bool)
        requests = np.array([task.cls.request for task in self.members], dtype=np.int64)
        self._columns = np.flatnonzero(requests.any(axis=0)) if len(requests) else np.zeros(0, dtype=np.intp)
        self._requests: Matrix = requests[:, self._columns] if len(requests) else np.zeros((0, 0), dtype=np.int64)

    def fitting(self, task: Task, rows: NodeView) -> Counts:
        """Number of waiting tasks, `task` included, that fit on each row together: int64 [k].

        Tasks that exceed the capacity are left out one by one, the largest first. 0 where `task` itself does not fit.
        """
        own = self.positions[task.uid]
        others = np.flatnonzero(self.waiting)
        others = others[others != own]
        # Requests of the task alone, with the smallest other task, with the two smallest, and so on.
        needed = np.cumsum(self._requests[np.concatenate(([own], others[::-1]))], axis=0)
        free = (rows.idle + rows.releasing)[:, self._columns]
        found = np.full(len(rows), len(needed), dtype=np.int64)
        for column in range(len(self._columns)):
            np.minimum(found, np.searchsorted(needed[:, column], free[:, column], side="right"), out=found)
        return found


class _Build(NamedTuple):
    """Buckets under construction, in one heap per distinct counts by role, the smallest first."""

    relations: Relations
    buckets: list[Bucket]
    alike: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]]

    def put(self, bucket: Bucket, task: Task) -> None:
        bucket.roles[task.role] = bucket.roles.get(task.role, 0) + 1

    def offer(self, bucket: Bucket) -> None:
        heappush(self.alike.setdefault(tuple(sorted(bucket.roles.items())), []), (bucket.size, bucket.index))

    def new(self) -> Bucket:
        self.buckets.append(Bucket(len(self.buckets)))
        return self.buckets[-1]

    def best(self, role: str) -> Bucket | None:
        """Pop the bucket with the highest net affinity for a role; among equals the smallest, then the first."""
        ranked = [(-self.relations.net(role, roles), *heap[0], roles) for roles, heap in self.alike.items()]
        if not ranked:
            return None
        loss, _, index, roles = min(ranked)
        if loss > 0:
            return None
        heap = self.alike[roles]
        heappop(heap)
        if not heap:
            del self.alike[roles]
        return self.buckets[index]


class JobBuckets:
    """The buckets of a job in one session."""

    def __init__(self, job: Job, topology: TaskAffinityGroups, *, count_running: bool = False) -> None:
        """`count_running`: whether anti-affinity also applies to tasks that were placed in an earlier session."""
        self.relations = relations = Relations(topology)
        self._count_running = count_running
        #: Role to row to its number of tasks placed there (in this session, unless `count_running`).
        self.placed: dict[str, dict[int, int]] = {}
        build = _Build(relations, [], {})
        self.buckets = build.buckets
        #: Task uid to its bucket.
        self.of: dict[str, Bucket] = {}
        tasks = [task for task in job.tasks.values() if task.role in relations.roles]
        tasks.sort(key=lambda task: (*relations.order(task.role), task.name, task.uid))
        by_node: dict[str, Bucket] = {}
        for task in tasks:
            node = task.node
            if node is not None and task.status in ALLOCATED_STATUSES:
                bucket = by_node.get(node.name)
                if bucket is None:
                    bucket = by_node[node.name] = build.new()
                build.put(bucket, task)
                self.of[task.uid] = bucket
                self._bind(bucket, task, node)
        for bucket in self.buckets:
            build.offer(bucket)
        for task in tasks:
            if task.uid in job.pending:
                bucket = build.best(task.role) or build.new()
                build.put(bucket, task)
                bucket.size += size_of(task.cls)
                bucket.members.append(task)
                self.of[task.uid] = bucket
                build.offer(bucket)
        for bucket in self.buckets:
            bucket.seal()
        #: Number of tasks in the largest bucket.
        self.most = max((sum(bucket.roles.values()) for bucket in self.buckets), default=0)
        self._task_queues: dict[tuple[int, str], list[Task]] = {}
        #: Number of tasks at the head of each queue that no longer wait.
        self._heads: dict[tuple[int, str], int] = {}

    def key(self, task: Task) -> tuple[int, ...]:
        """Order key: buckets with more waiting tasks first, then the user's task order. Constant during a session."""
        bucket = self.of.get(task.uid)
        if bucket is None:
            return OUTSIDE
        return (0, -len(bucket.members), bucket.index, *self.relations.order(task.role))

    def next(self, cls: TaskClass, role: str, key: Callable[[Task], Any]) -> Task | None:
        """The next task of a class and role to place, in the order of `key`; None when none is waiting."""
        queue = self._task_queues.get((cls.id, role))
        if queue is None:
            members = (task for bucket in self.buckets for task in bucket.members)
            queue = sorted((task for task in members if task.cls is cls and task.role == role), key=key)
            self._task_queues[cls.id, role] = queue
        for position in range(self._heads.get((cls.id, role), 0), len(queue)):
            task = queue[position]
            bucket = self.of[task.uid]
            if bucket.waiting[bucket.positions[task.uid]]:
                self._heads[cls.id, role] = position
                return task
        return None

    def place(self, task: Task, node: Node) -> None:
        """Add a task that was placed, or whose eviction was undone."""
        bucket = self.of.get(task.uid)
        if bucket is not None:
            self._bind(bucket, task, node)
            position = bucket.positions.get(task.uid)
            if position is not None:
                bucket.waiting[position] = False

    def displace(self, task: Task, node: Node) -> None:
        """Undo `place`, or remove a task that is being evicted."""
        bucket = self.of.get(task.uid)
        if bucket is None:
            return
        _count(bucket.bound, node, -1)
        position = bucket.positions.get(task.uid)
        if position is not None:
            bucket.waiting[position] = True
            self._heads.pop((task.cls.id, task.role), None)
        if position is not None or self._count_running:
            _count(self.placed[task.role], node, -1)

    def _bind(self, bucket: Bucket, task: Task, node: Node) -> None:
        _count(bucket.bound, node, 1)
        if self._count_running or task.uid in bucket.positions:
            _count(self.placed.setdefault(task.role, {}), node, 1)

    def scores(self, task: Task, rows: NodeView) -> Counts:
        """Number of tasks of its bucket that each row can hold, minus the tasks of its anti-affinity: int64 [k]."""
        bucket = self.of[task.uid]
        found = bucket.fitting(task, rows)
        fits = found > 0
        _scatter(found, bucket.bound, rows, 1)
        for role in self.relations.apart.get(task.role, ()):
            _scatter(found, self.placed.get(role, {}), rows, -1)
        found[~fits] = 0
        return found


def size_of(cls: TaskClass) -> int:
    """Size of a task in bytes: a thousandth of a core or of a device counts as one MiB."""
    return sum(amount if is_in_bytes(name) else amount * _MEBI for name, amount in cls.requests.items())


def _count(counts: dict[int, int], node: Node, change: int) -> None:
    """Change the count of the node's row and remove zeros. Unknown nodes have no row."""
    if node.known:
        add_to(counts, node.row, change)


def _scatter(found: Counts, counts: Mapping[int, int], rows: NodeView, sign: int) -> None:
    """Add counts by row to the elements of `found`."""
    if counts:
        per_node = np.zeros(len(rows.nodes), dtype=np.int64)
        per_node[list(counts)] = list(counts.values())
        found += sign * rows.take(per_node)


MAX_SCORE = 100


class TaskTopologyArguments(msgspec.Struct, frozen=True):
    """Arguments of task-topology."""

    #: Score multiplier; 0 disables.
    weight: int = msgspec.field(name="task-topology.weight", default=1)
    #: Whether anti-affinity also applies to tasks that were placed in an earlier session.
    count_running: bool = msgspec.field(name="task-topology.count-running", default=False)


class TaskTopology(Plugin):
    """Applies task affinity and anti-affinity of volcano.sh/task-topology-affinity and -anti-affinity inside a job.

    Tasks with affinity form buckets. The tasks of a bucket are placed one after the other, in the order of
    volcano.sh/task-topology-task-order, on the node that fits most of them.
    """

    name = "task-topology"
    Arguments = TaskTopologyArguments
    arguments: TaskTopologyArguments

    def setup(self) -> None:
        self._session: Session
        #: Job key to its buckets, for jobs with a topology and pending tasks.
        self._jobs: dict[str, JobBuckets] = {}
        self._warnings = AnnotationWarnings()

    def open(self, session: Session) -> None:
        """Build the buckets. O(tasks of the jobs with a topology and pending tasks)."""
        self._session = session
        self._jobs = {}
        self._warnings.prune(session)
        for job in session.with_pending_tasks():
            if job.annotations and not FORMS.keys().isdisjoint(job.annotations):
                topology = self._topology(session, job)
                if topology is not None:
                    count_running = self.arguments.count_running
                    self._jobs[job.key] = JobBuckets(job, topology, count_running=count_running)

    def _topology(self, session: Session, job: Job) -> TaskAffinityGroups | None:
        """The topology of the job; None without one, or when it is invalid, which is reported."""
        roles = {task.role for task in job.tasks.values()} | set(job.min_task_member)
        topology, problems = topology_of(job.annotations, roles)
        if problems and all(problem.unknown for problem in problems) and job.valid_tasks < job.min_available:
            return None  # its pods are being created; none is placed before there are minAvailable
        known = ", ".join(sorted(role for role in roles if role)) or "none: the pods have no task name"
        self._warnings.report_job(
            session,
            job,
            (
                invalid_annotation(
                    problem.key,
                    f"{problem.detail}; the job's task topology is ignored",
                    f"{FORMS[problem.key]}; tasks of the job: {known}",
                )
                for problem in problems
            ),
        )
        return topology if topology.names() and not problems else None

    def task_order(self, task: Task) -> tuple[int, ...]:
        buckets = self._jobs.get(task.job.key) if self._jobs and task.job is not None else None
        return OUTSIDE if buckets is None else buckets.key(task)

    def signature(self, queue: Queue, task: Task) -> tuple[str, str] | None:
        """The job and the role; the next task to place follows from the order.

        The role may differ between pods with equal labels, unlike the contract of this hook requires: such pods are
        evaluated one by one anyway, because their nodes depend on each other.
        """
        buckets = self._jobs.get(task.job.key) if self._jobs and task.job is not None else None
        if buckets is None or task.role not in buckets.relations.roles:
            return None
        assert task.job is not None
        return task.job.key, task.role

    def _has_topology(self, signature: PodSignature) -> bool:
        return signature.context(self.name) is not None

    @score(reads=OTHER_NODES, when=_has_topology)
    def score_buckets(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """Up to 100 x `task-topology.weight` per row, for a row that holds or fits the largest bucket whole."""
        context = signature.context(self.name)
        buckets = self._jobs.get(context[0])
        if buckets is None or not self.arguments.weight:
            return None
        task = buckets.next(signature.cls, context[1], self._session.task_key)
        if task is None:
            return None
        return buckets.scores(task, rows) * (self.arguments.weight * MAX_SCORE) / buckets.most

    def on_allocate(self, placement: Placement) -> None:
        buckets = self._jobs.get(placement.job.key)
        if buckets is not None:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                buckets.place(task, node)

    def on_deallocate(self, placement: Placement) -> None:
        buckets = self._jobs.get(placement.job.key)
        if buckets is not None:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                buckets.displace(task, node)
