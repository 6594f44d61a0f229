"""How queues, jobs and nodes are charged for shared devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.task_class import DeviceAccounting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.device_rows import DeviceRows
    from capcard_sched.plugins.deviceshare.device_type import DeviceType


def accounting_of(types: Sequence[DeviceType], rows: DeviceRows) -> DeviceAccounting:
    """Devices are charged as the kinds count them; nodes need not have them free as amounts."""
    smallest = rows.smallest_memory()
    totals: dict[str, int] = {}
    for kind, (memory, cards) in zip(types, rows.registered(), strict=True):
        totals |= kind.totals(memory, cards)

    def charge(cls: TaskClass) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for kind, memory in zip(types, smallest, strict=True):
            found |= kind.charge(cls, memory)
        return found

    def placed_charge(cls: TaskClass, notes: Mapping[str, str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for kind in types:
            found |= kind.placed_charge(cls, notes)
        return found

    return DeviceAccounting(
        (*(kind.accounting_version for kind in types), smallest),
        frozenset().union(*(kind.own_resources for kind in types)),
        frozenset().union(*(kind.uncounted_resources for kind in types)),
        frozenset().union(*(kind.shares for kind in types)),
        charge,
        placed_charge,
        totals,
    )
