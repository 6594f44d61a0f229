"""The cards of the cluster, the nodes that offer them and their resource names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.cards import NodeCards, discover_cards
from capcard_sched.model.reasons import INVALID_CARD_LABEL
from capcard_sched.model.resources import VGPU_RESOURCES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node

_NOTHING: frozenset[str] = frozenset()
#: Without deviceshare.
_DEFAULT_SHARES = frozenset(VGPU_RESOURCES)


def _resources(cards: NodeCards) -> list[tuple[str, str]]:
    return [(card, resource) for card, (_, resource) in cards.cards.items()]


class _CardOffer(NamedTuple):
    """The cards of one node, and the generation of the node they were discovered at."""

    node: Node
    generation: int
    cards: NodeCards


class CardInventory:
    """Cards by node. Recomputes only nodes whose labels or allocatable changed.

    Cordoned and not-ready nodes count. A card that no node offers any more keeps its resource names while a live pod
    holds it, so that charges survive the deletion of a node.
    """

    def __init__(self) -> None:
        #: Thousandths of each card over all nodes.
        self.totals: dict[str, int] = {}
        #: Resources of shared devices.
        self.shares: frozenset[str] = _DEFAULT_SHARES
        #: Number of labels that are not positive integers, over all nodes.
        self.invalid_labels = 0
        self._offers: dict[str, _CardOffer] = {}
        #: Card to resource name to how many nodes offer it so.
        self._uses: dict[str, dict[str, int]] = {}
        #: Nodes whose cards or their resource names changed at the last refresh.
        self.relabeled: list[Node] = []
        self._remembered: dict[str, frozenset[str]] = {}
        self._cards: dict[str, set[str]] = {}
        self._holders: dict[str, dict[str, Node]] = {}
        self._nodes = 0
        self._generation = -1
        self._masks: dict[str, Mask] = {}
        self._indexes: dict[tuple[tuple[str, ...], tuple[str, ...]], Rows] = {}

    # --- queries ----------------------------------------------------------------------------------------------------

    def resources_of(self, card: str) -> frozenset[str]:
        """The resource names of a card; empty for an unknown card."""
        uses = self._uses.get(card)
        return frozenset(uses) if uses else self._remembered.get(card, _NOTHING)

    def cards_of(self, resource: str) -> list[str]:
        """The cards offered under a resource name, sorted."""
        return sorted(self._cards.get(resource, ()))

    def is_card_resource(self, resource: str) -> bool:
        """Whether some card is requested by this resource name."""
        return resource in self._cards

    def offered_by(self, node: Node) -> Container[str]:
        """The cards of a node; none for a deleted node."""
        offer = self._offers.get(node.name)
        return offer.cards.cards if offer is not None else _NOTHING

    def cards_on(self, node: Node) -> Mapping[str, tuple[int, str]]:
        """Card of a node to (thousandths, resource name), sorted; empty for a deleted node."""
        offer = self._offers.get(node.name)
        return offer.cards.cards if offer is not None else {}

    def offers(self, card: str) -> Mask:
        """Mask of the nodes that offer a card: bool [nodes]. Cached until a node changes."""
        mask = self._masks.get(card)
        if mask is None:
            mask = np.zeros(self._nodes, dtype=bool)
            mask[[node.row for node in self._holders.get(card, {}).values()]] = True
            self._masks[card] = mask
        return mask

    def alternative_index(self, alternatives: tuple[str, ...], usable: tuple[str, ...]) -> Rows:
        """Index in `alternatives` of the first usable one each node offers, -1 for none: intp [nodes]."""
        indexes = self._indexes.get((alternatives, usable))
        if indexes is None:
            indexes = np.full(self._nodes, -1, dtype=np.intp)
            for index in reversed(range(len(alternatives))):
                if alternatives[index] in usable:
                    indexes[self.offers(alternatives[index])] = index
            self._indexes[alternatives, usable] = indexes
        return indexes

    # --- refresh ----------------------------------------------------------------------------------------------------

    def refresh(self, session: Session, held: Container[str]) -> set[str]:
        """Apply the changed nodes. O(changed nodes); `held` are the cards that live pods are charged.

        Returns the names of cards and resources whose relation changed: results derived from them are stale. Emits an
        event for each invalid label.
        """
        by_name, changed = session.nodes.by_name, session.changed
        names: Iterable[str] = self._offers.keys() | by_name.keys() if changed.everything else changed.nodes
        before: dict[str, frozenset[str]] = {}
        self.relabeled.clear()
        self.shares = session.state.shares or _DEFAULT_SHARES
        for name in names:
            node, old = by_name.get(name), self._offers.get(name)
            if node is not None and old is not None and (old.node, old.generation) == (node, node.generation):
                continue
            if old is not None:
                self._remove_node(name, old, before)
            if node is not None:
                self._add_node(session, name, node, before)
                if old is None or _resources(old.cards) != _resources(self._offers[name].cards):
                    self.relabeled.append(node)
        if session.nodes.generation != self._generation or len(session.nodes) != self._nodes:
            self._generation, self._nodes = session.nodes.generation, len(session.nodes)
            self._masks.clear()
            self._indexes.clear()
        return self._update_relations(before, held)

    def _add_node(self, session: Session, name: str, node: Node, before: dict[str, frozenset[str]]) -> None:
        found = discover_cards(node.labels, node.allocatable)
        self._offers[name] = _CardOffer(node, node.generation, found)
        for card, (amount, resource) in found.cards.items():
            before.setdefault(card, self.resources_of(card))
            self.totals[card] = self.totals.get(card, 0) + amount
            uses = self._uses.setdefault(card, {})
            uses[resource] = uses.get(resource, 0) + 1
            self._holders.setdefault(card, {})[name] = node
        self.invalid_labels += len(found.problems)
        for key, value in found.problems:
            session.notice(node, INVALID_CARD_LABEL, INVALID_CARD_LABEL.render(key=key, value=value))

    def _remove_node(self, name: str, offer: _CardOffer, before: dict[str, frozenset[str]]) -> None:
        del self._offers[name]
        for card, (amount, resource) in offer.cards.cards.items():
            before.setdefault(card, self.resources_of(card))
            self.totals[card] -= amount
            uses = self._uses[card]
            uses[resource] -= 1
            if not uses[resource]:
                del uses[resource]
            del self._holders[card][name]
            if not uses:
                del self._uses[card], self._holders[card], self.totals[card]
        self.invalid_labels -= len(offer.cards.problems)

    def _update_relations(self, before: dict[str, frozenset[str]], held: Container[str]) -> set[str]:
        """Update the cards by resource, and keep the resources of held cards that no node offers any more."""
        for card in self._remembered.keys() - before.keys():
            before[card] = self._remembered[card]
        changed: set[str] = set()
        for card, old in before.items():
            if card in self._uses:
                self._remembered.pop(card, None)
            elif card in held:
                self._remembered[card] = old
            else:
                self._remembered.pop(card, None)
            new = self.resources_of(card)
            if new == old:
                continue
            changed |= {card, *old, *new}
            for resource in old - new:
                self._cards[resource].discard(card)
                if not self._cards[resource]:
                    del self._cards[resource]
            for resource in new - old:
                self._cards.setdefault(resource, set()).add(card)
        return changed
