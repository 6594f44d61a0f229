"""Hypothetical changes of objects: the same edits for the objects of a scenario and for those behind a core."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.objects import JOB, POD, POD_GROUP, QUEUE, annotations_of, key_of, meta, spec
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model.annotations import (
    CARD_NAME,
    CARD_NAME_ALIAS,
    CARD_QUOTA,
    CARD_REQUEST,
    CLOSED_BY_PARENT,
    NODE_UNSCHEDULABLE,
    POD_QUEUE_NAME,
)
from capcard_sched.model.cards import CardSyntaxError, parse_card_name
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.objects import Taint
from capcard_sched.model.quantity import base_amount, format_amount
from capcard_sched.model.trials import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.insight.object_view import Json, ObjectView
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Job

_NODE: Final = "Node"


#: Kinds of changes of the job that is to start.
_OF_JOB: Final = frozenset({"AcceptCard", "MinAvailable", "Priority", "CardRequest", "MoveQueue", "Tolerate"})


class UnknownObjectError(ValueError):
    """A change names an object that the input does not have, or it has no meaning for it."""


class ProposedChange(msgspec.Struct, frozen=True):
    """One part of a fix."""

    kind: ChangeKind
    #: Kind, namespace ("" for cluster-scoped kinds) and name of the changed object.
    target: tuple[str, str, str]
    #: Card, resource, taint, class, queue, action or plugin.
    key: str = ""
    #: The new amount and the present one: cards, base units, or pods. Equal for changes without an amount.
    value: int = 0
    present: int = 0
    #: The difference between two amounts that are worth a trial: 1, or a Mi of memory.
    step: int = 1
    #: Of `AcceptCard`: the cards `A|B` that the changed pods name; the other pods of the job keep theirs.
    replaces: str = ""

    @property
    def identity(self) -> tuple[str, tuple[str, str, str], str, str]:
        """Without the amount, and the PriorityClass."""
        return self.kind, self.target, "" if self.kind == "Priority" else self.key, self.replaces

    @property
    def is_of_job(self) -> bool:
        """Whether it changes the job that is to start."""
        return self.kind in _OF_JOB

    @property
    def steps(self) -> int:
        """The size of the change in steps."""
        return abs(self.value - self.present) // self.step

    def reduced(self, steps: int) -> ProposedChange:
        """The same change, `steps` in size."""
        sign = 1 if self.value >= self.present else -1
        return msgspec.structs.replace(self, value=self.present + sign * steps * self.step)


class Edits:
    """Changed copies of the objects of a view, which stays as it is."""

    def __init__(self, view: ObjectView, vcjob: Json | None = None) -> None:
        """`vcjob`: a Job that was read already."""
        self._view = view
        self._read = {} if vcjob is None else {(JOB, *key_of(vcjob)): vcjob}
        self._changed: dict[tuple[str, str, str], Json] = {}
        self._gone: list[Delta] = []

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object with its changes, or None. Not to be changed in place."""
        key = kind, namespace, name
        return self._changed.get(key) or self._read.get(key) or self._view.get(kind, namespace, name)

    def edit(self, kind: str, namespace: str, name: str) -> Json:
        """A copy that replaces the object. Raises UnknownObjectError."""
        key = kind, namespace, name
        if key not in self._changed:
            found = self.get(*key)
            if found is None:
                raise UnknownObjectError(f"{kind} {name} does not exist or is not readable")
            self._changed[key] = copy.deepcopy(found)
        return self._changed[key]

    def add(self, found: Iterable[Json]) -> None:
        """Add objects that the view does not have."""
        for obj in found:
            self._changed[obj["kind"], *key_of(obj)] = obj

    def remove(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        """Delete an object that is not edited."""
        self._gone.append(ObjectGone(kind, namespace, name, uid))

    def deltas(self) -> list[Delta]:
        """The changes as the scheduler sees them. Raises msgspec.ValidationError."""
        found = list(self._gone)
        for (kind, _, _), obj in self._changed.items():
            rule = KIND_BY_NAME[kind].watch
            if rule is not None:
                found.append(ObjectChanged(msgspec.convert({**obj, "kind": kind}, rule.type)))
        return found


# --- edits of one object --------------------------------------------------------------------------------------------


def set_card_quota(queue: Json, card: str, quota: int, *, repair: bool = False) -> None:
    """Set the quota of one card. Raises UnknownObjectError for a malformed annotation, unless `repair` drops it."""
    text = annotations_of(queue).get(CARD_QUOTA)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        if not repair:
            name = meta(queue)["name"]
            raise UnknownObjectError(f"Queue {name}: metadata.annotations[{CARD_QUOTA}] is malformed: {text!r}")
        found = {}
    if repair:
        texts = {key: str(value) for key, value in found.items() if not isinstance(value, bool)}
        numbers = {key: whole_number(text) for key, text in texts.items()}
        found = {key: number for key, number in numbers.items() if number is not None}
    _annotate(queue, CARD_QUOTA, json.dumps({**found, card: quota}))


def set_unschedulable(node: Json, value: bool) -> None:
    """Cordon or uncordon a node."""
    node["spec"] = {**spec(node), "unschedulable": value}
    if not value:
        remove_taint(node, f"{NODE_UNSCHEDULABLE}:")  # which the node controller sets


def remove_taint(node: Json, taint: str) -> None:
    """Remove the taints whose `key=value:effect` begins with `taint`."""
    present = ((found, msgspec.convert(found, Taint).text) for found in spec(node).get("taints") or ())
    kept = [found for found, text in present if not text.startswith(taint)]
    node["spec"] = {**spec(node), "taints": kept}


def cards_named(annotations: Mapping[str, str]) -> str:
    """The cards `A|B` that a pod or a pod template names; "" for none."""
    text = annotations.get(CARD_NAME, annotations.get(CARD_NAME_ALIAS, ""))
    try:
        return "|".join(parse_card_name(text))
    except CardSyntaxError:
        return text


def _annotate(obj: Json, key: str, value: str) -> None:
    meta(obj)["annotations"] = {**annotations_of(obj), key: value}


def _set_spec(obj: Json, field: str, value: object) -> None:
    obj["spec"] = {**spec(obj), field: value}


# --- changes of a job and its surroundings --------------------------------------------------------------------------


class JobObjects:
    """The objects of a job: its pending pods, its PodGroup and its vcjob, as far as they exist. Copied when used."""

    def __init__(self, edits: Edits, job: Job, vcjob: Json | None) -> None:
        """`vcjob`: the Job whose pods these are, if any."""
        self._edits, self.job, self._vcjob = edits, job, vcjob

    @property
    def pods(self) -> list[Json]:
        """The pending pods."""
        return [self._edits.edit(POD, self.job.namespace, task.name) for task in self.job.pending.values()]

    @property
    def group(self) -> Json | None:
        """The PodGroup, in its phase in the core; None for pods without one."""
        if self.job.implicit:
            return None
        group = self._edits.edit(POD_GROUP, self.job.namespace, self.job.name)
        group["status"] = {**(group.get("status") or {}), "phase": self.job.phase.value}
        return group

    @property
    def vcjob(self) -> Json | None:
        """The Job, or None."""
        return None if self._vcjob is None else self._edits.edit(JOB, *key_of(self._vcjob))

    @property
    def templates(self) -> list[Json]:
        """The pod templates of the Job."""
        return [task.setdefault("template", {}) for task in spec(self.vcjob or {}).get("tasks") or ()]

    def accept_card(self, cards: str, replaces: str) -> None:
        """Set the accepted cards `A|B` of the pods that name `replaces`, and of these in the declared request."""
        for pod in (*self.pods, *self.templates):
            notes = annotations_of(pod)
            if cards_named(notes) == replaces:
                kept = {key: value for key, value in notes.items() if key != CARD_NAME_ALIAS}
                pod["metadata"] = {**meta(pod), "annotations": {**kept, CARD_NAME: cards}}
        group = self.group
        try:
            declared = json.loads(annotations_of(group or {}).get(CARD_REQUEST) or "{}")
        except (ValueError, RecursionError):
            return
        if group is not None and isinstance(declared, dict) and replaces in declared and cards not in declared:
            renamed = {cards if key == replaces else key: amount for key, amount in declared.items()}
            _annotate(group, CARD_REQUEST, json.dumps(renamed))

    def drop_card_request(self) -> None:
        """Remove the declared cards."""
        group = self.group
        if group is not None:
            meta(group)["annotations"] = {k: v for k, v in annotations_of(group).items() if k != CARD_REQUEST}

    def set_min_available(self, value: int) -> None:
        """Set the size of the gang; its minimum of resources shrinks in proportion."""
        group, vcjob = self.group, self.vcjob
        if group is None:
            return
        old = max(1, self.job.min_available)
        _set_spec(group, "minMember", value)
        amounts = spec(group).get("minResources")
        if amounts:
            _set_spec(group, "minResources", {name: _scaled(name, amounts[name], value, old) for name in amounts})
        if vcjob is not None:
            _set_spec(vcjob, "minAvailable", value)

    def set_priority(self, name: str) -> None:
        """Set the PriorityClass of the PodGroup and the vcjob. The priority of a pod cannot change."""
        group, vcjob = self.group, self.vcjob
        if group is not None:
            _set_spec(group, "priorityClassName", name)
        if vcjob is not None:
            _set_spec(vcjob, "priorityClassName", name)

    def set_queue(self, name: str) -> None:
        """Move the job to a queue."""
        group = self.group
        if group is not None:
            _set_spec(group, "queue", name)
        for pod in self.pods:
            _annotate(pod, POD_QUEUE_NAME, name)

    def allow_preemption(self) -> None:
        """Drop `preemptionPolicy: Never` of the pods."""
        for pod in self.pods:
            _set_spec(pod, "preemptionPolicy", None)

    def tolerate(self, taint: str) -> None:
        """Add a toleration of a taint `key=value:effect`."""
        rest, _, effect = taint.rpartition(":")
        key, _, value = rest.partition("=")
        operator = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
        for pod in (*self.pods, *self.templates):
            tolerations = [*(spec(pod).get("tolerations") or ()), {"key": key, "effect": effect, **operator}]
            _set_spec(pod, "tolerations", tolerations)


def _scaled(resource: str, amount: object, value: int, old: int) -> str:
    base = base_amount(resource, amount) or 0  # type: ignore[arg-type]
    return format_amount(resource, -(-base * value // old))


def apply_change(change: ProposedChange, edits: Edits, job: JobObjects, ended: Job | None) -> None:
    """Make a change of objects; those of the scheduler-conf are `changed_conf`'s. Raises UnknownObjectError.

    `ended`: the job that a change `End` ends.
    """
    kind, namespace, name = change.target
    match change.kind:
        case "Quota":
            set_card_quota(edits.edit(QUEUE, "", name), change.key, change.value, repair=True)
        case "Capability":
            queue = edits.edit(QUEUE, "", name)
            limits = {**(spec(queue).get("capability") or {}), change.key: format_amount(change.key, change.value)}
            _set_spec(queue, "capability", limits)
        case "OpenQueue":
            queue = edits.edit(QUEUE, "", name)
            queue["status"] = {**(queue.get("status") or {}), "state": "Open"}
            meta(queue)["annotations"] = {k: v for k, v in annotations_of(queue).items() if k != CLOSED_BY_PARENT}
        case "Uncordon":
            set_unschedulable(edits.edit(_NODE, "", name), value=False)
        case "Untaint":
            remove_taint(edits.edit(_NODE, "", name), change.key)
        case "Tolerate":
            job.tolerate(change.key)
        case "AcceptCard":
            job.accept_card(change.key, change.replaces)
        case "MinAvailable":
            job.set_min_available(change.value)
        case "CardRequest":
            job.drop_card_request()
        case "Priority":
            job.set_priority(change.key)
        case "MoveQueue":
            job.set_queue(change.key)
        case "End" if kind == POD:
            edits.remove(POD, namespace, name)
        case "End" if ended is not None:
            end_job(edits, ended)


def end_job(edits: Edits, job: Job) -> None:
    """Delete the pods of a job, and its PodGroup."""
    for task in job.tasks.values():
        edits.remove(POD, task.namespace, task.name, task.uid)
    if not job.implicit:
        edits.remove(POD_GROUP, job.namespace, job.name)


def changed_conf(conf: Conf, changes: Sequence[ProposedChange], registry: Registry) -> Conf | None:
    """The scheduler-conf with the actions and plugins of changes; None when they contain neither."""
    found = conf
    for change in changes:
        if change.kind == "Action":
            found = msgspec.structs.replace(found, actions=_with_action(found.actions, change.key))
        elif change.kind == "Plugin":
            one = parse_conf(f"tiers: [{{plugins: [{{name: {change.key}}}]}}]", registry=registry).conf
            if one is not None:
                first, *rest = found.tiers or ((),)
                found = msgspec.structs.replace(found, tiers=((*one.tiers[0], *first), *rest))
    return None if found is conf else found


def _with_action(actions: tuple[str, ...], name: str) -> tuple[str, ...]:
    """`allocate` follows `enqueue`, others come last."""
    if name in actions:
        return actions
    if name == "allocate":
        at = actions.index("enqueue") + 1 if "enqueue" in actions else 0
        return (*actions[:at], name, *actions[at:])
    return (*actions, name)
