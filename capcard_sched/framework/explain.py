"""Explanations of pending jobs and pods, from the records of the last session."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.close.missing_groups import refusal_of
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import is_card_quota
from capcard_sched.model.explanation import CardUse, Explanation, NodeDetail, NodeReason, QueueUse, TaskExplanation
from capcard_sched.model.queue import ancestors
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.status import COMPLETED_STATUSES, PodGroupPhase, TaskStatus
from capcard_sched.model.unenforced_limits import unenforced_limits
from capcard_sched.model.workload import workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.report import TaskOutcome
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import TaskClass


#: Nodes per plugin whose figures are listed.
_DETAILED_NODES = 3


def find_job(core: Core, namespace: str, name: str) -> Job | None:
    """The job of a PodGroup, of a pod, of a Job or of another workload, by that name.

    A prefix shared by several owners matches none: `llm` is not the Job `llm-tuning`.
    """
    state = core.state
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


def explain_job(core: Core, job: Job, *, pod: str = "", now: float | None = None) -> Explanation:
    """The reasons why `job` (or only its pod `pod`) is pending, as of the last session.

    `now` (Unix seconds) is the end of the waiting time; the time of the last session when absent.

    Cost: one full scan over the nodes per pending template without a node.
    """
    session = core.last_session
    queue = core.state.queues.get(job.queue)
    refusals = _job_refusals(session, job)
    pending = _pending(session, job, pod) if session is not None else ()
    return Explanation(
        namespace=job.namespace,
        name=job.name,
        queue=job.queue,
        queue_state=(queue.state or "Open") if queue is not None else "missing",
        phase=job.phase.value,
        placed=job.ready_tasks,
        minimum=job.min_available,
        tasks=len(job.tasks),
        waiting_seconds=max(0.0, (now or session.now) - _since(job)) if session is not None else 0.0,
        summary=_of_pod(job, pod) or _summary(session, job, refusals, pending),
        refusals=refusals,
        pending=pending,
        cards=_cards_of(core, queue),
        ahead=_ahead(session, job),
        victims=tuple(considered for _, considered in sorted(session.preemption_reports.get(job.key, {}).items()))
        if session is not None
        else (),
        evicted=tuple(session.carry_over.evicted.get(job.key, ())) if session is not None else (),
    )


def _since(job: Job) -> float:
    """Its creation; a job without a PodGroup is as old as its oldest pod."""
    return job.created or min((task.created for task in job.tasks.values()), default=0.0)


def _of_pod(job: Job, name: str) -> str:
    """The state of a pod that is not pending; "" of any other."""
    task = next((task for task in job.tasks.values() if task.name == name), None) if name else None
    if task is None:
        return ""
    if task.status is TaskStatus.PENDING:
        return f"{name} has scheduling gates" if task.gated else ""
    where = f" on {task.node.name}" if task.node is not None else ""
    state = "terminating" if task.status is TaskStatus.RELEASING else task.status.title
    return f"not pending: {name} is {state}{where}"


def _summary(
    session: Session | None, job: Job, refusals: tuple[Refusal, ...], pending: tuple[TaskExplanation, ...]
) -> str:
    if session is None:
        return "no session has run yet"
    if refusals:
        return refusals[0].message
    if job.pending and not job.uid:
        return refusal_of(job).message
    if not job.pending:
        if job.tasks:
            gated = sum(task.gated and task.status is TaskStatus.PENDING for task in job.tasks.values())
            if gated:
                return f"{gated} of {len(job.tasks)} pods have scheduling gates"
            leaving = sum(task.status is TaskStatus.RELEASING for task in job.tasks.values())
            if leaving:
                return f"not pending: {leaving} of {len(job.tasks)} pods are terminating"
            ended = all(task.status in COMPLETED_STATUSES for task in job.tasks.values())
            return "not pending: all pods have finished" if ended else "not pending: all pods are scheduled"
        return "no pods created yet" if job.phase is not PodGroupPhase.PENDING else "waiting for admission (enqueue)"
    for kind in ("refused", "unfit"):
        for item in pending:
            if item.outcome == kind:
                return item.message
    return session.job_fit_error(job)


def _job_refusals(session: Session | None, job: Job) -> tuple[Refusal, ...]:
    return () if session is None else tuple(session.refusals_of(job))


def _pending(session: Session, job: Job, pod: str) -> tuple[TaskExplanation, ...]:
    """Pending tasks, grouped by template and outcome, in task order."""
    groups: dict[tuple[TaskClass, TaskOutcome | None], list[Task]] = {}
    for task in session.pending_tasks(job):
        if pod and task.name != pod:
            continue
        outcome = session.outcome_of(task.uid)
        if outcome is not None and outcome.node:
            outcome = type(outcome)(outcome.kind, outcome.message, "", outcome.refusal, outcome.nominated)
        groups.setdefault((task.cls, outcome), []).append(task)
    return tuple(_explain_tasks(session, tasks, outcome) for (_, outcome), tasks in groups.items())


def _explain_tasks(session: Session, tasks: list[Task], outcome: TaskOutcome | None) -> TaskExplanation:
    names = tuple(task.name for task in tasks)
    if outcome is None:
        return TaskExplanation(names, "untried", "not tried in the last session")
    fitting = {found.node for task in tasks if (found := session.outcome_of(task.uid)) is not None}
    node = fitting.pop() if len(fitting) == 1 else ""
    reasons: tuple[NodeReason, ...] = ()
    details: tuple[NodeDetail, ...] = ()
    evictable = 0
    queue = session.queues.get(tasks[0].job.queue) if tasks[0].job is not None else None
    if outcome.kind == "unfit" and queue is not None:
        _, diagnosis = session.engine.diagnose(session.engine.signature(queue, tasks[0]))
        reasons = tuple(
            NodeReason(reason, count, *diagnosis.sources.get(reason, ("", "fit")))
            for reason, count in sorted(diagnosis.reasons.items(), key=lambda item: (-item[1], item[0]))
        )
        details = tuple(
            NodeDetail(node_name, plugin, tuple(texts))
            for plugin, call in session.dispatch.entries("rejection_details")
            for node_name, texts in itertools.islice(call(tasks[0], session.engine.all_rows()), _DETAILED_NODES)
        )
        evictable = int(np.count_nonzero(diagnosis.codes == Code.UNSCHEDULABLE))
    return TaskExplanation(names, outcome.kind, outcome.message, outcome.refusal, node, reasons, details, evictable)


def queue_uses(core: Core) -> tuple[QueueUse, ...]:
    """Quotas and usage of all queues, in order of name."""
    uses = _card_uses(core)
    columns, queues = core.state.columns, {**core.state.deleted_queues, **core.state.queues}
    usage = {name: queue.allocated.copy() for name, queue in queues.items()}
    for queue in queues.values():
        for above in ancestors(queue, queues):
            usage[above.name] += queue.allocated
    found: list[QueueUse] = []
    plugins = frozenset(option.name for tier in core.conf.tiers for option in tier)
    # A deleted queue with live pods stays visible.
    for name, queue in sorted(queues.items()):
        limits = queue.capability or {}
        allocated = columns.amounts(usage[name])
        cards = uses.get(name, ())
        wanted = dict.fromkeys([*limits, *allocated])
        resources = {
            resource: (limits.get(resource), allocated.get(resource, 0))
            for resource in sorted(wanted)
            if resource != PODS and (resource in (CPU, MEMORY) or not cards)
        }
        jobs = queue.jobs.values()
        waiting = sum(1 for job in jobs if job.pending or job.phase is PodGroupPhase.PENDING)
        fields = {
            "capability": limits,
            "deserved": queue.deserved or {},
            "guarantee": queue.guarantee or {},
        }
        warnings = tuple(
            f"{finding.field}: {finding.message}" for finding in unenforced_limits(fields, queue.annotations, plugins)
        )
        state = queue.state or "Open"
        found.append(QueueUse(name, state, len(jobs), waiting, cards, resources, warnings, queue.parent))
    return tuple(found)


def _cards_of(core: Core, queue: Queue | None) -> tuple[CardUse, ...]:
    """The cards of a queue, and its ancestors' rows of them as far as these have a limit."""
    if queue is None:
        return ()
    uses = _card_uses(core)
    own = uses.get(queue.name, ())
    names = {use.card for use in own}
    above = [use for one in ancestors(queue, core.state.queues) for use in uses.get(one.name, ())]
    return (*own, *(use for use in above if use.card in names and use.quota is not None))


def _card_uses(core: Core) -> dict[str, tuple[CardUse, ...]]:
    """Per queue and card: the figures that the quota plugin publishes."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    totals: dict[str, float] = {}
    for _, call in core.dispatch.entries("metrics"):
        for sample in call():
            if sample.name == "card_total":
                totals[sample.labels["card"]] = sample.value
            elif sample.name.startswith("queue_card_"):
                cards = figures.setdefault(sample.labels["queue_name"], {})
                cards.setdefault(sample.labels["card"], {})[sample.name.removeprefix("queue_card_")] = sample.value
    queues = core.state.queues
    free = {
        (queue, card): max(0.0, values["capacity"] - values.get("allocated", 0.0))
        for queue, cards in figures.items()
        for card, values in cards.items()
        if "capacity" in values
    }
    limiting = {
        queue: [one.name for one in ancestors(queues[queue], queues) if is_card_quota(one.annotations.get(CARD_QUOTA))]
        for queue in figures
        if queue in queues
    }
    return {
        queue: tuple(
            CardUse(
                card,
                values.get("capacity"),
                values.get("allocated", 0.0),
                values.get("inqueue", 0.0),
                totals.get(card, 0.0),
                queue,
                min(free.get((one, card), 0.0) for one in (queue, *limiting.get(queue, ())))
                if "capacity" in values
                else None,
            )
            for card, values in sorted(cards.items())
            if "|" not in card or any(values.values())
        )
        for queue, cards in figures.items()
    }


def _ahead(session: Session | None, job: Job) -> tuple[str, ...]:
    if session is None or job.queue not in session.queues:
        return ()
    own = session.job_key(job)
    others = [
        other
        for other in session.queues[job.queue].jobs.values()
        if other is not job and other.key in session.jobs and (other.pending or not other.tasks)
    ]
    keyed = sorted((session.job_key(other), other.key) for other in others if session.job_key(other) < own)
    return tuple(key for _, key in keyed)
