"""Integrates the cards that pods hold over time, for the counter `queue_card_seconds_total`.

A charge is that of the ledger: the cards of `ClaimedCards.held`, from the binding of a pod until it finished or is
gone. The timestamps of the pod decide between the step before and the step that brings a change, else the clock of the
process.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.devices.claimed_cards import ClaimedCards, UnclearPods
from capcard_sched.ledger.object_facts import FINISHED, bound_at, finished_at, lone_pod_queue, service_of
from capcard_sched.model.annotations import BOUND_QUEUE
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.held_cards import node_inventory
from capcard_sched.model.namespace_queues import NamespaceQueueObject, queue_id
from capcard_sched.model.objects import NamespaceObject, NodeObject, PodGroupObject, PodObject, QueueObject
from capcard_sched.model.pod_facts import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.model.held_cards import NodeInventory

#: Millionths of a card-second per card-second.
_SECOND = 1_000_000


class CardSecondsLabels(NamedTuple):
    """The labels of one series."""

    queue: str
    card: str
    #: `inference`, `training` or `unknown`.
    service_type: str


class _Integral(msgspec.Struct):
    #: Thousandths of a card.
    held: int = 0
    #: Millionths of a card-second, up to `since` (Unix milliseconds).
    amount: int = 0
    since: int = 0
    #: The largest amount that was read. An end that is known late reduces `amount`, but a counter does not decrease.
    reported: int = 0


class _CountedCharge(NamedTuple):
    uid: str
    #: With the thousandths of each card; none: the pod has finished.
    parts: tuple[tuple[CardSecondsLabels, int], ...]
    #: Unix milliseconds.
    began: int


class CardSecondsCounter:
    """Counts while this replica leads, so that the sum over all replicas is the cluster's. Methods are thread-safe."""

    def __init__(self, default_queue: str = "default", clock: Callable[[], float] = time.time) -> None:
        """`default_queue`: of PodGroups that name none; `clock`: Unix seconds."""
        #: Of the scheduler-conf; to be set before the first delta.
        self.card_labels = DEFAULT_CARD_LABELS
        self._default_queue, self._clock = default_queue, clock
        self._lock = threading.Lock()
        self._leading = False
        #: Unix milliseconds: of the last change or read, of the last step, and of the change of leadership.
        self._now = self._last = self._led_since = 0
        self._nodes: dict[str, NodeInventory] = {}
        self._claimed = ClaimedCards()
        #: By namespace and name.
        self._unclear: UnclearPods[tuple[str, str]] = UnclearPods()
        self._queues: set[str] = set()
        self._namespace_queues: dict[str, str] = {}
        #: PodGroup to its queue, "" for none, and its service type.
        self._groups: dict[tuple[str, str], tuple[str, str]] = {}
        #: Pods that hold or held cards.
        self._pods: dict[tuple[str, str], _CountedCharge] = {}
        #: Pods on nodes before the first lists are complete, whose nodes and PodGroups may be missing; None afterwards.
        self._early: dict[tuple[str, str], PodObject] | None = {}
        self._series: dict[CardSecondsLabels, _Integral] = {}

    def apply(self, deltas: Iterable[Delta], now: float | None = None) -> None:
        """Count changes of the cluster at `now` (Unix seconds, default: the clock). O(deltas)."""
        with self._lock:
            self._advance(now)
            for delta in deltas:
                self._see(delta)
                if claim := self._claimed.apply(delta):
                    self._see_claim(claim)
            self._claimed.forget_changes()
            self._last = self._now

    def lists_applied(self) -> None:
        """The deltas so far have every object: charges count from here."""
        with self._lock:
            self._advance(None)
            self._last = self._now
            early, self._early = self._early, None
            for key, pod in (early or {}).items():
                self._see_pod(key, pod)

    def lead(self, leading: bool) -> None:
        """This replica became or stopped being leader."""
        with self._lock:
            self._advance(None)
            for integral in self._series.values():
                self._settle(integral)
            self._leading, self._led_since = leading, self._now

    def read(self) -> list[tuple[CardSecondsLabels, float]]:
        """Card-seconds up to now, of each series of an existing queue or of one with cards; none on a standby."""
        with self._lock:
            for series in [
                one for one, sums in self._series.items() if not sums.held and one.queue not in self._queues
            ]:
                del self._series[series]
            if not self._leading:
                return []
            self._advance(None)
            for integral in self._series.values():
                self._settle(integral)
                integral.reported = max(integral.reported, integral.amount)
            return [(labels, sums.reported / _SECOND) for labels, sums in sorted(self._series.items())]

    def _advance(self, now: float | None) -> None:
        """The time does not go backwards: neither does the counter."""
        self._now = max(self._now, round((self._clock() if now is None else now) * 1000))

    def _settle(self, integral: _Integral) -> None:
        if self._leading:
            integral.amount += integral.held * (self._now - integral.since)
        integral.since = self._now

    def _see(self, delta: Delta) -> None:
        match delta:
            case ObjectChanged(PodObject() as pod):
                self._see_pod((pod.metadata.namespace or "default", pod.metadata.name), pod)
            case ObjectGone("Pod", namespace, name, uid):
                self._pod_gone((namespace, name), uid)
            case ObjectChanged(NodeObject() as node):
                self._nodes[node.metadata.name] = node_inventory(node, self.card_labels)
            case ObjectGone("Node", _, name):
                self._nodes.pop(name, None)
            case ObjectChanged(PodGroupObject() as group):
                meta = group.metadata
                self._groups[meta.namespace or "default", meta.name] = group.spec.queue or "", service_of(meta)
            case ObjectGone("PodGroup", namespace, name):
                self._groups.pop((namespace, name), None)
            case _:
                self._see_queue(delta)

    def _see_queue(self, delta: Delta) -> None:
        match delta:
            case ObjectChanged(NamespaceObject() as namespace):
                self._namespace_queues[namespace.metadata.name] = namespace.default_queue
            case ObjectGone("Namespace", _, name):
                self._namespace_queues.pop(name, None)
            case ObjectChanged(QueueObject() as queue):
                self._queues.add(queue.metadata.name)
            case ObjectChanged(NamespaceQueueObject(local)):
                self._queues.add(f"{local.namespace}/{local.name}")
            case ObjectGone("NamespaceQueue", namespace, name):
                self._queues.discard(f"{namespace}/{name}")
            case ObjectGone("Queue", _, name):
                self._queues.discard(name)
            case _:
                pass

    def _see_pod(self, key: tuple[str, str], pod: PodObject) -> None:
        if self._early is not None:
            self._early.pop(key, None)
            if _may_hold(pod):
                self._early[key] = pod
            return
        uid, known = pod.metadata.uid, self._pods.get(key)
        if known is not None and known.uid != uid:
            self._pod_gone(key, known.uid)
            known = None
        if not _may_hold(pod):
            return
        conditions = {one.type: one for one in pod.status.conditions or ()}
        if known is None:
            held = self._claimed.held(pod, self._nodes.get(pod.spec.node_name or ""), self.card_labels)
            self._unclear.drop(key)
            if held.uncounted:
                self._unclear.add(key, pod)
            if not held.thousandths:
                return
            began = bound_at(conditions, self._last, self._now)
            parts = tuple((CardSecondsLabels(*self._account(key[0], pod, card)), amount) for card, amount in held.cards)
            known = _CountedCharge(uid, parts, self._now if began is None else began)
            self._pods[key] = known
            for labels, amount in parts:
                self._change(labels, amount, known.began)
        if known.parts and pod.status.phase in FINISHED:
            ended = finished_at(conditions, self._last, self._now)
            self._end(known, max(known.began, self._now if ended is None else ended))
            self._unclear.drop(key)
            self._pods[key] = known._replace(parts=())

    def _end(self, charge: _CountedCharge, at: int) -> None:
        for labels, amount in charge.parts:
            self._change(labels, -amount, at)

    def _see_claim(self, claim: str) -> None:
        """Count the pods of a claim anew, from their bindings on."""
        for key, pod in self._unclear.pop_of(claim).items():
            known = self._pods.pop(key, None)
            if known is not None:
                self._end(known, known.began)
            self._see_pod(key, pod)

    def _account(self, namespace: str, pod: PodObject, card: str) -> tuple[str, str, str]:
        """Queue, card and service type of a charge, as the ledger has them."""
        notes = pod.metadata.annotations or {}
        group = self._groups.get((namespace, group_of(notes)))
        queue, service = group if group is not None else (lone_pod_queue(notes), service_of(pod.metadata))
        named = queue or self._namespace_queues.get(namespace) or self._default_queue
        return notes.get(BOUND_QUEUE) or queue_id(named, namespace), card, service or "unknown"

    def _pod_gone(self, key: tuple[str, str], uid: str) -> None:
        if self._early is not None:
            if (pod := self._early.get(key)) is not None and uid in ("", pod.metadata.uid):
                del self._early[key]
            return
        charge = self._pods.get(key)
        if (unclear := self._unclear.get(key)) is not None and uid in ("", unclear.metadata.uid):
            self._unclear.drop(key)
        if charge is not None and uid in ("", charge.uid):
            del self._pods[key]
            self._end(charge, self._now)

    def _change(self, labels: CardSecondsLabels, thousandths: int, at: int) -> None:
        """Pods of a series hold more or less since `at` (Unix milliseconds)."""
        integral = self._series.get(labels)
        if integral is None:
            integral = self._series[labels] = _Integral(since=self._now)
        self._settle(integral)
        if self._leading:
            integral.amount += thousandths * (self._now - max(at, self._led_since))
        integral.held += thousandths


def _may_hold(pod: PodObject) -> bool:
    """Whether a pod is on a node and may hold cards: all others, mostly, cost a microsecond."""
    spec = pod.spec
    if not spec.node_name or spec.resource_claims:
        return bool(spec.node_name)
    amounts = [spec.overhead]
    for container in (*spec.containers, *(spec.init_containers or ())):
        if container.resources is not None:
            amounts += container.resources.requests, container.resources.limits
    return any("/" in resource for resources in amounts for resource in resources or ())
