"""Records a simulated run: cards and shared cards in use per pod, waiting times, evictions, jobs blocked by quota.

A `Recorder` reads the deltas that go into the core and the intents and refusals that come out. It depends neither on
the core nor on the simulator.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.annotations import (
    CARD_ASSIGNED,
    CARD_NAME,
    CARD_NAME_ALIAS,
    NODE_VGPU_REGISTER,
    SERVICE_TYPE,
    VGPU_IDS,
)
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.card_registration import decode_registration
from capcard_sched.model.cards import CARD, CardSyntaxError, NodeCards, discover_cards, parse_card_name
from capcard_sched.model.deltas import BindFailed, Delta, EvictFailed, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.pod_requests import pod_amounts
from capcard_sched.model.quantity import QuantityError, amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.intents import Intent, ObjectRef
    from capcard_sched.model.refusal import Refusal


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


_FINISHED = ("Succeeded", "Failed")


class PodRecord(msgspec.Struct):
    """One pod over its life. Times are Unix seconds."""

    key: str
    job: str
    created: float
    #: When it was bound; None while pending.
    bound: float | None = None
    #: Card model and count; "" for a pod without cards.
    card: str = ""
    cards: int = 0
    has_cards: bool = False


class CardInterval(msgspec.Struct):
    """Cards of one pod, from its binding until it is deleted or finished. Times are Unix seconds."""

    job: str
    card: str
    cards: int
    since: float
    #: None while the pod exists.
    until: float | None = None


class EvictionRecord(msgspec.Struct, frozen=True):
    """One pod that the scheduler evicted."""

    #: Seconds since the start of the run.
    at: float
    pod: str
    queue: str
    node: str
    #: Card model and count; "" and 0 without cards.
    card: str
    cards: int
    #: Action, preemptor and cause.
    message: str
    uid: str


class QuotaWait(msgspec.Struct):
    """One job blocked by one quota."""

    queue: str
    #: Card, `A|B`, cpu or memory.
    resource: str
    #: The limit that blocks the job, in base units, as last seen.
    limit: int
    job: str
    #: Sum over its waits: each from the first refusal to the next placement, or the end of the run.
    seconds: float = 0.0
    #: Start of the current wait; None when not blocked.
    since: float | None = None


class Recorder:
    """Records the steps of a run. Cost per step: O(deltas + intents + refusals)."""

    def __init__(self, card_labels: CardLabels = DEFAULT_CARD_LABELS) -> None:
        """`card_labels`: those of the scheduler-conf."""
        self._card_labels = card_labels
        self.pods: dict[str, PodRecord] = {}
        self.quota_waits: dict[tuple[str, str, str], QuotaWait] = {}
        self.queues: dict[str, str] = {}
        #: Job to the service type of its PodGroup: `inference`, `training`, or "".
        self.services: dict[str, str] = {}
        #: In order of `since`.
        self.card_intervals: list[CardInterval] = []
        #: In order of time, without failed evictions.
        self.evictions: list[EvictionRecord] = []
        #: Card to its changes of use: (Unix seconds, cards in use from then on).
        self.use: dict[str, list[tuple[float, int]]] = {}
        self.totals: dict[str, int] = {}
        self.begin: float | None = None
        self.end = 0.0
        self._nodes: dict[str, NodeCards] = {}
        self._shared = SharedUse()
        self._open_waits: dict[str, list[QuotaWait]] = {}
        self._objects: dict[str, PodObject] = {}
        self._open_intervals: dict[str, CardInterval] = {}

    def record(
        self,
        deltas: Iterable[Delta],
        now: float,
        intents: Iterable[Intent],
        refusals: Iterable[tuple[ObjectRef, Refusal]],
    ) -> None:
        """Record one step of the core: what went in at `now` (Unix seconds), and what came out."""
        if self.begin is None:
            self.begin = now
        self.end = now
        self._facts(deltas, now)
        for intent in intents:
            if isinstance(intent, Bind):
                self._bound(intent.uid, intent.node, now, intent.annotations)
            elif isinstance(intent, Evict):
                self._evicted(intent, now)
        self._refused(refusals, now)

    def finish(self, end: float) -> None:
        """End the recording at `end` (Unix seconds): cards in use and pending pods last until then."""
        self.end = max(self.end, end)

    def _facts(self, deltas: Iterable[Delta], now: float) -> None:
        for delta in deltas:
            match delta:
                case ObjectChanged(PodObject() as pod):
                    self._see_pod(pod, now)
                case ObjectGone("Pod", namespace, name, uid):
                    self._forget_pod(uid, f"{namespace}/{name}", now)
                case ObjectChanged(PodGroupObject() as group):
                    meta = group.metadata
                    key = f"{meta.namespace or 'default'}/{meta.name}"
                    self.queues[key] = group.spec.queue or "default"
                    self.services[key] = _service_of(meta.annotations)
                case ObjectChanged(NodeObject() as node):
                    self._see_node(node.metadata.name, node)
                case ObjectGone("Node", _, name):
                    self._see_node(name, None)
                case BindFailed(_, _, uid, _):
                    self._release(uid, now)
                    if uid in self.pods:
                        self.pods[uid].bound = None
                case EvictFailed(_, _, uid, _):
                    self._drop_eviction(uid)
                case _:
                    pass

    def _see_node(self, name: str, node: NodeObject | None) -> None:
        old = self._nodes.pop(name, None)
        for card, (amount, _) in (old.cards if old is not None else {}).items():
            self.totals[card] -= amount // CARD
        registration = "" if node is None else (node.metadata.annotations or {}).get(NODE_VGPU_REGISTER, "")
        for card, change in self._shared.see_node(name, registration).items():
            self.totals[card] = self.totals.get(card, 0) + change
        if node is None:
            return
        try:
            allocatable = amounts(node.status.allocatable)
        except QuantityError:
            return  # the core reports it
        found = self._nodes[name] = discover_cards(node.metadata.labels or {}, allocatable, self._card_labels)
        for card, (amount, _) in found.cards.items():
            self.totals[card] = self.totals.get(card, 0) + amount // CARD

    def _see_pod(self, pod: PodObject, now: float) -> None:
        meta, notes = pod.metadata, pod.metadata.annotations or {}
        key = f"{meta.namespace or 'default'}/{meta.name}"
        group = group_of(notes)
        record = self.pods.get(meta.uid)
        if record is None:
            record = self.pods[meta.uid] = PodRecord(key, key, now)
        if group:
            record.job = f"{meta.namespace or 'default'}/{group}"
        self._objects[meta.uid] = pod
        if pod.status.phase in _FINISHED:
            self._release(meta.uid, now)
            self._objects.pop(meta.uid)
        elif pod.spec.node_name and record.bound is None:
            self._bound(meta.uid, pod.spec.node_name, now, notes)

    def _forget_pod(self, uid: str, key: str, now: float) -> None:
        uids = [uid] if uid else [other for other, record in self.pods.items() if record.key == key]
        for gone in uids:
            record = self.pods.get(gone)
            if record is None:
                continue
            self._release(gone, now)
            self._objects.pop(gone, None)
            if record.bound is None:
                del self.pods[gone]  # never bound: its wait has no end to measure
                self._end_waits(record.job, now)

    def _bound(self, uid: str, node: str, now: float, notes: Mapping[str, str]) -> None:
        record, pod = self.pods.get(uid), self._objects.get(uid)
        if record is None or pod is None or record.bound is not None:
            return
        record.bound = now
        self._end_waits(record.job, now)
        for card, count in self._shared.take(uid, node, notes.get(VGPU_IDS, "")).items():
            self._change(card, count, now)
        card, count = self._cards_on(pod, node, notes.get(CARD_ASSIGNED, ""))
        if count:
            record.card, record.cards, record.has_cards = card, count, True
            self._open_intervals[uid] = CardInterval(record.job, card, count, now)
            self.card_intervals.append(self._open_intervals[uid])
            self._change(card, count, now)

    def _cards_on(self, pod: PodObject, node: str, assigned: str) -> tuple[str, int]:
        """Card model and count of a pod on a node; ("", 0) without cards."""
        notes = pod.metadata.annotations or {}
        try:
            names = parse_card_name(notes.get(CARD_NAME, notes.get(CARD_NAME_ALIAS)))
        except CardSyntaxError:
            return "", 0
        provided = self._nodes[node].cards if node in self._nodes else {}
        card = assigned if assigned in names or not names else next((name for name in names if name in provided), "")
        if card not in provided:
            return "", 0
        amounts, resource = pod_amounts(pod.spec, pod.status), provided[card][1]
        return card, -(-amounts.limits.get(resource, amounts.requests.get(resource, 0)) // CARD)

    def _release(self, uid: str, now: float) -> None:
        for card, count in self._shared.release(uid).items():
            self._change(card, count, now)
        record = self.pods.get(uid)
        if record is not None and record.has_cards:
            record.has_cards = False
            self._open_intervals.pop(uid).until = now
            self._change(record.card, -record.cards, now)

    def _evicted(self, intent: Evict, now: float) -> None:
        pod = f"{intent.namespace}/{intent.name}"
        record = self.pods.get(intent.uid) or PodRecord(pod, pod, now)
        at, queue = now - (self.begin or 0.0), self.queues.get(record.job, "")
        self.evictions.append(
            EvictionRecord(at, pod, queue, intent.node, record.card, record.cards, intent.message, intent.uid)
        )

    def _drop_eviction(self, uid: str) -> None:
        """Remove the last eviction of a pod: it failed."""
        for position in range(len(self.evictions) - 1, -1, -1):
            if self.evictions[position].uid == uid:
                del self.evictions[position]
                return

    def _change(self, card: str, count: int, now: float) -> None:
        changes = self.use.setdefault(card, [])
        used = (changes[-1][1] if changes else 0) + count
        if changes and changes[-1][0] == now:
            changes.pop()
        changes.append((now, used))

    def _refused(self, refusals: Iterable[tuple[ObjectRef, Refusal]], now: float) -> None:
        for ref, refusal in refusals:
            if refusal.figures is None:
                continue
            record = self.pods.get(ref.uid) if ref.kind == "Pod" else None
            job = record.job if record is not None else f"{ref.namespace}/{ref.name}"
            key = (refusal.queue, refusal.figures.resource, job)
            wait = self.quota_waits.get(key)
            if wait is None:
                figures = refusal.figures
                wait = self.quota_waits[key] = QuotaWait(refusal.queue, figures.resource, figures.limit, job)
            wait.limit = refusal.figures.limit
            if wait.since is None:
                wait.since = now
                self._open_waits.setdefault(job, []).append(wait)

    def _end_waits(self, job: str, now: float) -> None:
        for wait in self._open_waits.pop(job, ()):
            if wait.since is not None:
                wait.seconds += now - wait.since
                wait.since = None


def _service_of(annotations: Mapping[str, str] | None) -> str:
    """`inference` or `training`, else ""."""
    value = (annotations or {}).get(SERVICE_TYPE, "")
    return value if value in ("inference", "training") else ""
