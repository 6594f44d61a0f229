"""Gangs that no set of nodes can hold: the pods of a class that all nodes hold together when they are empty.

Amounts and cards count for every class. What plugins know of equal pods beside each other (`place_limits`) and a hard
network topology lower the count for jobs without a placed pod: a node with a pod may have changed since.
"""

from __future__ import annotations

import math
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
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

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
    #: Amounts and nodes once more where there are few: numbers are faster than arrays then. Empty for many.
    few: list[tuple[list[int], int]]


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
_FEW_SHAPES: Final = 32
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
        #: pods. (In W1, 3 instead of 9 µs per job.)
        self._held: dict[int, float] = {}
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
        self._few: dict[frozenset[str] | None, list[tuple[list[int], int]]] = {}

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
            self._few.clear()
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
        Figures are numbers of pods. O(pods), and O(nodes) once per class and change of a node. Call it after
        `begin_session`, for jobs that `holds` does not know.
        """
        most = max(job.min_available, *job.min_task_member.values(), 0)
        classes = job.classes
        if job.key in self._claims or [cls for cls in classes if cls.volumes or cls.claims]:
            self._note_claims(job, classes)
        scarce: dict[TaskClass, int] = {}
        for cls in classes:
            places = self._of_class(snapshot, dispatch, cls)
            if places is not None and places < most:
                further = places_of(groups, cls, _named(dispatch, cls)) if groups else 0
                if further is not None and places + further < most:
                    scarce[cls] = places + further
        found = [
            (held - needed, self._scarcest(snapshot, dispatch, pods[0].cls), held)
            for pods, needed in (_needed(job, classes) if scarce else ())
            if all(pod.cls in scarce for pod in pods) and (held := max(scarce[pod.cls] for pod in pods)) < needed
        ]
        if not found:
            if groups:
                return None
            found_in_all = self._shortage_in_all(snapshot, job) if len(classes) > 1 else None
            if found_in_all is not None or job.count(PLACED):
                return found_in_all
            return self._limited_shortage(snapshot, dispatch, job, classes)
        missing, resource, places = min(found)  # the order of the pods must not matter
        return ExceededLimit(Figures(resource, places - missing, places - missing, places), "")

    def holds(self, job: Job) -> bool:
        """Whether the nodes hold the pods of a job, all of one class, as far as is known since a node changed."""
        tasks, roles = job.tasks, job.min_task_member
        if not tasks or job.topology is not None:
            return False
        cls = next(iter(tasks.values())).cls
        held = self._held.get(cls.id, 0)
        if held < 1 or held < job.min_available or (roles and held < max(roles.values())):
            return False
        if len(tasks) > 1 and len(job.classes) > 1:
            return False
        if self._claims:
            self._claims.pop(job.key, None)
        return True

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
        allocatable, nodes = self._with_cards(snapshot, None)
        amounts = np.array(list(requests.values()), dtype=np.int64)
        pods, column = most_together(amounts, np.array(list(counts.values()), dtype=np.int64), nodes @ allocatable)
        if pods >= needed:
            return None
        return ExceededLimit(Figures(snapshot.resources.names[column], needed, needed, pods), "")

    def _note_claims(self, job: Job, classes: Iterable[TaskClass]) -> None:
        classes = [cls for cls in classes if cls.volumes or cls.claims]
        found = {f"{job.namespace}/{name}" for cls in classes for name in cls.volumes}
        found |= {f"{job.namespace}/{each.claim}" for cls in classes for each in cls.claims if each.claim}
        if found:
            self._claims[job.key] = frozenset(found)
        else:
            self._claims.pop(job.key, None)

    def _limited_shortage(
        self, snapshot: Snapshot, dispatch: Dispatch, job: Job, classes: Collection[TaskClass]
    ) -> ExceededLimit | None:
        """The same by limits of equal pods beside each other. O(pods); O(nodes) once per class and set of limits."""
        calls = dispatch.plain_entries("place_limits")
        domains, topology = ([], "") if job.topology is None else _domains(snapshot, job)
        found: list[tuple[int, int, str]] = []
        for tasks, needed in _needed(job, classes) if calls or domains else ():
            cls = tasks[0].cls
            limits = [limit for name, call in calls for limit in _limits(name, call, tasks, len(snapshot.nodes))]
            is_fixed = _is_alone(cls) and not (limits and any(limit.key not in ((), self._offers) for limit in limits))
            places = None
            if limits or domains:
                places = self._places_of(snapshot, dispatch, cls, limits, domains, topology)
            if is_fixed and not (limits and domains):
                self._hold(cls, None if domains else places)
            if places is None or places >= needed:
                continue
            text = topology
            for last in range(len(limits)):  # the first that is too low beside those before it
                some = self._places_of(snapshot, dispatch, cls, limits[: last + 1], [], "")
                if some is not None and some < needed:
                    places, text = some, limits[last].text
                    break
            found.append((places - needed, places, text.format(limit=places)))
        if not found:
            return None
        missing, pods, text = min(found)
        return ExceededLimit(Figures("pods", pods - missing, pods - missing, pods), "", text)

    def _hold(self, cls: TaskClass, places: int | None) -> None:
        """`places`: under limits; None for any number."""
        if len(self._held) >= _MOST_CLASSES:
            self._held.clear()
        known = self._places.get(cls.id)
        self._held[cls.id] = min(math.inf if places is None else places, math.inf if known is None else known)

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
            if (wanted := _wanted(dispatch, cls)) is not None:
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
                self._few.clear()
            self._counts[key] = self._sum(snapshot, cls, wanted)
        return self._counts[key]

    def _sum(self, snapshot: Snapshot, cls: TaskClass, wanted: frozenset[str] | None) -> int | None:
        few = self._few_with_cards(snapshot, wanted)
        if not (self._with_cards(snapshot, wanted).nodes.size if few is None else few):
            return None
        if cls.unoffered:
            return 0  # a resource that no node has ever had has no column
        if few is None:
            nodes, fitting, _ = self._fitting(snapshot, cls, wanted)
            return int(nodes @ fitting.min(axis=1))
        request: list[int] = cls.fit_request.tolist()
        asked = [(column, amount) for column, amount in enumerate(request) if amount]
        return sum([count * min([has[column] // amount for column, amount in asked]) for has, count in few])

    def _few_with_cards(self, snapshot: Snapshot, wanted: frozenset[str] | None) -> list[tuple[list[int], int]] | None:
        """Amounts and nodes of the shapes with space for a pod; None where shapes are many."""
        if self._shapes is None:
            self._shapes = self._shapes_of(snapshot)
        if not self._shapes.few:
            return None
        found = self._few.get(wanted)
        if found is None:
            found = self._few[wanted] = [
                (has, count)
                for (has, count), cards in zip(self._shapes.few, self._shapes.cards, strict=True)
                if has[PODS_COLUMN] > 0 and (wanted is None or not wanted.isdisjoint(cards))
            ]
        return found

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
        allocatable, nodes = self._with_cards(snapshot, wanted)
        columns = cls.fit_request.nonzero()[0]
        return nodes, allocatable[:, columns] // cls.fit_request[columns], columns

    def _with_cards(self, snapshot: Snapshot, wanted: frozenset[str] | None) -> _Usable:
        if (known := self._usable.get(wanted)) is not None:
            return known
        if self._shapes is None:
            self._shapes = self._shapes_of(snapshot)
        allocatable, cards, nodes, _ = self._shapes
        usable: Mask = allocatable[:, PODS_COLUMN] > 0
        if wanted is not None:
            usable &= np.array([not wanted.isdisjoint(each) for each in cards], dtype=bool)
        known = self._usable[wanted] = _Usable(allocatable[usable], nodes[usable])
        return known

    def _shapes_of(self, snapshot: Snapshot) -> _Shapes:
        table = snapshot.nodes
        amounts, width = table.allocatable.tobytes(), table.allocatable.nbytes // max(1, len(table))
        rows = [amounts[start : start + width] for start in range(0, len(amounts), width)]
        facts = self._facts  # up to date, as of `_refresh`
        cards = [facts[node.name].cards for node in table.nodes]
        counts = Counter(zip(rows, cards, strict=True))
        allocatable = np.frombuffer(b"".join([found for found, _ in counts]), np.int64).reshape(len(counts), -1)
        few = [*zip(allocatable.tolist(), counts.values(), strict=True)] if len(counts) <= _FEW_SHAPES else []
        return _Shapes(allocatable, [cards for _, cards in counts], np.array(list(counts.values())), few)

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
    """The cards of which a node must have one; None for any node: devices of claims are no resources of their node."""
    cards = dispatch.first("pod_cards", cls) if not cls.claims else None
    return frozenset(cards.alternatives) if cards is not None and cards.names else None


def _named(dispatch: Dispatch, cls: TaskClass) -> frozenset[str] | None:
    """The same with cards that no node has yet."""
    cards = dispatch.first("pod_cards", cls) if not cls.claims else None
    return frozenset(cards.names) if cards is not None and cards.names else None


def _is_alone(cls: TaskClass) -> bool:
    """Whether limits of its pods follow from the class: they depend on no other pods, claims or volumes."""
    return cls.affinity is None and not (cls.spread or cls.volumes or cls.inline_volumes or cls.claims)


def _kind(cls: TaskClass) -> int:
    """Equal for the classes that differ in the names of generated claims alone: `alike`, above 0, or by the id."""
    return cls.alike or -1 - cls.id


def _needed(job: Job, classes: Collection[TaskClass]) -> Iterator[tuple[list[Task], int]]:
    """The pods of each kind, and how many of them, placed ones included, the minimum needs.

    `classes`: of all pods of the job.
    """
    live = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
    kinds: dict[int, list[Task]] = {}
    if len(classes) == 1:
        kinds = {0: live} if live else {}
    else:
        for task in live:
            kinds.setdefault(_kind(task.cls), []).append(task)
    done = len(job.tasks) - len(live)
    for tasks in kinds.values():
        needed = job.min_available - done - (len(live) - len(tasks))
        roles = job.min_task_member if job.min_task_member and job.checks_roles else {}
        kind = _kind(tasks[0].cls) if roles else 0
        for role, minimum in roles.items():
            if all(_kind(task.cls) == kind for task in live if task.role == role):
                needed = max(needed, minimum)
        if needed > 0:
            yield tasks, needed
