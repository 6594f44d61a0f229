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

from typing import TYPE_CHECKING, Protocol

from capcard_sched.framework.toolkit.label_groups import LabelGroup, LabelGroups, add_to
from capcard_sched.framework.toolkit.pod_selectors import MAX_CLASSES
from capcard_sched.framework.toolkit.topology_count import (
    CarriedTerms,
    CarrierCount,
    CarrierCounts,
    DomainArrays,
    PodCount,
    TopologyCount,
    by_id,
)
from capcard_sched.model.status import SESSION_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_selectors import NamespaceLabels, PodSelector
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass

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
        return not self._pods and not len(self._carriers)

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
        if len(self._with_terms) > MAX_CLASSES:
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
        if not self._grouped and not with_terms:
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
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._removed.add(task.uid)
            self._touched.add(node.name)
            placed = self._placed.pop(task.uid, None)
            if node.row < 0 or self.idle:
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
