"""The job of a name that a user knows, and its diagnosis from the state and the records of the last session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.explain.job_facts import JobFacts
from capcard_sched.framework.explain.limits import shown_refusal
from capcard_sched.framework.explain.sentences import distinct
from capcard_sched.framework.explain.stages import decide
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.model.kube_groups import job_name, kube_name
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.workload import KUBE_KIND, display_name, is_of_vcjob, own_name, workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.explain.limit_causes import QuotaClaim
    from capcard_sched.framework.explain.limits import LimitReader
    from capcard_sched.framework.explain.rejections import ObservedAttempt
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job


def diagnose_job(
    snapshot: CoreSnapshot,
    job: Job,
    *,
    pod: str = "",
    now: float | None = None,
    limits: LimitReader | None = None,
    attempt: ObservedAttempt | None = None,
    claims: list[QuotaClaim] | None = None,
) -> JobDiagnosis:
    """The diagnosis of a job, or of its pod `pod`, as of the last session, which must be one over the whole state.

    `now` (Unix seconds) is the end of the waiting time; the time of the last session when absent. `limits`: the reader
    of the diagnoses of other jobs of this state, reused. `attempt` observed the failed attempt of that session;
    sentences about the future, which need a trial, are added to `claims`.
    Cost: O(nodes + pods) once, and one scan of the nodes per pending template without a node.
    """
    session = snapshot.session
    if session is None:
        raise ValueError("no session has run yet")
    facts = JobFacts(snapshot, session, job, pod, limits, attempt)
    if pod and [one.outcome for one in facts.pending] == ["schedulable"]:  # the other members are the cause
        facts = JobFacts(snapshot, session, job, "", limits, attempt)
    found = decide(facts)
    if claims is not None:
        claims += found.claims
    return JobDiagnosis(
        namespace=job.namespace,
        workload=display_name(job).partition("/")[2],
        pod_group=(kube_name(job.name) or job.name) if job.uid and not job.implicit else "",
        phase=phase_of(job, session),
        stage=found.stage,
        summary=found.summary,
        facts=tuple(distinct(found.facts)),
        scheduled=scheduled_pods(job, session),
        pods=len(job.tasks),
        min_available=job.min_available,
        waiting_seconds=max(0.0, (session.now if now is None else now) - waiting_since(job, session)),
        queue=facts.queue if job.queue else None,
        refusals=tuple(shown_refusal(refusal) for refusal in facts.refusals),
        pending=facts.pending,
        placed=facts.placed(),
        capacity=facts.capacity,
        stranded=facts.stranded,
        victims=tuple(found for _, found in sorted(session.results.preemption_reports.get(job.key, {}).items())),
        evicted=tuple(session.carry_over.evicted.get(job.key, ())),
    )


def created_at(job: Job) -> float:
    """The creation of a job in Unix seconds; a job without a PodGroup is as old as its oldest pod."""
    return job.created or min((task.created for task in job.tasks.values()), default=0.0)


def phase_of(job: Job, session: Session) -> str:
    """The phase of the PodGroup: a job that a silent session admitted, which writes nothing, is Pending."""
    is_pending = session.carry_over.is_silent and job.key in session.results.report.enqueued
    return PodGroupPhase.PENDING.value if is_pending else job.phase.value


def scheduled_pods(job: Job, session: Session) -> int:
    """Pods on nodes, and those that succeeded; without the bindings of the session, which writes nothing."""
    return job.ready_tasks - len(set(session.results.bound) & job.tasks.keys())


def waiting_since(job: Job, session: Session) -> float:
    """Unix seconds: the creation of a job, or of the oldest pending pod of one that has its minimum."""
    pending = [
        *job.pending.values(),
        *job.gated.values(),
        *(job.tasks[uid] for uid in set(session.results.bound) & job.tasks.keys()),
    ]
    if pending and scheduled_pods(job, session) >= job.min_available:
        return min(task.created for task in pending)
    return created_at(job)


def find_workload(snapshot: CoreSnapshot, namespace: str, name: str) -> Job | None:
    """The job of `NAME` or `kind/NAME`; of several jobs of a workload a pending one, else the newest."""
    kind, _, plain = name.rpartition("/")
    jobs = snapshot.state.jobs
    keys = {"": (plain, job_name(plain)), "podgroup": (plain,), KUBE_KIND: (job_name(plain),)}
    exact = next((jobs[key] for key in (f"{namespace}/{each}" for each in keys.get(kind, ())) if key in jobs), None)
    if exact is not None:
        return exact
    named = []
    for job in snapshot.state.jobs.values():
        if job.namespace == namespace:
            own_kind, _, own_plain = workload_of(job).partition("/")
            if own_plain == plain and (kind in ("", own_kind) or (kind == "vcjob" and is_of_vcjob(job))):
                named.append(job)
    if named:
        return max(named, key=lambda job: (bool(job.pending), job.created, job.key))
    found = find_job(snapshot, namespace, plain) if kind in ("", "pod") else None
    return found if found is None or not kind or any(task.name == plain for task in found.tasks.values()) else None


def namesakes(snapshot: CoreSnapshot, namespace: str, name: str) -> list[str]:
    """The jobs of a name without kind, as `kind/name`; several of one workload count once."""
    found = {
        own
        for job in snapshot.state.jobs.values()
        if job.namespace == namespace
        and name in (own := own_name(job), own.partition("/")[2], job.name, kube_name(job.name))
    }
    return sorted(found)


def find_job(snapshot: CoreSnapshot, namespace: str, name: str) -> Job | None:
    """The job of a PodGroup, of a pod, of a Job or of another workload, by that name.

    A prefix shared by several owners matches none: `llm` is not the Job `llm-tuning`.
    """
    state = snapshot.state
    exact = state.jobs.get(f"{namespace}/{name}")
    if exact is not None:
        return exact
    for task in state.tasks.values():
        if task.namespace == namespace and task.name == name and task.job is not None:
            return task.job
    for _, job in sorted(state.jobs.items()):
        if job.namespace == namespace and job.owner_job == name:
            return job
    owners = sorted(
        {
            task.job.key
            for task in state.tasks.values()
            if task.namespace == namespace
            and task.name.startswith(f"{name}-")
            and task.job is not None
            and not workload_of(task.job)
        }
    )
    return state.jobs[owners[0]] if owners else None
