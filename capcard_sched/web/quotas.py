"""Queues with their cards: rows of the heat map, of the tree of queues and of the page of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model.quantity import in_units
from capcard_sched.model.queue import ROOT
from capcard_sched.web.job_rows import all_jobs, job_rows
from capcard_sched.web.moments import moment_of, past_evictions
from capcard_sched.web.redaction import redactor_of
from capcard_sched.web.views import BudgetRow, QueueList, QueueView, QuotaCell, QuotaRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.model.card_budgets import CardBudget
    from capcard_sched.model.explanation import QueueUse
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.history import CardSeries, History

#: Several accepted cards: reservations of pods that accept either.
_SEVERAL: Final = "|"


def quota_rows(cluster: Cluster) -> tuple[QuotaRow, ...]:
    """Every visible queue, each followed by those below it. `root` is no level of its own, and stands last."""
    rows = cluster.part("quota rows", lambda: _quota_rows(cluster))
    if cluster.namespaces is None:
        return rows
    redactor = redactor_of(cluster)
    return tuple(
        replace(row, warnings=tuple(map(redactor.text, row.warnings)))
        for row in rows
        if cluster.may_see_queue(row.queue)
    )


def _quota_rows(cluster: Cluster) -> tuple[QuotaRow, ...]:
    uses = queue_uses(cluster.core.snapshot())
    below: dict[str, list[QueueUse]] = {}
    names = {use.name for use in uses} - {ROOT}
    for use in uses:
        below.setdefault(use.parent if use.parent in names and use.parent != use.name else "", []).append(use)
    found: list[QuotaRow] = []
    pending = [(0, use) for use in reversed(below.pop("", []))]
    while pending or below:
        if not pending:  # a cycle of parents has no top
            pending = [(0, use) for use in below.pop(min(below))[::-1]]
        depth, use = pending.pop()
        found.append(_row(use, depth))
        pending += [(depth + 1, one) for one in reversed(below.pop(use.name, []))]
    return tuple(sorted(found, key=lambda row: row.queue == ROOT))


def _row(use: QueueUse, depth: int) -> QuotaRow:
    return QuotaRow(
        queue=use.name,
        parent=use.parent,
        depth=depth,
        state=use.state,
        jobs=use.jobs,
        waiting=use.waiting,
        cells=tuple(
            QuotaCell(
                card=card.card,
                used=card.allocated,
                quota=card.quota,
                reserved=card.inqueue,
                free=card.free,
                over=0.0 if card.quota is None else max(0.0, card.allocated - card.quota),
                total=card.total,
            )
            for card in use.cards
            if _SEVERAL not in card.card
        ),
        resources=tuple(_resource(name, *amounts) for name, amounts in use.resources.items() if any(amounts)),
        warnings=use.warnings,
    )


def _resource(name: str, limit: int | None, allocated: int) -> QuotaCell:
    used, quota = in_units(name, allocated), None if limit is None else in_units(name, limit)
    return QuotaCell(
        card=name,
        used=used,
        quota=quota,
        reserved=0.0,
        free=None if quota is None else max(0.0, quota - used),
        over=0.0 if quota is None else max(0.0, used - quota),
        total=0.0,
    )


def cards_of(rows: Iterable[QuotaRow], provided: Iterable[str] = ()) -> tuple[str, ...]:
    """The cards that some queue uses or limits, and those that nodes provide, sorted."""
    used = {cell.card for row in rows for cell in row.cells if cell.quota or cell.used or cell.reserved}
    return tuple(sorted(used.union(provided)))


def queue_list(cluster: Cluster, _: Mapping[str, str]) -> QueueList:
    rows = quota_rows(cluster)
    return QueueList(moment=moment_of(cluster), cards=cards_of(rows), queues=rows)


def tree_of(rows: Sequence[QuotaRow], name: str) -> tuple[QuotaRow, list[QuotaRow], list[QuotaRow]]:
    """The row of a queue, those above it, and it with those below it. Raises LookupError for an unknown queue."""
    own = next((row for row in rows if row.queue == name), None)
    if own is None:
        raise LookupError(f"queue {name} does not exist; existing queues: {', '.join(row.queue for row in rows)}")
    by_name = {row.queue: row for row in rows}
    above: list[QuotaRow] = []
    parent = own.parent
    while parent in by_name and by_name[parent] not in above and parent not in {ROOT, name}:
        above.insert(0, by_name[parent])
        parent = by_name[parent].parent
    within = {name}
    for row in rows:  # parents come first
        if row.parent in within:
            within.add(row.queue)
    return own, above, [row for row in rows if row.queue in within]


def queue_view(cluster: Cluster, query: Mapping[str, str]) -> QueueView:
    """The page of the queue `name` of a query. Raises LookupError for an unknown one."""
    own, above, below = tree_of(quota_rows(cluster), query["name"])
    every = cluster.part("quota rows", lambda: _quota_rows(cluster))
    within, name = {row.queue for row in tree_of(every, own.queue)[2]}, own.queue
    items = [item for item in all_jobs(cluster) if item["queue"] in within]
    shown = job_rows(cluster, items)
    return QueueView(
        moment=moment_of(cluster),
        queue=own,
        tree=(*above, *below),
        jobs=tuple(sorted(shown, key=lambda row: (not row.stage, -(row.wait_seconds or 0), row.name))),
        hidden_jobs=len(items) - len(shown),
        series=() if cluster.history is None else _series_of(cluster.history, within),
        evictions=past_evictions(cluster, within),
        budgets=_budgets(cluster, (name, *(row.queue for row in reversed(above)), ROOT)),
    )


def _budgets(cluster: Cluster, queues: Sequence[str]) -> tuple[BudgetRow, ...]:
    """The budgets of some queues, in their order."""
    budgets = cluster.core.snapshot().state.card_budgets
    found = []
    for queue in dict.fromkeys(queues):
        for name, budget in sorted(budgets.items()):
            if budget.queue == queue:
                found += [_budget(name, budget, card, limit) for card, limit in budget.limits.items()]
    return tuple(found)


def _budget(name: str, budget: CardBudget, card: str, limit: int) -> BudgetRow:
    used = budget.used.get(card)
    return BudgetRow(
        budget=name,
        queue=budget.queue,
        card=card,
        limit=float(limit),
        used=None if used is None else float(used.removesuffix("h")),
        spent=card in budget.spent,
        when_spent=budget.when_spent,
        period=budget.period,
        until=budget.until,
        forecast=budget.forecast,
    )


def _series_of(history: History, queues: set[str]) -> tuple[CardSeries, ...]:
    """The series of some queues."""
    found: Sequence[CardSeries] = [
        replace(one, queues=tuple(series for series in one.queues if series.queue in queues)) for one in history.cards
    ]
    return tuple(one for one in found if one.queues)
