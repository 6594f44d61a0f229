"""The cards that the ResourceClaims of a pod request: the same quota as for cards of a device plugin.

The card of a device follows from its attributes. A request that devices of several models match accepts each of them,
like `card.name: A|B`; requests with a card in common get devices of one such card, others further cards. Where the
number of devices depends on the node, as with `allocationMode: All`, a pod needs quota for the least of it, and is
charged the devices that it gets. Claims that pods name by `resourceClaimName` are charged once (`shared_claims`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.devices.claims import AllocationError, Claim
from capcard_sched.devices.device_card import NVIDIA_ATTRIBUTES, card_problem, has_cards
from capcard_sched.devices.extended_resources import extended_claim_name
from capcard_sched.devices.held_devices import held_cards_of, held_devices
from capcard_sched.devices.inventory import DeviceInventory
from capcard_sched.devices.selector_work import MOST_STEPS, EvaluationsPostponedError
from capcard_sched.framework.toolkit.device_cards import (
    DeviceCards,
    accepted_cards,
    claim_of,
    device_offers,
    may_match,
    plan_of,
)
from capcard_sched.model.annotations import CARD_NAME
from capcard_sched.model.pod_claims import named_claims

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.devices.claims import ClaimPlan, RequestPlan
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.framework.api.node_view import Mask
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.device_objects import Allocation, ResourceClaimTemplateSpec
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.pod_claims import PodClaim
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.card_inventory import CardInventory

#: Contents of claims whose cards are kept: tenants write them.
_MOST_CONTENTS: Final = 4096
#: Devices that the selectors of the claims of one namespace are compared with in one session: about one CPU second.
MOST_COMPARED: Final = 50_000
#: Card to the least and the most thousandths of it.
Ranges: TypeAlias = "Mapping[str, tuple[int, int]]"
#: Key of a claim, and what it has of each card; "" is that of `ClaimDemand.cards`.
SharedPart: TypeAlias = "tuple[str, tuple[tuple[str, int], ...]]"
_UNKNOWN_CARDS: Final = "the cards of claim {name} are not known yet: the selectors of namespace {namespace} {compared}"


class _PostponedError(AllocationError):
    """The cards of a claim are found in a later session."""


class ClaimDemand(NamedTuple):
    """What the claims of a pod request of one of some cards, and of further cards."""

    #: The cards of which the pod gets one, preferred first; () without cards.
    cards: tuple[str, ...] = ()
    #: Thousandths of that one, at most; of several cards the least of these.
    amount: int = 0
    #: Further cards, of requests that none of `cards` serves, with the thousandths at most.
    others: tuple[tuple[str, int], ...] = ()
    #: Why the charge cannot be computed; "" when it can.
    error: str = ""
    #: Whether the next session is to compute it.
    postponed: bool = False
    #: The part of each claim that pods may share, by `namespace/name`.
    shared: tuple[SharedPart, ...] = ()
    #: The least and the most thousandths of each card, for the pod and for each of these claims.
    ranges: Ranges = {}
    shared_ranges: Mapping[str, Ranges] = {}


class _CardRequest(NamedTuple):
    """One request of a claim for devices that are cards."""

    #: Each serves the request alone, preferred first.
    cards: tuple[str, ...]
    #: The least and the most thousandths that it gets of each.
    ranges: Ranges


class ClaimCards:
    """The demands of claims; `open` is called at the start of every session."""

    def __init__(self) -> None:
        self._inventory = DeviceInventory()
        self._claims: Mapping[str, Claim] = {}
        self._templates: Mapping[str, ResourceClaimTemplateSpec] = {}
        self._devices = DeviceCards()
        self._session: Session | None = None
        #: Key of an allocated claim without a record to its allocation and cards, also once a driver withdraws devices.
        self._last: dict[str, tuple[Allocation, Mapping[str, int]]] = {}
        #: Generation and number of the nodes.
        self._nodes = 0, 0
        #: Names and labels of the nodes, as a number.
        self._labels = 0
        #: Nodes with devices of each card, with the versions of devices and nodes they were computed for.
        self._offers: tuple[tuple[int, int, int], dict[str, Mask]] | None = None
        #: Content of a claim and accepted cards to its requests for cards.
        self._requests: dict[tuple[bytes, tuple[str, ...]], list[_CardRequest]] = {}
        #: Devices that selectors were compared with in this session, by namespace.
        self._compared_for = Counter[str]()

    def open(self, session: Session) -> bool:
        """Whether the demand of any claim may have changed, not only of `session.changed`."""
        self._session = session
        self._compared_for.clear()
        snapshot, before = session.snapshot, self._nodes
        for key in [*self._last] if session.changed.everything else session.changed.devices:
            claim = snapshot.claims.claims.get(key)
            if claim is None or claim.allocation is None:
                self._last.pop(key, None)
        self._nodes = session.nodes.generation, len(session.nodes)
        reads_labels = False
        if self._nodes != before:
            labels, nodes = self._labels, session.nodes.nodes
            self._labels = _labels_of(nodes) if self._devices.reads_nodes else 0
            reads_labels = self._devices.reads_nodes and self._labels != labels
            if reads_labels or not self._devices.reads_nodes:
                self._devices.use_nodes(nodes)
        if self.read(snapshot.devices, snapshot.claims.claims, snapshot.claim_templates):
            return True
        if reads_labels:
            self._requests.clear()
        return reads_labels

    def read(
        self,
        inventory: DeviceInventory,
        claims: Mapping[str, Claim],
        templates: Mapping[str, ResourceClaimTemplateSpec],
    ) -> bool:
        """Uses these devices, claims and templates (by `namespace/name`). True if devices or classes changed."""
        self._inventory, self._claims, self._templates = inventory, claims, templates
        if not self._devices.read(inventory):
            return False
        self._requests.clear()
        return True

    def totals(self, nodes: CardInventory) -> Mapping[str, int]:
        """Thousandths of each card that ResourceSlices provide, other than those of the nodes."""
        if self._session is None:
            return {}
        found: dict[str, int] = {}
        for offer in device_offers(self._session.snapshot.devices, self._session.snapshot.claims):
            node = self._session.nodes.by_name.get(offer.node)
            if node is None or offer.card not in nodes.plugin_cards_on(node):
                found[offer.card] = found.get(offer.card, 0) + offer.total
        return found

    def offered(self, names: Iterable[str]) -> list[str]:
        """Those of some cards that devices of ResourceSlices are."""
        cards = {card for card, _ in self._devices.all}
        return [name for name in names if name in cards]

    @property
    def version(self) -> int:
        """Increases with every change of devices."""
        return self._inventory.version

    def offers(self, card: str) -> Mask:
        """Mask of the nodes that reach devices of a card, whether in use or not: bool [nodes]."""
        session = self._session
        assert session is not None
        nodes = session.nodes
        stamp = session.snapshot.devices.version, nodes.generation, len(nodes)
        if self._offers is None or self._offers[0] != stamp:
            self._offers = stamp, {}
        masks = self._offers[1]
        if card not in masks:
            mask = masks[card] = np.zeros(len(nodes), dtype=bool)
            for each in [device for one, device in self._devices.all if one == card]:
                if local := each.slice.node or each.spec.node_name:
                    node = nodes.by_name.get(local)
                    if node is not None:
                        mask[node.row] = True
                else:
                    for node in nodes.nodes:
                        mask[node.row] |= each in each.slice.of_node(node.name, node.labels)
        return masks[card]

    def held(self, task: Task) -> str:
        """The card of the devices that the claims of a pod hold, written or assumed; "" for none. O(their pools)."""
        found = Counter[str]()
        for key in _keys(task):
            found.update(self.cards_of(key) or {})
        return max(found, key=lambda card: found[card], default="")

    def amounts(self, task: Task) -> Mapping[str, int] | None:
        """The thousandths by card that the claims of a pod hold, written or assumed; None if one has no devices."""
        found = Counter[str]()
        for key in named_claims(task.namespace, task.cls.claims):
            if (held := self.cards_of(key)) is None:
                return None
            found.update(held)
        return found

    def cards_of(self, key: str) -> Mapping[str, int] | None:
        """The thousandths by card that a claim holds, written or assumed; None without known devices."""
        session = self._session
        allocation = session.snapshot.claims.allocation(key) if session is not None else None
        if session is None or allocation is None:
            return None
        devices, claim = held_devices(allocation, session.snapshot.devices), self._claims.get(key)
        if claim is None or claim.allocation is None:
            return devices.cards
        found = held_cards_of(claim.record, devices)
        if found is None:
            last = self._last.get(key)
            return last[1] if last is not None and last[0] == allocation else None
        if not claim.record.cards:
            self._last[key] = allocation, found
        return found

    def recorded(self, claim: Claim) -> tuple[tuple[str, int], ...]:
        """The cards that the record of a claim without pods charges: at most those of its devices, if all are known.

        The policy `capcard-sched-claims` may be missing: anybody could charge a queue otherwise.
        """
        if self._session is None or claim.allocation is None:
            return ()
        cards, devices = claim.record.cards, held_devices(claim.allocation, self._session.snapshot.devices)
        if devices.complete and sum(amount for _, amount in cards) > sum(devices.cards.values()):
            return tuple(sorted(devices.cards.items()))
        return cards

    def queue_of(self, key: str) -> str:
        """The queue for which a claim was allocated; "" for one that is not, or by another scheduler."""
        claim = self._claims.get(key)
        return claim.record.queue if claim is not None else ""

    def contents(self, cls: TaskClass) -> tuple[bytes, ...] | None:
        """The contents of generated claims without devices; None if a claim is another one or does not exist."""
        found = []
        for each in cls.claims:
            claim = self._claims.get(f"{cls.namespace}/{each.claim}") if each.template else None
            if claim is None or claim.allocation is not None or not claim.content:
                return None
            found.append(claim.content)
        return tuple(found)

    def of(self, cls: TaskClass) -> ClaimDemand:
        return self.demand(cls.namespace, cls.claims, accepted_cards(cls.annotations))

    def demand(self, namespace: str, claims: Iterable[PodClaim], names: tuple[str, ...] = ()) -> ClaimDemand:
        """The demand of a pod with these claims. `names`: the cards that it accepts; () for all."""
        requests: list[_CardRequest] = []
        shared: dict[str, list[_CardRequest]] = {}
        try:
            for each in claims:
                key = "" if each.template else f"{namespace}/{each.claim}"
                if key in shared:
                    continue
                found = self._claimed(namespace, each, names)
                requests += found
                if found and key:
                    shared[key] = found
        except AllocationError as error:
            return ClaimDemand(error=str(error), postponed=isinstance(error, _PostponedError))
        if not requests:
            return ClaimDemand()
        lines = _lines(requests)
        cards, *others = sorted(lines, key=lambda line: len(line) == 1)
        if any(len(line) > 1 for line in others):
            listed = " and one of ".join(f"<{'|'.join(line)}>" for line in lines if len(line) > 1)
            text = f"resourceClaims of one of cards {listed} in one pod are not supported"
            example = "|".join(line[0] for line in lines if len(line) > 1)
            return ClaimDemand(error=f"{text}; set {CARD_NAME} to a card of each, such as {example}")
        ranges = requests[0].ranges if len(requests) == 1 else _sums(requests, lines)
        of_shared = {key: _sums(found, lines) for key, found in shared.items()}
        least = cards[0] if len(cards) == 1 else min(cards, key=lambda card: ranges[card][1])
        further = tuple([(card, ranges[card][1]) for (card,) in others])
        columns = ("", least), *[(card, card) for card, _ in further]
        parts = [
            (key, tuple([(name, of[card][1]) for name, card in columns if card in of])) for key, of in of_shared.items()
        ]
        return ClaimDemand(cards, ranges[least][1], further, "", False, tuple(parts), ranges, of_shared)

    def nameless(self, namespace: str, claims: Iterable[PodClaim]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """One device that each of these claims may get and that is no card, its driver and the attributes of cards.

        None for an attribute that cannot name a card: `card_faults` reports it.
        """
        for each in claims:
            claim = claim_of(namespace, each, self._claims, self._templates)
            plan = plan_of(claim, self._inventory)
            requests = [one for alternatives in plan.requests for one in alternatives] if plan is not None else ()
            for card, device in self._devices.all:
                if (
                    not card
                    and has_cards(device.id[0], device.content.cards)
                    and not card_problem(device)[0]
                    and any(may_match(request, device) for request in requests)
                ):
                    rule = device.content.cards.get(device.id[0])
                    yield "/".join(device.id[1:]), device.id[0], rule.name if rule else NVIDIA_ATTRIBUTES
                    break

    def _claimed(self, namespace: str, each: PodClaim, names: tuple[str, ...]) -> list[_CardRequest]:
        """The requests of one claim for cards. Raises AllocationError for a charge that is not supported."""
        claim = claim_of(namespace, each, self._claims, self._templates)
        if claim is None:
            return []
        if allocated := self._allocated(namespace, each):
            return allocated
        found = self._requests.get((claim.content, names))
        if found is None:
            name = each.claim or each.template
            if claim.allocation is None and self._compared_for[namespace] >= MOST_COMPARED:
                compared = f"were compared with {MOST_COMPARED} devices in this session"
                raise _PostponedError(_UNKNOWN_CARDS.format(name=name, namespace=namespace, compared=compared))
            before = self._devices.compared
            try:
                found = self._cards_of(claim, names)
            except EvaluationsPostponedError:
                compared = f"took {MOST_STEPS} steps in this session; the next session continues"
                text = _UNKNOWN_CARDS.format(name=name, namespace=namespace, compared=compared)
                raise _PostponedError(text) from None
            finally:
                self._compared_for[namespace] += self._devices.compared - before
            if found is None:
                return []
            if len(self._requests) >= _MOST_CONTENTS:
                self._requests.clear()
            self._requests[claim.content, names] = found
        return found

    def _cards_of(self, claim: Claim, names: tuple[str, ...]) -> list[_CardRequest] | None:
        """The requests of a claim for cards; None without a plan. Raises EvaluationsPostponedError."""
        meter = None
        if self._session is not None and claim.allocation is None:
            meter = self._session.namespace_work.meter(claim.namespace, claim.content)
        plan = plan_of(claim, self._inventory, meter)
        if plan is None:
            return None
        requested = [self._requested(plan, alternatives, names, meter) for alternatives in plan.requests]
        return [request for request in requested if request is not None]

    def _allocated(self, namespace: str, each: PodClaim) -> list[_CardRequest]:
        """The cards that an allocated claim holds; [] for other claims, and while a device is unknown."""
        claim = self._claims.get(f"{namespace}/{each.claim}")
        if claim is None or claim.allocation is None:
            return []
        found = self.cards_of(claim.key) or {}
        return [_CardRequest((card,), {card: (amount, amount)}) for card, amount in found.items()]

    def _requested(
        self,
        plan: ClaimPlan,
        alternatives: tuple[RequestPlan, ...],
        names: tuple[str, ...],
        meter: SelectorMeter | None,
    ) -> _CardRequest | None:
        """What one request requests of cards; None for no cards. Alternatives without any device do not count."""
        ranges: dict[str, tuple[int, int]] = {}
        is_free = False  # whether an alternative costs none
        without = ""  # one without a device of the accepted cards
        for request in alternatives:
            if request.admin_access:
                is_free = True
                continue
            matching = self._matching(request, names, meter)
            if not matching and any(self._devices.matching(request, meter)):
                without = without or request.name
            of_nodes = self._devices.of_nodes(request, meter) if request.all_devices else {}
            for card, charges in matching.items():
                if not card:
                    is_free = True
                    continue
                if request.all_devices:
                    amounts = of_nodes.get(card, (0, 0))
                else:
                    amounts = request.devices * min(charges), request.devices * max(charges)
                known = ranges.get(card, amounts)
                ranges[card] = min(known[0], amounts[0]), max(known[1], amounts[1])
        if not ranges and without and not is_free:
            raise AllocationError(f"no device of card <{'|'.join(names)}> matches request {without}")
        if not ranges:
            return None
        cards = sorted(ranges, key=names.index) if names else list(ranges)
        if is_free:
            ranges = {card: (0, most) for card, (_, most) in ranges.items()}
        return _CardRequest(tuple(cards), ranges)

    def _matching(
        self, request: RequestPlan, names: tuple[str, ...], meter: SelectorMeter | None
    ) -> Mapping[str, set[int]]:
        """The cards of the devices of one alternative, in their order, with the charges of one device.

        "" are devices that are no card, for 0. `names` restricts the cards of NVIDIA's devices.
        """
        cards = self._devices.matching(request, meter)
        if names and any(cards):
            accepted = {card: charges for card, charges in cards.items() if card in names}
            cards = {**accepted, **({"": {0}} if self._devices.others_match(request, meter) else {})}
        return cards


def _lines(requests: Iterable[_CardRequest]) -> list[tuple[str, ...]]:
    """Sets of cards without a common one: the devices of each are of one of its cards.

    A request joins the first set with a card that serves it, which loses the others.
    """
    lines: list[tuple[str, ...]] = []
    for request in requests:
        for index, line in enumerate(lines):
            if common := tuple([card for card in line if card in request.cards]):
                lines[index] = common
                break
        else:
            lines.append(request.cards)
    return lines


def _sums(requests: Iterable[_CardRequest], lines: Sequence[tuple[str, ...]]) -> Ranges:
    """The least and the most thousandths that requests get of each card together."""
    found: dict[str, tuple[int, int]] = {}
    for request in requests:
        for card in next(line for line in lines if line[0] in request.ranges):
            least, most = found.get(card, (0, 0))
            found[card] = least + request.ranges[card][0], most + request.ranges[card][1]
    return found


def _keys(task: Task) -> list[str]:
    """The keys of the claims of a pod; that for extended resources exists once the pod is placed.

    Its status names it, once the pod is bound: tenants write annotations and owners of claims.
    """
    name = task.extended_claim if task.bound and task.extended_claim else extended_claim_name(task.name, task.uid)
    return [*named_claims(task.namespace, task.cls.claims), f"{task.namespace}/{name}"]


def _labels_of(nodes: Iterable[Node]) -> int:
    """A number for names and labels of nodes: other changes of nodes decide nothing about claims. O(labels)."""
    return hash(tuple([(node.name, frozenset(node.labels.items())) for node in nodes]))
