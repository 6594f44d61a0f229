"""Volumes that the nodes offer to claims with WaitForFirstConsumer, and their scores.

There may be thousands of local volumes that reach one node each. So `In` requirements are evaluated by the rows of
their values, and only the other requirements node by node.

As in kube-scheduler the smallest claim chooses first, each claim takes the smallest volume that matches, and a volume
is provisioned only where none matches. All nodes are evaluated at once: volumes with the same node affinity form a
pool, and a pool offers its first free volume to all its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from capcard_sched.model.objects import NodeSelector, NodeSelectorTerm, Requirement
from capcard_sched.model.selectors import matches_term

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows, Scores
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.model.objects import LabelSelector
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.storage import PersistentVolume, Storage, StorageCapacity, VolumeClaim
    from capcard_sched.model.volumes import TopologySelectorTerm
    from capcard_sched.plugins.predicates.arguments import ShapePoint

#: Labels of zones and regions, each with its older or newer name.
ZONE_LABELS: Final = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
#: Separator of the zones of a volume that is in several.
_ZONES = "__"


class VolumeReach:
    """Results for the nodes of one index, cached until the index is rebuilt."""

    def __init__(self, index: NodeIndex) -> None:
        self.index = index
        self.everywhere: Rows = np.arange(len(index), dtype=np.intp)
        self._rows: dict[NodeSelector | None, Rows] = {None: self.everywhere}
        #: Label key to all rows ordered by value code, and where each code begins; nodes without the label come first.
        self._sorted: dict[str, tuple[Rows, Rows]] = {}

    def rows(self, selector: NodeSelector | None) -> Rows:
        """Rows that a selector matches, ascending: intp [k]. None matches every node, no terms match none."""
        found = self._rows.get(selector)
        if found is None:
            assert selector is not None
            found = self._rows[selector] = _union([self._term(term) for term in selector.node_selector_terms])
        return found

    def mask(self, rows: Rows) -> Mask:
        """The same as bool [nodes]."""
        mask = np.zeros(len(self.index), dtype=bool)
        mask[rows] = True
        return mask

    def _labelled(self, key: str, values: Iterable[str]) -> Rows:
        """Rows whose label has one of the values."""
        codes, known = self.index.column(key)
        if key not in self._sorted:
            order = np.argsort(codes, kind="stable")
            self._sorted[key] = order, np.searchsorted(codes[order], np.arange(len(known) + 1))
        order, starts = self._sorted[key]
        wanted = sorted({known[value] for value in values if value in known})
        return _union([order[starts[code] : starts[code + 1]] for code in wanted])

    def _term(self, term: NodeSelectorTerm) -> Rows:
        found: Rows | None = None
        rest: list[Requirement] = []
        for requirement in term.match_expressions or ():
            if requirement.operator == "In":
                rows = self._labelled(requirement.key, requirement.values or ())
                found = rows if found is None else np.intersect1d(found, rows, assume_unique=True)
            else:
                rest.append(requirement)
        if not rest and not term.match_fields:
            return found if found is not None else self.everywhere[:0]
        other = NodeSelectorTerm(tuple(rest), term.match_fields)
        nodes = self.index.nodes
        candidates = (self.everywhere if found is None else found).tolist()
        passed = [row for row in candidates if matches_term(other, nodes[row].labels, nodes[row].name)]
        return np.array(passed, dtype=np.intp)

    def topologies(self, terms: tuple[TopologySelectorTerm, ...]) -> Rows:
        """Rows where a class provisions volumes; without terms all rows."""
        if not terms:
            return self.everywhere
        selector = NodeSelector(
            tuple(
                NodeSelectorTerm(
                    tuple(Requirement(each.key, "In", each.values or ()) for each in term.match_label_expressions or ())
                )
                for term in terms
            )
        )
        return self.rows(selector)

    def selected(self, selector: LabelSelector | None) -> Rows:
        """Rows whose labels a selector matches: None matches none, an empty selector all."""
        if selector is None:
            return self.everywhere[:0]
        wanted: Mapping[str, str] = selector.match_labels or {}
        parts = [Requirement(key, "In", (value,)) for key, value in wanted.items()]
        parts += selector.match_expressions or ()
        return self.rows(NodeSelector((NodeSelectorTerm(tuple(parts)),))) if parts else self.everywhere

    def zones(self, volume: PersistentVolume) -> Mask | None:
        """Mask, bool [nodes]: nodes in the zones and regions of a volume, or in no zone; None when it has no zone."""
        outside: Mask | None = None
        for key, twin in ZONE_LABELS.items():
            value = volume.labels.get(key)
            if value is None:
                continue
            values = value.split(_ZONES)
            inside = self.mask(self._labelled(key, values))
            inside |= self.mask(self._labelled(twin, values)) & (self.index.column(key).codes < 0)
            outside = ~inside if outside is None else outside | ~inside
        if outside is None:
            return None
        zoned = np.zeros(len(self.index), dtype=bool)
        for key in ZONE_LABELS:
            zoned |= self.index.column(key).codes >= 0
        return ~(outside & zoned)


def _union(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return np.sort(parts[0])
    return np.bincount(np.concatenate(parts)).nonzero()[0] if parts else np.zeros(0, dtype=np.intp)


#: Values in place of a volume's version: the volume is to be provisioned, or there is none.
TO_BE_MADE = 0
NOTHING = -1

_NONE = np.iinfo(np.int64).max
_encode = msgspec.json.Encoder(order="deterministic").encode


class Offer(NamedTuple):
    """The volumes of every node for the open claims of a pod."""

    #: Smallest first.
    claims: tuple[VolumeClaim, ...]
    #: Per claim the version of the volume, TO_BE_MADE or NOTHING: int64 [nodes].
    choices: tuple[Vector, ...]
    #: Nodes without a volume for some claim, and nodes that lack the capacity to provision one: bool [nodes].
    unavailable: Mask
    short: Mask


class _Candidates:
    """The volumes that match a claim on any node, the smallest first."""

    def __init__(self, claim: VolumeClaim, volumes: Collection[PersistentVolume], reach: VolumeReach) -> None:
        fitting = sorted(
            (volume for volume in volumes if volume.is_candidate_for(claim)),
            key=lambda volume: (volume.size, volume.name),
        )
        self.position = {volume.name: place for place, volume in enumerate(fitting)}
        self.versions = np.array([volume.version for volume in fitting], dtype=np.int64)
        pools: dict[int, int] = {}
        reaches: list[Rows] = []
        #: intp [volumes]
        self._pool = np.zeros(len(fitting), dtype=np.intp)
        for place, volume in enumerate(fitting):
            rows = reach.rows(volume.affinity)
            pool = pools.setdefault(id(rows), len(pools))  # `reach` keeps the arrays: equal selectors, the same array
            if pool == len(reaches):
                reaches.append(rows)
            self._pool[place] = pool
        self._pools = len(reaches)
        #: Every pair of a pool and a node that it reaches: intp [pairs] each.
        self._rows: Rows = np.concatenate(reaches) if reaches else np.zeros(0, dtype=np.intp)
        self._pool_of_row = np.repeat(np.arange(len(reaches)), [len(rows) for rows in reaches])

    def best(self, nodes: int, taken: Collection[str], others: Sequence[Vector]) -> Vector:
        """Version of the best volume on each node, NOTHING without one: int64 [nodes].

        `taken`: names of volumes reserved for other claims. `others`: the choices of the pod's other claims by node.
        """
        if not len(self.versions):
            return np.full(nodes, NOTHING, dtype=np.int64)
        free = np.ones(len(self.versions), dtype=bool)
        for name in taken:
            place = self.position.get(name)
            if place is not None:
                free[place] = False
        best = np.full(nodes, _NONE, dtype=np.int64)
        left: npt.NDArray[np.intp] = np.flatnonzero(free)
        for _ in range(len(others) + 1):  # the first volume of a pool, or a later one if another claim chose it
            first = np.full(self._pools, _NONE, dtype=np.int64)
            first[self._pool[left][::-1]] = left[::-1]  # of several assignments to one pool the last one stays
            offered = first[self._pool_of_row]
            good = offered != _NONE
            places, rows = offered[good], self._rows[good]
            if others:
                distinct = np.ones(len(places), dtype=bool)
                for other in others:
                    distinct &= other[rows] != self.versions[places]
                places, rows = places[distinct], rows[distinct]
            np.minimum.at(best, rows, places)
            left = left[~np.isin(left, first)]
        found = best != _NONE
        versions = np.full(nodes, NOTHING, dtype=np.int64)
        versions[found] = self.versions[best[found]]
        return versions


class VolumeMarket:
    """Computes offers; caches the part that follows from the storage objects and the nodes alone."""

    def __init__(self, storage: Storage, reach: VolumeReach) -> None:
        self._storage = storage
        self.reach = reach
        self.generation = storage.generation
        self._candidates: dict[object, _Candidates] = {}
        self._made: dict[tuple[str, int], tuple[Mask, Mask]] = {}
        self._versions_of: dict[tuple[str, str], Vector] = {}
        #: Version to volume.
        self.volumes = {volume.version: volume for volume in storage.volumes.values()}

    def offer(self, claims: Sequence[VolumeClaim], taken: Collection[str]) -> Offer:
        """The offer for these claims of one pod; `taken`: names of volumes reserved for other claims."""
        nodes = len(self.reach.index)
        ordered = tuple(sorted(claims, key=lambda claim: (claim.size, claim.name)))
        choices: list[Vector] = []
        unavailable, short = np.zeros(nodes, dtype=bool), np.zeros(nodes, dtype=bool)
        for claim in ordered:
            choice = self._candidates_for(claim).best(nodes, taken, choices)
            missing = choice == NOTHING
            if missing.any():
                possible, enough = self._can_be_made(claim)
                choice[missing & possible & enough] = TO_BE_MADE
                unavailable |= missing & ~possible
                short |= missing & possible & ~enough
            choices.append(choice)
        return Offer(ordered, tuple(choices), unavailable, short)

    def _candidates_for(self, claim: VolumeClaim) -> _Candidates:
        selector = _encode(claim.selector) if claim.selector is not None else None
        need = (claim.class_name, claim.size, claim.access_modes, claim.volume_mode, selector)
        found = self._candidates.get(need)
        if found is None:
            of_class = self._storage.volumes_of_class.get(claim.class_name, {})
            found = self._candidates[need] = _Candidates(claim, of_class.values(), self.reach)
        return found

    def versions_of(self, driver: str, plugin: str) -> Vector:
        """Versions of the volumes with this driver and plugin in their attachment key: int64 [volumes]."""
        found = self._versions_of.get((driver, plugin))
        if found is None:
            versions = [
                volume.version
                for volume in self._storage.volumes.values()
                if (key := volume.attachment) is not None and (key.driver, key.plugin) == (driver, plugin)
            ]
            found = self._versions_of[driver, plugin] = np.array(versions, dtype=np.int64)
        return found

    def _can_be_made(self, claim: VolumeClaim) -> tuple[Mask, Mask]:
        """Masks, bool [nodes]: where the class provisions volumes, and where the capacity suffices for this claim."""
        key = (claim.class_name, claim.size)
        found = self._made.get(key)
        if found is None:
            of_class = self._storage.classes.get(claim.class_name)
            nodes = len(self.reach.index)
            possible = np.zeros(nodes, dtype=bool)
            enough = np.ones(nodes, dtype=bool)
            if of_class is not None and of_class.provisions:
                possible = self.reach.mask(self.reach.topologies(of_class.topologies))
                if of_class.provisioner in self._storage.tracked_drivers:
                    enough[:] = False
                    for capacity in self._capacities(claim.class_name):
                        if capacity.largest >= claim.size:
                            enough[self.reach.selected(capacity.topology)] = True
            found = self._made[key] = possible, enough
        return found

    def _capacities(self, class_name: str) -> list[StorageCapacity]:
        return [each for each in self._storage.capacities.values() if each.class_name == class_name]

    def free_capacity(self, class_name: str) -> Vector:
        """Bytes that a class can still provision on each node, 0 where no driver reports it: int64 [nodes]."""
        free = np.zeros(len(self.reach.index), dtype=np.int64)
        for capacity in self._capacities(class_name):
            rows = self.reach.selected(capacity.topology)
            free[rows] = np.maximum(free[rows], capacity.left)
        return free


#: A full score of the shape, and of a node.
_SHAPE_FULL, _NODE_FULL = 10, 100


def score_offers(market: VolumeMarket, offer: Offer, shape: Sequence[ShapePoint]) -> Scores:
    """Score of every node for the volumes it offers to the claims, 0 to 100: float64 [nodes].

    The shape maps the utilization of the volumes of each class to points; the score is the mean over the classes. A
    node with existing volumes for some of the claims is scored by these; a node where all are to be provisioned, by
    the capacity that its drivers report.
    """
    nodes = len(offer.unavailable)
    present = np.zeros(nodes, dtype=bool)
    for choice in offer.choices:
        present |= choice > TO_BE_MADE
    requested: dict[str, Vector] = {}
    offered: dict[str, Vector] = {}
    for claim, choice in zip(offer.claims, offer.choices, strict=True):
        name = claim.class_name
        wanted = requested.setdefault(name, np.zeros(nodes, dtype=np.int64))
        given = offered.setdefault(name, np.zeros(nodes, dtype=np.int64))
        free = market.free_capacity(name)
        made = (choice == TO_BE_MADE) & ~present & (free > 0)
        wanted[made] += claim.size
        given[made] = free[made]
        chosen = choice > TO_BE_MADE
        versions, place = np.unique(choice[chosen], return_inverse=True)
        sizes = np.array([market.volumes[version].size for version in versions.tolist()], dtype=np.int64)
        wanted[chosen] += claim.size
        given[chosen] += sizes[place]
    total, classes = np.zeros(nodes), np.zeros(nodes, dtype=np.int64)
    for name, given in offered.items():
        counted = given > 0
        share = np.minimum(requested[name][counted] / given[counted], 1.0) * 100
        total[counted] += _through(shape, share)
        classes[counted] += 1
    return np.round(total / np.maximum(classes, 1))


def _through(shape: Sequence[ShapePoint], share: Scores) -> Scores:
    points = [point.utilization for point in shape]
    scores = [point.score * _NODE_FULL / _SHAPE_FULL for point in shape]
    return np.interp(share, points, scores)
