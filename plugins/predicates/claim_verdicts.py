"""Kept results of the search for devices: one column over all nodes per content of claims.

A result is found again for a node when the devices in use of a pool that the node reaches change. Nodes whose pools
have equal devices, in use at equal positions, share one search. The columns are dropped with every change of a slice,
class or taint rule, and follow the nodes when these change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.devices.allocator import CANNOT_ALLOCATE, NodeError
from capcard_sched.devices.claims import AllocationError
from capcard_sched.devices.device_card import card_of
from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.model.refusal import Code
from capcard_sched.plugins.predicates.empty_nodes import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import numpy.typing as npt

    from capcard_sched.devices.allocator import Solution
    from capcard_sched.devices.inventory import DeviceInventory, DevicePool
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.devices.usage import DeviceUsage
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, Rows
    from capcard_sched.model.job import Node
    from capcard_sched.model.resources import Vector

#: Why claims get no devices: on one node, or anywhere; the preference of the node if they get them.
Verdict: TypeAlias = "NodeError | AllocationError | int"
#: Entries of all columns: nodes times contents of claims.
_MOST_ENTRIES: Final = 4_000_000
#: Contents of claims with results: tenants write them.
_MOST_CONTENTS: Final = 4096
#: Device states of the nodes that are kept.
_MOST_STATES: Final = 200_000
#: Kinds of nodes, by their devices, up to which `reads_single_nodes` evaluates selectors on each.
_MOST_SHAPES: Final = 8
#: Pods of one node that are known ahead.
_MOST_AHEAD: Final = 64
#: Numbers of results; further ones are those of texts.
_UNKNOWN, _FITS = 0, 1
#: The state of a row that was not read since a change; -1 is that of a node that equals no other.
_UNREAD: Final = -2


class _Column:
    """The results of one content of claims."""

    __slots__ = ("by_state", "codes", "following", "most", "serial", "solutions")

    def __init__(self, nodes: int, serial: int) -> None:
        #: int32 [nodes].
        self.codes = np.zeros(nodes, dtype=np.int32)
        #: Device state of a node to the result.
        self.by_state: dict[int, int] = {}
        #: Device state of a node on which a pod fits to the most pods.
        self.most: dict[int, int] = {}
        #: Device state of a node to where the devices of the claims are.
        self.solutions: dict[int, Solution] = {}
        #: Device state of a node to that after a placement of such claims.
        self.following: dict[int, int] = {}
        #: Of the devices in use when the column was last updated.
        self.serial = serial


class DeviceSearch(NamedTuple):
    """Claims that get devices on equal nodes alike, and the devices that there are."""

    contents: tuple[Hashable, ...]
    inventory: DeviceInventory
    usage: DeviceUsage
    #: Searches one node.
    verdict: Callable[[Node], Verdict]


class ClaimVerdicts:
    """Rejects nodes without devices for claims."""

    def __init__(self) -> None:
        #: The version of the inventory and the generation of the nodes of all columns.
        self._version: int | None = None
        self._generation = -1
        #: The attributes in which equal nodes do not differ; None for all.
        self._read: frozenset[str] | None = frozenset()
        self._names: dict[str, int] = {}
        #: By row: its pools.
        self._pools: list[tuple[DevicePool, ...]] = []
        self._rows: dict[PoolId, list[int]] = {}
        #: By row: the number of the devices of its pools, -1 if they are compared with no other node's.
        self._shapes: list[int] = []
        self._numbers: dict[Hashable, int] = {}
        self._made = 0
        #: By whether future: the device state of each row, and the serial of the usage for which they hold.
        self._states: dict[bool, tuple[npt.NDArray[np.int64], int]] = {}
        self._columns: dict[tuple[bool, tuple[Hashable, ...]], _Column] = {}
        #: Whether each pool is that of one node, and results of `reads_single_nodes` by content of claims.
        self._is_local = True
        self._single: dict[tuple[Hashable, ...], bool] = {}
        self._forget_results()

    def reject(self, search: DeviceSearch, rows: NodeView, result: FilterResult, places: Rows | None) -> None:
        """Rejects the entries at some places, None for all, whose nodes have no devices.

        An AllocationError rejects all nodes. Results whose text may name a claim are not kept.
        """
        named: list[str] = []
        try:
            if places is None:
                codes = self._codes_of(search, rows, named)
            else:
                codes = np.full(len(rows), _FITS, dtype=np.int32)
                codes[places] = self._codes_of(search, rows.part(places), named)
        except AllocationError as error:
            result.reject_all(Code.UNRESOLVABLE, str(error))
            return
        rejected = ~np.isin(codes, self._fitting) if len(self._fitting) > 1 else codes != _FITS
        if not rejected.any():
            return
        if not isinstance(result, Diagnosis):  # it keeps no reasons
            result.reject(rejected, Code.UNSCHEDULABLE, "")
            return
        texts = {code: self._texts[code] if code > 0 else named[-code - 1] for code in dict.fromkeys(codes.tolist())}
        for text in dict.fromkeys(texts.values()):
            if text:
                same = [code for code, each in texts.items() if each == text]
                result.reject(np.isin(codes, same), Code.UNSCHEDULABLE, text)

    def preferences(self, search: DeviceSearch, rows: NodeView) -> Rows:
        """The preference that a search finds on each node, 0 on one without devices: intp [k]."""
        try:
            codes = self._codes_of(search, rows, [])
        except AllocationError:
            return np.zeros(len(rows), dtype=np.intp)
        found: Rows = np.array(self._preferences, dtype=np.intp).take(np.maximum(codes, _UNKNOWN))
        return found

    def most_pods(self, search: DeviceSearch, count: Callable[[Node], int], rows: NodeView) -> npt.NDArray[np.int64]:
        """The most pods on each node, int64 [k]: 0 without devices, else by `count`, called for one of equal nodes.

        No bound where the search raises an AllocationError.
        """
        found = np.full(len(rows), UNLIMITED, dtype=np.int64)
        try:
            codes = self._codes_of(search, rows, [])
        except AllocationError:
            return found
        fitting = np.isin(codes, self._fitting)
        found[~fitting & (codes > 0)] = 0  # others give up, and may find devices where fewer are free
        column = self._column(search.contents, search.usage, future=rows.future)
        at = fitting.nonzero()[0]
        for state, places in self._by_state(rows.rows.take(at), search.usage, future=rows.future):
            for same in [places] if state >= 0 else [[place] for place in places]:
                most = column.most.get(state)
                if most is None:
                    most = count(rows.nodes[int(rows.rows[at[same[0]]])])
                    if state >= 0:
                        column.most[state] = most
                found[at[same]] = most
        return found

    def solutions(self, search: DeviceSearch, table: Any, row: int) -> tuple[dict[int, Solution], int]:
        """Where claims get devices now, by the device state of nodes, and that of a row; -1 if it equals no other."""
        self._renew(table, search.inventory)
        column = self._column(search.contents, search.usage, future=False)
        return column.solutions, self._state(row, search.usage, future=False)

    def note_following(self, search: DeviceSearch, row: int, before: int) -> None:
        """Records the device state that follows state `before` after one placement on the row."""
        column = self._columns.get((False, search.contents))
        if column is None:
            return
        known = column.following.get(before)
        if known is None:
            column.following[before] = self._state(row, search.usage, future=False)
        elif self._is_local:  # no other row reaches the devices
            states, _ = self._states[False]
            states[row] = known
            self._states[False] = states, search.usage.changes.serial

    def further_pods(self, search: DeviceSearch, rows: NodeView) -> tuple[Vector, Mask]:
        """How many pods get devices on each node one after the other, at least one, as far as that is known.

        And whether the next one does not. A node in a state that a placement left before gets the state that followed.
        """
        self._renew(rows.table, search.inventory)
        column = self._column(search.contents, search.usage, future=False)
        fitting, ends = np.ones(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        for state, places in self._by_state(rows.rows, search.usage, future=False):
            if state >= 0:
                fitting[places], ends[places] = self._pods_from(column, state)
        return fitting, ends

    def _pods_from(self, column: _Column, state: int) -> tuple[int, bool]:
        """`further_pods` on a node in a device state."""
        pods = 1
        while pods < _MOST_AHEAD and (following := column.following.get(state, -1)) >= 0:
            code = column.by_state.get(following)
            if code is None or code not in self._fitting:
                return pods, code is not None
            state, pods = following, pods + 1
        return pods, False

    def reads_single_nodes(self, search: DeviceSearch, table: Any, may_fail: Callable[[Node], bool]) -> bool:
        """Whether the result for a node depends on the devices of that node alone, and is an AllocationError on none.

        `may_fail`: whether the search on a node may raise it. It is called for one of equal nodes.
        """
        self._renew(table, search.inventory)
        found = self._single.get(search.contents)
        if found is None:
            rows = {shape: row for row, shape in enumerate(self._shapes)} if self._is_local else {}
            few = -1 not in rows and 0 < len(rows) <= _MOST_SHAPES
            found = few and not any(may_fail(table.nodes[row]) for row in rows.values())
            if len(self._single) >= _MOST_CONTENTS:
                self._single.clear()
            self._single[search.contents] = found
        return found

    def _codes_of(self, search: DeviceSearch, rows: NodeView, named: list[str]) -> npt.NDArray[np.int32]:
        """The number of the result of each node; below 0 for a text that `named` gets. Raises AllocationError."""
        self._renew(rows.table, search.inventory)
        column = self._column(search.contents, search.usage, future=rows.future)
        codes = column.codes.take(rows.rows)
        unknown = (codes == _UNKNOWN).nonzero()[0]
        if not len(unknown):
            return codes
        at = rows.rows.take(unknown)
        for state, places in self._by_state(at, search.usage, future=rows.future):
            known = column.by_state.get(state, _UNKNOWN) if state >= 0 else _UNKNOWN
            for index, place in enumerate(places):
                code = known or self._search(search, rows.nodes[int(at[place])], named)
                same = places[index:] if code > 0 and state >= 0 else places[index : index + 1]
                codes[unknown[same]] = code
                if code > 0:
                    column.codes[at[same]] = code
                if code > 0 and state >= 0:
                    column.by_state[state] = code
                    break
        return codes

    def _search(self, search: DeviceSearch, node: Node, named: list[str]) -> int:
        """The number of the result of a node; below 0 for a text that `named` gets. Raises AllocationError."""
        found = search.verdict(node)
        if isinstance(found, AllocationError):
            raise found
        if isinstance(found, NodeError):
            if not str(found).startswith(CANNOT_ALLOCATE):
                named.append(str(found))
                return -len(named)
            return self._code(str(found), 0)
        return self._code("", found)

    def _by_state(
        self, rows: npt.NDArray[np.intp], usage: DeviceUsage, *, future: bool
    ) -> Iterator[tuple[int, list[int]]]:
        """Each device state of rows and the places of those that have it; -1 for nodes that equal no other."""
        states = self._current_states(usage, future=future)
        for place in (states.take(rows) == _UNREAD).nonzero()[0].tolist():
            self._state(int(rows[place]), usage, future=future)
        places: dict[int, list[int]] = {}
        for place, state in enumerate(states.take(rows).tolist()):
            places.setdefault(state, []).append(place)
        yield from places.items()

    def _code(self, text: str, preference: int) -> int:
        """The number of a result: a text, or "" with the preference of a node that fits."""
        code = self._codes.get((text, preference))
        if code is None:
            code = self._codes[text, preference] = len(self._texts)
            self._texts.append(text)
            self._preferences.append(preference)
            if not text:
                self._fitting.append(code)
        return code

    def _forget_results(self) -> None:
        #: By number of a result: why a node is rejected, "" for one that fits, and its preference.
        self._texts, self._preferences = ["", ""], [0, 0]
        #: The numbers of those that fit.
        self._fitting = [_FITS]
        self._codes: dict[tuple[str, int], int] = {("", 0): _FITS}

    # --- keeping up -------------------------------------------------------------------------------------------------

    def _renew(self, table: Any, inventory: DeviceInventory) -> None:
        """Drops what changes of the inventory or of nodes make invalid. O(nodes) after such a change."""
        if inventory.version != self._version:
            self._version, self._generation = inventory.version, -1
            self._columns.clear()
            self._numbers.clear()
            self._forget_results()
            self._names, self._pools = {}, []
        if (read := inventory.read_attributes()) != self._read:
            self._read = read
            self._reshape()
        if table.generation == self._generation and len(self._pools) == len(table):
            return
        self._generation = table.generation
        pools = [inventory.pools(node.name, node.labels) for node in table.nodes]
        source = np.full(len(pools), -1, dtype=np.intp)
        for row, node in enumerate(table.nodes):
            before = self._names.get(node.name, -1)
            if before >= 0 and self._pools[before] is pools[row]:
                source[row] = before
        for column in self._columns.values():
            column.codes = np.where(source >= 0, column.codes.take(source) if len(column.codes) else 0, _UNKNOWN)
        self._names = {node.name: row for row, node in enumerate(table.nodes)}
        self._pools, self._rows = pools, {}
        for row, reached in enumerate(pools):
            for pool in reached:
                self._rows.setdefault(pool.id, []).append(row)
        self._is_local = all(len(rows) == 1 for rows in self._rows.values())
        self._reshape()

    def _reshape(self) -> None:
        self._shapes = [self._shape(reached) for reached in self._pools]
        self._states.clear()
        self._single.clear()

    def _column(self, contents: tuple[Hashable, ...], usage: DeviceUsage, *, future: bool) -> _Column:
        key = future, contents
        column = self._columns.pop(key, None)
        if column is None:
            while self._columns and (
                len(self._columns) >= _MOST_CONTENTS or (len(self._columns) + 1) * len(self._pools) > _MOST_ENTRIES
            ):
                del self._columns[next(iter(self._columns))]
            column = _Column(len(self._pools), usage.changes.serial)
        elif column.serial != usage.changes.serial:
            column.codes[self._rows_changed_since(column.serial, usage)] = _UNKNOWN
            column.serial = usage.changes.serial
        self._columns[key] = column  # most recently used
        return column

    def _rows_changed_since(self, serial: int, usage: DeviceUsage) -> list[int]:
        return [row for pool in usage.changes.since(serial, self._rows) for row in self._rows.get(pool, ())]

    # --- equal nodes ------------------------------------------------------------------------------------------------

    def _shape(self, pools: tuple[DevicePool, ...]) -> int:
        """The number of pools with these devices; -1 if the result may name one, or depends on shares."""
        read = self._read
        if any(device.is_shared or device.spec.binding_conditions for pool in pools for device in pool.devices):
            return -1
        return self._number(
            tuple(
                (
                    pool.id[0],
                    pool.incomplete,
                    bool(pool.invalid),
                    tuple(pool.counters.items()),
                    tuple([
                        (device.content.part(read), card_of(device), device.taints, tuple(device.counters.items()))
                        for device in pool.devices
                    ]),
                )
                for pool in pools
            )
        )  # fmt: skip

    def _state(self, row: int, usage: DeviceUsage, *, future: bool) -> int:
        """The number of the devices of a node and of which of them are in use; -1 for a node that equals no other."""
        states = self._current_states(usage, future=future)
        found = int(states[row])
        if found == _UNREAD:
            is_in_use = usage.is_in_use
            found = states[row] = self._number(
                (
                    self._shapes[row],
                    tuple([is_in_use(device.id) for pool in self._pools[row] for device in pool.devices]),
                    tuple([
                        frozenset(usage.used_counters(pool.id).items()) for pool in self._pools[row] if pool.counters
                    ]),
                )
            )  # fmt: skip
        return found

    def _current_states(self, usage: DeviceUsage, *, future: bool) -> npt.NDArray[np.int64]:
        """The state of each row, `_UNREAD` for one that changed."""
        states, serial = self._states.get(future) or (None, usage.changes.serial)
        if states is None:
            states = np.where(np.array(self._shapes, dtype=np.int64) < 0, -1, _UNREAD)
        if serial != usage.changes.serial:
            changed = self._rows_changed_since(serial, usage)
            states[[row for row in changed if self._shapes[row] >= 0]] = _UNREAD
        self._states[future] = states, usage.changes.serial
        return states

    def _number(self, key: Hashable) -> int:
        """Numbers equal keys equally, while they are kept. No number is used twice."""
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= _MOST_STATES:
                self._numbers.clear()
                for column in self._columns.values():
                    column.by_state.clear()
                    column.most.clear()
                    column.solutions.clear()
                    column.following.clear()
            self._made += 1
            found = self._numbers[key] = self._made
        return found
