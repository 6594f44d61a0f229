"""Random pods with ResourceClaims that preempt and reclaim: no device serves two pods, and no quota is exceeded."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scenarios.notation import objects_of
from tests.scenarios.test_scenarios import run

_CONFS = (
    ["enqueue, allocate, backfill, preempt", ["priority", {"gang": {"enablePreemptable": False}}],
     ["predicates", "capacity-card", "nodeorder"]],
    ["enqueue, allocate, backfill, reclaim, preempt", ["priority", {"gang": {"enableReclaimable": False}}],
     ["predicates", "capacity-card"]],
)  # fmt: skip
_QUOTA = {"train": 4, "serve": 3}


def _plan(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Objects, and the scheduler-conf."""
    choose = random.Random(seed)
    lines = [
        "node n1 cpu=16; node n2 cpu=16; node d1 1*NVIDIA-H200 cpu=4",
        f"slice n1 {choose.randint(1, 3)}*NVIDIA-H200; slice n2 {choose.randint(0, 2)}*NVIDIA-H200",
        "device_class gpu; claim_template t1 class=gpu; claim_template t2 class=gpu count=2",
        "claim_template t3 class=gpu mode=All; claim_template t4 class=gpu first=3*NVIDIA-H200,1*NVIDIA-H200",
        "resource_claim c1 class=gpu; resource_claim c2 class=gpu mode=All",
        "priority_class low 10; priority_class high 1000",
        *(f"queue {name} cards=NVIDIA-H200:{quota} cap=cpu:64,memory:1Ti" for name, quota in _QUOTA.items()),
    ]
    operations: list[str] = []
    for number in range(choose.randint(3, 7)):
        queue, priority = choose.choice(list(_QUOTA)), choose.choice(["low", "high"])
        pods, service = choose.randint(1, 2), "training" if queue == "train" else "inference"
        at = f"{choose.randint(0, 40)}s"
        annotations = f"annotations=volcano.sh/service.type:{service}"
        operations.append(f"{at} group g{number} queue={queue} class={priority} min={pods} {annotations}")
        for pod in range(pods):
            device = f"resourceClaims=[{{name: r, resourceClaimTemplateName: t{choose.randint(1, 4)}}}]"
            shared = f"resourceClaims=[{{name: r, resourceClaimName: c{choose.randint(1, 2)}}}]"
            wanted = choose.choice([device, device, shared, "gpu=1 card=NVIDIA-H200"])
            grace = f"grace={choose.choice([0, 2, 9])}s"
            lasts = f"runs={choose.randint(5, 60)}s" if choose.random() < 0.3 else ""
            name = f"p{number}-{pod}"
            operations.append(f"{at} pod {name} group=g{number} class={priority} cpu=1 {grace} {lasts} {wanted}")
            if choose.random() < 0.15:
                operations.append(f"{choose.randint(41, 55)}s delete Pod {name}")
    operations.sort(key=lambda text: int(text.partition("s")[0]))
    return {"cluster": "\n".join(lines), "operations": operations}, {"conf": choose.choice(_CONFS)}


def _check(items: list[Any]) -> None:
    pods = {item["metadata"]["uid"]: item for item in items if item["kind"] == "Pod"}
    claims = {item["metadata"]["name"]: item.get("status", {}) for item in items if item["kind"] == "ResourceClaim"}
    devices: Counter[tuple[str, str]] = Counter()
    for status in claims.values():
        for each in (status.get("allocation") or {}).get("devices", {}).get("results", ()):
            devices[each["pool"], each["device"]] += 1
    assert all(count == 1 for count in devices.values()), devices
    held: Counter[str] = Counter()
    queues: dict[str, str] = {}
    for uid, pod in pods.items():
        status, spec = pod.get("status", {}), pod["spec"]
        assert "ContainerCreating" not in str(status), status
        if not spec.get("nodeName") or status.get("phase") not in ("Pending", "Running"):
            continue
        count, queue = 1, "train" if _service(items, pod) == "training" else "serve"
        named = [entry for entry in spec.get("resourceClaims", ()) if "resourceClaimName" in entry]
        for entry in named:
            count = 0
            assert uid in {each["uid"] for each in claims[entry["resourceClaimName"]]["reservedFor"]}
            if not pod["metadata"].get("deletionTimestamp"):
                assert queues.setdefault(entry["resourceClaimName"], queue) == queue
        for entry in status.get("resourceClaimStatuses", ()):
            claim = claims[entry["resourceClaimName"]]
            count = len(claim["allocation"]["devices"]["results"])
            assert uid in {each["uid"] for each in claim["reservedFor"]}, claim
            assert all(each["pool"] == spec["nodeName"] for each in claim["allocation"]["devices"]["results"])
        if not pod["metadata"].get("deletionTimestamp"):
            held[queue] += count
    for name, queue in queues.items():
        held[queue] += len(claims[name]["allocation"]["devices"]["results"])
    assert all(held[queue] <= quota for queue, quota in _QUOTA.items()), held
    failures = [item["message"] for item in items if item["kind"] == "Event" and item["reason"] == "PluginFailed"]
    assert not failures, failures


def _service(items: list[Any], pod: Any) -> str:
    group = pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    (found,) = [item for item in items if item["kind"] == "PodGroup" and item["metadata"]["name"] == group]
    return str(found["metadata"]["annotations"]["volcano.sh/service.type"])


@settings(max_examples=max(10, settings().max_examples // 2), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_evictions_give_each_device_to_one_pod(seed: int) -> None:
    plan, options = _plan(seed)
    for until in ("20s", "35s", "50s", "2m"):
        _check(run(objects_of(plan), options, until))
