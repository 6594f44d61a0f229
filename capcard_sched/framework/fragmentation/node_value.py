"""The value of the free devices of nodes under a mix of requests, in integers.

Two measures of one node, both in thousandths of a device:

* *usable by kind*: the free devices that a pod of each kind could use, weighted by the kind's share of all requested
  devices. A kind that the node does not take, for want of cpu, memory, cards or a model, can use none. The complement
  is the fragmentation of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023).
* *usable by the mix*: the free devices for which the free cpu and memory suffice at the mix's ratio. It decreases with
  every pod that takes more cpu than the part of its devices, long before a kind no longer fits.

Their sum is multiplied by the *demand* for the node's models: requested devices over existing ones, relative to the
whole cluster. A pod that accepts every model then leaves the scarce ones to the pods that name them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.framework.fragmentation.kind_table import KindTable
from capcard_sched.framework.fragmentation.request_mix import largest
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Hashable, Mapping, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.framework.fragmentation.kind_table import CardGroup
    from capcard_sched.framework.fragmentation.request_mix import RequestKind
    from capcard_sched.model.resources import Matrix, ResourceColumns, Vector

    Integers = npt.NDArray[np.int64]
    #: Free shared devices, int64 [k], and what each kind can use of them, int64 [k, kinds]; thousandths.
    _Parts: TypeAlias = tuple[Integers, Matrix]

#: The sum of the weights of all kinds, and the demand of a model that is as scarce as the cluster as a whole.
WEIGHTS: Final = 1024
EVEN: Final = 256
#: Bounds of the demand: a model that a few pods name must not outweigh every other reason.
_LEAST_DEMAND, _MOST_DEMAND = EVEN // 8, EVEN * 8
#: Units per MiB, so that products with amounts of devices fit 64 bits.
_MIB: Final = 1 << 20
#: Units of losses per unit of values, so that the space for a gang decides between equal losses only.
_TIES: Final = 64
#: Units of losses of one thousandth of a device under one measure.
UNITS: Final = WEIGHTS * EVEN * _TIES
#: Columns before those of devices, and an amount that no node has.
_DEVICES: Final = 2
_NEVER: Final = 1 << 62
#: States whose usable amounts are kept.
_MOST_STATES: Final = 65_536
_FIRST_STATES: Final = 64


class NodeValues:
    """Values of nodes under one mix."""

    def __init__(
        self,
        kinds: Counter[RequestKind],
        groups: Sequence[CardGroup],
        columns: ResourceColumns,
        resources: Sequence[str],
        shared: SharedDevices | None,
        gang: RequestKind | None = None,
        amounts: Mapping[RequestKind, int] = {},
    ) -> None:
        """`groups` by number of the group; `resources`: those that count whole devices; `gang`: see `largest_gang`.

        `amounts`: those of other values of the same groups.
        """
        self._shared = shared
        #: The largest waiting gang alone, with the groups that accept it.
        self._gang = KindTable([] if gang is None else [gang], groups, columns, resources, shared)
        found = [(kind, amounts.get(kind)) for kind in kinds]
        #: Thousandths of a device that a pod of each kind requests.
        self.amounts = {kind: self._amount(kind, groups) if known is None else known for kind, known in found}
        mix = largest(kinds, self.amounts)
        self._table = KindTable([kind for kind, _ in mix], groups, columns, resources, shared)
        #: Those of `KindTable.devices` after cpu and memory.
        self._columns: Integers = np.array([CPU_COLUMN, MEMORY_COLUMN, *self._table.devices], dtype=np.int64)
        #: Whole devices that a kind needs of a node, thousandths; more than any has for one of shared devices.
        self._least = np.where(self._table.is_shared, _NEVER, self._table.amounts)
        requested = sum(amount for _, amount in mix)
        self._weights = np.array([max(1, WEIGHTS * amount // requested) for _, amount in mix], dtype=np.int64)
        self._set_ratios(kinds, self.amounts)
        self._demand = self._demands([amount for _, amount in mix], groups)
        #: State of shared devices to its row in the next two.
        self._places: dict[int, int] = {}
        #: Free devices of states, thousandths: int64 [states]; those that fit each kind, and how many devices have
        #: some: int64 [states, kinds].
        self._totals: Integers = np.zeros(_FIRST_STATES, dtype=np.int64)
        self._sums: Matrix = np.zeros((_FIRST_STATES, len(mix)), dtype=np.int64)
        self._counts: Matrix = np.zeros((_FIRST_STATES, len(mix)), dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._table.kinds)

    def _amount(self, kind: RequestKind, groups: Sequence[CardGroup]) -> int:
        """Thousandths of a device that a pod requests, on the first group that takes it."""
        if kind.shared is None or self._shared is None:
            return kind.amount
        for group in groups:
            after = self._shared.state_after(kind.shared, group.idle)
            if after >= 0:
                return self._free(group.idle) - self._free(after)
        return 0

    def _free(self, state: int) -> int:
        """Free shared devices of a state, thousandths."""
        shared = self._shared
        return 0 if shared is None else sum([shared.free_part(device) for device in shared.devices(state)])

    def _set_ratios(self, kinds: Counter[RequestKind], amounts: Mapping[RequestKind, int]) -> None:
        """Requested devices per 1,024 milli-CPU and MiB: int; 0 when the mix requests none of either."""
        devices = sum(count * amounts[kind] for kind, count in kinds.items())
        cpu = sum(count * kind.cpu for kind, count in kinds.items() if amounts[kind])
        memory = sum(count * (kind.memory // _MIB) for kind, count in kinds.items() if amounts[kind])
        self._per_cpu = devices * 1024 // cpu if cpu else 0
        self._per_mib = devices * 1024 // memory if memory else 0

    def _demands(self, requested: Sequence[int], groups: Sequence[CardGroup]) -> Integers:
        """The demand for the models of each group: int64 [groups]."""
        devices = np.array([group.devices for group in groups], dtype=np.int64)
        everything, total = int(devices.sum()), sum(requested)
        if not everything or not total:
            return np.full(len(groups), EVEN, dtype=np.int64)
        found = np.zeros(len(groups), dtype=np.int64)
        for entry, amount in enumerate(requested):
            accepted = self._table.accepts[:, entry]
            found[accepted] += EVEN * amount * everything // (max(1, int(devices[accepted].sum())) * total)
        return found.clip(_LEAST_DEMAND, _MOST_DEMAND)

    def losses(
        self, free: Matrix, request: Vector, shared: tuple[Hashable | None, Rows] | None, groups: Integers
    ) -> Integers:
        """What nodes lose of their values to one pod: int64 [k], in thousandths of a device times UNITS.

        Of equal losses, the one is less that leaves space for more pods of the largest waiting gang.

        `free`: int64 [k, resources], base units; `request`: of the pod, int64 [resources]; `shared`: its request of
        shared devices, and their states before it, int64 [k]; `groups`: int64 [k].
        """
        count = len(free)
        both: Matrix = np.empty((2 * count, len(self._columns)), dtype=np.int64)
        both[:count] = free.take(self._columns, axis=1)
        both[count:] = both[:count] - request.take(self._columns)
        values = self._values_of(both, None if shared is None else self._shared_parts(*shared), np.tile(groups, 2))
        found: Integers = (values[:count] - values[count:]) * self._demand.take(groups) * _TIES
        if self._gang.kinds:
            space = self._space(both, np.tile(groups, 2))
            found += (space[:count] - space[count:]).clip(0, _TIES - 1)
        return found

    def _space(self, free: Matrix, groups: Integers) -> Integers:
        """How many pods of the largest waiting gang fit: int64 [k]. `free`: int64 [k, columns]."""
        gang, positive = self._gang.kinds[0], np.maximum(free, 0)
        found: Integers = positive[:, _DEVICES + int(self._gang.places[0])] // gang.amount
        for column, amount in ((CPU_COLUMN, gang.cpu), (MEMORY_COLUMN, gang.memory)):
            if amount:
                found = np.minimum(found, positive[:, column] // amount)
        return found * self._gang.accepts[:, 0].take(groups)

    def _values_of(self, free: Matrix, shared: _Parts | None, groups: Integers) -> Integers:
        """Values without the demand: int64 [k]. `free`: int64 [k, columns]."""
        positive = np.maximum(free, 0)
        bound, usable = self._usable_by_kind(free, positive[:, _DEVICES:], shared, groups)
        if self._per_cpu:
            bound = np.minimum(bound, positive[:, CPU_COLUMN] * self._per_cpu >> 10)
        if self._per_mib:
            bound = np.minimum(bound, (positive[:, MEMORY_COLUMN] >> 20) * self._per_mib >> 10)
        found: Integers = usable @ self._weights + WEIGHTS * bound
        return found

    def _usable_by_kind(
        self, free: Matrix, devices: Matrix, shared: _Parts | None, groups: Integers
    ) -> tuple[Integers, Matrix]:
        """Free devices, int64 [k], and what each kind can use of them, int64 [k, kinds], thousandths."""
        table = self._table
        total = devices.sum(axis=1)
        usable: Matrix = np.zeros((len(free), len(table.kinds)), dtype=np.int64)
        if len(table.devices):
            own = devices.take(table.places, axis=1)
            usable = own * (own >= self._least)
        if shared is not None:
            total = total + shared[0]
            usable = usable + shared[1]
        fits = table.fit_cpu(free)
        fits &= table.fit_memory(free)
        fits &= table.accepts.take(groups, axis=0)
        return total, usable * fits

    def _shared_parts(self, request: Hashable | None, states: Rows) -> _Parts:
        """Free shared devices, and what each kind can use of them, before and after a pod: int64 [2k], [2k, kinds]."""
        shared, table = self._shared, self._table
        places = self._places_of(states)
        totals, sums, counts = self._totals.take(places), self._sums.take(places, 0), self._counts.take(places, 0)
        if request is None or shared is None:
            return np.tile(totals, 2), np.tile(sums * (counts >= table.numbers), (2, 1))
        changes = shared.changes(request, states)
        if changes is None:
            places = self._places_of(np.concatenate([states, shared.states_after(request, states)]))
            sums, counts = self._sums.take(places, 0), self._counts.take(places, 0)
            return self._totals.take(places), sums * (counts >= table.numbers)
        count = len(states)
        (before, fitted), (after, fits) = table.of_changes(changes.before), table.of_changes(changes.after)
        total = np.concatenate([totals, (totals + after - before) * changes.fits])
        usable: Matrix = np.empty((2 * count, len(table.kinds)), dtype=np.int64)
        usable[:count] = sums * (counts >= table.numbers)
        sums += after[:, None] * fits - before[:, None] * fitted
        counts += (after > 0)[:, None] & fits
        counts -= (before > 0)[:, None] & fitted
        usable[count:] = sums * (counts >= table.numbers) * changes.fits[:, None]
        return total, usable

    def _places_of(self, states: Rows) -> Integers:
        """The rows of states in `_totals` and `_usable`: int64 [k]."""
        if len(self._places) > _MOST_STATES:
            self._places.clear()
            self._table.forget_devices()
        places = self._places
        found = [places.get(state, -1) for state in states.tolist()]
        if -1 in found:
            found = [self._place(state) for state in states.tolist()]
        return np.array(found, dtype=np.int64)

    def _place(self, state: int) -> int:
        found = self._places.setdefault(state, len(self._places))
        if found == len(self._places) - 1:
            if found == len(self._totals):
                self._totals = np.concatenate([self._totals, np.zeros_like(self._totals)])
                self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            parts = [self._table.of_device(device) for device in self._shared.devices(state)] if self._shared else []
            self._totals[found] = sum([part for part, _ in parts])
            own = np.stack([part * fits for part, fits in parts]) if parts else np.zeros((1, 1), dtype=np.int64)
            self._sums[found] = own.sum(axis=0)
            self._counts[found] = (own > 0).sum(axis=0)
        return found
