"""The watch of the scheduler: changes of the objects it reads, decoded once, newest version only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.controllers.objects import CONFIG_MAP, annotations_of, meta
from capcard_sched.model import deltas
from capcard_sched.model.annotations import DEVICE_CONFIG_KEY, NODE_VGPU_HANDSHAKE, SIMULATION_USAGE
from capcard_sched.model.card_registration import handshake_state
from capcard_sched.model.kinds import KINDS
from capcard_sched.model.objects import NodeObject
from capcard_sched.model.usage import parse_usage
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.simulation.kinds import NODE

if TYPE_CHECKING:
    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.store import Change, Store


#: The decoded form of the kinds that the scheduler watches, in the order of the deltas of a step: kinds that others
#: refer to come first.
_TYPES: dict[str, type[Any]] = {kind.name: kind.watch.type for kind in KINDS if kind.watch is not None}


class StoreWatch:
    """Collects the changes since the last `drain`."""

    def __init__(self, store: Store, started: float = EPOCH) -> None:
        """`started`: wall clock at the start of the program, Unix seconds; input handshakes are compared with it."""
        self._started = started
        self._store = store
        self._changed: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in _TYPES}
        self._gone: list[Delta] = []
        #: Node to the load of the last delta, as written.
        self._loads: dict[str, str] = {}
        self._outcomes: list[Delta] = []

    def observe(self, change: Change) -> None:
        """Queue a change."""
        changed = self._changed.get(change.kind)
        if changed is None or (change.kind == CONFIG_MAP and not _has_device_config(change)):
            return
        key = change.key
        if change.verb == "removed":
            changed.pop(key, None)
            if change.kind == NODE:
                self._gone += self._load(key[1], "")
            self._gone.append(deltas.ObjectGone(change.kind, *key, meta(change.object)["uid"]))
        else:
            changed[key] = None

    def report(self, outcome: Delta) -> None:
        """Queue the outcome of an intent."""
        self._outcomes.append(outcome)

    @property
    def pending(self) -> bool:
        """Whether there are deltas."""
        return bool(self._gone or self._outcomes or any(self._changed.values()))

    def drain(self) -> list[Delta]:
        """The deltas since the last call: removals, then the newest version of changed objects, then outcomes."""
        found = self._gone
        self._gone = []
        for kind, keys in self._changed.items():
            for key in keys:
                obj = self._store.get(kind, *key)
                if obj is not None:
                    decoded = msgspec.convert(obj, _TYPES[kind])
                    judged = self._judged(decoded) if isinstance(decoded, NodeObject) else decoded
                    found.append(deltas.ObjectChanged(judged))
                    if kind == NODE:
                        found += self._load(key[1], annotations_of(obj).get(SIMULATION_USAGE, ""))
            keys.clear()
        found += self._outcomes
        self._outcomes = []
        return found

    def _judged(self, node: NodeObject) -> NodeObject:
        """A node without the age of its handshake: no device plugin answers in virtual time."""
        notes = node.metadata.annotations or {}
        text = notes.get(NODE_VGPU_HANDSHAKE)
        if text is None:
            return node
        dead = handshake_state(text, self._started) in ("overdue", "deleted")
        judged = {**notes, NODE_VGPU_HANDSHAKE: "Deleted" if dead else "Reported"}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=judged))

    def _load(self, node: str, text: str) -> list[Delta]:
        """The load of a node if it changed. The text was validated on input."""
        if text == self._loads.get(node, ""):
            return []
        if not text:
            del self._loads[node]
            return [deltas.NodeUsageGone(node)]
        self._loads[node] = text
        return [deltas.NodeUsageChanged({node: parse_usage(text)})]


def _has_device_config(change: Change) -> bool:
    """Whether a ConfigMap holds, or held, settings of a device plugin: the scheduler reads no others."""
    return any(DEVICE_CONFIG_KEY in (version.get("data") or {}) for version in (change.old, change.new) if version)
