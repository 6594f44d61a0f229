"""Shared GPU cards in use over a run, from registrations of nodes and device annotations of pods."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from capcard_sched.model.card_registration import decode_registration
from capcard_sched.model.pod_devices import decode_devices

if TYPE_CHECKING:
    from collections.abc import Mapping


class SharedUse:
    """Counts a card as used while at least one pod has a share of it. Every method returns changes by card type."""

    def __init__(self) -> None:
        #: Node to registration text and to the type of each card by uuid.
        self._nodes: dict[str, tuple[str, dict[str, str]]] = {}
        #: (node, uuid) to shares.
        self._shares: Counter[tuple[str, str]] = Counter()
        #: Pod uid to its cards: node, uuid, type.
        self._held: dict[str, list[tuple[str, str, str]]] = {}

    def see_node(self, name: str, registration: str) -> Mapping[str, int]:
        """The registration of a node, "" without one: changes of the number of cards."""
        known = self._nodes.get(name, ("", {}))
        if known[0] == registration:
            return {}
        cards = {card.uuid: card.type for card in decode_registration(registration).cards} if registration else {}
        self._nodes[name] = registration, cards
        changes = Counter(cards.values())
        changes.subtract(known[1].values())
        return changes

    def take(self, uid: str, node: str, devices: str) -> Mapping[str, int]:
        """A pod is bound with these devices: cards that were idle before."""
        types = self._nodes.get(node, ("", {}))[1]
        changes: Counter[str] = Counter()
        held = self._held.setdefault(uid, [])
        for container in decode_devices(devices).containers:
            for device in container:
                if device.uuid not in types:
                    continue
                held.append((node, device.uuid, types[device.uuid]))
                self._shares[node, device.uuid] += 1
                changes[types[device.uuid]] += self._shares[node, device.uuid] == 1
        return changes

    def release(self, uid: str) -> Mapping[str, int]:
        """A pod ends: cards that are idle now, as negative numbers."""
        changes: Counter[str] = Counter()
        for node, uuid, type in self._held.pop(uid, ()):
            self._shares[node, uuid] -= 1
            if not self._shares[node, uuid]:
                del self._shares[node, uuid]
                changes[type] -= 1
        return changes
