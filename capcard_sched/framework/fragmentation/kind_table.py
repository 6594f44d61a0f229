"""Kinds of pods beside groups of nodes: which kinds a node accepts, and which devices fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.framework.fragmentation.request_mix import RequestKind
    from capcard_sched.model.resources import Matrix, ResourceColumns

    Integers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


class CardGroup:
    """Nodes with the same cards: which kinds they accept, and how scarce they are."""

    __slots__ = ("devices", "idle", "offers")

    def __init__(self, offers: Mapping[str, frozenset[str]], idle: int) -> None:
        #: Resource to card models.
        self.offers = offers
        #: State of shared devices without pods.
        self.idle = idle
        #: Of all nodes together, thousandths.
        self.devices = 0


def accepts(group: CardGroup, kind: RequestKind, shared: SharedDevices | None) -> bool:
    """Whether an idle node of a group has devices for a kind; cpu and memory do not count."""
    if kind.shared is not None:
        return shared is not None and shared.state_after(kind.shared, group.idle) >= 0
    models = group.offers.get(kind.resource)
    return models is not None and (not kind.cards or not models.isdisjoint(kind.cards))


class KindTable:
    """Kinds in columns. Arrays have one entry per kind: [kinds]."""

    def __init__(
        self,
        kinds: Iterable[RequestKind],
        groups: Sequence[CardGroup],
        columns: ResourceColumns,
        resources: Sequence[str],
        shared: SharedDevices | None,
    ) -> None:
        """`groups` by number of the group; `resources`: those that count whole devices."""
        self.kinds = list(kinds)
        self.shared = shared
        #: Columns of `resources`: int64 [resources].
        self.devices: Integers = np.array([columns.column(name) for name in resources], dtype=np.int64)
        places = {name: place for place, name in enumerate(resources)}
        self._cpu = np.array([kind.cpu for kind in self.kinds], dtype=np.int64)
        self._memory = np.array([kind.memory for kind in self.kinds], dtype=np.int64)
        #: Thousandths of a whole device.
        self.amounts: Integers = np.array([kind.amount for kind in self.kinds], dtype=np.int64)
        #: Index in `resources`.
        self.places: Integers = np.array([places.get(kind.resource, 0) for kind in self.kinds], dtype=np.int64)
        self.is_shared: Flags = np.array([kind.shared is not None for kind in self.kinds], dtype=bool)
        #: The different shared devices that a pod needs.
        self.numbers: Integers = np.array(
            [1 if shared is None or kind.shared is None else shared.number(kind.shared) for kind in self.kinds],
            dtype=np.int64,
        )
        #: Whether a group accepts a kind: bool [groups, kinds].
        self.accepts: Flags = np.array(
            [[accepts(group, kind, shared) for kind in self.kinds] for group in groups], dtype=bool
        ).reshape(len(groups), len(self.kinds))
        self._by_device: dict[Hashable, tuple[int, Flags]] = {}
        self._fitting: Callable[[Any], Flags] | None = None
        self._fitting_many: Callable[[Any], Flags] | None = None

    def fit_cpu(self, free: Matrix) -> Flags:
        """Whether free cpu suffices for a pod: bool [k, kinds]. `free`: int64 [k, resources], base units."""
        found: Flags = free[:, CPU_COLUMN, None] >= self._cpu
        return found

    def fit_memory(self, free: Matrix) -> Flags:
        """The same of memory."""
        found: Flags = free[:, MEMORY_COLUMN, None] >= self._memory
        return found

    def of_device(self, device: Hashable) -> tuple[int, Flags]:
        """The free part of a shared device, thousandths, and which kinds it fits: bool [kinds]."""
        found = self._by_device.get(device)
        if found is None:
            shared = self.shared
            assert shared is not None
            if self._fitting is None:
                self._fitting = shared.fitting([kind.shared for kind in self.kinds])
            found = self._by_device[device] = shared.free_part(device), self._fitting(device)
        return found

    def of_changes(self, devices: Any) -> tuple[Integers, Flags]:
        """`of_device` for the devices of `DeviceChanges`: int64 [k] and bool [k, kinds]."""
        shared = self.shared
        assert shared is not None
        if self._fitting_many is None:
            self._fitting_many = shared.fitting_many([kind.shared for kind in self.kinds])
        return shared.free_parts(devices), self._fitting_many(devices)

    def forget_devices(self) -> None:
        self._by_device.clear()
