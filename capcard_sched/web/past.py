"""Pages at a moment of a ledger: the views of its tables. What they lack is left out, and `moment.missing` names it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.past_state import past_jobs, past_state
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import DAY, UsageQuery
from capcard_sched.model.queue import ROOT
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.reports.evictions import preemptor_namespace, preemptor_text
from capcard_sched.web.access import is_visible_queue
from capcard_sched.web.history import EvictionMark, History
from capcard_sched.web.job_rows import ORDERS, job_page
from capcard_sched.web.ledger_documents import HIDDEN_PREEMPTOR
from capcard_sched.web.moments import parse_moment
from capcard_sched.web.overview import MOST_WAITING, stage_counts
from capcard_sched.web.quotas import cards_of, tree_of
from capcard_sched.web.usage import SINCE, dimensions_of, period_of, usage_page
from capcard_sched.web.views import CardSum, JobRow, Moment, Overview, QueueList, QueueView, QuotaCell, QuotaRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.ledger.past_state import PastState
    from capcard_sched.ledger.rows import ChargeRow
    from capcard_sched.ledger.usage_ledger import UsageLedger
    from capcard_sched.model.trials import InsightPart

_MISSING: Final = (
    "the ledger has no reserved cards, causes of waits, suspended jobs, pods without cards, cpu and memory, budgets, "
    "alerts and nodes; "
    "`web --recording FILE` shows these at each step of a recording"
)
_USAGE: Final = "/usage"
#: Stages of lives that do not wait.
_STARTED: Final = ("", "Scheduled", "Degraded")


@dataclass(frozen=True)
class PastCluster:
    """One moment of an open ledger."""

    ledger: UsageLedger
    state: PastState
    moment: Moment
    #: Namespaces whose jobs are visible; None for all.
    namespaces: frozenset[str] | None

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.state.at / 1000

    def may_see(self, namespace: str) -> bool:
        """Whether the viewer may see the jobs and pods of a namespace."""
        return self.namespaces is None or namespace in self.namespaces


def past_view(
    url: str, source: str, document: str, query: Mapping[str, str], namespaces: frozenset[str] | None
) -> InsightPart:
    """The view of a document at the moment `at` of a query. Raises LookupError, and ValueError for one without a past.

    `url`: of the ledger; `source`: name of the cluster.
    """
    make = _VIEWS.get(document)
    if make is None:
        raise ValueError(f"at: {_REFUSALS.get(document, 'the address has no past')}")
    try:
        with open_ledger(url, create=False) as ledger:
            begin, end = ledger.recorded_since, ledger.recorded_until
            # The last record may be some seconds old: later moments are shown as of it.
            at = min(parse_moment(query["at"], History(begin=begin, end=max(end, time.time()))), end)
            at_ms, began = round(at * 1000), round(begin * 1000)
            state = past_state(ledger.database, at_ms, began, queues_only=document == _USAGE)
            moment = Moment(
                source=source,
                now=format_timestamp(at),
                at=at - begin,
                length=end - begin,
                begin=format_timestamp(begin),
                has_usage=True,
                queues=tuple(sorted(queue for queue in _parents(state) if is_visible_queue(queue, namespaces))),
                missing=_MISSING,
            )
            return make(PastCluster(ledger, state, moment, namespaces), query)
    except LedgerError as error:
        raise LookupError(str(error)) from None


def _overview(past: PastCluster, _: Mapping[str, str]) -> Overview:
    waiting = sorted(_job_rows(past, without=_STARTED), key=ORDERS["wait"])
    return Overview(
        moment=past.moment,
        jobs=sum(one.jobs for one in past.state.jobs if past.may_see(one.namespace)),
        running_pods=sum(one.whole_pods for one in past.state.held if past.may_see(one.namespace)),
        pending_pods=0,
        cards=_card_sums(past),
        queues=_quota_rows(past),
        stages=stage_counts(waiting),
        waiting=tuple(waiting[:MOST_WAITING]),
        waiting_jobs=len(waiting),
        alerts=(),
        evictions=_evictions(past),
    )


def _queue_list(past: PastCluster, _: Mapping[str, str]) -> QueueList:
    rows = _quota_rows(past)
    return QueueList(moment=past.moment, cards=cards_of(rows, past.state.capacity), queues=rows)


def _queue(past: PastCluster, query: Mapping[str, str]) -> QueueView:
    own, above, within = tree_of(_quota_rows(past), query["name"])
    names = {row.queue for row in within}
    jobs = [job for job in _job_rows(past) if job.queue in names]
    return QueueView(
        moment=past.moment,
        queue=own,
        tree=(*above, *within),
        jobs=tuple(sorted(jobs, key=ORDERS["wait"])),
        hidden_jobs=sum(one.jobs for one in past.state.jobs if one.queue in names) - len(jobs),
        evictions=_evictions(past, names),
    )


def _jobs(past: PastCluster, query: Mapping[str, str]) -> InsightPart:
    return job_page(past.moment, _job_rows(past), query)


def _usage(past: PastCluster, query: Mapping[str, str]) -> InsightPart:
    by, seconds = dimensions_of(past.namespaces, query), period_of(query)
    found = past.ledger.usage_over_time(UsageQuery(past.now - seconds, past.now, by))
    return usage_page(found, past.moment, query.get("since") or SINCE, past.namespaces)


_VIEWS: Final[Mapping[str, Callable[[PastCluster, Mapping[str, str]], InsightPart]]] = {
    "/overview": _overview,
    "/queues": _queue_list,
    "/queues/{name}": _queue,
    "/jobs": _jobs,
    _USAGE: _usage,
}
_RECORDING: Final = "`web --recording FILE` shows those of each step of a recording"
_REFUSALS: Final[Mapping[str, str]] = {
    "/jobs/{namespace}/{name}": "the ledger has no diagnoses; /jobs has the stages of jobs at this moment, and "
    f"`capcard-sched history job NAME` all stages of a job; {_RECORDING}",
    "/nodes": f"the ledger has no nodes; {_RECORDING}",
    "/what-if": f"the ledger has no objects to try changes on; {_RECORDING}",
    "/ledger/usage": "this document ends with the last record; /usage takes a moment",
    "/ledger/history": "this document ends with the last record",
}


# --- parts ----------------------------------------------------------------------------------------------------------


def _job_rows(past: PastCluster, without: tuple[str, ...] = ()) -> list[JobRow]:
    """The jobs of visible namespaces, but those in some stages. Of their pods, those with cards are known."""
    found = []
    for job in past_jobs(past.ledger.database, past.state.at, without=without):
        if not past.may_see(job.namespace):
            continue
        age = (past.state.at - job.submitted) // 1000
        whole = job.whole if job.whole is not None and job.whole <= past.state.at else None
        found.append(
            JobRow(
                namespace=job.namespace,
                name=job.name,
                kind=job.kind,
                queue=job.queue,
                phase=job.stage,
                stage="" if job.stage in _STARTED else job.stage,
                scheduled=job.pods,
                pods=max(job.pods, job.min_member),
                min_available=job.min_member,
                running=job.pods,
                succeeded=0,
                failed=0,
                created=format_timestamp(job.submitted / 1000),
                age_seconds=age,
                wait_seconds=age if whole is None else (whole - job.submitted) // 1000,
                reason="",
            )
        )
    return found


def _parents(state: PastState) -> dict[str, str]:
    """Each queue of the moment to its parent, "" for none or unknown."""
    found = {row.queue: row.parent for row in state.quotas.values()}
    held = (row.queue for row in state.held if row.pods)
    for queue in (*(one.queue for one in state.jobs), *held, *found.values()):
        if queue and queue != ROOT:
            found.setdefault(queue, "")
    return found


def _quota_rows(past: PastCluster) -> tuple[QuotaRow, ...]:
    """Visible queues with quotas, jobs or held cards, each followed by those below it; `root` stands last."""
    state, parents = past.state, _parents(past.state)
    used: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in state.held:
        for queue in _path(row.queue, parents) if row.pods else ():
            used[queue, row.card] += row.thousandths
    cards = sorted({*(card for _, card in state.quotas), *(card for _, card in used)})
    jobs: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for one in state.jobs:
        jobs[one.queue] += one.jobs
        waiting[one.queue] += 0 if one.stage in _STARTED else one.jobs
    below: defaultdict[str, list[str]] = defaultdict(list)
    for queue, parent in sorted(parents.items(), reverse=True):
        below[parent if parent not in (queue, ROOT) else ""].append(queue)
    found: list[QuotaRow] = []
    pending = [(0, queue) for queue in below.pop("", [])]
    while pending or below:
        if not pending:  # a cycle of parents has no top
            pending = [(0, queue) for queue in below.pop(min(below))]
        depth, queue = pending.pop()
        found.append(
            QuotaRow(
                queue=queue,
                parent=parents[queue],
                depth=depth,
                state="",
                jobs=jobs[queue],
                waiting=waiting[queue],
                cells=tuple(
                    _cell(state, used, _path(queue, parents), card)
                    for card in cards
                    if (queue, card) in state.quotas or used[queue, card]
                ),
            )
        )
        pending += [(depth + 1, one) for one in below.pop(queue, [])]
    shown = (row for row in found if is_visible_queue(row.queue, past.namespaces))
    return tuple(sorted(shown, key=lambda row: row.queue == ROOT))


def _path(queue: str, parents: Mapping[str, str]) -> list[str]:
    """A queue and those above it."""
    found: list[str] = []
    while queue and queue not in found:
        found.append(queue)
        queue = parents.get(queue, "")
    return found


def _cell(state: PastState, used: Mapping[tuple[str, str], int], path: list[str], card: str) -> QuotaCell:
    """`path`: the queue and those above it."""
    quotas = {queue: state.quotas[queue, card].thousandths or 0 for queue in path if (queue, card) in state.quotas}
    own, held = quotas.get(path[0]), used.get((path[0], card), 0)
    free = [quota - used.get((queue, card), 0) for queue, quota in quotas.items()]
    capacity = state.capacity.get(card)
    return QuotaCell(
        card=card,
        used=held / 1000,
        quota=None if own is None else own / 1000,
        reserved=0.0,
        free=max(0, min(free)) / 1000 if free else None,
        over=0.0 if own is None else max(0, held - own) / 1000,
        total=0.0 if capacity is None else capacity.total / 1000,
    )


def _card_sums(past: PastCluster) -> tuple[CardSum, ...]:
    """Total, used and free cards, and the mean of a day. The ledger has no cards of nodes."""
    state = past.state
    begin = max(state.at - DAY, state.began)
    used: Counter[str] = Counter()
    area: Counter[str] = Counter()
    for row in state.held:
        used[row.card] += row.thousandths
        area[row.card] += row.used
    cards = {card: row.total for card, row in state.capacity.items() if row.total or used[card]}
    return tuple(
        CardSum(
            card=card,
            nodes=0,
            total=total / 1000,
            used=used[card] / 1000,
            free=max(0, total - used[card]) / 1000,
            largest_free=0.0,
            largest_node="",
            blocked=0.0,
            mean=area[card] / 1000 / (state.at - begin) if state.at > begin else None,
        )
        for card, total in sorted((cards | {card: cards.get(card, 0) for card in used if card}).items())
    )


def _evictions(past: PastCluster, queues: Iterable[str] | None = None) -> tuple[EvictionMark, ...]:
    """Evictions in the 24 hours before; `queues`: of these only."""
    parts_of: dict[tuple[str, int | None], list[ChargeRow]] = {}
    for row in past.state.evicted:
        if past.may_see(row.namespace) and (queues is None or row.queue in queues):
            parts_of.setdefault((row.pod_uid, row.ended), []).append(row)
    return tuple(
        EvictionMark(
            at=((row.ended or 0) - past.state.began) / 1000,
            pod=f"{row.namespace}/{row.pod}",
            queue=row.queue,
            node=row.node,
            card=", ".join(part.card for part in (row, *others)),
            cards=sum(part.thousandths for part in (row, *others)) / 1000,
            preemptor=preemptor_text(row.preemptor)
            if past.may_see(preemptor_namespace(row.preemptor))
            else HIDDEN_PREEMPTOR,
        )
        for row, *others in parts_of.values()
    )
