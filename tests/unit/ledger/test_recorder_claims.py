"""Devices of ResourceClaims are charged like cards of a device plugin, by the ledger and by the counter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.ledger.card_seconds import CardSecondsCounter
from capcard_sched.ledger.database import IN_MEMORY
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import UsageQuery, UsageReport
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.device_objects import ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.objects import NodeObject, PodObject, QueueObject
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.simulation.clock import EPOCH
from tests.clock import Clock
from tests.scenarios.notation import manifests

CARD = "NVIDIA-H200"
OTHER = "NVIDIA-L40S"
SHARED = f"{CARD}/shared"
CLUSTER = f"""
node n1 cpu=64 memory=256Gi
slice n1 2*{CARD}+2*{OTHER}
node n2 2*{CARD} cpu=64 memory=256Gi
slice n2 2*{CARD}
node n3 cpu=64 memory=256Gi
slice n3 1*{CARD} allowMultipleAllocations=true capacity={{memory: {{value: 80Gi}}, cores: {{value: "100"}}}}
queue default
"""
#: Seconds after `EPOCH`.
BOUND, LATER, ENDED = 10, 40, 110
CASES: dict[str, Any] = {
    "a claim that was allocated before the binding": {"results": ["n1/g0"], "used": {CARD: 100}},
    "two devices": {"results": ["n1/g0", "n1/g1"], "used": {CARD: 200}},
    "the binding arrives before the allocation": {"results": ["n1/g0"], "claim": LATER, "used": {CARD: 100}},
    "an allocation that was never seen": {"results": ["n1/g0"], "claim": None, "notes": 1},
    "a device without a slice": {"results": ["n1/g7"], "notes": 1},
    "a claim whose first consumer is another pod": {"results": ["n1/g0"], "first": "other", "notes": 1},
    "a device of a driver without cards": {"results": ["n1/g0"], "driver": "nic.example.com"},
    "administrative access": {"results": ["n1/g0"], "admin": True},
    "devices of two models": {"results": ["n1/g0", "n1/g1", "n1/g2"], "used": {CARD: 200, OTHER: 100}},
    "devices of two models, allocated after the binding": {
        "results": ["n1/g0", "n1/g2"],
        "claim": LATER,
        "used": {CARD: 100, OTHER: 100},
    },
    "devices of two models, one of which has no slice": {
        "results": ["n1/g0", "n1/g2", "n1/g7"],
        "used": {CARD: 100, OTHER: 100},
        "notes": 1,
    },
    "a share, of the capacity of which it has most": {
        "on": "n3",
        "results": ["n3/g0"],
        "share": {"memory": "20Gi", "cores": "10"},
        "used": {SHARED: 25},
    },
    "a share that is no amount: the device": {
        "on": "n3",
        "results": ["n3/g0"],
        "share": {"memory": "lots"},
        "used": {SHARED: 100},
    },
    "an extended resource by a share: a whole card": {
        "extended": 1,
        "on": "n3",
        "results": ["n3/g0"],
        "share": {"memory": "20Gi"},
        "used": {SHARED: 100},
    },
    "an extended resource": {"extended": 1, "results": ["n1/g0"], "used": {CARD: 100}},
    "two of an extended resource": {"extended": 2, "results": ["n1/g0", "n1/g1"], "used": {CARD: 200}},
    "an extended resource whose second card was there": {
        "extended": 1,
        "card": f"{CARD}|{OTHER}",
        "results": ["n1/g2"],
        "used": {OTHER: 100},
    },
    "an extended resource whose claim arrives after the binding": {
        "extended": 1,
        "card": f"{CARD}|{OTHER}",
        "results": ["n1/g2"],
        "claim": LATER,
        "used": {OTHER: 100},
    },
    "an extended resource whose claim was never seen: as annotated": {
        "extended": 1,
        "card": f"{CARD}|{OTHER}",
        "results": ["n1/g2"],
        "claim": None,
        "used": {CARD: 100},
        "notes": 1,
    },
    "an extended resource by devices that are no cards": {
        "extended": 1,
        "card": CARD,
        "results": ["n1/g0"],
        "driver": "nic.example.com",
    },
    "an extended resource of the device plugin beside a claim": {
        "extended": 1,
        "on": "n2",
        "mapped": "nvidia.com/mig-1g.18gb",
        "results": ["n1/g2"],
        "used": {CARD: 100, OTHER: 100},
    },
}


def claim(case: dict[str, Any]) -> Delta:
    results = [
        {"request": "r", "driver": case.get("driver", "gpu.nvidia.com"), "pool": pool, "device": device,
         "adminAccess": case.get("admin", False),
         **({"shareID": "s", "consumedCapacity": case["share"]} if "share" in case else {})}
        for pool, device in (result.split("/") for result in case["results"])
    ]  # fmt: skip
    consumers = [{"resource": "pods", "name": "p", "uid": uid} for uid in (case.get("first", "p"), "p")]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": consumers}
    return ObjectChanged(msgspec.convert(
        {"kind": "ResourceClaim", "metadata": {"name": "p-c", "namespace": "default", "uid": "c"}, "status": status},
        ResourceClaimObject,
    ))  # fmt: skip


def pod(phase: str, case: dict[str, Any]) -> Delta:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": format_timestamp(EPOCH + BOUND)}]
    if phase == "Succeeded":
        ended = format_timestamp(EPOCH + ENDED)
        conditions += [{"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": ended}]
    found: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "p"},
        "spec": {"nodeName": case.get("on", "n1")},
        "status": {"phase": phase, "conditions": conditions},
    }
    if (devices := case.get("extended")) is None:
        found["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "t"}]
        found["status"]["resourceClaimStatuses"] = [{"name": "c", "resourceClaimName": "p-c"}]
    else:
        found["metadata"]["annotations"] = {"volcano.sh/card.name": case["card"]} if "card" in case else {}
        amounts = {"nvidia.com/gpu": str(devices)}
        found["spec"]["containers"] = [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
        mapping = {"containerName": "main", "resourceName": case.get("mapped", "nvidia.com/gpu"), "requestName": "r"}
        found["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "p-c", "requestMappings": [mapping]}
    return ObjectChanged(msgspec.convert(found, PodObject))


def steps(case: dict[str, Any]) -> list[tuple[float, list[Delta]]]:
    types: dict[str, Any] = {"Node": NodeObject, "ResourceSlice": ResourceSliceObject, "Queue": QueueObject}
    first: list[Delta] = [ObjectChanged(msgspec.convert(each, types[each["kind"]])) for each in manifests(CLUSTER)]
    found = {0: first, BOUND: [pod("Running", case)], LATER: [], ENDED: [pod("Succeeded", case)]}
    if (at := case.get("claim", BOUND)) is not None:
        found[at].insert(0, claim(case))
    return [(EPOCH + at, deltas) for at, deltas in found.items()]


def recorded(case: dict[str, Any]) -> UsageReport:
    with open_ledger(IN_MEMORY) as ledger:
        ledger.start("day", "simulation", EPOCH)
        for now, deltas in steps(case):
            ledger.feed(now, deltas)
        ledger.flush()
        return ledger.usage(UsageQuery(EPOCH, EPOCH + ENDED))


def counted(case: dict[str, Any]) -> dict[str, float]:
    clock = Clock(EPOCH)
    counter = CardSecondsCounter("default", clock)
    counter.lead(leading=True)
    counter.lists_applied()
    for now, deltas in steps(case):
        clock.now = now
        counter.apply(deltas, now)
    return {labels.card: seconds for labels, seconds in counter.read() if seconds}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_devices_of_a_claim_are_charged_once(case: dict[str, Any]) -> None:
    report = recorded(case)
    used = {row.group[1]: row.used / 1_000_000 for row in report.rows if row.used}
    assert used == case.get("used", {}) == counted(case)
    notes = [note for note in report.notes if "ResourceClaims" in note]
    assert len(notes) == case.get("notes", 0), report.notes


def test_a_pod_with_two_cards_is_one_pod_of_its_job() -> None:
    with open_ledger(IN_MEMORY) as ledger:
        ledger.start("day", "simulation", EPOCH)
        for now, deltas in steps(CASES["devices of two models"]):
            ledger.feed(now, deltas)
        ledger.flush()
        (life,) = ledger.history(EPOCH, EPOCH + ENDED)
    assert (life.pods, life.card_time / 1_000_000) == (1, 300)


def test_a_device_of_a_slice_and_of_a_device_plugin_is_one_card_of_the_capacity() -> None:
    capacity = {row.card: row.capacity / 1_000_000 / ENDED for row in recorded({"results": []}).cards}
    assert capacity == {CARD: 4, OTHER: 2, SHARED: 1}
