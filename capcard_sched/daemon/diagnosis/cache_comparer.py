"""Compares the scheduler's state in memory with the API server (SIGUSR2).

A second state is built from a fresh list of all objects. Assumed binds and evictions are carried over to it. The two
states are compared field by field, including every sum.

A list is newer than the watch: on a busy cluster compare twice and use `lasting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np

from capcard_sched.model.job import Job, Node, Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.task_class import TaskClass
from capcard_sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.storage import PersistentVolume, Storage

_Object: TypeAlias = Task | Job | Queue | Node
_Known = TypeVar("_Known", Task, Job, Queue, Node)

_LONGEST_SHOWN: Final = 120
_MOST_NAMES: Final = 5

# Fields compared directly: all but those with a comparison of their own below, and bookkeeping.
_TASK_FIELDS: Final = tuple(sorted(set(Task.__slots__) - {"cls", "held", "job", "name", "namespace", "node", "uid"}))
_CLASS_FIELDS: Final = tuple(sorted(set(TaskClass.__slots__) - {"charge", "fit_request", "id", "request"}))
_JOB_FIELDS: Final = tuple(
    sorted(
        set(Job.__slots__)
        - {"allocated", "counts", "key", "name", "namespace", "pending", "releasing", "roles", "tasks", "total_request"}
    )
)
#: Fields of a job without a PodGroup that no object has.
_OWN_FIELDS: Final = frozenset({"conditions", "phase", "status_counts"})
#: Fields compared of a job whose PodGroup is missing; the others may be left over from a deleted PodGroup.
_UNDESCRIBED_FIELDS: Final = ("implicit", "queue", "uid")
_QUEUE_FIELDS: Final = tuple(sorted(set(Queue.__slots__) - {"allocated", "jobs", "name", "releasing"}))
_NODE_FIELDS: Final = tuple(sorted(set(Node.__slots__) - {"generation", "name", "row", "tasks"}))
_NODE_AMOUNTS: Final = ("allocatable", "used", "releasing", "pipelined")
#: Fields of a pod that no tenant can edit.
_FIXED_BY_NODE: Final = frozenset({"name", "node", "status"})
_BOUND: Final = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})


class CacheDifference(msgspec.Struct, frozen=True, order=True):
    """One difference between memory and API server."""

    #: "Node", "Pod", "PodGroup" (also jobs without one), "Queue", another watched kind, or "Cluster".
    kind: str
    #: `namespace/name` or name; "" for the cluster.
    name: str
    #: The field; "" for the whole object, or if only one side has it.
    field: str
    cache: str
    api: str
    #: An assumed decision, not yet confirmed.
    expected: bool = False

    def render(self) -> str:
        """One line."""
        place = " ".join(filter(None, (self.kind, self.name)))
        note = " (expected: assumed)" if self.expected else ""
        return f"{place}: {self.field or 'object'}: cache {self.cache}, API {self.api}{note}"


def compare(state: ClusterState, deltas: Sequence[Delta]) -> list[CacheDifference]:
    """Differences between `state` and `deltas`, a list of all objects. Sorted.

    For the scheduler thread, between two steps; `rebuild` and `differences` are its two halves. Changes nothing.
    """
    return differences(state, rebuild(state, deltas))


def rebuild(state: ClusterState, deltas: Iterable[Delta]) -> ClusterState:
    """A state with the same settings from a list of all objects. For any thread."""
    fresh = ClusterState(state.scheduler_names, state.default_queue, state.term_limits)
    for delta in deltas:
        fresh.apply(delta)
    return fresh


def lasting(before: Iterable[CacheDifference], after: Iterable[CacheDifference]) -> list[CacheDifference]:
    """Unexpected differences found by both comparisons, which the watch will not resolve."""
    seen = set(before)
    return [difference for difference in after if difference in seen and not difference.expected]


def differences(state: ClusterState, fresh: ClusterState) -> list[CacheDifference]:
    """The second half of `compare`. Modifies `fresh`: assumed decisions of `state` are carried over to it."""
    found: list[CacheDifference] = []
    found.extend(_carry_over(state, fresh))
    found.extend(_compare_tasks(state, fresh))
    found.extend(_compare_jobs(state, fresh))
    found.extend(_compare_queues(state, fresh))
    found.extend(_compare_nodes(state, fresh))
    found.extend(_compare_maps("Namespace", state.namespaces, fresh.namespaces))
    found.extend(_compare_maps("Numatopology", state.numa, fresh.numa))
    found.extend(_compare_maps("ConfigMap", state.config_maps, fresh.config_maps))
    for kind, mine, theirs in (
        ("ResourceQuota", state.quotas, fresh.quotas),
        ("PodDisruptionBudget", state.budgets, fresh.budgets),
    ):
        found.extend(_compare_maps(kind, _by_key(mine), _by_key(theirs)))
    found.extend(_compare_maps("HyperNode", state.hyper_nodes, fresh.hyper_nodes))
    found.extend(_compare_storage(state.volumes, fresh.volumes))
    for name in ("total_allocatable", "total_used"):
        mine, theirs = getattr(state.nodes, name), getattr(fresh.nodes, name)
        found.extend(_amounts("Cluster", "", name, state, mine, fresh, theirs))
    for one in (state, fresh):
        one.refresh_tree()  # problems of HyperNodes depend on all HyperNodes and nodes
    problems = [
        {f"{ref.kind} {ref.namespace}/{ref.name}": text for ref, text in one.problems.items()} for one in (state, fresh)
    ]
    found.extend(_values("Cluster", "", "unreadable", *problems))
    ignored = _edited_accounts(state, fresh)
    return sorted(each for each in found if (each.kind, each.name) not in ignored or each.field in _FIXED_BY_NODE)


def _edited_accounts(state: ClusterState, fresh: ClusterState) -> set[tuple[str, str]]:
    """Kind and name of objects that differ because the state ignores an edit of a bound pod or its PodGroup."""
    jobs = {key for key, job in state.jobs.items() if job.bound and not job.uid}
    found: set[tuple[str, str]] = set()
    for ref in state.ignored_edits.details:
        key = f"{ref.namespace}/{ref.name}"
        found.add((ref.kind, key))
        if ref.kind == "PodGroup":
            jobs.add(key)
        else:
            tasks = (state.tasks.get(ref.uid), fresh.tasks.get(ref.uid))
            jobs.update(task.job.key for task in tasks if task is not None and task.job is not None)
    for key in jobs:
        found.add(("PodGroup", key))
        found.update(("Queue", one.jobs[key].queue) for one in (state, fresh) if key in one.jobs)
    return found


# --- assumed decisions ------------------------------------------------------------------------------------------------


def _carry_over(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    """Assume in `fresh` what `state` assumes, unless the API server contradicts it."""
    for task in state.tasks.values():
        other = fresh.tasks.get(task.uid)
        if other is None or task.node is None:
            continue
        listed = _status_text(other)
        if task.status is TaskStatus.BINDING:
            carried = _bind(fresh, other, task.node.name)
            if carried:
                other.device_notes = task.device_notes
        elif task.status is TaskStatus.RELEASING and not task.deleting and other.node is not None:
            carried = other.status in _BOUND and other.node.name == task.node.name
            if carried:
                fresh.release(other)
        else:
            continue
        if carried:
            yield CacheDifference("Pod", _name(task), "status", _status_text(task), listed, expected=True)
            # The watch delivers these together with the node.
            other.assigned_card, other.cooldown, other.bound = task.assigned_card, task.cooldown, task.bound


def _bind(fresh: ClusterState, task: Task, node_name: str) -> bool:
    """Assume a task on the node, whether the API server has it as pending or as bound there."""
    if task.status is not TaskStatus.PENDING and not (task.status in _BOUND and _node_name(task) == node_name):
        return False
    # As the state moves tasks: also to a node without a Node object.
    fresh._accounting.move(task, TaskStatus.BINDING, fresh.node_named(node_name))
    return True


# --- kinds ------------------------------------------------------------------------------------------------------------


def _compare_tasks(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    same_class: set[tuple[int, int]] = set()
    yield from _unshared("Pod", state.tasks, fresh.tasks)
    for mine, theirs in _shared(state.tasks, fresh.tasks):
        name = _name(mine)
        for label, one, other in (
            ("node", _node_name(mine), _node_name(theirs)),
            ("job", _job_key(mine), _job_key(theirs)),
            ("name", _name(mine), _name(theirs)),
        ):
            yield from _values("Pod", name, label, one, other)
        yield from _fields("Pod", name, _TASK_FIELDS, mine, theirs)
        pair = (mine.cls.id, theirs.cls.id)
        if pair not in same_class:
            unequal = list(_fields("Pod", name, _CLASS_FIELDS, mine.cls, theirs.cls))
            if not unequal:
                same_class.add(pair)
            yield from unequal


def _compare_jobs(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    yield from _unshared("PodGroup", state.jobs, fresh.jobs)
    for mine, theirs in _shared(state.jobs, fresh.jobs):
        name = mine.key
        fields = _JOB_FIELDS
        if not mine.uid and not theirs.uid:
            fields = _UNDESCRIBED_FIELDS
        elif mine.implicit and theirs.implicit:
            fields = tuple(field for field in fields if field not in _OWN_FIELDS)
        yield from _fields("PodGroup", name, fields, mine, theirs)
        yield from _sets("PodGroup", name, "tasks", mine.tasks.keys(), theirs.tasks.keys())
        held = {uid for uid, task in mine.tasks.items() if task.held}
        yield from _sets("PodGroup", name, "pending", mine.pending.keys(), theirs.pending.keys() - held)
        yield from _values("PodGroup", name, "counts", _counts(mine.counts), _counts(theirs.counts))
        if fields is not _UNDESCRIBED_FIELDS:
            yield from _values("PodGroup", name, "roles", _roles(mine), _roles(theirs))
        for field in ("allocated", "releasing", "total_request"):
            yield from _amounts("PodGroup", name, field, state, getattr(mine, field), fresh, getattr(theirs, field))
        for field in ("schedulable", "orphans"):
            yield from _values("PodGroup", name, field, name in getattr(state, field), name in getattr(fresh, field))


def _compare_queues(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    yield from _unshared("Queue", state.queues, fresh.queues)
    for mine, theirs in _shared(state.queues, fresh.queues):
        name = mine.name
        yield from _fields("Queue", name, _QUEUE_FIELDS, mine, theirs)
        yield from _sets("Queue", name, "jobs", mine.jobs.keys(), theirs.jobs.keys())
        for field in ("allocated", "releasing"):
            yield from _amounts("Queue", name, field, state, getattr(mine, field), fresh, getattr(theirs, field))


def _compare_nodes(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    yield from _unshared("Node", state.nodes.by_name, fresh.nodes.by_name)
    common = []
    for mine, theirs in _shared(state.nodes.by_name, fresh.nodes.by_name):
        name = mine.name
        common.append((name, mine.row, theirs.row))
        yield from _fields("Node", name, _NODE_FIELDS, mine, theirs)
        yield from _sets("Node", name, "tasks", mine.tasks.keys(), theirs.tasks.keys())
    if not common:
        return
    names, rows, other_rows = zip(*common, strict=True)
    resources = sorted(set(state.columns) | set(fresh.columns))
    for field in _NODE_AMOUNTS:
        ours = _gather(state, getattr(state.nodes, field), rows, resources)
        others = _gather(fresh, getattr(fresh.nodes, field), other_rows, resources)
        for index in np.flatnonzero((ours != others).any(axis=1)).tolist():
            one, other = (_named(matrix[index], resources) for matrix in (ours, others))
            yield from _values("Node", names[index], field, one, other)
    ours, others = state.nodes.nonzero_used[list(rows)], fresh.nodes.nonzero_used[list(other_rows)]
    for index in np.flatnonzero((ours != others).any(axis=1)).tolist():
        yield from _values("Node", names[index], "nonzero_used", ours[index].tolist(), others[index].tolist())


def _gather(state: ClusterState, matrix: Matrix, rows: Sequence[int], resources: Sequence[str]) -> Matrix:
    """The rows of a matrix, its columns in the order of `resources`: int64 [rows, resources]."""
    gathered = np.zeros((len(rows), len(resources)), dtype=np.int64)
    for index, resource in enumerate(resources):
        column = state.columns.find(resource)
        if column is not None and column < matrix.shape[1]:
            gathered[:, index] = matrix[list(rows), column]
    return gathered


def _named(vector: Vector, resources: Sequence[str]) -> dict[str, int]:
    return {resource: int(amount) for resource, amount in zip(resources, vector, strict=True) if amount}


def _compare_storage(mine: Storage, theirs: Storage) -> Iterator[CacheDifference]:
    """Storage objects. Assumed claims have no counterpart: they end with their bind."""
    yield from _compare_maps("PersistentVolumeClaim", mine.claims, theirs.claims)
    yield from _compare_maps("PersistentVolume", _unversioned(mine), _unversioned(theirs))
    yield from _compare_maps("StorageClass", mine.classes, theirs.classes)
    yield from _compare_maps("CSINode", mine.limits, theirs.limits)
    yield from _compare_maps("CSINode", mine.migrated, theirs.migrated)
    yield from _compare_maps("CSIStorageCapacity", _joined(mine.capacities), _joined(theirs.capacities))
    yield from _compare_maps("VolumeAttachment", mine.attachments, theirs.attachments)
    yield from _sets("Cluster", "", "tracked_drivers", mine.tracked_drivers, theirs.tracked_drivers)
    for field in ("reserved", "volumes_of_class"):
        ours, others = ({key: sorted(names) for key, names in getattr(one, field).items()} for one in (mine, theirs))
        yield from _values("Cluster", "", field, ours, others)


def _unversioned(storage: Storage) -> dict[str, PersistentVolume]:
    """Volumes without their versions, which count updates seen."""
    return {name: msgspec.structs.replace(volume, version=0) for name, volume in storage.volumes.items()}


def _joined(named: Mapping[tuple[str, str], object]) -> dict[str, object]:
    return {"/".join(key): value for key, value in named.items()}


def _by_key(table: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    return {f"{namespace}/{name}": found for namespace, named in table.items() for name, found in named.items()}


def _compare_maps(kind: str, mine: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[CacheDifference]:
    """Objects compared as a whole."""
    for name in mine.keys() | theirs.keys():
        yield from _values(kind, name, "", mine.get(name), theirs.get(name))


# --- pieces -----------------------------------------------------------------------------------------------------------


def _unshared(kind: str, mine: Mapping[str, _Object], theirs: Mapping[str, _Object]) -> Iterator[CacheDifference]:
    """Objects that only one side has."""
    for key in mine.keys() - theirs.keys():
        yield CacheDifference(kind, _title(mine[key]), "", _summary(mine[key]), "none")
    for key in theirs.keys() - mine.keys():
        yield CacheDifference(kind, _title(theirs[key]), "", "none", _summary(theirs[key]))


def _shared(mine: Mapping[str, _Known], theirs: Mapping[str, _Known]) -> Iterator[tuple[_Known, _Known]]:
    for key, one in mine.items():
        other = theirs.get(key)
        if other is not None:
            yield one, other


def _fields(kind: str, name: str, fields: Iterable[str], mine: Any, theirs: Any) -> Iterator[CacheDifference]:
    for field in fields:
        one, other = getattr(mine, field), getattr(theirs, field)
        if one != other:
            yield CacheDifference(kind, name, field, _shown(one), _shown(other))


def _values(kind: str, name: str, field: str, mine: object, theirs: object) -> Iterator[CacheDifference]:
    if mine != theirs:
        yield CacheDifference(kind, name, field, _shown(mine), _shown(theirs))


def _sets(
    kind: str, name: str, field: str, mine: AbstractSet[str], theirs: AbstractSet[str]
) -> Iterator[CacheDifference]:
    if mine != theirs:
        yield CacheDifference(kind, name, field, f"also {_some(mine - theirs)}", f"also {_some(theirs - mine)}")


def _amounts(
    kind: str, name: str, field: str, state: ClusterState, mine: Vector, fresh: ClusterState, theirs: Vector
) -> Iterator[CacheDifference]:
    yield from _values(kind, name, field, state.columns.amounts(mine), fresh.columns.amounts(theirs))


def _counts(counts: Sequence[int]) -> dict[str, int]:
    return {TaskStatus(status).title: count for status, count in enumerate(counts) if count}


def _roles(job: Job) -> dict[str, list[int]]:
    return {role: counts for role, counts in sorted(job.roles.items()) if any(counts)}


def _name(task: Task) -> str:
    return f"{task.namespace}/{task.name}"


def _node_name(task: Task) -> str:
    return task.node.name if task.node is not None else ""


def _job_key(task: Task) -> str:
    return task.job.key if task.job is not None else ""


def _status_text(task: Task) -> str:
    return " on ".join(filter(None, (task.status.title, _node_name(task))))


def _title(thing: _Object) -> str:
    if isinstance(thing, Task):
        return _name(thing)
    return thing.key if isinstance(thing, Job) else thing.name


def _summary(thing: _Object) -> str:
    status = f"{_status_text(thing)}, " if isinstance(thing, Task) else ""
    return f"{status}uid {thing.uid or 'unknown'}"


def _some(names: AbstractSet[str]) -> str:
    listed = sorted(names)
    rest = len(listed) - _MOST_NAMES
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "") if listed else "nothing"


def _shown(value: object) -> str:
    text = value.title if isinstance(value, TaskStatus) else str(value)
    text = "none" if text in ("", "None") else text
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
