"""NUMA facts of nodes, from Numatopology objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.numa import CpuTopology, NumaFacts, NumatopologyObject, numa_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.state.changes import Changes
    from capcard_sched.state.invalid_objects import InvalidObjects

#: Unused topologies that may stay cached.
_SPARE = 64


class NumaTable:
    """Applies Numatopology deltas. The node of an invalid object has no NUMA facts."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        #: By node name; records are replaced, never changed in place.
        self.numa: dict[str, NumaFacts] = {}
        self._changes = changes
        self._invalid = invalid
        #: Equal topologies share one object.
        self._topologies: dict[CpuTopology, CpuTopology] = {}
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            NumatopologyObject: self._put,
            "Numatopology": lambda gone: self._gone(gone.name),
        }

    def _put(self, obj: NumatopologyObject) -> None:
        name = obj.metadata.name
        facts, problem = numa_facts(obj)
        self._invalid.note(ObjectRef("Numatopology", "", name, obj.metadata.uid), problem)
        if facts is None:
            self._drop(name)
            return
        if self.numa.get(name) == facts:
            return
        self.numa[name] = msgspec.structs.replace(facts, topology=self._share(facts.topology))
        self._changes.numa.add(name)

    def _share(self, topology: CpuTopology) -> CpuTopology:
        if len(self._topologies) > 2 * len(self.numa) + _SPARE:
            self._topologies = {facts.topology: facts.topology for facts in self.numa.values()}
        return self._topologies.setdefault(topology, topology)

    def _gone(self, name: str) -> None:
        self._invalid.forget("Numatopology", "", name)
        self._drop(name)

    def _drop(self, name: str) -> None:
        if self.numa.pop(name, None) is not None:
            self._changes.numa.add(name)
