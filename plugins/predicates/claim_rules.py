"""Checks the ResourceClaims of pods, allocates devices to them and passes the allocations on to the binding.

A pod's claims become `PodClaims`, part of its signature. Allocated claims are static checks of the node. The others are
*open*: the allocator searches devices node by node before every pod. Placing assumes the allocations in the ledger;
undoing a placement forgets them. Committed ones stay assumed until the API shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from capcard_sched.devices.allocator import CANNOT_ALLOCATE, Allocator, NodeError
from capcard_sched.devices.claims import AllocationError, plan_claim
from capcard_sched.model.device_objects import MAX_CONSUMERS
from capcard_sched.model.intents import ClaimAllocation
from capcard_sched.model.kinds import CORE_API
from capcard_sched.model.ownership import owner_of
from capcard_sched.model.refusal import Code
from capcard_sched.model.selectors import matches_node_selector
from capcard_sched.model.status import SESSION_STATUSES

if TYPE_CHECKING:
    from capcard_sched.devices.claims import Claim, ClaimPlan, RequestPlan
    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.framework.api.node_view import FilterResult, NodeView
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.device_objects import Allocation
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.objects import NodeSelector

#: Why claims get no devices: on one node, or anywhere; None if they get them.
Verdict: TypeAlias = "NodeError | AllocationError | None"
#: One allocation per claim, or why there are none: on one node, or anywhere.
Found: TypeAlias = "list[Allocation] | NodeError | AllocationError"
#: Entries of the cache of verdicts: nodes times kinds of claims.
_MOST_VERDICTS: Final = 200_000
_content = msgspec.msgpack.Encoder(order="deterministic").encode
UNAVAILABLE: Final = "resourceclaim not available on the node"
_UNSUPPORTED: Final = "bindingConditions, which is not supported"


class ClaimedDevicesTakenError(RuntimeError):
    """A chosen node has no devices for a pod's claims."""


class PodClaims(NamedTuple):
    """The claims of a pod as the checks read them. Compared by content."""

    #: Node selectors of its allocated claims; None for every node.
    allocated: tuple[NodeSelector | None, ...] = ()
    #: Keys of the claims without an allocation.
    open: tuple[str, ...] = ()
    #: The reason why the claims allow no node, "" without one.
    error: str = ""


class _PreparedDevices:
    """Refuses devices with binding conditions: waiting for them is not supported."""

    def __init__(self) -> None:
        #: The first refused device; "" for none.
        self.refused = ""

    def add(self, request: RequestPlan, device: PoolDevice) -> bool:
        if device.spec.binding_conditions:
            self.refused = self.refused or "/".join(device.id)
            return False
        return True

    def remove(self, request: RequestPlan, device: PoolDevice) -> None:
        pass


class ClaimRules:
    """Implements the module's checks for one plugin instance; `open` is called at the start of every session."""

    def __init__(self) -> None:
        #: Claim key to its plan, with the claim and the version of the inventory it was made for.
        self._plans: dict[str, tuple[Claim, int, ClaimPlan | str]] = {}
        #: Node and contents of claims to the versions of the pools of the node, and the verdict.
        self._verdicts: dict[
            tuple[str, tuple[bytes, ...]], tuple[tuple[int, ...], NodeError | AllocationError | None]
        ] = {}
        #: Pod uid to the keys of its claims whose allocations the placement assumed.
        self._placed: dict[str, tuple[str, ...]] = {}

    def open(self, session: Session) -> None:
        self._inventory, self._ledger = session.devices, session.claims
        self._placed.clear()
        for key in self._plans.keys() - self._ledger.claims.keys():
            del self._plans[key]

    def of(self, task: Task) -> PodClaims | None:
        """The current claims of a pod; None for a pod without claims."""
        wanted = task.cls.claims
        if not wanted:
            return None
        allocated: list[NodeSelector | None] = []
        waiting: list[str] = []
        for each in wanted:
            key = f"{task.namespace}/{each.claim}"
            claim = self._ledger.claims.get(key)
            error = each.problem or self._problem(task, each.claim, claim, generated=bool(each.template))
            if error or claim is None:
                return PodClaims(error=error)
            allocation = self._ledger.allocation(key)
            if allocation is not None:
                allocated.append(allocation.node_selector)
            elif key not in waiting:
                plan = self._plan(claim)
                if isinstance(plan, str):
                    return PodClaims(error=plan)
                waiting.append(key)
        return PodClaims(tuple(dict.fromkeys(allocated)), tuple(waiting))

    def _problem(self, task: Task, name: str, claim: Claim | None, *, generated: bool) -> str:
        """The reason why a claim allows no node, "" without one."""
        if claim is None:
            return f'resourceclaim "{name}" not found'
        if claim.deleting:
            return f'resourceclaim "{name}" is being deleted'
        pod = owner_of(task.namespace, CORE_API, "Pod", task.name, task.uid)
        if generated and claim.owner != pod:
            return f"ResourceClaim {claim.key} was not created for Pod {task.key} (Pod is not owner)"
        consumers = self._ledger.consumers(claim.key)
        if len(consumers) >= MAX_CONSUMERS and task.uid not in consumers:
            return f'resourceclaim "{name}" has {len(consumers)} consumers'
        allocation = claim.allocation
        for each in allocation.devices.results or () if allocation is not None else ():
            if each.binding_conditions:
                return f'resourceclaim "{name}": device {each.device} uses {_UNSUPPORTED}'
        return ""

    def _plan(self, claim: Claim) -> ClaimPlan | str:
        """The plan of a claim, or why there is none."""
        known = self._plans.get(claim.key)
        if known is not None and known[0] is claim and known[1] == self._inventory.version:
            return known[2]
        try:
            found: ClaimPlan | str = plan_claim(claim, self._inventory.classes)
        except AllocationError as error:
            found = str(error)
        self._plans[claim.key] = claim, self._inventory.version, found
        return found

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
        texts: list[str] = []
        contents = tuple(_content(self._ledger.claims[key].spec) for key in claims.open)
        for row in rows.rows.tolist():
            found = self._verdict(claims.open, contents, rows.nodes[row])
            if isinstance(found, AllocationError):
                result.reject_all(Code.UNRESOLVABLE, str(found))
                return
            texts.append("" if found is None else str(found))
        for text in dict.fromkeys(texts):
            if text:
                rejected = np.array([each == text for each in texts], dtype=bool)
                result.reject(rejected, Code.UNRESOLVABLE, text)

    def _verdict(self, keys: tuple[str, ...], contents: tuple[bytes, ...], node: Node) -> Verdict:
        """Why claims get no devices on a node. Kept for claims of equal content while the pools of the node stay."""
        pools = self._inventory.pools(node.name, node.labels)
        stamp = self._inventory.version, *[self._ledger.pool_version(pool.id) for pool in pools]
        known = self._verdicts.get((node.name, contents))
        if known is not None and known[0] == stamp:
            return known[1]
        found = self._search(keys, node)
        verdict = None if isinstance(found, list) else found
        if verdict is None or str(verdict).startswith(CANNOT_ALLOCATE):  # other texts name the claim
            if len(self._verdicts) > _MOST_VERDICTS:
                self._verdicts.clear()
            self._verdicts[node.name, contents] = stamp, verdict
        return verdict

    def _search(self, keys: tuple[str, ...], node: Node) -> Found:
        plans = [plan for key in keys if not isinstance(plan := self._plan(self._ledger.claims[key]), str)]
        prepared = _PreparedDevices()
        allocator = Allocator(self._inventory, self._ledger, node.name, node.labels, constraints=(prepared,))
        try:
            return allocator.allocate(plans)
        except NodeError as error:
            if prepared.refused:
                return NodeError(f"{CANNOT_ALLOCATE}: device {prepared.refused} uses {_UNSUPPORTED}")
            return error
        except AllocationError as error:
            return error

    def place(self, placement: Placement) -> None:
        """Assume the allocations of pods that were placed. Raises ClaimedDevicesTakenError."""
        if not placement.cls.claims:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status in SESSION_STATUSES:
                self._assume(task, node)

    def _assume(self, task: Task, node: Node) -> None:
        claims = self.of(task)
        if claims is None:
            return
        found = [] if claims.error or not claims.open else self._search(claims.open, node)
        if claims.error or not isinstance(found, list):
            raise ClaimedDevicesTakenError(claims.error or str(found))
        chosen = dict(zip(claims.open, found, strict=True))
        keys = tuple(dict.fromkeys(f"{task.namespace}/{each.claim}" for each in task.cls.claims))
        self._placed[task.uid] = keys
        for key in keys:
            self._ledger.assume(key, chosen.get(key), task.uid)

    def displace(self, placement: Placement) -> None:
        """Forget what `place` assumed."""
        if not placement.cls.claims:
            return
        for task in reversed(placement.tasks):
            for key in reversed(self._placed.pop(task.uid, ())):
                self._ledger.forget(key, task.uid)

    def allocations(self, placement: Placement) -> dict[str, tuple[ClaimAllocation, ...]] | None:
        """The allocations of pods by uid; None for pods without claims."""
        if not placement.cls.claims:
            return None
        claims = self._ledger.claims
        found: dict[str, tuple[ClaimAllocation, ...]] = {}
        for task in placement.tasks:
            found[task.uid] = tuple(
                ClaimAllocation(
                    claims[key].name,
                    claims[key].uid,
                    self._ledger.assumed[key].allocation if key in self._ledger.assumed else None,
                )
                for key in self._placed.get(task.uid, ())
            )
        return found
