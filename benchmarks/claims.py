"""Pods with ResourceClaims: one session allocates all their devices, beside a plain loop over nodes and devices.

| Scene | Pods | Devices |
|---|---|---|
| D1 | gangs of 50 of 6 templates, one claim each | 8 of one of three models a node |
| D2 | gangs of 8, claims with `firstAvailable` | the same |
| D3 | gangs of 50, a whole GPU or a partition each | 3 GPUs a node, 7 partitions each, by counters |

The plain loop searches every node for a pod, with the allocator of the product without bounds and kept results.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks.claim_objects import CLAIMED, PODS_PER_NODE, arriving, present, written
from benchmarks.measure import Frame, SceneRun, build_core, one_more_pod, resident_growth, run_session, session_medians
from benchmarks.workloads import START
from capcard_sched.devices.allocator import Allocator, NodeError
from capcard_sched.devices.claims import claim_facts, plan_claim
from capcard_sched.devices.inventory import DeviceInventory
from capcard_sched.devices.ledger import DeviceLedger
from capcard_sched.gc import settle_memory
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.objects import NodeObject, PodObject, PodStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Session
    from capcard_sched.devices.claims import RequestPlan
    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.framework.core import Core
    from capcard_sched.model.deltas import Delta

#: Pods of the plain loop, whose time per pod grows with the nodes.
PLAIN_PODS: Final = 3
#: Pods whose sessions are measured one by one.
_MORE_PODS: Final = 15
#: Claims of the measurement of memory.
_MEMORY_CLAIMS: Final = 10_000


class ClaimRun(SceneRun, frozen=True, kw_only=True):
    """Figures of one scene at one size; the plain loop agrees on nodes and devices."""

    #: Bytes of resident memory per 10,000 claims, allocated ones.
    claim_bytes: float


def measure_claims(name: str, size: str, nodes: int, repeats: int) -> ClaimRun:
    """Place `PODS_PER_NODE` pods a node, `repeats` times from scratch. Raises RuntimeError when a hook fails."""
    pods = nodes * PODS_PER_NODE // CLAIMED[name] * CLAIMED[name]
    sessions, changes = [], []
    for _ in range(repeats):
        core = claims_core(name, nodes)
        deltas = [*arriving(name, pods)]
        for delta in deltas:
            core.apply(delta)
        settle_memory()
        session = run_session(core)
        sessions.append(session)
        core.step(running(deltas, session), START + 100_010)
        changes.append(one_more_pod(core, name, _more(name, pods), START + 100_020))
        last = deltas, session
    plain, agreed = _plain(name, nodes, *last)
    return ClaimRun(
        scene=name,
        size=size,
        nodes=nodes,
        pods=pods,
        plain_seconds_per_pod=plain,
        agreed=agreed,
        claim_bytes=_memory(name, nodes, *last),
        change_cpu_seconds=statistics.median(changes),
        **session_medians(sessions),
    )


def claims_core(scene: str, nodes: int) -> Core:
    """A core that has run a session over the nodes of a scene, with the built-in scheduler-conf."""
    core = build_core()
    core.step([*present(scene, nodes)], START + 100)
    return core


def running(deltas: list[Delta], session: Session) -> list[Delta]:
    """The objects as the API shows them once the pods of a session run: claims first."""
    binds = {bind.uid: bind for bind in session.binds}
    replace = msgspec.structs.replace
    claims: list[Delta] = []
    pods: list[Delta] = []
    for delta in deltas:
        obj = getattr(delta, "object", None)
        if isinstance(obj, ResourceClaimObject):
            owner = obj.metadata.owner_references
            assert owner is not None
            if (bind := binds.get(owner[0].uid)) is not None:
                claims.append(ObjectChanged(written(obj, bind)))
        elif isinstance(obj, PodObject) and (bind := binds.get(obj.metadata.uid)) is not None:
            spec, statuses = replace(obj.spec, node_name=bind.node), obj.status.resource_claim_statuses
            status = PodStatus(phase="Running", resource_claim_statuses=statuses)
            pods.append(ObjectChanged(replace(obj, spec=spec, status=status)))
    return [*claims, *pods]


def _more(scene: str, pods: int) -> Iterator[list[Delta]]:
    """The objects of additional pods, of several templates."""
    for number in range(_MORE_PODS):
        yield [*arriving(scene, 1, pods + number * CLAIMED[scene], alone=True)]


# --- the plain loop --------------------------------------------------------------------------------------------------


class _PlainAllocator(Allocator):
    """The search alone: no bound before it, and a selector is evaluated for each device again."""

    def _check_free(self) -> None:
        pass

    def _matches(self, index: int, request: RequestPlan, device: PoolDevice) -> bool:  # noqa: ARG002
        value = device.content.value
        assert isinstance(value, dict)
        return all(selector.program.evaluate(value) for selector in request.selectors)


def _plain(scene: str, nodes: int, deltas: list[Delta], session: Session) -> tuple[float, int]:
    """CPU seconds per pod of a loop over all nodes, and how many pods it gives the devices that the engine gives."""
    inventory, names = DeviceInventory(), []
    for delta in present(scene, nodes):
        obj = getattr(delta, "object", None)
        if isinstance(obj, ResourceSliceObject):
            inventory.apply_slice(obj)
        elif isinstance(obj, DeviceClassObject):
            inventory.apply_class(obj)
        elif isinstance(obj, NodeObject):
            names.append(obj.metadata.name)
    ledger = DeviceLedger(inventory)
    objects = [delta.object for delta in deltas if isinstance(delta, ObjectChanged)]
    claims = {
        claim.key: claim for claim in map(claim_facts, (o for o in objects if isinstance(o, ResourceClaimObject)))
    }
    for name in names:
        inventory.pools(name, {})
    agreed, seconds = 0, 0.0
    for bind in session.binds[:PLAIN_PODS]:
        assert bind.claims
        claim = claims[f"{bind.namespace}/{bind.claims[0].claim}"]
        found, began = {}, time.process_time()
        for name in names:
            try:
                plan = plan_claim(claim, inventory.classes)
                found[name] = _PlainAllocator(inventory, ledger, name, {}).allocate([plan])[0]
            except NodeError:
                continue
        seconds += time.process_time() - began
        agreed += found.get(bind.node) == bind.claims[0].allocation
        ledger.apply(msgspec.structs.replace(claim, allocation=bind.claims[0].allocation))
    return seconds / PLAIN_PODS, agreed


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(scene: str, nodes: int, deltas: list[Delta], session: Session) -> float:
    """Bytes of resident memory per 10,000 allocated claims; their slices are there before."""
    claims = [
        delta.object
        for delta in running(deltas, session)
        if isinstance(delta, ObjectChanged) and isinstance(delta.object, ResourceClaimObject)
    ][:_MEMORY_CLAIMS]
    present_objects = [delta.object for delta in present(scene, nodes) if isinstance(delta, ObjectChanged)]
    frames = [Frame(type(each), msgspec.json.encode(each)) for each in (*present_objects, *claims)]
    return resident_growth(frames).bytes * 10_000 / len(claims)
