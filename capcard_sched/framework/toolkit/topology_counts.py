"""How many pods of which kind stand in which topology domain, kept up to date placement by placement.

Pod (anti-)affinity and topology spread ask two questions: how many pods that a selector means stand in the domain of a
node, and how many pods there carry a term that means this pod. A `TopologyCount` holds one of these counts.

Each plugin that needs counts owns a `TopologyCounts` and feeds it from its own hooks: `open` from `open`, `place`
from `on_allocate`, `displace` from `on_deallocate`. Selectors of pending pods are entered at open, so that a pod knows
from the start of a session which terms it may meet in it. While no pod has a term the cost is one dictionary
look-up per pod whose node or job changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from capcard_sched.framework.toolkit.pod_selectors import MOST_CLASSES, SelectorIndex
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

#: A tally of pods that no pending pod asked for in so many sessions is dropped.
_UNUSED_SESSIONS = 64
_IN_SESSION = frozenset({TaskStatus.ALLOCATED, TaskStatus.PIPELINED})


class TermReader(Protocol):
    """What `TopologyCounts` asks its owner about pods."""

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own. Asked once per class."""
        ...

    def asked(self, task: Task) -> Iterable[TopologyCount]:
        """Tallies of pods that the terms of a pending pod will ask for (`TopologyCounts.pods`)."""
        ...

    def carried(self, task: Task) -> Iterable[tuple[TopologyCount, int]]:
        """What a pod adds by its own terms wherever it stands (`TopologyCounts.carriers`), amounts positive."""
        ...


class TopologyCounts:
    """All tallies of one plugin."""

    def __init__(self, reader: TermReader) -> None:
        self._reader = reader
        self._index: NodeIndex | None = None
        self._nodes: list[Node] = []
        #: Labels of namespaces, the same through a session.
        self.namespaces: NamespaceLabels = {}
        self._next_id = 0
        self._pods: dict[tuple[tuple[PodSelector, ...], bool], TopologyCount] = {}
        self._carriers: dict[tuple[PodSelector, str, int], TopologyCount] = {}
        self._pods_index: SelectorIndex[TopologyCount] = SelectorIndex()
        self._carriers_index: SelectorIndex[TopologyCount] = SelectorIndex()
        self._with_terms: dict[TaskClass, bool] = {}
        #: Node name to what its pods add up to.
        self._present: dict[str, dict[TopologyCount, int]] = {}
        #: Job key to the tallies its pending pods need.
        self._uses: dict[str, frozenset[TopologyCount]] = {}
        self._queues: set[str] = set()
        #: Nodes that placements of the last session touched: some of these were taken back.
        self._touched: set[str] = set()
        #: Pods taken off their node in this session, by uid; the node may still list them.
        self._gone: set[str] = set()
        #: What pods placed in this session added.
        self._placed: dict[str, list[tuple[TopologyCount, int]]] = {}
        #: Tallies made since open began that other nodes' pods were not asked for yet; None outside open.
        self._fresh: list[TopologyCount] | None = None

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def index(self) -> NodeIndex:
        """The node index of this session."""
        assert self._index is not None
        return self._index

    @property
    def idle(self) -> bool:
        """True while no pod anywhere has a term."""
        return not self._pods and not self._carriers

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether pods of the class have terms of their own."""
        found = self._with_terms.get(cls)
        if found is None:
            found = self._with_terms[cls] = self._reader.has_terms(cls)
        return found

    def pods(self, selectors: tuple[PodSelector, ...], *, live_only: bool = False) -> TopologyCount:
        """The tally of pods that all `selectors` mean. O(pods on nodes) when first asked for in mid-session."""
        tally = self._pods.get((selectors, live_only))
        if tally is None:
            tally = self._pods[selectors, live_only] = self._new(selectors, live_only=live_only, carried=None)
            self._pods_index.add(selectors, tally)
            if self._fresh is not None:
                self._fresh.append(tally)
            else:
                self._count([tally], self._nodes)
        return tally

    def carriers(self, selector: PodSelector, topology_key: str, kind: int = 0) -> TopologyCount:
        """The tally of pods carrying a term with this selector and topology key; `kind` keeps sorts of terms apart."""
        tally = self._carriers.get((selector, topology_key, kind))
        if tally is None:
            tally = self._new((selector,), live_only=False, carried=(topology_key, kind))
            self._carriers[selector, topology_key, kind] = tally
            self._carriers_index.add((selector,), tally)
        return tally

    def carriers_meeting(self, namespace: str, labels: Mapping[str, str]) -> tuple[TopologyCount, ...]:
        """Tallies of carried terms that mean a pod with these labels, in order of their making."""
        if not len(self._carriers_index):
            return ()
        return tuple(sorted(self._carriers_index.matching(namespace, labels, self.namespaces), key=_by_id))

    def _new(
        self, selectors: tuple[PodSelector, ...], *, live_only: bool, carried: tuple[str, int] | None
    ) -> TopologyCount:
        self._next_id += 1
        return TopologyCount(self._next_id, selectors, len(self._nodes), live_only=live_only, carried=carried)

    # --- keeping up -------------------------------------------------------------------------------------------------

    def open(self, session: Session, index: NodeIndex) -> None:
        """Start a session: take in what changed. O(pods of changed jobs and on changed nodes)."""
        changed, table = session.changed, session.nodes
        everything = changed.everything or self._index is None
        self._fresh = []
        if len(self._with_terms) > MOST_CLASSES:
            self._with_terms.clear()
        self._gone.clear()
        self._placed.clear()
        self._nodes = table.nodes
        self.namespaces = session.namespaces
        if everything:
            self._forget()
        elif changed.namespaces:
            self._start_over(changed.namespaces)
        if index is not self._index:
            self._index = index
            self._lay_out()
        self._refresh_jobs(session, everything=everything)
        stale: Collection[str] = table.by_name if everything else changed.nodes | self._touched
        for name in stale:
            self._refresh_node(name, table.by_name.get(name))
        fresh, self._fresh = self._fresh, None
        if fresh and not everything:
            self._count(fresh, [node for node in self._nodes if node.name not in stale])
        self._touched.clear()
        self._drop_unused()

    def _forget(self) -> None:
        for tally in (*self._pods.values(), *self._carriers.values()):
            tally.uses = 0
            tally.lay_out(len(self._nodes))
        self._present.clear()
        self._uses.clear()
        self._queues.clear()

    def _start_over(self, namespaces: Mapping[str, Mapping[str, str] | None]) -> None:
        """Count anew what a namespace selector now means by other namespaces. `namespaces`: former labels by name.

        Terms that pods carry are counted by who carries them, and asked whom they mean only when one is met.
        """
        moved = [
            tally
            for tally in self._pods.values()
            if any(
                selector.told_apart(name, before, self.namespaces.get(name))
                for selector in tally.selectors
                for name, before in namespaces.items()
            )
        ]
        for tally in moved:
            tally.lay_out(len(self._nodes))
            for counts in self._present.values():
                counts.pop(tally, None)
        assert self._fresh is not None
        self._fresh += moved

    def _lay_out(self) -> None:
        """Node rows have changed: put what is known by node name into new rows."""
        for tally in (*self._pods.values(), *self._carriers.values()):
            tally.lay_out(len(self._nodes))
        rows = {node.name: node.row for node in self._nodes} if self._present else {}
        for name in list(self._present):
            row = rows.get(name)
            if row is None:
                del self._present[name]
                continue
            for tally, amount in self._present[name].items():
                tally.change(row, amount)

    def _refresh_jobs(self, session: Session, *, everything: bool) -> None:
        keys: Iterable[str] = session.jobs if everything else set(session.changed.jobs)
        if session.queues.keys() != self._queues:
            appeared = session.queues.keys() - self._queues
            self._queues = set(session.queues)
            if not everything:
                keys = set(keys).union(*(session.queues[name].jobs for name in appeared))
        if not self._uses and not any(self.has_terms(cls) for cls in session.classes):
            return  # as on most clusters: there are fewer classes than jobs to look through
        for key in keys:
            job = session.jobs.get(key)
            needed: set[TopologyCount] = set()
            pending = job.pending.values() if job is not None else ()
            with_terms = {cls for cls in {task.cls for task in pending} if self.has_terms(cls)}
            for task in pending if with_terms else ():
                if task.cls in with_terms:
                    needed.update(self._reader.asked(task))
                    needed.update(tally for tally, _ in self._reader.carried(task))
            for tally in self._uses.pop(key, ()):
                tally.uses -= 1
            if needed:
                self._uses[key] = frozenset(needed)
                for tally in needed:
                    tally.uses += 1

    def _refresh_node(self, name: str, node: Node | None) -> None:
        old = self._present.pop(name, {})
        if node is None:
            return
        new: dict[TopologyCount, int] = {}
        for task in node.tasks.values():
            if not len(self._pods_index) and not self.has_terms(task.cls):
                continue
            for tally, amount in self._contributions(task, live=_is_live(task)):
                new[tally] = new.get(tally, 0) + amount
        for tally in sorted({*old, *new}, key=_by_id):
            difference = new.get(tally, 0) - old.get(tally, 0)
            if difference:
                tally.change(node.row, difference)
        if new:
            self._present[name] = new

    def _contributions(self, task: Task, *, live: bool) -> list[tuple[TopologyCount, int]]:
        found: list[tuple[TopologyCount, int]] = []
        if len(self._pods_index):
            found = [
                (tally, 1)
                for tally in self._pods_index.matching(task.namespace, task.labels, self.namespaces)
                if live or not tally.live_only
            ]
        if self.has_terms(task.cls):
            found += self._reader.carried(task)
        return found

    def _count(self, tallies: list[TopologyCount], nodes: Iterable[Node]) -> None:
        """Count pods that stand on `nodes` for new tallies."""
        index: SelectorIndex[TopologyCount] = SelectorIndex()
        for tally in tallies:
            index.add(tally.selectors, tally)
        if not len(index):
            return
        for node in nodes:
            for task in node.tasks.values():
                if task.uid in self._gone:
                    continue
                live = _is_live(task)
                for tally in index.matching(task.namespace, task.labels, self.namespaces):
                    if live or not tally.live_only:
                        self._add(node, tally, 1)
                        if task.status in _IN_SESSION:
                            self._placed.setdefault(task.uid, []).append((tally, 1))

    def _add(self, node: Node, tally: TopologyCount, amount: int) -> None:
        tally.change(node.row, amount)
        counts = self._present.setdefault(node.name, {})
        counts[tally] = counts.get(tally, 0) + amount

    def _drop_unused(self) -> None:
        """Forget tallies that no pending pod asked for lately, and carried terms that nobody carries any more."""
        dropped: set[TopologyCount] = set()
        for pods_key, tally in list(self._pods.items()):
            tally.unused = 0 if tally.uses else tally.unused + 1
            if tally.unused > _UNUSED_SESSIONS:
                del self._pods[pods_key]
                self._pods_index.discard(tally.selectors, tally)
                dropped.add(tally)
        for carriers_key, tally in list(self._carriers.items()):
            if not tally.uses and not tally.sum:
                del self._carriers[carriers_key]
                self._carriers_index.discard(tally.selectors, tally)
                dropped.add(tally)
        if dropped:
            for name in list(self._present):
                kept = {tally: amount for tally, amount in self._present[name].items() if tally not in dropped}
                if kept:
                    self._present[name] = kept
                else:
                    del self._present[name]

    def place(self, placement: Placement) -> None:
        """Count pods that were put on nodes, or whose eviction was undone. O(1) per pod and matching tally."""
        if self._gone:
            self._gone.difference_update([task.uid for task in placement.tasks])
        if not len(self._pods_index) and not self.has_terms(placement.cls):
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            if node.row < 0:
                continue
            contributions = self._placed[task.uid] = self._contributions(task, live=not task.deleting)
            for tally, amount in contributions:
                self._add(node, tally, amount)

    def displace(self, placement: Placement) -> None:
        """Undo `place`, or count pods off that are being evicted."""
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._gone.add(task.uid)
            self._touched.add(node.name)
            contributions = self._placed.pop(task.uid, None)
            if node.row < 0 or self.idle:
                continue
            if contributions is None:
                if task.status in _IN_SESSION:
                    # Placed while nothing was counted, or never announced because another plugin failed before us.
                    continue
                contributions = self._contributions(task, live=_is_live(task))
            for tally, amount in contributions:
                self._add(node, tally, -amount)


def _is_live(task: Task) -> bool:
    return not task.deleting and task.status is not TaskStatus.RELEASING


def _by_id(tally: TopologyCount) -> int:
    return tally.id
