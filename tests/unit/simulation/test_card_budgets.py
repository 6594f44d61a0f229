"""CardBudgets in the simulator: their figures are the integral of what pods hold, and `stop` holds in a month."""

from __future__ import annotations

from importlib import resources
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.model.card_budgets import CARD_HOUR, hours_text, use_of
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.manifests import ManifestDocument
from capcard_sched.simulation.run import SimulationOptions, SimulationRun
from capcard_sched.simulation.scenario_reader import load_scenario
from capcard_sched.simulation.workloads.card_budgets import CardBudgetController
from capcard_sched.testing import registry
from tests.scenarios.notation import manifests
from tests.unit.ledger.simulated_day import UNTIL, PodIntegral, objects

DAY = 86400 * SECOND
H200 = "NVIDIA-H200"
MONTH_MS = 31 * 86_400_000


def card_budget(name: str, queue: str, hours: int, **more: Any) -> dict[str, Any]:
    spec = {"queue": queue, "period": "month", "cards": {H200: f"{hours}h"}, "whenSpent": "stop", **more}
    return {"apiVersion": "capcard-sched.io/v1alpha1", "kind": "CardBudget", "metadata": {"name": name}, "spec": spec}


def simulation(items: list[dict[str, Any]], until: int, example: str) -> tuple[SimulationRun, PodIntegral]:
    run = _prepared(items, until, example)
    integral = PodIntegral(run)
    run.load()
    return run, integral


def _prepared(items: list[dict[str, Any]], until: int, example: str) -> SimulationRun:
    text = resources.files("capcard_sched.config").joinpath(f"examples/{example}/conf/scheduler.yaml").read_bytes()
    conf = parse_conf(text, registry=registry()).conf
    assert conf is not None
    core = Core(conf, registry(), scheduler_names=("volcano",), default_queue="default")
    documents = [ManifestDocument("input", 1, {"apiVersion": "v1", "kind": "List", "items": items})]
    scenario = load_scenario([], existing_queues=("root", "default"), documents=documents)
    return SimulationRun(scenario, core, SimulationOptions(("volcano",), "default", SECOND, until, EPOCH))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=max(5, settings().max_examples // 10))
def test_figures_are_the_integral_of_the_pods(seed: int) -> None:
    cards = {"cards": {H200: "1000h", "NVIDIA-L40S": "1000h"}, "whenSpent": "warn"}
    budgets = [card_budget(name, name, 0, **cards) for name in ("a", "b", "root")]
    run, integral = simulation([*objects(seed), *budgets], UNTIL * SECOND, "tidal")
    outcome = run.finish()
    last = outcome.end // 1000
    sums = integral.finish(last)
    [meter] = [one for one in run.cluster._controllers if isinstance(one, CardBudgetController)]
    flows = {key: flow.between(0, EPOCH * 1000 + last) for key, flow in meter._flows.items()}
    assert {key: amount for key, amount in flows.items() if amount} == sums
    used = {obj["metadata"]["name"]: obj["status"]["used"] for obj in outcome.store.list("CardBudget")}
    held = {key: flow.held for key, flow in meter._flows.items()}
    for queue in "ab":
        if not any(amount for (name, _), amount in held.items() if name == queue):
            for card in used[queue]:
                assert used[queue][card] == hours_text(sums.get((queue, card), 0))


def _node() -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": H200, "nvidia.com/gpu.memory": "100", "nvidia.com/gpu.count": "8"}
    amounts = {"cpu": "640", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": amounts},
    }


def _queue(name: str) -> dict[str, Any]:
    notes = {"volcano.sh/card.quota": f'{{"{H200}": 8}}'}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": notes},
    }


def _job(name: str, queue: str, cards: int, hours: int) -> dict[str, Any]:
    notes = {"volcano.sh/card.name": H200, "simulation.capcard-sched.io/duration": f"{hours}h"}
    limits = {"nvidia.com/gpu": cards, "cpu": 1}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": limits}}
    template = {"metadata": {"annotations": notes}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "volcano",
            "queue": queue,
            "minAvailable": 1,
            "tasks": [{"name": "w", "replicas": 1, "template": template}],
        },
    }


@given(st.data())
@settings(max_examples=max(5, settings().max_examples // 10))
def test_no_job_is_admitted_in_a_month_whose_budget_is_spent(data: st.DataObject) -> None:
    hours = data.draw(st.integers(0, 300))
    jobs = [_job(f"j{n}", "q", data.draw(st.integers(1, 8)), data.draw(st.integers(1, 90))) for n in range(8)]
    operations: list[dict[str, Any]] = [{"at": f"{data.draw(st.integers(0, 40 * 24))}h", "create": job} for job in jobs]
    operations.sort(key=lambda one: int(one["at"][:-1]))
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "month"},
        "spec": {"operations": operations},
    }
    items = [_node(), _queue("q"), card_budget("b", "q", hours), scenario]
    run, _ = simulation(items, 45 * DAY, "budget")
    admitted: list[int] = []
    spans: dict[str, list[int]] = {}

    def see(change: Any) -> None:
        now, phase = run.cluster.clock.now // 1000, change.object.get("status", {}).get("phase")
        if change.kind == "PodGroup" and change.old is not None:
            before = change.old.get("status", {}).get("phase")
            if before in (None, "Pending") and phase not in (None, "Pending"):
                admitted.append(_used(spans, now))
        elif change.kind == "Pod" and change.object["spec"].get("nodeName"):
            uid = change.object["metadata"]["uid"]
            cards = int(change.object["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
            span = spans.setdefault(uid, [now, -1, 1000 * cards])
            if span[1] < 0 and (change.new is None or phase in ("Succeeded", "Failed")):
                span[1] = now

    run.cluster.store.observe(see)
    outcome = run.finish()
    assert all(used < hours * CARD_HOUR for used in admitted)
    waiting = [job for job in outcome.store.list("PodGroup") if job["status"].get("phase") == "Pending"]
    [status] = [one["status"] for one in outcome.store.list("CardBudget")]
    assert not waiting or status["spent"]


def _used(spans: dict[str, list[int]], now: int) -> int:
    """The use of the month up to a moment, milliseconds since 2026-01-01."""
    begin = 0 if now < MONTH_MS else MONTH_MS
    ends = ((since, now if until < 0 else until, amount) for since, until, amount in spans.values())
    return sum(max(0, until - max(since, begin)) * amount for since, until, amount in ends)


@pytest.mark.parametrize("used, admitted", [("99.00h", True), ("100.00h", False)])
def test_a_status_in_the_input_is_the_starting_point(used: str, admitted: bool) -> None:
    given = card_budget("b", "q", 100)
    left = hours_text(100 * CARD_HOUR - use_of(used))
    given["status"] = {"used": {H200: used}, "remaining": {H200: left}, "periodStart": "2026-01-01T00:00:00Z"}
    run, _ = simulation([_node(), _queue("q"), given, _job("j", "q", 8, 2)], 10 * 3600 * SECOND, "budget")
    outcome = run.finish()
    [status] = [one["status"] for one in outcome.store.list("CardBudget")]
    assert status["used"] == {H200: "115.00h" if admitted else "100.00h"}
    assert status["spent"]


def test_pods_of_a_namespace_queue_spend_the_budget_of_the_queue_above() -> None:
    queue, local = _queue("q"), _queue("t")
    queue["spec"] = {"allowedNamespaces": ["default"]}
    local |= {"kind": "NamespaceQueue", "spec": {"parent": "cluster/q"}}
    local["metadata"]["namespace"] = "default"
    given = [_node(), queue, local, card_budget("b", "q", 10), _job("j", "namespace/t", 4, 3)]
    run, _ = simulation(given, 10 * 3600 * SECOND, "budget")
    [status] = [one["status"] for one in run.finish().store.list("CardBudget")]
    assert status["used"] == {H200: "12.00h"}
    assert status["spent"]


def test_a_pod_with_several_cards_spends_the_budget_of_each() -> None:
    h100 = "NVIDIA-H100"
    given = manifests(
        f"node n cpu=8; slice n 2*{H200}+1*{h100}; device_class gpu; claim_template a class=gpu first=2*{H200}; "
        f"claim_template b class=gpu first={h100}; queue q cards={H200}:2,{h100}:1; pod p queue=q cpu=1 runs=3h "
        "resourceClaims=[{name: a, resourceClaimTemplateName: a}, {name: b, resourceClaimTemplateName: b}]"
    )
    budget = card_budget("b", "q", 0, cards={H200: "10h", h100: "10h"})
    run = _prepared([*given, budget], 10 * 3600 * SECOND, "budget")
    run.load()
    [status] = [one["status"] for one in run.finish().store.list("CardBudget")]
    assert status["used"] == {H200: "6.00h", h100: "3.00h"}


def test_free_card_hours_end_the_wait_in_a_rolling_period() -> None:
    budget = card_budget("b", "q", 8, period="rolling30d")
    later = {"at": "2h", "create": _job("second", "q", 1, 1)}
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "s"},
        "spec": {"operations": [later]},
    }
    run, _ = simulation([_node(), _queue("q"), budget, _job("first", "q", 8, 1), scenario], 40 * DAY, "budget")
    outcome = run.finish()
    starts = {pod["metadata"]["name"]: pod["status"]["startTime"] for pod in outcome.store.list("Pod")}
    assert starts["first-w-0"] == "2026-01-01T00:00:01Z"
    assert "2026-01-31T00:00:00Z" <= starts["second-w-0"] <= "2026-01-31T02:00:00Z"


def test_a_run_without_an_end_does_not_follow_the_periods_of_a_service() -> None:
    items = [_node(), _queue("q"), card_budget("b", "q", 10), _job("service", "q", 4, 10_000)]
    items[-1]["spec"]["tasks"][0]["template"]["metadata"]["annotations"].pop("simulation.capcard-sched.io/duration")
    run, _ = simulation(items, None, "budget")  # type: ignore[arg-type]
    outcome = run.finish()
    assert outcome.end < 31 * DAY
    [status] = [one["status"] for one in outcome.store.list("CardBudget")]
    assert status["spent"]
