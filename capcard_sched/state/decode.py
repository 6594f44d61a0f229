"""Converts API objects to the facts the state keeps: applies defaults, parses quantities, lists problems."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.annotations import OVERSUBSCRIPTION_CPU, OVERSUBSCRIPTION_MEMORY
from capcard_sched.model.group_affinity import group_terms
from capcard_sched.model.groups import group_policies
from capcard_sched.model.hyper_nodes import network_topology
from capcard_sched.model.job import NO_ENTRIES, shared_counts
from capcard_sched.model.kinds import BATCH_API
from capcard_sched.model.limits import quota_amounts
from capcard_sched.model.ownership import controller_of_meta
from capcard_sched.model.quantity import MAX_AMOUNT, QuantityError, base_amount
from capcard_sched.model.reasons import GANG_WAS_WHOLE, HALF_GANG
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.group_affinity import GroupTerm
    from capcard_sched.model.groups import GroupPolicy
    from capcard_sched.model.hyper_nodes import NetworkTopology
    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import (
        NodeObject,
        PodGroupCondition,
        PodGroupObject,
        QueueObject,
        RawAmounts,
        RawQuantity,
    )

#: Resources of one node that are offered: native ones first, then others in order of name.
MOST_RESOURCES: Final = 128
_TRAVERSE, _IN_TURN = "traverse", "fifo"
_AMOUNT = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?")

#: Fields of a node, a queue or a task, by name.
Facts: TypeAlias = dict[str, Any]


def differs(known: object, facts: Facts) -> bool:
    """Whether a node, queue or task has other facts than these."""
    return any(getattr(known, name) != value for name, value in facts.items())


def assign(known: object, facts: Facts) -> None:
    for name, value in facts.items():
        setattr(known, name, value)


def parse_amounts(raw: RawAmounts | None, field: str, problems: list[str], *, bad: int | None = 0) -> dict[str, int]:
    """Amounts in base units of the resources that are scheduled.

    An unparseable or negative quantity becomes `bad` (None: the key is omitted) and adds a line to `problems`.
    """
    amounts: dict[str, int] = {}
    for name, value in (raw or {}).items():
        try:
            amount = base_amount(name, value)
            if amount is not None and amount < 0:
                raise QuantityError(f"{value!r} is negative")
        except QuantityError as error:
            problems.append(f"{field}[{name}]: {error}")
            if bad is not None:
                amounts[name] = bad
            continue
        if amount is not None:
            amounts[name] = amount
    return amounts


# Computed 1.2 us, kept 0.09 (benchmarks/caches.py).
@lru_cache(maxsize=1024)
def _valid_amounts(raw: tuple[tuple[str, RawQuantity], ...]) -> Mapping[str, int] | None:
    """The amounts of valid quantities, else None. Nodes of one model share them."""
    problems: list[str] = []
    amounts = parse_amounts(dict(raw), "", problems)
    return None if problems else amounts


def _node_amounts(raw: RawAmounts | None, field: str, problems: list[str]) -> Mapping[str, int]:
    """The amounts of a node. Invalid ones are not offered, nor more than `MOST_RESOURCES`: each has a column."""
    if raw and len(raw) > MOST_RESOURCES:
        kept = sorted(raw, key=lambda name: ("/" in name, name))[:MOST_RESOURCES]
        problems.append(f"{field}: {len(raw):,} resources: {MOST_RESOURCES} of them are offered, up to {kept[-1]}")
        raw = {name: raw[name] for name in kept}
    found = _valid_amounts(tuple(raw.items()) if raw else ())
    return parse_amounts(raw, field, problems, bad=None) if found is None else found


def node_facts(obj: NodeObject) -> tuple[Facts, str]:
    """The facts of a Node, and the problems of its fields ("" for none). Invalid amounts count as not offered."""
    problems: list[str] = []
    allocatable = _node_amounts(obj.status.allocatable, "status.allocatable", problems)
    capacity = _node_amounts(obj.status.capacity, "status.capacity", problems)
    for resource, key in ((CPU, OVERSUBSCRIPTION_CPU), (MEMORY, OVERSUBSCRIPTION_MEMORY)):
        more = _oversubscribed(obj.metadata.annotations or {}, key, problems)
        if more:
            allocatable, capacity = (
                {**amounts, resource: min(amounts.get(resource, 0) + more, MAX_AMOUNT)}
                for amounts in (allocatable, capacity)
            )
    images = {
        name: min(max(image.size_bytes, 0), MAX_AMOUNT)
        for image in obj.status.images or ()
        for name in image.names or ()
    }
    facts: Facts = {
        "uid": obj.metadata.uid,
        "labels": obj.metadata.labels or {},
        "annotations": obj.metadata.annotations or {},
        "allocatable": allocatable,
        "capacity": capacity,
        "taints": tuple(obj.spec.taints or ()),
        "unschedulable": bool(obj.spec.unschedulable),
        "images": images,
        "features": frozenset(obj.status.declared_features or ()),
    }
    return facts, "; ".join(problems)


#: API group and kind of a Job of Volcano.
_VCJOB: Final = (BATCH_API.partition("/")[0], "Job")


def _oversubscribed(annotations: Mapping[str, str], key: str, problems: list[str]) -> int:
    """An oversubscription annotation in base units: milli-cpu or bytes. An invalid one counts as 0."""
    text = annotations.get(key)
    if text is None:
        return 0
    if not _AMOUNT.fullmatch(text):
        problems.append(f"metadata.annotations[{key}]: {text[:64]!r} is not a number >= 0")
        return 0
    return min(int(float(text)), MAX_AMOUNT)


#: Facts that a job takes over under the same name.
SAME_NAME: Final = (
    *("min_quota", "annotations", "labels", "topology", "anti_affinity"),
    *("owner_job", "conditions", "status_counts", "priority_class_name"),
)
_SAME_NAME = attrgetter(*SAME_NAME)


class GroupFacts(NamedTuple):
    """The facts of a PodGroup, defaults applied."""

    namespace: str
    name: str
    uid: str
    created: float
    queue: str
    min_member: int
    min_task_member: Mapping[str, int]
    min_resources: dict[str, int] | None
    min_quota: Mapping[str, int] | None
    priority_class_name: str
    phase: PodGroupPhase
    conditions: tuple[PodGroupCondition, ...]
    status_counts: tuple[int, int, int]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    topology: NetworkTopology | None
    anti_affinity: tuple[GroupTerm, ...]
    policies: tuple[GroupPolicy, ...]
    #: Name of the Job that owns it, "" for others.
    owner_job: str

    @property
    def was_whole(self) -> bool:
        """Whether the status proves that the minimum was bound: phase Running is entered then, and left afterwards."""
        recorded = {condition.type for condition in self.conditions if condition.status == "True"}
        if self.phase is PodGroupPhase.UNKNOWN:
            return HALF_GANG.code not in recorded
        return self.phase in (PodGroupPhase.RUNNING, PodGroupPhase.COMPLETED) or GANG_WAS_WHOLE.code in recorded

    def matches(self, job: Job, requested_queue: str) -> bool:
        """Whether the job already has these facts (the watch event of our own write, a resync)."""
        return (
            not job.implicit
            and requested_queue == self.queue
            and job.phase is self.phase
            and job.min_available == self.min_member
            and job.min_task_member == self.min_task_member
            and job.policies == self.policies
            and job.min_resources == self.min_resources
            and _SAME_NAME(job) == _SAME_NAME(self)
        )


def group_facts(obj: PodGroupObject, default_queue: str) -> tuple[GroupFacts, str]:
    """The facts of a PodGroup, and the problems of its fields. Invalid `minResources` count as 0."""
    problems: list[str] = []
    meta, spec, status = obj.metadata, obj.spec, obj.status
    owner = controller_of_meta(meta)
    try:
        phase = PodGroupPhase(status.phase) if status.phase else PodGroupPhase.PENDING
    except ValueError:
        accepted = ", ".join(item.value for item in PodGroupPhase)
        problems.append(f"status.phase: {status.phase!r} is none of {accepted}")
        phase = PodGroupPhase.PENDING
    facts = GroupFacts(
        namespace=intern(meta.namespace or "default"),
        name=meta.name,
        uid=meta.uid or f"{meta.namespace or 'default'}/{meta.name}",
        created=parse_time(meta.creation_timestamp),
        queue=intern(spec.queue or default_queue),
        min_member=max(0, spec.min_member or 0),
        min_task_member=dict(spec.min_task_member) if spec.min_task_member else NO_ENTRIES,
        min_resources=(
            parse_amounts(spec.min_resources, "spec.minResources", problems) if spec.min_resources is not None else None
        ),
        min_quota=quota_amounts(spec.min_resources) if spec.min_resources is not None else None,
        priority_class_name=spec.priority_class_name or "",
        phase=phase,
        conditions=status.conditions or (),
        status_counts=shared_counts(status.running or 0, status.succeeded or 0, status.failed or 0),
        annotations=meta.annotations or NO_ENTRIES,
        labels=meta.labels or NO_ENTRIES,
        topology=network_topology(spec.network_topology, problems),
        anti_affinity=group_terms(spec.topology_affinity, problems),
        policies=group_policies(spec.sub_group_policy, problems),
        owner_job=owner.name if owner is not None and (owner.group, owner.kind) == _VCJOB else "",
    )
    return facts, "; ".join(problems)


def queue_facts(obj: QueueObject) -> tuple[Facts, str]:
    """The facts of a Queue, and the problems of its fields.

    An invalid limit counts as 0, not as unlimited.
    """
    problems: list[str] = []
    meta, spec, status = obj.metadata, obj.spec, obj.status

    def limit(raw: RawAmounts | None, field: str) -> dict[str, int] | None:
        return None if raw is None else parse_amounts(raw, field, problems)

    allocated = None
    if status.allocated is not None:
        parsed = parse_amounts(status.allocated, "status.allocated", [])
        allocated = {resource: amount for resource, amount in parsed.items() if amount}
    facts: Facts = {
        "uid": meta.uid or meta.name,
        "weight": spec.weight if spec.weight is not None else 1,
        "priority": spec.priority or 0,
        "reclaimable": spec.reclaimable is not False,
        "parent": spec.parent or "",
        "strict_fifo": spec.dequeue_strategy == _IN_TURN,
        "capability": limit(spec.capability, "spec.capability"),
        "deserved": limit(spec.deserved, "spec.deserved"),
        "guarantee": limit(spec.guarantee.resource if spec.guarantee is not None else None, "spec.guarantee.resource"),
        "affinity": spec.affinity,
        "annotations": meta.annotations or {},
        "labels": meta.labels or {},
        "state": status.state or "",
        "status_allocated": allocated,
        "created": parse_time(meta.creation_timestamp),
    }
    if spec.dequeue_strategy not in (None, "", _TRAVERSE, _IN_TURN):
        problems.append(f"spec.dequeueStrategy: {spec.dequeue_strategy!r} is neither {_IN_TURN!r} nor {_TRAVERSE!r}")
    return facts, "; ".join(problems)
