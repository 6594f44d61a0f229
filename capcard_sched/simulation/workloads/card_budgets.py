"""Stand-in for the CardBudgets of `capcard-sched web`: writes the statuses from the cards that simulated pods hold.

A status in the input is the starting point of its period: it may cover pods outside the scenario. Later use is added.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import ENDED_PHASES, POD, POD_GROUP, QUEUE, meta, spec, status
from capcard_sched.devices.claimed_cards import ClaimedCards
from capcard_sched.model.annotations import BOUND_QUEUE
from capcard_sched.model.card_budgets import (
    CARD_BUDGET,
    BudgetUse,
    CardBudgetObject,
    base_use,
    budget_status,
    card_budget_facts,
    covers,
    period_at,
    spent_at,
    status_patch,
    with_condition,
)
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.held_cards import NO_CARDS, node_inventory
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE, queue_node
from capcard_sched.model.objects import NamespaceObject, NodeObject, PodObject
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.timestamps import parse_time
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.simulation.kinds import NAMESPACE, NODE, RESOURCE_CLAIM

if TYPE_CHECKING:
    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.model.card_budgets import CardBudget
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.held_cards import HeldCards, NodeInventory
    from capcard_sched.simulation.clock import Timer
    from capcard_sched.simulation.store import Change, Store

#: Microseconds per millisecond.
_MILLI = 1000
#: Milliseconds between two statuses of a rolling period: the least, and the most while a budget is spent.
_ROLLING_LEAST, _ROLLING_MOST = 60_000, 3_600_000


_DEVICES: Final = {"ResourceSlice": ResourceSliceObject, RESOURCE_CLAIM: ResourceClaimObject}
#: Phases of PodGroups whose jobs wait for admission or nodes.
_WAITING = (None, "", "Pending", "Inqueue")


class QueueCardFlow:
    """The cards of one model that a queue holds over time."""

    def __init__(self) -> None:
        #: Moments of changes, ascending; the use up to each, and the thousandths held from it on.
        self._moments = [0]
        self._totals = [0]
        self._rates = [0]
        #: Use before the pods were observed: begin, end and thousandths.
        self._early: list[tuple[int, int, int]] = []

    @property
    def held(self) -> int:
        """Thousandths held now."""
        return self._rates[-1]

    def add(self, thousandths: int, began: int, now: int) -> None:
        """Hold more cards since `began`, observed at `now`; fewer where negative."""
        if began < now:
            self._early.append((began, now, thousandths))
        total = self._total(now)
        if now > self._moments[-1]:
            self._moments.append(now)
            self._totals.append(total)
            self._rates.append(self._rates[-1])
        self._rates[-1] += thousandths

    def between(self, begin: int, end: int) -> int:
        """Units of use in a span that ends now or earlier."""
        early = sum(max(0, min(end, until) - max(begin, since)) * amount for since, until, amount in self._early)
        return self._total(end) - self._total(begin) + early

    def _total(self, moment: int) -> int:
        if moment < 0:
            return 0
        index = bisect_right(self._moments, moment) - 1
        return self._totals[index] + self._rates[index] * (moment - self._moments[index])


class _PodCharge(NamedTuple):
    queue: str
    held: HeldCards


class _GivenUse(NamedTuple):
    """Use that a status of the input states up to a moment; `begin`: of its period."""

    used: dict[str, int]
    at: int
    begin: int


class CardBudgetController:
    """Keeps the status of every CardBudget: at changes of its pods, when a card is spent, and when a period ends."""

    def __init__(self, store: Store, default_queue: str, card_labels: CardLabels) -> None:
        self._store, self._default_queue, self._card_labels = store, default_queue, card_labels
        self._claimed = ClaimedCards()
        self._charges: dict[str, _PodCharge | None] = {}
        #: By queue and card.
        self._flows: dict[tuple[str, str], QueueCardFlow] = {}
        self._bases: dict[str, _GivenUse] = {}
        self._inventories: dict[str, tuple[JsonObject, NodeInventory]] = {}
        self._changed = False
        self._timer: Timer | None = None

    def observe(self, change: Change) -> None:
        """Count pods, and queue the budgets whose figures change."""
        if change.kind == CARD_BUDGET:
            if change.new is None or change.old is None or spec(change.new) != spec(change.old):
                self._changed = True
            if change.old is None and status(change.object):
                self._adopt(change.object)
        elif change.kind == QUEUE:
            was = None if change.old is None else spec(change.old).get("parent")
            if change.new is not None and spec(change.new).get("parent") != was:
                self._changed = True
        elif change.kind == POD:
            self._count(change)
        elif change.kind in _DEVICES:
            self._see_devices(change)
        elif change.kind == POD_GROUP and change.old is None:
            self._changed = True

    def _see_devices(self, change: Change) -> None:
        obj = change.object
        if change.new is None:
            self._claimed.apply(ObjectGone(change.kind, meta(obj).get("namespace") or "", meta(obj)["name"]))
        else:
            self._claimed.apply(ObjectChanged(msgspec.convert(obj, _DEVICES[change.kind])))

    def _adopt(self, obj: JsonObject) -> None:
        found = msgspec.convert(obj, CardBudgetObject)
        budget, _ = card_budget_facts(found)
        used = {} if budget is None else base_use(found, budget, self._now)
        if budget is not None and used:
            self._bases[budget.name] = _GivenUse(used, self._now, period_at(budget.period, self._now).begin)

    @property
    def _now(self) -> int:
        return EPOCH * 1000 + self._store.clock.now // _MILLI

    def _count(self, change: Change) -> None:
        pod, uid = change.object, meta(change.object)["uid"]
        ended = change.new is None or status(pod).get("phase") in ENDED_PHASES
        if uid not in self._charges:
            if ended or not spec(pod).get("nodeName"):
                return
            charge = self._charges[uid] = self._charge(pod)
            if charge is not None:
                for card, amount in charge.held.cards:
                    self._flow(charge.queue, card).add(amount, self._began(pod), self._now)
                self._changed = True
        elif ended and (charge := self._charges[uid]) is not None:
            self._charges[uid] = None
            for card, amount in charge.held.cards:
                self._flow(charge.queue, card).add(-amount, self._now, self._now)
            self._changed = True
        if change.new is None:
            self._charges.pop(uid, None)

    def _flow(self, queue: str, card: str) -> QueueCardFlow:
        return self._flows.setdefault((queue, card), QueueCardFlow())

    def _charge(self, pod: JsonObject) -> _PodCharge | None:
        found = msgspec.convert(pod, PodObject)
        name = spec(pod)["nodeName"]
        held = self._claimed.held(found, self._inventory(name), self._card_labels)
        return None if held.card == NO_CARDS.card else _PodCharge(self._queue_of(found), held)

    def _inventory(self, name: str) -> NodeInventory | None:
        node = self._store.get(NODE, "", name)
        if node is None:
            return None
        known = self._inventories.get(name)
        if known is None or known[0] is not node:
            known = self._inventories[name] = node, node_inventory(msgspec.convert(node, NodeObject), self._card_labels)
        return known[1]

    def _queue_of(self, pod: PodObject) -> str:
        notes, namespace = pod.metadata.annotations or {}, pod.metadata.namespace or "default"
        if notes.get(BOUND_QUEUE):
            return notes[BOUND_QUEUE]
        group = self._store.get(POD_GROUP, namespace, group_of(notes) or "")
        if group is not None and spec(group).get("queue"):
            return str(spec(group)["queue"])
        found = self._store.get(NAMESPACE, "", namespace)
        given = "" if found is None else msgspec.convert(found, NamespaceObject).default_queue
        return given or self._default_queue

    def _began(self, pod: JsonObject) -> int:
        """The moment of the binding; of a pod in the input as its condition or start time states."""
        for condition in status(pod).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
                return self._stamp(condition.get("lastTransitionTime"))
        return self._stamp(status(pod).get("startTime"))

    def _stamp(self, text: str | None) -> int:
        moment = round(parse_time(text) * 1000)
        # Stamps of pods that the run binds are whole seconds: they are not earlier than the moment of the write.
        return moment if moment and moment + 1000 <= self._now else self._now

    # --- statuses -----------------------------------------------------------------------------------------------------

    def reconcile(self) -> bool:
        """Write changed statuses; whether there was a change."""
        if not self._changed:
            return False
        self._changed = False
        now = self._now
        wakeups = [self._write(obj, now) for obj in list(self._store.list(CARD_BUDGET))]
        if self._timer is not None:
            self._timer.cancel()
        due = min((one for one in wakeups if one is not None), default=None)
        self._timer = None
        if due is not None:
            self._timer = self._store.clock.after((due - EPOCH * 1000) * _MILLI - self._store.clock.now, self._wake)
        return True

    def _wake(self) -> None:
        self._changed = True

    def _write(self, obj: JsonObject, now: int) -> int | None:
        """Write the status of one budget; the moment of its next change, None for no known one."""
        found = msgspec.convert(obj, CardBudgetObject)
        budget, _ = card_budget_facts(found)
        if budget is None:
            return None
        use, before = self._use(budget, now), status(obj)
        wanted = with_condition(budget_status(budget, use, now, meta(obj).get("generation")), before, now)
        if wanted != before:
            self._store.patch(CARD_BUDGET, "", budget.name, {"status": status_patch(wanted, before)})
        return _next_change(budget, use, now, is_spent=wanted["spent"], is_awaited=self._has_waiting_jobs())

    def _has_waiting_jobs(self) -> bool:
        return any(status(group).get("phase") in _WAITING for group in self._store.list(POD_GROUP))

    def _use(self, budget: CardBudget, now: int) -> BudgetUse:
        period = period_at(budget.period, now)
        used, held, begin = dict.fromkeys(budget.limits, 0), dict.fromkeys(budget.limits, 0), period.begin
        base = self._bases.get(budget.name)
        if base is not None and (base.begin == begin if period.end is not None else base.at > begin):
            begin = base.at
            for card in used:
                used[card] += base.used.get(card, 0)
        for (queue, card), flow in self._flows.items():
            if card in used and covers(budget.queue, queue, self._parent):
                used[card] += flow.between(begin, now)
                held[card] += flow.held
        return BudgetUse(used, held)

    def _parent(self, name: str) -> str | None:
        namespace, slash, local = name.partition("/")
        found = self._store.get(NAMESPACE_QUEUE, namespace, local) if slash else self._store.get(QUEUE, "", name)
        return None if found is None else queue_node(found, is_local=bool(slash)).parent


def _next_change(budget: CardBudget, use: BudgetUse, now: int, *, is_spent: bool, is_awaited: bool) -> int | None:
    """The moment at which a further card is spent or card-hours are free again.

    Free card-hours matter only to waiting jobs: without any, periods do not prolong a run.
    """
    end = period_at(budget.period, now).end
    spent = spent_at(budget, use, now)
    if end is None:
        if not is_awaited:
            return None
        found = [] if spent is None else [max(spent, now + _ROLLING_LEAST)]
        return min([*found, *([now + _ROLLING_MOST] if is_spent else [])], default=None)
    found = [] if spent is None or spent >= end else [spent]
    if is_awaited and (is_spent or any(use.held.values())):
        found.append(end)
    return min(found, default=None)
