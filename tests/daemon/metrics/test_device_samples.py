"""Series of devices, claims and searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from capcard_sched.daemon.observability.device_samples import device_series
from capcard_sched.devices.allocator import MAX_TRIALS
from capcard_sched.devices.searches import RESULTS, TRIALS
from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.testing import Harness
from tests.unit.devices.pools import CLASSES, Pools, claim, decode, slices
from tests.vectors.world import conf_text

_CONF: Final = conf_text(["enqueue, allocate", ["gang"], ["predicates"]])
_DEVICES: Final = "capcard_dra_devices"


def _cards(model: str, **devices: dict[str, Any]) -> list[Any]:
    """A pool of node N1; `uses` and `taints` as in `pools`."""
    counters = {"counters": 2} if any("uses" in each for each in devices.values()) else {}
    found = slices({"s": {"devices": devices, **counters}})
    for each in found:
        each["spec"]["driver"] = "gpu.nvidia.com"
        for device in each["spec"]["devices"]:
            device["attributes"] |= {"type": {"string": "gpu"}, "productName": {"string": model}}
    return found


def _values(pools: Pools) -> dict[str, float]:
    """Metric, suffix and values of labels, to the value."""
    return {
        " ".join([f"{name}{suffix}", *labels.values()]): value
        for name, suffix, labels, value in device_series(pools.inventory, pools.ledger, DeviceStateCounts(), {})
    }


def test_every_device_of_a_complete_pool_has_one_state() -> None:
    held = {"driver": "gpu.nvidia.com", "pool": "N1", "device": "g0"}
    devices: dict[str, dict[str, Any]] = {"g0": {"uses": 1}, "g1": {"uses": 2}, "g2": {"uses": 1}}
    devices["g3"] = {"taints": ["t=NoSchedule"]}
    devices["g4"] = {"taints": ["t=None"]}
    found = _values(Pools(_cards("NVIDIA H200", **devices), held=[held]))
    states = {name: value for name, value in found.items() if name.startswith(_DEVICES)}
    assert states == {
        f"{_DEVICES} NVIDIA-H200 {state}": value
        for state, value in (("used", 1), ("blocked", 1), ("tainted", 1), ("free", 2))
    }


def test_devices_without_a_card_have_an_empty_label_and_those_of_incomplete_pools_no_series() -> None:
    found = _values(Pools(slices({"s": {"devices": {"g0": {}}}, "t": {"pool": "P", "count": 2, "devices": {"h": {}}}})))
    assert {name: value for name, value in found.items() if name.startswith(_DEVICES)} == {f"{_DEVICES}  free": 1}


def test_a_cluster_without_slices_and_claims_has_no_series() -> None:
    assert _values(Pools([])) == {}


def _harness(count: int = 2, **devices: dict[str, Any]) -> Harness:
    """Node N1 with devices of driver d, and two pods that wait: claim c0 wants one device, c1 some more."""
    harness = Harness(_CONF)
    harness.node("N1", cpu="8")
    harness.queue("q")
    harness.apply(
        *[ObjectChanged(decode(each, ResourceSliceObject)) for each in slices({"s": {"devices": devices}})],
        *[ObjectChanged(decode(each, DeviceClassObject)) for each in CLASSES],
    )
    for number, wanted in enumerate(["c", f"c*{count}"]):
        harness.apply(_claim(number, wanted))
        harness.group(f"p{number}", queue="q")
        harness.pod(f"p{number}", group=f"p{number}", resourceClaims=[{"name": "r", "resourceClaimName": f"c{number}"}])
    return harness


def _claim(number: int, wanted: Any) -> ObjectChanged:
    found = claim(number, {"r": wanted})
    found["metadata"]["namespace"] = "default"
    return ObjectChanged(decode(found, ResourceClaimObject))


def _of(harness: Harness) -> Callable[[str], float]:
    state = harness.core.snapshot().state
    found = {
        " ".join([f"{name}{suffix}", *labels.values()]): value
        for name, suffix, labels, value in device_series(state.devices, state.claims, DeviceStateCounts(), state.tasks)
    }
    return found.__getitem__


def test_an_assumed_allocation_uses_its_devices_and_searches_are_counted() -> None:
    harness = _harness(g0={}, g1={})
    harness.step()
    value = _of(harness)
    assert [value(f"capcard_dra_claims {state}") for state in ("unallocated", "assumed", "allocated")] == [1, 1, 0]
    assert [value(f"{_DEVICES}  {state}") for state in ("used", "free")] == [1, 1]
    results = {result: value(f"capcard_dra_allocations_total {result}") for result in RESULTS}
    assert {result for result, count in results.items() if count} == {"allocated", "no_devices"}
    assert value("capcard_dra_allocation_trials_count") == sum(results.values())
    assert value("capcard_dra_allocation_trials_bucket +Inf") == value("capcard_dra_allocation_trials_count")
    harness.step()
    assert _of(harness)("capcard_dra_allocations_total no_devices") == results["no_devices"]  # kept, not searched again


def test_a_pod_waits_for_binding_conditions_from_the_reservation_to_the_binding() -> None:
    harness = _harness(g0={"waits": True}, g1={"waits": True})
    harness.step()
    assert _of(harness)("capcard_dra_waiting_pods") == 0
    state = harness.core.snapshot().state
    (uid,) = [task.uid for task in state.tasks.values() if task.name == "p0"]
    found = claim(0, {"r": "c"})
    found["metadata"]["namespace"] = "default"
    allocation = msgspec.to_builtins(state.claims.assumed["default/c0"].allocation)
    found["status"] = {"allocation": allocation, "reservedFor": [{"name": "p0", "uid": uid}]}
    harness.core.apply(ObjectChanged(decode(found, ResourceClaimObject)))
    assert _of(harness)("capcard_dra_waiting_pods") == 1
    harness.step()  # the pod is bound
    assert _of(harness)("capcard_dra_waiting_pods") == 0


@pytest.mark.parametrize(
    ("wanted", "result"),
    [
        ({"class": "bad"}, "selector_error"),
        ({"class": "c", "cel": "device.driver =="}, "selector_error"),
        ({"class": "other"}, "invalid_claim"),
        ({"class": "c", "count": 33}, "invalid_claim"),
        ({"class": "c", "derivedAttributes": [{"name": "x"}]}, "unsupported"),
    ],
    ids=["a missing attribute", "syntax", "a missing class", "33 devices", "derived attributes"],
)
def test_a_failed_search_is_counted_by_its_cause(wanted: Any, result: str) -> None:
    harness = _harness(g0={}, g1={})
    harness.apply(_claim(1, wanted))
    harness.step()
    value = _of(harness)
    failures = {each: value(f"capcard_dra_allocations_total {each}") for each in RESULTS if each != "allocated"}
    assert [each for each, count in failures.items() if count] == [result]


def test_a_search_at_the_limit_of_trials_is_in_the_last_bucket() -> None:
    pools = Pools([])
    pools.ledger.apply(Pools([], held=[{"driver": "d", "pool": "p", "device": "g"}]).ledger.claims["held/h0"])
    pools.ledger.searches.searched("gave_up", MAX_TRIALS + 1)
    pools.ledger.searches.searched("allocated", 1)
    found = _values(pools)
    assert found[f"capcard_dra_allocation_trials_bucket {TRIALS[-1]}"] == 1
    assert found["capcard_dra_allocation_trials_bucket +Inf"] == 2
    assert found["capcard_dra_allocation_trials_sum"] == MAX_TRIALS + 2
