"""The stage of a job and the sentences that explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.framework.close.podgroups import refusal_of
from capcard_sched.framework.explain import sentences
from capcard_sched.framework.explain.sentences import amount_of, amounts, form, nearest, quantity
from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.cards import no_card_quota
from capcard_sched.model.losses import losses_of, stranded_of
from capcard_sched.model.obstacles import obstacles_of
from capcard_sched.model.quantity import in_units
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.resources import CPU, MEMORY, VGPU_RESOURCES
from capcard_sched.model.status import ALLOCATED_STATUSES, COMPLETED_STATUSES, PodGroupPhase, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import LimitUse, Stage
    from capcard_sched.model.job import Task
    from capcard_sched.model.refusal import Figures


#: Hooks whose refusal of a job keeps it from being admitted, or from being scheduled at all.
_ADMISSION_HOOKS: Final = frozenset({"job_enqueueable", "job_valid", "session"})

#: The beginning of the sentence about a job that can never start.
NEVER: Final = "Can never start"


class StageResult(NamedTuple):
    """The stage, its answer in one sentence, and further sentences."""

    stage: Stage
    summary: str
    facts: Sequence[str] = ()


def decide(data: JobFacts) -> StageResult:
    """The stage of a job: gated pods of its minimum, then what can never start, come first."""
    gated = _gated(data)
    if gated is not None:
        return gated
    if not data.waiting and (data.tasks or data.job.phase is not PodGroupPhase.PENDING):
        return _without_pending(data)
    if data.job.pending and not data.job.uid:
        return StageResult("NotProcessed", refusal_of(data.job).message)
    if data.claimed_resource:
        return StageResult("Unsupported", sentences.capital(data.claimed_resource))
    found = _never(data) or _not_admitted(data) or _not_placed(data)
    others = [*obstacles_of(data.job.gated.values()), *losses_of(data.tasks)]
    return found._replace(facts=[*found.facts, *map(sentences.capital, others)])


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
    losses = losses_of(tasks)
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
            facts.append(f"Queue {row.queue}, its ancestor, uses {used}: {sentences.holders(row, row.users)}")
        elif row.quota and row.usable is not None:
            used, more = amounts(row.resource, row.used, row.quota), amount_of(row.resource, row.usable)
            facts.append(f"Queue {row.queue} uses {used} and can use {more} more")
    return facts


# --- jobs that can never start --------------------------------------------------------------------------------------


def _never(data: JobFacts) -> StageResult | None:
    unusable = _unusable_cards(data)
    causes = [*unusable, *_over_every_limit(data), *_larger_than_nodes(data), *_larger_than_cluster(data)]
    if not causes:
        return None
    # A card without nodes has no resource: pods that name one count as pods without cards.
    facts = [*map(sentences.capital, causes[1:]), *([] if unusable else _declared(data))]
    return StageResult("CannotStart", f"{NEVER}: {causes[0]}", facts)


def _declared(data: JobFacts) -> list[str]:
    """Differences between `card.request` and the pods, and which of them counts."""
    if not data.declared or data.declared == data.counted:
        return []
    declared = " and ".join(quantity(card, amount / 1000) for card, amount in data.declared.items())
    if not data.tasks:
        return [f"volcano.sh/card.request declares {declared}; it counts until the pods are created"]
    counted = " and ".join(quantity(card, amount / 1000) for card, amount in data.counted.items()) or "no cards"
    return [f"volcano.sh/card.request declares {declared}, and the pods request {counted}; the pods count"]


def _unusable_cards(data: JobFacts) -> list[str]:
    causes = []
    for cards in data.pod_cards:
        if cards.names and not cards.alternatives and (cause := _without_nodes(data, cards.names)):
            causes.append(cause)
        elif cards.error:
            causes.append(sentences.plain(cards.error))
    if not data.tasks:
        causes += [cause for card in data.declared if (cause := _without_nodes(data, card.split("|")))]
    return list(dict.fromkeys(causes))


def _without_nodes(data: JobFacts, cards: Sequence[str]) -> str:
    """That no node provides any of the cards; "" if one does."""
    if any(name in data.known_cards for name in cards):
        return ""
    close = [found for name in cards if (found := nearest(name, data.known_cards))]
    meant = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
    known = "" if close else f"; the nodes provide {brief(data.known_cards) or 'no cards'}"
    return f"no node provides card {' or '.join(cards)}{meant}{known}"


def _over_every_limit(data: JobFacts) -> list[str]:
    if data.exceeded is None:
        return []
    found, queue = data.exceeded.figures, data.exceeded.queue
    needed, limit = in_units(found.resource, found.requested), in_units(found.resource, found.limit)
    resource = found.resource.replace("|", " or ")
    minimum = (
        f"the minimum of {plural(data.job.min_available, 'pod')} needs" if data.job.min_available > 1 else "it needs"
    )
    if not data.tasks and found.resource in data.declared:
        minimum = f"by {CARD_REQUEST} it needs"
    of_card = found.resource not in (CPU, MEMORY, *VGPU_RESOURCES)
    if of_card and not limit and queue == data.queue.name and not (data.quota or data.quota_problem):
        return [f"{no_card_quota(queue)}; {minimum} {quantity(resource, needed)}"]
    if of_card and not limit and queue == data.queue.name and (cause := _without_quota(data, found.resource)):
        return [f"queue {queue} has no quota for {resource}: {cause}"]
    return [f"{minimum} {quantity(resource, needed)}, and the quota of queue {queue} is {amount_of(resource, limit)}"]


def _without_quota(data: JobFacts, card: str) -> str:
    """Why the quota of a card is 0; "" for a quota that sets it to 0."""
    if data.quota_problem:
        return f"its card quota is invalid ({sentences.plain(data.quota_problem)}), so all its card quotas are 0"
    if card in data.quota:
        return ""
    close = [name for name in data.quota if name not in data.known_cards and nearest(name, data.known_cards) == card]
    if close:
        return f"its quota names {close[0]}, which no node provides; did you mean {card}?"
    cause = f"its quota names {brief(sorted(data.quota))}"
    if data.card_labels.is_device(card):
        cause += f"; nodes without the {data.card_labels.needed(card)} offer {card}"
    return cause


def _larger_than_nodes(data: JobFacts) -> list[str]:
    """Pods that exceed the largest node, and gangs that exceed all nodes together, when these are empty."""
    rows = [row for row in data.capacity if row.per_pod]
    cards = [cards for cards in data.pod_cards if cards.amount]
    for single in data.pod_cards:
        small = [row for row in rows if row.largest_node < row.per_pod]
        if single.amount:
            own = [row for row in rows if row.card in single.alternatives]
        else:
            own = [row for row in small if row.card == row.resource][:1]
        if own and all(row in small for row in own):
            row = max(own, key=lambda row: row.largest_node)
            names = " or ".join(row.card for row in own)
            largest = amount_of(row.card, row.largest_node)
            return [f"each pod needs {quantity(names, row.per_pod)}, and the largest node has {largest}"]
    job = data.job
    if len(data.pod_cards) != 1 or job.is_ready() or not rows:
        return []
    own = [row for row in rows if row.card in data.pod_cards[0].alternatives] if cards else rows[:1]
    if own and sum(row.fits_when_empty for row in own) < job.min_available:
        names = " or ".join(row.card for row in own)
        needed = own[0].per_pod * job.min_available
        total = sum(row.total for row in own)
        has = f"the cluster has {amount_of(names, total)}"
        if needed <= total:
            has = f"its nodes have space for {plural(sum(row.fits_when_empty for row in own), 'pod')}"
        return [f"minAvailable {job.min_available} needs {quantity(names, needed)}, and {has}"]
    return []


def _larger_than_cluster(data: JobFacts) -> list[str]:
    """A minimum that exceeds the share of a queue without a limit of its own, when nothing is used."""
    figures = data.refusals[0].figures if data.refusals and data.exceeded is None else None
    if figures is None or data.refusals[0].hook not in _ADMISSION_HOOKS or figures.requested <= figures.limit:
        return []
    resource = figures.resource
    needed, most = in_units(resource, figures.requested), in_units(resource, figures.limit)
    has = f"the cluster has {amount_of(resource, most)} for queue {data.queue.name}"
    if data.guaranteed:
        has += " beside the guarantees of other queues"
    return [f"it needs {quantity(resource.replace('|', ' or '), needed)}, and {has}"]


# --- admission ------------------------------------------------------------------------------------------------------


def _not_admitted(data: JobFacts) -> StageResult | None:
    if not data.refusals:
        return None if data.pending else StageResult("NotAdmitted", "The PodGroup waits for admission (action enqueue)")
    first = data.refusals[0]
    queue = data.queue.name
    if first.hook not in _ADMISSION_HOOKS:  # a deadline, or the head of a FIFO queue
        return StageResult("NotTried", sentences.capital(sentences.plain(first.message)))
    if data.queue.state == "missing":
        close = nearest(queue, data.queues)
        meant = f"; did you mean {close}?" if close else f"; existing queues: {brief(data.queues)}"
        return StageResult("NotAdmitted", f"Queue {queue} does not exist{meant}")
    if first.reason == reasons.QUEUE_NOT_OPEN.code:
        return StageResult("NotAdmitted", f"Queue {queue} is {data.queue.state}: it admits no jobs")
    figures = first.figures
    if figures is None:
        return StageResult("NotAdmitted", f"The PodGroup is not admitted: {sentences.plain(first.message)}")
    return StageResult("NotAdmitted", *_admission_shortage(data, figures))


def _admission_shortage(data: JobFacts, figures: Figures) -> tuple[str, list[str]]:
    resource = figures.resource
    needed, limit = in_units(resource, figures.requested), in_units(resource, figures.limit)
    row = _limiting_row(data, resource, limit)
    taken = max(0.0, in_units(resource, figures.total) - needed)
    used = min(row.used, taken) if row is not None else taken
    split = f"{amount_of(resource, used)} used"
    if row is None:
        split += " or reserved"
    elif taken > used:
        split += f", {amount_of(resource, taken - used)} reserved"
    where = f"queue {row.queue if row is not None else data.queue.name}"
    left = quantity(resource, max(0.0, limit - taken))
    summary = (
        f"The PodGroup is not admitted: it needs {quantity(resource.replace('|', ' or '), needed)}, and {where} has "
        f"{left} left of its quota of {amount_of(resource, limit)} ({split})"
    )
    missing = needed - max(0.0, limit - taken)
    quota = amount_of(resource, taken + needed)
    released = f"{quantity(resource, missing)} of {where} {form(missing, 'becomes', 'become')} free"
    facts = [f"It is admitted when {released}, or with a quota of {quota}"]
    facts += sentences.users(row)
    if resource in (CPU, MEMORY):
        facts += [
            f"Cards are not the reason: queue {other.queue} has {amount_of(other.resource, other.free)} of "
            f"{quantity(other.resource, other.quota)} free"
            for other in data.limits
            if other.quota and other.resource not in (CPU, MEMORY) and (other.free or 0) >= other.requested
        ]
    return summary, facts


def _limiting_row(data: JobFacts, resource: str, limit: float) -> LimitUse | None:
    rows = [row for row in data.limits if row.resource in (resource, *resource.split("|"))]
    return next((row for row in rows if row.resource == resource and row.quota == limit), rows[0] if rows else None)


# --- placement ------------------------------------------------------------------------------------------------------


def _not_placed(data: JobFacts) -> StageResult:
    counts = {
        kind: sum(len(pods.names) for pods in data.pending if pods.outcome == kind)
        for kind in ("refused", "unfit", "schedulable", "pipelined")
    }
    if counts["pipelined"]:
        node = next((pods.node for pods in data.pending if pods.outcome == "pipelined" and pods.node), "")
        to = f" to {node}" if node else ""
        return StageResult(
            "VictimsTerminating",
            f"{plural(counts['pipelined'], 'pod')} nominated{to}; waiting for the victims to terminate",
        )
    if counts["schedulable"]:
        return StageResult("GangWaiting", *_gang(data, counts["schedulable"]))
    if counts["refused"]:
        if data.quota_refusal is not None:
            return StageResult("OverQuota", *sentences.over_quota(data))
        found = next(pods for pods in data.pending if pods.outcome == "refused")
        own = found.refusal is not None and not found.refusal.plugin  # of the framework: FIFO queues, deadlines
        return StageResult("NotTried" if own else "OverQuota", sentences.capital(sentences.plain(found.message)))
    if counts["unfit"]:
        summary, facts = sentences.no_node(data)
        return StageResult("NoNodeFits", summary, facts)
    held = [task.name for task in data.tasks if task.held]
    if held:
        return StageResult("BindBackoff", f"Binding {brief(held)} failed; it is retried after a backoff")
    return StageResult("NotTried", "The pods were not tried in the last session")


def _gang(data: JobFacts, fitting: int) -> tuple[str, list[str]]:
    job = data.job
    verb = form(fitting, "fits", "fit")
    placed = f" beside {job.ready_tasks} scheduled" if job.ready_tasks else ""
    summary = f"{fitting} of {plural(len(data.waiting), 'pending pod')} {verb} now{placed}"
    summary += f", and the gang starts with {job.min_available}"
    facts = []
    if any(pods.outcome == "refused" for pods in data.pending) and data.quota_refusal is not None:
        over, more = sentences.over_quota(data, gang=True)
        return f"{summary}: {sentences.lower(over)}", more
    for row in data.capacity:
        enough = [node for node in row.candidates if node.free >= row.per_pod]
        count = sum(bar.nodes for bar in row.histogram if bar.free >= row.per_pod)
        has = f"{plural(count, 'node')} {form(count, 'has', 'have')} them"
        listed = f" ({brief([node.name for node in enough])})" if enough else ""
        which = f" that requests {row.card}" if len(data.capacity) > 1 else ""
        facts.append(f"Each pod{which} needs {quantity(row.card, row.per_pod)} free on one node; {has}{listed}")
    if facts:
        summary += f": {sentences.lower(facts.pop(0))}"
    return summary, [*facts, *sentences.nodes(data)]
