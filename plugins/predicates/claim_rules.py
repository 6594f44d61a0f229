"""Checks the ResourceClaims of pods, allocates devices to them and passes the allocations on to the binding.

A pod's claims become `PodClaims`, part of its signature. Allocated claims are static checks of the node. The others are
*open*: the allocator searches devices node by node before every pod. Placing assumes the allocations in the ledger;
undoing a placement forgets them. Committed ones stay assumed until the API shows them. Pods that are nominated get
devices of the future: victims and terminating pods count as gone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from capcard_sched.devices.allocator import CANNOT_ALLOCATE, Allocator, NodeError
from capcard_sched.devices.claims import AllocationError, alternative_score
from capcard_sched.devices.device_card import card_of
from capcard_sched.devices.held_devices import written_record
from capcard_sched.devices.selector_work import EvaluationsPostponedError
from capcard_sched.framework.eviction.nominations import is_late
from capcard_sched.framework.session.doubled_devices import keeper
from capcard_sched.framework.toolkit.device_cards import accepted_cards, is_accepted, request_charge, usable_cards
from capcard_sched.model.cards import CARD
from capcard_sched.model.device_objects import MAX_CONSUMERS
from capcard_sched.model.intents import ClaimAllocation, ExtendedClaim
from capcard_sched.model.ownership import Owner
from capcard_sched.model.pod_claims import named_claims
from capcard_sched.model.refusal import Code
from capcard_sched.model.selectors import matches_node_selector
from capcard_sched.model.status import COMPLETED_STATUSES, SESSION_STATUSES, TaskStatus
from capcard_sched.plugins.predicates.claim_verdicts import ClaimVerdicts, DeviceSearch, Verdict
from capcard_sched.plugins.predicates.empty_nodes import UNLIMITED, EmptyNodes, UnservedClaims, most_by_devices
from capcard_sched.plugins.predicates.extended_claims import HAS_STATUS, ExtendedClaims

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from capcard_sched.devices.allocator import Solution
    from capcard_sched.devices.claims import Claim, ClaimPlan, RequestPlan
    from capcard_sched.devices.extended_resources import ExtendedRequests
    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.devices.usage import DeviceUsage
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, Rows
    from capcard_sched.framework.api.place_limits import PlaceLimit
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.device_objects import Allocation
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.objects import NodeSelector
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.extended_claims import ExtendedResources

#: One allocation per claim, or why there are none: on one node, or anywhere.
Found: TypeAlias = "list[Allocation] | NodeError | AllocationError"
UNAVAILABLE: Final = "resourceclaim not available on the node"


class ClaimedDevicesTakenError(RuntimeError):
    """A chosen node has no devices for a pod's claims."""


class PodClaims(NamedTuple):
    """The claims of a pod as the checks read them. Compared by content."""

    #: Node selectors of its allocated claims; None for every node.
    allocated: tuple[NodeSelector | None, ...] = ()
    #: Keys of the claims without an allocation.
    open: tuple[str, ...] = ()
    #: Keys of the allocated claims beside them: their devices are not those of victims.
    held: tuple[str, ...] = ()
    #: The reason why the claims allow no node, "" without one.
    error: str = ""
    #: The cards that `card.name` of the pod accepts, and that quotas leave of them; None for all. "" are devices that
    #: are no card.
    cards: tuple[str, ...] | None = None
    #: Those of them of which the devices are one: the same for all.
    one_of: tuple[str, ...] = ()
    #: The thousandths of each that they may be at most; () without a limit.
    limits: tuple[tuple[str, int], ...] = ()
    #: Whether a request of an open claim has alternatives (`firstAvailable`).
    has_alternatives: bool = False
    #: Of the open claims, and of the cards: claims of equal content get devices on the same nodes.
    contents: tuple[Hashable, ...] = ()
    #: The resources that nodes without a device plugin offer by devices; None without any.
    extended: ExtendedResources | None = None
    #: Whether nodes that offer none of these by devices are unfit: the status of the pod names a claim, which the
    #: kubelet waits for.
    has_status: bool = False

    @property
    def needs_devices(self) -> bool:
        """Whether a search is made for claims that are not allocated, or do not exist yet."""
        return bool(self.open) or self.extended is not None

    @property
    def shared(self) -> PodClaims:
        """The claims without their names. No filter or score of single nodes reads them."""
        return self._replace(open=(), held=())


class _Refused(NamedTuple):
    """Why a claim has no plan, with the claim and the version of the inventory for which that holds."""

    claim: Claim
    version: int
    text: str


class _UsableDevices:
    """Refuses devices of cards that the pod does not accept, and those beyond its quota."""

    def __init__(
        self, cards: tuple[str, ...] | None, one_of: tuple[str, ...] = (), limits: tuple[tuple[str, int], ...] = ()
    ) -> None:
        self._cards, self._one_of = cards, one_of
        #: Thousandths that further devices of each card may be.
        self._left = dict(limits)
        #: The cards of the devices so far that are one of these.
        self._chosen: list[str] = []
        #: Whether a device was refused for its card, or for its amount.
        self.refused_card = self.refused_amount = False

    def add(self, request: RequestPlan, device: PoolDevice) -> bool:
        if self._cards is None or request.admin_access:
            return True
        card = card_of(device)
        is_one = card in self._one_of
        if not is_accepted(device, self._cards) or (is_one and self._chosen and self._chosen[0] != card):
            self.refused_card = True
            return False
        if card in self._left:
            charge = request_charge(request, device)
            if charge > self._left[card]:
                self.refused_amount = True
                return False
            self._left[card] -= charge
        if is_one:
            self._chosen.append(card)
        return True

    def remove(self, request: RequestPlan, device: PoolDevice) -> None:
        if self._cards is None or request.admin_access:
            return
        card = card_of(device)
        if card in self._one_of:
            self._chosen.pop()
        if card in self._left:
            self._left[card] += request_charge(request, device)


class ClaimRules:
    """Implements the module's checks for one plugin instance; `open` is called at the start of every session."""

    def __init__(self, binding_timeout: int) -> None:
        """`binding_timeout`: seconds for which pods wait for the binding conditions of their devices."""
        self._binding_timeout = binding_timeout
        #: By claim key.
        self._refused: dict[str, _Refused] = {}
        self._verdicts, self._extended = ClaimVerdicts(), ExtendedClaims()
        self._empty = EmptyNodes()
        #: Pod uid to the keys of its claims whose allocations the placement assumed.
        self._placed: dict[str, tuple[str, ...]] = {}
        #: The claims of pods as they were read since the devices in use changed, by uid; and when that was. No quota
        #: changes them.
        self._read_claims: dict[str, PodClaims] = {}
        self._read_at = -1
        #: Uids of placed pods whose devices leaving pods still hold.
        self._early: set[str] = set()
        #: Pod uid to the claim for extended resources that is created with its binding.
        self._created: dict[str, ExtendedRequests] = {}

    def open(self, session: Session) -> None:
        snapshot = session.snapshot
        self._session = session
        self._inventory, self._ledger, self._tasks = snapshot.devices, snapshot.claims, snapshot.tasks_by_uid
        self._extended.open(session)
        self._placed.clear()
        self._read_claims.clear()
        self._early.clear()
        self._created.clear()
        for key in list(self._refused if session.changed.everything else session.changed.devices):
            if key not in self._ledger.claims:
                self._refused.pop(key, None)
        if self._ledger.claims:
            self._update_leaving(session)

    def _update_leaving(self, session: Session) -> None:
        """Which pods leave: terminating ones; and ended ones, while their claims are reserved for them."""
        table, ledger, changed = session.nodes, self._ledger, session.changed
        leaving: dict[str, tuple[str, ...]] = {}
        for name in session.jobs if changed.everything else changed.jobs:
            job = session.jobs.get(name)
            for task in job.tasks.values() if job is not None else ():
                if task.status in COMPLETED_STATUSES and (keys := self._keys(task)):
                    leaving[task.uid] = keys
        for row in np.flatnonzero(table.releasing.any(axis=1)).tolist():
            for task in table.nodes[row].tasks.values():
                if task.status is TaskStatus.RELEASING and (keys := self._keys(task)) and not is_late(session, task):
                    leaving[task.uid] = keys
        for uid, keys in ledger.leaving.items():
            known = session.snapshot.tasks_by_uid.get(uid)
            has_ended = known is None or known.status in COMPLETED_STATUSES
            if uid not in leaving and has_ended and any(uid in ledger.consumers(key) for key in keys):
                leaving[uid] = keys
        for uid in [uid for uid in ledger.leaving if leaving.get(uid) != ledger.leaving[uid]]:
            ledger.stay(uid)
        for uid in sorted(leaving.keys() - ledger.leaving.keys()):
            ledger.leave(uid, leaving[uid])

    def of(self, task: Task) -> PodClaims | None:
        """The current claims of a pod, kept for its placement; None for a pod without claims."""
        found = self._read(task)
        if found is not None and found.open and not found.held and not found.limits and len(found.one_of) < 2:
            if self._read_at != self._ledger.changes.serial:
                self._read_at = self._ledger.changes.serial
                self._read_claims.clear()
            self._read_claims[task.uid] = found
        return found

    def _read(self, task: Task) -> PodClaims | None:
        wanted, extended = task.cls.claims, self._extended.of(task.cls) if task.cls.device_containers else None
        is_extended = extended is not None or task.extended_claim or self._ledger.extended
        if is_extended and (error := self._extended.problem(task, extended)):
            return PodClaims(error=error)
        if not wanted and extended is None:
            return None
        allocated: list[NodeSelector | None] = []
        waiting: list[str] = []
        contents: list[bytes] = []
        held: list[str] = []
        has_alternatives = False
        for each in wanted:
            key = f"{task.namespace}/{each.claim}"
            claim = self._ledger.claims.get(key)
            error = each.problem or self._problem(task, each.claim, claim, generated=bool(each.template))
            if error or claim is None:
                return PodClaims(error=error)
            allocation = self._ledger.allocation(key)
            if allocation is not None:
                allocated.append(allocation.node_selector)
                held.append(key)
            elif key not in waiting:
                plan: ClaimPlan | str | None = self._inventory.plans.known(claim.content)
                if plan is None:
                    meter = self._session.namespace_work.meter(task.namespace, claim.content, in_attempts=True)
                    plan = self._plan(claim, meter)
                if isinstance(plan, str):
                    return PodClaims(error=plan)
                waiting.append(key)
                contents.append(claim.content)
                has_alternatives = has_alternatives or any(len(request) > 1 for request in plan.requests)
        allowed = tuple(dict.fromkeys(allocated))
        if not waiting and extended is None:
            return PodClaims(allowed)
        named, usable = accepted_cards(task.cls.annotations), usable_cards(self._session, task)
        cards = named or None
        if usable is not None:
            cards = (*usable.names, *usable.others, *(() if named else ("",)))
        one_of, limits = (usable.names, usable.limits) if usable is not None else ((), ())
        return PodClaims(
            allowed, tuple(waiting), tuple(held), "", cards, one_of, limits, has_alternatives,
            ((cards, one_of, limits), *contents), extended, bool(task.extended_claim),
        )  # fmt: skip

    def _problem(self, task: Task, name: str, claim: Claim | None, *, generated: bool) -> str:
        """The reason why a claim allows no node, "" without one."""
        if claim is None:
            return f'resourceclaim "{name}" not found'
        if claim.deleting:
            return f'resourceclaim "{name}" is being deleted'
        if generated and claim.owner != Owner(task.namespace, "", "Pod", task.name, task.uid):
            return f"ResourceClaim {claim.key} was not created for Pod {task.key} (Pod is not owner)"
        assumed = self._ledger.assumed.get(claim.key)
        if len(claim.consumers) + (len(assumed.consumers) if assumed is not None else 0) >= MAX_CONSUMERS:
            consumers = self._ledger.consumers(claim.key)
            if len(consumers) >= MAX_CONSUMERS and task.uid not in consumers:
                return f'resourceclaim "{name}" has {len(consumers)} consumers'
        if (kept := keeper(claim, self._ledger, self._tasks)) is not None:
            return f'resourceclaim "{name}": ResourceClaim {kept.claim.key} has device {"/".join(kept.device)}, too'
        return ""

    def _plan(self, claim: Claim, meter: SelectorMeter | None = None) -> ClaimPlan | str:
        """The plan of a claim, or why there is none. Raises EvaluationsPostponedError."""
        known = self._refused.get(claim.key) if self._refused else None
        if known is not None and known.claim is claim and known.version == self._inventory.version:
            return known.text
        try:
            return self._inventory.plans.of(claim) if meter is None else self._inventory.plans.of(claim, meter.compiles)
        except AllocationError as error:
            self._ledger.searches.refused(error.result)
            self._refused[claim.key] = _Refused(claim, self._inventory.version, str(error))
            return str(error)

    def reject_allocated(self, claims: PodClaims, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes on which an allocated claim is not usable. No placement changes the result."""
        for selector in claims.allocated:
            if selector is None:
                continue
            nodes = [rows.nodes[row] for row in rows.rows.tolist()]
            outside = [not matches_node_selector(selector, node.labels, node.name) for node in nodes]
            result.reject(np.array(outside, dtype=bool), Code.UNRESOLVABLE, UNAVAILABLE)

    def reject_without_devices(self, claims: PodClaims, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes without devices for the open claims. An error of a selector rejects all nodes."""
        if rows.future and claims.held:
            with self._ledger.retained(claims.held):
                self._reject_without_devices(claims, rows, result)
        else:
            self._reject_without_devices(claims, rows, result)

    def _reject_without_devices(self, claims: PodClaims, rows: NodeView, result: FilterResult) -> None:
        if claims.extended is None and result.unanimous:
            self._verdicts.reject(self._device_search(claims, future=rows.future), rows, result, None)
            return
        is_open = result.open  # a diagnosis has all nodes, also those that the pod does not tolerate
        if claims.extended is None:
            places = None if is_open.all() else np.flatnonzero(is_open)
            self._verdicts.reject(self._device_search(claims, future=rows.future), rows, result, places)
            return
        for reached, here in self._by_nodes(claims, rows):
            places = reached[is_open.take(reached)]
            if claims.has_status and here.extended is None:
                without = np.zeros(len(rows), dtype=bool)
                without[places] = True
                result.reject(without, Code.UNRESOLVABLE, HAS_STATUS)
            elif here.needs_devices:
                self._verdicts.reject(self._device_search(here, future=rows.future), rows, result, places)

    def place_limits(self, tasks: Sequence[Task]) -> Iterator[PlaceLimit]:
        """Of equal pods whose claims have equal content and no devices yet: the devices that nodes have."""
        job = tasks[0].job
        if job is None or not tasks[0].cls.claims:
            return
        try:
            if (found := self._unserved(tasks)) is not None:
                yield from self._empty.place_limits(self._session, job, found)
        except EvaluationsPostponedError:
            self._session.carry_over.node_places.postponed.add(job.key)

    def _unserved(self, tasks: Sequence[Task]) -> UnservedClaims | None:
        """The claims of equal pods; None if they differ, do not exist yet, have devices or have no plan.

        Raises EvaluationsPostponedError.
        """
        found: list[list[Claim]] = []
        known, assumed = self._ledger.claims, self._ledger.assumed
        for task in tasks:
            claims = []
            for each in task.cls.claims:
                key = f"{task.namespace}/{each.claim}"
                claim = known.get(key)
                if each.problem or claim is None or claim.deleting:
                    return None
                if claim.allocation is not None or (key in assumed and self._ledger.allocation(key) is not None):
                    return None
                if claim not in claims:
                    claims.append(claim)
            found.append(claims)
        contents = {tuple([claim.content for claim in claims]) for claims in found}
        work = self._session.namespace_work
        plans = [self._plan(claim, work.meter(claim.namespace, claim.content)) for claim in found[0]]
        usable = [plan for plan in plans if not isinstance(plan, str)]
        if len(contents) > 1 or len(usable) < len(plans):
            return None
        is_own = len(tasks) == 1 or all(each.template for each in tasks[0].cls.claims)
        cards = accepted_cards(tasks[0].cls.annotations)
        restrict = partial(_UsableDevices, cards or None)
        return UnservedClaims(contents.pop(), usable, is_own, cards, restrict)

    def reads_single_nodes(self, claims: PodClaims) -> bool:
        """Whether the search on a node reads the devices of that node alone, and no selector fails on any device."""
        if claims.extended is not None:
            return False  # the claims differ by node
        search = self._device_search(claims, future=False)
        return self._verdicts.reads_single_nodes(search, self._session.nodes, partial(self._may_fail, claims))

    def most_pods(self, claims: PodClaims, cls: TaskClass) -> Callable[[NodeView], Vector] | None:
        """As of the hook, for claims that read single nodes; None where allocated ones hold devices besides."""
        if claims.held or not claims.needs_devices:
            return None
        return partial(self._most_pods, claims, all(each.template for each in cls.claims))

    def _most_pods(self, claims: PodClaims, is_own: bool, rows: NodeView) -> Vector:
        """`is_own`: whether each pod has claims of its own."""
        search = self._device_search(claims, future=rows.future)
        return self._verdicts.most_pods(search, partial(self._most_on, claims, search.usage, is_own), rows)

    def _most_on(self, claims: PodClaims, usage: DeviceUsage, is_own: bool, node: Node) -> int:
        if not is_own:
            return UNLIMITED  # pods that share a claim share its devices
        pools = self._inventory.pools(node.name, node.labels)
        free = [device for pool in pools for device in pool.devices if not usage.is_in_use(device.id)]
        return most_by_devices(free, self._planned(claims), claims.cards or (), self._meter(claims))

    def further_pods(self, claims: PodClaims) -> Callable[[NodeView], tuple[Vector, Mask]] | None:
        """As of the hook; None where allocated claims hold devices besides, or the claims differ by node."""
        if claims.held or claims.extended is not None or not claims.open:
            return None
        return partial(self._verdicts.further_pods, self._device_search(claims, future=False))

    def _may_fail(self, claims: PodClaims, node: Node) -> bool:
        meter = self._meter(claims)
        allocator = Allocator(self._inventory, self._ledger, node.name, node.labels, meter=meter)
        return allocator.may_fail(self._planned(claims))

    def preferences(self, claims: PodClaims, candidates: NodeView) -> Rows:
        """By node, 8 less the index of the alternative of each request that has some; 0 on unfit nodes: intp [k]."""
        found = np.zeros(len(candidates), dtype=np.intp)
        with self._ledger.retained(claims.held if candidates.future else ()):
            if claims.extended is None:
                return self._verdicts.preferences(self._device_search(claims, future=candidates.future), candidates)
            for places, here in self._by_nodes(claims, candidates):
                if here.needs_devices:
                    search = self._device_search(here, future=candidates.future)
                    found[places] = self._verdicts.preferences(search, candidates.part(places))
        return found

    def _by_nodes(self, claims: PodClaims, rows: NodeView) -> Iterator[tuple[Rows, PodClaims]]:
        """The entries of a view, by place, with the claims that a pod has there."""
        assert claims.extended is not None
        for places, extended in self._extended.split(claims.extended, rows):
            yield places, self._with(claims, extended)

    def _with(self, claims: PodClaims, extended: ExtendedResources | None) -> PodClaims:
        """The claims of a pod on nodes that offer these of its extended resources by devices."""
        contents = claims.contents if extended is None else (*claims.contents, self._extended.content(extended))
        return claims._replace(extended=extended, contents=contents)

    def _device_search(self, claims: PodClaims, *, future: bool) -> DeviceSearch:
        usage, meter = self._ledger.future if future else self._ledger, self._meter(claims)
        verdict = partial(self._verdict, claims, usage=usage, meter=meter)
        return DeviceSearch(claims.contents, self._inventory, usage, verdict)

    def _meter(self, claims: PodClaims) -> SelectorMeter | None:
        """Of the selectors that a tenant wrote: those of classes are none."""
        if not claims.open:
            return None
        namespace = claims.open[0].partition("/")[0]
        contents = [each for each in claims.contents if isinstance(each, bytes)]
        return self._session.namespace_work.meter(namespace, *contents, in_attempts=True)

    def _verdict(self, claims: PodClaims, node: Node, *, usage: DeviceUsage, meter: SelectorMeter | None) -> Verdict:
        """Why claims get no devices on a node, or the preference of those that they get.

        Raises EvaluationsPostponedError.
        """
        found = self._search(claims, node, usage, meter=meter)
        if not isinstance(found, list):
            return found
        specs = [self._ledger.claims[key].spec for key in (claims.open if claims.has_alternatives else ())]
        return sum(map(alternative_score, specs, found))

    def _allocate(self, claims: PodClaims, search: DeviceSearch, node: Node, uid: str) -> tuple[Found, int]:
        """The devices on a node now: at the places where an equal node had them, if that is known. And its state."""
        solutions, state = self._verdicts.solutions(search, self._session.nodes, node.row)
        if (known := solutions.get(state)) is not None:
            allocator = Allocator(self._inventory, self._ledger, node.name, node.labels)
            return allocator.repeat(self._planned(claims, uid), known), state
        return self._search(claims, node, self._ledger, (solutions, state) if state >= 0 else None, uid), state

    def _planned(self, claims: PodClaims, uid: str = "") -> list[ClaimPlan]:
        """The plans of the claims, that for extended resources last; `uid`: of the pod."""
        found = [plan for key in claims.open if not isinstance(plan := self._plan(self._ledger.claims[key]), str)]
        return found if claims.extended is None else [*found, self._extended.plan(claims.extended, uid)]

    def _search(
        self,
        claims: PodClaims,
        node: Node,
        usage: DeviceUsage,
        keep: tuple[dict[int, Solution], int] | None = None,
        uid: str = "",
        meter: SelectorMeter | None = None,
    ) -> Found:
        """`keep`: where to keep the places of the devices. Raises EvaluationsPostponedError with a meter."""
        usable = _UsableDevices(claims.cards, claims.one_of, claims.limits)
        allocator = Allocator(self._inventory, usage, node.name, node.labels, constraints=(usable,), meter=meter)
        found: Found
        try:
            found = allocator.allocate(self._planned(claims, uid))
            if keep is not None and (solution := allocator.solution()) is not None:
                keep[0][keep[1]] = solution
        except NodeError as error:
            found = error
            if usable.refused_amount and str(error) == CANNOT_ALLOCATE:
                left = ", ".join(f"{amount / CARD:g} {card}" for card, amount in claims.limits)
                found = NodeError(f"{CANNOT_ALLOCATE} with the quota left: {left}")
            elif usable.refused_card and str(error) == CANNOT_ALLOCATE:
                listed = "|".join(filter(None, claims.cards or ()))
                found = NodeError(f"{CANNOT_ALLOCATE} with devices of card <{listed}>" if listed else CANNOT_ALLOCATE)
        except AllocationError as error:
            found = error
        result = "allocated" if isinstance(found, list) else found.result
        self._ledger.searches.searched(result, allocator.trials)
        return found

    def place(self, placement: Placement) -> None:
        """Assume the allocations of pods that were placed, and undo evictions. Raises ClaimedDevicesTakenError."""
        if not self._may_have_claims(placement.cls):
            return
        known, is_known = self._read_claims, self._read_at == self._ledger.changes.serial
        self._read_claims = {}
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status in SESSION_STATUSES:
                self._assume(task, node, known.get(task.uid) if is_known else None)
            else:
                self._ledger.stay(task.uid)

    def _may_have_claims(self, cls: TaskClass) -> bool:
        return bool(cls.claims or (cls.device_containers and (self._ledger.extended or self._extended.of(cls))))

    def _assume(self, task: Task, node: Node, known: PodClaims | None) -> None:
        """`known`: the claims of the pod, if nothing has changed since they were read."""
        claims = known or self._read(task)
        if claims is None:
            return
        if claims.error:
            raise ClaimedDevicesTakenError(claims.error)
        if claims.extended is not None:
            claims = self._with(claims, claims.extended.on(node))
        future, state = task.status is TaskStatus.PIPELINED, -1
        verdict = partial(self._verdict, claims, usage=self._ledger, meter=None)
        search = DeviceSearch(claims.contents, self._inventory, self._ledger, verdict)
        found: Found = []
        if claims.needs_devices and not future:
            found, state = self._allocate(claims, search, node, task.uid)
        if claims.needs_devices and not (isinstance(found, list) and found):
            if not future:
                self._early.add(task.uid)
            with self._ledger.retained(claims.held):
                found = self._search(claims, node, self._ledger.future, uid=task.uid)
        if not isinstance(found, list):
            raise ClaimedDevicesTakenError(str(found))
        keys, opened = _keys(task), claims.open
        if claims.extended is not None:
            self._created[task.uid] = self._extended.requests(claims.extended)
            keys, opened = (*keys, self._extended.key(task)), (*opened, self._extended.key(task))
        chosen = dict(zip(opened, found, strict=True))
        self._placed[task.uid] = keys
        for key in keys:
            self._ledger.assume(key, chosen.get(key), task.uid)
        if state >= 0 and task.uid not in self._early:
            self._verdicts.note_following(search, node.row, state)

    def displace(self, placement: Placement) -> None:
        """Forget what `place` assumed. Running pods leave: they are evicted."""
        if not self._may_have_claims(placement.cls):
            return
        for task in reversed(placement.tasks):
            if task.uid not in self._placed:
                if keys := self._keys(task):
                    self._ledger.leave(task.uid, keys)
                continue
            self._early.discard(task.uid)
            self._created.pop(task.uid, None)
            for key in reversed(self._placed.pop(task.uid)):
                self._ledger.forget(key, task.uid)

    def allocations(self, placement: Placement) -> dict[str, tuple[ClaimAllocation, ...]] | None:
        """The allocations of pods by uid; None for pods without claims. Raises ClaimedDevicesTakenError."""
        if not self._placed:
            return None
        placed = [task for task in placement.tasks if self._placed.get(task.uid)]
        for task in placed:
            if task.uid in self._early:
                raise ClaimedDevicesTakenError(f"pods that leave hold the devices of {task.key}")
        found = {task.uid: tuple([self._allocation(task, key) for key in self._placed[task.uid]]) for task in placed}
        return found or None

    def _allocation(self, task: Task, key: str) -> ClaimAllocation:
        claim, assumed = self._ledger.claims.get(key), self._ledger.assumed.get(key)
        allocation = assumed.allocation if assumed is not None else None
        queue = task.job.queue if task.job is not None else ""
        record = written_record(queue, allocation, self._inventory) if allocation is not None else msgspec.UNSET
        if claim is None:
            name, created = key.partition("/")[2], self._created[task.uid]
            extended = ExtendedClaim(created.spec, created.mappings)
            return ClaimAllocation(name, "", allocation, self._binding_timeout, extended, record)
        return ClaimAllocation(claim.name, claim.uid, allocation, self._binding_timeout, annotations=record)

    def _keys(self, task: Task) -> tuple[str, ...]:
        """As `_keys`, with the claim for extended resources."""
        extended = self._extended.held(task)
        return _keys(task) if extended is None else (*_keys(task), extended)


def _keys(task: Task) -> tuple[str, ...]:
    return named_claims(task.namespace, task.cls.claims)
