"""The cards of the cluster, the nodes that offer them, and the cards a pod requests."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, CardSyntaxError, NodeCards, discover_cards, parse_card_name
from capcard_sched.model.reasons import INVALID_CARD_LABEL
from capcard_sched.model.resources import CPU, MEMORY, VGPU_RESOURCES
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, Charge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments

_NOTHING: frozenset[str] = frozenset()
#: Without deviceshare.
_DEFAULT_SHARES = frozenset(VGPU_RESOURCES)


def _resources(cards: NodeCards) -> list[tuple[str, str]]:
    return [(card, resource) for card, (_, resource) in cards.cards.items()]


class CardAmounts(NamedTuple):
    """A parsed annotation that gives amounts to cards: all of it or nothing."""

    #: Card, or `A|B`, to thousandths.
    cards: Mapping[str, int]
    #: The syntax error, "" for a valid annotation.
    problem: str


@lru_cache(maxsize=4096)
def parsed(parse: Callable[[str | None], Mapping[str, int]], text: str | None) -> CardAmounts:
    """The amounts of an annotation, read by `parse_card_quota` or `parse_card_request`."""
    try:
        return CardAmounts(parse(text), "")
    except CardSyntaxError as problem:
        return CardAmounts({}, str(problem))


class _CardOffer(NamedTuple):
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
        self._cards: defaultdict[str, set[str]] = defaultdict(set)
        self._holders: dict[str, dict[str, Node]] = {}
        self._nodes = 0
        self._generation = -1
        self._masks: dict[str, Mask] = {}
        self._indexes: dict[tuple[tuple[str, ...], tuple[str, ...]], Rows] = {}

    def resources_of(self, card: str) -> frozenset[str]:
        """The resource names of a card; empty for an unknown card."""
        uses = self._uses.get(card)
        return frozenset(uses) if uses else self._remembered.get(card, _NOTHING)

    def cards_of(self, resource: str) -> list[str]:
        return sorted(self._cards.get(resource, ()))

    def is_card_resource(self, resource: str) -> bool:
        return bool(self._cards.get(resource))

    def is_on_each(self, card: str, nodes: Iterable[Node]) -> bool:
        """Whether each of some nodes offers a card; "" is on all."""
        return not card or self._holders.get(card, {}).keys() >= {node.name for node in nodes}

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
                self._post(self._offers.pop(name), -1, before)
            if node is not None:
                found = discover_cards(node.labels, node.allocatable)
                self._offers[name] = _CardOffer(node, node.generation, found)
                self._post(self._offers[name], 1, before)
                for key, value in found.problems:
                    session.notice(node, INVALID_CARD_LABEL, INVALID_CARD_LABEL.render(key=key, value=value))
                if old is None or _resources(old.cards) != _resources(found):
                    self.relabeled.append(node)
        if session.nodes.generation != self._generation or len(session.nodes) != self._nodes:
            self._generation, self._nodes = session.nodes.generation, len(session.nodes)
            self._masks.clear()
            self._indexes.clear()
        return self._update_relations(before, held)

    def _post(self, offer: _CardOffer, sign: int, before: dict[str, frozenset[str]]) -> None:
        """Add the cards of a node (1), or subtract them (-1). `before`: the resource names of its cards until now."""
        self.invalid_labels += sign * len(offer.cards.problems)
        for card, (amount, resource) in offer.cards.cards.items():
            before.setdefault(card, self.resources_of(card))
            self.totals[card] = self.totals.get(card, 0) + sign * amount
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
                    del self._uses[card], self._holders[card], self.totals[card]

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


#: Task classes, and results derived from them. Both caches are cleared beyond this size.
_MAX_CLASSES = 4096


class ChargeError(ValueError):
    """A charge cannot be computed; the message is the `error` of GetTaskRequestResourceFailed."""


@dataclass(slots=True, eq=False, repr=False)
class CardDemand:
    """The demand of one task class."""

    #: The charge while no node is chosen.
    claim: Charge
    #: Cards the pod accepts, in the order of its annotation, preferred first.
    names: tuple[str, ...]
    #: Those of them that some node offers.
    alternatives: tuple[str, ...]
    #: Why the card part of the charge cannot be computed, "" when it can.
    error: str
    #: The card resource requested without a card name and without a charge.
    unnamed: str
    amount: int = field(init=False)
    several: bool = field(init=False)
    _fixed: dict[tuple[str, int], Charge] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.amount = self.claim.amount
        self.several = len(self.alternatives) > 1

    def on(self, card: str, amount: int) -> Charge:
        """The charge of a pod that holds an amount of one card."""
        claim = self.claim
        if (card, amount) == (claim.card, claim.amount) and claim.complete:
            return claim
        charge = self._fixed.get((card, amount))
        if charge is None:
            charge = self._fixed[card, amount] = claim.with_card(card, amount)
        return charge


class CardDemands:
    """Demands by task class, cached until the relation of cards and resources changes."""

    def __init__(self, arguments: CapacityCardArguments, inventory: CardInventory) -> None:
        self._arguments = arguments
        self._inventory = inventory
        self._demands: dict[TaskClass, CardDemand] = {}
        #: Results that others derive from demands, by their inputs.
        self.derived: dict[tuple[object, ...], Any] = {}

    def of(self, cls: TaskClass) -> CardDemand:
        demand = self._demands.get(cls)
        if demand is None:
            demand = self._demands[cls] = self._read(cls)
        return demand

    @property
    def over_capacity(self) -> bool:
        return max(len(self._demands), len(self.derived)) > _MAX_CLASSES

    def forget(self) -> None:
        self._demands.clear()
        self.derived.clear()

    def placed(self, task: Task, node: Node | None, before: Charge | None = None) -> Charge:
        """The charge of a pod on a node; `before`: its charge so far. Never fails.

        A pod is charged the card of its node whose resource it requests. On a node without such a card it keeps its
        charge; only there, and without a charge, do annotations decide: `card.assigned`, else the first alternative
        that some node offers. Under `unnamedCards: ignore` a pod that never named a card is charged none.
        """
        demand = self.of(task.cls)
        charged = before is not None and bool(before.card)
        named = charged or bool(_card_name(task.cls)) or bool(task.assigned_card)
        if not named and self._arguments.unnamed_cards == "ignore":
            return demand.claim
        found = self._held_on(task.cls, node) if node is not None else None
        if found is not None:
            return demand.on(*found)
        if before is not None and charged:
            return demand.on(before.card, before.amount)
        if demand.alternatives and task.assigned_card in demand.names:
            return demand.on(task.assigned_card, demand.amount)  # also one that no node offers any more
        return demand.on(demand.alternatives[0], demand.amount) if demand.several else demand.claim

    def _held_on(self, cls: TaskClass, node: Node) -> tuple[str, int] | None:
        """The card of a node that pods of the class hold there, and its amount; the largest amount of several."""
        found, largest = "", 0
        for card, (_, resource) in self._inventory.cards_on(node).items():
            amount = _count(cls, resource)
            if amount > largest:
                found, largest = card, amount
        return (found, largest) if found else None

    def choices_on(self, demand: CardDemand, cls: TaskClass, node: Node) -> list[str]:
        """The alternatives that a node offers under a resource the class requests, preferred first."""
        cards = self._inventory.cards_on(node)
        return [card for card in demand.alternatives if card in cards and _count(cls, cards[card][1])]

    def _read(self, cls: TaskClass) -> CardDemand:
        written = _card_name(cls)
        names: tuple[str, ...] = ()
        alternatives: tuple[str, ...] = ()
        amount, error, unnamed = 0, "", ""
        try:
            names = parse_card_name(written)
            if not names:
                unnamed = self._unnamed_resource(cls)
                if unnamed and self._arguments.unnamed_cards == "deny":
                    raise ChargeError(f"card resource <{unnamed}> requested without annotation {CARD_NAME}")
                if unnamed and self._arguments.unnamed_cards == "infer":
                    self._check_single(cls, unnamed)
                    names, amount, unnamed = tuple(self._inventory.cards_of(unnamed)), _count(cls, unnamed), ""
                    alternatives = names
            else:
                alternatives = tuple(card for card in names if self._inventory.resources_of(card))
                resource = self._resource(cls, written, names, alternatives)
                if self._arguments.unnamed_cards != "ignore":
                    self._check_single(cls, resource)
                amount = _count(cls, resource)
        except (CardSyntaxError, ChargeError) as problem:
            error, amount, alternatives = str(problem), 0, ()
        cpu, memory = cls.requests.get(CPU, 0), cls.requests.get(MEMORY, 0)
        if self._arguments.card_unlimited_cpu_memory and (amount or self._unnamed_resource(cls)):
            cpu = memory = 0
        known = self._inventory.shares
        shares = tuple(sorted([(name, held) for name, held in cls.requests.items() if held and name in known]))
        card = "|".join(alternatives)
        amounts = tuple([each for each in ((CPU_KEY, cpu), (MEMORY_KEY, memory), *shares, (card, amount)) if each[1]])
        claim = Charge(amounts, card, amount, cls.id, not error, shares)
        return CardDemand(claim, names, alternatives, error, unnamed)

    def _resource(self, cls: TaskClass, written: str, names: Collection[str], alternatives: Collection[str]) -> str:
        """The one resource name of the pod's cards. Raises ChargeError."""
        if not alternatives:
            raise ChargeError(f"no resource name found for card <{written}>")
        sets = [self._inventory.resources_of(card) for card in alternatives]
        common = sorted(frozenset.intersection(*sets))
        if not common:
            raise ChargeError(mixed_resources("|".join(names), frozenset.union(*sets)))
        for resource in common:
            if resource in cls.limits or resource in cls.requests:
                return resource
        raise ChargeError(f"no resource <{common[0]}> defined in requests/limits for card <{written}>")

    def _check_single(self, cls: TaskClass, resource: str) -> None:
        """Raises ChargeError when the pod requests cards by a second resource, which its charge does not include.

        A resource that names no card of its own, such as an RDMA device beside whole cards, is not one.
        """
        cards = set(self._inventory.cards_of(resource))
        others = [name for name in self._card_resources(cls) if not cards.issuperset(self._inventory.cards_of(name))]
        if others:
            listed = ", ".join(sorted({resource, *others}))
            raise ChargeError(f"card resources <{listed}> requested together, which is not supported")

    def _unnamed_resource(self, cls: TaskClass) -> str:
        """The first card resource, in sorted order, that the pod requests; "" for none."""
        return next(iter(self._card_resources(cls)), "")

    def _card_resources(self, cls: TaskClass) -> list[str]:
        """The card resources that the pod requests, sorted."""
        return [
            resource
            for resource in sorted({*cls.requests, *cls.limits})
            if self._inventory.is_card_resource(resource) and _count(cls, resource)
        ]


def _card_name(cls: TaskClass) -> str:
    return cls.annotations.get(CARD_NAME) or cls.annotations.get(CARD_NAME_ALIAS) or ""


def _count(cls: TaskClass, resource: str) -> int:
    """Thousandths of cards: the pod-level limit where any container limits it, else the request; whole, rounded up."""
    amount = cls.limits[resource] if resource in cls.limits else cls.requests.get(resource, 0)
    return -(-amount // CARD) * CARD


def mixed_resources(key: str, resources: Collection[str]) -> str:
    """The text for alternatives that have no resource name in common."""
    return f"cards <{key}> use different resources <{', '.join(sorted(resources))}>, which is not supported"
