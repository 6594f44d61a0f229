"""Causes for which a job can never start that follow from the limits and the totals of the nodes, without a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain import sentences
from capcard_sched.framework.explain.device_causes import awaits_slices
from capcard_sched.framework.explain.sentences import amount_of, form, nearest, quantity
from capcard_sched.model.annotations import CARD_REQUEST, MEMORY_SUFFIX
from capcard_sched.model.autoscaled_groups import places_of
from capcard_sched.model.card_labels import MIG_PREFIX, WHOLE_NVIDIA
from capcard_sched.model.cards import no_card_quota
from capcard_sched.model.quantity import in_units
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.resources import CPU, MEMORY, VGPU_RESOURCES, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import CardCapacity
    from capcard_sched.model.task_class import TaskClass

#: The beginning of the sentence about a job that can never start.
NEVER: Final = "Can never start"
#: Those about a job that has its minimum, and of which only the further pods can never start.
FURTHER_POD: Final = "The further pod can never start"
FURTHER_PODS: Final = "Further pods can never start"
#: That about a job for which an autoscaler adds nodes.
AWAITS_NODES: Final = "Waits for nodes"
_PRODUCT: Final = f"{WHOLE_NVIDIA}.product"
_MEMORY: Final = f"{WHOLE_NVIDIA}{MEMORY_SUFFIX}"
_CORRECT: Final = "correct or remove the annotation if the pods need another amount"


def without_never(summary: str) -> str:
    """The cause in the sentence about a job, or pods, that can never start; another sentence as it is."""
    begin, _, cause = summary.partition(": ")
    return cause if begin in {NEVER, FURTHER_POD, FURTHER_PODS} else summary


def never_causes(data: JobFacts) -> tuple[list[str], list[str]]:
    """The causes, none of a job that may start; and further facts. Where nodes are added, only limits of objects."""
    has_end = not data.expects_nodes or bool(data.node_groups)
    unusable, of_nodes = _unusable_cards(data), _larger_than_nodes(data) if has_end else []
    causes = [*unusable, *_over_every_limit(data), *of_nodes, *_larger_than_cluster(data)]
    # A card without nodes has no resource: pods that name one count as pods without cards.
    return list(dict.fromkeys(causes)), [] if unusable else _declared(data)


def _declared(data: JobFacts) -> list[str]:
    """Differences between `card.request` and the pods, and which of them counts."""
    if not data.declared or data.declared == data.counted:
        return []
    declared = " and ".join(quantity(card, amount / 1000) for card, amount in data.declared.items())
    if not data.tasks:
        return [f"{CARD_REQUEST} declares {declared}, which count until the pods are created; {_CORRECT}"]
    counted = " and ".join(quantity(card, amount / 1000) for card, amount in data.counted.items()) or "no cards"
    return [f"{CARD_REQUEST} declares {declared}, and the pods request {counted}; the pods count; {_CORRECT}"]


def _unusable_cards(data: JobFacts) -> list[str]:
    causes = []
    for cls, cards in data.cards_by_class.items():
        if cards.names and not cards.alternatives and (cause := _without_nodes(data, cards.names)):
            causes.append(cause)
        elif cards.error:
            causes.append(f"{sentences.plain(cards.error)}{_misspelt(data, cls)}")
    if not data.tasks:
        causes += [cause for card in data.declared if (cause := _without_nodes(data, card.split("|")))]
    return list(dict.fromkeys(causes))


def _misspelt(data: JobFacts, cls: TaskClass) -> str:
    """The end of a sentence about a pod that requests a resource that no node offers, under a similar name; or ""."""
    for name in sorted(cls.requests.keys() - data.offered):
        if meant := did_you_mean(name, data.offered):
            return f"; the pods request {name}{meant}"
    return ""


def _without_nodes(data: JobFacts, cards: Sequence[str]) -> str:
    """That no node provides any of the cards; "" if one does, or will."""
    if any(name in data.known_cards for name in cards):
        return ""
    if data.node_groups:
        offered = sorted({card for group in data.node_groups for card in group.cards})
        known = f"the groups provide {brief(offered) or 'no cards'}"
        is_offered = any(name in offered for name in cards)
        return "" if is_offered else f"no node and no node group provides card {' or '.join(cards)}; {known}"
    if data.expects_nodes:
        return ""
    if unread := _without_memory_label(data, cards):
        return f"no node provides card {' or '.join(cards)}: {unread}"
    unlabelled = [card for card in data.known_cards if card in data.offered]
    close = [found for name in cards if (found := nearest(name, data.known_cards))]
    meant = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
    known = "" if close else f"; the nodes provide {brief(data.known_cards) or 'no cards'}"
    labels = f" without a product label: {brief(unlabelled)}"
    if unlabelled and not close:
        known = (
            f"; the nodes provide devices{labels}"
            if known.endswith(brief(unlabelled))
            else f"{known}, and devices{labels}"
        )
    return f"no node provides card {' or '.join(cards)}{meant}{known}"


def _without_memory_label(data: JobFacts, cards: Sequence[str]) -> str:
    """`n1 has label nvidia.com/gpu.product=NVIDIA-H200, and no label nvidia.com/gpu.memory`; "" for no such node."""
    unread: dict[str, list[str]] = {}
    wanted = MIG_PREFIX if all("/mig-" in card for card in cards) else WHOLE_NVIDIA
    for node in data.session_snapshot.nodes.by_name.values():
        has_devices = any(amount > 0 for name, amount in node.allocatable.items() if name.startswith(wanted))
        if has_devices and node.labels.get(_PRODUCT) and _MEMORY not in node.labels:
            unread.setdefault(node.labels[_PRODUCT], []).append(node.name)
    products = [card.partition("/")[0] for card in cards]
    found = sorted(unread.keys() & set(products))
    if not found and not any(nearest(card, data.known_cards) for card in cards):
        found = sorted(filter(None, (nearest(product, unread) for product in products)))
    if not found:
        return ""
    names = sorted(unread[found[0]])
    verb = "has" if len(names) == 1 else "have"
    return f"{brief(names)} {verb} label {_PRODUCT}={found[0]}, and no label {_MEMORY}"


def _over_every_limit(data: JobFacts) -> list[str]:
    if data.exceeded is None or not data.exceeded.queue:
        return []
    found, queue = data.exceeded.figures, data.exceeded.queue
    needed, limit = in_units(found.resource, found.requested), in_units(found.resource, found.limit)
    resource = data.models(found.resource)
    minimum = (
        f"the minimum of {plural(data.job.min_available, 'pod')} needs" if data.job.min_available > 1 else "it needs"
    )
    if not data.tasks and found.resource in data.declared:
        minimum = f"by {CARD_REQUEST} it needs"
    if data.inherits(data.exceeded):
        return [f"{minimum} {quantity(resource, needed)}, and {data.given_by(queue, found)}"]
    of_card = data.has_card_quotas and found.resource not in (CPU, MEMORY, *VGPU_RESOURCES)
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
    for cls, cards in data.cards_by_class.items():
        rows = data.capacity_of(cls)
        of_cards = [row for row in rows if row.card in cards.alternatives]
        others = [[row] for row in rows if row.card not in cards.alternatives]
        if cls.claims and any(not each.node for each in data.session_snapshot.devices.slices.values()):
            of_cards = []  # devices that several nodes reach are in no row of a node
        for own in [of_cards, *others] if of_cards else others:
            more = places_of(data.node_groups, cls, cards.names or None)
            if more is None or any(awaits_slices(data.session_snapshot, task) for task in data.waiting[:1]):
                continue
            if text := _too_large(
                own, data.needed_of(cls), data.job.min_available, more, data.offered, _each(data, cls)
            ):
                return [f"{text}; the node groups have space for {plural(more, 'pod')}" if data.node_groups else text]
    return []


def _each(data: JobFacts, cls: TaskClass) -> str:
    """`each pod`, of a gang of several templates `each pod of task ps`."""
    roles = {task.role for task in data.waiting if task.cls is cls and task.role} if len(data.pod_cards) > 1 else set()
    return f"each pod of task {roles.pop()}" if len(roles) == 1 else "each pod"


def _too_large(
    rows: Sequence[CardCapacity], needed: int, minimum: int, more: int, offered: Iterable[str], each: str
) -> str:
    """That the nodes with any of the cards, or with the resource, hold fewer than `needed` pods; "" if they do.

    `more`: the pods that nodes of node groups hold; `offered`: the resources of the nodes.
    """
    names = " or ".join(row.card for row in rows)
    if not more and all(row.largest_node < row.per_pod for row in rows):
        largest = max(rows, key=lambda row: row.largest_node)
        if not largest.largest_node:
            meant = did_you_mean(largest.resource, offered)
            return f"{each} needs {quantity(names, largest.per_pod)}, and no node has any{meant}"
        has = amount_of(largest.card, largest.largest_node)
        return f"{each} needs {quantity(names, largest.per_pod)}, and the largest node has {has}"
    places = sum(row.fits_when_empty for row in rows)
    if places + more >= needed:
        return ""
    amount, total = rows[0].per_pod * needed, sum(row.total for row in rows)
    has = f"the cluster has {amount_of(names, total)}"
    if amount <= total:
        has = f"its nodes have space for {plural(places, 'pod')}"
    who = f"minAvailable {minimum} needs"
    if needed < minimum:
        who = f"{plural(needed, 'pod')} of minAvailable {minimum} {form(needed, 'needs', 'need')}"
    elif needed > minimum:
        who = f"minSubGroups demands {plural(needed, 'pod')}, which need"
    return f"{who} {quantity(names, amount)}, and {has}"


def _larger_than_cluster(data: JobFacts) -> list[str]:
    """A minimum that exceeds a limit that the queue does not set, when nothing is used."""
    refusal = data.refusals[0] if data.refusals and not (data.exceeded and data.exceeded.queue) else None
    figures = refusal.figures if refusal is not None and refusal.hook == "job_enqueueable" else None
    if refusal is None or figures is None or figures.requested <= figures.limit:
        return []
    resource, limiter = figures.resource, refusal.limiter
    if data.expects_nodes and (limiter is None or limiter.kind == "cluster"):
        return []
    needed, most = in_units(resource, figures.requested), amount_of(resource, in_units(resource, figures.limit))
    if limiter is not None and limiter.kind == "ResourceQuota":
        has = f"ResourceQuota {limiter.name} of namespace {data.job.namespace} allows {most}"
    elif limiter is not None and limiter.kind == "Queue":
        has = f"{refusal.plugin} admits {most} in queue {limiter.name}"
    elif limiter is not None:
        has = f"{refusal.plugin} admits {most} in the cluster"
    else:
        has = f"the cluster has {most} for queue {refusal.queue}{data.beside_guarantees(resource)}"
    meant = "" if figures.limit or resource in data.offered else did_you_mean(resource, data.offered)
    return [f"it needs {quantity(data.models(resource), needed)}, and {has}{meant}"]
