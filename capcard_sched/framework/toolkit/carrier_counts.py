"""The counts of the terms that pods carry, and the terms among them that select a pod."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from capcard_sched.framework.toolkit.pod_selectors import MAX_CLASSES, SelectorIndex
from capcard_sched.framework.toolkit.topology_count import CarriedTerms, CarrierCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.toolkit.pod_selectors import NamespaceLabels, PodSelector
    from capcard_sched.framework.toolkit.topology_count import DomainArrays


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
        #: Index version for which `_selecting` is valid.
        self._version = -1

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
            self.released.add(count)
        return count

    def selecting(self, namespace: str, labels: Mapping[str, str], known: NamespaceLabels) -> CarriedTerms | None:
        """The terms that select a pod with these labels (see `TopologyCounts.carriers_selecting`)."""
        index = self._index
        if not len(index):
            return None
        if self._version != index.version or len(self._selecting) >= MAX_CLASSES:
            self._version = index.version
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
        self._index.refresh()

    def drop_released(self) -> int:
        """Drop the counts without carrier and use. Returns their number."""
        dropped = {count for count in self.released if not count.uses and not count.sum}
        self.released.clear()
        for count in sorted(dropped, key=by_id):
            del self._counts[(count.selectors[0], *count.carried)]
            self._index.discard(count.selectors, count)
            count.drop_arrays()
        if dropped and not dropped.isdisjoint(chain.from_iterable(self._terms)):
            terms = self._terms
            self._terms = {counts: terms[counts] for counts in terms if dropped.isdisjoint(counts)}
        return len(dropped)
