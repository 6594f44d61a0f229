"""Extended resources that nodes offer by devices: amounts for DeviceClasses, beside those of device plugins.

A node without a device plugin for a resource offers as many of it as its devices match the class. That makes the
resource an amount like others: nodes, queues and the totals of the cluster count it. It is an upper bound, since claims
of other pods use the same devices; the allocator decides.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.claims import AllocationError, Claim
from capcard_sched.devices.device_card import card_of
from capcard_sched.model.device_objects import DeviceClaim, DeviceRequest, ExactRequest
from capcard_sched.model.job import BackedResource
from capcard_sched.model.unsupported import DEVICE_CLASS_PREFIX, device_class_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from capcard_sched.devices.claims import Selector
    from capcard_sched.devices.inventory import DeviceInventory, PoolDevice
    from capcard_sched.model.job import Job, Node
    from capcard_sched.state.classes import ClassTable
    from capcard_sched.state.columns import NodeTable
    from capcard_sched.state.devices import DeviceTable
    from capcard_sched.state.node_cache import NodeCache

#: Selectors of a class that fail on every node: each device may match, and the search reports the error.
_UNKNOWN: Final = None


#: A pool without slices: any node may have reached it.
_GONE: Final = "", ""


class BackedResources:
    """Keeps `Node.backed`. `refresh` runs at the opening of every session."""

    def __init__(
        self,
        nodes: NodeTable,
        cache: NodeCache,
        devices: DeviceTable,
        classes: ClassTable,
        jobs: Mapping[str, Job],
    ) -> None:
        self._nodes, self._cache, self._classes, self._jobs = nodes, cache, classes, jobs
        self._inventory: DeviceInventory = devices.inventory
        self._by_resource = devices.by_resource
        #: Names of resources that a DeviceClass offers under its own name, to whether a pod or PodGroup requested them.
        #: Tenants choose the names that they request: those of missing classes are not kept.
        self._named: dict[str, bool] = {}
        #: Resource to class, and selectors of the class: of the last refresh.
        self._offered: dict[str, tuple[str, tuple[Selector, ...] | None]] = {}
        self._serial = 0
        #: Node name to the generation of its last refresh.
        self._seen: dict[str, int] = {}

    def refresh(self, changed: Collection[str], jobs: Collection[str], *, supported: bool) -> None:
        """Updates changed nodes, and those whose devices changed. `jobs`: keys of those with other requests.

        O(changed nodes) while classes and devices stay; O(nodes, jobs and devices) after a change of a class.
        """
        self._note_named(jobs)
        offered = self._classes_by_resource() if supported else {}
        if not offered and not self._offered:
            self._serial = self._inventory.version
            return
        names: Iterable[str] = self._nodes.by_name
        if offered == self._offered:
            names = self._touched(changed)
        self._offered, self._serial = offered, self._inventory.version
        for name in sorted(names):
            node = self._nodes.by_name.get(name)
            if node is not None:
                self._cache.back(node, self._of_node(node))
                self._seen[name] = node.generation
            else:
                self._seen.pop(name, None)

    def _note_named(self, jobs: Collection[str]) -> None:
        """Pods and PodGroups request the classes that are offered under their own names."""
        offered = {DEVICE_CLASS_PREFIX + name for name in self._inventory.classes}
        fresh = offered - self._named.keys()
        self._named = {name: self._named.get(name, False) for name in sorted(offered)}
        if fresh:  # requests may be older than their class
            self._note({name for cls in self._classes for name in fresh if name in cls.requests})
        missing = {name for name, is_requested in self._named.items() if not is_requested}
        if not missing:
            return
        self._note({name for cls in self._classes.requesting(missing) for name in missing if name in cls.unoffered})
        for key in self._jobs if fresh else jobs:
            job = self._jobs.get(key)
            if job is not None and job.min_resources:
                self._note(job.min_resources.keys() & missing)

    def _note(self, requested: Iterable[str]) -> None:
        self._named.update(dict.fromkeys(requested, True))

    def _classes_by_resource(self) -> dict[str, tuple[str, tuple[Selector, ...] | None]]:
        found: dict[str, tuple[str, tuple[Selector, ...] | None]] = {}
        requested = {name for name, is_requested in self._named.items() if is_requested}
        for resource in sorted(self._by_resource.keys() | requested):
            name = device_class_of(resource, self._by_resource)
            if name in self._inventory.classes:
                found[resource] = name, self._selectors(name)
        return found

    def _selectors(self, class_name: str) -> tuple[Selector, ...] | None:
        request = DeviceRequest("all", ExactRequest(device_class_name=class_name))
        claim = Claim("", "", "", None, False, DeviceClaim((request,)), None, frozenset())
        try:
            return self._inventory.plans.of(claim).requests[0][0].selectors
        except AllocationError:
            return _UNKNOWN

    def _touched(self, changed: Collection[str]) -> set[str]:
        """Nodes whose objects or pools changed."""
        by_name = self._nodes.by_name
        found = {name for name in changed if name not in by_name or by_name[name].generation != self._seen.get(name)}
        for pool in self._inventory.changes.since(self._serial, (_GONE,)):
            slices = self._inventory.slices_of(pool)
            if not slices or not all(each.node for each in slices):
                return set(by_name)
            found.update(each.node for each in slices)
        return found

    def _of_node(self, node: Node) -> Mapping[str, BackedResource]:
        missing = [name for name in self._offered if not node.allocatable.get(name)]
        if not missing:
            return {}
        devices = [
            device
            for pool in self._inventory.pools(node.name, node.labels)
            if not (pool.incomplete or pool.invalid)
            for device in pool.devices
        ]
        found: dict[str, BackedResource] = {}
        for resource in missing if devices else ():
            selectors = self._offered[resource][1]
            matching = [each for each in devices if selectors is _UNKNOWN or _may_match(selectors, each)]
            cards = Counter(map(card_of, matching))
            del cards[""]
            if matching:
                found[resource] = BackedResource(len(matching), tuple(sorted(cards.items())))
        return found


def _may_match(selectors: tuple[Selector, ...], device: PoolDevice) -> bool:
    """Whether a search may give a device, or fails for it."""
    try:
        return all(device.content.matches(each.program) for each in selectors)
    except EvaluationError:
        return True
