"""Which devices of ResourceSlices keep the claims of a pod from an allocation: the filter's reason names none."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from capcard_sched.devices.capacities import quantity_text
from capcard_sched.devices.ledger import is_of_one_node
from capcard_sched.framework.explain.capacity import workload_name
from capcard_sched.framework.explain.sentences import form, hint
from capcard_sched.framework.toolkit.device_cards import claim_of, may_match, plan_of
from capcard_sched.model.quoting import brief, escaped, plural
from capcard_sched.model.selectors import untolerated_taint
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.devices.claims import RequestPlan
    from capcard_sched.devices.inventory import DeviceId, DevicePool, PoolDevice
    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.model.device_objects import AllocatedDevice
    from capcard_sched.model.job import Job, Node, Task

#: The beginning of the reason of the filter.
CANNOT_ALLOCATE: Final = "cannot allocate all claims"
_NO_CLASS: Final = re.compile(r"device class (\S+) does not exist")
#: Nodes whose devices are read.
_MOST_NODES: Final = 8
#: Sentences about pods that wait for devices of their own.
_MOST_SENTENCES: Final = 3


def missing_claims(snapshot: Snapshot, task: Task) -> str:
    """`ResourceClaimTemplate t does not exist; did you mean tt?` of a pod without its claims; "" for none."""
    found = []
    for each in task.cls.claims:
        kind, name, known = "ResourceClaimTemplate", each.template, snapshot.claim_templates.keys()
        if each.claim:
            kind, name, known = "ResourceClaim", each.claim, snapshot.claims.claims.keys()
        if name and f"{task.namespace}/{name}" not in known:
            here = [key.partition("/")[2] for key in known if key.startswith(f"{task.namespace}/")]
            found.append(f"{kind} {escaped(name)} does not exist{hint(name, here)}")
    return "; ".join(dict.fromkeys(found))


def class_hint(snapshot: Snapshot, text: str) -> str:
    """`; did you mean gpu.nvidia.com?` after a text about a DeviceClass that does not exist; "" without one."""
    found = _NO_CLASS.search(text)
    return hint(found[1], snapshot.devices.classes) if found is not None else ""


def allocated_claims(snapshot: Snapshot, task: Task) -> str:
    """`ResourceClaim c is allocated on n2 (in use by default/pod/a)`: the claims of a pod that one node has."""
    found = []
    for name in filter(None, (each.claim for each in task.cls.claims)):
        key = f"{task.namespace}/{name}"
        allocation = snapshot.claims.allocation(key)
        if allocation is None or not is_of_one_node(allocation):
            continue
        selector = allocation.node_selector
        fields = (selector.node_selector_terms or ())[0].match_fields if selector is not None else ()
        node = next((value for each in fields or () for value in each.values or ()), "")
        tasks = snapshot.tasks_by_uid
        users = [tasks[uid] for uid in sorted(snapshot.claims.consumers(key)) if uid in tasks and uid != task.uid]
        by = f" (in use by {brief(sorted({workload_name(one) for one in users}))})" if users else ""
        found.append(f"ResourceClaim {escaped(name)} is allocated on {node}{by}")
    return " and ".join(found)


def awaited_conditions(snapshot: Snapshot, tasks: Iterable[Task]) -> list[str]:
    """`pod a is bound to n1 once device gpu.nvidia.com/n1/g0 has condition ready`, of the first pods, and their number.

    O(pods and claims that are being prepared).
    """
    ledger, devices = snapshot.claims, dict[str, list[str]]()
    binding = {task.uid: task for task in tasks if task.status is TaskStatus.BINDING and task.node is not None}
    for key in sorted(ledger.prepared | ledger.assumed.keys()) if binding else ():
        allocation = ledger.allocation(key)
        results = allocation.devices.results or () if allocation is not None else ()
        waiting = [_awaited(one) for one in results if one.binding_conditions]
        for uid in ledger.consumers(key) if waiting else ():
            if uid in binding:
                devices.setdefault(uid, []).extend(waiting)
    texts = [
        f"pod {task.name} is bound to {task.node.name} once {brief(devices[uid])}"
        for uid, task in binding.items()
        if uid in devices and task.node is not None
    ]
    others = len(texts) - _MOST_SENTENCES
    return texts if others <= 0 else [*texts[:_MOST_SENTENCES], f"{plural(others, 'other pod')} wait for their devices"]


def _awaited(device: AllocatedDevice) -> str:
    conditions = device.binding_conditions or ()
    word = form(len(conditions), "condition", "conditions")
    return f"device {device.driver}/{device.pool}/{device.device} has {word} {' and '.join(conditions)}"


def awaits_slices(snapshot: Snapshot, task: Task) -> bool:
    """Whether ResourceSlices are missing of a pool of some node, for a pod with claims: its driver publishes them."""
    if not task.cls.claims:
        return False
    nodes = snapshot.nodes.by_name.values()
    return any(pool.incomplete for node in nodes for pool in snapshot.devices.pools(node.name, node.labels))


def devices_of(snapshot: Snapshot, task: Task, nodes: Iterable[Node]) -> str:
    """What excludes the devices of some nodes for the claims of a pod: "" without a cause other than their number."""
    requests = _requests(snapshot, task)
    pools: dict[str, DevicePool] = {}
    for node in list(nodes)[:_MOST_NODES]:
        pools.update((pool.name, pool) for pool in snapshot.devices.pools(node.name, node.labels))
    causes = list(_unusable(snapshot, pools.values()))
    devices = [device for pool in pools.values() for device in pool.devices]
    matching = [device for device in devices if any(may_match(request, device) for request in requests)]
    if not pools:
        causes.append("its nodes have no ResourceSlices")
    elif devices and not matching and requests:
        causes.append(f"no device of {len(devices)} matches the class and the selectors")
    causes += _tainted(requests, matching)
    causes += _in_use(snapshot, task, matching)
    causes += _counted(snapshot, task, pools.values(), matching)
    return "; ".join(causes)


def _requests(snapshot: Snapshot, task: Task) -> list[RequestPlan]:
    """The requests of the claims that are not allocated, with their alternatives."""
    found: list[RequestPlan] = []
    for each in task.cls.claims:
        claim = claim_of(task.namespace, each, snapshot.claims.claims, snapshot.claim_templates)
        plan = plan_of(claim, snapshot.devices)
        found += [one for alternatives in plan.requests for one in alternatives] if plan is not None else []
    return found


def _unusable(snapshot: Snapshot, pools: Iterable[DevicePool]) -> Iterator[str]:
    for pool in pools:
        if pool.incomplete:
            slices = snapshot.devices.slices_of(pool.id)
            newest = max(each.spec.pool.generation for each in slices)
            count = [each.spec.pool.resource_slice_count for each in slices if each.spec.pool.generation == newest]
            yield f"resource pool {pool.name} is incomplete: {len(count)} of {count[0]} ResourceSlices exist"
        elif pool.invalid:
            yield f"resource pool {pool.name} is invalid: {pool.invalid}"


def _tainted(requests: Iterable[RequestPlan], devices: Iterable[PoolDevice]) -> list[str]:
    taints: Counter[str] = Counter()
    for device in devices:
        found = [untolerated_taint(device.taints, one.tolerations) for one in requests if may_match(one, device)]
        if found and all(found) and found[0] is not None:
            taints[found[0].text] += 1
    return [
        f"{plural(count, 'device')} {'has' if count == 1 else 'have'} taint {text}" for text, count in taints.items()
    ]


def _in_use(snapshot: Snapshot, task: Task, devices: Iterable[PoolDevice]) -> list[str]:
    """`8 devices are in use by default/job/a (8)`."""
    holders = _holders(snapshot, task.job)
    used = Counter(holders[device.id] for device in devices if device.id in holders)
    total = sum(used.values())
    by = brief([f"{name} ({count})" for name, count in used.most_common()])
    return [f"{plural(total, 'device')} {'is' if total == 1 else 'are'} in use by {by}"] if total else []


def _counted(
    snapshot: Snapshot, task: Task, pools: Iterable[DevicePool], devices: Iterable[PoolDevice]
) -> Iterator[str]:
    """`1 device needs more memory of counter set g than the 123Gi of 141Gi left beside default/pod/a (1)`."""
    holders = _holders(snapshot, task.job)
    free = [device for device in devices if device.id not in holders and device.counters]
    for pool in pools:
        users = [(holders[one.id], one) for one in map(snapshot.devices.device, holders)
                 if one is not None and one.counters and one.id[:2] == pool.id]  # fmt: skip
        for key, total in pool.counters.items():
            own = [(holder, one.counters[key]) for holder, one in users if key in one.counters]
            left = total - sum(amount for _, amount in own)
            short = [one for one in free if one.id[:2] == pool.id and one.counters.get(key, 0) > left]
            if short and own:
                number = f"{plural(len(short), 'device')} {'needs' if len(short) == 1 else 'need'}"
                used = Counter(holder for holder, _ in own)
                by = brief([f"{name} ({count})" for name, count in used.most_common()])
                amounts = f"the {quantity_text(left)} of {quantity_text(total)} left beside {by}"
                yield f"{number} more {key[1]} of counter set {key[0]} than {amounts}"


def _holders(snapshot: Snapshot, own: Job | None) -> Mapping[DeviceId, str]:
    """Allocated device to the workload of the first consumer of its claim, else the claim. O(allocated devices).

    `own`: the job of the attempt, whose placed pods have devices, too.
    """
    found: dict[DeviceId, str] = {}
    ledger, tasks = snapshot.claims, snapshot.tasks_by_uid
    for key in ledger.claims:
        allocation = ledger.allocation(key)
        if allocation is None:
            continue
        task = next((tasks[uid] for uid in sorted(ledger.consumers(key)) if uid in tasks), None)
        namespace, _, name = key.partition("/")
        holder = workload_name(task) if task is not None else f"{namespace}/resourceclaim/{name}"
        if task is not None and task.job is own and not task.bound:
            holder = "other pods of the job"
        for one in allocation.devices.results or ():
            found[one.driver, one.pool, one.device] = holder
    return found
