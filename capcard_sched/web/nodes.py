"""The page of nodes: every card as a box with its tenants, and free blocks per card."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, Literal

from capcard_sched.framework.explain.capacity import workload_name
from capcard_sched.model.cards import CARD
from capcard_sched.model.node_conditions import lost_word
from capcard_sched.model.quantity import in_units
from capcard_sched.web.card_sums import capacity_of, card_sums, nodes_of
from capcard_sched.web.moments import moment_of
from capcard_sched.web.paging import page_of
from capcard_sched.web.shared_rows import shared_rows
from capcard_sched.web.views import (
    CardBox,
    CardFragmentation,
    FreeBlock,
    NodeCardRow,
    NodeList,
    NodeRow,
    Tenant,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.explain.capacity import NodeCard
    from capcard_sched.model.diagnosis import NodeSummary
    from capcard_sched.model.job import Node, Task
    from capcard_sched.reports.shared_cards import CardTenant, SharedCardRow
    from capcard_sched.web.cluster import Cluster

#: Nodes of a page.
_ROWS: Final = 100
#: `NVIDIA-H800/mps-80g*1/2`: pods count shares, two of which are one card.
_FRACTION: Final = re.compile(r".+\*1/(\d+)")
_SLICE: Final = "/mig-"
#: Of the card of devices that claims share.
_SHARED: Final = "/shared"


def node_list(cluster: Cluster, query: Mapping[str, str]) -> NodeList:
    """The page of nodes: those of the filters card, queue and text."""
    boxes = NodeBoxes(cluster)
    card, queue, text = (query.get(name, "") for name in ("card", "queue", "text"))
    nodes = nodes_of(cluster)
    found = [
        node
        for node in nodes
        if text.lower() in node.name.lower()
        and (not card or card in boxes.cards_of(node.name))
        and (not queue or queue in boxes.queues_of(node.name))
    ]
    shown, page, pages = page_of(found, query, _ROWS)
    return NodeList(
        moment=moment_of(cluster),
        card=card,
        queue=queue,
        text=text,
        matching=len(found),
        total=len(nodes),
        page=page,
        pages=pages,
        items=tuple(_row(node, boxes) for node in shown),
        cards=boxes.all_cards,
        queues=tuple(sorted(filter(cluster.may_see_queue, cluster.core.snapshot().state.queues))),
        fragmentation=cluster.part("fragmentation", lambda: _fragmentation(cluster)),
    )


def first_nodes(cluster: Cluster, most: int) -> tuple[NodeRow, ...]:
    """Some nodes with cards: those whose kubelet does not work, then by name."""
    boxes = NodeBoxes(cluster)
    nodes = [node for node in nodes_of(cluster) if boxes.cards_of(node.name)]
    nodes.sort(key=lambda node: (not lost_word(boxes.node(node.name)), node.name))
    return tuple(_row(node, boxes) for node in nodes[:most])


def _row(node: NodeSummary, boxes: NodeBoxes) -> NodeRow:
    return NodeRow(
        name=node.name,
        state=node.state,
        lost=lost_word(boxes.node(node.name)),
        cards=boxes.row(node.name),
        free_cpu=node.free_cpu,
        free_memory=node.free_memory,
        pods=node.pods,
        max_pods=node.max_pods,
    )


def _cards_of_nodes(
    cluster: Cluster,
) -> tuple[dict[str, dict[str, NodeCard]], dict[str, dict[str, list[SharedCardRow]]], dict[str, Task]]:
    """By node and card the cards that pods count, and those that a device plugin shares; tenants of the latter."""
    whole: dict[str, dict[str, NodeCard]] = {}
    for card, offers in capacity_of(cluster).cards.items():
        for offer in offers:
            whole.setdefault(offer.node.name, {})[card] = offer
    shared: dict[str, dict[str, list[SharedCardRow]]] = {}
    for row in shared_rows(cluster):
        shared.setdefault(row.node, {}).setdefault(row.card.type, []).append(row)
    tasks = cluster.core.snapshot().state.tasks.values() if shared else ()
    return whole, shared, {f"{task.namespace}/{task.name}": task for task in tasks}


class NodeBoxes:
    """The cards of each node as boxes.

    Pods fill the boxes in order of their names: most objects do not have which of several equal cards a pod uses.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._state = cluster.core.snapshot().state
        self._whole, self._shared, self._tasks = cluster.part("cards of nodes", lambda: _cards_of_nodes(cluster))

    @property
    def all_cards(self) -> tuple[str, ...]:
        """The cards of all nodes, sorted."""
        found = {card for node in (self._whole, self._shared) for cards in node.values() for card in cards}
        return tuple(sorted(found))

    def node(self, name: str) -> Node:
        """The node of a name. Raises KeyError when there is none."""
        return self._state.nodes.by_name[name]

    def cards_of(self, name: str) -> set[str]:
        """The whole and the shared cards of a node; empty for an unknown node."""
        return {*self._whole.get(name, ()), *self._shared.get(name, ())}

    def queues_of(self, name: str) -> set[str]:
        """The queues with pods on a node."""
        return {self._visible_queue(task.job.queue) for task in self.node(name).tasks.values() if task.job is not None}

    def row(self, name: str) -> tuple[NodeCardRow, ...]:
        """The cards of a node: those that pods request by number, then the shared ones, each sorted."""
        whole = [
            self._counted(card, offer) if offer.holders is None else self._claimed(card, offer)
            for card, offer in sorted(self._whole.get(name, {}).items())
        ]
        return (*whole, *(_shared(card, rows, self) for card, rows in sorted(self._shared.get(name, {}).items())))

    def _counted(self, card: str, offer: NodeCard) -> NodeCardRow:
        """Cards that pods request by number."""
        fraction = _FRACTION.fullmatch(card)
        parts = int(fraction[1]) if fraction is not None else 1
        sharing: Literal["whole", "fraction", "slice"]
        sharing = "fraction" if parts > 1 else "slice" if _SLICE in card else "whole"
        total = round(in_units(offer.resource, offer.total))
        held: list[Tenant] = []
        for task in sorted(offer.node.tasks.values(), key=lambda task: (task.namespace, task.name)):
            amount = in_units(offer.resource, task.cls.requests.get(offer.resource, 0))
            held += [self.tenant(task, 1 / parts)] * round(amount)
        filled = max(total, len(held))  # a node that lost cards has more tenants than cards
        boxes = [held[begin : begin + parts] for begin in range(0, filled, parts)]
        return NodeCardRow(
            card=card,
            sharing=sharing,
            total=total,
            used=len(held),
            free=max(0, total - len(held)),
            boxes=tuple(
                CardBox(tenants=tuple(box), available=position * parts < total) for position, box in enumerate(boxes)
            ),
        )

    def _claimed(self, card: str, offer: NodeCard) -> NodeCardRow:
        """Devices of ResourceSlices: those that claims have, then those that are free, then the others."""
        boxes: list[list[Tenant]] = []
        shared: list[list[Tenant]] = []
        for task, amount in sorted(offer.tenants, key=lambda each: (each[0].namespace, each[0].name)):
            whole, part = divmod(amount, CARD)
            boxes += [[self.tenant(task, 1)] for _ in range(whole)]
            if part:
                fitting = [box for box in shared if sum(each.share for each in box) + part / CARD <= 1]
                box = next(iter(fitting), [])
                box.append(self.tenant(task, part / CARD))
                if not fitting:
                    shared.append(box)
        boxes += shared
        total, free = in_units(offer.resource, offer.total), in_units(offer.resource, offer.free)
        filled = max(math.ceil(total), len(boxes))
        idle = len(boxes) + math.floor(free)
        boxes += [[] for _ in range(filled - len(boxes))]
        return NodeCardRow(
            card=card,
            sharing="shared" if card.endswith(_SHARED) else "slice" if _SLICE in card else "whole",
            total=total,
            used=sum(amount for *_, amount in offer.holders or ()),
            free=free,
            boxes=tuple(CardBox(tenants=tuple(box), available=position < idle) for position, box in enumerate(boxes)),
        )

    def tenant(self, task: Task, share: float, text: str = "") -> Tenant:
        """A pod on a card, without its name where the viewer may not see it."""
        is_visible = self._cluster.may_see(task.namespace)
        return Tenant(
            pod=f"{task.namespace}/{task.name}" if is_visible else "",
            workload=workload_name(task) if is_visible else "",
            queue=self._visible_queue(task.job.queue) if task.job is not None else "",
            share=share,
            terminating=task.deleting,
            text=text,
        )

    def _visible_queue(self, queue: str) -> str:
        """A queue, or the lowest visible one above it; "" for none."""
        for _ in self._state.queues:
            if self._cluster.may_see_queue(queue):
                return queue
            queue = self._state.queues[queue].parent if queue in self._state.queues else ""
        return ""

    def of_pod(self, row: SharedCardRow, tenant: CardTenant) -> Tenant:
        """A pod on a shared card."""
        memory = tenant.memory / row.card.memory if row.card.memory else 0.0
        share = min(1.0, memory or tenant.cores / 100 or tenant.shares / max(1, row.card.slots))
        amounts = [f"memory {tenant.memory} of {row.card.memory}"]
        amounts += [f"cores {tenant.cores}%"] if tenant.cores else []
        amounts += [f"MIG {' '.join(tenant.slices)}"] if tenant.slices else []
        task = self._tasks.get(tenant.pod)
        if task is not None:
            return self.tenant(task, share, ", ".join(amounts))
        is_visible = self._cluster.may_see(tenant.pod.partition("/")[0])
        return Tenant(pod=tenant.pod if is_visible else "", workload="", queue="", share=share, text=", ".join(amounts))


def _shared(card: str, rows: Iterable[SharedCardRow], boxes: NodeBoxes) -> NodeCardRow:
    """Cards that a device plugin shares."""
    ordered = sorted(rows, key=lambda row: row.gpu)
    return NodeCardRow(
        card=card,
        sharing="shared",
        total=len(ordered),
        used=sum(bool(row.tenants) for row in ordered),
        free=sum(row.is_available and not row.tenants for row in ordered),
        boxes=tuple(
            CardBox(tenants=tuple(boxes.of_pod(row, one) for one in row.tenants), available=row.is_available)
            for row in ordered
        ),
    )


def _fragmentation(cluster: Cluster) -> tuple[CardFragmentation, ...]:
    """Free blocks of each card, the largest first."""
    reader, states = capacity_of(cluster), {node.name: node.state for node in nodes_of(cluster)}
    sizes: dict[str, float] = {}
    blocks: dict[str, dict[float, int]] = {}
    for card, offers in reader.cards.items():
        sizes[card] = max(in_units(offer.resource, offer.total) for offer in offers)
        for offer in offers:
            free = in_units(offer.resource, max(0, offer.free))
            if free and not states[offer.node.name]:
                counts = blocks.setdefault(card, {})
                counts[free] = counts.get(free, 0) + 1
    return tuple(
        CardFragmentation(
            card=one.card,
            total=one.total,
            free=one.free,
            largest_free=one.largest_free,
            node_size=sizes[one.card],
            blocked=one.blocked,
            blocks=tuple(
                FreeBlock(free=free, nodes=count) for free, count in sorted(blocks.get(one.card, {}).items())[::-1]
            ),
        )
        for one in card_sums(cluster)
        if one.card in sizes
    )
