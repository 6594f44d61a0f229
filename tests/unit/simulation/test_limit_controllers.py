"""The stand-ins for the controllers of ResourceQuotas and PodDisruptionBudgets, without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.limits import Budget, budget_facts
from capcard_sched.simulation.watch import StoreWatch
from tests import objects
from tests.unit.controllers.bench import ClusterBench

APP = {"app": "web"}


class LimitBench(ClusterBench):
    """A cluster whose pods are on its node, with the deltas of the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = StoreWatch(self.store)
        self.store.observe(self.feed.observe)

    def pod(self, name: str, *, cpu: str = "1", **metadata: Any) -> None:
        container = {"name": "main", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}
        spec = {"nodeName": "n1", "containers": [container]}
        self.create("Pod", name, metadata=metadata, spec=spec, status={"phase": "Running"})

    def remove(self, kind: str, name: str) -> None:
        self.store.remove(kind, "default", name)
        self.cluster.settle()

    def status_of(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self.get(kind, name).get("status") or {})


def quota(bench: LimitBench, **hard: str) -> None:
    bench.create("ResourceQuota", "q", spec={"hard": {key.replace("_", "."): value for key, value in hard.items()}})


def used(bench: LimitBench) -> dict[str, str]:
    found: dict[str, str] = bench.status_of("ResourceQuota", "q")["used"]
    return found


def test_a_quota_counts_pods_that_live_whenever_they_came() -> None:
    bench = LimitBench()
    bench.pod("before")
    elsewhere = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "elsewhere", "namespace": "other"}}
    bench.store.create("Pod", {**elsewhere, "spec": {"containers": []}})
    quota(bench, cpu="10", pods="5", limits_cpu="9", memory="1Gi")
    bench.pod("after", cpu="1500m")
    assert used(bench) == {"cpu": "2500m", "pods": "2", "limits.cpu": "2500m", "memory": "0"}
    assert bench.status_of("ResourceQuota", "q")["hard"] == {
        "cpu": "10", "pods": "5", "limits.cpu": "9", "memory": "1Gi",
    }  # fmt: skip
    bench.remove("Pod", "before")
    assert used(bench)["cpu"] == "1500m"


def test_an_ended_pod_is_an_object_still() -> None:
    bench = LimitBench()
    bench.create("ResourceQuota", "q", spec={"hard": {"cpu": "10", "pods": "5", "count/pods": "5"}})
    bench.pod("p")
    assert used(bench) == {"cpu": "1", "pods": "1", "count/pods": "1"}
    bench.patch("Pod", "p", {"status": {"phase": "Succeeded"}})
    assert used(bench) == {"cpu": "0", "pods": "0", "count/pods": "1"}


def test_a_resource_that_is_no_longer_limited_leaves_the_status() -> None:
    bench = LimitBench()
    quota(bench, cpu="10", pods="5")
    bench.patch("ResourceQuota", "q", {"spec": {"hard": {"pods": None}}})
    assert bench.status_of("ResourceQuota", "q") == {"hard": {"cpu": "10"}, "used": {"cpu": "0"}}


def test_a_given_usage_is_kept_and_later_pods_are_counted_on_top() -> None:
    bench = LimitBench()
    bench.pod("there")
    bench.create(
        "ResourceQuota", "q", spec={"hard": {"cpu": "10", "pods": "9"}}, status={"used": {"cpu": "6", "pods": 1}}
    )
    assert used(bench) == {"cpu": "6", "pods": "1"}
    bench.pod("late", cpu="1500m")
    assert used(bench) == {"cpu": "7500m", "pods": "2"}
    bench.remove("Pod", "late")
    bench.patch("ResourceQuota", "q", {"status": {"used": {"cpu": "8"}}})
    assert used(bench) == {"cpu": "8", "pods": "1"}
    bench.remove("ResourceQuota", "q")
    quota(bench, cpu="10")
    assert used(bench) == {"cpu": "1"}


def test_a_limit_may_stand_in_the_status_alone() -> None:
    bench = LimitBench()
    bench.create("ResourceQuota", "q", spec={}, status={"hard": {"cpu": "4"}, "used": {"cpu": "3"}})
    bench.pod("p")
    assert bench.status_of("ResourceQuota", "q") == {"hard": {"cpu": "4"}, "used": {"cpu": "4"}}


@pytest.mark.parametrize(
    ("given", "spec", "after_each"),
    [
        pytest.param(2, {"maxUnavailable": 2}, [2, 1, 0, 0], id="as the rule requires"),
        pytest.param(1, {"maxUnavailable": 3}, [1, 0, 0, 0], id="less than the rule requires"),
        pytest.param(0, {"minAvailable": 0}, [0, 0, 0, 0], id="none"),
        pytest.param(2, {"minAvailable": 9}, [2, 1, 0, 0], id="more than the rule requires"),
    ],
)
def test_disruptions_given_as_allowed_stand_until_pods_go(
    given: int, spec: dict[str, Any], after_each: list[int]
) -> None:
    bench = LimitBench()
    replicas = {"replicas": 4, "selector": {"matchLabels": APP}}
    template = {"metadata": {"labels": APP}, "spec": {"containers": [], "nodeName": "n1"}}
    bench.create("ReplicaSet", "set", spec={**replicas, "template": template})
    status = {"disruptionsAllowed": given}
    bench.create("PodDisruptionBudget", "b", spec={"selector": {"matchLabels": APP}, **spec}, status=status)
    found = []
    for name in [obj["metadata"]["name"] for obj in bench.store.list("Pod")]:
        found.append(bench.status_of("PodDisruptionBudget", "b")["disruptionsAllowed"])
        bench.store.patch("ReplicaSet", "default", "set", {"spec": {"template": {"spec": {"nodeName": None}}}})
        bench.store.delete("Pod", "default", name)
        bench.cluster.settle()
    assert found == after_each


def test_disruptions_given_before_the_pods_are_there_are_not_added_to_theirs() -> None:
    bench = LimitBench()
    rule = {"selector": {"matchLabels": APP}, "maxUnavailable": 1}
    bench.create("PodDisruptionBudget", "b", spec=rule, status={"disruptionsAllowed": 1})
    for index in range(4):
        bench.pod(f"p{index}", labels=APP)
    assert bench.status_of("PodDisruptionBudget", "b")["disruptionsAllowed"] == 1


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": "60%"}, 1),
        ({"maxUnavailable": 2}, 2),
        ({"maxUnavailable": "25%"}, 1),
        ({"maxUnavailable": 0}, 0),
        ({"minAvailable": 9}, 0),
        ({}, 3),
    ],
)
def test_a_budget_allows_the_healthy_pods_beyond_its_rule(spec: dict[str, Any], allowed: int) -> None:
    bench = LimitBench()
    bench.create("PodDisruptionBudget", "b", spec={"selector": {"matchLabels": APP}, **spec})
    for index in range(4):
        bench.pod(f"p{index}", labels=APP)
    bench.pod("other")
    assert bench.status_of("PodDisruptionBudget", "b")["disruptionsAllowed"] == allowed


def test_a_pod_that_leaves_is_healthy_no_longer_and_still_expected() -> None:
    bench = LimitBench()
    bench.create("PodDisruptionBudget", "b", spec={"selector": {"matchLabels": APP}, "maxUnavailable": 1})
    bench.create(
        "ReplicaSet", "set",
        spec={
            "replicas": 3, "selector": {"matchLabels": APP},
            "template": {"metadata": {"labels": APP}, "spec": {"containers": [], "nodeName": "n1"}},
        },
    )  # fmt: skip
    assert bench.status_of("PodDisruptionBudget", "b") == {
        "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3, "disruptionsAllowed": 1,
    }  # fmt: skip
    name = next(obj["metadata"]["name"] for obj in bench.store.list("Pod"))
    bench.store.delete("Pod", "default", name)
    bench.cluster.settle()
    found = bench.status_of("PodDisruptionBudget", "b")
    assert (found["expectedPods"], found["currentHealthy"] - found["desiredHealthy"]) in {(3, 0), (3, 1)}
    assert found["disruptionsAllowed"] == max(0, found["currentHealthy"] - 2)


def test_the_scheduler_gets_deltas_of_namespaces_quotas_and_budgets() -> None:
    bench = LimitBench()
    bench.create("Namespace", "lab", metadata={"labels": {"team": "a"}})
    quota(bench, cpu="10")
    bench.create("PodDisruptionBudget", "b", spec={"selector": {"matchLabels": APP}})
    bench.feed.drain()
    bench.pod("p", labels=APP)
    bench.store.patch("Namespace", "", "lab", {"metadata": {"labels": {"team": "b"}}})
    by_kind: dict[str, Any] = {objects.change_of(delta): delta for delta in bench.feed.drain()}
    assert by_kind["NamespaceChanged"].object.metadata.labels == {"team": "b"}
    of_quota, of_budget = (by_kind[f"{kind}Changed"].object for kind in ("ResourceQuota", "PodDisruptionBudget"))
    assert of_quota.status.used == {"cpu": "1"}
    assert budget_facts(of_budget) == Budget("default", "b", of_budget.spec.selector, 0, frozenset())
    bench.remove("ResourceQuota", "q")
    bench.remove("PodDisruptionBudget", "b")
    bench.store.remove("Namespace", "", "lab")
    gone = {(delta.kind, delta.namespace, delta.name) for delta in bench.feed.drain() if isinstance(delta, ObjectGone)}
    assert gone >= {
        ("ResourceQuota", "default", "q"),
        ("PodDisruptionBudget", "default", "b"),
        ("Namespace", "", "lab"),
    }
