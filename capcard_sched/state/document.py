"""The state as one document: kind to object to field to value.

Dumps print it, the cache comparer compares two of them, and tests compare it with sums counted anew. Amounts are in
base units by resource name, lists of names are sorted; fields are named as in the state, and bookkeeping is left out.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.job import Job, Node, Task, unoffered_amounts
from capcard_sched.model.numa import format_cpus
from capcard_sched.model.queue import Queue
from capcard_sched.model.status import ALLOCATED_STATUSES, BOUND_STATUSES, PLACED_STATUSES, TaskStatus
from capcard_sched.model.task_class import TaskClass

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from capcard_sched.model.groups import SubGroups
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.numa import NumaFacts
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.storage import VolumeClaim
    from capcard_sched.state.cluster import ClusterState

Row: TypeAlias = dict[str, Any]
#: Kind to object to its fields. Pods are named by uid, other objects by `namespace/name` or name.
Document: TypeAlias = dict[str, dict[str, Row]]

#: Fields with texts of tenants, which a dump leaves out.
TENANT_TEXTS: Final = frozenset(
    {
        "affinity", "annotations", "data", "device_notes", "images", "labels", "members", "node_selector", "selector",
        "spread", "tolerations", "topologies", "topology_selector",
    }
)  # fmt: skip

#: Of tasks that hold their node and are not allocated any more.
_LEAVING: Final = BOUND_STATUSES - ALLOCATED_STATUSES

_Objects: TypeAlias = "Callable[[ClusterState], Mapping[str, Any]]"


class DocumentTable(NamedTuple):
    """One kind of the document."""

    #: The objects of a state by name.
    objects: _Objects
    #: The fields of one of them.
    row: Callable[[ClusterState, str, Any], Row]


def to_document(state: ClusterState) -> Document:
    """The whole state, in order of names. O(objects)."""
    found: Document = {}
    for kind, table in TABLES.items():
        objects = table.objects(state)
        found[kind] = {name: table.row(state, name, objects[name]) for name in sorted(objects)}
    return found


def by_object(texts: Mapping[ObjectRef, str]) -> dict[str, str]:
    """The texts by the kind and name of their object."""
    return {
        f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}": text
        for ref, text in sorted(texts.items())
    }


def _getter(owner: type, *computed: str) -> tuple[tuple[str, ...], Callable[[Any], tuple[object, ...]]]:
    """The fields of a class without those that its row computes, and their getter."""
    present = {name for base in owner.__mro__ for name in getattr(base, "__slots__", ())}
    fields = tuple(sorted(present - set(computed)))
    return fields, attrgetter(*fields)


_TASK_FIELDS, _TASK = _getter(Task, "cls", "job", "name", "node", "status")
_CLASS_FIELDS, _CLASS = _getter(
    TaskClass, "_multiples", "alike", "charge", "claims", "fit_request", "id", "request", "unoffered", "unplaced"
)
# A fresh state has `node_limit` only from its first session on.
_JOB_FIELDS, _JOB = _getter(
    Job, "allocated", "counts", "gated", "groups", "key", "name", "namespace", "node_limit", "pending", "phase",
    "releasing", "roles", "tasks", "total_request", "was_whole",
)  # fmt: skip
# `blocked` follows from the other queues: a fresh state has it only from its first session on.
_QUEUE_FIELDS, _QUEUE = _getter(Queue, "allocated", "blocked", "jobs", "name", "releasing")
_NODE_FIELDS, _NODE = _getter(Node, "allocatable", "generation", "name", "row", "tasks", "undecodable_pods")


def _pod(_: ClusterState, __: str, task: Task) -> Row:
    return {
        "name": task.key,
        "status": task.status.title,
        "node": task.node.name if task.node is not None else "",
        "job": task.job.key if task.job is not None else "",
        **dict(zip(_TASK_FIELDS, _TASK(task), strict=True)),
        **dict(zip(_CLASS_FIELDS, _CLASS(task.cls), strict=True)),
        "annotations": task.cls.annotations,
        **({"claims": [each.claim or each.name for each in task.cls.claims]} if task.cls.claims else {}),
    }


def _amounts(state: ClusterState, vector: Vector, tasks: Iterable[Task]) -> dict[str, int]:
    """A sum over tasks by name, with the resources that have no column."""
    found = state.columns.amounts(vector)
    return {**found, **dict(sorted(unoffered_amounts(tasks).items()))} if state.classes.has_unoffered else found


def _placed_on(tasks: Iterable[Task], statuses: Container[TaskStatus]) -> Iterator[Task]:
    return (task for task in tasks if task.node is not None and task.status in statuses)


def _allocated(tasks: Iterable[Task]) -> Iterator[Task]:
    return (task for task in tasks if task.status in ALLOCATED_STATUSES)


def _job(state: ClusterState, key: str, job: Job) -> Row:
    members = job.tasks.values()
    return {
        **dict(zip(_JOB_FIELDS, _JOB(job), strict=True)),
        "phase": job.phase.value,
        "schedulable": key in state.schedulable,
        "orphan": key in state.orphans,
        "without_group": key in state.groups_missing,
        "counts": {TaskStatus(status).title: count for status, count in enumerate(job.counts) if count},
        "roles": {role: list(counts) for role, counts in sorted(job.roles.items()) if any(counts)},
        **({} if job.groups is None else {"subgroups": _subgroups(job.groups)}),
        "allocated": _amounts(state, job.allocated, _allocated(members)),
        "releasing": _amounts(state, job.releasing, _placed_on(members, _LEAVING)),
        "total_request": _amounts(state, job.total_request, members),
        "tasks": sorted(job.tasks),
        "pending": sorted(job.pending),
        "gated": sorted(job.gated),
    }


def _subgroups(groups: SubGroups) -> Row:
    """The counters of each subgroup, by the name of its policy and the values of its labels."""
    return {
        "/".join((groups.policies[group.policy].name, *group.values)): list(counts)
        for group, counts in sorted(groups.counts.items())
    }


def _tasks_of(queue: Queue) -> Iterator[Task]:
    return chain.from_iterable(job.tasks.values() for job in queue.jobs.values())


def _queue(state: ClusterState, _: str, queue: Queue) -> Row:
    return {
        **dict(zip(_QUEUE_FIELDS, _QUEUE(queue), strict=True)),
        "allocated": _amounts(state, queue.allocated, _allocated(_tasks_of(queue))),
        "releasing": _amounts(state, queue.releasing, _placed_on(_tasks_of(queue), _LEAVING)),
        "jobs": sorted(queue.jobs),
    }


def _node(state: ClusterState, _: str, node: Node) -> Row:
    table, row, tasks = state.nodes, node.row, node.tasks.values()
    return {
        **dict(zip(_NODE_FIELDS, _NODE(node), strict=True)),
        "allocatable": state.columns.amounts(table.allocatable[row]),
        "used": _amounts(state, table.used[row], _placed_on(tasks, PLACED_STATUSES)),
        "releasing": _amounts(state, table.releasing[row], _placed_on(tasks, {TaskStatus.RELEASING})),
        "pipelined": _amounts(state, table.pipelined[row], _placed_on(tasks, {TaskStatus.PIPELINED})),
        "nonzero_used": table.nonzero_used[row].tolist(),
        "tasks": sorted(node.tasks),
        "undecodable_pods": sorted(node.undecodable_pods),
    }


def _hyper_nodes(state: ClusterState) -> Mapping[str, Row]:
    tree = state.tree
    nodes: dict[int, list[str]] = {}
    for node, number in sorted(tree.leaf_of.items()):
        nodes.setdefault(number, []).append(node)
    found = {}
    for name, known in state.hyper_nodes.items():
        number = tree.numbers.get(name, -1)
        above = tree.parents[number] if number >= 0 else -1
        found[name] = {
            **_fields(state, name, known),
            "above": tree.names[above] if above >= 0 else "",
            #: Those of no HyperNode below.
            "nodes": nodes.get(number, []),
        }
    return found


def _numa(_: ClusterState, __: str, facts: NumaFacts) -> Row:
    topology = facts.topology
    return {
        "cpu_policy": facts.cpu_policy,
        "topology_policy": facts.topology_policy,
        "numa_nodes": {
            str(number): format_cpus(cpus) for number, cpus in zip(topology.numa_ids, topology.numa_nodes, strict=True)
        },
        "sockets": [format_cpus(cpus) for cpus in topology.sockets],
        "cores": [(socket, format_cpus(cpus)) for socket, cpus in topology.cores],
        "reserved": facts.reserved,
        "free": None if facts.free is None else format_cpus(facts.free),
        "pods": sorted(facts.pods),
    }


def _claim(state: ClusterState, key: str, claim: VolumeClaim) -> Row:
    return {**_fields(state, key, claim), "access_modes": sorted(claim.access_modes)}


def _volume(state: ClusterState, name: str, volume: Any) -> Row:
    found = _fields(state, name, volume)
    del found["version"]  # counts the updates seen
    return {**found, "access_modes": sorted(volume.access_modes)}


def _resource_claim(state: ClusterState, key: str, _: object) -> Row:
    allocation = state.claims.allocation(key)
    assumed = state.claims.assumed.get(key)
    results = allocation.devices.results or () if allocation is not None else ()
    return {
        "devices": [f"{each.driver}/{each.pool}/{each.device}" for each in results],
        "consumers": sorted(state.claims.consumers(key)),
        "assumed": sorted(assumed.consumers) if assumed is not None else [],
    }


def _cluster(state: ClusterState, _: str, __: object) -> Row:
    storage = state.volumes
    used = chain.from_iterable(node.tasks.values() for node in state.nodes.nodes)
    return {
        "total_allocatable": state.columns.amounts(state.nodes.total_allocatable),
        "total_used": _amounts(state, state.nodes.total_used, _placed_on(used, PLACED_STATUSES)),
        "tracked_drivers": sorted(storage.tracked_drivers),
        "required_drivers": sorted(storage.required_drivers),
        "reserved": {key: sorted(names) for key, names in sorted(storage.reserved.items())},
        "volumes_of_class": {name: sorted(volumes) for name, volumes in sorted(storage.volumes_of_class.items())},
        "unreadable": by_object(state.problems),
    }


def _fields(_: ClusterState, __: str, found: Any) -> Row:
    """The fields of a frozen struct, without those of its name."""
    return {field: getattr(found, field) for field in found.__struct_fields__ if field not in ("name", "namespace")}


def _as_it_is(_: ClusterState, __: str, row: Row) -> Row:
    return row


def _table(attribute: str) -> _Objects:
    return attrgetter(attribute)


def _keyed(named: Mapping[str, Mapping[str, object]]) -> Mapping[str, object]:
    return {f"{namespace}/{name}": found for namespace, names in named.items() for name, found in names.items()}


def _csi_nodes(state: ClusterState) -> Mapping[str, Row]:
    storage = state.volumes
    names: Iterable[str] = chain(storage.limits, storage.migrated, storage.drivers)
    return {
        name: {
            "limits": storage.limits.get(name, {}),
            "migrated": sorted(storage.migrated.get(name, ())),
            "drivers": sorted(storage.drivers.get(name, ())),
        }
        for name in names
    }


#: Every kind, in the order of a dump.
TABLES: Final[Mapping[str, DocumentTable]] = {
    "Cluster": DocumentTable(lambda _: {"": None}, _cluster),
    "Queue": DocumentTable(_table("queues"), _queue),
    "DeletedQueue": DocumentTable(_table("deleted_queues"), _queue),
    "PodGroup": DocumentTable(_table("jobs"), _job),
    "Pod": DocumentTable(_table("tasks"), _pod),
    "Node": DocumentTable(_table("nodes.by_name"), _node),
    "HyperNode": DocumentTable(_hyper_nodes, _as_it_is),
    "NodeUsage": DocumentTable(_table("usage"), _fields),
    "Numatopology": DocumentTable(_table("numa"), _numa),
    "ConfigMap": DocumentTable(_table("config_maps"), lambda _, __, data: {"keys": sorted(data), "data": data}),
    "PriorityClass": DocumentTable(
        _table("priority_classes"), lambda _, __, found: {"value": found[0], "is_default": found[1]}
    ),
    "Namespace": DocumentTable(_table("namespaces"), lambda _, __, labels: {"labels": labels}),
    "CardBudget": DocumentTable(_table("card_budgets"), _fields),
    "ProvisioningRequest": DocumentTable(_table("provisioning.by_name"), _fields),
    "ResourceQuota": DocumentTable(lambda state: _keyed(state.quotas), _fields),
    "PodDisruptionBudget": DocumentTable(
        lambda state: _keyed(state.budgets),
        lambda state, name, found: {**_fields(state, name, found), "disrupted": sorted(found.disrupted)},
    ),
    "DeviceClass": DocumentTable(_table("device_classes"), lambda _, __, name: {"name": name}),
    "ResourceSlice": DocumentTable(
        _table("devices.slices"),
        lambda _, __, found: {
            "driver": found.spec.driver,
            "pool": found.spec.pool.name,
            "node": found.node,
            "devices": [device.spec.name for device in found.devices],
            "problem": found.problem,
        },
    ),
    "ResourceClaim": DocumentTable(_table("claims.claims"), _resource_claim),
    "ResourceClaimTemplate": DocumentTable(_table("claim_templates"), _fields),
    "StorageClass": DocumentTable(_table("volumes.classes"), _fields),
    "PersistentVolumeClaim": DocumentTable(_table("volumes.claims"), _claim),
    "PersistentVolume": DocumentTable(_table("volumes.volumes"), _volume),
    "AssumedClaim": DocumentTable(
        _table("volumes.assumed"),
        lambda _, __, found: {**found.decision._asdict(), "pods": sorted(found.holders)},
    ),
    "CSINode": DocumentTable(_csi_nodes, _as_it_is),
    "CSIStorageCapacity": DocumentTable(
        lambda state: {"/".join(key): found for key, found in state.volumes.capacities.items()},
        lambda _, __, found: {
            "class_name": found.class_name,
            "topology_selector": found.topology,
            "largest": found.largest,
            "left": found.left,
        },
    ),
    "VolumeAttachment": DocumentTable(
        lambda state: {
            f"{node}/{name}": (node, volume)
            for node, named in state.volumes.attachments.items()
            for name, volume in named.items()
        },
        lambda _, __, found: {"node": found[0], "volume": found[1]},
    ),
}
