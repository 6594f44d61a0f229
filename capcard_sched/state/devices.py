"""Objects of dynamic resource allocation: the inventory of devices, and the ledger of their allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.devices.claims import SharedSpecs, claim_facts
from capcard_sched.devices.inventory import DeviceInventory
from capcard_sched.devices.ledger import DeviceLedger
from capcard_sched.devices.pool_faults import card_faults, pool_faults
from capcard_sched.model.device_objects import (
    MAX_RESULTS,
    DeviceClassObject,
    DeviceTaintRuleObject,
    ResourceClaimObject,
    ResourceClaimTemplateObject,
    ResourceClaimTemplateSpec,
    ResourceSliceObject,
)
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.devices.claims import Claim
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.model.card_devices import CardDevice
    from capcard_sched.model.job import Task
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.columns import NodeTable
    from capcard_sched.state.invalid_objects import InvalidObjects

#: Of pods that use no claim. A completed one may never be seen among the consumers: it ended before the next session.
_UNUSED: Final = COMPLETED_STATUSES | {TaskStatus.PENDING}


class DeviceTable:
    """Applies deltas of slices, classes, taint rules, claims and templates, and assumes allocations."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        self.inventory = DeviceInventory()
        self.ledger = DeviceLedger(self.inventory)
        #: By `namespace/name`.
        self.templates: dict[str, ResourceClaimTemplateSpec] = {}
        #: Extended resource to the newest of its DeviceClasses; of those of one age the first by name.
        self.by_resource: dict[str, str] = {}
        self._changes = changes
        self._invalid = invalid
        self._slice_uids: dict[str, str] = {}
        #: Pools whose slices changed since the last `note_faults`.
        self._unchecked: set[PoolId] = set()
        self._specs = SharedSpecs()
        #: Pools with devices that claims took or freed since the last session opened.
        self._changed_pools: set[PoolId] = set()
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            ResourceSliceObject: self._apply_slice,
            "ResourceSlice": lambda gone: self._drop_slice(gone.name),
            DeviceClassObject: self._apply_class,
            "DeviceClass": lambda gone: self._drop_class(gone.name),
            DeviceTaintRuleObject: self._apply_rule,
            "DeviceTaintRule": lambda gone: self._drop_rule(gone.name),
            ResourceClaimObject: self._apply_claim,
            "ResourceClaim": lambda gone: self._drop_claim(gone.namespace, gone.name),
            ResourceClaimTemplateObject: self._apply_template,
            "ResourceClaimTemplate": lambda gone: self._drop_template(f"{gone.namespace}/{gone.name}"),
        }

    def _apply_slice(self, obj: ResourceSliceObject) -> None:
        name = obj.metadata.name
        known = self.inventory.slices.get(name)
        if known is not None and known.spec == obj.spec:
            return
        made = self.inventory.apply_slice(obj)
        self._slice_uids[name] = obj.metadata.uid
        pools = {made.pool} if known is None else {made.pool, known.pool}
        self._unchecked |= pools
        self._changes.devices.add(f"ResourceSlice {name}")

    def _drop_slice(self, name: str) -> None:
        known = self.inventory.slices.get(name)
        self._invalid.forget("ResourceSlice", "", name)
        self.inventory.drop_slice(name)
        self._slice_uids.pop(name, None)
        if known is not None:
            self._unchecked.add(known.pool)
        self._changes.devices.add(f"ResourceSlice {name}")

    def name_cards(self, rules: Mapping[str, CardDevice]) -> None:
        """As of the inventory, with the faults of devices under these rules."""
        if self.inventory.name_cards(rules):
            self._unchecked.update(each.pool for each in self.inventory.slices.values())

    def note_faults(self) -> None:
        """Notes the faults of the pools whose slices changed since the last call. O(devices of these pools)."""
        for pool in sorted(self._unchecked):
            self._note_faults(pool)
        self._unchecked.clear()

    def _note_faults(self, pool: PoolId) -> None:
        """The first fault of each slice of a pool. O(devices of the pool)."""
        slices = self.inventory.slices_of(pool)
        between: dict[str, str] = {}
        for fault in pool_faults(slices):
            between.setdefault(fault.slice, str(fault))
        for each in slices:
            problem = each.problem or between.get(each.name, "")
            if problem:
                problem = f"{problem}; no device of pool {'/'.join(pool)} is allocated"
            if each.unsupported:
                problem = f"uses {each.unsupported}, which is not supported: the slice is ignored"
            problem = problem or next((str(fault) for fault in card_faults(each)), "")
            self._invalid.note(ObjectRef("ResourceSlice", "", each.name, self._slice_uids[each.name]), problem)

    def _apply_class(self, obj: DeviceClassObject) -> None:
        known = self.inventory.classes.get(obj.metadata.name)
        if known is None or known.spec != obj.spec:
            self.inventory.apply_class(obj)
            self._class_changed(obj.metadata.name)

    def _drop_class(self, name: str) -> None:
        if name in self.inventory.classes:
            self.inventory.drop_class(name)
            self._class_changed(name)

    def _class_changed(self, name: str) -> None:
        self._changes.devices.add(f"DeviceClass {name}")
        named = [each for _, each in sorted(self.inventory.classes.items(), reverse=True)]
        named.sort(key=lambda each: parse_time(each.metadata.creation_timestamp))
        resources = {
            each.spec.extended_resource_name: each.metadata.name for each in named if each.spec.extended_resource_name
        }
        if resources != self.by_resource:
            self.by_resource.clear()
            self.by_resource.update(resources)
            self._changes.everything = True  # the reason of any pending pod may change

    def _apply_rule(self, obj: DeviceTaintRuleObject) -> None:
        self.inventory.apply_rule(obj.metadata.name, obj.spec)
        self._changes.devices.add(f"DeviceTaintRule {obj.metadata.name}")

    def _drop_rule(self, name: str) -> None:
        self.inventory.apply_rule(name, None)
        self._changes.devices.add(f"DeviceTaintRule {name}")

    def _apply_claim(self, obj: ResourceClaimObject) -> None:
        claim = self._specs.share(claim_facts(obj), self.ledger.claims)
        results = claim.allocation.devices.results or () if claim.allocation is not None else ()
        problem = (
            f"status.allocation: {len(results)} devices, more than {MAX_RESULTS}" if len(results) > MAX_RESULTS else ""
        )
        self._invalid.note(ObjectRef("ResourceClaim", claim.namespace, claim.name, claim.uid), problem)
        if self.ledger.claims.get(claim.key) != claim:
            self._change(claim)

    def _drop_claim(self, namespace: str, name: str) -> None:
        self._invalid.forget("ResourceClaim", namespace, name)
        key = f"{namespace}/{name}"
        serial = self.ledger.future.changes.serial
        self.ledger.drop(key)
        self._note(key, serial)

    def _apply_template(self, obj: ResourceClaimTemplateObject) -> None:
        key = f"{obj.metadata.namespace or 'default'}/{obj.metadata.name}"
        self.templates[key] = obj.spec
        self._changes.devices.add(f"ResourceClaimTemplate {key}")

    def _drop_template(self, key: str) -> None:
        self.templates.pop(key, None)
        self._changes.devices.add(f"ResourceClaimTemplate {key}")

    def release(self, pod: str) -> None:
        """Releases the claims of a pod, by uid, in place of the controller of claims: in trials. O(claims)."""
        held = [claim for claim in self.ledger.claims.values() if pod in claim.consumers]
        for claim in held:
            left = claim.consumers - {pod}
            allocation = claim.allocation if left else None
            first = claim.first_consumer if claim.first_consumer in left else min(left, default="")
            self._change(msgspec.structs.replace(claim, consumers=left, allocation=allocation, first_consumer=first))

    def _change(self, claim: Claim) -> None:
        serial = self.ledger.future.changes.serial
        self.ledger.apply(claim)
        self._note(claim.key, serial)

    def _note(self, key: str, serial: int) -> None:
        """Notes a changed claim, and the pools whose devices it changed: those since a serial."""
        self._changes.devices.add(key)
        self._changed_pools.update(self.ledger.future.changes.since(serial, self.inventory.pool_ids))

    def touch_nodes(self, nodes: NodeTable) -> None:
        """Stamps the rows of nodes some of whose devices claims took or freed since the last call."""
        for pool in self._changed_pools:
            for each in self.inventory.slices_of(pool):
                if (node := nodes.by_name.get(each.node)) is not None:
                    nodes.touch(node.row)
        self._changed_pools.clear()

    def release_unused(self, tasks: Mapping[str, Task]) -> None:
        """Drops what is assumed for pods that are unbound, completed or deleted, or reserved by now."""
        ledger = self.ledger
        for key, assumed in list(ledger.assumed.items()):
            claim = ledger.claims.get(key)
            written = claim.consumers if claim is not None else frozenset()
            for uid in sorted(assumed.consumers):
                task = tasks.get(uid)
                if task is None or task.status in _UNUSED or uid in written:
                    serial = ledger.future.changes.serial
                    ledger.forget(key, uid)
                    self._changed_pools.update(ledger.future.changes.since(serial, self.inventory.pool_ids))
