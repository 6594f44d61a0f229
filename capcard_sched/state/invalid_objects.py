"""Invalid objects and their problems, until they are fixed or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from capcard_sched.model.intents import ObjectRef

    Kind = Literal[
        "Pod",
        "PodGroup",
        "Queue",
        "Node",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "CSIStorageCapacity",
        "Numatopology",
        "ConfigMap",
        "HyperNode",
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
