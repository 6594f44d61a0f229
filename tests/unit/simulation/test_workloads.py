"""Stand-in controllers and kubelets, one rule at a time, on a cluster without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.controllers.quota_usage import quota_usage
from tests.unit.controllers.bench import ClusterBench

POD_SPEC = {"schedulerName": "ours", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


def deployment(replicas: int, image: str = "one", **spec: Any) -> dict[str, Any]:
    pod_spec = {**POD_SPEC, "containers": [{"name": "c", "image": image}]}
    return {"replicas": replicas, "template": {"metadata": {"labels": {"app": "x"}}, "spec": pod_spec}, **spec}


def images(bench: ClusterBench, *, live: bool = True) -> list[str]:
    pods = [pod for pod in bench.all("Pod") if not live or not pod["metadata"].get("deletionTimestamp")]
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


def test_a_rolling_update_surges_and_keeps_enough_pods_ready() -> None:
    bench = ClusterBench()
    bench.create("Deployment", "d", spec=deployment(4))
    bench.bind()
    bench.patch("Deployment", "d", {"spec": deployment(4, "two")})
    # 25% of 4: one pod more, one ready pod fewer.
    assert images(bench) == ["one"] * 3 + ["two"] * 2
    bench.bind()
    assert images(bench) == ["one"] * 1 + ["two"] * 4
    bench.bind()
    assert images(bench) == ["two"] * 4
    assert bench.get("Deployment", "d")["status"] == {
        "replicas": 4,
        "updatedReplicas": 4,
        "readyReplicas": 4,
        "availableReplicas": 4,
    }


def test_recreate_waits_for_the_last_old_pod() -> None:
    bench = ClusterBench()
    strategy: dict[str, Any] = {"strategy": {"type": "Recreate"}}
    bench.create("Deployment", "d", spec=deployment(2, **strategy))
    bench.bind()
    bench.patch("Deployment", "d", {"spec": deployment(2, "two", **strategy)})
    assert images(bench) == []
    bench.wait(29)
    assert images(bench, live=False) == ["one", "one"]
    bench.wait(1)
    assert images(bench) == ["two", "two"]


def test_a_shrinking_set_gives_up_pods_without_a_node_first_then_the_youngest() -> None:
    bench = ClusterBench()
    bench.create("Deployment", "d", spec=deployment(2))
    bench.bind()
    first, second = (pod["metadata"]["name"] for pod in bench.all("Pod"))
    bench.patch("Deployment", "d", {"spec": {"replicas": 3}})
    bench.patch("Deployment", "d", {"spec": {"replicas": 2}})
    assert bench.names("Pod") == sorted([first, second])
    bench.patch("Deployment", "d", {"spec": {"replicas": 1}})
    assert bench.live() == [first]


def test_a_set_replaces_pods_that_ended_and_adopts_orphans_that_match() -> None:
    bench = ClusterBench()
    orphan = {"labels": {"app": "x"}}
    bench.create("Pod", "orphan", metadata=orphan, spec={**POD_SPEC, "nodeName": "n1"})
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": orphan, "spec": POD_SPEC},
    }
    bench.create("ReplicaSet", "rs", spec=spec)
    assert len(bench.names("Pod")) == 2
    assert bench.get("Pod", "orphan")["metadata"]["ownerReferences"][0]["name"] == "rs"
    bench.patch("Pod", "orphan", {"status": {"phase": "Failed"}})
    assert len(bench.names("Pod")) == 3


def test_a_parallel_stateful_set_does_not_wait_and_is_updated_from_the_end() -> None:
    bench = ClusterBench()
    spec = deployment(3, podManagementPolicy="Parallel")
    bench.create("StatefulSet", "s", spec=spec)
    assert bench.names("Pod") == ["s-0", "s-1", "s-2"]
    bench.bind()
    bench.patch("StatefulSet", "s", {"spec": deployment(3, "two")})
    assert bench.live() == ["s-0", "s-1"]
    for _ in range(3):
        bench.wait(30)
        bench.bind()
    assert images(bench) == ["two"] * 3


def test_a_pod_of_another_scheduler_gets_no_group() -> None:
    bench = ClusterBench()
    bench.create("Pod", "a", spec={**POD_SPEC, "schedulerName": "other"})
    assert bench.all("PodGroup") == []


def test_pods_of_an_owner_we_do_not_run_share_a_group_named_after_it() -> None:
    bench = ClusterBench()
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "u", "controller": True}]
    notes = {"volcano.sh/x": "1", "example.com/x": "y"}
    bench.create("DaemonSet.apps/v1", "ds", metadata={"uid": "u", "namespace": "default", "annotations": notes})
    for name in "ab":
        bench.create("Pod", name, metadata={"ownerReferences": owners}, spec=POD_SPEC)
    assert bench.names("PodGroup") == ["podgroup-u"]
    notes = bench.all("PodGroup")[0]["metadata"]["annotations"]
    assert notes == {"volcano.sh/x": "1", "capcard-sched.io/inherited-keys": "volcano.sh/x"}


def test_an_orphaned_job_member_of_the_start_belongs_to_its_job_and_is_not_made_again() -> None:
    bench = ClusterBench()
    member = {"annotations": {"volcano.sh/job-name": "j", "volcano.sh/task-spec": "t"}}
    bench.create("Pod", "j-t-0", metadata=member, spec={**POD_SPEC, "nodeName": "n1"}, status={"phase": "Running"})
    tasks = [{"name": "t", "replicas": 1, "template": {"spec": POD_SPEC}}]
    bench.create("Job", "j", spec={"tasks": tasks})
    assert bench.get("Pod", "j-t-0")["metadata"]["ownerReferences"][0]["name"] == "j"
    assert bench.get("Job", "j")["status"]["state"]["phase"] == "Running"


PREEMPTABLE = "volcano.sh/preemptable"


@pytest.mark.parametrize(
    ("template", "annotation", "label"),
    [
        ({}, "true", "true"),
        ({"annotations": {PREEMPTABLE: "false"}}, "false", None),
        ({"labels": {PREEMPTABLE: "false"}}, None, "false"),
    ],
    ids=["nothing of its own", "an annotation of its own", "a label of its own"],
)
def test_preemptable_of_a_job_reaches_pods_whose_template_sets_none(
    template: dict[str, Any], annotation: str | None, label: str | None
) -> None:
    bench = ClusterBench()
    of_job = {"annotations": {PREEMPTABLE: "true"}, "labels": {PREEMPTABLE: "true"}}
    tasks = [{"name": "t", "replicas": 1, "template": {"metadata": template, "spec": POD_SPEC}}]
    bench.create("Job", "j", metadata=of_job, spec={"tasks": tasks})
    bench.admit()
    metadata = bench.get("Pod", "j-t-0")["metadata"]
    assert metadata["annotations"].get(PREEMPTABLE) == annotation
    assert metadata["labels"].get(PREEMPTABLE) == label


def test_min_resources_take_the_important_tasks_first() -> None:
    bench = ClusterBench()
    bench.create("PriorityClass", "high", value=10)
    tasks = [
        {"name": "low", "replicas": 2, "template": {"spec": POD_SPEC}},
        {
            "name": "high",
            "replicas": 2,
            "template": {
                "spec": {"priorityClassName": "high", "containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}
            },
        },
    ]
    bench.create("Job", "j", spec={"minAvailable": 3, "tasks": tasks})
    resources = bench.all("PodGroup")[0]["spec"]["minResources"]
    assert resources == {
        "count/pods": "3",
        "pods": "3",
        "cpu": "1",
        "requests.cpu": "1",
        "memory": "2Gi",
        "requests.memory": "2Gi",
        "limits.memory": "2Gi",
    }


def test_quota_usage_adds_containers_sidecars_and_overhead_and_takes_the_init_peak() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}, **more.pop("resources", {})}, **more}

    pod = {
        "containers": [container("1"), container("500m", resources={"limits": {"nvidia.com/gpu": "2", "cpu": "2"}})],
        "initContainers": [container("1", restartPolicy="Always"), container("4")],
        "overhead": {"cpu": "250m"},
    }
    assert quota_usage([(pod, 2)]) == {
        "count/pods": "2",
        "pods": "2",
        "cpu": "10500m",
        "requests.cpu": "10500m",
        "limits.cpu": "4500m",
        "nvidia.com/gpu": "4",
        "requests.nvidia.com/gpu": "4",
    }


def test_a_pod_waits_for_a_node_that_is_not_there_yet() -> None:
    bench = ClusterBench()
    bench.create("Pod", "a", spec={**POD_SPEC, "nodeName": "n2"})
    assert bench.get("Pod", "a")["status"]["phase"] == "Pending"
    bench.create("Node", "n2")
    assert bench.get("Pod", "a")["status"]["phase"] == "Running"


def test_a_pod_that_is_deleted_while_it_runs_does_not_end_first() -> None:
    bench = ClusterBench()
    metadata = {"annotations": {"simulation.capcard-sched.io/duration": "10s"}}
    bench.create("Pod", "a", metadata=metadata, spec={**POD_SPEC, "nodeName": "n1"})
    bench.wait(5)
    bench.delete("Pod", "a")
    bench.delete("Pod", "a")
    bench.wait(29)
    assert bench.get("Pod", "a")["status"]["phase"] == "Running"
    bench.wait(1)
    assert bench.all("Pod") == []


def test_taints_of_the_user_stay_when_ours_go() -> None:
    bench = ClusterBench()
    theirs = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"}]
    node = bench.create("Node", "n2", spec={"taints": theirs, "unschedulable": True})
    ours = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert node["spec"]["taints"] == [*theirs, ours]
    bench.patch("Node", "n2", {"spec": {"unschedulable": None}})
    assert bench.get("Node", "n2")["spec"]["taints"] == theirs


def test_an_object_with_two_owners_goes_with_the_last() -> None:
    bench = ClusterBench()
    for name in "ab":
        bench.create("ConfigMap", name, metadata={"uid": name})
    owners = [{"kind": "ConfigMap", "name": name, "uid": name} for name in "ab"]
    bench.create("Pod", "p", metadata={"ownerReferences": owners}, spec={"containers": []})
    bench.delete("ConfigMap", "a")
    assert bench.names("Pod") == ["p"]
    bench.delete("ConfigMap", "b")
    assert bench.names("Pod") == []
