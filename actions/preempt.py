"""preempt: capacity for starving jobs from others of their queue, then from their own pods.

Victims are minimal and gangs are evicted whole; preemption within a job runs once, after all queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from capcard_sched.framework.eviction.group_evictor import GroupEvictor
from capcard_sched.framework.eviction.scope import WithinJob, WithinQueue
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.ordering import contenders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.ordering import KeyHeap, Rounds
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue


_TOPOLOGY_AWARE = "enableTopologyAwarePreemption"


class PreemptArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the action."""

    #: Accepted for compatibility: refusals are cached per class here, there is nothing to switch off.
    predicate_error_cache: bool = msgspec.field(name="predicateErrorCacheEnable", default=True)
    #: Accepted for compatibility, ignored with a warning: all nodes are compared by their eviction cost.
    topology_aware: bool = msgspec.field(name=_TOPOLOGY_AWARE, default=False)
    #: Accepted for compatibility, as the three below: nodes are compared one after the other, all that may be best.
    workers: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="topologyAwarePreemptWorkerNum", default=16)
    #: Accepted for compatibility.
    candidate_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = msgspec.field(
        name="minCandidateNodesPercentage", default=10
    )
    #: Accepted for compatibility.
    fewest_candidates: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="minCandidateNodesAbsolute", default=1)
    #: Accepted for compatibility.
    most_candidates: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="maxCandidateNodesAbsolute", default=100)
    #: Whether only jobs of a lower priority are victims, as of Volcano's action gangpreempt, none of the same job.
    lower_priority_only: bool = msgspec.field(name="lowerPriorityOnly", default=False)
    #: Seconds for which capacity stays nominated after the victims' grace period.
    reservation_seconds: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(name="reservationSeconds", default=60.0)


class Preempt(Action):
    """Lets starving jobs preempt jobs of their own queue, then a job's own pods of lower priority.

    The `preemptable` hooks select the candidates. A job below its minimum gets all its missing members or none.
    """

    name = "preempt"
    Arguments = PreemptArguments
    arguments: PreemptArguments

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        """The arguments; topology-aware preemption produces a warning."""
        arguments = problems.decode(PreemptArguments, raw)
        if arguments.topology_aware:
            problems.warning(_TOPOLOGY_AWARE, "is ignored: all nodes are compared by their eviction cost")
        return arguments

    def execute(self, session: Session) -> None:
        seconds = self.arguments.reservation_seconds
        lower_only = self.arguments.lower_priority_only
        between = GroupEvictor(session, WithinQueue(self.name, lower_only=lower_only), reservation_seconds=seconds)
        rounds = contenders(session, self.name, session.job_starving, "preemptable", between.repeat)
        visited: list[tuple[Queue, list[Job]]] = []
        while rounds:
            queue, waiting = rounds.pop_queue()
            visited.append((queue, self._drain(session, rounds, between, queue, waiting)))
        inside = GroupEvictor(session, WithinJob(self.name), reservation_seconds=seconds)
        for queue, jobs in visited:
            for job in jobs if not lower_only else ():
                if not job.allocated_tasks:
                    continue  # only its own placed pods are candidates
                if not session.deadline.allows_attempt(queue.name):
                    break
                if not session.namespace_work.allows_attempt(job):
                    continue
                inside.attempt(queue, job, session.pending_tasks(job), session.job_starving)
        session.failed_attempts.end_evictions("preemptable", evicted=bool(session.results.evictions))

    def _drain(
        self, session: Session, rounds: Rounds, evictor: GroupEvictor, queue: Queue, waiting: KeyHeap[Job]
    ) -> list[Job]:
        """Attempts each job of a queue, best first. Returns the jobs in the order of their first attempt."""
        rest: dict[str, Sequence[Task]] = {}
        visited: dict[str, Job] = {}
        while waiting and (job := rounds.pop_job(queue)) is not None:
            visited[job.key] = job
            tasks = rest.get(job.key)
            tasks = session.pending_tasks(job) if tasks is None else tasks
            tasks = evictor.attempt(queue, job, tasks, session.job_starving)
            rounds.note_evictions(queue)
            if tasks:
                rest[job.key] = tasks
                session.results.guarded(job, waiting.push)
            elif queue.strict_fifo and session.is_unserved(job):
                session.results.refuse_behind_head(queue, job, waiting, "preemptable")
                break
        return list(visited.values())
