"""The cards of all nodes, as rows from each change on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from capcard_sched.ledger.rows import CapacityRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.model.held_cards import NodeInventory


class CapacitySums:
    """Sums by card; a change of a node costs O(its cards)."""

    def __init__(self, recorded: dict[str, CapacityRow]) -> None:
        """`recorded`: card to its last row."""
        self.nodes: dict[str, NodeInventory] = {}
        #: Node, "" for several, to the thousandths by card of each pool of ResourceSlices.
        self._devices: dict[str, dict[PoolId, Counter[str]]] = {}
        self._pools: dict[PoolId, set[str]] = {}
        #: Card to its total and to the unavailable part, in thousandths.
        self._sums: dict[str, list[int]] = {card: [0, 0] for card in recorded}
        self._recorded = recorded

    def set_node(self, name: str, inventory: NodeInventory | None) -> None:
        """A node was added or changed, or is gone."""
        if inventory == self.nodes.get(name):
            return
        self._add(name, -1)
        self.nodes.pop(name, None)
        if inventory is not None:
            self.nodes[name] = inventory
        self._add(name, 1)

    def set_pool(self, pool: PoolId, provided: Mapping[tuple[str, str], int]) -> None:
        """A pool provides thousandths by node and card; node "": of several."""
        nodes = {node for node, _ in provided}
        for name in nodes | self._pools.pop(pool, set()):
            self._add(name, -1)
            pools = self._devices.setdefault(name, {})
            pools.pop(pool, None)
            if name in nodes:
                pools[pool] = Counter({card: amount for (node, card), amount in provided.items() if node == name})
            self._add(name, 1)
            if not pools:
                del self._devices[name]
        if nodes:
            self._pools[pool] = nodes

    def _add(self, name: str, sign: int) -> None:
        """Add or subtract the cards of a node. Devices that its device plugin offers, too, count once."""
        node = self.nodes.get(name)
        found = node.totals() if node is not None else Counter[str]()
        offered = set(found)
        for devices in self._devices.get(name, {}).values():
            found.update({card: amount for card, amount in devices.items() if card not in offered})
        for card, amount in found.items():
            sums = self._sums.setdefault(card, [0, 0])
            sums[0] += sign * amount
            sums[1] += sign * amount if node is not None and node.unavailable else 0

    def changed(self, now: int) -> Iterator[CapacityRow]:
        """A row for each card whose sums differ from its last row."""
        gone: list[str] = []
        for card, (total, unavailable) in self._sums.items():
            before = self._recorded.get(card)
            if before is None or (before.total, before.unavailable) != (total, unavailable):
                row = self._recorded[card] = CapacityRow(card, now, total, unavailable)
                yield row
            if not total:
                gone.append(card)
        for card in gone:
            del self._sums[card], self._recorded[card]
