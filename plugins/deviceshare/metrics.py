"""The series of shared cards, as they are when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.plugins.deviceshare.vgpu import VgpuDevices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.model.job import Task
    from capcard_sched.plugins.deviceshare.card_ledger import CardLedger
    from capcard_sched.plugins.deviceshare.device_rows import DeviceRows


def samples(rows: DeviceRows, tasks: Mapping[str, Task]) -> Iterator[Sample]:
    """Cards and their pods. There is a series exactly for every card, and for every pod on a card."""
    for node, kind, ledger in rows.bookings():
        if isinstance(rows.types[kind], VgpuDevices):
            yield from _cards(node, ledger)
            yield from _pods(node, ledger, tasks)


def _cards(node: str, ledger: CardLedger) -> Iterator[Sample]:
    for uuid, card in zip(ledger.uuids, ledger.cards, strict=True):
        labels = {"devID": uuid, "NodeName": node}
        yield Sample("vgpu_device_shared_number", labels, card.use.number)
        yield Sample("vgpu_device_allocated_memory", labels, card.used_memory)
        yield Sample("vgpu_device_allocated_cores", labels, card.use.cores)
        yield Sample("vgpu_device_memory_limit", labels, card.model.memory)


def _pods(node: str, ledger: CardLedger, tasks: Mapping[str, Task]) -> Iterator[Sample]:
    """Pods of equal name on one card count together: the series has no namespace."""
    sums: dict[tuple[str, str], list[int]] = {}
    for uid, shares in ledger.held.items():
        task = tasks.get(uid)
        if task is None:
            continue
        for share in shares:
            both = sums.setdefault((ledger.uuids[share.card], task.name), [0, 0])
            both[0] += share.booking.memory
            both[1] += share.booking.cores
    for (uuid, pod), (memory, cores) in sorted(sums.items()):
        labels = {"devID": uuid, "NodeName": node, "podName": pod}
        yield Sample("vgpu_device_memory_allocation_for_a_certain_pod", labels, memory)
        yield Sample("vgpu_device_core_allocation_for_a_certain_pod", labels, cores)
