"""Checks the claims of pods, assigns volumes to them and passes the assignments on to the binding.

A pod's claims become `PodVolumes`, part of its signature. Bound volumes are static checks. Claims with
WaitForFirstConsumer are *open*: `VolumeMarket` evaluates them for all nodes before every pod. Volumes that a placement
of this session assigns to open claims are kept here under the pod's uid and released when the placement is undone;
committed ones are assumed by the state (`Storage.assumed`) and count the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.api.place_limits import PlaceLimit
from capcard_sched.model.intents import ClaimBinding
from capcard_sched.model.kinds import CORE_API
from capcard_sched.model.ownership import owner_of
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import SESSION_STATUSES
from capcard_sched.model.storage import Assumption, Decision
from capcard_sched.plugins.predicates.attached_volumes import (
    READ_WRITE_ONCE_POD,
    AttachedVolumes,
    ExclusiveClaims,
    keys_of_driver,
    reject_without_driver,
)
from capcard_sched.plugins.predicates.volume_market import NOTHING, TO_BE_MADE, VolumeMarket, VolumeReach, score_offers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.model.in_tree_volumes import AttachmentKey
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.storage import Storage, VolumeClaim
    from capcard_sched.plugins.predicates.arguments import PredicatesArguments, ShapePoint
    from capcard_sched.plugins.predicates.volume_market import Offer

WRONG_ZONE = "node(s) had no available volume zone"
UNREACHABLE = "node(s) didn't match PersistentVolume's node affinity"
UNAVAILABLE = "node(s) didn't find available persistent volumes to bind"
NO_CAPACITY = "node(s) did not have enough free storage"
VOLUME_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
IMMEDIATE_UNBOUND = "pod has unbound immediate PersistentVolumeClaims"

_FAILED = "plugin VolumeBinding pre-predicates failed {}"


class VolumesTakenError(RuntimeError):
    """A chosen node does not offer the volumes that a pod's claims need."""


class PodVolumes(NamedTuple):
    """The claims of a pod as the checks read them. Compared by content."""

    #: Names and versions of the volumes that its claims are bound to.
    bound: tuple[tuple[str, int], ...] = ()
    #: Names and versions of volumes reserved for its claims; version NOTHING when the volume does not exist.
    reserved: tuple[tuple[str, int], ...] = ()
    #: Whether a claim is bound to a volume that does not exist.
    gone: bool = False
    #: Nodes where single-node volumes are being provisioned.
    nodes: tuple[str, ...] = ()
    #: Classes of multi-node volumes that are being provisioned.
    shared: tuple[str, ...] = ()
    #: Keys of the open claims.
    open: tuple[str, ...] = ()
    #: Attachments on its node, of drivers with a limit and without the open claims.
    attached: tuple[AttachmentKey, ...] = ()
    #: Drivers that the node must have, each with the in-tree plugin of the volume, "" for a CSI volume.
    required: tuple[tuple[str, str], ...] = ()
    #: Keys of the claims that only one pod may use.
    exclusive: tuple[str, ...] = ()
    #: The reason why the claims allow no node, "" without one.
    error: str = ""


class VolumeRules:
    """Implements the module's checks for one plugin instance; `open` is called at the start of every session."""

    def __init__(self, arguments: PredicatesArguments) -> None:
        self._arguments = arguments
        self._binding = arguments.volume_binding
        self.attached = AttachedVolumes(self._attachments)
        self.exclusive = ExclusiveClaims()
        self._market: VolumeMarket | None = None
        self._reach: VolumeReach | None = None
        #: Claim key to the volume that a placement of this session assigned.
        self._decided: dict[str, Assumption] = {}
        #: Pod uid to the claims that are bound with the pod.
        self._binding_claims: dict[str, tuple[tuple[str, Decision], ...]] = {}
        self._offer: tuple[tuple[str, ...], Offer] | None = None

    def open(self, session: Session, index: NodeIndex) -> None:
        self._storage: Storage = session.snapshot.volumes
        self._rows_by_name = session.nodes.by_name
        self._index = index
        self._decided.clear()
        self._binding_claims.clear()
        self._offer = None
        self.exclusive.refresh(session)
        if self._arguments.node_volume_limits:
            self.attached.open(session)

    def of(self, task: Task) -> PodVolumes | None:
        """The current volumes of a pod; None for a pod without claims and attachable volumes."""
        cls = task.cls
        if not cls.volumes:
            return self._of_inline(task) if cls.inline_volumes else None
        storage = self._storage
        bound: list[tuple[str, int]] = []
        reserved: list[tuple[str, int]] = []
        nodes: list[str] = []
        shared: list[str] = []
        waiting: list[str] = []
        exclusive: list[str] = []
        gone = False
        for name in cls.volumes:
            key = f"{task.namespace}/{name}"
            claim = storage.claims.get(key)
            error = self._problem(task, name, claim)
            if error:
                return PodVolumes(error=_FAILED.format(error))
            if claim is None:
                continue
            if READ_WRITE_ONCE_POD in claim.access_modes:
                exclusive.append(key)
            if claim.bound:
                volume = storage.volumes.get(claim.volume_name)
                if volume is None:
                    gone = True
                else:
                    bound.append((volume.name, volume.version))
                continue
            if not self._binding:
                continue
            decision = self._decision(claim)
            if decision is None:
                waiting.append(key)
            elif decision.volume:
                volume = storage.volumes.get(decision.volume)
                reserved.append((decision.volume, NOTHING if volume is None else volume.version))
            elif claim.is_for_many_nodes:
                # A gang shares such a claim: bound to the node of its first pod, it would exclude the others.
                shared.append(claim.class_name)
            else:
                nodes.append(decision.node)
        return PodVolumes(
            tuple(bound),
            tuple(reserved),
            gone,
            tuple(nodes),
            tuple(shared),
            tuple(waiting),
            tuple(key for key in self._attachments(task) if key.driver in self.attached.drivers),
            self._required(task, waiting),
            tuple(exclusive),
        )

    def _of_inline(self, task: Task) -> PodVolumes | None:
        limited = tuple(key for key in task.cls.inline_volumes if key.driver in self.attached.drivers)
        required = self._required(task, ())
        return PodVolumes(attached=limited, required=required) if limited or required else None

    def _problem(self, task: Task, name: str, claim: VolumeClaim | None) -> str:
        """The reason why a claim allows no node, "" without one."""
        if not self._binding:
            return ""
        if claim is None:
            if name in task.cls.own_volumes:
                return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            return f'persistentvolumeclaim "{name}" not found'
        if claim.lost:
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
        if claim.deleting:
            return f'persistentvolumeclaim "{name}" is being deleted'
        pod = owner_of(task.namespace, CORE_API, "Pod", task.name, task.uid)
        if name in task.cls.own_volumes and claim.owner != pod:
            return f"PVC {claim.key} was not created for pod {task.key} (pod is not owner)"
        if claim.bound or self._is_assumed(claim.key):
            return ""
        of_class = self._storage.classes.get(claim.class_name)
        if claim.volume_name or of_class is None or not of_class.waits_for_consumer:
            return IMMEDIATE_UNBOUND
        return f'persistentvolumeclaim "{name}" cannot be read: {claim.problem}' if claim.problem else ""

    def _is_assumed(self, key: str) -> bool:
        return key in self._decided or key in self._storage.assumed

    def _decision(self, claim: VolumeClaim) -> Decision | None:
        """The volume assigned to an unbound claim, or None."""
        assumption = self._decided.get(claim.key) or self._storage.assumed.get(claim.key)
        if assumption is not None:
            return assumption.decision
        if claim.selected_node in self._rows_by_name:
            return Decision("", claim.selected_node)
        kept = [
            volume
            for name in self._storage.reserved.get(claim.key, ())
            if (volume := self._storage.volumes[name]).is_reserved_for(claim)
            and volume.class_name == claim.class_name
            and volume.suits(claim)
        ]
        return Decision(min(kept, key=lambda volume: (volume.size, volume.name)).name, "") if kept else None

    def _attachments(self, task: Task) -> tuple[AttachmentKey, ...]:
        """The current attachments of a pod's claims; open claims count as volumes to be provisioned."""
        storage = self._storage
        found: dict[AttachmentKey, None] = dict.fromkeys(task.cls.inline_volumes)
        for name in task.cls.volumes:
            claim = storage.claims.get(f"{task.namespace}/{name}")
            if claim is None:
                continue
            decision = Decision(claim.volume_name, "") if claim.bound else self._decision(claim)
            if decision is not None and decision.volume and decision.volume not in storage.volumes:
                key = storage.unprovisioned_key(claim)  # the class of a missing volume gives its driver
            elif decision is None:
                key = None if self._binding and task.node is None else storage.unprovisioned_key(claim)
            else:
                key = storage.attachment_key(decision.volume) if decision.volume else storage.unprovisioned_key(claim)
            if key is not None:
                found[key] = None
        return tuple(found)

    def _required(self, task: Task, open_claims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """The required drivers among those of a pod's volumes, with plugins."""
        storage = self._storage
        if not storage.required_drivers or not self._arguments.node_volume_limits:
            return ()
        made = (storage.unprovisioned_key(storage.claims[key]) for key in open_claims)
        keys = (*self._attachments(task), *filter(None, made))
        return tuple(sorted({(key.driver, key.plugin) for key in keys if key.driver in storage.required_drivers}))

    def is_limited(self, volumes: PodVolumes) -> bool:
        """Whether a driver can exclude nodes for the pod: nodes at its limit, or without it."""
        return bool(volumes.attached or volumes.required or (volumes.open and self.attached.drivers))

    def reject_fixed(self, volumes: PodVolumes, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes by the volumes of bound or assigned claims. No placement changes the result."""
        reach = self._current_reach()
        if self._arguments.volume_zone:
            for name, _ in volumes.bound:
                zone = reach.zones(self._storage.volumes[name])
                if zone is not None:
                    result.reject(~rows.take(zone), Code.UNRESOLVABLE, WRONG_ZONE)
        if not self._binding:
            return
        if volumes.gone:
            result.reject_all(Code.UNRESOLVABLE, VOLUME_GONE)
        self._reject_unreachable(volumes.bound, UNREACHABLE, rows, result)
        self._reject_unreachable(volumes.reserved, UNAVAILABLE, rows, result)
        for name in volumes.nodes:
            elsewhere = np.ones(len(self._index), dtype=bool)
            if name in self._rows_by_name:
                elsewhere[self._rows_by_name[name].row] = False
            result.reject(rows.take(elsewhere), Code.UNRESOLVABLE, UNAVAILABLE)
        for name in volumes.shared:
            made_by = self._storage.classes.get(name)
            inside = reach.mask(reach.topologies(made_by.topologies if made_by is not None else ()))
            result.reject(~rows.take(inside), Code.UNRESOLVABLE, UNAVAILABLE)

    def place_limits(self, task: Task) -> Iterator[PlaceLimit]:
        """Of pods with the claims of this one: the reach of bound volumes, and claims that only one pod may use."""
        reach = self._current_reach() if task.cls.volumes else None
        for name in task.cls.volumes if reach is not None else ():
            claim = self._storage.claims.get(f"{task.namespace}/{name}")
            if claim is None or reach is None:
                continue
            if READ_WRITE_ONCE_POD in claim.access_modes:
                text = f"their PersistentVolumeClaim {name} (ReadWriteOncePod) leaves space for {{limit}}"
                yield PlaceLimit(text, domains=np.zeros(len(self._index), dtype=np.intp))
            volume = self._storage.volumes.get(claim.volume_name) if claim.bound else None
            if volume is None:
                continue
            text = f"the nodes that reach PersistentVolume {volume.name} have space for {{limit}}"
            key = volume.name, volume.version
            if self._arguments.volume_zone and (zones := reach.zones(volume)) is not None:
                yield PlaceLimit(text, nodes=zones, key=(*key, "zone"))
            if self._binding and volume.affinity is not None:
                yield PlaceLimit(text, nodes=reach.mask(reach.rows(volume.affinity)), key=key)

    def _reject_unreachable(
        self, volumes: Iterable[tuple[str, int]], reason: str, rows: NodeView, result: FilterResult
    ) -> None:
        """Reject nodes that the node affinity of a volume excludes. `volumes`: names with their version."""
        reach = self._current_reach()
        for name, version in volumes:
            if version == NOTHING:
                result.reject_all(Code.UNRESOLVABLE, reason)
                continue
            affinity = self._storage.volumes[name].affinity
            if affinity is not None:
                inside = reach.mask(reach.rows(affinity))
                result.reject(~rows.take(inside), Code.UNRESOLVABLE, reason)

    def reject_over_limit(self, volumes: PodVolumes, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes without a required driver, and nodes at the limit of a driver."""
        if volumes.required:
            reject_without_driver(self._storage, volumes.required, rows, result)
        more: list[tuple[AttachmentKey, Mask]] = []
        if volumes.open and self.attached.drivers:
            market, offer = self._current_market(), self.offer(volumes.open)
            for claim, choice in zip(offer.claims, offer.choices, strict=True):
                made = self._storage.unprovisioned_key(claim)
                if made is not None:
                    more.append((made, choice == TO_BE_MADE))
                more += [
                    (key, np.isin(choice, market.versions_of(key.driver, key.plugin)))
                    for driver in sorted(self.attached.drivers)
                    for key in keys_of_driver(driver)
                ]
        self.attached.reject(volumes.attached, more, rows, result)

    def reject_without_offer(self, volumes: PodVolumes, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes without a volume, or the capacity to provision one, for some open claim."""
        offer = self.offer(volumes.open)
        result.reject(rows.take(offer.unavailable), Code.UNRESOLVABLE, UNAVAILABLE)
        result.reject(rows.take(offer.short), Code.UNRESOLVABLE, NO_CAPACITY)

    def score(self, volumes: PodVolumes, shape: Sequence[ShapePoint]) -> Scores:
        """Score of every node for the volumes it offers to the open claims: float64 [nodes]."""
        return score_offers(self._current_market(), self.offer(volumes.open), shape)

    def _current_reach(self) -> VolumeReach:
        if self._reach is None or self._reach.index is not self._index:
            self._reach = VolumeReach(self._index)
        return self._reach

    def _current_market(self) -> VolumeMarket:
        reach, market = self._current_reach(), self._market
        if market is None or market.generation != self._storage.generation or market.reach is not reach:
            market = self._market = VolumeMarket(self._storage, reach)
        return market

    def offer(self, keys: tuple[str, ...]) -> Offer:
        if self._offer is None or self._offer[0] != keys:
            assumed = (*self._decided.values(), *self._storage.assumed.values())
            taken = {each.decision.volume for each in assumed}
            self._offer = keys, self._current_market().offer([self._storage.claims[key] for key in keys], taken)
        return self._offer[1]

    def place(self, placement: Placement) -> None:
        """Add pods with volumes that were placed, or whose eviction was undone. Raises VolumesTakenError."""
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if self._binding and task.status in SESSION_STATUSES:
                self._assume(task, node)
            self.attached.place(task, node.name)
            self.exclusive.place(task, node.name)

    def displace(self, placement: Placement) -> None:
        """Undo `place`."""
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self.attached.displace(task, node.name)
            self.exclusive.displace(task, node.name)
            for key, _ in self._binding_claims.pop(task.uid, ()):
                assumption = self._decided[key]
                assumption.holders.discard(task.uid)
                if not assumption.holders:
                    del self._decided[key]
                self._offer = None

    def _assume(self, task: Task, node: Node) -> None:
        volumes = self.of(task)
        if volumes is None:
            return
        if volumes.error:
            raise VolumesTakenError(volumes.error)
        chosen = dict(self._choices(volumes.open, node)) if volumes.open else {}
        assigned: list[tuple[str, Decision]] = []
        for name in task.cls.volumes:
            claim = self._storage.claims[f"{task.namespace}/{name}"]
            if claim.bound:
                continue
            decision = chosen.get(claim.key) or self._decision(claim)
            assert decision is not None, claim.key
            assigned.append((claim.key, decision))
        for key, decision in assigned:
            self._decided.setdefault(key, Assumption(decision, set())).holders.add(task.uid)
        if assigned:
            self._binding_claims[task.uid] = tuple(assigned)
            self._offer = None

    def _choices(self, keys: Sequence[str], node: Node) -> list[tuple[str, Decision]]:
        market, offer = self._current_market(), self.offer(tuple(keys))
        found = []
        for claim, choice in zip(offer.claims, offer.choices, strict=True):
            version = int(choice[node.row])
            if version == NOTHING:
                raise VolumesTakenError(f"claim {claim.key}: {node.name} has no volume for it")
            volume = market.volumes[version].name if version != TO_BE_MADE else ""
            found.append((claim.key, Decision(volume, node.name)))
        return found

    def bindings(self, placement: Placement) -> dict[str, tuple[ClaimBinding, ...]] | None:
        """The claim bindings of pods by uid; None when no claim is open."""
        if not placement.cls.volumes:
            return None
        claims, timeout = self._storage.claims, self._arguments.bind_timeout_seconds
        return {
            task.uid: tuple(
                ClaimBinding(claims[key].name, claims[key].uid, decision.volume, timeout)
                for key, decision in self._binding_claims[task.uid]
            )
            for task in placement.tasks
            if task.uid in self._binding_claims
        }

    def decisions(self) -> dict[str, Decision]:
        """Claim key to decision, of the placements of this session that were not undone."""
        return {key: assumption.decision for key, assumption in self._decided.items()}
