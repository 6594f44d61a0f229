"""Facts of one pod apart from its template: status, group, queue, role, priority."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.cooldown import Cooldown, cooldown_of
from capcard_sched.model.job import GRACE_SECONDS, NO_ENTRIES
from capcard_sched.model.kinds import owner_kind
from capcard_sched.model.kube_groups import job_name
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.ownership import controller_of_meta
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.timestamps import parse_time
from capcard_sched.model.unsupported import unsupported_text

if TYPE_CHECKING:
    from capcard_sched.model.objects import PodObject, PodSpec

#: The value of `volcano.sh/revocable-zone` of pods that tolerate the nodes of any zone; no other value is supported.
ANY_ZONE = "*"
_DIGITS = 18
_SIGNED = re.compile(r"[+-]?[0-9]{1,20}")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one pod apart from its template."""

    # --- of its annotations, labels and owners
    #: PodGroup it names, "" for none; one of `scheduling.k8s.io` as `kube_groups.job_name` names it.
    group_name: str
    #: Queue it requests when it names no PodGroup, "" for none.
    queue_name: str
    role: str
    #: None when unset.
    preemptable: bool | None
    #: Queue that its binding wrote, "" for none.
    bound_queue: str
    #: As written; readers check whether the pod accepts the card.
    assigned_card: str
    #: Its annotations of `annotations.DEVICE_ANNOTATIONS`.
    device_notes: Mapping[str, str]
    #: None when unset.
    cooldown: Cooldown | None
    #: Kind of the first owner reference, "" without one.
    owner_kind: str
    #: uid of the controlling owner, "" without one.
    controller_uid: str
    #: The annotations that are part of the class: `annotations.CLASS_ANNOTATIONS`.
    class_annotations: dict[str, str]
    # --- of the pod itself
    status: TaskStatus = TaskStatus.PENDING
    #: Name of the claim for its extended resources in its status, "" for none.
    extended_claim: str = ""
    priority: int = 1
    #: Names of its scheduling gates.
    gates: tuple[str, ...] = ()
    #: `status.reason` of a failed pod, else "".
    failure: str = ""
    #: Features it uses that are not supported, as a sentence; "" for none.
    unsupported: str = ""
    #: PodGroup of `scheduling.k8s.io` that it names beside one of Volcano, which counts; "" for none.
    other_group: str = ""
    deleting: bool = False
    #: Unix seconds of the deletion timestamp: the end of its grace period; 0.0 without one.
    ends: float = 0.0
    index: int = -1
    nominated_node: str = ""
    #: Seconds of its termination grace period.
    grace: int = GRACE_SECONDS
    #: Unix seconds, 0.0 when unset.
    created: float = 0.0


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


def admits_revocable(*annotations: Mapping[str, str]) -> bool:
    """Whether a pod may run on nodes of a revocable zone: by its own annotations, else those of its PodGroup."""
    for notes in annotations:
        if keys.REVOCABLE_ZONE in notes:
            return notes[keys.REVOCABLE_ZONE] == ANY_ZONE
        if keys.PREEMPTABLE in notes:
            return preemptable_of(notes, {}) is True
    return False


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


def _device_notes(annotations: Mapping[str, str]) -> Mapping[str, str]:
    found = keys.DEVICE_ANNOTATIONS & annotations.keys()
    return {key: annotations[key] for key in sorted(found)} if found else NO_ENTRIES


def _class_annotations(annotations: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    found = {key: annotations[key] for key in sorted(keys.CLASS_ANNOTATIONS & annotations.keys())}
    for key in sorted(keys.CLASS_LABELS & labels.keys()):
        found[key] = labels[key]
    return found


class FactsReader:
    """Reads the facts of pods one after another: those of a workload have equal annotations, labels and owners."""

    def __init__(self) -> None:
        self._read_meta(ObjectMeta())
        #: Whether pods with claims can be scheduled.
        self.claims = False

    def read(self, pod: PodObject) -> PodFacts:
        """The facts of a pod. Never raises: an invalid field counts as unset. Equal pods share the mappings in them."""
        meta, last = pod.metadata, self._meta
        if (
            meta.annotations != last.annotations
            or meta.labels != last.labels
            or meta.owner_references != last.owner_references
        ):
            self._read_meta(meta)
        known, spec, status = self._known, pod.spec, pod.status
        priority = self._priority if self._priority is not None else spec.priority
        extended = status.extended_resource_claim_status
        kube_group = (spec.scheduling_group.pod_group_name or "") if spec.scheduling_group is not None else ""
        if kube_group:
            named = known.group_name
            known = msgspec.structs.replace(
                known, group_name=named or job_name(kube_group), other_group=kube_group if named else ""
            )
        return msgspec.structs.replace(
            known,
            status=task_status(pod),
            extended_claim=extended.resource_claim_name if extended is not None else "",
            priority=1 if priority is None else priority,
            gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
            unsupported=unsupported_text(spec, claims=self.claims),
            failure=(status.reason or "") if status.phase == "Failed" else "",
            deleting=bool(meta.deletion_timestamp),
            ends=parse_time(meta.deletion_timestamp) if meta.deletion_timestamp else 0.0,
            index=name_index(meta.name),
            nominated_node=status.nominated_node_name or "",
            grace=_grace_of(spec),
            created=parse_time(meta.creation_timestamp),
            cooldown=known.cooldown and cooldown_of(meta.labels, meta.annotations, status.conditions),
        )

    def _read_meta(self, meta: ObjectMeta) -> None:
        """Keep the facts that follow from annotations, labels and owners."""
        annotations, labels = meta.annotations or {}, meta.labels or {}
        owners, controller = meta.owner_references or (), controller_of_meta(meta)
        self._meta = meta
        #: None if `spec.priority` applies.
        self._priority = _written_priority(annotations)
        self._known = PodFacts(
            group_name=group_of(annotations),
            queue_name=annotations.get(keys.POD_QUEUE_NAME) or annotations.get(keys.QUEUE_NAME) or "",
            role=role_of(annotations, labels),
            preemptable=preemptable_of(annotations, labels),
            bound_queue=annotations.get(keys.BOUND_QUEUE, ""),
            assigned_card=annotations.get(keys.CARD_ASSIGNED, ""),
            device_notes=_device_notes(annotations),
            cooldown=cooldown_of(labels, annotations, ()),
            owner_kind=owner_kind(owners[0].api_version, owners[0].kind) if owners else "",
            controller_uid=controller.uid if controller is not None else "",
            class_annotations=_class_annotations(annotations, labels),
        )
