"""Gangs that no set of nodes can hold: the pods of a class that all nodes hold together when they are empty."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.autoscaled_groups import places_of
from capcard_sched.model.refusal import ExceededLimit, Figures
from capcard_sched.model.resources import PODS_COLUMN
from capcard_sched.model.status import COMPLETED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import Mask
    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.model.autoscaled_groups import AutoscaledGroup
    from capcard_sched.model.job import Job, Node
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass


class _Shapes(NamedTuple):
    """Nodes with equal amounts and cards: amounts (int64 [shapes, resources]), cards, and nodes (int64 [shapes])."""

    allocatable: Matrix
    cards: list[frozenset[str]]
    nodes: Vector


class _Usable(NamedTuple):
    """The shapes with space for a pod: amounts (int64 [shapes, resources]) and nodes (int64 [shapes])."""

    allocatable: Matrix
    nodes: Vector


_NO_CARDS: frozenset[str] = frozenset()


class NodePlaces:
    """An upper bound per class, whatever filters, quotas and other pods decide. Kept until a node changes.

    Nodes that are cordoned, tainted or not ready count: they may come back.
    """

    def __init__(self) -> None:
        self._generation = -1
        #: The allocatable amounts of all nodes, when places were counted.
        self._amounts, self._is_stale = b"", True
        #: Whether amounts or cards of nodes changed since the last session.
        self.is_changed = True
        #: The pods of a class that the nodes hold; None without a node that could take any.
        self._places: dict[TaskClass, int | None] = {}
        #: The same by what a class requests: pods with generated claims have a class each.
        self._counts: dict[tuple[bytes, frozenset[str], frozenset[str] | None], int | None] = {}
        #: Name of a node to its generation and its cards.
        self._cards: dict[str, tuple[int, frozenset[str]]] = {}
        #: The shapes of nodes, and those with each wanted set of cards: O(shapes) in place of O(nodes) per class.
        #: (Scene W3 counts 122 classes on 1,000 nodes.)
        self._shapes: _Shapes | None = None
        self._usable: dict[frozenset[str] | None, _Usable] = {}

    def begin_session(self, snapshot: Snapshot) -> None:
        """Updates `is_changed`. O(nodes) where a node changed."""
        self._refresh(snapshot)
        self.is_changed, self._is_stale = self._is_stale, False

    def _refresh(self, snapshot: Snapshot) -> None:
        table = snapshot.nodes
        if table.generation == self._generation:
            return
        self._generation = table.generation
        amounts, former = table.allocatable.tobytes(), self._cards
        self._cards = {node.name: former.get(node.name, (-1, _NO_CARDS)) for node in table.nodes}
        changed = amounts != self._amounts or self._cards.keys() != former.keys()
        for node in table.nodes:
            changed |= self._cards_of(snapshot, node) != former.get(node.name, (-1, _NO_CARDS))[1]
        if changed:
            self._amounts, self._is_stale, self._shapes = amounts, True, None
            self._places.clear()
            self._counts.clear()
            self._usable.clear()

    def shortage(
        self, snapshot: Snapshot, dispatch: Dispatch, job: Job, groups: tuple[AutoscaledGroup, ...] = ()
    ) -> ExceededLimit | None:
        """The pods of a class without which the job has not its minimum, and that no set of nodes holds; else None.

        `groups`: node groups, whose nodes count as well.
        Figures are numbers of pods. O(pods), and O(nodes) once per class and change of a node.
        """
        self._refresh(snapshot)
        most = max(job.min_available, *job.min_task_member.values(), 0)
        scarce: dict[TaskClass, int] = {}
        for cls in {task.cls for task in job.tasks.values()}:
            if cls not in self._places:
                self._places[cls] = self._count(snapshot, dispatch, cls)
            places = self._places[cls]
            if places is not None and places < most:
                further = places_of(groups, cls, _named(dispatch, cls)) if groups else 0
                if further is not None and places + further < most:
                    scarce[cls] = places + further
        found = [
            (places - needed, self._scarcest(snapshot, dispatch, cls), places)
            for cls, needed in (_needed(job) if scarce else ())
            if (places := scarce.get(cls)) is not None and places < needed
        ]
        if not found:
            return None
        missing, resource, pods = min(found)  # the order of the pods must not matter
        return ExceededLimit(Figures(resource, pods - missing, pods - missing, pods), "")

    def _count(self, snapshot: Snapshot, dispatch: Dispatch, cls: TaskClass) -> int | None:
        if not len(snapshot.nodes):
            return None
        wanted = _wanted(dispatch, cls)
        key = cls.fit_request.tobytes(), cls.unoffered, wanted
        if key not in self._counts:
            self._counts[key] = self._sum(snapshot, cls, wanted)
        return self._counts[key]

    def _sum(self, snapshot: Snapshot, cls: TaskClass, wanted: frozenset[str] | None) -> int | None:
        nodes, fitting, _ = self._fitting(snapshot, cls, wanted)
        if not len(nodes):
            return None
        # A resource that no node has ever had has no column.
        return 0 if cls.unoffered else int(nodes @ fitting.min(axis=1))

    def _scarcest(self, snapshot: Snapshot, dispatch: Dispatch, cls: TaskClass) -> str:
        """The resource that limits the pods of a class most, of equal ones the first by name."""
        if cls.unoffered:
            return min(cls.unoffered)
        nodes, fitting, columns = self._fitting(snapshot, cls, _wanted(dispatch, cls))
        counts: list[int] = (nodes @ fitting).tolist()
        names: list[str] = [snapshot.resources.names[column] for column in columns]
        return min(zip(counts, names, strict=True))[1]

    def _fitting(
        self, snapshot: Snapshot, cls: TaskClass, wanted: frozenset[str] | None
    ) -> tuple[Vector, Matrix, Vector]:
        """Nodes by shape, pods that fit one by each requested resource (int64 [shapes, requested]), and its columns."""
        if wanted not in self._usable:
            self._usable[wanted] = self._with_cards(snapshot, wanted)
        allocatable, nodes = self._usable[wanted]
        columns = cls.fit_request.nonzero()[0]
        return nodes, allocatable[:, columns] // cls.fit_request[columns], columns

    def _with_cards(self, snapshot: Snapshot, wanted: frozenset[str] | None) -> _Usable:
        if self._shapes is None:
            self._shapes = self._shapes_of(snapshot)
        usable: Mask = self._shapes.allocatable[:, PODS_COLUMN] > 0
        if wanted is not None:
            usable &= np.array([not wanted.isdisjoint(cards) for cards in self._shapes.cards], dtype=bool)
        return _Usable(self._shapes.allocatable[usable], self._shapes.nodes[usable])

    def _shapes_of(self, snapshot: Snapshot) -> _Shapes:
        table = snapshot.nodes
        rows: dict[tuple[bytes, frozenset[str]], list[int]] = {}
        for row, node in enumerate(table.nodes):
            rows.setdefault((table.allocatable[row].tobytes(), self._cards_of(snapshot, node)), []).append(row)
        allocatable = table.allocatable[[found[0] for found in rows.values()]]
        return _Shapes(allocatable, [cards for _, cards in rows], np.array([len(found) for found in rows.values()]))

    def _cards_of(self, snapshot: Snapshot, node: Node) -> frozenset[str]:
        known = self._cards.get(node.name)
        if known is None or known[0] != node.generation:
            known = self._cards[node.name] = node.generation, frozenset(snapshot.state.cards_of(node))
        return known[1]


def _wanted(dispatch: Dispatch, cls: TaskClass) -> frozenset[str] | None:
    """The cards of which a node must have one; None for any node."""
    cards = dispatch.first("pod_cards", cls)
    return frozenset(cards.alternatives) if cards is not None and cards.names else None


def _named(dispatch: Dispatch, cls: TaskClass) -> frozenset[str] | None:
    """The same with cards that no node has yet."""
    cards = dispatch.first("pod_cards", cls)
    return frozenset(cards.names) if cards is not None and cards.names else None


def _needed(job: Job) -> Iterator[tuple[TaskClass, int]]:
    """Class to the number of its pods, placed ones included, that the minimum needs, whatever the others."""
    live = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
    counts = Counter(task.cls for task in live)
    done = len(job.tasks) - len(live)
    for cls, count in counts.items():
        needed = job.min_available - done - (len(live) - count)
        for role, minimum in job.min_task_member.items() if job.checks_roles else ():
            if all(task.cls is cls for task in live if task.role == role):
                needed = max(needed, minimum)
        if needed > 0:
            yield cls, needed
