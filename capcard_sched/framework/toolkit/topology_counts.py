"""Counts pods by topology domain for pod (anti-)affinity and topology spread, updated with every placement.

A term needs two numbers: the pods in a node's domain that a selector selects, and the pods there that carry a term
which selects the incoming pod. A `PodCount` and a `CarrierCount` hold them. Pod counts are derived from groups of pods
with equal labels when they are used, so that the memory of pending terms does not grow with the nodes.

Each plugin that needs counts owns a `TopologyCounts` and calls it from its own hooks: `open` from `open`, `place` from
`on_allocate`, `displace` from `on_deallocate`. The terms of pending pods are registered at open, so that the terms that
may apply to a pod are complete from the start of a session. While no pod has a term, the cost is one dictionary lookup
per pod whose node or job changed.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from capcard_sched.framework.toolkit.label_groups import LabelGroup, LabelGroups, add_to
from capcard_sched.framework.toolkit.pod_selectors import MAX_CLASSES, SelectorIndex
from capcard_sched.model.status import SESSION_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_selectors import NamespaceLabels, PodSelector
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass

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
        #: All counts, for readers.
        self.all: Final[Mapping[tuple[PodSelector, str, int], CarrierCount]] = self._counts
        self._index: SelectorIndex[CarrierCount] = SelectorIndex()
        #: Counts that may have lost their last use or carrier.
        self.released: set[CarrierCount] = set()
        #: Counts to the one object for them.
        self._terms: dict[tuple[CarrierCount, ...], CarriedTerms] = {}
        #: Namespace and identity of labels to the labels and the terms that select such a pod.
        self._selecting: dict[tuple[str, int], tuple[Mapping[str, str], CarriedTerms | None]] = {}

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


#: Sessions after which a count that no pending pod needs is dropped.
_UNUSED_SESSIONS = 64


class TermReader(Protocol):
    """Reads the terms of pods for `TopologyCounts`; its owner implements it."""

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own. Called once per class."""
        ...

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        """The counts of pods that the terms of a pending pod need (`TopologyCounts.pods`)."""
        ...

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """The counts that a pod's own terms add to on its node (`TopologyCounts.carriers`), with positive amounts."""
        ...


class TopologyCounts:
    """All counts of one plugin."""

    def __init__(self, reader: TermReader) -> None:
        self._reader = reader
        self._index: NodeIndex | None = None
        self._nodes: list[Node] = []
        #: Labels of namespaces, constant during a session.
        self.namespaces: NamespaceLabels = {}
        #: Number of sessions opened.
        self.session = 0
        #: Number of counts dropped so far: a change invalidates every reference to a count.
        self.dropped = 0
        self._groups = LabelGroups()
        self._arrays = DomainArrays(lambda count: self._groups.load(count, self.namespaces), self._groups.unload)
        self._pods: dict[tuple[tuple[PodSelector, ...], bool], PodCount] = {}
        self._carriers = CarrierCounts(self._arrays)
        self._with_terms: dict[TaskClass, bool] = {}
        #: Whether the groups are maintained: while there is a pod count.
        self._grouped = False
        #: Whether `open` runs: it starts the groups when all terms are registered.
        self._opening = False
        #: Node name to the sums of the terms that its pods carry.
        self._present: dict[str, dict[CarrierCount, int]] = {}
        #: Job key to the counts that its pending pods need.
        self._uses: dict[str, frozenset[TopologyCount]] = {}
        #: Pod counts without uses to the session since when, the earliest first.
        self._unused: dict[PodCount, int] = {}
        self._queues: set[str] = set()
        #: Nodes with placements in the last session, some of which were undone.
        self._touched: set[str] = set()
        #: Pods removed from their node in this session, by uid; the node may still list them.
        self._removed: set[str] = set()
        #: Pods placed in this session, by uid: whether they count as live, and the terms that they carry.
        self._placed: dict[str, tuple[bool, list[tuple[CarrierCount, int]]]] = {}

    # --- lookups ----------------------------------------------------------------------------------------------------

    @property
    def index(self) -> NodeIndex:
        """The node index of this session."""
        assert self._index is not None
        return self._index

    @property
    def idle(self) -> bool:
        """Whether no pod in the cluster has a term."""
        return not (self._pods or self._carriers.all)

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own."""
        found = self._with_terms.get(cls)
        if found is None:
            found = self._with_terms[cls] = self._reader.has_terms(cls)
        return found

    def pods(self, selectors: tuple[PodSelector, ...], *, live_only: bool = False) -> PodCount:
        """The count of pods that all `selectors` select. O(pods on nodes) for the first one in mid-session."""
        pod_count = self._pods.get((selectors, live_only))
        if pod_count is None:
            pod_count = PodCount(selectors, self._arrays, live_only=live_only)
            self._pods[selectors, live_only] = pod_count
            self._unused[pod_count] = self.session
            if not self._grouped and not self._opening:
                self._group_all()
        return pod_count

    def carriers(self, selector: PodSelector, topology_key: str, kind: int = 0) -> CarrierCount:
        """The count of pods that carry a term with this selector and topology key; `kind` separates sorts of terms."""
        return self._carriers.of(selector, topology_key, kind)

    def carriers_selecting(self, namespace: str, labels: Mapping[str, str]) -> CarriedTerms | None:
        """The carried terms that select a pod with these labels, in order of creation; None without any.

        `labels` must not change later. O(1) for the same namespace and labels while the carried terms are the same.
        """
        return self._carriers.selecting(namespace, labels, self.namespaces)

    # --- updates ----------------------------------------------------------------------------------------------------

    def open(self, session: Session, index: NodeIndex) -> None:
        """Apply the changes since the last session. O(pods of changed jobs and on changed nodes)."""
        changed, table = session.changed, session.nodes
        self.session += 1
        everything = changed.everything or self._index is None
        self._opening = True
        if everything or len(self._with_terms) > MAX_CLASSES:
            self._with_terms.clear()
        self._removed.clear()
        self._placed.clear()
        self._nodes = table.nodes
        self.namespaces = session.snapshot.namespaces
        if everything:
            self._forget()
        elif changed.namespaces:
            self._refresh_namespaces(changed.namespaces)
        if index is not self._index:
            self._index = index
            self._move_rows()
        self._refresh_jobs(session, everything=everything)
        self._opening = False
        stale: Collection[str] = table.by_name if everything else changed.nodes | self._touched
        if not self._grouped and self._pods:
            if everything:
                self._grouped = True  # the loop below groups all nodes
            else:
                self._group_all()
        has_sums = self._grouped or self._present or any(map(self.has_terms, session.snapshot.classes_with_terms))
        if has_sums:
            for name in stale:
                self._refresh_node(name, table.by_name.get(name))
        self._touched.clear()
        self._drop_unused()

    def _forget(self) -> None:
        self._ungroup()
        for pod_count in self._pods.values():
            pod_count.uses = 0
        self._carriers.reset()
        self._unused = dict.fromkeys(self._pods.values(), self.session)
        self._present.clear()
        self._uses.clear()
        self._queues.clear()

    def _ungroup(self) -> None:
        """Stop maintaining the groups."""
        for pod_count in self._pods.values():
            pod_count.drop_arrays()
        self._groups.clear()
        self._grouped = False

    def _group_all(self) -> None:
        """Start maintaining the groups. O(pods on nodes)."""
        self._grouped = True
        for node in self._nodes:
            for task in node.tasks.values():
                if task.uid in self._removed:
                    continue
                live = _is_live(task)
                self._count_pod(task, node, 1, live=live)
                if task.status in SESSION_STATUSES:
                    self._placed.setdefault(task.uid, (live, []))

    def _refresh_namespaces(self, namespaces: Mapping[str, Mapping[str, str] | None]) -> None:
        """Unload the counts whose namespaces changed. `namespaces`: former labels by name."""
        for pod_count in self._pods.values():
            if any(
                selector.is_affected_by(name, before, self.namespaces.get(name))
                for selector in pod_count.selectors
                for name, before in namespaces.items()
            ):
                pod_count.drop_arrays()
        self._carriers.refresh()

    def _move_rows(self) -> None:
        """Move the sums, which are kept by node name, to the new node rows."""
        for pod_count in self._pods.values():
            pod_count.drop_arrays()
        self._groups.move_rows(self._nodes)
        self._carriers.reset(uses=False)
        rows = {node.name: node.row for node in self._nodes} if self._present else {}
        for name in list(self._present):
            row = rows.get(name)
            if row is None:
                self._carriers.released.update(self._present.pop(name))
                continue
            for carrier, amount in self._present[name].items():
                carrier.change(row, amount)

    def _refresh_jobs(self, session: Session, *, everything: bool) -> None:
        keys: Iterable[str] = session.jobs if everything else set(session.changed.jobs)
        if session.queues.keys() != self._queues:
            appeared = session.queues.keys() - self._queues
            self._queues = set(session.queues)
            if not everything:
                keys = set(keys).union(*(session.queues[name].jobs for name in appeared))
        if not self._uses and not any(map(self.has_terms, session.snapshot.classes_with_terms)):
            return  # most clusters: there are fewer classes than jobs
        for key in keys:
            job = session.jobs.get(key)
            needed: set[TopologyCount] = set()
            pending = job.pending.values() if job is not None else ()
            with_terms = {cls for cls in {task.cls for task in pending} if self.has_terms(cls)}
            for task in pending if with_terms else ():
                if task.cls in with_terms:
                    needed.update(self._reader.needed(task))
                    needed.update(pod_count for pod_count, _ in self._reader.carried(task))
            for count in self._uses.pop(key, ()):
                self._use(count, -1)
            if needed:
                self._uses[key] = frozenset(needed)
                for count in needed:
                    self._use(count, +1)

    def _use(self, count: TopologyCount, change: int) -> None:
        """Change the number of jobs that need a count."""
        count.uses += change
        if isinstance(count, CarrierCount):
            if not count.uses:
                self._carriers.released.add(count)
        elif isinstance(count, PodCount):
            if count.uses:
                self._unused.pop(count, None)
            else:
                self._unused[count] = self.session

    def _refresh_node(self, name: str, node: Node | None) -> None:
        old = self._present.pop(name, {})
        if node is None:
            self._groups.replace(name, None, {})
            self._carriers.released.update(old)
            return
        carried: dict[CarrierCount, int] = {}
        groups: dict[LabelGroup, tuple[int, int]] = {}
        for task in node.tasks.values():
            if self._grouped:
                group = self._groups.of(task.namespace, task.labels, self.namespaces)
                pods, live = groups.get(group, (0, 0))
                groups[group] = pods + 1, live + _is_live(task)
            if self.has_terms(task.cls):
                for carrier, amount in self._reader.carried(task):
                    carried[carrier] = carried.get(carrier, 0) + amount
        if self._grouped:
            self._groups.replace(name, node, groups)
        for carrier in sorted({*old, *carried}, key=by_id):
            difference = carried.get(carrier, 0) - old.get(carrier, 0)
            if difference:
                self._change(carrier, node.row, difference)
        if carried:
            self._present[name] = carried

    def _change(self, carrier: CarrierCount, row: int, amount: int) -> None:
        carrier.change(row, amount)
        if not carrier.sum:
            self._carriers.released.add(carrier)

    def _count_pod(self, task: Task, node: Node, pods: int, *, live: bool) -> None:
        group = self._groups.of(task.namespace, task.labels, self.namespaces)
        self._groups.change(node, group, pods, pods if live else 0)

    def _count_terms(self, node: Node, terms: list[tuple[CarrierCount, int]], sign: int) -> None:
        for carrier, amount in terms:
            self._change(carrier, node.row, sign * amount)
            add_to(self._present.setdefault(node.name, {}), carrier, sign * amount)

    def _drop_unused(self) -> None:
        """Drop pod counts that no pending pod needed for some sessions, and carrier counts without a carrier."""
        unused: list[PodCount] = []
        for pod_count, since in self._unused.items():
            if self.session - since <= _UNUSED_SESSIONS:
                break
            unused.append(pod_count)
        for pod_count in unused:
            pod_count.drop_arrays()
            del self._unused[pod_count]
            del self._pods[pod_count.selectors, pod_count.live_only]
        if self._grouped and not self._pods:
            self._ungroup()
        elif self._grouped and self.session % _UNUSED_SESSIONS == 0:
            self._groups.prune()
        self.dropped += len(unused) + self._carriers.drop_released()

    # --- placements -------------------------------------------------------------------------------------------------

    def place(self, placement: Placement) -> None:
        """Add pods that were placed, or whose eviction was undone. O(1) per pod and count that selects it."""
        if self._removed:
            self._removed.difference_update([task.uid for task in placement.tasks])
        with_terms = self.has_terms(placement.cls)
        if not (self._grouped or with_terms):
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            if node.row < 0:
                continue
            live = not task.deleting
            terms = list(self._reader.carried(task)) if with_terms else []
            if self._grouped:
                self._count_pod(task, node, 1, live=live)
            self._count_terms(node, terms, 1)
            self._placed[task.uid] = live, terms

    def displace(self, placement: Placement) -> None:
        """Undo `place`, or remove pods that are being evicted."""
        idle = self.idle
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._removed.add(task.uid)
            self._touched.add(node.name)
            placed = self._placed.pop(task.uid, None)
            if idle or node.row < 0:
                continue
            if placed is None:
                if task.status in SESSION_STATUSES:
                    # Placed while there was no count, or `place` was not called because another plugin failed.
                    continue
                placed = _is_live(task), list(self._reader.carried(task)) if self.has_terms(task.cls) else []
            live, terms = placed
            if self._grouped:
                self._count_pod(task, node, -1, live=live)
            self._count_terms(node, terms, -1)


def _is_live(task: Task) -> bool:
    return not task.deleting and task.status is not TaskStatus.RELEASING
