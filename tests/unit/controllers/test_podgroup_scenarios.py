"""Rules of PodGroups of plain pods beyond the scenarios of `tests/scenarios/controllers`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest

GROUP = "scheduling.k8s.io/group-name"
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"


def _template(**annotations: str) -> Manifest:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "ours", "terminationGracePeriodSeconds": GRACE, "containers": [container]}
    return {"metadata": {"labels": {"app": "x"}, "annotations": annotations}, "spec": spec}


def _deployment(
    bench: ClusterBench,
    annotations: dict[str, str] | None = None,
    *,
    replicas: int = 3,
    template: Manifest | None = None,
) -> dict[str, Any]:
    spec = {"replicas": replicas, "template": template or _template()}
    bench.create("Deployment", "d", metadata={"annotations": annotations or {}}, spec=spec)
    return bench.all("ReplicaSet")[0]


def _group(bench: ClusterBench) -> Manifest:
    (group,) = bench.all("PodGroup")
    return group


@pytest.mark.parametrize("written, minimum", [("0", 0), ("9", 3)])
def test_the_gang_size_is_annotated_on_the_owner(written: str, minimum: int) -> None:
    bench = ClusterBench()
    _deployment(bench, {MIN_MEMBER: written})
    assert _group(bench)["spec"]["minMember"] == minimum
    assert _group(bench)["spec"]["minResources"].get("cpu", "0") == str(minimum)


def test_a_gang_size_beyond_the_replicas_is_reported_once() -> None:
    bench = ClusterBench()
    _deployment(bench, {MIN_MEMBER: "3"}, replicas=2)
    bench.patch("Deployment", "d", {"spec": {"replicas": 1}})
    messages = bench.messages("PodGroup", "MinMemberCapped")
    assert len(messages) == 1
    assert messages[0].startswith(f"{MIN_MEMBER}=3 is more than the ")


def test_a_podgroup_that_was_created_before_its_owner_was_known_follows_the_owner() -> None:
    bench = ClusterBench()
    _deployment(bench, {MIN_MEMBER: "3", "volcano.sh/service.type": "training"})
    complete = _group(bench)
    name, owners = complete["metadata"]["name"], complete["metadata"]["ownerReferences"]
    bench.delete("PodGroup", name)
    spec = {"minMember": 1, "queue": "default"}
    bench.create("PodGroup", name, metadata={"namespace": "default", "ownerReferences": owners}, spec=spec)
    assert _group(bench)["spec"]["minMember"] == 3
    assert _group(bench)["metadata"]["annotations"]["volcano.sh/service.type"] == "training"


def test_a_rolling_update_of_a_gang_ends() -> None:
    bench = ClusterBench()
    _deployment(bench, {MIN_MEMBER: "3"}, replicas=3)
    bench.bind()
    changed = _template()
    changed["spec"]["containers"][0]["image"] = "two"
    bench.patch("Deployment", "d", {"spec": {"template": changed}})
    for _ in range(8):
        for group in bench.all("PodGroup"):
            owner = group["metadata"]["ownerReferences"][0]["uid"]
            waiting = [pod for pod in bench.store.owned(owner, "Pod") if not pod["metadata"].get("deletionTimestamp")]
            if len(waiting) >= group["spec"]["minMember"]:  # the gang can start
                for pod in waiting:
                    bench.patch("Pod", pod["metadata"]["name"], {"spec": {"nodeName": "n1"}})
        bench.wait(GRACE)
    assert {pod["spec"]["containers"][0].get("image") for pod in bench.all("Pod")} == {"two"}
    assert _group(bench)["spec"]["minMember"] == 3


@pytest.mark.parametrize("key", [GROUP, "scheduling.volcano.sh/group-name"])
def test_a_template_that_names_a_group_gets_none(key: str) -> None:
    bench = ClusterBench()
    _deployment(bench, template=_template(**{key: "g"}))
    bench.patch("Deployment", "d", {"spec": {"replicas": 5}})
    assert bench.names("PodGroup") == []


def test_annotations_come_from_the_template_before_the_owner_before_its_owner() -> None:
    bench = ClusterBench()
    template = _template(**{"volcano.sh/service.type": "training"})
    owner = _deployment(bench, {"volcano.sh/service.type": "inference"}, template=template)
    assert _group(bench)["metadata"]["annotations"]["volcano.sh/service.type"] == "training"
    other = ClusterBench()
    references = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d", "controller": True}]
    annotations = {"volcano.sh/card.request": '{"A": 1}'}
    other.create(
        "Deployment",
        "d",
        metadata={"uid": "d", "annotations": annotations},
        spec={"replicas": 0, "paused": True, "template": _template()},
    )
    other.create(
        "ReplicaSet", "r", metadata={"ownerReferences": references}, spec={"replicas": 1, "template": _template()}
    )
    assert _group(other)["metadata"]["annotations"]["volcano.sh/card.request"] == '{"A": 1}'
    assert owner["kind"] == "ReplicaSet"


def test_only_inherited_fields_follow_the_owner() -> None:
    bench = ClusterBench()
    _deployment(bench, {"volcano.sh/preemptable": "true", "volcano.sh/sla-waiting-time": "1h"})
    name = _group(bench)["metadata"]["name"]
    bench.patch("PodGroup", name, {"metadata": {"annotations": {"volcano.sh/job-allocated-hypernode": "s0"}}})
    changes = {
        "volcano.sh/preemptable": "false",
        "volcano.sh/sla-waiting-time": None,
        "volcano.sh/service.type": "training",
    }
    bench.patch("Deployment", "d", {"metadata": {"annotations": changes}})
    notes = _group(bench)["metadata"]["annotations"]
    assert notes == {
        "volcano.sh/preemptable": "false",
        "volcano.sh/service.type": "training",
        "volcano.sh/job-allocated-hypernode": "s0",
        "capcard-sched.io/inherited-keys": "volcano.sh/preemptable,volcano.sh/service.type",
    }


@pytest.mark.parametrize(
    "mode, tier, expected",
    [
        ("SOFT", "2", {"mode": "soft", "highestTierAllowed": 2}),
        ("odd", "x", {"mode": "hard"}),
        (None, "1", {"mode": "hard", "highestTierAllowed": 1}),
    ],
)
def test_the_network_topology_comes_from_the_pod(mode: str | None, tier: str, expected: Manifest) -> None:
    bench = ClusterBench()
    annotations = {"volcano.sh/network-topology-highest-tier": tier}
    if mode is not None:
        annotations["volcano.sh/network-topology-mode"] = mode
    bench.create("Pod", "p", **_template(**annotations))
    assert _group(bench)["spec"]["networkTopology"] == expected
