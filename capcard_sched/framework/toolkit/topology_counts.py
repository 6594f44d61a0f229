"""Counts pods by topology domain for pod (anti-)affinity and topology spread, updated with every placement.

A term needs two numbers: the pods in a node's domain that a selector selects, and the pods there that carry a term
which selects the incoming pod. A `TopologyCount` holds one of these counts.

Each plugin that needs counts owns a `TopologyCounts` and calls it from its own hooks: `open` from `open`, `place` from
`on_allocate`, `displace` from `on_deallocate`. The selectors of pending pods are registered at open, so that the terms
that may apply to a pod are complete from the start of a session. While no pod has a term, the cost is one dictionary
lookup per pod whose node or job changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from capcard_sched.framework.toolkit.pod_selectors import MAX_CLASSES, SelectorIndex
from capcard_sched.framework.toolkit.topology_count import TopologyCount
from capcard_sched.model.status import TaskStatus

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
_IN_SESSION = frozenset({TaskStatus.ALLOCATED, TaskStatus.PIPELINED})


class TermReader(Protocol):
    """Reads the terms of pods for `TopologyCounts`; its owner implements it."""

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own. Called once per class."""
        ...

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        """The counts of pods that the terms of a pending pod need (`TopologyCounts.pods`)."""
        ...

    def carried(self, task: Task) -> Iterable[tuple[TopologyCount, int]]:
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
        self._next_id = 0
        self._pods: dict[tuple[tuple[PodSelector, ...], bool], TopologyCount] = {}
        self._carriers: dict[tuple[PodSelector, str, int], TopologyCount] = {}
        self._pods_index: SelectorIndex[TopologyCount] = SelectorIndex()
        self._carriers_index: SelectorIndex[TopologyCount] = SelectorIndex()
        self._with_terms: dict[TaskClass, bool] = {}
        #: Node name to the sums of its pods.
        self._present: dict[str, dict[TopologyCount, int]] = {}
        #: Job key to the counts that its pending pods need.
        self._uses: dict[str, frozenset[TopologyCount]] = {}
        self._queues: set[str] = set()
        #: Nodes with placements in the last session, some of which were undone.
        self._touched: set[str] = set()
        #: Pods removed from their node in this session, by uid; the node may still list them.
        self._removed: set[str] = set()
        #: The amounts that pods placed in this session added, by uid.
        self._placed: dict[str, list[tuple[TopologyCount, int]]] = {}
        #: Counts created during open that do not include all nodes yet; None outside open.
        self._uncounted: list[TopologyCount] | None = None

    # --- lookups ----------------------------------------------------------------------------------------------------

    @property
    def index(self) -> NodeIndex:
        """The node index of this session."""
        assert self._index is not None
        return self._index

    @property
    def idle(self) -> bool:
        """Whether no pod in the cluster has a term."""
        return not self._pods and not self._carriers

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own."""
        found = self._with_terms.get(cls)
        if found is None:
            found = self._with_terms[cls] = self._reader.has_terms(cls)
        return found

    def pods(self, selectors: tuple[PodSelector, ...], *, live_only: bool = False) -> TopologyCount:
        """The count of pods that all `selectors` select. O(pods on nodes) when it is created in mid-session."""
        pod_count = self._pods.get((selectors, live_only))
        if pod_count is None:
            pod_count = self._pods[selectors, live_only] = self._new(selectors, live_only=live_only, carried=None)
            self._pods_index.add(selectors, pod_count)
            if self._uncounted is not None:
                self._uncounted.append(pod_count)
            else:
                self._count([pod_count], self._nodes)
        return pod_count

    def carriers(self, selector: PodSelector, topology_key: str, kind: int = 0) -> TopologyCount:
        """The count of pods that carry a term with this selector and topology key; `kind` separates sorts of terms."""
        pod_count = self._carriers.get((selector, topology_key, kind))
        if pod_count is None:
            pod_count = self._new((selector,), live_only=False, carried=(topology_key, kind))
            self._carriers[selector, topology_key, kind] = pod_count
            self._carriers_index.add((selector,), pod_count)
        return pod_count

    def carriers_selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[TopologyCount, ...]:
        """The counts of carried terms that select a pod with these labels, in order of creation."""
        if not len(self._carriers_index):
            return ()
        return tuple(sorted(self._carriers_index.matching(namespace, labels, self.namespaces), key=_by_id))

    def _new(
        self, selectors: tuple[PodSelector, ...], *, live_only: bool, carried: tuple[str, int] | None
    ) -> TopologyCount:
        self._next_id += 1
        return TopologyCount(self._next_id, selectors, len(self._nodes), live_only=live_only, carried=carried)

    # --- updates ----------------------------------------------------------------------------------------------------

    def open(self, session: Session, index: NodeIndex) -> None:
        """Apply the changes since the last session. O(pods of changed jobs and on changed nodes)."""
        changed, table = session.changed, session.nodes
        everything = changed.everything or self._index is None
        self._uncounted = []
        if len(self._with_terms) > MAX_CLASSES:
            self._with_terms.clear()
        self._removed.clear()
        self._placed.clear()
        self._nodes = table.nodes
        self.namespaces = session.namespaces
        if everything:
            self._forget()
        elif changed.namespaces:
            self._recount_namespaces(changed.namespaces)
        if index is not self._index:
            self._index = index
            self._move_rows()
        self._refresh_jobs(session, everything=everything)
        stale: Collection[str] = table.by_name if everything else changed.nodes | self._touched
        for name in stale:
            self._refresh_node(name, table.by_name.get(name))
        uncounted, self._uncounted = self._uncounted, None
        if uncounted and not everything:
            self._count(uncounted, [node for node in self._nodes if node.name not in stale])
        self._touched.clear()
        self._drop_unused()

    def _forget(self) -> None:
        for pod_count in (*self._pods.values(), *self._carriers.values()):
            pod_count.uses = 0
            pod_count.reset(len(self._nodes))
        self._present.clear()
        self._uses.clear()
        self._queues.clear()

    def _recount_namespaces(self, namespaces: Mapping[str, Mapping[str, str] | None]) -> None:
        """Recount the selectors whose namespaces changed. `namespaces`: former labels by name.

        Carried terms are counted by their carriers; the pods that they select are evaluated at lookup.
        """
        moved = [
            pod_count
            for pod_count in self._pods.values()
            if any(
                selector.is_affected_by(name, before, self.namespaces.get(name))
                for selector in pod_count.selectors
                for name, before in namespaces.items()
            )
        ]
        for pod_count in moved:
            pod_count.reset(len(self._nodes))
            for counts in self._present.values():
                counts.pop(pod_count, None)
        assert self._uncounted is not None
        self._uncounted += moved

    def _move_rows(self) -> None:
        """Move the sums, which are kept by node name, to the new node rows."""
        for pod_count in (*self._pods.values(), *self._carriers.values()):
            pod_count.reset(len(self._nodes))
        rows = {node.name: node.row for node in self._nodes} if self._present else {}
        for name in list(self._present):
            row = rows.get(name)
            if row is None:
                del self._present[name]
                continue
            for pod_count, amount in self._present[name].items():
                pod_count.change(row, amount)

    def _refresh_jobs(self, session: Session, *, everything: bool) -> None:
        keys: Iterable[str] = session.jobs if everything else set(session.changed.jobs)
        if session.queues.keys() != self._queues:
            appeared = session.queues.keys() - self._queues
            self._queues = set(session.queues)
            if not everything:
                keys = set(keys).union(*(session.queues[name].jobs for name in appeared))
        if not self._uses and not any(self.has_terms(cls) for cls in session.classes):
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
            for pod_count in self._uses.pop(key, ()):
                pod_count.uses -= 1
            if needed:
                self._uses[key] = frozenset(needed)
                for pod_count in needed:
                    pod_count.uses += 1

    def _refresh_node(self, name: str, node: Node | None) -> None:
        old = self._present.pop(name, {})
        if node is None:
            return
        new: dict[TopologyCount, int] = {}
        for task in node.tasks.values():
            if not len(self._pods_index) and not self.has_terms(task.cls):
                continue
            for pod_count, amount in self._contributions(task, live=_is_live(task)):
                new[pod_count] = new.get(pod_count, 0) + amount
        for pod_count in sorted({*old, *new}, key=_by_id):
            difference = new.get(pod_count, 0) - old.get(pod_count, 0)
            if difference:
                pod_count.change(node.row, difference)
        if new:
            self._present[name] = new

    def _contributions(self, task: Task, *, live: bool) -> list[tuple[TopologyCount, int]]:
        found: list[tuple[TopologyCount, int]] = []
        if len(self._pods_index):
            found = [
                (pod_count, 1)
                for pod_count in self._pods_index.matching(task.namespace, task.labels, self.namespaces)
                if live or not pod_count.live_only
            ]
        if self.has_terms(task.cls):
            found += self._reader.carried(task)
        return found

    def _count(self, pod_counts: list[TopologyCount], nodes: Iterable[Node]) -> None:
        """Add the pods on `nodes` to new counts."""
        index: SelectorIndex[TopologyCount] = SelectorIndex()
        for pod_count in pod_counts:
            index.add(pod_count.selectors, pod_count)
        if not len(index):
            return
        for node in nodes:
            for task in node.tasks.values():
                if task.uid in self._removed:
                    continue
                live = _is_live(task)
                for pod_count in index.matching(task.namespace, task.labels, self.namespaces):
                    if live or not pod_count.live_only:
                        self._add(node, pod_count, 1)
                        if task.status in _IN_SESSION:
                            self._placed.setdefault(task.uid, []).append((pod_count, 1))

    def _add(self, node: Node, pod_count: TopologyCount, amount: int) -> None:
        pod_count.change(node.row, amount)
        counts = self._present.setdefault(node.name, {})
        counts[pod_count] = counts.get(pod_count, 0) + amount

    def _drop_unused(self) -> None:
        """Drop counts that no pending pod needed for some sessions, and carried terms without a carrier."""
        dropped: set[TopologyCount] = set()
        for pods_key, pod_count in list(self._pods.items()):
            pod_count.unused = 0 if pod_count.uses else pod_count.unused + 1
            if pod_count.unused > _UNUSED_SESSIONS:
                del self._pods[pods_key]
                self._pods_index.discard(pod_count.selectors, pod_count)
                dropped.add(pod_count)
        for carriers_key, pod_count in list(self._carriers.items()):
            if not pod_count.uses and not pod_count.sum:
                del self._carriers[carriers_key]
                self._carriers_index.discard(pod_count.selectors, pod_count)
                dropped.add(pod_count)
        if dropped:
            for name in list(self._present):
                kept = {
                    pod_count: amount for pod_count, amount in self._present[name].items() if pod_count not in dropped
                }
                if kept:
                    self._present[name] = kept
                else:
                    del self._present[name]

    def place(self, placement: Placement) -> None:
        """Add pods that were placed, or whose eviction was undone. O(1) per pod and matching count."""
        if self._removed:
            self._removed.difference_update([task.uid for task in placement.tasks])
        if not len(self._pods_index) and not self.has_terms(placement.cls):
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            if node.row < 0:
                continue
            contributions = self._placed[task.uid] = self._contributions(task, live=not task.deleting)
            for pod_count, amount in contributions:
                self._add(node, pod_count, amount)

    def displace(self, placement: Placement) -> None:
        """Undo `place`, or remove pods that are being evicted."""
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._removed.add(task.uid)
            self._touched.add(node.name)
            contributions = self._placed.pop(task.uid, None)
            if node.row < 0 or self.idle:
                continue
            if contributions is None:
                if task.status in _IN_SESSION:
                    # Placed while there was no count, or `place` was not called because another plugin failed.
                    continue
                contributions = self._contributions(task, live=_is_live(task))
            for pod_count, amount in contributions:
                self._add(node, pod_count, -amount)


def _is_live(task: Task) -> bool:
    return not task.deleting and task.status is not TaskStatus.RELEASING


def _by_id(pod_count: TopologyCount) -> int:
    return pod_count.id
