"""Builds pools, claims and allocations of tests from short forms."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from capcard_sched.devices.allocator import Allocator, NodeError
from capcard_sched.devices.claims import AllocationError, claim_facts, plan_claim
from capcard_sched.devices.inventory import DeviceInventory
from capcard_sched.devices.ledger import DeviceLedger
from capcard_sched.model.device_objects import (
    Allocation,
    DeviceClassObject,
    DeviceTaintRuleObject,
    ResourceClaimObject,
    ResourceSliceObject,
)

Json = dict[str, Any]
T = TypeVar("T")
LABELS: Final = {"zone": "a"}
CLASSES: Final[list[Json]] = [
    {"metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "d"'}}]}},
    {"metadata": {"name": "bad"}, "spec": {"selectors": [{"cel": {"expression": 'device.attributes["d"].nope > 0'}}]}},
    {"metadata": {"name": "set"}, "spec": {"config": [{"opaque": {"driver": "d"}}]}},
]
DEFAULT: Final[dict[str, Json]] = {"s": {"devices": {"g0": {}, "g1": {}}}}


def decode(obj: Json, of: type[T]) -> T:
    """An object as the state gets it."""
    return msgspec.convert({"kind": of.__name__.removesuffix("Object"), **obj}, of)


def _device(name: str, fields: Json) -> Json:
    fields = copy.deepcopy(fields)
    found: Json = {"name": name, "attributes": {"type": {"string": "gpu"}}}
    if "taints" in fields:
        pairs = [taint.split("=") for taint in fields.pop("taints")]
        found["taints"] = [{"key": key, "effect": effect} for key, effect in pairs]
    if "uses" in fields:
        use: Json = {"counterSet": "set", "counters": {"memory": {"value": f"{fields.pop('uses')}Gi"}}}
        found["consumesCounters"] = [use]
        if "groups" in fields:
            use["compatibilityGroups"] = fields.pop("groups")
    amount = fields.pop("shared", None)
    if amount is not None:
        found["allowMultipleAllocations"] = True
    amount = fields.pop("memory", amount)
    if amount is not None:
        found["capacity"] = {"memory": {"value": str(amount)}}
        if "policy" in fields:
            found["capacity"]["memory"]["requestPolicy"] = fields.pop("policy")
    if fields.pop("waits", False):
        found |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    more = fields.pop("more", {})
    found["attributes"] |= more.pop("attributes", {})
    found |= more
    found["attributes"] |= {key: {"int": value} for key, value in fields.items()}
    return found


def slices(written: Mapping[str, Json]) -> list[Json]:
    """ResourceSlices of driver d."""
    sizes = Counter(fields.get("pool", "N1") for fields in written.values())
    found: list[Json] = []
    for name, fields in written.items():
        pool = fields.get("pool", "N1")
        count = fields.get("count", sizes[pool])
        spec: Json = {
            "driver": "d",
            "pool": {"name": pool, "generation": fields.get("generation", 1), "resourceSliceCount": count},
        }
        if fields.get("all"):
            spec["allNodes"] = True
        elif fields.get("each"):
            spec["perDeviceNodeSelection"] = True
        elif "zone" in fields:
            term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [fields["zone"]]}]}
            spec["nodeSelector"] = {"nodeSelectorTerms": [term]}
        else:
            spec["nodeName"] = fields.get("node", "N1")
        if "counters" in fields:
            amount = {"memory": {"value": f"{fields['counters']}Gi"}}
            spec["sharedCounters"] = [{"name": "set", "counters": amount}]
        spec["devices"] = [_device(each, facts) for each, facts in (fields.get("devices") or {}).items()]
        spec |= fields.get("more", {})
        found.append({"metadata": {"name": name}, "spec": spec})
    return found


def _request(fields: Any) -> Json:
    if isinstance(fields, str):
        name, _, count = fields.partition("*")
        name, _, mode = name.partition(" ")
        return {"deviceClassName": name, "allocationMode": "All" if mode else "ExactCount", "count": int(count or 1)}
    found: Json = {"deviceClassName": fields["class"], "count": fields.get("count", 1)}
    found["allocationMode"] = fields.get("mode", "ExactCount")
    if "cel" in fields:
        found["selectors"] = [{"cel": {"expression": fields["cel"]}}]
    if "tolerates" in fields:
        found["tolerations"] = [{"key": key, "operator": "Exists"} for key in fields["tolerates"]]
    if "capacity" in fields:
        found["capacity"] = {"requests": {"memory": str(fields["capacity"])}}
    if "admin" in fields:
        found["adminAccess"] = fields["admin"]
    if "derivedAttributes" in fields:
        found["derivedAttributes"] = fields["derivedAttributes"]
    found |= fields.get("more", {})
    return found


def claim(number: int, written: Json) -> Json:
    """The ResourceClaim c<number> of namespace ns."""
    written = dict(written)
    constraints: list[Json] = []
    for key, field in (("match", "matchAttribute"), ("distinct", "distinctAttribute")):
        if key in written:
            value = written.pop(key)
            name, *requests = [value] if isinstance(value, str) else value
            constraints.append({field: name, **({"requests": requests} if requests else {})})
    configs = written.pop("config", [])
    requests = []
    for name, fields in written.items():
        if isinstance(fields, dict) and "first" in fields:
            alternatives = [{"name": each, **_request(facts)} for each, facts in fields["first"].items()]
            requests.append({"name": name, "firstAvailable": alternatives})
        else:
            requests.append({"name": name, **({"exactly": _request(fields)} if fields else {})})
    devices = {"requests": requests, "constraints": constraints, "config": configs}
    return {"metadata": {"name": f"c{number}", "namespace": "ns", "uid": f"u{number}"}, "spec": {"devices": devices}}


def holding(number: int, device: Mapping[str, Any]) -> Json:
    """A claim to which a device is allocated; with `shareID` and `capacity` a share of it."""
    result: Json = {"request": "r", **{key: device[key] for key in ("driver", "pool", "device")}}
    if device.get("shareID"):
        result |= {"shareID": device["shareID"], "consumedCapacity": device["capacity"]}
    if device.get("adminAccess"):
        result["adminAccess"] = True
    meta = {"name": f"h{number}", "namespace": "held", "uid": f"h{number}"}
    allocation: Json = {"devices": {"results": [result]}}
    if device.get("node"):
        here = {"key": "metadata.name", "operator": "In", "values": [device["node"]]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return {"metadata": meta, "status": {"allocation": allocation}}


class Pools:
    """An inventory and a ledger."""

    def __init__(
        self, slices: Iterable[Json], classes: Iterable[Json] = CLASSES, held: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.inventory = DeviceInventory()
        self.ledger = DeviceLedger(self.inventory)
        for each in slices:
            self.inventory.apply_slice(decode(each, ResourceSliceObject))
        for each in classes:
            self.inventory.apply_class(decode(each, DeviceClassObject))
        for number, device in enumerate(held):
            self.ledger.apply(claim_facts(decode(holding(number, device), ResourceClaimObject)))

    def taint(self, number: int, selector: Json) -> None:
        """A taint rule for the devices that a selector selects."""
        spec = {"deviceSelector": selector, "taint": {"key": "rule", "effect": "NoExecute"}}
        rule = decode({"metadata": {"name": f"rule{number}"}, "spec": spec}, DeviceTaintRuleObject)
        self.inventory.apply_rule(rule.metadata.name, rule.spec)

    def allocate(
        self, claims: Iterable[Json], node: str = "N1", labels: Mapping[str, str] = LABELS
    ) -> list[Allocation] | NodeError | AllocationError:
        """The allocations, or why there are none."""
        try:
            plans = [
                plan_claim(claim_facts(decode(each, ResourceClaimObject)), self.inventory.classes) for each in claims
            ]
            return Allocator(self.inventory, self.ledger, node, labels).allocate(plans)
        except (NodeError, AllocationError) as error:
            return error
