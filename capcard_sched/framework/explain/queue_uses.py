"""Quotas and usage of all queues."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.explain.budget_warnings import budget_warnings
from capcard_sched.framework.explain.limits import card_figures, quota_samples, share_totals
from capcard_sched.framework.explain.stranded import StrandedReader
from capcard_sched.framework.quota.limits import unenforced
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import CardSyntaxError, is_card_quota, parse_card_quota
from capcard_sched.model.explanation import CardUse, QueueUse
from capcard_sched.model.job import unoffered_amounts
from capcard_sched.model.queue import ROOT, ancestors
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.status import ALLOCATED_STATUSES, PodGroupPhase
from capcard_sched.validation.checks import check_card_quota

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.model.diagnosis import StrandedCards
    from capcard_sched.model.queue import Queue


def queue_uses(snapshot: CoreSnapshot) -> tuple[QueueUse, ...]:
    """Quotas and usage of all queues, in order of name."""
    uses, stranded = card_uses(snapshot), StrandedReader(snapshot).by_card()
    columns, queues = snapshot.state.columns, {**snapshot.state.deleted_queues, **snapshot.state.queues}
    usage = {name: queue.allocated.copy() for name, queue in queues.items()}
    for queue in queues.values():
        for above in ancestors(queue, queues):
            usage[above.name] += queue.allocated
    without_column = _without_column(snapshot, queues)
    plugins, parents = snapshot.conf.quota_plugins, {name: queue.parent for name, queue in queues.items()}
    with_children = {parent or ROOT for parent in parents.values()}
    budgets = budget_warnings(snapshot)
    found: list[QueueUse] = []
    # A deleted queue with live pods stays visible.
    for name, queue in sorted(queues.items()):
        limits = queue.capability or {}
        allocated = {**columns.amounts(usage[name]), **without_column.get(name, {})}
        if name in snapshot.state.queues:
            allocated |= snapshot.dispatch.first("claimed_amounts", queue) or {}
        cards = tuple(_with_stranded(use, stranded) for use in uses.get(name, ()))
        wanted = dict.fromkeys([*limits, *allocated])
        resources = {
            resource: (limits.get(resource), allocated.get(resource, 0))
            for resource in sorted(wanted)
            if resource != PODS and (resource in (CPU, MEMORY) or not cards)
        }
        jobs = queue.jobs.values()
        waiting = sum(1 for job in jobs if job.pending or job.phase is PodGroupPhase.PENDING)
        findings = [
            *(
                finding
                for finding in check_card_quota(queue.annotations.get(CARD_QUOTA, ""))
                if finding.severity == "error"
            ),
            *unenforced(queue, parents, plugins, is_parent=name in with_children, shares=snapshot.state.shares),
        ]
        warnings = (*(f"{finding.field}: {finding.message}" for finding in findings), *budgets.get(name, ()))
        state = queue.state or "Open"
        found.append(QueueUse(name, state, len(jobs), waiting, cards, resources, warnings, queue.parent))
    return tuple(found)


def _with_stranded(use: CardUse, stranded: Mapping[str, StrandedCards] | None) -> CardUse:
    """A use of a card with the stranded ones of the cluster; 0 where none is free."""
    if stranded is None or "|" in use.card:
        return use
    found = stranded.get(use.card)
    return msgspec.structs.replace(use, stranded=0.0 if found is None else found.stranded)


def card_uses(snapshot: CoreSnapshot) -> dict[str, tuple[CardUse, ...]]:
    """Per queue and card: the figures that the quota plugin publishes."""
    samples = list(quota_samples(snapshot))
    figures, totals = card_figures(samples), share_totals(snapshot)
    totals |= {sample.labels["card"]: sample.value for sample in samples if sample.name == "card_total"}
    queues = snapshot.state.queues
    for card in {card for cards in figures.values() for card in cards} - totals.keys():
        # A resource that no plugin registers.
        totals[card] = sum(node.allocatable.get(card, 0) for node in snapshot.state.nodes.by_name.values()) / 1000
    groups = {name: _groups(queue) for name, queue in queues.items()}
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
                sum(totals.get(one, 0.0) for one in groups.get(queue, {}).get(card, (card,))),
                queue,
                min(
                    _free_with_groups(free, one, card, groups.get(one, {})) for one in (queue, *limiting.get(queue, ()))
                )
                if "capacity" in values
                else None,
            )
            for card, values in sorted(cards.items())
            if "|" not in card or any(values.values())
        )
        for queue, cards in figures.items()
    }


def _groups(queue: Queue) -> dict[str, frozenset[str]]:
    """The keys of a card quota with several cards, each with its cards; none of a malformed annotation."""
    try:
        return {group.key: group.cards for group in parse_card_quota(queue.annotations.get(CARD_QUOTA)).groups}
    except CardSyntaxError:
        return {}


def _free_with_groups(
    free: Mapping[tuple[str, str], float], queue: str, card: str, groups: Mapping[str, frozenset[str]]
) -> float:
    """The free quota of a card, or group, in a queue, within that of each group with it."""
    cards = groups.get(card, frozenset((card,)))
    limits = [free.get((queue, key), 0.0) for key, members in groups.items() if cards <= members]
    own = float("inf") if "|" in card and limits else free.get((queue, card), 0.0)
    return min((own, *limits))


def _without_column(snapshot: CoreSnapshot, queues: Mapping[str, Queue]) -> dict[str, Counter[str]]:
    """By queue, the allocated amounts of resources that no node offers any more, those below it included."""
    found: dict[str, Counter[str]] = {}
    for key in snapshot.state.unoffered:
        job = snapshot.state.jobs[key]
        queue = queues.get(job.queue)
        if queue is not None:
            amounts = unoffered_amounts(task for task in job.tasks.values() if task.status in ALLOCATED_STATUSES)
            for one in (queue, *ancestors(queue, queues)):
                found.setdefault(one.name, Counter()).update(amounts)
    return found
