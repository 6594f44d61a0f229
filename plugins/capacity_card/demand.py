"""The demand of a pod: cpu, memory and cards it is charged to its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, CardSyntaxError, parse_card_name
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, Charge

if TYPE_CHECKING:
    from collections.abc import Collection

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.inventory import CardInventory


#: Task classes. The cache of demands is cleared beyond this size.
_MAX_CLASSES = 4096


class ChargeError(ValueError):
    """A charge cannot be computed; the message is the `error` of GetTaskRequestResourceFailed."""


class CardDemand:
    """The demand of one task class."""

    __slots__ = ("_fixed", "alternatives", "amount", "claim", "error", "names", "positions", "several", "unnamed")

    def __init__(
        self,
        claim: Charge,
        names: tuple[str, ...] = (),
        alternatives: tuple[str, ...] = (),
        *,
        error: str = "",
        unnamed: str = "",
    ) -> None:
        #: The charge while no node is chosen.
        self.claim = claim
        self.amount = claim.amount
        #: Cards the pod accepts, in the order of its annotation, preferred first.
        self.names = names
        #: Those of them that some node offers.
        self.alternatives = alternatives
        #: 0-based place of each alternative among `names`.
        self.positions = tuple(names.index(card) for card in alternatives)
        self.several = len(alternatives) > 1
        #: Why the card part of the charge cannot be computed, "" when it can.
        self.error = error
        #: The card resource requested without a card name and without a charge.
        self.unnamed = unnamed
        self._fixed: dict[tuple[str, int], Charge] = {}

    def on(self, card: str) -> Charge:
        """The charge once the card is known."""
        return self.claim if not card else self.fixed(card, self.amount)

    def fixed(self, card: str, amount: int) -> Charge:
        """The charge with a given card and amount."""
        claim = self.claim
        if (card, amount) == (claim.card, claim.amount) and claim.complete:
            return claim
        charge = self._fixed.get((card, amount))
        if charge is None:
            charge = self._fixed[card, amount] = claim._replace(card=card, amount=amount, complete=True)
        return charge


class CardDemands:
    """Demands by task class, cached until the relation of cards and resources changes."""

    def __init__(self, arguments: CapacityCardArguments, inventory: CardInventory) -> None:
        self._arguments = arguments
        self._inventory = inventory
        self._demands: dict[TaskClass, CardDemand] = {}

    def of(self, cls: TaskClass) -> CardDemand:
        """The demand of a class."""
        demand = self._demands.get(cls)
        if demand is None:
            demand = self._demands[cls] = self._read(cls)
        return demand

    @property
    def over_capacity(self) -> bool:
        """Whether the cache exceeds its size."""
        return len(self._demands) > _MAX_CLASSES

    def forget(self) -> None:
        """Clear the cache."""
        self._demands.clear()

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
            return demand.fixed(*found)
        if before is not None and charged:
            return demand.fixed(before.card, before.amount)
        if demand.alternatives and task.assigned_card in demand.names:
            return demand.on(task.assigned_card)  # also one that no node offers any more
        return demand.on(demand.alternatives[0]) if demand.several else demand.claim

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
        known = sorted(self._inventory.shares)
        shares = tuple([(name, cls.requests[name]) for name in known if cls.requests.get(name)])
        plain = tuple([each for each in ((CPU_KEY, cpu), (MEMORY_KEY, memory), *shares) if each[1]])
        claim = Charge(plain, "|".join(alternatives), amount, cls.id, not error, shares)
        return CardDemand(claim, names, alternatives, error=error, unnamed=unnamed)

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
    """The text of the card name annotation, "" without one."""
    return cls.annotations.get(CARD_NAME) or cls.annotations.get(CARD_NAME_ALIAS) or ""


def _count(cls: TaskClass, resource: str) -> int:
    """Thousandths of cards: the pod-level limit where any container limits it, else the request; whole, rounded up."""
    amount = cls.limits[resource] if resource in cls.limits else cls.requests.get(resource, 0)
    return -(-amount // CARD) * CARD


def mixed_resources(key: str, resources: Collection[str]) -> str:
    """The text for alternatives that have no resource name in common."""
    return f"cards <{key}> use different resources <{', '.join(sorted(resources))}>, which is not supported"
