"""From the store to the scheduler: changes of the objects it watches, decoded once, last version only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model.deltas import (
    Delta,
    NodeChanged,
    NodeGone,
    PodChanged,
    PodGone,
    PodGroupChanged,
    PodGroupGone,
    PriorityClassChanged,
    PriorityClassGone,
    QueueChanged,
    QueueGone,
)
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PriorityClassObject, QueueObject
from capcard_sched.simulation.kinds import NODE, POD, POD_GROUP, PRIORITY_CLASS, QUEUE, meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.simulation.store import Change, Store

#: Watched kinds in the order in which a step is told of them: what others refer to comes first.
_DECODE: dict[str, Callable[[Any], Delta]] = {
    PRIORITY_CLASS: lambda obj: PriorityClassChanged(msgspec.convert(obj, PriorityClassObject)),
    QUEUE: lambda obj: QueueChanged(msgspec.convert(obj, QueueObject)),
    NODE: lambda obj: NodeChanged(msgspec.convert(obj, NodeObject)),
    POD_GROUP: lambda obj: PodGroupChanged(msgspec.convert(obj, PodGroupObject)),
    POD: lambda obj: PodChanged(msgspec.convert(obj, PodObject)),
}


class Feed:
    """The scheduler's watch: what changed since the last `drain`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in _DECODE}
        self._gone: list[Delta] = []
        self._outcomes: list[Delta] = []

    def observe(self, change: Change) -> None:
        """Take note of a change."""
        changed = self._changed.get(change.kind)
        if changed is None:
            return
        key = change.key
        if change.verb == "removed":
            changed.pop(key, None)
            self._gone.append(_gone(change.kind, key, meta(change.object)["uid"]))
        else:
            changed[key] = None

    def report(self, outcome: Delta) -> None:
        """Tell the scheduler what became of one of its intents."""
        self._outcomes.append(outcome)

    @property
    def pending(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._gone or self._outcomes or any(self._changed.values()))

    def drain(self) -> list[Delta]:
        """Everything since the last time: removals, then the newest version of what changed, then outcomes."""
        deltas = self._gone
        self._gone = []
        for kind, keys in self._changed.items():
            decode = _DECODE[kind]
            for key in keys:
                obj = self._store.get(kind, *key)
                if obj is not None:
                    deltas.append(decode(obj))
            keys.clear()
        deltas += self._outcomes
        self._outcomes = []
        return deltas


def _gone(kind: str, key: tuple[str, str], uid: str) -> Delta:
    namespace, name = key
    if kind == POD:
        return PodGone(namespace, name, uid)
    if kind == POD_GROUP:
        return PodGroupGone(namespace, name, uid)
    if kind == NODE:
        return NodeGone(name)
    return QueueGone(name) if kind == QUEUE else PriorityClassGone(name)
