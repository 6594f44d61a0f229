"""The cards of nodes, and those that a bound pod holds there, from their objects.

The node decides: a pod holds the card whose resource it requests, by labels and amounts of its node when it was bound.
Where the node has no such card, the annotations of the pod do, as for `capacity-card`. A pod with shares of registered
devices holds of each the larger part of cores and memory, rounded up to a thousandth.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.annotations import (
    CARD_ASSIGNED,
    CARD_NAME,
    CARD_NAME_ALIAS,
    NODE_VGPU_REGISTER,
    VGPU_IDS,
)
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.card_registration import decode_registration
from capcard_sched.model.cards import CARD, CardSyntaxError, discover_cards, parse_card_name
from capcard_sched.model.node_conditions import LOST_TAINTS
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.model.pod_requests import pod_amounts
from capcard_sched.model.quantity import QuantityError, amounts

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.objects import NodeObject, PodObject
    from capcard_sched.model.pod_requests import AmountsReader

#: Thousandths per percent of a device.
_PERCENT = CARD // 100


class NodeInventory(NamedTuple):
    """The cards of one node."""

    #: Card to thousandths and resource.
    cards: Mapping[str, tuple[int, str]]
    #: uuid to type and memory of each registered device.
    devices: Mapping[str, tuple[str, int]]
    #: Cordoned or not ready.
    unavailable: bool

    def totals(self) -> Counter[str]:
        """Thousandths by card, of both kinds."""
        found = Counter({card: amount for card, (amount, _) in self.cards.items()})
        for type, _ in self.devices.values():
            found[type] += CARD
        return found


class HeldCards(NamedTuple):
    """The cards of one pod: that of which it has most, and `further` ones of its claims.

    `uncounted`: devices that the ledger cannot count, "" for none.
    """

    card: str
    thousandths: int
    uncounted: str = ""
    further: tuple[tuple[str, int], ...] = ()

    @property
    def cards(self) -> tuple[tuple[str, int], ...]:
        """Each card with its thousandths, at least one."""
        return (self.card, self.thousandths), *self.further

    @classmethod
    def of(cls, cards: Mapping[str, int], uncounted: str = "") -> HeldCards:
        """The cards in the order of their amounts."""
        found = sorted(((card, amount) for card, amount in cards.items() if amount), key=lambda one: (-one[1], one[0]))
        first = found[0] if found else ("", 0)
        return cls(*first, uncounted, tuple(found[1:]))


NO_CARDS = HeldCards("", 0)


def node_inventory(node: NodeObject, card_labels: CardLabels = DEFAULT_CARD_LABELS) -> NodeInventory:
    """The cards of a node; none where an amount is invalid, which the scheduler reports."""
    try:
        allocatable = amounts(node.status.allocatable)
    except QuantityError:
        allocatable = {}
    cards = discover_cards(node.metadata.labels or {}, allocatable, card_labels).cards
    registration = (node.metadata.annotations or {}).get(NODE_VGPU_REGISTER, "")
    registered = decode_registration(registration).cards if registration else ()
    return NodeInventory(cards, {one.uuid: (one.type, one.memory) for one in registered}, _is_unavailable(node))


def _is_unavailable(node: NodeObject) -> bool:
    conditions, taints = node.status.conditions or (), node.spec.taints or ()
    not_ready = any(one.type == "Ready" and one.status != "True" for one in conditions)
    return bool(node.spec.unschedulable) or not_ready or any(taint.key in LOST_TAINTS for taint in taints)


def held_cards(
    pod: PodObject,
    node: NodeInventory | None,
    card_labels: CardLabels = DEFAULT_CARD_LABELS,
    without: Container[str] = (),
    reader: AmountsReader | None = None,
) -> HeldCards:
    """The cards of a bound pod, without those of its claims (`ClaimedCards`). Never raises.

    `node`: None for one that is not known; `without`: resources that do not count; `reader`: that of a caller with
    many pods.
    """
    notes = pod.metadata.annotations or {}
    try:
        requested = pod_amounts(pod.spec, pod.status) if reader is None else reader.read(pod)
    except QuantityError:
        return NO_CARDS  # such a pod is rejected or never bound by this scheduler
    if node is not None and node.devices and (shares := _shares(notes.get(VGPU_IDS, ""), node)):
        return shares

    def cards_of(resource: str) -> int:
        if resource in without:
            return 0
        amount = requested.limits.get(resource, requested.requests.get(resource, 0))
        return -(-amount // CARD) * CARD

    found = NO_CARDS
    for card, (_, resource) in (node.cards if node is not None else {}).items():
        amount = cards_of(resource)
        if amount > found.thousandths:
            found = HeldCards(card, amount)
    if found.thousandths:
        return found
    devices = card_labels.devices({*requested.requests, *requested.limits})
    amount = max(map(cards_of, devices), default=0)
    return HeldCards(_named_card(notes), amount) if amount else NO_CARDS


def _named_card(notes: Mapping[str, str]) -> str:
    try:
        names = parse_card_name(notes.get(CARD_NAME) or notes.get(CARD_NAME_ALIAS))
    except CardSyntaxError:
        names = ()
    assigned = notes.get(CARD_ASSIGNED, "")
    if assigned and (not names or assigned in names):
        return assigned
    return names[0] if names else "unknown"


def _shares(text: str, node: NodeInventory) -> HeldCards | None:
    """The type of which the pod has most, over all its containers; None without a registered device."""
    found: Counter[str] = Counter()
    for device in (device for container in decode_devices(text).containers for device in container):
        if device.uuid in node.devices:
            type, memory = node.devices[device.uuid]
            found[type] += min(CARD, max(device.cores * _PERCENT, -(-device.memory * CARD // memory), 1))
    if not found:
        return None
    card = min(found, key=lambda name: (-found[name], name))
    return HeldCards(card, found[card])
