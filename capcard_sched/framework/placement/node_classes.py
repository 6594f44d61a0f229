"""Node classes: rows with equal amounts and equal static results, which every ranking scores as one.

For most signatures the row hooks read only the amounts of a node, and a cluster of a thousand equal machines has few
distinct amounts at any time. Rankings therefore score classes instead of rows. A placement moves one row to the class
with one more pod, a look-up instead of an evaluation.

Rows of a class are equal in charged and allocatable amounts, and in the masks and static scores that placements cannot
change: their *static group*.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import NodeView

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows, Scores
    from capcard_sched.framework.placement.plugin_states import PluginStates
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.columns import NodeTable

    Numbers = npt.NDArray[np.int64]


_FIRST_ROOM = 256
#: Number of classes beyond the number of rows that triggers a rebuild: most are empty by then.
_MOST_EMPTY = 16384
#: Log entries after which the next session rebuilds the classes.
_LONGEST_LOG = 65536
#: Maximum number of static groups that rankings share: every split rebuilds all classes.
_MAX_STATIC_GROUPS = 64


def _renumbered(codes: Numbers) -> Numbers:
    """The same codes, all >= 0, from 0 on without a gap and in their order. O(codes + the largest one)."""
    return (np.cumsum(np.bincount(codes) > 0) - 1).take(codes)


class NodeClasses:
    """Node classes over a node table, valid while the nodes stay. Numbers restart with each `epoch`."""

    __slots__ = (
        "_generation",
        "_is_member",
        "_numbers",
        "_plugin_states",
        "_recheck",
        "_successors",
        "_synced",
        "_table",
        "allocatable",
        "charged",
        "count",
        "epoch",
        "example",
        "first",
        "held",
        "ids",
        "log",
        "logged",
        "members",
        "rows",
        "static_groups",
    )

    def __init__(
        self,
        table: NodeTable,
        *,
        static_groups: Numbers | None = None,
        members: Mask | None = None,
        plugin_states: PluginStates | None = None,
    ) -> None:
        """`static_groups`: int64 [nodes], as far as known; `members`: bool [nodes], the rows to keep, all when None."""
        self._table = table
        self._plugin_states = plugin_states
        self._is_member = members
        #: intp [members], ascending.
        self.members = np.arange(len(table)) if members is None else members.nonzero()[0]
        #: int64 [nodes]: the static group of each row.
        self.static_groups = np.zeros(len(table), dtype=np.int64) if static_groups is None else static_groups
        self.epoch = 0
        self._rebuild()

    def _rebuild(self) -> None:
        """Numbers all rows anew."""
        table = self._table
        self._synced = table.serial
        #: Whether node states of plugins may have changed without a change of their rows.
        self._recheck = False
        self._generation = table.generation
        numbers: dict[bytes, int] = {}
        states = self._states()
        found = [numbers.setdefault(key, len(numbers)) for key in self._keys(self.members, states)]
        self._start(np.array(found, dtype=np.intp), states)

    def _states(self) -> Matrix | None:
        """The plugins' node states now: int64 [nodes, plugins]; None without any."""
        return None if self._plugin_states is None else self._plugin_states.now()

    def _keys(self, rows: Rows, states: Matrix | None) -> list[bytes]:
        """The contents of rows that decide on their class."""
        table = self._table
        parts = [self.static_groups.take(rows)[:, None], table.allocatable.take(rows, axis=0)]
        parts.append(table.charged.take(rows, axis=0))
        if states is not None:
            parts.append(states.take(rows, axis=0))
        amounts = np.hstack(parts)
        data, step = amounts.tobytes(), amounts.shape[1] * amounts.itemsize
        return [data[at : at + step] for at in range(0, len(data), step)]

    def _start(self, found: Rows, states: Matrix | None) -> None:
        """Starts an epoch. `found`: intp [members], the class of each member; numbers ascend from 0 without a gap."""
        table, members = self._table, self.members
        size = len(table)
        self.epoch += 1
        #: Task class id to: node class to the class with one more such pod.
        self._successors: dict[int, dict[int, int]] = {}
        #: int64 [nodes]: the class of each member.
        self.ids: Numbers = np.zeros(size, dtype=np.int64)
        self.ids[members] = found
        ends = np.cumsum(np.bincount(found)).tolist()
        by_class = members.take(np.argsort(found, kind="stable")).tolist()
        #: Rows of each class, ascending.
        self.rows: list[list[int]] = [by_class[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        #: The number of classes.
        self.count = len(self.rows)
        lowest = np.array([rows[0] for rows in self.rows], dtype=np.intp)
        self._numbers = {key: number for number, key in enumerate(self._keys(lowest, states))}
        slots = self.count + _FIRST_ROOM
        #: int64 [slots]: the lowest row of each class; the number of nodes when it is empty.
        self.first: Numbers = np.full(slots, size, dtype=np.int64)
        self.first[: self.count] = lowest
        #: int64 [slots]: a row that is or was in the class.
        self.example: Numbers = np.zeros(slots, dtype=np.int64)
        self.example[: self.count] = lowest
        #: int64 [slots, resources], [slots, resources + 2]: the amounts, as in the node table.
        self.allocatable = np.zeros((slots, table.allocatable.shape[1]), dtype=np.int64)
        self.charged = np.zeros((slots, table.charged.shape[1]), dtype=np.int64)
        self.allocatable[: self.count] = table.allocatable[lowest]
        self.charged[: self.count] = table.charged[lowest]
        #: int64 [slots, plugins]: the node states of plugins; None without any.
        self.held: Numbers | None = None
        if states is not None:
            self.held = np.zeros((slots, states.shape[1]), dtype=np.int64)
            self.held[: self.count] = states[lowest]
        #: int64 [slots]: classes that got a lower first row, or their first row at all, in order; the first `logged`
        #: entries count.
        self.log: Numbers = np.zeros(slots, dtype=np.int64)
        self.logged = 0

    @property
    def numbers(self) -> Numbers:
        """The class of each row plus 1, 0 for rows outside: int64 [nodes]."""
        if self._is_member is None:
            return self.ids + 1
        found: Numbers = np.where(self._is_member, self.ids + 1, 0)
        return found

    # --- static groups ------------------------------------------------------------------------------------------------

    def separates(self, feasible: Mask, static: Scores | None) -> bool:
        """Whether rows of one static group are equal in these (bool, float64 [nodes]); splits groups where allowed."""
        static_groups = self.static_groups
        if not len(static_groups):
            return True
        example = np.zeros(int(static_groups.max()) + 1, dtype=np.intp)
        example[static_groups] = np.arange(len(static_groups))
        of_group = example.take(static_groups)
        if (feasible.take(of_group) == feasible).all() and (static is None or (static.take(of_group) == static).all()):
            return True
        code = static_groups * 2 + feasible
        if static is not None:
            values, ranks = np.unique(static, return_inverse=True)
            if len(values) > _MAX_STATIC_GROUPS:
                return False
            code = code * len(values) + ranks
        split = _renumbered(code)
        count = int(split.max()) + 1
        if count > _MAX_STATIC_GROUPS:
            return False
        self.static_groups = split
        # Rows of one class were equal in everything else. Every change is applied: `classes_for` caught up.
        own = self.ids.take(self.members) * count + split.take(self.members)
        self._start(_renumbered(own), self._states())
        return True

    # --- rows that change -------------------------------------------------------------------------------------------

    def is_reusable(self, table: NodeTable) -> bool:
        """Whether the next session can reuse these classes after `catch_up`."""
        same = table is self._table and table.generation == self._generation and len(table) == len(self.ids)
        return same and table.charged.shape[1] == self.charged.shape[1] and self.logged <= _LONGEST_LOG

    def recheck(self) -> None:
        """Starts a session: plugins may have changed node states without a change of their rows."""
        self._recheck = True

    def catch_up(self) -> None:
        """Moves the rows that changed in any other way than by `advance`, `move` and `mark_synced`."""
        table = self._table
        if self._synced == table.serial and not self._recheck:
            return
        if self.count > len(self.members) + _MOST_EMPTY:
            self._rebuild()
            return
        states = self._states()
        stale = table.stamps > self._synced
        if self._recheck and states is not None and self.held is not None:
            stale |= (self.held.take(self.ids, axis=0) != states).any(axis=1)
        self._recheck = False
        changed = (stale if self._is_member is None else stale & self._is_member).nonzero()[0]
        self._synced = table.serial
        for row in changed.tolist():
            allocatable, charged = table.allocatable[row], table.charged[row]
            number = self._number(row, allocatable, charged, None if states is None else states[row])
            before = self.ids.item(row)
            if number != before:
                self.move(row, before, number)

    def mark_synced(self) -> None:
        """Marks the table as in sync: all rows advanced since `catch_up` were placed, and nothing else changed."""
        self._synced = self._table.serial

    def successors(self, cls: TaskClass) -> dict[int, int]:
        """Class to the class with one more pod of the task class, where it is known."""
        return self._successors.setdefault(cls.id, {})

    def successor(self, node_class: int, row: int, cls: TaskClass) -> int:
        """The class of a row of `node_class` with one more pod of the task class."""
        charged = self.charged[node_class] + cls.charge
        held = None if self.held is None else self.after(self.held[node_class], cls)
        number = self._successors[cls.id][node_class] = self._number(row, self.allocatable[node_class], charged, held)
        return number

    def after(self, held: Vector, cls: TaskClass) -> Vector:
        """The node states after one more pod of the class: int64 [plugins]."""
        assert self._plugin_states is not None
        return self._plugin_states.after(held, cls)

    def by_plugin(self, held: Matrix | None) -> Mapping[str, Numbers] | None:
        """Rows of `held` as `NodeView` arguments: int64 [k] by plugin; None without node states."""
        return None if held is None or self._plugin_states is None else self._plugin_states.by_plugin(held)

    def advance(self, run: list[int], before: int, after: int) -> None:
        """Moves the lowest rows of a class, ascending, to the class with one more pod."""
        if len(run) == 1:
            self.move(run[0], before, after)
            return
        rows = self.rows[before]
        del rows[: len(run)]
        self.first[before] = rows[0] if rows else len(self.ids)
        rows = self.rows[after]
        if not rows or run[0] < rows[0]:
            self._lead(run[0], after)
        if not rows or run[0] > rows[-1]:
            rows += run
        else:
            for row in run:
                insort(rows, row)
        self.ids[run] = after

    def _number(self, row: int, allocatable: Vector, charged: Vector, held: Vector | None) -> int:
        """The class of a row with these amounts."""
        key = self.static_groups[row].tobytes() + allocatable.tobytes() + charged.tobytes()
        if held is not None:
            key += held.tobytes()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.count
            if number == len(self.first):
                self._grow()
            self.count += 1
            self.rows.append([])
            self.example[number] = row
            self.allocatable[number] = allocatable
            self.charged[number] = charged
            if self.held is not None and held is not None:
                self.held[number] = held
        return number

    def _grow(self) -> None:
        size = len(self.first)
        self.first = np.concatenate([self.first, np.full(size, len(self.ids), dtype=np.int64)])
        self.example = np.concatenate([self.example, np.zeros(size, dtype=np.int64)])
        self.allocatable = np.concatenate([self.allocatable, np.zeros_like(self.allocatable)])
        self.charged = np.concatenate([self.charged, np.zeros_like(self.charged)])
        if self.held is not None:
            self.held = np.concatenate([self.held, np.zeros_like(self.held)])

    def move(self, row: int, before: int, after: int) -> None:
        """Moves one row to another class."""
        rows = self.rows[before]
        if rows[0] == row:
            rows.pop(0)
            self.first[before] = rows[0] if rows else len(self.ids)
        else:
            del rows[bisect_left(rows, row)]
        rows = self.rows[after]
        if not rows or row < rows[0]:
            self._lead(row, after)
            rows.insert(0, row)
        else:
            insort(rows, row)
        self.ids[row] = after

    def _lead(self, row: int, node_class: int) -> None:
        """A row becomes the lowest of a class."""
        self.first[node_class] = row
        if self.logged == len(self.log):
            self.log = np.concatenate([self.log, np.zeros_like(self.log)])
        self.log[self.logged] = node_class
        self.logged += 1


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
