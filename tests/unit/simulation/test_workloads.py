"""The cases of `*.yaml` beside this file: stand-in controllers without a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.limits import Budget, budget_facts
from capcard_sched.simulation.store import StoreWatch
from tests import objects
from tests.unit.controllers.script import Script, cases


@pytest.mark.parametrize("text", cases(Path(__file__).parent))
def test_stand_ins(text: str) -> None:
    Script().play(text)


def test_quota_usage_adds_containers_sidecars_and_overhead_and_takes_the_init_peak() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}, **more.pop("resources", {})}, **more}

    pod = {
        "containers": [container("1"), container("500m", resources={"limits": {"nvidia.com/gpu": "2", "cpu": "2"}})],
        "initContainers": [container("1", restartPolicy="Always"), container("4")],
        "overhead": {"cpu": "250m"},
    }
    usage = "count/pods=2 pods=2 cpu=10500m requests.cpu=10500m limits.cpu=4500m"
    usage += " nvidia.com/gpu=4 requests.nvidia.com/gpu=4"
    assert quota_usage([({"spec": pod}, 2)]) == dict(pair.split("=") for pair in usage.split())


def test_the_scheduler_gets_deltas_of_namespaces_quotas_and_budgets() -> None:
    script = Script()
    store = script.bench.store
    feed = StoreWatch(store)
    store.observe(feed.observe)
    script.play("""create Namespace lab {metadata: {labels: {team: a}}};
        create ResourceQuota q {spec: {hard: {cpu: "10"}}};
        create PodDisruptionBudget b {spec: {selector: {matchLabels: {app: web}}}}""")
    feed.drain()
    script.play("pod p cpu=1 labels=app:web nodeName=n1; patch Namespace lab {metadata: {labels: {team: b}}}")
    by_kind: dict[str, Any] = {objects.change_of(delta): delta for delta in feed.drain()}
    assert by_kind["NamespaceChanged"].object.metadata.labels == {"team": "b"}
    of_quota, of_budget = (by_kind[f"{kind}Changed"].object for kind in ("ResourceQuota", "PodDisruptionBudget"))
    assert of_quota.status.used == {"cpu": "1"}
    assert budget_facts(of_budget) == Budget("default", "b", of_budget.spec.selector, 0, frozenset())
    script.play("remove ResourceQuota q; remove PodDisruptionBudget b; remove Namespace lab")
    gone = {(delta.kind, delta.namespace, delta.name) for delta in feed.drain() if isinstance(delta, ObjectGone)}
    kinds = {("ResourceQuota", "default", "q"), ("PodDisruptionBudget", "default", "b"), ("Namespace", "", "lab")}
    assert gone >= kinds
