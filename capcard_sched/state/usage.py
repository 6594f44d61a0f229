"""Measured load of nodes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model import deltas

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.state.changes import Changes

#: How many nodes beyond those of a measurement may be remembered, before those that are stale are forgotten.
_SPARE = 1024


class UsageTable:
    """Takes in what was measured. Every measurement is a record of its own: one that is the same object is no news.

    What is said of a node outlasts the node, as the source may know it before, or again, until it is stale.
    """

    def __init__(self, changes: Changes) -> None:
        self.usage: dict[str, NodeUsage] = {}
        self._changes = changes
        self.handlers: dict[type, Callable[[Any], None]] = {
            deltas.NodeUsageChanged: self._put,
            deltas.NodeUsageGone: self._drop,
        }

    def _put(self, delta: deltas.NodeUsageChanged) -> None:
        self.usage.update(delta.nodes)
        self._changes.usage.update(delta.nodes)
        if len(self.usage) > 2 * len(delta.nodes) + _SPARE:
            self._forget_stale(max((found.at or 0.0 for found in delta.nodes.values()), default=0.0))

    def _forget_stale(self, now: float) -> None:
        for name in [name for name, found in self.usage.items() if not found.is_fresh(now)]:
            del self.usage[name]

    def _drop(self, delta: deltas.NodeUsageGone) -> None:
        if self.usage.pop(delta.name, None) is not None:
            self._changes.usage.add(delta.name)
