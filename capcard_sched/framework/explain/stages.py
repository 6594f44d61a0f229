"""The stage of a job and the sentences that explain it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain import node_causes, sentences
from capcard_sched.framework.explain.awaited import with_awaited
from capcard_sched.framework.explain.limit_causes import (
    StageResult,
    admits_nothing,
    missing_members,
    not_admitted,
    over_limit,
)
from capcard_sched.framework.explain.never import FURTHER_POD, FURTHER_PODS, NEVER, never_causes
from capcard_sched.framework.explain.sentences import amount_of, amounts, form
from capcard_sched.model.groups import shortages_of
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.losses import losses_of, stranded_of, terminating_of
from capcard_sched.model.obstacles import obstacles_of
from capcard_sched.model.quoting import brief, escaped, plural
from capcard_sched.model.reasons import QUEUE_NOT_OPEN
from capcard_sched.model.status import ALLOCATED_STATUSES, COMPLETED_STATUSES, PodGroupPhase, TaskStatus
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import PendingPods, Stage
    from capcard_sched.model.groups import SubGroups
    from capcard_sched.model.job import Task

#: Hooks whose refusal of a job keeps it from being admitted, or from being scheduled at all.
_ADMISSION_HOOKS: Final = frozenset({"job_enqueueable", "job_valid", "session"})


def decide(data: JobFacts) -> StageResult:
    """The stage of a job: gated pods of its minimum, then what can never start, come first."""
    gated = _gated(data)
    if gated is not None:
        lost = map(sentences.capital, losses_of(data.tasks))
        return gated._replace(facts=[*gated.facts, *_besides_gates(data, gated.summary), *lost])
    if not data.waiting and (data.tasks or data.job.phase is not PodGroupPhase.PENDING):
        return _without_pending(data)
    if data.job.pending and not data.job.uid:
        return StageResult("NotProcessed", _without_group(data))
    if data.claimed_resource:
        return StageResult("Unsupported", sentences.capital(data.claimed_resource))
    found = _queue_admits_nothing(data) or _never(data) or _not_admitted(data) or _without_subgroups(data)
    found = found or _not_placed(data)
    found = with_awaited(data, found) if data.expects_nodes else found
    others = [*obstacles_of(data.job.gated.values()), *losses_of(data.tasks), *data.leaving()]
    if found.stage in {"Incomplete", "OverQuota", "NoNodeFits", "ClusterFull", "GangWaiting"}:
        others += terminating_of(data.tasks)
    elif found.stage in {"NotAdmitted", "CannotStart"} and data.tasks:  # without that cause, it would wait for them
        others += filter(None, [missing_members(data), *terminating_of(data.tasks)])
    requests = [data.provisioning] if data.provisioning and data.waiting else []
    others = [*requests, *others]
    return found._replace(facts=list(dict.fromkeys([*found.facts, *map(sentences.capital, others)])))


def _without_group(data: JobFacts) -> str:
    """`PodGroup trainr of scheduling.k8s.io does not exist; did you mean trainer?`."""
    job, native = data.job, kube_name(data.job.name)
    known = [
        kube_name(one.name) if native else one.name
        for one in data.session_snapshot.state.jobs.values()
        if one.namespace == job.namespace and one.uid and not one.implicit and bool(kube_name(one.name)) == bool(native)
    ]
    text = sentences.plain(data.refusals[0].message)
    if native:
        text = f"PodGroup {escaped(native)} of scheduling.k8s.io does not exist"
    return text + sentences.hint(native or job.name, known)


def _queue_admits_nothing(data: JobFacts) -> StageResult | None:
    """A queue that does not exist or is not open; what else keeps the job from starting follows."""
    state = data.queue.state
    is_refused = bool(data.refusals) and data.refusals[0].reason == QUEUE_NOT_OPEN.code
    is_closed = state in {"Closed", "Closing"} and data.job.phase is PodGroupPhase.PENDING
    if not data.refusals or not (state == "missing" or is_refused or is_closed):
        return None
    causes, facts = never_causes(data)
    # A refusal of the time before the queue was closed.
    too = [] if is_refused or state == "missing" else [not_admitted(data, data.refusals[0]).summary]
    return StageResult("NotAdmitted", admits_nothing(data), [*map(sentences.capital, causes), *facts, *too])


def _never(data: JobFacts) -> StageResult | None:
    causes, facts = never_causes(data)
    if not causes:
        return None
    return StageResult("CannotStart", f"{_cannot(data)}: {causes[0]}", [*map(sentences.capital, causes[1:]), *facts])


def _cannot(data: JobFacts) -> str:
    """`Can never start`; of a job that has its minimum, only its further pods cannot."""
    if data.job.ready_tasks < max(data.job.min_available, 1):
        return NEVER
    return FURTHER_POD if len(data.waiting) == 1 else FURTHER_PODS


def _not_admitted(data: JobFacts) -> StageResult | None:
    """A job that enqueue or a check of the whole job refuses."""
    if not data.refusals:
        return None if data.pending else StageResult("NotAdmitted", "The PodGroup waits for admission (action enqueue)")
    first = data.refusals[0]
    if first.hook == "hyper_node_order":
        pods = next((pods for pods in data.pending if pods.nodes), None)
        summary, facts = node_causes.no_node(data, pods, restricted=True) if pods is not None else ("", [])
        within = sentences.capital(sentences.plain(first.message).partition(": none of them")[0])
        cause = sentences.lower(summary).removeprefix("no node fits: ")
        return StageResult("NoNodeFits", f"{within}{': ' if cause else ''}{cause}", facts)
    if (head := data.head) is not None:
        text = f"Waits behind {display_name(head)}, the first job of FIFO queue {data.queue.name}"
        return StageResult("NotTried", text)
    if first.hook == "overused" and all(pods.outcome == "unfit" for pods in data.pending):  # tried by backfill
        return None
    if first.hook == "allocatable":
        return over_limit(data, data.pending[0], first, 0)
    if first.hook not in _ADMISSION_HOOKS:  # a deadline
        return StageResult("NotTried", sentences.capital(sentences.plain(first.message)))
    return not_admitted(data, first)


def _without_subgroups(data: JobFacts) -> StageResult | None:
    """The policies of a job below their minimum, and the reason of each template of pods that no node fits."""
    groups = data.job.groups
    lines = [] if groups is None else shortages_of(groups, _startable(data, groups), "can start")
    pods = next((pods for pods in data.pending if pods.outcome == "unfit"), None)
    if pods is None:
        return None
    if not lines:
        return _without_further_subgroup(data, pods)
    facts = [f"{each.names[0]}: {sentences.plain(each.message)}" for each in data.pending if each.message]
    _, further = node_causes.no_node(data, pods)
    # The policy of the pods that fit no node first: those of others may wait for it.
    lines.sort(key=lambda line: line.partition(":")[0] not in pods.message)
    first, *others = map(sentences.capital, lines)
    return StageResult("NoNodeFits", first, [*others, *facts, *further])


def _startable(data: JobFacts, groups: SubGroups) -> list[int]:
    """By policy, the number of subgroups that are ready, or whose pods fit beside those of the others."""
    found = groups.ready()
    fitting = {name for pods in data.pending if pods.outcome == "schedulable" for name in pods.names}
    members = Counter(groups.of(task) for task in data.tasks if task.name in fitting)
    for group, count in members.items():
        if group is not None and groups.ready_of(group) < groups.size_of(group) <= groups.ready_of(group) + count:
            found[group.policy] += 1
    return found


def _without_further_subgroup(data: JobFacts, pods: PendingPods) -> StageResult | None:
    """The subgroup without nodes of a job that has its minimum: its domain may exclude nodes with free amounts."""
    task = next((task for task in data.tasks if task.name == pods.names[0]), None)
    groups = data.job.groups
    if groups is None or task is None or (group := groups.of(task)) is None or not pods.message:
        return None
    if groups.ready_of(group) >= groups.size_of(group):
        return None
    _, further = node_causes.no_node(data, pods)
    return StageResult("NoNodeFits", sentences.capital(sentences.plain(pods.message)), further)


def _not_placed(data: JobFacts) -> StageResult:
    """The first pod of the gang without a node is the cause; those of other templates follow."""
    fitting = sum(len(pods.names) for pods in data.pending if pods.outcome == "schedulable")
    pipelined = [pods for pods in data.pending if pods.outcome == "pipelined"]
    if pipelined:
        return _nominated(pipelined)
    found: list[StageResult] = []
    for pods in data.pending:
        if pods.outcome == "refused" and (refusal := data.refusal_of(pods)) is not None:
            result = over_limit(data, pods, refusal, fitting)
            if fitting:
                result = result._replace(
                    stage="GangWaiting",
                    summary=f"{node_causes.partly(data, fitting)}: {sentences.lower(result.summary)}",
                )
            found.append(result)
        elif pods.outcome == "unfit" and fitting:
            found.append(StageResult("GangWaiting", *node_causes.gang_waits(data, pods, fitting)))
        elif pods.outcome == "unfit":
            found.append(StageResult("NoNodeFits", *node_causes.no_node(data, pods)))
    if found:
        first, *others = {result.summary: result for result in found}.values()
        more = [other.summary.rpartition("the gang starts with")[2] or other.summary for other in others]
        more = [sentences.capital(text.partition(": ")[2] if fitting else text) for text in more]
        return first._replace(facts=[*more, *first.facts])
    if fitting and data.job.groups is not None:
        nodes = brief(sorted({pods.node for pods in data.pending if pods.node}))
        summary = f"Each subgroup fits alone (on {nodes}), and those that the gang starts with do not fit together"
        return StageResult("GangWaiting", summary)
    if fitting:
        return StageResult("GangWaiting", node_causes.partly(data, fitting))
    held = [task.name for task in data.tasks if task.held]
    if held:
        return StageResult("BindBackoff", f"Binding {brief(held)} failed; it is retried after a backoff")
    return StageResult("NotTried", "The pods were not tried in the last session")


def _nominated(pods: list[PendingPods]) -> StageResult:
    """Pods that wait for victims."""
    count = sum(len(one.names) for one in pods)
    node = next((one.node for one in pods if one.node), "")
    to = f" to {node}" if node else ""
    return StageResult(
        "VictimsTerminating", f"{plural(count, 'pod')} nominated{to}; waiting for the victims to terminate"
    )


def _besides_gates(data: JobFacts, summary: str) -> list[str]:
    """What keeps a job from starting without its gates, too. `summary`: the obstacle of its pods."""
    if data.queue.state != "Open":
        return [admits_nothing(data)]
    causes, _ = never_causes(data)
    first = [one for one in data.refusals[:1] if one.hook == "job_enqueueable" and one.message != summary]
    refused = [not_admitted(data, one).summary for one in first]
    return [f"{NEVER} without the gates, too: {cause}" for cause in causes] or refused


# --- gated pods ---------------------------------------------------------------------------------------------------


def _gated(data: JobFacts) -> StageResult | None:
    """The obstacles of gated pods: of the pod in question, else of those that the minimum of the job needs."""
    gated = data.job.gated
    if data.pod is not None and data.pod.uid in gated:
        return _obstacles([data.pod])
    return _obstacles(gated.values()) if data.job.needs_gated() else None


def _obstacles(tasks: Iterable[Task]) -> StageResult:
    sentences_of = list(map(sentences.capital, obstacles_of(tasks)))
    stage: Stage = "Unsupported" if any(task.unsupported for task in tasks) else "Gated"
    return StageResult(stage, sentences_of[0], sentences_of[1:])


# --- no pending pods ----------------------------------------------------------------------------------------------


def _without_pending(data: JobFacts) -> StageResult:
    tasks = data.tasks
    if data.coming:
        nodes = sorted({task.node.name for task in data.coming if task.node is not None})
        return StageResult("Schedulable", f"The next session binds {plural(len(data.coming), 'pod')} to {brief(nodes)}")
    if not tasks and data.admitted_now:
        return StageResult("Schedulable", "The next session admits the PodGroup; then its controller creates the pods")
    if not tasks:
        return StageResult("NoPods", "The PodGroup is admitted, and its controller has not created any pods yet")
    held = [task for task in tasks if task.held]
    if held:
        return StageResult(
            "BindBackoff",
            f"Binding {brief([task.name for task in held])} failed; it is retried after a backoff",
        )
    if data.job.gated and data.pod is None:
        return _obstacles(data.job.gated.values())
    # A pod that waits for its devices has a node, and no binding yet.
    losses = losses_of(tasks) or data.preparing()
    leaving = sum(task.status is TaskStatus.RELEASING for task in tasks)
    if data.pod is not None:
        status = "Terminating" if leaving else data.pod.status.title
        on = f" on {data.pod.node.name}" if data.pod.node is not None else ""
        stage: Stage = "Terminating" if leaving else "Scheduled"
        if data.pod.status in COMPLETED_STATUSES:
            stage = "Finished"
        return StageResult(stage, f"Not pending: {losses[0] if losses else f'pod {data.pod.name} is {status}{on}'}")
    if all(task.status in COMPLETED_STATUSES for task in tasks):
        return StageResult("Finished", "Not pending: all pods have finished", list(map(sentences.capital, losses)))
    if losses:
        return _with_losses(data, losses, leaving)
    if leaving:
        verb = form(leaving, "is", "are")
        return StageResult("Terminating", f"Not pending: {leaving} of {plural(len(tasks), 'pod')} {verb} terminating")
    return StageResult("Scheduled", "Not pending: all pods are scheduled", _shares(data))


def _with_losses(data: JobFacts, losses: list[str], leaving: int) -> StageResult:
    """A job without pending pods whose members failed, or are on nodes that are not ready."""
    job, facts = data.job, list(map(sentences.capital, losses[1:]))
    alive = sum(task.status in ALLOCATED_STATUSES and not stranded_of((task,)) for task in data.tasks)
    if alive + job.counts[TaskStatus.SUCCEEDED] < job.min_available:
        summary = f"{alive} of {plural(len(data.tasks), 'pod')} {form(alive, 'runs', 'run')}"
        return StageResult("Degraded", f"{summary}, below the minimum of {job.min_available}: {losses[0]}", facts)
    stage: Stage = "Terminating" if leaving else "Scheduled"
    return StageResult(stage, f"Not pending: {losses[0]}", [*facts, *_shares(data)])


def _shares(data: JobFacts) -> list[str]:
    """The limits of the queue and what it can still use, and the users of its ancestors."""
    facts = []
    for row in data.limits:
        if row.queue != data.queue.name:
            used = amounts(row.resource, row.used, row.quota)
            above = sentences.capital(data.related_queue(row.queue))
            by = f" by {sentences.holders(row, row.users)}" if row.users else ""
            facts.append(f"{above}: {used} used{by}")
        elif row.quota and row.usable is not None:
            used, more = amounts(row.resource, row.used, row.quota), amount_of(row.resource, row.usable)
            facts.append(f"Queue {row.queue} uses {used} and can use {more} more")
    return facts
