"""Quotas and usage of queues, from the state and the figures of the quota plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.explain.limits import quota_samples, share_totals
from capcard_sched.framework.quota.limits import unenforced
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import is_card_quota
from capcard_sched.model.explanation import CardUse, QueueUse
from capcard_sched.model.queue import ROOT, ancestors
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.validation.checks import check_card_quota

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot


def queue_uses(snapshot: CoreSnapshot) -> tuple[QueueUse, ...]:
    """Quotas and usage of all queues, in order of name."""
    uses = card_uses(snapshot)
    columns, queues = snapshot.state.columns, {**snapshot.state.deleted_queues, **snapshot.state.queues}
    usage = {name: queue.allocated.copy() for name, queue in queues.items()}
    for queue in queues.values():
        for above in ancestors(queue, queues):
            usage[above.name] += queue.allocated
    plugins, parents = snapshot.conf.quota_plugins, {name: queue.parent for name, queue in queues.items()}
    with_children = {parent or ROOT for parent in parents.values()}
    found: list[QueueUse] = []
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
        findings = [
            *(
                finding
                for finding in check_card_quota(queue.annotations.get(CARD_QUOTA, ""))
                if finding.severity == "error"
            ),
            *unenforced(queue, parents, plugins, is_parent=name in with_children, shares=snapshot.state.shares),
        ]
        warnings = tuple(f"{finding.field}: {finding.message}" for finding in findings)
        state = queue.state or "Open"
        found.append(QueueUse(name, state, len(jobs), waiting, cards, resources, warnings, queue.parent))
    return tuple(found)


def card_uses(snapshot: CoreSnapshot) -> dict[str, tuple[CardUse, ...]]:
    """Per queue and card: the figures that the quota plugin publishes."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    totals = share_totals(snapshot)
    for sample in quota_samples(snapshot):
        if sample.name == "card_total":
            totals[sample.labels["card"]] = sample.value
        elif sample.name.startswith("queue_card_"):
            cards = figures.setdefault(sample.labels["queue_name"], {})
            cards.setdefault(sample.labels["card"], {})[sample.name.removeprefix("queue_card_")] = sample.value
    queues = snapshot.state.queues
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
