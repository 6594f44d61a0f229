"""Turns a stream of deltas into rows of the ledger: one function for simulations, recordings and live clusters.

An event that a step brings happened after the step before it. The timestamps of the object decide within that time,
where it has one; else the moment of the step does. After a gap in the records the same rule closes it: what objects
still show counts from their timestamps, and what they do not show ends with the records and is marked.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.devices.claimed_cards import ClaimedCards, UnclearPods
from capcard_sched.ledger.capacity_sums import CapacitySums
from capcard_sched.ledger.job_tracker import JobTracker
from capcard_sched.ledger.object_facts import (
    FINISHED,
    bound_at,
    created_at,
    eviction_message,
    finished_at,
    lone_pod_queue,
    object_key,
    service_of,
    user_of,
)
from capcard_sched.ledger.rows import CapacityRow, ChargeRow, JobRecord, QuotaRecord, StageRow
from capcard_sched.model.annotations import (
    BOUND_QUEUE,
    CARD_QUOTA,
)
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CardSyntaxError, parse_card_quota
from capcard_sched.model.deltas import Delta, EvictFailed, ObjectChanged, ObjectGone
from capcard_sched.model.held_cards import NO_CARDS, node_inventory
from capcard_sched.model.intents import Evict
from capcard_sched.model.kinds import owner_kind
from capcard_sched.model.namespace_queues import NamespaceQueueObject, ParentError, as_queue, queue_id
from capcard_sched.model.objects import NamespaceObject, NodeObject, PodGroupObject, PodObject, QueueObject
from capcard_sched.model.ownership import controller_of_meta
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.workload import owner_of_pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.ledger.rows import Row
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.held_cards import HeldCards
    from capcard_sched.model.intents import Intent
    from capcard_sched.model.objects import PodConditionObject


class AdoptedRows(msgspec.Struct):
    """The rows that last at the beginning of a source: their jobs and pods may have changed since `until`."""

    #: The end of the records before, 0 without any.
    until: int = 0
    jobs: dict[str, JobRecord] = {}
    stages: dict[str, StageRow] = {}
    #: By pod uid, in the order of their parts.
    charges: dict[str, list[ChargeRow]] = {}
    capacity: dict[str, CapacityRow] = {}
    quotas: dict[tuple[str, str], QuotaRecord] = {}
    #: Of objects that exist at the beginning: the last life, by uid, of jobs without a lasting one, and the uids of
    #: finished pods whose charge has ended. Their rows are complete.
    ended_jobs: dict[str, JobRecord] = {}
    ended_pods: set[str] = set()


class LedgerRecorder:
    """Records one source. Cost per step: O(deltas)."""

    def __init__(
        self,
        adopted: AdoptedRows,
        *,
        card_labels: CardLabels = DEFAULT_CARD_LABELS,
        default_queue: str = "default",
    ) -> None:
        """`card_labels`: those of the scheduler-conf; `default_queue`: of PodGroups that name none."""
        self._adopted, self._card_labels, self._default_queue = adopted, card_labels, default_queue
        self._last = adopted.until
        #: The objects at the beginning of the source are not complete yet.
        self._first = True
        self._capacity = CapacitySums(adopted.capacity)
        self._claimed = ClaimedCards()
        #: By uid.
        self._unclear: UnclearPods[str] = UnclearPods()
        self._quotas = adopted.quotas
        #: Names of the queues of the first step.
        self._queues: set[str] = set()
        self._namespace_queues: dict[str, str] = {}
        self._groups: dict[str, PodGroupObject] = {}
        #: By uid of the PodGroup, or of the pod without one.
        self._jobs: dict[str, JobTracker] = {}
        self._dirty: dict[str, JobTracker] = {}
        #: By pod uid: the job of each pod that exists and has one.
        self._job_of: dict[str, JobTracker] = {}
        #: Of each pod, in the order of their parts.
        self._charges: dict[str, list[ChargeRow]] = {}
        #: Names of pods to uids, for deletions without one.
        self._uids: dict[str, str] = {}
        self._finished: set[str] = set()
        #: Pod uid to the message of its eviction.
        self._evicted: dict[str, str] = {}
        self._rows: list[Row] = []

    def adopt_ended(self, jobs: dict[str, JobRecord], pods: set[str]) -> None:
        """What is complete of the objects of the first step (`AdoptedRows`)."""
        self._adopted.ended_jobs, self._adopted.ended_pods = jobs, pods

    def feed(self, now: int, deltas: Iterable[Delta], intents: Iterable[Intent] = ()) -> list[Row]:
        """The rows that change with one step at `now`, later ones of the same key last.

        `now`: Unix milliseconds, not before the last step. The deltas of the first step hold every object. `intents`:
        decisions of the scheduler after these deltas.
        """
        self._rows = []
        deltas = list(deltas)
        claims = self._see_devices(deltas)
        for delta in deltas:
            self._see_setting(delta, now)
        for delta in deltas:
            self._see_pods(delta, now)
        for uid, pod in claims.items():
            if uid in self._charges:
                self._see_pod(pod, now)
        for delta in deltas:
            if isinstance(delta, ObjectGone) and delta.kind == "PodGroup":
                self._group_gone(f"{delta.namespace}/{delta.name}", delta.uid)
        if self._first:
            self._close_gap(now)
        for tracker in self._dirty.values():
            self._rows += tracker.changed(now, gap=self._in_gap)
            if tracker.is_over:
                self._jobs.pop(tracker.row.uid, None)
        self._dirty = {}
        self._rows += self._capacity.changed(now)
        for intent in intents:
            if isinstance(intent, Evict):
                self._evicted.setdefault(intent.uid, intent.message)
        self._first, self._last = False, now
        return self._rows

    @property
    def _in_gap(self) -> bool:
        return self._first and self._adopted.until > 0

    # --- devices, nodes, queues, namespaces, PodGroups ----------------------------------------------------------------

    def _see_devices(self, deltas: Iterable[Delta]) -> dict[str, PodObject]:
        """The pods, by uid, whose claims changed and whose charges are not complete."""
        found: dict[str, PodObject] = {}
        for delta in deltas:
            if claim := self._claimed.apply(delta):
                found |= self._unclear.pop_of(claim)
        for pool, provided in self._claimed.capacities(self._card_labels):
            self._capacity.set_pool(pool, provided)
        return found

    def _see_setting(self, delta: Delta, now: int) -> None:
        match delta:
            case ObjectChanged(NodeObject() as node):
                self._capacity.set_node(node.metadata.name, node_inventory(node, self._card_labels))
            case ObjectGone("Node", _, name):
                self._capacity.set_node(name, None)
            case ObjectChanged(NamespaceObject() as namespace):
                self._namespace_queues[namespace.metadata.name] = namespace.default_queue
            case ObjectGone("Namespace", _, name):
                self._namespace_queues.pop(name, None)
            case ObjectChanged(QueueObject() as queue):
                self._see_queue(queue, now)
            case ObjectChanged(NamespaceQueueObject() as local):
                with suppress(ParentError):
                    self._see_queue(as_queue(local), now)
            case ObjectGone("NamespaceQueue", namespace, name):
                self._set_quotas(f"{namespace}/{name}", {}, "", now)
            case ObjectGone("Queue", _, name):
                self._set_quotas(name, {}, "", now)
            case ObjectChanged(PodGroupObject() as group):
                self._see_group(group, now)
            case _:
                pass

    def _see_queue(self, queue: QueueObject, now: int) -> None:
        name = queue.metadata.name
        if self._first:
            self._queues.add(name)
        text = (queue.metadata.annotations or {}).get(CARD_QUOTA)
        try:
            quotas: Mapping[str, int] = parse_card_quota(text)
        except CardSyntaxError:  # the scheduler admits nothing
            quotas = dict.fromkeys((card for queue, card in self._quotas if queue == name), 0)
        self._set_quotas(name, quotas, queue.spec.parent or "", now)

    def _set_quotas(self, queue: str, quotas: Mapping[str, int], parent: str, now: int) -> None:
        cards = dict.fromkeys([*quotas, *(card for name, card in self._quotas if name == queue)])
        for card in cards:
            row, before = QuotaRecord(queue, card, now, quotas.get(card), parent), self._quotas.get((queue, card))
            if before is None or (before.thousandths, before.parent) != (row.thousandths, row.parent):
                self._quotas[queue, card] = row
                self._rows.append(row)
            if row.thousandths is None:
                del self._quotas[queue, card]

    def _see_group(self, group: PodGroupObject, now: int) -> None:
        meta = group.metadata
        key = object_key(meta)
        known = self._groups.get(key)
        if known is not None and known.metadata.uid != meta.uid:
            self._group_gone(key, known.metadata.uid)
        self._groups[key] = group
        tracker = self._jobs.get(meta.uid) or self._track(self._new_job(group, now))
        row = tracker.row
        row.queue, row.min_member = self._queue_of(group), group.spec.min_member or 1
        row.service_type, row.user_label = service_of(meta) or row.service_type, user_of(meta) or row.user_label
        tracker.is_admitted = (group.status.phase or "Pending") != "Pending"
        self._dirty[row.uid] = tracker

    def _new_job(self, group: PodGroupObject, now: int) -> JobRecord:
        meta, owner = group.metadata, controller_of_meta(group.metadata)
        kind, name = "podgroup", meta.name
        if owner is not None and owner.kind == "Job" and owner.group == "batch.volcano.sh":
            kind, name = "vcjob", owner.name
        return JobRecord(
            meta.uid,
            1,
            meta.namespace or "default",
            name,
            kind,
            f"{owner.kind}/{owner.name}" if owner is not None else "",
            submitted=created_at(meta, now),
        )

    def _track(self, row: JobRecord) -> JobTracker:
        """A tracker of a new job, or of the recorded life of a known one."""
        adopted = self._adopted.jobs.get(row.uid) or self._adopted.ended_jobs.get(row.uid)
        tracker = JobTracker(adopted or row, self._adopted.stages.get(row.uid) if adopted is not None else None)
        self._jobs[row.uid] = tracker
        return tracker

    def _group_gone(self, key: str, uid: str) -> None:
        group = self._groups.get(key)
        if group is None or (uid and group.metadata.uid != uid):
            return
        del self._groups[key]
        tracker = self._jobs.get(group.metadata.uid)
        if tracker is not None:
            tracker.exists = False
            self._dirty[tracker.row.uid] = tracker

    def _queue_of(self, group: PodGroupObject) -> str:
        namespace = group.metadata.namespace or "default"
        named = group.spec.queue or self._namespace_queues.get(namespace) or self._default_queue
        return queue_id(named, namespace)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _see_pods(self, delta: Delta, now: int) -> None:
        match delta:
            case ObjectChanged(PodObject() as pod):
                self._see_pod(pod, now)
            case ObjectGone("Pod", namespace, name, uid):
                key = f"{namespace}/{name}"
                known = self._uids.get(key, "")
                if known and uid in ("", known):
                    del self._uids[key]
                    self._pod_gone(known, now)
            case EvictFailed(_, _, uid, _):
                self._evicted.pop(uid, None)
            case _:
                pass

    def _see_pod(self, pod: PodObject, now: int) -> None:
        meta, uid = pod.metadata, pod.metadata.uid
        key = object_key(meta)
        known = self._uids.get(key)
        if known is not None and known != uid:
            self._pod_gone(known, now)
        self._uids[key] = uid
        if uid in self._finished:
            return
        outcome = FINISHED.get(pod.status.phase or "", "")
        if outcome and self._is_recorded(pod, now):
            self._finished.add(uid)
            return
        tracker = self._job_of.get(uid) or self._job_of_pod(pod, now)
        conditions = {one.type: one for one in pod.status.conditions or ()}
        if message := eviction_message(conditions):
            self._evicted.setdefault(uid, message)
        if pod.spec.node_name:
            self._bound(pod, tracker, conditions, now)
        elif tracker is not None:
            tracker.pod(uid, created_at(meta, now), now)
        if outcome:
            at, gap = self._ended_at(conditions, now)
            self._finished.add(uid)
            self._end(uid, at, "Evicted" if uid in self._evicted else outcome, meta.resource_version, gap=gap)
        if tracker is not None:
            self._dirty[tracker.row.uid] = tracker

    def _is_recorded(self, pod: PodObject, now: int) -> bool:
        """Whether a finished pod belongs to a life that ended before the gap, or outlived its PodGroup."""
        if not self._in_gap:
            return False
        meta, name = pod.metadata, group_of(pod.metadata.annotations or {})
        group = self._groups.get(f"{meta.namespace or 'default'}/{name}") if name else None
        if group is None and meta.uid in self._adopted.ended_pods:
            return True
        job = meta.uid if group is None else group.metadata.uid
        return job in self._adopted.ended_jobs and created_at(meta, now) <= self._adopted.until

    def _job_of_pod(self, pod: PodObject, now: int) -> JobTracker | None:
        """The job of a pod that is not known yet; None for one without a PodGroup that holds no cards."""
        meta = pod.metadata
        namespace, notes = meta.namespace or "default", meta.annotations or {}
        name = group_of(notes)
        group = self._groups.get(f"{namespace}/{name}") if name else None
        node = self._capacity.nodes.get(pod.spec.node_name or "")
        if group is None and (not pod.spec.node_name or self._claimed.held(pod, node, self._card_labels) == NO_CARDS):
            return None
        row = self._jobs[group.metadata.uid].row if group is not None else None
        if row is None:
            tracker = self._jobs.get(meta.uid) or self._track(
                JobRecord(meta.uid, 1, namespace, meta.name, "pod", submitted=created_at(meta, now))
            )
            tracker.exists, row = False, tracker.row
            row.service_type = service_of(meta)
            requested = lone_pod_queue(notes) or self._namespace_queues.get(namespace)
            row.queue = row.queue or queue_id(requested or self._default_queue, namespace)
        tracker = self._jobs[row.uid]
        self._job_of[meta.uid] = tracker
        self._describe(row, pod)
        return tracker

    def _describe(self, row: JobRecord, pod: PodObject) -> None:
        """Complete the row of a job by one of its pods."""
        meta = pod.metadata
        owner = controller_of_meta(meta)
        if row.kind in ("podgroup", "pod") and owner is not None:
            kind = owner_kind(f"{owner.group}/" if owner.group else "v1", owner.kind)
            workload = owner_of_pod(kind, meta.name, meta.labels or {})
            if workload:
                row.kind, _, row.name = workload.partition("/")
                row.owner = f"{owner.kind}/{owner.name}"
        elif row.kind == "podgroup" and row.name == f"podgroup-{meta.uid}":
            row.kind, row.name = "pod", meta.name
        row.priority = row.priority or pod.spec.priority or 0
        row.user_label = row.user_label or user_of(meta)
        row.service_type = row.service_type or "unknown"

    def _bound(
        self, pod: PodObject, tracker: JobTracker | None, conditions: Mapping[str, PodConditionObject], now: int
    ) -> None:
        meta, node = pod.metadata, pod.spec.node_name or ""
        charges = self._charges.get(meta.uid) or self._adopted.charges.pop(meta.uid, None)
        stamp = bound_at(conditions, self._last, now)
        gap = stamp is None and self._in_gap
        at = charges[0].began if charges is not None else now if stamp is None else stamp
        if tracker is not None:
            tracked = tracker.pod(meta.uid, created_at(meta, now), now)
            tracked.bound = at if tracked.bound is None else tracked.bound
            tracked.scheduled = not meta.deletion_timestamp and pod.status.phase != "Failed"
        if charges is None and meta.uid in self._adopted.ended_pods:
            return
        if charges is None or charges[0].uncounted:
            held = self._claimed.held(pod, self._capacity.nodes.get(node), self._card_labels)
            self._unclear.drop(meta.uid)
            if held.uncounted:
                self._unclear.add(meta.uid, pod)
            if tracker is not None:
                tracker.row.card = tracker.row.card or held.card
            if charges is not None:
                self._complete(charges, held)
            elif held == NO_CARDS or tracker is None:
                return
        if charges is None:
            assert tracker is not None
            row = tracker.row
            queue = (meta.annotations or {}).get(BOUND_QUEUE) or row.queue
            user, service = user_of(meta) or row.user_label, row.service_type
            charge = ChargeRow(
                meta.uid, meta.name, row.namespace, row.uid, row.life, queue, user, service, held.card,
                held.thousandths, node, at, None, "", "", held.uncounted, meta.resource_version, gap,
            )  # fmt: skip
            charges = [charge, *_further(charge, held, 1)]
            self._rows += charges
        self._charges[meta.uid] = charges

    def _complete(self, charges: list[ChargeRow], held: HeldCards) -> None:
        """Count the devices of claims whose allocation came after the binding."""
        if held.uncounted and sum(amount for _, amount in held.cards) <= sum(each.thousandths for each in charges):
            return
        charges[0].uncounted = held.uncounted
        for charge in charges:  # the device of a slice that has changed since may be another card
            known = charge.part < len(held.cards)
            charge.card, charge.thousandths = held.cards[charge.part] if known else (charge.card, 0)
        charges += _further(charges[0], held, len(charges))
        self._rows += charges

    def _pod_gone(self, uid: str, now: int) -> None:
        if uid in self._finished:
            self._finished.remove(uid)
        else:
            self._end(uid, now, "Evicted" if uid in self._evicted else "Deleted", "", gap=False)
        self._evicted.pop(uid, None)
        self._job_of.pop(uid, None)

    def _end(self, uid: str, at: int, outcome: str, version: str, *, gap: bool) -> None:
        """End the charge of a pod, and its part in its job."""
        self._unclear.drop(uid)
        for charge in self._charges.pop(uid, ()):
            charge.ended, charge.end_reason = max(at, charge.began), outcome
            charge.preemptor = self._evicted.get(uid, "")
            charge.resource_version, charge.gap = version or charge.resource_version, charge.gap or gap
            self._rows.append(charge)
        tracker = self._job_of.get(uid)
        if tracker is not None:
            tracker.pod_ended(uid, at, outcome)
            self._dirty[tracker.row.uid] = tracker

    def _ended_at(self, conditions: Mapping[str, PodConditionObject], now: int) -> tuple[int, bool]:
        """The end of a finished pod, and whether it fell into a gap and is not known."""
        stamp = finished_at(conditions, self._last, now)
        if stamp is not None:
            return stamp, False
        return (self._last, True) if self._in_gap else (now, False)

    # --- gaps ---------------------------------------------------------------------------------------------------------

    def _close_gap(self, now: int) -> None:
        """End what was recorded and does not exist any more: with the records, marked."""
        until = self._adopted.until
        for charge in chain.from_iterable(self._adopted.charges.values()):
            if charge.ended is None:
                charge.ended, charge.end_reason, charge.gap = max(until, charge.began), "Lost", True
                self._rows.append(charge)
        for row in self._adopted.jobs.values():
            if row.ended is None and row.uid not in self._jobs:
                row.ended, row.outcome, row.gap = max(until, row.submitted), "Lost", True
                self._rows.append(row)
                stage = self._adopted.stages.get(row.uid)
                if stage is not None:
                    stage.ended = max(row.ended, stage.began)
                    self._rows.append(stage)
        self._adopted.charges, self._adopted.ended_jobs, self._adopted.ended_pods = {}, {}, set()
        for queue in {queue for queue, _ in self._quotas} - self._queues:
            self._set_quotas(queue, {}, "", now)
        self._queues.clear()


def _further(charge: ChargeRow, held: HeldCards, first: int) -> list[ChargeRow]:
    """Charges like one of the same pod, for its cards from a position on."""
    return [
        msgspec.structs.replace(charge, card=card, thousandths=amount, uncounted="", part=part)
        for part, (card, amount) in enumerate(held.cards)
        if part >= first
    ]
