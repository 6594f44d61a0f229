"""The tables of the kinds that contribute to no sum of nodes, jobs or queues by themselves: plugins read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.state.devices import DeviceTable
from capcard_sched.state.hyper_nodes import HyperNodeTable
from capcard_sched.state.tables import ConfigMapTable, LimitTable, NamespaceTable, NumaTable, UsageTable
from capcard_sched.state.volumes import VolumeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.state.changes import Changes
    from capcard_sched.state.classes import ClassTable
    from capcard_sched.state.invalid_objects import InvalidObjects


class FactTables:
    """One table per subject; `handlers` applies the deltas of all their kinds."""

    def __init__(
        self,
        classes: ClassTable,
        changes: Changes,
        invalid: InvalidObjects,
        set_default_queue: Callable[[str, str], None],
    ) -> None:
        """`set_default_queue`: called with a namespace and the queue of its pods that name none."""
        self.namespaces = NamespaceTable(classes, changes, set_default_queue)
        self.devices = DeviceTable(changes, invalid)
        self.limits = LimitTable(changes, invalid)
        self.usage = UsageTable(changes)
        self.hyper_nodes = HyperNodeTable(changes, invalid)
        self.numa = NumaTable(changes, invalid)
        self._config_maps = ConfigMapTable(changes)
        #: Data by `namespace/name`.
        self.config_maps = self._config_maps.data
        self.volumes = VolumeTable(changes, invalid)

    @property
    def handlers(self) -> dict[type | str, Callable[[Any], None]]:
        """The handler of each kind: of its objects by class, of deleted ones by name."""
        tables = (
            self.namespaces, self.devices, self.limits, self.usage, self.hyper_nodes, self.numa, self._config_maps,
            self.volumes,
        )  # fmt: skip
        return {kind: handler for table in tables for kind, handler in table.handlers.items()}
