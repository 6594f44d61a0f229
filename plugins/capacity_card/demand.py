"""The demand of a pod: cpu, memory and cards it is charged to its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, CardSyntaxError, parse_card_name
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.charge import Charge

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

    __slots__ = ("_by_card", "alternatives", "amount", "claim", "error", "names", "positions", "several", "unnamed")

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
        self._by_card: dict[str, Charge] = {}

    def on(self, card: str) -> Charge:
        """The charge once the card is known."""
        if not card or card == self.claim.card:
            return self.claim
        charge = self._by_card.get(card)
        if charge is None:
            charge = self._by_card[card] = self.claim._replace(card=card)
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

    def placed(self, task: Task, node: Node | None, before: str = "") -> Charge:
        """The charge of a pod that stands on a node (rule 5). `before`: the card it was charged before, if any.

        Never fails: a pod that already runs is charged its `card.assigned`, else what the node offers, else what it
        was charged before, else the first alternative the cluster knows (R12).
        """
        demand = self.of(task.cls)
        if demand.alternatives and task.assigned_card in demand.names:
            return demand.on(task.assigned_card)  # also one that no node offers any more
        if not demand.several:
            return demand.claim
        if node is not None:
            offered = self._inventory.offered_by(node)
            for card in demand.alternatives:
                if card in offered:
                    return demand.on(card)
        return demand.on(before if before in demand.names else demand.alternatives[0])

    def _read(self, cls: TaskClass) -> CardDemand:
        written = cls.annotations.get(CARD_NAME) or cls.annotations.get(CARD_NAME_ALIAS) or ""
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
                    names, amount, unnamed = tuple(self._inventory.cards_of(unnamed)), _count(cls, unnamed), ""
                    alternatives = names
            else:
                alternatives = tuple(card for card in names if self._inventory.resources_of(card))
                amount = _count(cls, self._resource(cls, written, names, alternatives))
        except (CardSyntaxError, ChargeError) as problem:
            error, amount, alternatives = str(problem), 0, ()
        cpu, memory = cls.requests.get(CPU, 0), cls.requests.get(MEMORY, 0)
        if self._arguments.card_unlimited_cpu_memory and (amount or self._unnamed_resource(cls)):
            cpu = memory = 0
        claim = Charge(cpu, memory, "|".join(alternatives), amount, cls.id, not error)
        return CardDemand(claim, names, alternatives, error=error, unnamed=unnamed)

    def _resource(self, cls: TaskClass, written: str, names: Collection[str], alternatives: Collection[str]) -> str:
        """The one resource name by which the pod asks for its cards. Raises ChargeError (§2.3)."""
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

    def _unnamed_resource(self, cls: TaskClass) -> str:
        """The first card resource, in sorted order, of which the pod asks any; "" for none."""
        for resource in sorted({*cls.requests, *cls.limits}):
            if self._inventory.is_card_resource(resource) and _count(cls, resource):
                return resource
        return ""


def _count(cls: TaskClass, resource: str) -> int:
    """Thousandths of cards: the pod-level limit where any container limits it, else the request; whole, rounded up."""
    amount = cls.limits[resource] if resource in cls.limits else cls.requests.get(resource, 0)
    return -(-amount // CARD) * CARD


def mixed_resources(key: str, resources: Collection[str]) -> str:
    """The text for alternatives that one resource name cannot ask for (R6)."""
    return f"cards <{key}> use different resources <{', '.join(sorted(resources))}>, which is not supported"
