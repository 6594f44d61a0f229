"""Who may have to leave: the pods that can be evicted, by node and by queue, and the units they leave in.

The index is made once per session, when the first action asks for it (W-03). A unit is what leaves together: one pod
that its gang can do without, or all that is left of a gang whose minimum would be broken (tidal reference §8).
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from capcard_sched.model.annotations import EVICT_SCOPE
from capcard_sched.model.pods import preemptable_of
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    from capcard_sched.framework.rows import Mask, Rows
    from capcard_sched.framework.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task import Task

#: Never evicted, whatever the conf says (plugins reference §3, W-10).
SYSTEM_NAMESPACE = "kube-system"
CRITICAL_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})

_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND)
_STARTING = (TaskStatus.BINDING, TaskStatus.ALLOCATED, TaskStatus.PIPELINED)
_READY = frozenset({*_LIVE, TaskStatus.BINDING, TaskStatus.ALLOCATED, TaskStatus.SUCCEEDED})


class Scope(NamedTuple):
    """Among whom room is taken, and which hook is asked."""

    #: Between jobs of one queue, inside one job, or from other queues.
    kind: Literal["jobs", "inside", "queues"]
    hook: Literal["preemptable", "reclaimable"]
    #: Name of the action: the reason of its evictions.
    action: str


class Unit(NamedTuple):
    """Pods that leave together."""

    job: Job
    #: Every pod that leaves, on all nodes.
    tasks: tuple[Task, ...]
    #: What they free on the node that is looked at: int64 [resource columns].
    gain: Vector
    #: Whether the job is below its minimum when they are gone, and whether they are all that is left of it.
    breaks: bool
    whole: bool


def may_be_evicted(task: Task) -> bool:
    """The pod's own `volcano.sh/preemptable`, else its PodGroup's, else yes (tidal reference §3, R2)."""
    if task.preemptable is not None:
        return task.preemptable
    job = task.job
    if job is None or not (job.annotations or job.labels):
        return True
    return preemptable_of(job.annotations, job.labels) is not False


def protection(session: Session, task: Task) -> str:
    """What keeps a placed pod from ever being evicted in this session; "" when nothing does."""
    if task.status not in _LIVE:
        return "terminating" if task.deleting or task.status is TaskStatus.RELEASING else "not-running"
    if task.deleting:
        return "terminating"
    if not may_be_evicted(task):
        return "not-preemptable"
    if task.job is None or task.job.key not in session.jobs:
        return "no-job"
    if task.namespace == SYSTEM_NAMESPACE or task.cls.priority_class_name in CRITICAL_CLASSES:
        return "system-critical"
    if session.memory.refused_evictions.get(task.uid, session.now) > session.now:
        return "eviction-refused"
    return ""


class VictimIndex:
    """Pods that could be evicted, in order of node row. O(pods) once per session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: Row to the pods on it that nothing protects for good.
        self.by_row: dict[int, list[Task]] = {}
        #: Row to how many pods are protected by each cause.
        self.kept: dict[int, Counter[str]] = {}
        tasks: list[Task] = []
        rows: list[int] = []
        for row, node in enumerate(session.nodes.nodes):
            found: list[Task] = []
            for task in node.tasks.values():
                cause = protection(session, task)
                if not cause:
                    found.append(task)
                else:
                    self.kept.setdefault(row, Counter())[cause] += 1
            if found:
                self.by_row[row] = found
                tasks += found
                rows += [row] * len(found)
        self.tasks = tasks
        #: intp [candidates], ascending.
        self.rows: Rows = np.array(rows, dtype=np.intp)
        self._task_keys: dict[str, tuple[Any, ...]] = {}
        self._job_keys: dict[str, tuple[object, int, tuple[Any, ...]]] = {}

    # --- columns ----------------------------------------------------------------------------------------------------

    @cached_property
    def requests(self) -> Matrix:
        """int64 [candidates, resources]."""
        classes: dict[int, int] = {}
        vectors: list[Vector] = []
        positions = []
        for task in self.tasks:
            position = classes.get(task.cls.id)
            if position is None:
                position = classes[task.cls.id] = len(vectors)
                vectors.append(task.cls.request)
            positions.append(position)
        width = self._session.resources.width
        return np.array(vectors, dtype=np.int64).reshape(len(vectors), width).take(positions, axis=0)

    @cached_property
    def queues(self) -> npt.NDArray[np.object_]:
        """Queue name of each candidate: object [candidates]."""
        return np.array([task.job.queue if task.job is not None else "" for task in self.tasks], dtype=object)

    @cached_property
    def priorities(self) -> list[tuple[int, int]]:
        """Priority of the queue and of the job of each candidate."""
        queues = self._session.queues
        return [
            (queues[task.job.queue].priority, task.job.priority) if task.job is not None else (0, 0)
            for task in self.tasks
        ]

    @cached_property
    def levels(self) -> tuple[npt.NDArray[np.intp], list[tuple[int, int]]]:
        """Rank of each candidate's priorities, intp [candidates], and the priorities by rank."""
        known = sorted(set(self.priorities))
        ranks = {priorities: rank for rank, priorities in enumerate(known)}
        return np.array([ranks[priorities] for priorities in self.priorities], dtype=np.intp), known

    @cached_property
    def running(self) -> Mask:
        """Whether each candidate was Running, not just Bound, when the index was made: bool [candidates]."""
        return np.array([task.status is TaskStatus.RUNNING for task in self.tasks], dtype=bool)

    @cached_property
    def _open_to_reclaim(self) -> Mask:
        queues = self._session.queues
        allowed = {name for name, queue in queues.items() if queue.reclaimable}
        return np.array([queue in allowed for queue in self.queues], dtype=bool)

    def mask(self, scope: Scope, job: Job) -> Mask:
        """The candidates within a scope for a job that needs room: bool [candidates]."""
        if scope.kind == "queues":
            found: Mask = self.running & self._open_to_reclaim & (self.queues != job.queue)
            return found
        if scope.kind == "inside":
            found = np.zeros(len(self.tasks), dtype=bool)
            found[[self._positions[uid] for uid in job.tasks if uid in self._positions]] = True
            return found
        same: Mask = self.queues == job.queue
        return same  # the job's own pods are told apart one by one

    @cached_property
    def movable(self) -> set[str]:
        """Uids of all candidates."""
        return {task.uid for task in self.tasks}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {task.uid: position for position, task in enumerate(self.tasks)}

    def outside(self, scope: Scope, preemptor: Task, task: Task) -> str:
        """Why a candidate is none for this preemptor; "" when it is one."""
        job, own = task.job, preemptor.job
        assert job is not None
        assert own is not None
        if task.status not in _LIVE:
            return "terminating"
        if scope.kind == "queues":
            if task.status is not TaskStatus.RUNNING:
                return "not-running"
            if job.queue == own.queue:
                return "same-queue"
            return "" if self._session.queues[job.queue].reclaimable else "queue-not-reclaimable"
        if preemptor.cls.best_effort and not task.cls.best_effort:
            return "not-best-effort"
        if scope.kind == "inside":
            return "" if job is own else "other-job"
        if job is own:
            return "same-job"
        return "" if job.queue == own.queue else "other-queue"

    # --- order ------------------------------------------------------------------------------------------------------

    def task_key(self, task: Task) -> tuple[Any, ...]:
        """The task's sort key, asked once per session."""
        key = self._task_keys.get(task.uid)
        if key is None:
            key = self._task_keys[task.uid] = self._session.task_key(task)
        return key

    def _job_key(self, job: Job) -> tuple[Any, ...]:
        known = self._job_keys.get(job.key)
        if known is None or known[0] is not job.allocated or known[1] != job.ready_tasks:
            known = self._job_keys[job.key] = job.allocated, job.ready_tasks, self._session.job_key(job)
        return known[2]

    def by_job(self, tasks: list[Task], reclaimer: Queue) -> list[tuple[Job, list[Task]]]:
        """Tasks by job, whoever leaves first being first: queues in victim order, then jobs, then tasks, reversed."""
        jobs: dict[str, tuple[Job, list[Task]]] = {}
        for task in tasks:
            assert task.job is not None
            jobs.setdefault(task.job.key, (task.job, []))[1].append(task)
        found = list(jobs.values())
        for _, members in found:
            if len(members) > 1:
                members.sort(key=self.task_key, reverse=True)
        if len(found) > 1:
            found.sort(key=lambda entry: self._job_key(entry[0]), reverse=True)
            names = {job.queue for job, _ in found}
            if len(names) > 1:
                ranks = self._session.victim_queue_ranks(names, reclaimer)
                found.sort(key=lambda entry: ranks[entry[0].queue])
        return found


# --- units ------------------------------------------------------------------------------------------------------------


def evict_scope(session: Session, job: Job) -> str:
    """What of the job goes at once when its minimum is broken: `whole`, `member` or `job` (tidal reference §8)."""
    said = session.dispatch.first("evict_scope", job)
    if said is not None:
        return str(said)
    return "job" if job.annotations.get(EVICT_SCOPE) == "job" else "whole"


def live_members(job: Job) -> list[Task]:
    """Members that run or are bound."""
    return [task for task in job.tasks.values() if task.status in _LIVE]


class _Slack:
    """How many members a gang can lose, in all and per role."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.left = job.ready_tasks - job.min_available

    def spares(self, task: Task) -> bool:
        """Whether the job can do without one more of the task's role; it is counted as gone if so."""
        job = self._job
        if self.left <= 0:
            return False
        minimum = job.min_task_member.get(task.role, 0) if job.checks_roles else 0
        if minimum:
            counts = job.roles[task.role]
            gone = self._gone.get(task.role, 0)
            if sum(counts[status] for status in _READY) - gone <= minimum:
                return False
            self._gone[task.role] = gone + 1
        self.left -= 1
        return True

    @cached_property
    def _gone(self) -> dict[str, int]:
        return {}


def units_of(
    session: Session, job: Job, here: list[Task], allowed: set[str], kept: dict[str, str], *, singly: bool
) -> list[Unit]:
    """The units of a job that free something on a node, those that leave first coming first.

    `here`: its members on the node, in the order they leave; `allowed`: uids of all members that may go, on any node;
    `kept` gets the cause `gang` for members that cannot go because others of the gang cannot. `singly`: every pod is a
    unit, whatever becomes of the gang.
    """
    scope = "member" if singly else evict_scope(session, job)
    may_go = [task for task in here if task.uid in allowed]
    if scope == "member" or (scope == "whole" and job.min_available <= 1):
        left = job.ready_tasks - job.min_available
        return [
            Unit(job, (task,), task.cls.request, not singly and position >= left, whole=False)
            for position, task in enumerate(may_go)
        ]
    units: list[Unit] = []
    rest = may_go
    if scope == "whole":
        slack = _Slack(job)
        spare = [task for task in may_go if slack.spares(task)]
        spared = {task.uid for task in spare}
        units = [Unit(job, (task,), task.cls.request, breaks=False, whole=False) for task in spare]
        rest = [task for task in may_go if task.uid not in spared]
    if not rest:
        return units
    members = live_members(job)
    if any(task.uid not in allowed for task in members) or job.count(_STARTING):
        for task in rest:
            kept.setdefault(task.uid, "gang")
        return units
    on_node = [task for task in members if task.node is here[0].node]
    gain = sum((task.cls.request for task in on_node[1:]), on_node[0].cls.request)
    members.sort(key=session.task_key, reverse=True)
    return [*units, Unit(job, tuple(members), gain, breaks=True, whole=True)]
