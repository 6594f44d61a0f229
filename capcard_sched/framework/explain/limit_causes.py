"""Sentences about refusals by limits: of a queue, an ancestor, a ResourceQuota, or the cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.framework.explain import sentences
from capcard_sched.framework.explain.sentences import amount_of, amounts, form, nearest, quantity
from capcard_sched.model import reasons
from capcard_sched.model.groups import shortages_of
from capcard_sched.model.namespace_queues import missing_text
from capcard_sched.model.quantity import in_units
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import LimitUse, PendingPods, Stage
    from capcard_sched.model.refusal import Figures, Refusal


#: Of pods that do not count for the minimum of their gang.
_NOT_VALID: Final = frozenset({TaskStatus.RELEASING, TaskStatus.FAILED, TaskStatus.UNKNOWN})


#: The beginning of the sentence about missing members of a gang.
INCOMPLETE: Final = "The gang is not complete:"
_POD_COUNTS: Final = {1: "The next pod starts", 2: "Both pods start"}


class QuotaClaim(NamedTuple):
    """A sentence about a larger quota, which holds where a trial with each of the quotas shows it."""

    text: str
    #: Queue, card or resource, and the new limit, in the units of the diagnosis.
    quotas: tuple[tuple[str, str, float], ...]
    #: Pods that start; 0: the PodGroup is admitted.
    pods: int


class StageResult(NamedTuple):
    """The stage, its cause in one sentence, and further sentences."""

    stage: Stage
    summary: str
    facts: Sequence[str] = ()
    #: Sentences of which the first one that a trial shows is printed.
    claims: Sequence[QuotaClaim] = ()


# --- admission ------------------------------------------------------------------------------------------------------


def not_admitted(data: JobFacts, refusal: Refusal) -> StageResult:
    """A PodGroup that enqueue refuses, or that is not valid."""
    if data.queue.state == "missing" or refusal.reason == reasons.QUEUE_NOT_OPEN.code:
        return StageResult("NotAdmitted", admits_nothing(data))
    if refusal.reason == reasons.QUEUE_NOT_READY.code:
        return StageResult("NotAdmitted", sentences.plain(refusal.message))
    if refusal.reason == reasons.NOT_ENOUGH_PODS_OF_TASK.code or refusal.hook == "job_valid":
        return StageResult("Incomplete", missing_members(data) or sentences.capital(sentences.plain(refusal.message)))
    figures = refusal.figures
    if figures is None:
        return StageResult("NotAdmitted", f"The PodGroup is not admitted: {sentences.plain(refusal.message)}")
    found = _above_limit(data, refusal, figures)
    short, _ = _quotas_too(data, (refusal.queue, figures.resource))
    return found._replace(facts=[*found.facts, *short])


def _above_limit(data: JobFacts, refusal: Refusal, figures: Figures) -> StageResult:
    """A PodGroup that a limit refuses."""
    resource = figures.resource
    needed = in_units(resource, figures.requested)
    limit = in_units(resource, figures.limit)
    taken = max(0.0, in_units(resource, figures.total - figures.requested))
    split = _split(resource, taken, in_units(resource, figures.reserved))
    row = data.limit_row(refusal.queue, resource)
    # `A|B` is the name of a quota of several cards, or names the alternatives, each with a quota of its own.
    is_joint = "|" in resource and row is None
    left = quantity(data.models(resource) if is_joint else resource, max(0.0, limit - taken))
    needs = f"The PodGroup is not admitted: it needs {quantity(data.models(resource), needed)}"
    facts: list[str] = []
    if refusal.limiter is not None and refusal.limiter.kind == "ResourceQuota":
        owner = f"ResourceQuota {refusal.limiter.name} of namespace {data.job.namespace}"
        has = f"{owner} has {left} left of {amount_of(resource, limit)} ({split})"
        further = "".join(map(_of_quota, refusal.alternatives))
        return StageResult("NotAdmitted", f"{needs}, and {has}{further}")
    if refusal.limiter is not None:
        most = f"{amount_of(resource, limit)} that {refusal.plugin} admits"
        if refusal.limiter.factor != 1:
            most += f" (factor {refusal.limiter.factor:g})"
        holder = f"queue {refusal.limiter.name}" if refusal.limiter.kind == "Queue" else "the cluster"
        return StageResult("NotAdmitted", f"{needs}, and {holder} has {left} left of the {most}: {split}")
    owner = data.named_queue(refusal.queue)
    if not data.is_own_limit(refusal, figures):
        return StageResult("NotAdmitted", f"{needs}, and {data.given_by(refusal.queue, figures, refusal)}: {split}")
    facts += sentences.users(row, display_name(data.job))
    # Admission counts no pods above the minimum of their job; an end of such pods leaves the queue as full.
    reserved = in_units(resource, figures.reserved)
    counted = taken - reserved
    used = _used_of(data, refusal.queue, resource) if row is None else row.used
    elastic = used - counted if not data.job.ready_tasks else 0.0
    if row is not None and counted > row.used:  # admission counts nominated pods as used, the limit as reserved
        split = _split(resource, taken, reserved + min(counted - row.used, max(0.0, row.reserved - reserved)))
    if elastic > 0:
        split = _split(resource, taken + elastic, in_units(resource, figures.reserved))
        split += f"; {amount_of(resource, elastic)} of pods above their minimum do not count"
    if resource in (CPU, MEMORY):
        facts += [
            f"Cards are not the reason: {_has_free(other)}"
            for other in data.limits
            if other.quota
            and other.resource not in (CPU, MEMORY)
            and (other.free or 0) >= max(other.requested, _devices(data))
        ]
    summary = f"{needs}, and {owner} has {left} left of its quota of {amount_of(resource, limit)} ({split})"
    missing = 0.0 if elastic > 0 or data.queue.ahead else taken + needed - limit
    quota = _whole(resource, taken + needed)
    text = _when("It is admitted", owner, resource, missing, quota)
    claims = () if "|" in resource else (QuotaClaim(text, ((refusal.queue, resource, quota),), 0),)
    return StageResult("NotAdmitted", summary, facts, claims)


def _used_of(data: JobFacts, queue: str, claim: str) -> float:
    """The usage of the cards of a claim `A|B`; 0 where one is above its quota, which takes nothing from the others."""
    rows = [row for card in claim.split("|") if (row := data.limit_row(queue, card)) is not None]
    return 0.0 if any(row.over for row in rows) else sum(row.used for row in rows)


def _devices(data: JobFacts) -> float:
    """The devices of `minResources`, for a job without pods: their cards are not known."""
    amounts_of = {} if data.tasks else data.job.min_resources or {}
    return sum(in_units(name, amount) for name, amount in amounts_of.items() if data.card_labels.is_device(name))


def admits_nothing(data: JobFacts) -> str:
    """That the queue of a job does not exist, or is not open."""
    queue = data.queue.name
    if data.queue.state != "missing":
        return f"Queue {queue} is {data.queue.state}: it admits no jobs"
    if "/" in queue:
        return sentences.plain(missing_text(queue))
    close = nearest(queue, data.queues)
    meant = f"; did you mean {close}?" if close else f"; existing queues: {brief(data.queues)}"
    return f"Queue {queue} does not exist{meant}"


def _of_quota(figures: Figures) -> str:
    """Another amount that a ResourceQuota lacks."""
    resource, needed = figures.resource, in_units(figures.resource, figures.requested)
    limit, total = in_units(resource, figures.limit), in_units(resource, figures.total)
    reserved = in_units(resource, figures.reserved)
    left = amount_of(resource, max(0.0, limit - total + needed))
    split = _split(resource, max(0.0, total - needed), reserved)
    return f"; it needs {quantity(resource, needed)}, with {left} left of {amount_of(resource, limit)} ({split})"


def _split(resource: str, taken: float, reserved: float) -> str:
    used = f"{amount_of(resource, taken - reserved)} used"
    return f"{used}, {amount_of(resource, reserved)} admitted and not yet running" if reserved else used


def missing_members(data: JobFacts) -> str:
    """The tasks of a gang that lack pods, and the pods that failed; "" without a number that is too small."""
    job = data.job
    parts = []
    for role, minimum in job.min_task_member.items() if job.checks_roles else ():
        pods = sum(task.role == role and task.status not in _NOT_VALID for task in job.tasks.values())
        if pods < minimum:
            parts.append(f"task {role} has {pods} of {plural(minimum, 'pod')}")
    if parts:
        return f"{INCOMPLETE} {', '.join(parts)}"
    if job.valid_tasks < job.min_available:
        verb = form(job.valid_tasks, "exists", "exist")
        return f"{INCOMPLETE} {job.valid_tasks} of {plural(job.min_available, 'pod')} {verb}"
    lines = [] if job.groups is None else shortages_of(job.groups, job.groups.complete(), "exist")
    return f"{INCOMPLETE} {'; '.join(lines)}" if lines else ""


# --- pods -----------------------------------------------------------------------------------------------------------


def over_limit(data: JobFacts, refused: PendingPods, refusal: Refusal, fitting: int) -> StageResult:
    """Pods that a limit refuses. `fitting`: other pods of the gang have nodes, and none starts alone."""
    figures = refusal.figures
    if figures is None:
        if refusal.reason == reasons.QUEUE_NOT_OPEN_ALLOCATE.code and data.queue.state not in ("Open", "missing"):
            return StageResult(
                "NotAdmitted", f"Queue {data.queue.name} is {data.queue.state}: no pod of it is scheduled"
            )
        stage: Stage = "OverQuota" if refusal.plugin else "NotTried"
        return StageResult(stage, sentences.capital(sentences.plain(refusal.message)))
    rows = _refusing_rows(data, refusal, figures)
    count = sum(len(one.names) for one in data.pending if one.outcome == "refused" and one.refusal == refused.refusal)
    per_pod = rows[0].requested_per_pod or in_units(figures.resource, figures.requested)
    names = " or ".join(row.resource for row in rows)
    wanted = " or ".join(dict.fromkeys(data.models(row.resource) for row in rows))
    if "|" in rows[0].resource:  # the limit of several cards, of which the pods may accept some
        wanted = " or ".join(data.cards_of_pods.get(refused.names[0], ())) or wanted
    each = "" if count == 1 else " each"
    needs, starts = (
        f"{plural(count, 'pending pod')} {form(count, 'needs', 'need')} {quantity(wanted, per_pod)}{each}",
        count,
    )
    is_gang = fitting > 0 and len(data.pod_cards) == 1
    if is_gang:
        starts = max(1, data.job.starting_pods - data.job.ready_tasks)
        needs = f"the gang needs {quantity(wanted, starts * per_pod)}"
    first = rows[0]
    if len(rows) == 1 and not data.is_own_limit(refusal, figures):
        used = amount_of(first.resource, first.used)
        return StageResult(
            "ClusterFull",
            f"{sentences.capital(needs)}, and {data.given_by(refusal.queue, figures, refusal)}: {used} used",
        )
    queues = list(dict.fromkeys(row.queue for row in rows))
    of, has = _subject(data, queues), form(len(queues), "has", "have")
    absent = [row for row in rows if not (row.quota or row.used) and len(rows) > 1]
    used = " and ".join(
        amounts(row.resource, row.used, row.quota) + (f" of queue {row.queue}" if len(queues) > 1 else "")
        for row in rows
        if row not in absent or len(absent) == len(rows)
    )
    if any(row.over for row in rows):
        over = sum(row.over for row in rows)
        summary = f"{of} {form(len(queues), 'is', 'are')} over {form(len(queues), 'its', 'their')} quota by "
        summary += f"{amount_of(names, over)}: {used} used; {needs}"
    elif not any(row.free for row in rows):
        left = f"left: {used} used" if any(row.quota for row in rows) else f"for {names}"
        summary = f"{of} {has} no quota {left}; {needs}"
    else:
        summary = f"{of} {has} too little quota left: {used} used; {needs}"
    facts = [f"Queue {row.queue} has no quota for {row.resource}" for row in absent if len(absent) < len(rows)]
    facts += [fact for row in rows for fact in sentences.users(row, display_name(data.job))]
    counts = dict.fromkeys((starts, 1)) if len(rows) > 1 and not is_gang else (starts if is_gang else 1,)
    claims = [one for pods in counts if (one := _claim(data, rows, per_pod, pods, is_gang=is_gang)) is not None]
    return StageResult("OverQuota", summary, facts, claims)


def _refusing_rows(data: JobFacts, refusal: Refusal, figures: Figures) -> list[LimitUse]:
    """The limit that refuses, or that of each card that the pods accept."""
    keys = figures.resource.split("|")
    groups = [row for row in data.limits if "|" in row.resource and set(keys) <= set(row.resource.split("|"))]
    short = [
        row
        for row in groups
        if row.free is not None
        and (row.free < row.requested_per_pod or (row.queue, row.resource) == (refusal.queue, figures.resource))
    ]
    if short:  # the limit of several cards together
        return short[:1]
    if len(keys) > 1:
        return [row for key in keys if (row := _tightest(data, key)) is not None] or [data.row_of(refusal, figures)]
    row = data.limit_row(refusal.queue, figures.resource) if data.is_own_limit(refusal, figures) else None
    return [row or data.row_of(refusal, figures)]


def _tightest(data: JobFacts, resource: str) -> LimitUse | None:
    """The limit that refuses one pod, that of the queue or of its nearest ancestor; without one, the smallest."""
    rows = [row for row in data.limits if row.resource == resource]
    short = [row for row in rows if row.free is not None and row.free < row.requested_per_pod]
    smallest = sorted((row for row in rows if row.free is not None), key=lambda row: row.free or 0.0)
    return next(iter((*short, *smallest, *rows)), None)


def _subject(data: JobFacts, queues: Sequence[str]) -> str:
    """The queues that lack quota, with their relation to the queue of the job."""
    own, above = data.queue.name, [data.related_queue(name) for name in queues if name != data.queue.name]
    if len(above) == len(queues):
        return sentences.capital(" and ".join(above))
    return f"Queue {own}{''.join(f' and its {name}' for name in above)}"


def _claim(data: JobFacts, rows: Sequence[LimitUse], per_pod: float, pods: int, *, is_gang: bool) -> QuotaClaim | None:
    """What has to become free, or which quota is needed. `rows`: the limit of each alternative; `pods` start."""
    if any(row.quota is None for row in rows):
        return None
    who = "The gang starts" if is_gang else _POD_COUNTS.get(pods, f"All {pods} start")
    if len(rows) == 1:
        row = rows[0]
        missing = row.used + pods * per_pod - (row.quota or 0.0)
        if missing <= 0:  # pods of other templates take the rest
            return None
        quota = _whole(row.resource, row.used + pods * per_pod)
        text = _when(who, f"queue {row.queue}", row.resource, 0.0 if data.queue.ahead else missing, quota)
        return QuotaClaim(text, ((row.queue, row.resource, quota),), pods)
    if len({row.queue for row in rows}) > 1 or (is_gang and any((row.free or 0) >= per_pod for row in rows)):
        return None  # a gang that shares its pods among several cards needs less of each
    more = _whole(rows[0].resource, max(pods * per_pod + row.used - (row.quota or 0.0) for row in rows))
    where = "" if rows[0].queue == data.queue.name else f" in queue {rows[0].queue}"
    either = "either card" if len(rows) == 2 else f"any of the {len(rows)} cards"
    text = f"{who} with a quota of {amount_of(rows[0].resource, more)} more of {either}{where}"
    return QuotaClaim(text, tuple((row.queue, row.resource, (row.quota or 0.0) + more) for row in rows), pods)


def _whole(resource: str, amount: float) -> float:
    """The smallest amount that a quota may have: those of cards are whole numbers, whatever shares of them cost."""
    return amount if resource in (CPU, MEMORY) else float(math.ceil(round(amount, 3)))


def _when(who: str, queue: str, resource: str, missing: float, quota: float) -> str:
    """What starts a job: an amount that becomes free, or a quota. `missing`: 0 where jobs ahead take what is free."""
    if not missing:
        return f"{who} with a quota of {quantity(resource, quota)} of {queue}"
    released = f"{quantity(resource, missing)} of {queue} {form(missing, 'becomes', 'become')} free"
    return f"{who} when {released}, or with a quota of {amount_of(resource, quota)}"


def _quotas_too(data: JobFacts, besides: tuple[str, str] = ("", "")) -> tuple[list[str], list[str]]:
    """The quotas of the queue and its ancestors that are too small for one pod or the rest of the gang, and the others.

    `besides`: queue and resource of a limit that refuses the job.
    """
    short: list[str] = []
    enough: list[str] = []
    accepted = [line for cards in data.pod_cards for line in cards.choices] or [
        tuple(key.split("|")) for key in data.declared
    ]
    missing = 1 if data.job.is_ready() else max(1, data.job.starting_pods - data.job.ready_tasks)
    for names in dict.fromkeys((*accepted, (CPU,), (MEMORY,))):
        lacks, fits = [], []
        for row in (row for row in data.limits if row.resource in names and row.quota and row.requested_per_pod):
            needed = min(row.requested, missing * row.requested_per_pod)
            if (row.free or 0) >= needed:
                fits.append(_has_free(row))
            elif row.queue != besides[0] or row.resource not in besides[1].split("|"):
                lacking = f"{amount_of(row.resource, needed)} {form(needed, 'is', 'are')} needed"
                lacks.append(f"Quota too: {_has_free(row)}, and {lacking}")
        short += [] if fits and len(names) > 1 else lacks
        enough += fits if {CPU, MEMORY}.isdisjoint(names) else []
    return short, enough


def quota_beside(data: JobFacts) -> list[str]:
    """Whether the quotas of the queue and its ancestors cover one pod, or the rest of the gang."""
    short, enough = _quotas_too(data)
    return short or [f"Quota is not the reason: {has}" for has in enough]


def _has_free(row: LimitUse) -> str:
    """`queue q has 2 of 8 NVIDIA-H200 free`."""
    return f"queue {row.queue} has {amount_of(row.resource, row.free)} of {quantity(row.resource, row.quota)} free"
