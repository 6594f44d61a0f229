"""Facts of one pod apart from its template: status, group, queue, role, priority."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.cooldown import Cooldown, cooldown_of
from capcard_sched.model.job import GRACE_SECONDS
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import PodObject, PodSpec

_DIGITS = 18
_SIGNED = re.compile(r"[+-]?[0-9]{1,20}")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class PodFacts(msgspec.Struct, frozen=True):
    """The facts of one pod apart from its template."""

    status: TaskStatus
    #: PodGroup it names, "" for none.
    group_name: str
    #: Queue it requests when it names no PodGroup, "" for none.
    queue_name: str
    role: str
    priority: int
    #: None when unset.
    preemptable: bool | None
    gated: bool
    deleting: bool
    index: int
    nominated_node: str
    #: Queue that its binding wrote, "" for none.
    bound_queue: str
    #: As written; readers check whether the pod accepts the card.
    assigned_card: str
    #: Its annotations of `annotations.DEVICE_ANNOTATIONS`.
    device_notes: dict[str, str]
    #: Seconds of its termination grace period.
    grace: int
    #: Unix seconds, 0.0 when unset.
    created: float
    #: None when unset.
    cooldown: Cooldown | None
    #: Kind of the first owner reference, "" without one.
    owner_kind: str
    #: uid of the controlling owner, "" without one.
    controller_uid: str
    #: The annotations that are part of the class: `annotations.CLASS_ANNOTATIONS`.
    class_annotations: dict[str, str]


class _MetaFacts(NamedTuple):
    """The facts that follow from annotations, labels and owners: fields of `PodFacts`, and parts of others."""

    group_name: str
    queue_name: str
    role: str
    #: None where `spec.priority` applies.
    priority: int | None
    preemptable: bool | None
    bound_queue: str
    assigned_card: str
    device_notes: dict[str, str]
    has_cooldown: bool
    owner_kind: str
    controller_uid: str
    class_annotations: dict[str, str]


def task_status(pod: PodObject) -> TaskStatus:
    """The status of a pod by its object; an unset phase reads as Pending."""
    phase = pod.status.phase or "Pending"
    if phase in {"Pending", "Running"}:
        if pod.metadata.deletion_timestamp:
            return TaskStatus.RELEASING
        if phase == "Running":
            return TaskStatus.RUNNING
        return TaskStatus.BOUND if pod.spec.node_name else TaskStatus.PENDING
    if phase == "Succeeded":
        return TaskStatus.SUCCEEDED
    return TaskStatus.FAILED if phase == "Failed" else TaskStatus.UNKNOWN


def name_index(name: str) -> int:
    """The number after the last dash of a name of three parts or more (`job-worker-3`), else -1."""
    head, _, last = name.rpartition("-")
    return int(last) if "-" in head and last.isdecimal() and last.isascii() and len(last) <= _DIGITS else -1


def preemptable_of(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool | None:
    """`volcano.sh/preemptable` of an object: annotation, else label; invalid is False, unset None."""
    text = annotations.get(keys.PREEMPTABLE)
    if text is None:
        text = labels.get(keys.PREEMPTABLE)
    return None if text is None else text in _TRUE


def _written_priority(annotations: Mapping[str, str]) -> int | None:
    """The annotation `volcano.sh/task-priority`, a 32-bit integer, which overrides `spec.priority`."""
    text = annotations.get(keys.TASK_PRIORITY)
    if text is not None and _SIGNED.fullmatch(text) and -(2**31) <= int(text) < 2**31:
        return int(text)
    return None


def role_of(annotations: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """The pod's role in its job, "" when it names none."""
    return annotations.get(keys.TASK_SPEC) or labels.get(keys.TASK_SPEC) or ""


def _grace_of(spec: PodSpec) -> int:
    """Seconds; a negative number reads as 1, as in the kubelet."""
    grace = spec.termination_grace_period_seconds
    return GRACE_SECONDS if grace is None else grace if grace >= 0 else 1


def group_of(annotations: Mapping[str, str]) -> str:
    """The PodGroup a pod names, "" for none. Both spellings of the key are read."""
    return annotations.get(keys.GROUP_NAME) or annotations.get(keys.GROUP_NAME_ALIAS) or ""


def _device_notes(annotations: Mapping[str, str]) -> dict[str, str]:
    found = keys.DEVICE_ANNOTATIONS & annotations.keys()
    return {key: annotations[key] for key in sorted(found)} if found else {}


def _class_annotations(annotations: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    found = {key: annotations[key] for key in sorted(keys.CLASS_ANNOTATIONS & annotations.keys())}
    for key in sorted(keys.CLASS_LABELS & labels.keys()):
        found[key] = labels[key]
    return found


def _meta_facts(meta: ObjectMeta) -> _MetaFacts:
    annotations, labels = meta.annotations or {}, meta.labels or {}
    owners = meta.owner_references or ()
    return _MetaFacts(
        group_name=group_of(annotations),
        queue_name=annotations.get(keys.POD_QUEUE_NAME) or annotations.get(keys.QUEUE_NAME) or "",
        role=role_of(annotations, labels),
        priority=_written_priority(annotations),
        preemptable=preemptable_of(annotations, labels),
        bound_queue=annotations.get(keys.BOUND_QUEUE, ""),
        assigned_card=annotations.get(keys.CARD_ASSIGNED, ""),
        device_notes=_device_notes(annotations),
        has_cooldown=keys.COOLDOWN_TIME in labels or keys.COOLDOWN_TIME in annotations,
        owner_kind=owners[0].kind if owners else "",
        controller_uid=next((owner.uid for owner in owners if owner.controller), ""),
        class_annotations=_class_annotations(annotations, labels),
    )


class FactsReader:
    """Reads the facts of pods one after another: those of a workload have equal annotations, labels and owners."""

    def __init__(self) -> None:
        self._meta = ObjectMeta()
        self._last = _meta_facts(self._meta)

    def read(self, pod: PodObject) -> PodFacts:
        """The facts of a pod. Never raises: an invalid field counts as unset. Equal pods share the mappings in them."""
        meta, last = pod.metadata, self._meta
        if (
            meta.annotations != last.annotations
            or meta.labels != last.labels
            or meta.owner_references != last.owner_references
        ):
            self._meta, self._last = meta, _meta_facts(meta)
        return _facts_of(pod, self._last)


def _facts_of(pod: PodObject, known: _MetaFacts) -> PodFacts:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    priority = known.priority if known.priority is not None else spec.priority
    return PodFacts(
        status=task_status(pod),
        group_name=known.group_name,
        queue_name=known.queue_name,
        role=known.role,
        priority=1 if priority is None else priority,
        preemptable=known.preemptable,
        gated=bool(spec.scheduling_gates),
        deleting=bool(meta.deletion_timestamp),
        index=name_index(meta.name),
        nominated_node=status.nominated_node_name or "",
        bound_queue=known.bound_queue,
        assigned_card=known.assigned_card,
        device_notes=known.device_notes,
        grace=_grace_of(spec),
        created=parse_time(meta.creation_timestamp),
        cooldown=cooldown_of(meta.labels, meta.annotations, status.conditions) if known.has_cooldown else None,
        owner_kind=known.owner_kind,
        controller_uid=known.controller_uid,
        class_annotations=known.class_annotations,
    )
