"""Extended resources that nodes offer by devices: which of a pod's resources need a ResourceClaim on which node."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.devices.claims import AllocationError, Claim, content_of
from capcard_sched.devices.extended_resources import ExtendedRequests, extended_claim_name, extended_requests
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.unsupported import device_class_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from capcard_sched.devices.claims import ClaimPlan
    from capcard_sched.framework.api.node_view import Mask, NodeView
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import ContainerAmounts, TaskClass

#: The claim in texts: it has no name before the pod is placed.
_NAME: Final = "<extended-resources>"
#: Of pods whose earlier binding failed.
HAS_STATUS: Final = "extendedResourceClaimStatus of the pod needs a node that offers its resources by devices"


class ExtendedResources(NamedTuple):
    """The resources of a pod that DeviceClasses offer, as far as nodes have no device plugin for them."""

    containers: tuple[ContainerAmounts, ...]
    #: Resource and class, sorted.
    classes: tuple[tuple[str, str], ...]

    def on(self, node: Node) -> ExtendedResources | None:
        """Those that a node offers by devices; None without any."""
        classes = tuple([each for each in self.classes if each[0] in node.backed])
        return self._replace(classes=classes) if classes else None


# Computed 5.9 us, kept 0.1 (benchmarks/caches.py). Few: tenants write containers of any size.
@lru_cache(maxsize=128)
def _claim(found: ExtendedResources) -> tuple[ExtendedRequests, Claim]:
    """The content of the claim, as requests and mappings, and as a claim of no pod."""
    requests = extended_requests(found.containers, dict(found.classes))
    spec, consumers = requests.spec, frozenset[str]()
    return requests, Claim("", _NAME, "", None, False, spec, None, consumers, "", content_of(spec), extended=True)


class ExtendedClaims:
    """The claims of pods for extended resources; `open` is called at the start of every session."""

    def __init__(self) -> None:
        #: Mask of the nodes that offer each resource by devices, for one generation and number of nodes.
        self._masks: dict[str, Mask] = {}
        self._stamp = (-1, 0)

    def open(self, session: Session) -> None:
        snapshot = session.snapshot
        self._nodes, self._by_resource = session.nodes, snapshot.device_classes
        self._inventory, self._ledger = snapshot.devices, snapshot.claims
        stamp = session.nodes.generation, len(session.nodes)
        if stamp != self._stamp:
            self._stamp = stamp
            self._masks.clear()

    def of(self, cls: TaskClass) -> ExtendedResources | None:
        """The resources of a class that some node offers by devices; None without any."""
        if not cls.device_containers or not self._inventory.classes:
            return None
        found: list[tuple[str, str]] = []
        for resource, amount in cls.requests.items():
            name = device_class_of(resource, self._by_resource) if amount else ""
            if name and self._mask(resource).any():
                found.append((resource, name))
        return ExtendedResources(cls.device_containers, tuple(sorted(found))) if found else None

    def _mask(self, resource: str) -> Mask:
        mask = self._masks.get(resource)
        if mask is None:
            mask = self._masks[resource] = np.array([resource in each.backed for each in self._nodes.nodes], dtype=bool)
        return mask

    def problem(self, task: Task, found: ExtendedResources | None) -> str:
        """Why a pod with these resources fits no node; "" without a reason."""
        key = self._ledger.extended.get((task.namespace, task.uid), "")
        is_pending = task.status is TaskStatus.PENDING
        if is_pending and key and key not in self._ledger.assumed:
            return f'resourceclaim "{key.partition("/")[2]}" of an earlier attempt is not deleted yet'
        try:
            if found is not None:
                self.plan(found)
        except AllocationError as error:
            return str(error)
        return HAS_STATUS if is_pending and task.extended_claim and found is None else ""

    def key(self, task: Task) -> str:
        """The key of the claim that a pod gets with its placement."""
        return f"{task.namespace}/{extended_claim_name(task.name, task.uid)}"

    def held(self, task: Task) -> str | None:
        """The key of the claim that a placed pod has; None without one.

        Its status names it, once it is read: tenants write annotations and owners of claims.
        """
        if task.extended_claim:
            return f"{task.namespace}/{task.extended_claim}"
        return self._ledger.extended.get((task.namespace, task.uid))

    def requests(self, found: ExtendedResources) -> ExtendedRequests:
        """The content of the claim, and the mappings of the containers."""
        return _claim(found)[0]

    def content(self, found: ExtendedResources) -> bytes:
        """The content of the claim: equal claims get devices alike."""
        return _claim(found)[1].content

    def plan(self, found: ExtendedResources, uid: str = "") -> ClaimPlan:
        """The plan of the claim of a pod. Raises AllocationError."""
        return self._inventory.plans.of(_claim(found)[1])._replace(uid=uid)

    def split(
        self, found: ExtendedResources, rows: NodeView
    ) -> Iterator[tuple[npt.NDArray[np.intp], ExtendedResources | None]]:
        """The entries of a view by the resources that their nodes offer by devices: places and resources."""
        codes = np.zeros(len(rows), dtype=np.int64)
        for index, (resource, _) in enumerate(found.classes):
            codes |= rows.take(self._mask(resource)).astype(np.int64) << index
        for code in np.bincount(codes).nonzero()[0].tolist():
            classes = tuple([each for index, each in enumerate(found.classes) if code >> index & 1])
            yield np.flatnonzero(codes == code), found._replace(classes=classes) if classes else None
