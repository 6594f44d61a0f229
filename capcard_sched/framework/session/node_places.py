"""Gangs that no set of nodes can hold: the pods of a class that all nodes hold together when they are empty.

Amounts and cards count for every class. What plugins know of equal pods beside each other (`place_limits`) and a hard
network topology lower the count for jobs without a placed pod: a node with a pod may have changed since.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.place_limits import PlaceLimit, most_places, most_together
from capcard_sched.framework.placement.hypernode_bounds import PLACED
from capcard_sched.model.autoscaled_groups import places_of
from capcard_sched.model.refusal import ExceededLimit, Figures
from capcard_sched.model.resources import PODS_COLUMN
from capcard_sched.model.status import COMPLETED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.model.autoscaled_groups import AutoscaledGroup
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.changes import Changes


class _Shapes(NamedTuple):
    """Nodes with equal amounts and cards: amounts (int64 [shapes, resources]), cards, and nodes (int64 [shapes])."""

    allocatable: Matrix
    cards: list[frozenset[str]]
    nodes: Vector


class _Usable(NamedTuple):
    """The shapes with space for a pod: amounts (int64 [shapes, resources]) and nodes (int64 [shapes])."""

    allocatable: Matrix
    nodes: Vector


class _NodeFacts(NamedTuple):
    """What a node had when its generation was read."""

    generation: int
    cards: frozenset[str]
    labels: Mapping[str, str]


#: How `Changes` names the objects on which limits of pods with claims depend; claims are `namespace/name`.
_READ_KINDS: Final = ("DeviceClass ", "PersistentVolume ", "ResourceSlice ")
#: Kept counts under limits: claims and volumes differ by job. Keys are ids, digests and names.
_MOST_LIMITED = 16_384
#: Classes whose counts are kept: classes of pods that are gone are among them.
_MOST_CLASSES = 16_384
_UNKNOWN = _NodeFacts(-1, frozenset(), {})


class NodePlaces:
    """An upper bound per class, whatever filters, quotas and other pods decide. Kept until a node changes.

    Nodes that are cordoned, tainted or not ready count: they may come back.
    """

    def __init__(self) -> None:
        self._generation = -1
        #: The allocatable amounts of all nodes, when places were counted.
        self._amounts, self._is_stale = b"", True
        #: Whether amounts, cards or labels of nodes, or HyperNodes, changed since the last session.
        self.is_changed = True
        #: The pods of a class, by its id, that the nodes hold; None without a node that could take any.
        self._places: dict[int, int | None] = {}
        #: The same by what a class requests: pods with generated claims have a class each.
        self._counts: dict[tuple[bytes, bool, frozenset[str] | None], int | None] = {}
        #: By name of a node.
        self._facts: dict[str, _NodeFacts] = {}
        #: `HyperNodeTree.version`.
        self._tree = -1
        #: The places of a class under limits, by the class and the texts and keys of the limits: O(nodes) each
        #: (0.12 ms for 5,000 nodes; 0.01 ms kept).
        self._limited: dict[Hashable, int] = {}
        #: The pods of a class, by its id, that the nodes hold under all limits, where these are the same for all of its
        #: pods; None for any number. (In W1, 3 instead of 9 µs per job.)
        self._held: dict[int, int | None] = {}
        #: By key of a waiting job: the claims of its pods, of volumes and of devices, `namespace/name`.
        self._claims: dict[str, frozenset[str]] = {}
        #: Keys of the jobs with another limit than in the last session.
        self.moved: set[str] = set()
        #: Keys of the jobs of which a plugin counts the places in a later session.
        self.postponed: set[str] = set()
        #: The registrations of shared devices that were counted.
        self._offers: Hashable = None
        #: The shapes of nodes, and those with each wanted set of cards: O(shapes) in place of O(nodes) per class.
        #: (Scene W3 counts 122 classes on 1,000 nodes.)
        self._shapes: _Shapes | None = None
        self._usable: dict[frozenset[str] | None, _Usable] = {}

    def begin_session(self, snapshot: Snapshot) -> None:
        """Updates `is_changed`. O(nodes) where a node changed."""
        self._refresh(snapshot)
        self.is_changed, self._is_stale = self._is_stale, False

    def _refresh(self, snapshot: Snapshot) -> None:
        table, tree = snapshot.nodes, snapshot.tree.version
        offers = None if snapshot.shared_devices is None else snapshot.shared_devices.offers
        if offers != self._offers:
            self._offers, self._is_stale = offers, True
            self._forget_limits()
        if table.generation == self._generation and tree == self._tree:
            return
        former, before = self._facts, self._amounts
        self._facts = {node.name: former.get(node.name, _UNKNOWN) for node in table.nodes}
        if table.generation != self._generation:
            self._amounts = table.allocatable.tobytes()
        is_other = self._amounts != before or self._facts.keys() != former.keys()
        is_limited = tree != self._tree
        for node in table.nodes:
            old, new = former.get(node.name, _UNKNOWN), self._facts_of(snapshot, node)
            is_other |= new.cards != old.cards
            is_limited |= new is not old and new.labels != old.labels
        self._generation, self._tree = table.generation, tree
        if is_other:
            self._shapes = None
            self._places.clear()
            self._counts.clear()
            self._usable.clear()
        if is_other or is_limited:
            self._is_stale = True
            self._forget_limits()

    def _forget_limits(self) -> None:
        self._limited.clear()
        self._held.clear()

    def jobs_of(self, changed: Changes) -> set[str]:
        """The keys of jobs whose pods have changed claims, or any claims where volumes, slices or classes changed.

        Postponed jobs are among them, once.
        """
        postponed, self.postponed = self.postponed, set()
        if not self._claims or not (changed.devices or changed.volumes):
            return postponed
        names = changed.devices | changed.volumes
        everything = any(name.startswith(_READ_KINDS) for name in names)
        return postponed | {key for key, claims in self._claims.items() if everything or not claims.isdisjoint(names)}

    def forget(self, key: str) -> None:
        """Drops what a job that is gone, or no longer waits, depends on."""
        self._claims.pop(key, None)

    def shortage(
        self, snapshot: Snapshot, dispatch: Dispatch, job: Job, groups: tuple[AutoscaledGroup, ...] = ()
    ) -> ExceededLimit | None:
        """The pods of a class without which the job has not its minimum, and that no set of nodes holds; else None.

        `groups`: node groups, whose nodes count as well.
        Figures are numbers of pods. O(pods), and O(nodes) once per class and change of a node.
        """
        self._refresh(snapshot)
        most = max(job.min_available, *job.min_task_member.values(), 0)
        classes = {task.cls for task in job.tasks.values()}
        if len(classes) == 1 and job.topology is None and self._holds(next(iter(classes)), most):
            self._claims.pop(job.key, None)
            return None
        self._note_claims(job, classes)
        scarce: dict[TaskClass, int] = {}
        for cls in classes:
            places = self._of_class(snapshot, dispatch, cls)
            if places is not None and places < most:
                further = places_of(groups, cls, _named(dispatch, cls)) if groups else 0
                if further is not None and places + further < most:
                    scarce[cls] = places + further
        found = [
            (held - needed, self._scarcest(snapshot, dispatch, kind[0]), held)
            for kind, needed in (_needed(job) if scarce else ())
            if all(cls in scarce for cls in kind) and (held := max(scarce[cls] for cls in kind)) < needed
        ]
        if not found:
            if groups:
                return None
            found_in_all = self._shortage_in_all(snapshot, job) if len(classes) > 1 else None
            if found_in_all is not None or job.count(PLACED):
                return found_in_all
            return self._limited_shortage(snapshot, dispatch, job)
        missing, resource, pods = min(found)  # the order of the pods must not matter
        return ExceededLimit(Figures(resource, pods - missing, pods - missing, pods), "")

    def _holds(self, cls: TaskClass, pods: int) -> bool:
        """Whether it is known that nodes hold this number of pods of a class, whichever pods they are."""
        held, places = self._held.get(cls.id, 0), self._places.get(cls.id, 0)
        return all(known is None or known >= max(1, pods) for known in (held, places))

    def _of_class(self, snapshot: Snapshot, dispatch: Dispatch, cls: TaskClass) -> int | None:
        if cls.id not in self._places:
            if len(self._places) >= _MOST_CLASSES:
                self._places.clear()
            self._places[cls.id] = self._count(snapshot, dispatch, cls)
        return self._places[cls.id]

    def _shortage_in_all(self, snapshot: Snapshot, job: Job) -> ExceededLimit | None:
        """The same for pods of several classes, by the sums of their amounts."""
        counts: Counter[bytes] = Counter()
        requests: dict[bytes, Vector] = {}
        live = Counter(task.cls for task in job.tasks.values() if task.status not in COMPLETED_STATUSES)
        for cls, count in live.items():
            key = cls.fit_request.tobytes()
            counts[key] += count
            requests[key] = cls.fit_request
        if len(counts) < 2 or not len(snapshot.nodes):
            return None
        needed = min(job.min_available - len(job.tasks) + live.total(), live.total())
        if None not in self._usable:
            self._usable[None] = self._with_cards(snapshot, None)
        allocatable, nodes = self._usable[None]
        amounts = np.array(list(requests.values()), dtype=np.int64)
        pods, column = most_together(amounts, np.array(list(counts.values()), dtype=np.int64), nodes @ allocatable)
        if pods >= needed:
            return None
        return ExceededLimit(Figures(snapshot.resources.names[column], needed, needed, pods), "")

    def _note_claims(self, job: Job, classes: Iterable[TaskClass]) -> None:
        found = {f"{job.namespace}/{name}" for cls in classes for name in cls.volumes}
        found |= {f"{job.namespace}/{each.claim}" for cls in classes for each in cls.claims if each.claim}
        if found:
            self._claims[job.key] = frozenset(found)
        else:
            self._claims.pop(job.key, None)

    def _limited_shortage(self, snapshot: Snapshot, dispatch: Dispatch, job: Job) -> ExceededLimit | None:
        """The same by limits of equal pods beside each other. O(pods); O(nodes) once per class and set of limits."""
        calls = dispatch.plain_entries("place_limits")
        domains, topology = _domains(snapshot, job)
        found: list[tuple[int, int, str]] = []
        for (cls, *_), needed in _needed(job) if calls or domains else ():
            kind = _kind(cls)
            tasks = [
                task for task in job.tasks.values() if _kind(task.cls) == kind and task.status not in COMPLETED_STATUSES
            ]
            limits = [limit for name, call in calls for limit in _limits(name, call, tasks, len(snapshot.nodes))]
            is_fixed = _is_alone(cls) and all(limit.key in ((), self._offers) for limit in limits)
            if not limits and is_fixed:
                self._hold(cls, None)
            if not (limits or domains):
                continue
            for last in range(len(limits) + 1):
                is_whole = last == len(limits)
                text = topology if is_whole else limits[last].text
                some, parts = limits[: last + 1], domains if is_whole else []
                places = self._places_of(snapshot, dispatch, cls, some, parts, topology if is_whole else "")
                if places is not None and places < needed:
                    found.append((places - needed, places, text.format(limit=places)))
                    break
                if is_whole and is_fixed and not domains:
                    self._hold(cls, places)
        if not found:
            return None
        missing, pods, text = min(found)
        return ExceededLimit(Figures("pods", pods - missing, pods - missing, pods), "", text)

    def _hold(self, cls: TaskClass, places: int | None) -> None:
        if len(self._held) >= _MOST_CLASSES:
            self._held.clear()
        self._held[cls.id] = places

    def _places_of(
        self,
        snapshot: Snapshot,
        dispatch: Dispatch,
        cls: TaskClass,
        limits: Sequence[PlaceLimit],
        domains: Sequence[Rows],
        topology: str,
    ) -> int | None:
        """The pods of a class that the nodes of one of some domains hold, or all nodes; None without usable nodes."""
        if self._of_class(snapshot, dispatch, cls) is None:
            return None
        key = _kind(cls), *((limit.text, limit.key) for limit in limits), topology
        if key not in self._limited:
            if len(self._limited) >= _MOST_LIMITED:
                self._limited.clear()
            allocatable = snapshot.nodes.allocatable
            columns = cls.fit_request.nonzero()[0]
            fitting: Vector = (allocatable[:, columns] // cls.fit_request[columns]).min(axis=1)
            usable: Mask = allocatable[:, PODS_COLUMN] > 0
            # Cards of claims are those of devices; the classes of a kind may have claims of different content.
            if not cls.alike and (wanted := _wanted(dispatch, cls)) is not None:
                cards = [self._facts_of(snapshot, node).cards for node in snapshot.nodes.nodes]
                usable &= np.array([not wanted.isdisjoint(one) for one in cards], dtype=bool)
            self._limited[key] = most_places(np.where(usable, fitting, 0), limits, domains)
        return self._limited[key]

    def _count(self, snapshot: Snapshot, dispatch: Dispatch, cls: TaskClass) -> int | None:
        if not len(snapshot.nodes):
            return None
        wanted = _wanted(dispatch, cls)
        key = cls.fit_request.tobytes(), bool(cls.unoffered), wanted
        if key not in self._counts:
            if len(self._counts) >= _MOST_CLASSES:
                self._counts.clear()
                self._usable.clear()
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
            rows.setdefault((table.allocatable[row].tobytes(), self._facts_of(snapshot, node).cards), []).append(row)
        allocatable = table.allocatable[[found[0] for found in rows.values()]]
        return _Shapes(allocatable, [cards for _, cards in rows], np.array([len(found) for found in rows.values()]))

    def _facts_of(self, snapshot: Snapshot, node: Node) -> _NodeFacts:
        known = self._facts.get(node.name, _UNKNOWN)
        if known.generation != node.generation:
            cards = frozenset(snapshot.state.cards_of(node))
            known = self._facts[node.name] = _NodeFacts(node.generation, cards, node.labels)
        return known


def _limits(
    plugin: str, call: Callable[[Sequence[Task]], Iterable[PlaceLimit]], tasks: Sequence[Task], nodes: int
) -> list[PlaceLimit]:
    """The limits of one plugin. Raises HookFailed, also for those that break the contract of the hook."""
    try:
        found = list(call(tasks))
        for limit in found:
            limit.check(nodes)
    except Exception as error:
        raise HookFailed(plugin, "place_limits", error) from error
    return found


def _domains(snapshot: Snapshot, job: Job) -> tuple[list[Rows], str]:
    """Of a hard network topology: rows of the largest domains that its pods may span, and the text of the limit."""
    topology = job.topology
    if topology is None or not topology.hard:
        return [], ""
    tree = snapshot.tree.of(topology)
    highest = topology.allowed(tree)
    if highest is None or not tree.ready or highest < tree.tiers[0]:
        return [], ""  # the job waits for HyperNodes
    allowed = tree.tiers <= highest
    above = np.append(allowed, False)[tree.parents]
    tops = (allowed & ~above).nonzero()[0].tolist()
    text = f"no HyperNode up to tier {highest} has space for more than {{limit}}"
    if tree.label:
        text = f"no value of the node label {tree.label} has space for more than {{limit}}"
    return [tree.rows_of(number) for number in tops], text


def _wanted(dispatch: Dispatch, cls: TaskClass) -> frozenset[str] | None:
    """The cards of which a node must have one; None for any node."""
    cards = dispatch.first("pod_cards", cls)
    return frozenset(cards.alternatives) if cards is not None and cards.names else None


def _named(dispatch: Dispatch, cls: TaskClass) -> frozenset[str] | None:
    """The same with cards that no node has yet."""
    cards = dispatch.first("pod_cards", cls)
    return frozenset(cards.names) if cards is not None and cards.names else None


def _is_alone(cls: TaskClass) -> bool:
    """Whether limits of its pods follow from the class: they depend on no other pods, claims or volumes."""
    return cls.affinity is None and not (cls.spread or cls.volumes or cls.inline_volumes or cls.claims)


def _kind(cls: TaskClass) -> int:
    """Equal for the classes that differ in the names of generated claims alone: `alike`, above 0, or by the id."""
    return cls.alike or -1 - cls.id


def _needed(job: Job) -> Iterator[tuple[list[TaskClass], int]]:
    """The classes of a kind to the number of their pods, placed ones included, that the minimum needs."""
    live = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
    counts = Counter(_kind(task.cls) for task in live)
    done = len(job.tasks) - len(live)
    classes: dict[Hashable, dict[TaskClass, None]] = {}
    for task in live:
        classes.setdefault(_kind(task.cls), {})[task.cls] = None
    for kind, count in counts.items():
        needed = job.min_available - done - (len(live) - count)
        for role, minimum in job.min_task_member.items() if job.checks_roles else ():
            if all(_kind(task.cls) == kind for task in live if task.role == role):
                needed = max(needed, minimum)
        if needed > 0:
            yield list(classes[kind]), needed
