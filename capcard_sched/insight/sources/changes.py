"""Hypothetical changes of objects: the same edits for the objects of a scenario and for those behind a core."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.objects import ENDED_PHASES, annotations_of, key_of, meta, spec
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.annotations import CARD_QUOTA, NODE_UNSCHEDULABLE
from capcard_sched.model.cards import CardSyntaxError, parse_card_quota
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME, kind_of
from capcard_sched.model.limits import format_quota_amount, quota_amounts
from capcard_sched.model.objects import Taint
from capcard_sched.simulation.kinds import RESOURCE_QUOTA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.deltas import Delta


class UnknownObjectError(ValueError):
    """A change names an object that the input does not have, or it has no meaning for it."""


class Edits:
    """Changed copies of the objects of a view, which stays as it is."""

    def __init__(self, view: ObjectView) -> None:
        self._view = view
        self._read: dict[tuple[str, str, str], Json] = {}
        #: In the order of the first change.
        self.changed: dict[tuple[str, str, str], Json] = {}
        self._gone: list[Delta] = []

    def know(self, obj: Json) -> None:
        """Keep an object that was read already, or that the view does not have."""
        self._read[kind_of(obj), *key_of(obj)] = obj

    def original(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object without its changes, or None. Not to be changed in place."""
        return self._read.get((kind, namespace, name)) or self._view.get(kind, namespace, name)

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object with its changes, or None. Not to be changed in place."""
        return self.changed.get((kind, namespace, name)) or self.original(kind, namespace, name)

    def edit(self, kind: str, namespace: str, name: str) -> Json:
        """A copy that replaces the object. Raises UnknownObjectError."""
        key = kind, namespace, name
        if key not in self.changed:
            found = self.original(*key)
            if found is None:
                raise UnknownObjectError(f"{kind} {name} does not exist or is not readable")
            self.changed[key] = copy.deepcopy(found)
        return self.changed[key]

    def all_of(self, kind: str) -> Iterator[Json]:
        """The objects of a kind with their changes."""
        return (self.changed.get((kind, *key_of(obj)), obj) for obj in self._view.all_of(kind))

    def put(self, obj: Json) -> None:
        self.changed[kind_of(obj), *key_of(obj)] = obj

    def remove(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        """Delete an object; one that is put afterwards replaces it."""
        self.changed.pop((kind, namespace, name), None)
        self._gone.append(ObjectGone(kind, namespace, name, uid))

    def deltas(self) -> list[Delta]:
        """The changes as the scheduler sees them, deletions first. Raises msgspec.ValidationError."""
        found = list(self._gone)
        for (kind, _, _), obj in self.changed.items():
            rule = known.watch if (known := KIND_BY_NAME.get(kind)) is not None else None
            if rule is not None:
                found.append(ObjectChanged(msgspec.convert({**obj, "kind": kind}, rule.type)))
        return found


# --- edits of one object --------------------------------------------------------------------------------------------


def set_card_quota(queue: Json, card: str, quota: int) -> None:
    """Set the quota of one card, or of several (`A|B`). Raises UnknownObjectError for a malformed annotation."""
    text = annotations_of(queue).get(CARD_QUOTA)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnknownObjectError(
            f"Queue {meta(queue)['name']}: metadata.annotations[{CARD_QUOTA}] is malformed: {text!r}"
        )
    same = (key for key in found if "|" in key and sorted(map(str.strip, key.split("|"))) == sorted(card.split("|")))
    changed = json.dumps({**found, next(same, card): quota})
    if "|" in card:
        try:
            parse_card_quota(changed)
        except CardSyntaxError as error:
            raise UnknownObjectError(f"Queue {meta(queue)['name']}: quota of {card}: {error}") from None
    annotate(queue, CARD_QUOTA, changed)


def set_unschedulable(node: Json, value: bool) -> None:
    """Cordon or uncordon a node."""
    set_spec(node, "unschedulable", value)
    if not value:
        remove_taint(node, f"{NODE_UNSCHEDULABLE}:")  # which the node controller sets


def remove_taint(node: Json, taint: str) -> None:
    """Remove the taints whose `key=value:effect` begins with `taint`."""
    present = ((found, msgspec.convert(found, Taint).text) for found in spec(node).get("taints") or ())
    set_spec(node, "taints", [found for found, text in present if not text.startswith(taint)])


def free_quota(quota: Json) -> Json:
    """A ResourceQuota of which nothing is used."""
    found = quota.get("status") or {}
    return {**quota, "status": {**found, "used": dict.fromkeys(found.get("used") or {}, "0")}}


def count_in_quotas(edits: Edits, pods: Sequence[Json], sign: int) -> list[Json]:
    """Edit the ResourceQuotas that count pods of one namespace: 1 for pods that are created, -1 for those that end.

    Not those with scopes, which count some pods only.
    """
    changed = []
    alive = [(pod, 1) for pod in pods if (pod.get("status") or {}).get("phase") not in ENDED_PHASES]
    for quota in list(edits.all_of(RESOURCE_QUOTA)) if alive else ():
        found, rules = quota.get("status") or {}, spec(quota)
        is_scoped = bool(rules.get("scopes") or rules.get("scopeSelector"))
        if not is_scoped and key_of(quota)[0] == key_of(pods[0])[0] and (used := found.get("used")):
            counted = quota_amounts(quota_usage(alive))
            sums = {key: max(0, amount + sign * counted.get(key, 0)) for key, amount in quota_amounts(used).items()}
            amounts = {key: format_quota_amount(key, amount) for key, amount in sums.items()}
            changed.append({**quota, "status": {**found, "used": amounts}})
    for quota in changed:
        edits.put(quota)
    return changed


def annotate(obj: Json, key: str, value: str | None) -> None:
    """Set an annotation of an object or pod template; None removes it."""
    metadata = obj.get("metadata") or {}
    notes = {k: v for k, v in (metadata.get("annotations") or {}).items() if value is not None or k != key}
    obj["metadata"] = {**metadata, "annotations": notes if value is None else {**notes, key: value}}


def set_spec(obj: Json, field: str, value: object) -> None:
    obj["spec"] = {**spec(obj), field: value}
