"""ResourceSlices, DeviceClasses and DeviceTaintRules: the devices that exist, and the pools that a node reaches.

Slices of a pool replace those of lower generations; a pool is complete when all its slices are there. Devices with
equal attributes and capacities share one `DeviceContent`, for which a selector is evaluated once.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched.devices.claims import ClaimPlans
from capcard_sched.devices.device_content import DeviceContent
from capcard_sched.devices.pool_changes import PoolChanges, PoolId
from capcard_sched.devices.selector_work import SelectorWork
from capcard_sched.devices.selectors import qualified
from capcard_sched.model.decode_errors import field_path
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.selectors import matches_node_selector, node_selector_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from capcard_sched.model.card_devices import CardDevice
    from capcard_sched.model.device_objects import (
        DeviceClassObject,
        DeviceTaintRuleSpec,
        ResourceSliceObject,
        ResourceSliceSpec,
        SliceDevice,
    )
    from capcard_sched.model.objects import NodeSelector, RawQuantity, Taint

#: Driver, pool and device.
DeviceId: TypeAlias = tuple[str, str, str]
#: Counter set and counter.
CounterId: TypeAlias = tuple[str, str]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
#: Most entries of the cache of contents before it is rebuilt from the slices.
_SPARE: Final = 4096


class PoolDevice:
    """One device of a slice."""

    __slots__ = ("content", "counters", "id", "is_shared", "slice", "spec", "taints")

    def __init__(self, spec: SliceDevice, source: DeviceSlice, content: DeviceContent) -> None:
        self.id: DeviceId = (source.spec.driver, source.spec.pool.name, spec.name)
        self.spec = spec
        self.slice = source
        self.content = content
        #: Serves several claims by shares.
        self.is_shared = bool(spec.allow_multiple_allocations)
        #: Amounts of counters that the device uses while it is allocated.
        self.counters: dict[CounterId, Fraction] = {}
        #: Of the device, and of the taint rules that select it.
        self.taints: tuple[Taint, ...] = spec.taints or ()


class DeviceSlice:
    """One ResourceSlice."""

    __slots__ = ("counters", "devices", "name", "problem", "spec", "unsupported")

    def __init__(self, name: str, spec: ResourceSliceSpec) -> None:
        self.name = name
        self.spec = spec
        self.devices: list[PoolDevice] = []
        #: Available amounts of the counters of its sets.
        self.counters: dict[CounterId, Fraction] = {}
        #: Makes its pool invalid, with the field; "" without a problem.
        self.problem = ""
        #: An alpha feature that excludes the slice, as if it were missing; "" for none.
        self.unsupported = ""

    @property
    def pool(self) -> PoolId:
        return self.spec.driver, self.spec.pool.name

    @property
    def node(self) -> str:
        """The node of all its devices; "" without a single one."""
        return self.spec.node_name or ""

    def reaches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node reaches a device of it."""
        spec = self.spec
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return selects(spec.node_name, spec.all_nodes, spec.node_selector, name, labels)
        return bool(spec.per_device_node_selection) and any(self.of_node(name, labels))

    def of_node(self, name: str, labels: Mapping[str, str]) -> Iterator[PoolDevice]:
        """Its devices that a node reaches; the slice reaches the node."""
        if not self.spec.per_device_node_selection:
            yield from self.devices
            return
        for device in self.devices:
            spec = device.spec
            if selects(spec.node_name, spec.all_nodes, spec.node_selector, name, labels):
                yield device


def selects(
    node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None, name: str, labels: Mapping[str, str]
) -> bool:
    """Whether one of the three ways to select nodes selects a node."""
    if node_name:
        return node_name == name
    return bool(all_nodes) or (selector is not None and matches_node_selector(selector, labels, name))


class DevicePool(NamedTuple):
    """A pool as one node sees it."""

    id: PoolId
    #: In the order of their slices' names, then of the lists.
    devices: tuple[PoolDevice, ...] = ()
    #: Slices are missing.
    incomplete: bool = False
    #: Why its devices cannot be used; "" when they can.
    invalid: str = ""
    #: Available amounts.
    counters: Mapping[CounterId, Fraction] = {}

    @property
    def name(self) -> str:
        """`driver/pool`."""
        return "/".join(self.id)

    @property
    def has_binding_conditions(self) -> bool:
        """Whether a device is prepared after its allocation: such pools are used last."""
        return any(device.spec.binding_conditions is not None for device in self.devices)


class DeviceInventory:
    """All devices. `apply_...` and `drop_...` take objects in any order."""

    def __init__(self) -> None:
        self.slices: dict[str, DeviceSlice] = {}
        self.classes: dict[str, DeviceClassObject] = {}
        self.plans, self.work = ClaimPlans(self.classes), SelectorWork()
        self._rules: dict[str, DeviceTaintRuleSpec] = {}
        self._by_node: dict[str, dict[str, DeviceSlice]] = {}
        #: Slices for several nodes.
        self._shared: dict[str, DeviceSlice] = {}
        self._by_pool: dict[PoolId, dict[str, DeviceSlice]] = {}
        self._devices = 0  # in slices
        self._contents: dict[bytes, DeviceContent] = {}
        #: Driver to the rule of its cards.
        self.cards: dict[str, CardDevice] = {}
        #: The attributes of devices, without domains.
        self._attributes: set[str] = set()
        #: Those that plans read, for a version and the numbers of attributes and of names that plans read.
        self._known_reads: tuple[tuple[int, int, int], frozenset[str]] = (0, 0, 0), frozenset()
        #: Node name to its pools, with the labels they were computed for.
        self._pools: dict[str, tuple[Mapping[str, str], tuple[DevicePool, ...]]] = {}
        #: Of slices, classes and taint rules.
        self.changes = PoolChanges()

    @property
    def version(self) -> int:
        """Increases with every change of a slice, class or taint rule."""
        return self.changes.serial

    @property
    def count(self) -> int:
        """The number of devices of all slices."""
        return self._devices

    def read_attributes(self) -> frozenset[str] | None:
        """The attributes of devices, without domains, that plans of claims may read; None for all."""
        reads = self.plans.reads
        if reads is None:
            return None
        stamp = self.version, len(self._attributes), len(reads)
        if self._known_reads[0] != stamp:
            self._known_reads = stamp, frozenset(self._attributes & reads)
        return self._known_reads[1]

    def name_cards(self, rules: Mapping[str, CardDevice]) -> bool:
        """Names the devices of some drivers by these rules; false for those of before. O(devices) for others."""
        if rules == self.cards:
            return False
        self.cards.clear()
        self.cards.update(rules)
        for each in self.slices.values():
            for device in each.devices:
                device.content.name = None
        self._forget_contents()  # those of devices that are gone keep their name
        self.changes.note(*self._by_pool)
        return True

    # --- objects ----------------------------------------------------------------------------------------------------

    def apply_slice(self, obj: ResourceSliceObject) -> DeviceSlice:
        """Adds or replaces a slice."""
        name = obj.metadata.name
        self.drop_slice(name)
        if len(self._contents) > 2 * self._devices + _SPARE:
            self._forget_contents()
        found = self._read(name, obj.spec)
        self.slices[name] = found
        self._devices += len(found.devices)
        self._by_pool.setdefault(found.pool, {})[name] = found
        if found.node:
            self._by_node.setdefault(found.node, {})[name] = found
        else:
            self._shared[name] = found
        self._changed(found.pool)
        return found

    def drop_slice(self, name: str) -> None:
        """Removes a slice."""
        if (found := self.slices.pop(name, None)) is None:
            return
        self._devices -= len(found.devices)
        self._changed(found.pool)
        del self._by_pool[found.pool][name]
        if not self._by_pool[found.pool]:
            del self._by_pool[found.pool]
        if found.node:
            del self._by_node[found.node][name]
            if not self._by_node[found.node]:
                del self._by_node[found.node]
        else:
            del self._shared[name]

    def _changed(self, pool: PoolId) -> None:
        """Drops the cached pools of the nodes that see a pool."""
        self.changes.note(pool)
        for node in {each.node for each in self._by_pool.get(pool, {}).values()}:
            if node:
                self._pools.pop(node, None)
            else:
                self._pools.clear()

    def apply_class(self, obj: DeviceClassObject) -> None:
        """Adds or replaces a class."""
        self.classes[obj.metadata.name] = obj
        self.plans.forget()
        self.changes.note()

    def drop_class(self, name: str) -> None:
        """Removes a class."""
        self.classes.pop(name, None)
        self.plans.forget()
        self.changes.note()

    def apply_rule(self, name: str, rule: DeviceTaintRuleSpec | None) -> None:
        """Adds, replaces or, with None, removes a taint rule. O(devices)."""
        self._rules.pop(name, None)
        if rule is not None:
            self._rules[name] = rule
        self._rules = dict(sorted(self._rules.items()))
        for each in self.slices.values():
            for device in each.devices:
                device.taints = self._taints(device)
        self.changes.note(*self._by_pool)

    def _taints(self, device: PoolDevice) -> tuple[Taint, ...]:
        own = device.spec.taints or ()
        if not self._rules:
            return own
        driver, pool, name = device.id
        found = list(own)
        for rule in self._rules.values():
            wanted = rule.device_selector
            if wanted is None or (
                wanted.driver in (None, driver) and wanted.pool in (None, pool) and wanted.device in (None, name)
            ):
                found.append(rule.taint)
        return tuple(found)

    def _read(self, name: str, spec: ResourceSliceSpec) -> DeviceSlice:
        found = DeviceSlice(name, spec)
        if problem := node_selector_problem(spec.node_selector):
            found.problem = f"spec.nodeSelector.{problem}"
        for index, each in enumerate(spec.shared_counters or ()):
            at = "spec", "sharedCounters", str(index)
            for counter, amount in (each.counters or {}).items():
                key = each.name, counter
                if key in found.counters:
                    found.problem = found.problem or f'{field_path((*at, "name"))}: "{each.name}" occurs twice'
                found.counters[key] = _amount(found, amount.value, *at, "counters", counter, "value")
        for index, device in enumerate(spec.devices or ()):
            self._read_device(found, device, "spec", "devices", str(index))
        return found

    def _read_device(self, source: DeviceSlice, device: SliceDevice, *at: str) -> None:
        made = PoolDevice(device, source, self._content(device, source.spec.driver))
        if device.node_allocatable_resources:
            source.unsupported = "nodeAllocatableResources"
        if problem := node_selector_problem(device.node_selector):
            source.problem = source.problem or f"{field_path((*at, 'nodeSelector'))}.{problem}"
        for index, use in enumerate(device.consumes_counters or ()):
            if use.compatibility_groups:
                source.unsupported = "compatibilityGroups"
            for counter, amount in (use.counters or {}).items():
                place = *at, "consumesCounters", str(index), "counters", counter, "value"
                made.counters[use.counter_set, counter] = _amount(source, amount.value, *place)
            if not use.counters:
                made.counters.setdefault((use.counter_set, ""), parse_quantity("0"))
        if isinstance(made.content.capacities, str):
            source.problem = source.problem or f"{field_path(at)}.{made.content.capacities}"
        made.taints = self._taints(made)
        source.devices.append(made)

    def _forget_contents(self) -> None:
        """Drops the contents and attributes of devices that are gone. O(devices)."""
        self._contents.clear()
        self._attributes = {
            qualified(name, device.id[0])[1] for device in self.all_devices() for name in device.content.attributes
        }

    def _content(self, device: SliceDevice, driver: str) -> DeviceContent:
        key = _encode((driver, device.allow_multiple_allocations, device.attributes, device.capacity))
        found = self._contents.get(key)
        if found is None:
            found = self._contents[key] = DeviceContent(device, driver, self.cards)
            self._attributes.update(qualified(name, driver)[1] for name in found.attributes)
        return found

    # --- pools ------------------------------------------------------------------------------------------------------

    def device(self, of: DeviceId) -> PoolDevice | None:
        """A device of the highest generation of its pool; None if no slice has it."""
        slices = self._by_pool.get(of[:2], {}).values()
        newest = max([each.spec.pool.generation for each in slices], default=0)
        for each in slices:
            if each.spec.pool.generation == newest:
                for device in each.devices:
                    if device.id == of:
                        return device
        return None

    @property
    def pool_ids(self) -> Collection[PoolId]:
        """The pools with a slice."""
        return self._by_pool.keys()

    def slices_of(self, pool: PoolId) -> Collection[DeviceSlice]:
        """The slices of a pool, of all generations."""
        return self._by_pool.get(pool, {}).values()

    def all_devices(self) -> Iterator[PoolDevice]:
        """All devices, by pool, slice and list."""
        for pool in sorted(self._by_pool):
            for name in sorted(self._by_pool[pool]):
                yield from self._by_pool[pool][name].devices

    def pool_problem(self, pool: PoolId) -> str:
        """Why no node gets a device of the newest generation of a pool; "" if nothing prevents it."""
        slices = self._by_pool[pool].values()
        newest = max(each.spec.pool.generation for each in slices)
        found = [each for each in slices if each.spec.pool.generation == newest and not each.unsupported]
        counts = {each.spec.pool.resource_slice_count for each in found}
        if len(counts) > 1:
            return f"incomplete: its slices have resourceSliceCount {' and '.join(map(str, sorted(counts)))}"
        if counts - {len(found)}:
            return f"incomplete: {len(found)} of {max(counts)} slices exist"
        problem = _problem(found, found, {})
        return f"invalid: {problem}" if problem else ""

    def pools(self, node: str, labels: Mapping[str, str]) -> tuple[DevicePool, ...]:
        """The pools that a node reaches: those with binding conditions last, then by driver and name."""
        known = self._pools.get(node)
        if known is not None and (known[0] is labels or known[0] == labels):
            return known[1]
        newest: dict[PoolId, list[DeviceSlice]] = {}
        for each in (*self._by_node.get(node, {}).values(), *self._shared.values()):
            if each.unsupported or not each.reaches(node, labels):
                continue
            slices = newest.setdefault(each.pool, [])
            generation = slices[0].spec.pool.generation if slices else each.spec.pool.generation
            if each.spec.pool.generation > generation:
                slices.clear()
            if each.spec.pool.generation >= generation:
                slices.append(each)
        found = [pool for pool in (self._pool(*item, node, labels) for item in newest.items()) if pool is not None]
        found.sort(key=lambda pool: (pool.has_binding_conditions, pool.id))
        self._pools[node] = labels, tuple(found)
        return self._pools[node][1]

    def _pool(self, key: PoolId, slices: list[DeviceSlice], node: str, labels: Mapping[str, str]) -> DevicePool | None:
        """A pool from its slices that reach the node; None if a newer generation, elsewhere, replaces it."""
        generation, count = slices[0].spec.pool.generation, slices[0].spec.pool.resource_slice_count
        everything = slices
        if len(slices) != count:
            all_slices = self._by_pool[key].values()
            if any(each.spec.pool.generation > generation for each in all_slices):
                return None
            everything = [
                each for each in all_slices if each.spec.pool.generation == generation and not each.unsupported
            ]
            if len(everything) != count:
                return DevicePool(key, incomplete=True)
        counters: dict[CounterId, Fraction] = {}
        invalid = _problem(everything, slices, counters)
        if invalid:
            return DevicePool(key, invalid=invalid)
        slices.sort(key=lambda each: each.name)
        devices = tuple(device for each in slices for device in each.of_node(node, labels))
        return DevicePool(key, devices, counters=counters)


def _amount(source: DeviceSlice, raw: RawQuantity, *steps: str) -> Fraction:
    """The amount of a counter. No quantity, or a negative one, is a problem of its slice."""
    amount, problem = Fraction(), ""
    try:
        amount = parse_quantity(raw)
    except QuantityError as error:
        problem = str(error)
    if amount < 0:
        problem = f"{raw} is negative"
    if problem:
        source.problem = source.problem or f"{field_path(steps)}: {problem}"
    return amount


def _problem(
    everything: Iterable[DeviceSlice], slices: Iterable[DeviceSlice], counters: dict[CounterId, Fraction]
) -> str:
    """Why a pool is invalid, "" if it is not. Collects the counters."""
    sets: set[str] = set()
    names: set[str] = set()
    for each in everything:
        if each.problem:
            return each.problem
        for shared in each.spec.shared_counters or ():
            if shared.name in sets:
                return f"duplicate counter set name {shared.name}"
            sets.add(shared.name)
        counters.update(each.counters)
    for device in [device for each in slices for device in each.devices]:
        if device.spec.name in names:
            return f"duplicate device name {device.spec.name}"
        names.add(device.spec.name)
    used = [counter for each in everything for device in each.devices for counter in device.counters]
    for name, counter in used:
        if name not in sets:
            return f"counter set {name} not found"
        if counter and (name, counter) not in counters:
            return f"counter {counter} not found in counter set {name}"
    return ""
