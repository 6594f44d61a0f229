"""The cards of the cluster, and the nodes that offer them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CardSyntaxError, NodeCards, discover_cards
from capcard_sched.model.job import backed_cards
from capcard_sched.model.reasons import INVALID_CARD_LABEL
from capcard_sched.model.resources import VGPU_RESOURCES
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node

_NOTHING: frozenset[str] = frozenset()
#: Without deviceshare.
_DEFAULT_SHARES = frozenset(VGPU_RESOURCES)


class CardAmounts(NamedTuple):
    """A parsed annotation that gives amounts to cards: all of it or nothing."""

    #: Card, or `A|B`, to thousandths.
    cards: Mapping[str, int]
    #: The syntax error, "" for a valid annotation.
    problem: str


# Computed 3.4 us, kept 0.7 (benchmarks/caches.py).
@text_cache(4096, longer=64)
def parsed(parse: Callable[[str | None], Mapping[str, int]], text: str | None) -> CardAmounts:
    """The amounts of an annotation, read by `parse_card_quota` or `parse_card_request`."""
    try:
        return CardAmounts(parse(text), "")
    except CardSyntaxError as problem:
        return CardAmounts({}, str(problem))


def first_usable(alternatives: Sequence[str], usable: Container[str], offers: Sequence[Mask]) -> Rows:
    """Index in `alternatives` (at least one) of the first usable one each node offers, -1 for none: intp [nodes].

    `offers`: for each alternative the mask of the nodes that offer it.
    """
    indexes = np.full(len(offers[0]), -1, dtype=np.intp)
    for index in reversed(range(len(alternatives))):
        if alternatives[index] in usable:
            indexes[offers[index]] = index
    return indexes


class _CardOffer(NamedTuple):
    node: Node
    generation: int
    #: Of device plugins.
    plugin: NodeCards
    #: With those that DeviceClasses offer as extended resources: card to thousandths and resource name.
    cards: Mapping[str, tuple[int, str]]
    #: The resources of these classes.
    backed: frozenset[str]

    @property
    def resources(self) -> list[tuple[str, str]]:
        return [(card, resource) for card, (_, resource) in self.cards.items()]


class CardInventory:
    """Cards by node. Recomputes only nodes whose labels or allocatable changed.

    Cordoned and not-ready nodes count. A card that no node offers any more keeps its resource names while a live pod
    holds it, so that charges survive the deletion of a node.
    """

    def __init__(self) -> None:
        #: Thousandths of each card of device plugins, over all nodes.
        self.totals: dict[str, int] = {}
        #: Resources of shared devices.
        self.shares: frozenset[str] = _DEFAULT_SHARES
        #: Number of labels that are not positive integers, over all nodes.
        self.invalid_labels = 0
        #: Extended resources that devices provide to the number of nodes that offer them so.
        self.backed: Counter[str] = Counter()
        self._offers: dict[str, _CardOffer] = {}
        #: Card to resource name to how many nodes offer it so.
        self._uses: dict[str, dict[str, int]] = {}
        #: Nodes whose cards or their resource names changed at the last refresh.
        self.relabeled: list[Node] = []
        self._remembered: dict[str, frozenset[str]] = {}
        self._cards: defaultdict[str, set[str]] = defaultdict(set)
        self._holders: dict[str, dict[str, Node]] = {}
        self._nodes = 0
        self._generation = -1
        self._card_labels = DEFAULT_CARD_LABELS
        self._masks: dict[str, Mask] = {}
        self._indexes: dict[tuple[tuple[str, ...], tuple[str, ...]], Rows] = {}

    def resources_of(self, card: str) -> frozenset[str]:
        """The resource names of a card; empty for an unknown card."""
        uses = self._uses.get(card)
        return frozenset(uses) if uses else self._remembered.get(card, _NOTHING)

    def cards_of(self, resource: str) -> list[str]:
        return sorted(self._cards.get(resource, ()))

    def is_card_resource(self, resource: str) -> bool:
        """Whether some node offers the resource as a card, or it counts devices of a vendor."""
        return bool(self._cards.get(resource)) or self._card_labels.is_device(resource)

    def is_on_each(self, card: str, nodes: Iterable[Node]) -> bool:
        """Whether each of some nodes offers a card; "" is on all."""
        return not card or self._holders.get(card, {}).keys() >= {node.name for node in nodes}

    def cards_on(self, node: Node) -> Mapping[str, tuple[int, str]]:
        """Card of a node to (thousandths, resource name), sorted; empty for a deleted node."""
        offer = self._offers.get(node.name)
        return offer.cards if offer is not None else {}

    def plugin_cards_on(self, node: Node) -> Mapping[str, tuple[int, str]]:
        """Those of the device plugins of a node."""
        offer = self._offers.get(node.name)
        return offer.plugin.cards if offer is not None else {}

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
            indexes = first_usable(alternatives, usable, [self.offers(card) for card in alternatives])
            self._indexes[alternatives, usable] = indexes
        return indexes

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
        labels, self._card_labels = self._card_labels, session.state.card_labels
        same_rule = labels == self._card_labels
        for name in names:
            node, old = by_name.get(name), self._offers.get(name)
            if same_rule and node and old and (old.node, old.generation) == (node, node.generation):
                continue
            if old is not None:
                self._post(self._offers.pop(name), -1, before)
            if node is not None:
                found = discover_cards(node.labels, node.allocatable, self._card_labels)
                cards = {**backed_cards(node), **found.cards} if node.backed else found.cards
                self._offers[name] = _CardOffer(node, node.generation, found, cards, frozenset(node.backed))
                self._post(self._offers[name], 1, before)
                for key, value in found.problems:
                    session.results.notice(node, INVALID_CARD_LABEL, INVALID_CARD_LABEL.render(key=key, value=value))
                if old is None or old.resources != self._offers[name].resources:
                    self.relabeled.append(node)
        if session.nodes.generation != self._generation or len(session.nodes) != self._nodes:
            self._generation, self._nodes = session.nodes.generation, len(session.nodes)
            self._masks.clear()
            self._indexes.clear()
        return self._update_relations(before, held)

    def _post(self, offer: _CardOffer, sign: int, before: dict[str, frozenset[str]]) -> None:
        """Add the cards of a node (1), or subtract them (-1). `before`: the resource names of its cards until now."""
        self.invalid_labels += sign * len(offer.plugin.problems)
        for card, (amount, _) in offer.plugin.cards.items():
            self.totals[card] = self.totals.get(card, 0) + sign * amount
        for resource in offer.backed:
            self.backed[resource] += sign
        for card, (_, resource) in offer.cards.items():
            before.setdefault(card, self.resources_of(card))
            uses = self._uses.setdefault(card, {})
            uses[resource] = uses.get(resource, 0) + sign
            holders = self._holders.setdefault(card, {})
            if sign > 0:
                holders[offer.node.name] = offer.node
            else:
                del holders[offer.node.name]
                if not uses[resource]:
                    del uses[resource]
                if not uses:
                    del self._uses[card], self._holders[card]
                    self.totals.pop(card, None)

    def _update_relations(self, before: dict[str, frozenset[str]], held: Container[str]) -> set[str]:
        """Update the cards by resource, and keep the resources of held cards that no node offers any more."""
        changed: set[str] = set()
        for card, old in {**self._remembered, **before}.items():
            if card in held and card not in self._uses:
                self._remembered[card] = old
            else:
                self._remembered.pop(card, None)
            new = self.resources_of(card)
            if new != old:
                changed |= {card, *old, *new}
                for resource in old - new:
                    self._cards[resource].discard(card)
                for resource in new - old:
                    self._cards[resource].add(card)
        return changed
