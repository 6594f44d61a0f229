"""Every card of the cluster: total, used, free, the largest free block, and the mean use of a day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.model.quantity import in_units
from capcard_sched.web.shared_rows import shared_rows
from capcard_sched.web.views import CardSum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.diagnosis import NodeSummary
    from capcard_sched.web.cluster import Cluster

#: Seconds of the window of the mean use.
_DAY: Final = 86_400.0


def capacity_of(cluster: Cluster) -> CapacityReader:
    """The reader of the cards of the nodes, which all views of the cluster share."""
    return cluster.part("capacity", lambda: CapacityReader(cluster.core.snapshot()))


def nodes_of(cluster: Cluster) -> list[NodeSummary]:
    """Every node, by name."""
    return cluster.part("nodes", capacity_of(cluster).list_nodes)


def card_sums(cluster: Cluster) -> tuple[CardSum, ...]:
    """Every card of the cluster; of shared ones the physical cards, in use with one tenant."""
    return cluster.part("card sums", lambda: _card_sums(cluster))


def _card_sums(cluster: Cluster) -> tuple[CardSum, ...]:
    reader = capacity_of(cluster)
    states = {node.name: node.state for node in nodes_of(cluster)}
    found = []
    for card, offers in reader.cards.items():
        rows = [
            (one.node.name, in_units(one.resource, one.total), in_units(one.resource, one.total - one.free))
            for one in offers
        ]
        found.append(_card_sum(cluster, card, rows, states))
    shared: dict[str, dict[str, tuple[int, int]]] = {}
    for row in shared_rows(cluster):
        nodes = shared.setdefault(row.card.type, {})
        total, used = nodes.get(row.node, (0, 0))
        nodes[row.node] = total + 1, used + bool(row.tenants)
    for card, nodes in shared.items():
        found.append(_card_sum(cluster, card, [(node, *amounts) for node, amounts in nodes.items()], states))
    return tuple(sorted(found, key=lambda one: one.card))


def _card_sum(
    cluster: Cluster, card: str, rows: Sequence[tuple[str, float, float]], states: Mapping[str, str]
) -> CardSum:
    """`rows`: node, total and used amount."""
    free = {node: max(0.0, total - used) for node, total, used in rows}
    open_nodes = [node for node in free if not states.get(node)]
    largest = max(open_nodes, key=lambda node: free[node], default="")
    return CardSum(
        card=card,
        nodes=len(rows),
        total=sum(total for _, total, _ in rows),
        used=sum(used for _, _, used in rows),
        free=sum(free.values()),
        largest_free=free.get(largest, 0.0),
        largest_node=largest if free.get(largest) else "",
        blocked=sum(amount for node, amount in free.items() if states.get(node)),
        mean=_mean(cluster, card),
    )


def _mean(cluster: Cluster, card: str) -> float | None:
    """Mean use of a card in the last 24 hours of the history."""
    history = cluster.history
    series = None if history is None else next((one for one in history.cards if one.card == card), None)
    if history is None or series is None or cluster.now <= history.begin:
        return None
    end = min(cluster.now, history.end) - history.begin
    return sum(queue.mean(max(0.0, end - _DAY), end) for queue in series.queues)
