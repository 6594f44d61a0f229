"""The cards that a pod requests, and its charge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, CardSyntaxError, parse_card_name
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.card_inventory import first_usable
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, Charge, Part
from capcard_sched.plugins.capacity_card.claim_cards import ClaimCards, ClaimDemand, Ranges, SharedPart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.card_inventory import CardInventory

#: Demands that are kept beyond twice the number of classes with pods.
_SPARE: Final = 4096
#: Results that are derived from the demand of one class.
_MOST_DERIVED: Final = 64
#: Contents of claims whose demand is kept: tenants write them.
_MOST_ALIKE: Final = 4096
#: Postponed classes of a namespace that one session reads again.
_MOST_AGAIN: Final = 64


class _HeldCard(NamedTuple):
    """The card that a pod holds on a node, in thousandths."""

    card: str
    amount: int
    #: Whether a label of the node names the model.
    has_model: bool


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
    #: The pod names no card and is charged by the resource that it requests.
    inferred: bool = False
    #: The card is that of devices which ResourceClaims request.
    by_claims: bool = False
    #: The demand in a cluster with nodes that offer its cards; None if some node does, or the amount is unknown.
    absent: CardDemand | None = None
    #: Whether a later session computes the amount; `error` has the reason.
    postponed: bool = False
    #: The part of the charge of each claim that pods may share: one of them is charged it.
    shared: tuple[SharedPart, ...] = ()
    #: The least and the most thousandths of each card; {} for one card, if they are equal. Amounts of the charge are
    #: upper bounds then.
    ranges: Ranges = field(default_factory=dict)
    shared_ranges: Mapping[str, Ranges] = field(default_factory=dict)
    amount: int = field(init=False)
    several: bool = field(init=False)
    #: The charge that enqueue counts: without the cards for which devices that cost nothing may serve.
    counted: Charge = field(init=False)
    _fixed: dict[tuple[Part, ...], Charge] = field(init=False, default_factory=dict)
    _reduced: dict[tuple[str, tuple[str, ...]], CardDemand] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.amount = self.claim.amount
        self.several = len(self.alternatives) > 1
        needs = bool(self.ranges) and not any(self.ranges[card][0] for card in self.alternatives)
        amount = 0 if needs else self.amount
        others = [each for each in self.claim.others if self.ranges[each[0]][0]]
        self.counted = self.claim
        if (amount, tuple(others)) != (self.amount, self.claim.others):
            self.counted = self.claim.with_cards([(self.claim.card, amount), *others])

    def on(self, card: str, amount: int, *others: Part) -> Charge:
        """The charge of a pod that holds an amount of one card, and of further ones."""
        claim, held = self.claim, ((card, amount), *others)
        if held == claim.held and claim.complete:
            return claim
        charge = self._fixed.get(held)
        if charge is None:
            charge = self._fixed[held] = claim.with_cards(held)
        return charge

    def least(self, card: str) -> int:
        """The least amount that pods are charged of a card."""
        return self.ranges[card][0] if card in self.ranges else self.amount

    def reduced(self, card: str, paid: tuple[str, ...]) -> CardDemand:
        """The demand beside claims, by key, that other pods are charged for. `card`: the alternative that they fix."""
        found = self._reduced.get((card, paid))
        if found is None:
            names = (card,) if card else self.alternatives
            left: dict[str, tuple[int, int]] = {}
            for name in (*names, *[name for name, _ in self.claim.others]):
                least, most = self.ranges.get(name, (self.amount, self.amount))
                parts = [self.shared_ranges[key].get(name, (0, 0)) for key in paid]
                left[name] = least - sum(part[0] for part in parts), most - sum(part[1] for part in parts)
            amount = min([left[name][1] for name in names])
            others = [(name, left[name][1]) for name, _ in self.claim.others]
            claim = self.claim.with_cards((("|".join(names), amount), *others))
            is_open = any(least < most for least, most in left.values()) or bool(claim.others)
            found = CardDemand(
                claim, names, names, "", "", by_claims=True, shared=self.shared, ranges=left if is_open else {},
                shared_ranges=self.shared_ranges,
            )  # fmt: skip
            self._reduced[card, paid] = found
        return found

    def refused(self, error: str) -> CardDemand:
        """The demand of a pod whose claims cannot be charged to its queue."""
        claim = self.claim.with_cards([(self.claim.card, 0)])._replace(complete=False)
        return CardDemand(claim, self.names, (), error, "", by_claims=True)


class CardDemands:
    """Demands by task class, cached until the relation of cards and resources changes."""

    def __init__(self, arguments: CapacityCardArguments, inventory: CardInventory) -> None:
        self._arguments = arguments
        #: Demands of ResourceClaims.
        self.claims = ClaimCards()
        self._inventory = inventory
        self._demands: dict[TaskClass, CardDemand] = {}
        self._most_demands = _SPARE
        #: `namespace/name` of a claim, and "ResourceClaimTemplate namespace/name", to the classes whose demands use it.
        self._readers: dict[str, set[TaskClass]] = {}
        #: By namespace, the classes whose claims a later session reads.
        self._postponed: dict[str, dict[TaskClass, None]] = {}
        #: The demand of classes that differ in names of generated claims alone, by `TaskClass.alike` and the contents
        #: of the claims.
        self._alike: dict[tuple[int, tuple[bytes, ...]], CardDemand] = {}
        #: Results that others derive from the demand of a class, by their other inputs.
        self._derived: dict[TaskClass, dict[tuple[object, ...], Any]] = {}
        self._session: Session | None = None

    def open(self, session: Session) -> None:
        """Starts a session, which decides whether nodes with other cards count as existing."""
        self._session = session

    def of(self, cls: TaskClass) -> CardDemand:
        demand = self._demands.get(cls)
        if demand is None:
            demand = self._demands[cls] = self._shared_by_alike(cls) if cls.alike else self._read(cls)
        if demand.absent is not None and (session := self._session) is not None:
            is_expected = session.assumptions.growing or session.carry_over.expects_card(demand.names)
            return demand.absent if is_expected else demand
        return demand

    def _shared_by_alike(self, cls: TaskClass) -> CardDemand:
        """The demand of a class with generated claims: one object for claims of equal content without devices."""
        contents = self.claims.contents(cls) if cls.unplaced is None else None
        if contents is None:
            return self._read(cls)
        found = self._alike.get((cls.alike, contents))
        if found is not None:
            self._note_claims(cls)
            return found
        found = self._read(cls)
        if not found.error:
            if len(self._alike) >= _MOST_ALIKE:
                self._alike.clear()
            self._alike[cls.alike, contents] = found
        return found

    def derived(self, cls: TaskClass) -> dict[tuple[object, ...], Any]:
        """Results that follow from the demand of a class, by their other inputs: to be read and added to."""
        found = self._derived.setdefault(cls, {})
        if len(found) > _MOST_DERIVED:
            found.clear()
        return found

    def refresh_claims(self, session: Session) -> set[str]:
        """Forgets the demands of claims that changed. Returns the keys of the jobs whose demands may have changed.

        O(changed claims) while devices and classes of devices stay, O(pods) for claims that no single pod owns.
        """
        snapshot, jobs = session.snapshot, set[str]()
        if self.claims.open(session):
            self._alike.clear()
            self._forget([cls for cls in self._demands if cls.claims])
            return _jobs_of(session, lambda cls: bool(cls.claims))
        shared: set[TaskClass] = set()
        for key in session.changed.devices:
            readers = self._readers.pop(key, ())
            self._forget(readers)
            shared.update(cls for cls in readers if any(not each.template for each in cls.claims))
            claim = snapshot.claims.claims.get(key)
            task = snapshot.tasks_by_uid.get(claim.owner.uid) if claim is not None and claim.owner is not None else None
            if task is not None and task.job is not None:
                jobs.add(task.job.key)
        return jobs | _jobs_of(session, shared.__contains__) if shared else jobs

    def forget_postponed(self, session: Session) -> set[str]:
        """Forgets some postponed demands of each namespace. Returns the keys of their jobs."""
        if not self._postponed:
            return set()
        again = {cls for classes in self._postponed.values() for cls in islice(classes, _MOST_AGAIN)}
        for cls in again:
            del self._postponed[cls.namespace][cls]
        self._forget(again)
        self._postponed = {namespace: classes for namespace, classes in self._postponed.items() if classes}
        if self._postponed:
            session.results.report.leave_unfinished()
        return _jobs_of(session, again.__contains__)

    def prune(self, session: Session) -> None:
        """Forgets classes without pods, once they are many. Never others: claims are compared with devices once."""
        if len(self._demands) > self._most_demands:
            used = {task.cls for task in session.snapshot.tasks_by_uid.values()}
            self._forget([cls for cls in self._demands if cls not in used])
            self._alike.clear()  # the classes in use keep their demands
            self._readers = {key: kept for key, classes in self._readers.items() if (kept := classes & used)}
            self._most_demands = 2 * len(self._demands) + _SPARE

    def _forget(self, classes: Iterable[TaskClass]) -> None:
        for cls in classes:
            self._demands.pop(cls, None)
            self._derived.pop(cls, None)

    def forget(self) -> None:
        self._demands.clear()
        self._alike.clear()
        self._derived.clear()
        self._readers.clear()

    def placed(self, task: Task, node: Node | None, before: Charge | None = None, *, moved: bool = False) -> Charge:
        """The charge of a pod on a node; `before`: its charge so far; `moved`: on another node. Never fails.

        The card is fixed when the pod is bound: later labels of its node do not change it. A pod without a charge, as
        after a restart, is charged the card of its node whose resource it requests. On a node without such a card, or
        without a product label, annotations decide: `card.assigned`, else the first alternative that some node offers,
        else the first. Under `unnamedCards: ignore` a pod that never named a card is charged none.
        """
        cls, demand = task.cls, self.of(task.cls)
        if demand.by_claims:
            if before is not None and not moved and before.card and not demand.shared:
                return demand.on(*before.held[0], *before.others)
            return self._by_claims(task, demand)
        charged = before is not None and bool(before.card)
        named = charged or bool(_card_name(cls)) or bool(task.assigned_card)
        if not named and self._arguments.unnamed_cards == "ignore":
            return demand.claim
        if before is not None and charged and not moved:
            return demand.on(before.card, self._amount_of(cls, before.card) or before.amount)
        found = self._held_on(task, node) if node is not None else None
        if found is not None and (charged or found.has_model):
            return demand.on(found.card, found.amount)
        if before is not None and charged:
            return demand.on(before.card, before.amount)
        recorded = self._recorded_card(task, demand)
        amount = self._amount_of(cls, recorded) if recorded else 0
        if amount:
            return demand.on(recorded, amount)
        return demand.on(found.card, found.amount) if found is not None else demand.claim

    def _by_claims(self, task: Task, demand: CardDemand) -> Charge:
        """The charge of a pod by its claims: that of their devices, once it has them."""
        cards = demand.alternatives
        if demand.ranges and (held := self.claims.amounts(task)) is not None:
            card = next((card for card in cards if card in held), cards[0])
            return demand.on(card, held.get(card, 0), *sorted([each for each in held.items() if each[0] != card]))
        if not demand.several:
            return demand.claim
        recorded = task.assigned_card.partition(",")[0]
        return demand.on(recorded if recorded in cards else cards[0], demand.amount, *demand.claim.others)

    def own_part(self, demand: CardDemand, charge: Charge) -> Charge:
        """The charge of a pod without its claims that pods may share."""
        if not demand.shared:
            return charge
        parts = Counter[str]()
        for key, _ in demand.shared:
            parts.update(dict(self.part(demand, key, charge)))
        left = [(card, max(0, amount - parts[card])) for card, amount in charge.held]
        return demand.on(*left[0], *[each for each in left[1:] if each[1]])

    def part(self, demand: CardDemand, key: str, charge: Charge) -> tuple[Part, ...]:
        """The part of the charge of a pod for a claim that pods may share."""
        held = self.claims.cards_of(key)
        if held is not None:
            return tuple(sorted(held.items()))
        return tuple([(card or charge.card, amount) for card, amount in dict(demand.shared).get(key, ())])

    def _recorded_card(self, task: Task, demand: CardDemand) -> str:
        """The card by the annotations of a bound pod, also one that no node offers any more; "" for none."""
        names = () if demand.inferred else demand.names
        if task.assigned_card and (not _card_name(task.cls) or task.assigned_card in names):
            return task.assigned_card
        if demand.alternatives:
            return demand.alternatives[0] if names or demand.several else ""
        unknown = not any(self._inventory.resources_of(card) for card in names)
        return names[0] if names and unknown else ""

    def _amount_of(self, cls: TaskClass, card: str) -> int:
        """Thousandths of a card that pods of the class request; of an unknown card the devices that they request."""
        resources = self._inventory.resources_of(card) or self._card_resources(cls)
        return max([_count(cls, resource) for resource in resources], default=0)

    def _held_on(self, task: Task, node: Node) -> _HeldCard | None:
        """The card of a node that a pod holds there: that of its devices, else the one with the largest amount."""
        found = None
        held = self.claims.held(task) if node.backed else ""
        for card, (_, resource) in self._inventory.cards_on(node).items():
            amount = _count(task.cls, resource) if held in {"", card} else 0
            if amount > (found.amount if found is not None else 0):
                found = _HeldCard(card, amount, has_model=card != resource)
        return found

    def choices_on(self, demand: CardDemand, task: Task, node: Node) -> list[str]:
        """The alternatives that a node offers under a resource the pod requests, preferred first.

        A node that does not exist yet may offer each. Of claims it is the card of their devices.
        """
        cls = task.cls
        held = self.claims.held(task) if demand.by_claims or node.backed else ""
        if held or demand.by_claims or not node.known:
            return [held] if held else list(demand.alternatives)
        cards = self._inventory.cards_on(node)
        return [card for card in demand.alternatives if card in cards and _count(cls, cards[card][1])]

    def is_backed(self, cls: TaskClass) -> bool:
        """Whether some node provides a resource of the class by devices."""
        backed = self._inventory.backed
        return bool(backed) and any(backed[resource] for resource in cls.requests if resource in backed)

    def index_on_nodes(self, demand: CardDemand, alternatives: tuple[str, ...], usable: tuple[str, ...]) -> Rows:
        """Index in `alternatives` of the first usable one each node offers, -1 for none: intp [nodes].

        For claims it is the first of the devices that a node reaches, whether in use or not.
        """
        if not demand.by_claims:
            return self._inventory.alternative_index(alternatives, usable)
        masks = [self.claims.offers(card) for card in alternatives]
        return first_usable(alternatives, usable, masks)

    def _read(self, cls: TaskClass) -> CardDemand:
        written = _card_name(cls)
        names: tuple[str, ...] = ()
        alternatives: tuple[str, ...] = ()
        amount, error, unnamed, inferred, by_claims, postponed = 0, "", "", False, False, False
        claimed = ClaimDemand()
        try:
            names = parse_card_name(written)
            claimed = self._claimed(cls) if cls.claims else claimed
            if postponed := claimed.postponed:
                self._postponed.setdefault(cls.namespace, {})[cls] = None
                if self._session is not None:
                    self._session.results.report.leave_unfinished()
            if claimed.error or claimed.cards:
                by_claims = True
                names = alternatives = self._with_claims(cls, claimed)
                amount = claimed.amount
            elif not names:
                unnamed = self._unnamed_resource(cls)
                if unnamed and self._arguments.unnamed_cards == "deny":
                    raise ChargeError(f"card resource <{unnamed}> requested without annotation {CARD_NAME}")
                if unnamed and self._arguments.unnamed_cards == "infer":
                    self._check_single(cls, unnamed)
                    # Without a node that has the resource there is no card: the pod waits for one, uncharged.
                    names, resource, unnamed = tuple(self._inventory.cards_of(unnamed)), unnamed, ""
                    alternatives, inferred = names, bool(names)
                    amount = _count(cls, resource) if names else 0
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
        card, others = "|".join(alternatives), () if error else tuple(sorted(claimed.others))
        parts = (CPU_KEY, cpu), (MEMORY_KEY, memory), *shares, (card, amount), *others
        amounts = tuple([each for each in parts if each[1]])
        claim = Charge(amounts, card, amount, cls.id, not error, shares, others)
        absent = None
        if error and names and not by_claims and not any(map(self._inventory.resources_of, names)):
            absent = self._absent(cls, names, amounts, shares)
        is_open = not error and (others or any(bounds != (amount, amount) for bounds in claimed.ranges.values()))
        return CardDemand(
            claim, names, alternatives, error, unnamed, inferred, by_claims, absent, postponed,
            () if error else claimed.shared, claimed.ranges if is_open else {}, claimed.shared_ranges,
        )  # fmt: skip

    def _claimed(self, cls: TaskClass) -> ClaimDemand:
        self._note_claims(cls)
        return self.claims.of(cls)

    def _note_claims(self, cls: TaskClass) -> None:
        """Notes which claims and templates the demand of a class is read from."""
        for each in cls.claims:
            if each.claim:
                self._readers.setdefault(f"{cls.namespace}/{each.claim}", set()).add(cls)
            else:
                self._readers.setdefault(f"ResourceClaimTemplate {cls.namespace}/{each.template}", set()).add(cls)

    def _absent(
        self, cls: TaskClass, names: tuple[str, ...], amounts: tuple[Part, ...], shares: tuple[Part, ...]
    ) -> CardDemand | None:
        """The demand of a pod whose cards no node offers: by the only extended resource that it requests."""
        shared = self._inventory.shares
        extended = [name for name in {*cls.requests, *cls.limits} if "/" in name and name not in shared]
        counts = [amount for name in extended if (amount := _count(cls, name)) > 0]
        if len(counts) != 1:
            return None
        card = "|".join(names)
        claim = Charge((*amounts, (card, counts[0])), card, counts[0], cls.id, True, shares)
        return CardDemand(claim, names, names, "", "")

    def _with_claims(self, cls: TaskClass, claimed: ClaimDemand) -> tuple[str, ...]:
        """The cards of claims, as the only ones of the pod. Raises ChargeError."""
        if claimed.error:
            raise ChargeError(claimed.error)
        resource = self._unnamed_resource(cls)
        if resource:
            raise ChargeError(
                f"card resource <{resource}> and resourceClaims of card <{'|'.join(claimed.cards)}> together are not "
                "supported"
            )
        return claimed.cards

    def _resource(self, cls: TaskClass, written: str, names: Collection[str], alternatives: Collection[str]) -> str:
        """The one resource name of the pod's cards. Raises ChargeError."""
        if not alternatives:
            offered = self.claims.offered(names)
            more = ": devices of ResourceSlices offer it, by a ResourceClaim" if offered else ""
            raise ChargeError(f"no resource name found for card <{written}>{more}")
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


def _jobs_of(session: Session, has: Callable[[TaskClass], bool]) -> set[str]:
    """The keys of the jobs with pods of some classes. O(pods)."""
    tasks = session.snapshot.tasks_by_uid.values()
    return {task.job.key for task in tasks if has(task.cls) and task.job is not None}


def _card_name(cls: TaskClass) -> str:
    return cls.annotations.get(CARD_NAME) or cls.annotations.get(CARD_NAME_ALIAS) or ""


def _count(cls: TaskClass, resource: str) -> int:
    """Thousandths of cards: the pod-level limit where any container limits it, else the request; whole, rounded up."""
    amount = cls.limits[resource] if resource in cls.limits else cls.requests.get(resource, 0)
    return -(-amount // CARD) * CARD


def mixed_resources(key: str, resources: Collection[str]) -> str:
    """The text for alternatives that have no resource name in common."""
    return f"cards <{key}> use different resources <{', '.join(sorted(resources))}>, which is not supported"
