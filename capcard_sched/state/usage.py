"""Measured load of nodes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model import deltas

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.state.changes import Changes

#: Nodes beyond twice those of a measurement that may stay before stale ones are dropped.
_SPARE = 1024


class UsageTable:
    """Applies load measurements. Each measurement is a record of its own; an identical record is no change.

    A record outlives its node until it is stale: the source may report a node before the API server lists it.
    """

    def __init__(self, changes: Changes) -> None:
        self.usage: dict[str, NodeUsage] = {}
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
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
