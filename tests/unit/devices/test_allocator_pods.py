"""Pods with ResourceClaims from submission to release, as data."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import ResourceClaimObject, ResourceClaimTemplateObject
from capcard_sched.model.objects import PodObject
from capcard_sched.testing import Harness
from tests.scenarios.notation import objects_of
from tests.scenarios.test_scenarios import run

CASES: Final = yaml.safe_load((Path(__file__).parent / "pods.yaml").read_text("utf-8"))
IDS: Final = [f"{case['number']} {case.get('name', '')}".strip() for case in CASES]
#: Nodes without extended resources, a class of all GPUs, and a template for one.
_WORLD: Final = """\
node n1 labels=host:n1; node n2 labels=host:n2; queue q cards=NVIDIA-H200:8,NVIDIA-A100:8 cap=cpu:64,memory:1Ti
device_class gpu cel='device.attributes["gpu.nvidia.com"].type in ["gpu", "mig"]'
claim_template t class=gpu
"""


#: Vectors that need writes to fail, or processes to end: the file and the name of their test.
_ON_AN_API_SERVER: Final = {
    47: ("e2e/test_claims.py", "test_a_gang_gets_all_its_claims_or_none"),
    58: ("e2e/test_claims.py", "test_a_leader_that_ends_between_two_writes_loses_and_doubles_no_device"),
}


def test_every_vector_of_the_specification_has_a_row() -> None:
    allocations = yaml.safe_load((Path(__file__).parent / "allocations.yaml").read_text("utf-8"))
    found = {case["number"] for case in (*allocations, *CASES)} | set(_ON_AN_API_SERVER)
    assert [number for number in range(1, 61) if number not in found] == []
    for path, name in _ON_AN_API_SERVER.values():
        assert f"def {name}(" in (Path(__file__).parents[2] / path).read_text("utf-8")


#: Rules with a row in allocations.yaml or pods.yaml.
_IN_ROWS: Final = (
    *(f"rule 3.{number}" for number in range(1, 9)),
    *(f"rule 4 {step}" for step in ("match", "ExactCount", "All", "adminAccess", "firstAvailable", "matchAttribute",
                                    "distinctAttribute", "counters", "shared", "dedicated", "not representable",
                                    "limit", "result")),
    "rule 9.2", "rule 13.1",
)  # fmt: skip
#: Number of the rules in rules.yaml, by the first part of their names.
_ELSEWHERE: Final = {"2": 11, "6": 7, "6.": 8, "8": 4, "9.": 9, "10": 4, "12": 1, "13": 2, "15": 11}


def test_every_rule_of_the_specification_has_a_test() -> None:
    allocations = yaml.safe_load((Path(__file__).parent / "allocations.yaml").read_text("utf-8"))
    found = {case["number"] for case in (*allocations, *CASES)}
    assert [rule for rule in _IN_ROWS if rule not in found] == []
    rules = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text("utf-8"))
    for rule, tests in rules.items():
        for path, _, text in (each.partition(" ") for each in tests):
            assert text.strip("'") in (Path(__file__).parents[2] / path).read_text("utf-8"), (rule, path, text)
    counts = Counter(re.match(r"rule (\d+\.?)", rule)[1] for rule in rules)  # type: ignore[index]
    assert counts == _ELSEWHERE


def _state_of(pod: Any) -> str:
    """The node of a running pod, the phase of an ended one, or the message of a pending one."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase == "Running":
        return str(pod["spec"]["nodeName"])
    if phase != "Pending":
        return str(phase)
    return " ".join(str(each.get("message", "")) for each in status.get("conditions") or ())


def _shown(claim: Any) -> str:
    """`device@pool`s of a claim, then its consumers."""
    status = claim.get("status", {})
    results = (status.get("allocation") or {}).get("devices", {}).get("results", ())
    devices = [f"{each['device']}@{each['pool']}" for each in results]
    return " ".join([*devices, *sorted(each["name"] for each in status.get("reservedFor") or ())])


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_pods_with_claims(case: dict[str, Any]) -> None:
    plan = {"cluster": _WORLD + case["cluster"], "operations": case.get("operations", ())}
    items = run(objects_of(plan), {key: case[key] for key in ("conf",) if key in case}, case.get("until", "1m"))
    pods = {item["metadata"]["name"]: _state_of(item) for item in items if item["kind"] == "Pod"}
    for name, expected in case["pods"].items():
        assert pods[name] == expected or (expected in pods[name] and " " in expected) or not expected, pods
    for name, expected in case.get("events", {}).items():
        events = [item for item in items if item["kind"] == "Event" and item["involvedObject"]["name"] == name]
        assert expected in [f"{event['reason']} {event['message']}" for event in events]
    claims = {item["metadata"]["name"]: _shown(item) for item in items if item["kind"] == "ResourceClaim"}
    if "claims" in case:
        assert len(claims) == len(case["claims"])
    for pattern, expected in case.get("claims", {}).items():
        (found,) = [shown for name, shown in claims.items() if fnmatchcase(name, pattern)]
        assert found == expected, claims


@pytest.mark.parametrize("card", ["NVIDIA-H200", "NVIDIA-A100"])
def test_after_a_restart_a_pod_is_charged_the_model_that_it_has(card: str) -> None:
    claims = "resourceClaims=[{name: r, resourceClaimTemplateName: t}]"
    queue = "queue one cards=NVIDIA-H200:1,NVIDIA-A100:1 cap=cpu:64,memory:1Ti"
    world = f"{_WORLD}slice n1 1*{card}; {queue}; pod a queue=one cpu=1 {claims}"
    items = run(objects_of({"cluster": world}), {}, "1m")
    for item in items:
        item["metadata"].get("annotations", {}).pop("volcano.sh/card.assigned", None)
    more = f"slice n2 1*NVIDIA-H200+1*NVIDIA-A100; pod b queue=one cpu=1 {claims}; pod c queue=one cpu=1 {claims}"
    found = run([*items, *objects_of({"cluster": more})], {}, "1m")
    (held,) = [_shown(each) for each in found if each["kind"] == "ResourceClaim" and "b-r-" in each["metadata"]["name"]]
    assert held == ("g1@n2 b" if card == "NVIDIA-H200" else "g0@n2 b")
    (other,) = [_state_of(each) for each in found if each["kind"] == "Pod" and each["metadata"]["name"] == "c"]
    assert "quota: requested <1000>, total would be <3000>, but capability is <2000>" in other


def _patched(items: list[Any], name: str, product: str | None) -> list[Any]:
    """The objects with other devices in a slice; None: without the slice."""
    found = []
    for item in items:
        if item["kind"] == "ResourceSlice" and item["metadata"]["name"] == name:
            if product is None:
                continue
            for device in item["spec"]["devices"]:
                device["attributes"]["productName"] = {"string": product}
        found.append(item)
    return found


@pytest.mark.parametrize("product", ["NVIDIA H200", "NVIDIA H200 NVL", None])
@pytest.mark.parametrize("source", ["resourceClaimTemplateName: t", "resourceClaimName: c"])
def test_after_a_restart_a_pod_is_charged_the_card_in_the_record_of_its_claim(product: str | None, source: str) -> None:
    claims, queue = f"resourceClaims=[{{name: r, {source}}}]", "queue one cards=NVIDIA-H200:1 cap=cpu:64,memory:1Ti"
    world = f"{_WORLD}slice n1 1*NVIDIA-H200; resource_claim c class=gpu; {queue}; pod a queue=one cpu=1 {claims}"
    items = run(objects_of({"cluster": world}), {}, "1m")
    (claim,) = [each for each in items if each["kind"] == "ResourceClaim" and each.get("status")]
    annotations = claim["metadata"]["annotations"]
    assert annotations["capcard-sched.io/queue"] == "one"
    assert annotations["volcano.sh/card.assigned"] == '{"NVIDIA-H200":1000}'
    more = "slice n2 2*NVIDIA-H200; pod b queue=one cpu=1 resourceClaims=[{name: r, resourceClaimTemplateName: t}]"
    found = run([*_patched(items, "n1", product), *objects_of({"cluster": more})], {}, "1m")
    (other,) = [_state_of(each) for each in found if each["kind"] == "Pod" and each["metadata"]["name"] == "b"]
    assert "quota: requested <1000>, total would be <2000>, but capability is <1000>" in other


def test_a_claim_that_is_allocated_stays_that_of_its_queue() -> None:
    named = "resourceClaims=[{name: r, resourceClaimName: c}]"
    queues = "queue one cards=NVIDIA-H200:1 cap=cpu:64,memory:1Ti; queue two cards=NVIDIA-H200:1 cap=cpu:64,memory:1Ti"
    world = f"{_WORLD}slice n1 1*NVIDIA-H200; resource_claim c class=gpu; {queues}; pod a queue=one cpu=1 {named}"
    items = run(objects_of({"cluster": world}), {}, "1m")
    items = [each for each in items if each["kind"] not in ("Pod", "PodGroup")]
    for each in items:
        each.get("status", {}).pop("reservedFor", None)  # without a consumer it stays allocated
    more = f"slice n2 1*NVIDIA-H200; pod b queue=two cpu=1 {named}"
    own = "pod d queue=one cpu=1 resourceClaims=[{name: r, resourceClaimTemplateName: t}]"
    found = run([*items, *objects_of({"cluster": f"{more}; {own}"})], {}, "20s")
    pods = {each["metadata"]["name"]: _state_of(each) for each in found if each["kind"] == "Pod"}
    assert "resourceclaim default/c is charged to queue one" in pods["b"]
    assert (
        "quota: requested <1000>, total would be <2000>, but capability is <1000>" in pods["d"]
    )  # until it is released
    found = run(
        [*items, *objects_of({"cluster": f"slice n2 1*NVIDIA-H200; pod a queue=one cpu=1 {named}; {own}"})], {}, "20s"
    )
    pods = {each["metadata"]["name"]: _state_of(each) for each in found if each["kind"] == "Pod"}
    assert pods["a"] == "n1"
    assert "quota: requested <1000>, total would be <2000>, but capability is <1000>" in pods["d"]


@pytest.mark.parametrize(
    "owner, reason",
    [
        ({"name": "p", "uid": "uid-p"}, "device class none does not exist"),
        ({"name": "other", "uid": "uid-other"}, "was not created for Pod default/p"),
        ({"name": "p", "uid": "uid-former"}, "was not created for Pod default/p"),
        ({"name": "p", "uid": "uid-p", "controller": False}, "was not created for Pod default/p"),
    ],
)
def test_a_generated_claim_is_used_by_the_pod_that_controls_it_alone(owner: dict[str, Any], reason: str) -> None:
    """Status of a pod and owners of a claim are written by their users, too."""
    h = Harness("actions: 'allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n")
    h.queue("default")
    h.node("n1", cpu="8")
    h.group("g", queue="default")
    reference = {"apiVersion": "v1", "kind": "Pod", "controller": True, **owner}
    exactly = {"deviceClassName": "none", "allocationMode": "ExactCount", "count": 1}
    found = {"metadata": {"name": "c", "namespace": "default", "uid": "c", "ownerReferences": [reference]},
             "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}  # fmt: skip
    h.apply(ObjectChanged(msgspec.convert(found, ResourceClaimObject)))
    template = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": found["spec"]}}
    h.apply(ObjectChanged(msgspec.convert(template, ResourceClaimTemplateObject)))
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-p",
                     "annotations": {"scheduling.k8s.io/group-name": "g"}},
        "spec": {"schedulerName": "capcard-sched",
                 "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                 "resourceClaims": [{"name": "r", "resourceClaimTemplateName": "t"}]},
        "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "r", "resourceClaimName": "c"}]},
    }  # fmt: skip
    h.apply(ObjectChanged(msgspec.convert(body, PodObject)))
    h.step()
    assert reason in h.pod_message("p")


_PREDICATES: Final = ["enqueue, allocate, backfill", ["gang"], ["predicates"]]
_EXTENDED: Final = "device_class nvidia extendedResourceName=nvidia.com/gpu; slice n1 2*NVIDIA-H200; pod a cpu=1 gpu=1"


def _after_a_failed_binding(gone: set[str], more: str) -> list[dict[str, Any]]:
    """The objects a minute after a bound pod with extended resources pends again. `gone`: kinds of lost objects."""
    items = run(objects_of({"cluster": f"{_WORLD}{_EXTENDED} queue=q"}), {"conf": _PREDICATES}, "1m")
    kept = [item for item in items if item["kind"] not in {"Event", "PodGroup", *gone}]
    for item in kept:
        if item["kind"] == "Pod":
            del item["spec"]["nodeName"]
            claim = item["status"]["extendedResourceClaimStatus"]
            item["status"] = {"phase": "Pending", "extendedResourceClaimStatus": claim}
    return run([*kept, *objects_of({"cluster": more})] if more else kept, {"conf": _PREDICATES}, "1m")


def test_a_claim_of_a_former_leader_is_deleted_and_its_pod_placed_anew() -> None:
    found = _after_a_failed_binding(set(), "")
    (state,) = [_state_of(each) for each in found if each["kind"] == "Pod"]
    (claim,) = [each for each in found if each["kind"] == "ResourceClaim"]
    assert (state, _shown(claim)) == ("n1", "g0@n1 a")
    reasons = {each["reason"]: each["message"] for each in found if each["kind"] == "Event"}
    assert "an earlier attempt to bind the pod failed" in reasons["ResourceClaimsReleased"]


@pytest.mark.parametrize(
    ("more", "expected"), [("node d1 1*NVIDIA-H200", "needs a node that offers"), ("slice n2 1*NVIDIA-H200", "n2")]
)
def test_a_pod_whose_status_names_a_claim_is_bound_by_devices(more: str, expected: str) -> None:
    """The API server keeps the status, and a kubelet waits for the claim in it."""
    found = _after_a_failed_binding({"ResourceClaim", "ResourceSlice"}, more)
    (state,) = [_state_of(each) for each in found if each["kind"] == "Pod"]
    assert expected in state
