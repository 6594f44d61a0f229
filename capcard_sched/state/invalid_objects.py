"""Invalid objects, and ignored edits of valid ones, until they are fixed or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from capcard_sched.model.annotations import CARD_ASSIGNED, CARD_NAME, CARD_NAME_ALIAS, FIXED_DEVICE_ANNOTATIONS
from capcard_sched.model.job import NO_ENTRIES
from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.job import Task
    from capcard_sched.model.pod_facts import PodFacts

    Kind = Literal[
        "Pod",
        "PodGroup",
        "Queue",
        "NamespaceQueue",
        "Node",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "CSIStorageCapacity",
        "Numatopology",
        "ConfigMap",
        "HyperNode",
        "ResourceSlice",
        "ResourceClaim",
        "CardBudget",
    ]


class InvalidObjects:
    """At most one problem per kind, namespace and name: that of the latest object of the name."""

    def __init__(self) -> None:
        self.problems: dict[ObjectRef, str] = {}
        self._refs: dict[tuple[str, str, str], ObjectRef] = {}

    def note(self, ref: ObjectRef, problem: str) -> None:
        """Set the problem of an object ("" for none) and drop that of an earlier object of the name."""
        if not problem and not self.problems:
            return
        name = (ref.kind, ref.namespace, ref.name)
        before = self._refs.pop(name, None)
        if before is not None:
            del self.problems[before]
        if problem:
            self.problems[ref] = problem
            self._refs[name] = ref

    def forget(self, kind: Kind, namespace: str, name: str, uid: str = "") -> None:
        """Drop the problem of a deleted object; an empty uid matches any object of the name."""
        ref = self._refs.get((kind, namespace, name))
        if ref is not None and (not uid or ref.uid == uid):
            self.note(ref, "")


class IgnoredEdits:
    """The first ignored edit of each Pod and PodGroup, until the object is deleted."""

    def __init__(self) -> None:
        #: Description of the edit by object.
        self.details: dict[ObjectRef, str] = {}
        #: Number of objects with an ignored edit since the start.
        self.total = 0
        self._refs: dict[tuple[str, str], ObjectRef] = {}

    def note(self, ref: ObjectRef, detail: str) -> None:
        """Record an edit, once per object."""
        if ref not in self.details:
            self.forget("Pod" if ref.kind == "Pod" else "PodGroup", f"{ref.namespace}/{ref.name}")
            self.details[ref] = detail
            self._refs[ref.kind, f"{ref.namespace}/{ref.name}"] = ref
            self.total += 1

    def forget(self, kind: Literal["Pod", "PodGroup"], key: str) -> None:
        """Drop the edit of a deleted object by `namespace/name`."""
        ref = self._refs.pop((kind, key), None)
        if ref is not None:
            del self.details[ref]


def describe_edits(
    fixed: PodFacts, facts: PodFacts, account: tuple[str, str | None], requested: tuple[str, str | None]
) -> str:
    """The edits of a bound pod that would change its account; "" for none.

    `account` and `requested`: fixed and edited job key and requested queue (None: determined by the PodGroup).
    """
    edits = [
        (f"annotation {key}", fixed.class_annotations.get(key, ""), facts.class_annotations.get(key, ""))
        for key in (CARD_NAME, CARD_NAME_ALIAS)
    ]
    edits.append((f"annotation {CARD_ASSIGNED}", fixed.assigned_card, facts.assigned_card))
    edits += [
        (f"annotation {key}", fixed.device_notes.get(key, ""), facts.device_notes.get(key, ""))
        for key in sorted(FIXED_DEVICE_ANNOTATIONS)
    ]
    edits.append(("PodGroup", account[0], requested[0]))
    if account[0] == requested[0]:
        edits.append(("queue", account[1] or "", requested[1] or ""))
    return "; ".join(
        f"{name} changed from <{shortened(before)}> to <{shortened(after)}>"
        for name, before, after in edits
        if before != after
    )


def fixed_notes(known: Task, facts: PodFacts, node_name: str) -> Mapping[str, str]:
    """The device annotations of a pod; those that name its devices are fixed by the binding."""
    if not known.bound and (known.node is None or known.node.name != node_name):
        return facts.device_notes
    fixed = {key: text for key, text in known.device_notes.items() if key in FIXED_DEVICE_ANNOTATIONS}
    others = {key: text for key, text in facts.device_notes.items() if key not in FIXED_DEVICE_ANNOTATIONS}
    return dict(sorted((fixed | others).items())) or NO_ENTRIES
