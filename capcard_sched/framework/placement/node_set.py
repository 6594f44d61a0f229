"""The nodes that an engine places pods on: all nodes of a session, or those of one HyperNode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.framework.placement.node_classes import NodeClasses

if TYPE_CHECKING:
    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows, Scores
    from capcard_sched.framework.placement.node_classes import PluginStates
    from capcard_sched.state.columns import NodeTable


class NodeSet:
    """Rows of a node table, and their node classes. `rows` is None for all rows."""

    __slots__ = ("_classes", "_inside", "_plugin_states", "_rows", "_static_groups", "table")

    def __init__(self, table: NodeTable, plugin_states: PluginStates, rows: Rows | None = None) -> None:
        """`rows`: intp, ascending."""
        self.table = table
        self._plugin_states = plugin_states
        self._rows = rows
        self._inside: Mask | None = None
        if rows is not None:
            self._inside = np.zeros(len(table), dtype=bool)
            self._inside[rows] = True
        #: The node classes that rankings over all rows share; built with the first one.
        self._classes: NodeClasses | None = None
        #: Generation of the node table, and the static groups of its rows; they outlive the classes.
        self._static_groups: tuple[int, npt.NDArray[np.int64] | None] = (-1, None)

    def reopen(self, table: NodeTable) -> NodeSet:
        """The set of all rows for the next session, with the classes of this one where nodes stayed."""
        following = NodeSet(table, self._plugin_states)
        following._static_groups = self._static_groups
        if self._classes is not None and self._classes.is_reusable(table):
            following._classes = self._classes
            following._classes.recheck()
        return following

    def view(self) -> NodeView:
        """Every row of the set."""
        if self._rows is not None:
            return NodeView(self.table, self._rows)
        return NodeView(self.table, np.arange(len(self.table), dtype=np.intp), whole=True)

    def restrict(self, mask: Mask) -> Mask:
        """A mask without the rows outside the set: bool [nodes]."""
        return mask if self._inside is None else mask & self._inside

    def classes_for(self, feasible: Mask, static: Scores | None) -> NodeClasses:
        """The node classes for a ranking with these static results: the shared ones, else its own."""
        table = self.table
        if self._inside is None:
            if self._classes is None:
                generation, groups = self._static_groups
                known = generation == table.generation and groups is not None and len(groups) == len(table)
                self._classes = NodeClasses(
                    table, static_groups=groups if known else None, plugin_states=self._plugin_states
                )
            else:
                self._classes.catch_up()
            if self._classes.separates(feasible, static):
                self._static_groups = (table.generation, self._classes.static_groups)
                return self._classes
        own = None if static is None else np.unique(static, return_inverse=True)[1].astype(np.int64)
        return NodeClasses(table, static_groups=own, members=feasible, plugin_states=self._plugin_states)
