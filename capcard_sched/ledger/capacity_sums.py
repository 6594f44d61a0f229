"""The cards of all nodes, as rows from each change on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.ledger.rows import CapacityRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.held_cards import NodeInventory


class CapacitySums:
    """Sums by card; a change of a node costs O(its cards)."""

    def __init__(self, recorded: dict[str, CapacityRow]) -> None:
        """`recorded`: card to its last row."""
        self.nodes: dict[str, NodeInventory] = {}
        #: Card to its total and to the unavailable part, in thousandths.
        self._sums: dict[str, list[int]] = {card: [0, 0] for card in recorded}
        self._recorded = recorded

    def set_node(self, name: str, inventory: NodeInventory | None) -> None:
        """A node was added or changed, or is gone."""
        before = self.nodes.pop(name, None)
        if inventory is not None:
            self.nodes[name] = inventory
        if inventory == before:
            return
        for node, sign in ((before, -1), (inventory, 1)):
            for card, amount in (node.totals() if node is not None else {}).items():
                sums = self._sums.setdefault(card, [0, 0])
                sums[0] += sign * amount
                sums[1] += sign * amount if node is not None and node.unavailable else 0

    def changed(self, now: int) -> Iterator[CapacityRow]:
        """A row for each card whose sums differ from its last row."""
        for card, (total, unavailable) in self._sums.items():
            before = self._recorded.get(card)
            if before is None or (before.total, before.unavailable) != (total, unavailable):
                row = self._recorded[card] = CapacityRow(card, now, total, unavailable)
                yield row
