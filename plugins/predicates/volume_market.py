"""Finds a volume on every node for claims with WaitForFirstConsumer: an existing volume, or one to be provisioned.

As in kube-scheduler the smallest claim chooses first, each claim takes the smallest volume that matches, and a volume
is provisioned only where none matches. All nodes are evaluated at once: volumes with the same node affinity form a
pool, and a pool offers its first free volume to all its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.storage import PersistentVolume, Storage, StorageCapacity, VolumeClaim
    from capcard_sched.plugins.predicates.volume_reach import VolumeReach

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

    # --- provisioning -----------------------------------------------------------------------------------------------

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
