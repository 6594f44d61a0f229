"""The task-topology plugin: task order, node scores and placements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.node_hooks import OTHER_NODES, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, invalid_annotation
from capcard_sched.model.task_topology import FORMS, topology_of
from capcard_sched.plugins.task_topology.buckets import OUTSIDE, JobBuckets

if TYPE_CHECKING:
    from typing import Any

    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_topology import TaskAffinityGroups

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

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
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

    # --- hooks ------------------------------------------------------------------------------------------------------

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
