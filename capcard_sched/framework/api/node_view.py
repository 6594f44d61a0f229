"""The arguments of node hooks: a selection of node rows as arrays, and a filter result to write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from capcard_sched.model.job import Node
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]


class PodSignature:
    """A task class in its context: everything that decides feasibility and score of a pod on a node.

    `contexts` holds the results of the hook `signature` by plugin name; plugins that returned None are absent.
    Signatures are interned per session: equal content is one object.
    """

    __slots__ = ("cls", "contexts", "id", "row_key")

    def __init__(self, cls: TaskClass, contexts: dict[str, Hashable], id: int, row_key: Hashable | None = None) -> None:
        self.cls = cls
        self.contexts = contexts
        self.id = id
        #: Equal for signatures for which hooks that read single nodes have equal results.
        self.row_key: Hashable = (cls, tuple(contexts.items())) if row_key is None else row_key

    def context(self, plugin: str) -> Any:
        """The context of `plugin` in the signature, or None."""
        return self.contexts.get(plugin)


class NodeView:
    """A selection of `k` node rows. Entries may repeat a row and may be hypothetical.

    A hypothetical entry is the node after some more pods of the class were placed there: `used` and `nonzero_used`
    include them. Arrays are read-only by contract.
    """

    __slots__ = (
        "_allocatable",
        "_charged",
        "_states",
        "future",
        "nodes",
        "rows",
        "table",
        "whole",
    )

    def __init__(
        self,
        table: Any,
        rows: Rows,
        *,
        whole: bool = False,
        allocatable: Matrix | None = None,
        charged: Matrix | None = None,
        used: Matrix | None = None,
        nonzero_used: Matrix | None = None,
        states: Mapping[str, Rows] | None = None,
        future: bool = False,
    ) -> None:
        self.table = table
        #: Row of each entry, intp [k].
        self.rows = rows
        #: True when the selection is every row in order: per-node arrays of length N can be used unchanged.
        self.whole = whole
        #: Whether releasing pods count as gone.
        self.future = future
        self._states = states
        #: All nodes of the session by row; `nodes[rows[i]]` is the node of entry i.
        self.nodes: list[Node] = table.nodes
        self._allocatable = allocatable
        #: int64 [k, resources + 2]: `used` and `nonzero_used` side by side.
        self._charged = charged
        if used is not None:
            self._charged = np.hstack([used, self.nonzero_used if nonzero_used is None else nonzero_used])

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, per_node: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The entries' values of an array with one value (or row of values) per node of the session."""
        return per_node if self.whole else per_node.take(self.rows, axis=0)

    def part(self, places: Rows) -> NodeView:
        """The nodes of some entries, without further pods."""
        if len(places) == len(self.rows):
            return self
        return NodeView(self.table, self.rows.take(places), future=self.future)

    def only(self, places: Rows) -> NodeView:
        """Some entries, with their further pods. `places`: intp, ascending."""
        charged = None if self._charged is None else self._charged.take(places, axis=0)
        allocatable = None if self._allocatable is None else self._allocatable.take(places, axis=0)
        states = None
        if self._states is not None:
            states = {plugin: numbers.take(places) for plugin, numbers in self._states.items()}
        rows = self.rows.take(places)
        return NodeView(self.table, rows, allocatable=allocatable, charged=charged, states=states, future=self.future)

    def state(self, plugin: str, now: Rows) -> Rows:
        """The plugin's node state (hook `node_state`) of each entry: int64 [k]. `now`: the states of all nodes."""
        found: Rows = self.take(now) if self._states is None else self._states[plugin]
        return found

    @property
    def allocatable(self) -> Matrix:
        """int64 [k, resources], base units."""
        if self._allocatable is None:
            self._allocatable = self.take(self.table.allocatable)
        return self._allocatable

    @property
    def used(self) -> Matrix:
        """int64 [k, resources]: the sum of all placed pods, releasing ones included; `pods` counts the pods."""
        return self.charged[:, :-2]

    @property
    def releasing(self) -> Matrix:
        """int64 [k, resources]: the part of `used` that is being released."""
        return self.take(self.table.releasing)

    @property
    def pipelined(self) -> Matrix:
        """int64 [k, resources]: the part of `releasing` that is assigned to pipelined pods."""
        return self.take(self.table.pipelined)

    @property
    def nonzero_used(self) -> Matrix:
        """int64 [k, 2]: cpu milli and memory bytes, with the non-zero defaults of pods without requests."""
        return self.charged[:, -2:]

    @property
    def charged(self) -> Matrix:
        """int64 [k, resources + 2]: `used` and `nonzero_used` side by side."""
        if self._charged is None:
            self._charged = self.take(self.table.charged)
        return self._charged

    @property
    def idle(self) -> Matrix:
        """int64 [k, resources]: allocatable - used; may be negative."""
        return self.allocatable - self.used

    @property
    def future_idle(self) -> Matrix:
        """int64 [k, resources]: idle + releasing - pipelined; may be negative."""
        return self.allocatable - self.used + self.releasing - self.pipelined

    def has_capacity(self, request: Vector, *, future: bool = False) -> Mask:
        """Whether entries have capacity for a request now (`future`: once releasing pods are gone): bool [k]."""
        requested = request.nonzero()[0]
        coming = self.releasing - self.pipelined
        if not future:  # idle capacity assigned to pipelined pods is taken
            coming = np.minimum(coming, 0)
        free = (self.idle + coming).take(requested, axis=1)
        enough: Mask = np.logical_and.reduce(free >= request.take(requested), axis=1)
        return enough


class FilterResult:
    """The feasible entries of a selection. Hooks call `reject`; they never read the results of other hooks."""

    __slots__ = ("_ok", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ok: Mask | None = None

    @property
    def unanimous(self) -> bool:
        """Whether no hook rejected any entry."""
        return self._ok is None

    @property
    def ok(self) -> Mask:
        """Whether each entry is feasible so far: bool [k]."""
        if self._ok is None:
            self._ok = np.ones(self._size, dtype=bool)
        return self._ok

    @property
    def open(self) -> Mask:
        """The entries whose result a further rejection changes: bool [k]."""
        return self.ok

    def reject(self, rejected: Mask, code: Code, reason: str) -> None:
        """Rejects the entries where `rejected` (bool [k]) is true, for one reason with one text."""
        if self._ok is None:
            self._ok = ~rejected
        else:
            self._ok &= ~rejected

    def reject_all(self, code: Code, reason: str) -> None:
        """Rejects every entry."""
        self._ok = np.zeros(self._size, dtype=bool)


class Diagnosis(FilterResult):
    """A filter result that records the reasons per entry.

    An entry rejected with any code but UNSCHEDULABLE takes no further reasons; an UNSCHEDULABLE one collects more.
    """

    __slots__ = ("_open", "caller", "codes", "entries", "reasons", "sources")

    def __init__(self, size: int) -> None:
        super().__init__(size)
        #: The running (plugin, hook); the framework sets it before each hook.
        self.caller = ("", "fit")
        #: Reason text to the first (plugin, hook) that gave it.
        self.sources: dict[str, tuple[str, str]] = {}
        self._open: Mask = np.ones(size, dtype=bool)
        #: Reason text to the number of entries with it.
        self.reasons: dict[str, int] = {}
        #: Reason text to the entries with it: bool [k].
        self.entries: dict[str, Mask] = {}
        #: int8 [k]: the most severe code per entry.
        self.codes = np.zeros(size, dtype=np.int8)

    @property
    def open(self) -> Mask:
        return self._open

    def reject(self, rejected: Mask, code: Code, reason: str) -> None:
        effective = rejected & self._open
        count = int(np.count_nonzero(effective))
        if not count:
            return
        self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.entries[reason] = effective | self.entries[reason] if reason in self.entries else effective
        self.sources.setdefault(reason, self.caller)
        np.maximum(self.codes, np.where(effective, np.int8(code), np.int8(0)), out=self.codes)
        super().reject(effective, code, reason)
        if code is not Code.UNSCHEDULABLE:
            self._open &= ~effective

    def reject_all(self, code: Code, reason: str) -> None:
        self.reject(np.ones(len(self.ok), dtype=bool), code, reason)
