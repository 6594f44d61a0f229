"""Counts of pods by node row and, derived from it, by topology domain; a placement updates both in O(1).

For pods that a term selects, and for the terms that pods carry.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.toolkit.label_groups import add_to
from capcard_sched.framework.toolkit.pod_selectors import MAX_CLASSES, SelectorIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.toolkit.label_groups import LabelGroup
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_selectors import NamespaceLabels, PodSelector
    from capcard_sched.model.resources import Vector

#: Bytes of the arrays of all counts of one plugin. The least recently used ones are dropped and rebuilt on demand.
_MAX_ARRAY_BYTES = 64 * 1024 * 1024
#: Bytes per label group of a loaded count: an entry in the group and one in the count.
_GROUP_BYTES = 128


class _Domains(NamedTuple):
    """A count by the domains of one topology key."""

    codes: Rows
    mask: Mask | None
    #: int64 [domains + 1]; the last entry stays 0 and serves nodes without the label (code -1).
    totals: Vector


class DomainArrays:
    """Bounds the memory of the arrays that the counts of one plugin derive."""

    def __init__(self, load: Callable[[PodCount], None], unload: Callable[[PodCount], None]) -> None:
        """`load`, `unload`: attach a count to its label groups and detach it."""
        self.load = load
        self.unload = unload
        #: Counts with arrays and their bytes, the least recently used first.
        self._bytes: OrderedDict[TopologyCount, int] = OrderedDict()
        self._total = 0
        self._zeros: Vector = np.zeros(0, dtype=np.int64)

    def zeros(self, size: int) -> Vector:
        """A shared read-only array: int64 [size]."""
        if len(self._zeros) < size:
            self._zeros = np.zeros(size, dtype=np.int64)
            self._zeros.flags.writeable = False
        return self._zeros[:size]

    def used(self, count: TopologyCount, more: int = 0) -> None:
        """Note a use of the arrays of a count, after it added `more` bytes, and drop those of others if necessary."""
        self._bytes[count] = self._bytes.get(count, 0) + more
        self._bytes.move_to_end(count)
        self._total += more
        while self._total > _MAX_ARRAY_BYTES and len(self._bytes) > 1:
            oldest = next(iter(self._bytes))
            oldest.drop_arrays()

    def dropped(self, count: TopologyCount) -> None:
        """Note that a count has no arrays."""
        self._total -= self._bytes.pop(count, 0)


class TopologyCount:
    """Counts pods by topology domain. Compared by identity, so that pod signatures can hold it.

    Arrays are derived on use and kept within the bounds of `DomainArrays`.
    """

    __slots__ = ("_arrays", "_domains", "selectors", "uses")

    def __init__(self, selectors: tuple[PodSelector, ...], arrays: DomainArrays) -> None:
        #: All of them must select the pod: the counted pod or, for carried terms, the pod that the terms apply to.
        self.selectors = selectors
        #: Number of jobs with a pending pod that needs this count.
        self.uses = 0
        self._arrays = arrays
        self._domains: dict[tuple[str | None, Hashable], _Domains] = {}

    @property
    def sum(self) -> int:
        """The count over all nodes."""
        raise NotImplementedError

    def _by_row(self) -> dict[int, int]:
        """Node row to its count; rows with 0 are absent."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.selectors}, sum={self.sum})"

    def drop_arrays(self) -> None:
        """Free the arrays; the next use rebuilds them."""
        if self._domains:
            self._domains.clear()
            self._arrays.dropped(self)

    def change(self, row: int, amount: int) -> None:
        """Add to one node row."""
        for domains in self._domains.values():
            code = domains.codes[row]
            if code >= 0 and (domains.mask is None or domains.mask[row]):
                domains.totals[code] += amount

    def totals(self, index: NodeIndex, topology_key: str, scope: Hashable = None, mask: Mask | None = None) -> Vector:
        """Counts per domain: int64 [domains + 1], indexed by `index.column(topology_key).codes`. Read-only.

        With a mask (bool [nodes]) only pods on those nodes count; `scope` identifies the mask. O(nodes with such pods)
        the first time, then O(1).
        """
        found = self._domains.get((topology_key, scope))
        if found is not None:
            self._arrays.used(self)
            return found.totals
        codes, values = index.column(topology_key)
        return self._build((topology_key, scope), codes, len(values), mask)

    def by_row(self, index: NodeIndex) -> Vector:
        """Counts per node: int64 [nodes + 1], indexed by row. Read-only. The costs are those of `totals`."""
        found = self._domains.get((None, None))
        if found is not None:
            self._arrays.used(self)
            return found.totals
        return self._build((None, None), np.arange(len(index), dtype=np.intp), len(index), None)

    def _build(self, key: tuple[str | None, Hashable], codes: Rows, size: int, mask: Mask | None) -> Vector:
        by_row = self._by_row()
        if not by_row:
            return self._arrays.zeros(size + 1)
        totals = np.zeros(size + 1, dtype=np.int64)
        rows = np.fromiter(by_row.keys(), dtype=np.intp, count=len(by_row))
        amounts = np.fromiter(by_row.values(), dtype=np.int64, count=len(by_row))
        there = codes[rows]
        counted = there >= 0 if mask is None else (there >= 0) & mask[rows]
        np.add.at(totals, there[counted], amounts[counted])
        self._domains[key] = _Domains(codes, mask, totals)
        self._arrays.used(self, totals.nbytes)
        return totals


class PodCount(TopologyCount):
    """Counts the pods that all selectors select. Loaded on use: then it follows its label groups."""

    __slots__ = ("_sum", "groups", "live_only")

    def __init__(self, selectors: tuple[PodSelector, ...], arrays: DomainArrays, *, live_only: bool) -> None:
        super().__init__(selectors, arrays)
        #: Whether pods that are being deleted are excluded.
        self.live_only = live_only
        #: The groups that it selects, while it is loaded.
        self.groups: list[LabelGroup] = []
        #: None while it is not loaded.
        self._sum: int | None = None

    @property
    def sum(self) -> int:
        """The count over all nodes; loads the count."""
        if self._sum is None:
            self._arrays.load(self)
            self._sum = sum(sum(self._rows_of(group).values()) for group in self.groups)
            self._arrays.used(self, _GROUP_BYTES * (1 + len(self.groups)))
        return self._sum

    def _rows_of(self, group: LabelGroup) -> dict[int, int]:
        return group.live if self.live_only else group.rows

    def _by_row(self) -> dict[int, int]:
        if not self.sum:
            return {}
        if len(self.groups) == 1:
            return self._rows_of(self.groups[0])
        total: dict[int, int] = {}
        for group in self.groups:
            for row, pods in self._rows_of(group).items():
                total[row] = total.get(row, 0) + pods
        return total

    def change(self, row: int, amount: int) -> None:
        """Add to one node row of a loaded count."""
        if self._sum is not None:
            self._sum += amount
        super().change(row, amount)

    def drop_arrays(self) -> None:
        """Unload the count; the next use loads it again."""
        self._domains.clear()
        self._arrays.dropped(self)
        if self._sum is not None:
            self._sum = None
            self._arrays.unload(self)


class CarrierCount(TopologyCount):
    """Counts the pods that carry a term with one selector, or sums the weights of these terms."""

    __slots__ = ("_sum", "carried", "id", "rows")

    def __init__(
        self, id: int, selectors: tuple[PodSelector, ...], arrays: DomainArrays, carried: tuple[str, int]
    ) -> None:
        super().__init__(selectors, arrays)
        #: Order of creation.
        self.id = id
        #: Topology key and kind of the terms.
        self.carried = carried
        #: Node row to its count; rows with 0 are absent.
        self.rows: dict[int, int] = {}
        self._sum = 0

    @property
    def sum(self) -> int:
        """The count over all nodes."""
        return self._sum

    def _by_row(self) -> dict[int, int]:
        return self.rows

    def reset(self) -> None:
        """Set all counts to 0."""
        self.rows.clear()
        self._sum = 0
        self.drop_arrays()

    def change(self, row: int, amount: int) -> None:
        """Add to one node row."""
        add_to(self.rows, row, amount)
        self._sum += amount
        super().change(row, amount)


class CarriedTerms:
    """The counts of carried terms that select one pod. Compared by identity: equal ones are one object."""

    __slots__ = ("by_key", "counts")

    def __init__(self, counts: tuple[CarrierCount, ...]) -> None:
        self.counts = counts
        #: Topology key to the counts with it, in order of the counts.
        self.by_key: dict[str, list[CarrierCount]] = {}
        for count in counts:
            self.by_key.setdefault(count.carried[0], []).append(count)


def by_id(count: CarrierCount) -> int:
    """Sort key: order of creation."""
    return count.id


class CarrierCounts:
    """All carrier counts of one plugin. A count is dropped when no pod carries its term and no pending pod needs it."""

    def __init__(self, arrays: DomainArrays) -> None:
        self._arrays = arrays
        self._next_id = 0
        self._counts: dict[tuple[PodSelector, str, int], CarrierCount] = {}
        self._index: SelectorIndex[CarrierCount] = SelectorIndex()
        #: Counts that may have lost their last use or carrier.
        self.released: set[CarrierCount] = set()
        #: Counts to the one object for them.
        self._terms: dict[tuple[CarrierCount, ...], CarriedTerms] = {}
        #: Namespace and identity of labels to the labels and the terms that select such a pod.
        self._selecting: dict[tuple[str, int], tuple[Mapping[str, str], CarriedTerms | None]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, selector: PodSelector, topology_key: str, kind: int) -> CarrierCount:
        """The count of terms with this selector, topology key and kind."""
        count = self._counts.get((selector, topology_key, kind))
        if count is None:
            self._next_id += 1
            count = CarrierCount(self._next_id, (selector,), self._arrays, (topology_key, kind))
            self._counts[selector, topology_key, kind] = count
            self._index.add((selector,), count)
            self._selecting.clear()
            self.released.add(count)
        return count

    def selecting(self, namespace: str, labels: Mapping[str, str], known: NamespaceLabels) -> CarriedTerms | None:
        """The terms that select a pod with these labels (see `TopologyCounts.carriers_selecting`)."""
        index = self._index
        if not len(index):
            return None
        if len(self._selecting) >= MAX_CLASSES:
            self._selecting.clear()
        key = (namespace, id(labels))
        cached = self._selecting.get(key)
        if cached is None:
            counts = tuple(sorted(index.matching(namespace, labels, known), key=by_id))
            terms = None
            if counts:
                if len(self._terms) >= MAX_CLASSES:
                    self._terms.clear()
                terms = self._terms.setdefault(counts, CarriedTerms(counts))
            cached = self._selecting[key] = labels, terms
        return cached[1]

    def reset(self, *, uses: bool = True) -> None:
        """Set all counts to 0, and with `uses` their uses as well."""
        for count in self._counts.values():
            count.reset()
            if uses:
                count.uses = 0
        self.released = set(self._counts.values())
        self.refresh()

    def refresh(self) -> None:
        """Note that the labels of a namespace changed."""
        self._selecting.clear()

    def drop_released(self) -> int:
        """Drop the counts without carrier and use. Returns their number."""
        dropped = {count for count in self.released if not count.uses and not count.sum}
        self.released.clear()
        for count in sorted(dropped, key=by_id):
            del self._counts[(count.selectors[0], *count.carried)]
            self._index.discard(count.selectors, count)
            self._selecting.clear()
            count.drop_arrays()
        if dropped and not dropped.isdisjoint(chain.from_iterable(self._terms)):
            terms = self._terms
            self._terms = {counts: terms[counts] for counts in terms if dropped.isdisjoint(counts)}
        return len(dropped)
