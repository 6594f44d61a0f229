"""Objects that could not be read, with what is wrong, until they are mended or gone."""

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
        "HyperNode",
    ]


class InvalidObjects:
    """At most one problem per kind, namespace and name: that of the latest object of the name."""

    def __init__(self) -> None:
        self.problems: dict[ObjectRef, str] = {}
        self._refs: dict[tuple[str, str, str], ObjectRef] = {}

    def note(self, ref: ObjectRef, problem: str) -> None:
        """What is wrong with an object now, "" for nothing; an earlier object of the name no longer counts."""
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
        """The object is gone; an empty uid means whichever has the name."""
        ref = self._refs.get((kind, namespace, name))
        if ref is not None and (not uid or ref.uid == uid):
            self.note(ref, "")
