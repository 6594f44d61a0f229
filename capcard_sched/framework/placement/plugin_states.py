"""Node states of plugins: what decides, besides the amounts, on the class of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass


class PluginStates:
    """The node states of the plugins that have any: one column per plugin, in conf order."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._now = dispatch.entries("node_state")
        after = dict(dispatch.entries("next_node_state"))
        self._after: list[tuple[str, Callable[..., Any] | None]] = [(name, after.get(name)) for name, _ in self._now]
        self._size = 0

    def open(self, nodes: int) -> None:
        """Starts a session over this number of nodes."""
        self._size = nodes

    @property
    def is_empty(self) -> bool:
        """Whether no plugin has states."""
        return not self._now

    def now(self) -> Matrix | None:
        """int64 [nodes, plugins]; None when no plugin has states."""
        if not self._now:
            return None
        columns = []
        for _, call in self._now:
            column = call()
            columns.append(np.zeros(self._size, dtype=np.int64) if column is None else column)
        return np.stack(columns, axis=1)

    def after(self, held: Vector, cls: TaskClass) -> Vector:
        """The states of a node after one more pod of a class: int64 [plugins]."""
        following = held.copy()
        for column, (_, call) in enumerate(self._after):
            if call is not None:
                following[column] = call(cls, int(held[column]))
        return following

    def by_plugin(self, held: Matrix) -> Mapping[str, npt.NDArray[np.int64]]:
        """Some rows of the matrix as `NodeView` arguments: int64 [k] by plugin."""
        return {name: held[:, column] for column, (name, _) in enumerate(self._now)}
