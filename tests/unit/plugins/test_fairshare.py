"""The fairshare plugin: usage over time, its state, shares and order."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.intents import WriteConfigMap
from capcard_sched.model.objects import ConfigMapObject
from capcard_sched.plugins.fairshare import max_min
from capcard_sched.testing import Harness

GPU = "nvidia.com/gpu"


def conf(**arguments: Any) -> str:
    """A scheduler-conf with fairshare and these arguments."""
    given = {f"fairshare.{name}": value for name, value in arguments.items()}
    plugins = [{"name": "priority"}, {"name": "fairshare", "arguments": given}, {"name": "predicates"}]
    return json.dumps({"actions": "enqueue, allocate", "tiers": [{"plugins": plugins}]})


def world(text: str) -> Harness:
    """Two nodes with eight GPUs, a queue, and a pod of namespace a with one GPU that runs."""
    harness = Harness(text)
    harness.node("n1", resources={GPU: 8})
    harness.queue("q")
    harness.group("g", namespace="a", phase="Running")
    harness.pod("p", group="g", namespace="a", node="n1", requests={GPU: 1}, limits={GPU: 1})
    return harness


def usage(harness: Harness, queue: str = "q") -> dict[str, float]:
    """Usage of the last session by namespace."""
    record = harness.last_session.carry_over.usage_record
    assert record is not None
    return dict(record.usage.get(queue, {}))


def session(harness: Harness, after: float = 1.0) -> Any:
    """A session `after` seconds from the last one."""
    harness.core.resync()
    return harness.step(harness.now + after)


def test_usage_grows_with_time_and_decays() -> None:
    harness = world(conf(halfLifeMinutes=60))
    harness.step()
    for _ in range(10):
        session(harness)
    assert round(usage(harness)["a"]) == 9991  # thousandths of a card, times seconds
    harness.delete_pod("p", namespace="a")
    session(harness, 0.0)
    before = usage(harness)["a"]
    session(harness, 3600.0)
    assert usage(harness)["a"] == pytest.approx(before / 2)
    session(harness, 3600.0 * 40)
    assert usage(harness) == {}


def test_usage_outlives_another_scheduler_conf() -> None:
    harness = world(conf())
    harness.step()
    session(harness, 100.0)
    harness.reconfigure(conf(halfLifeMinutes=120))
    session(harness, 0.0)
    assert usage(harness)["a"] == pytest.approx(100_000)


def test_a_pod_is_charged_from_its_creation_on_after_a_long_gap() -> None:
    harness = world(conf(halfLifeMinutes=1e9))
    harness.step()
    harness.task("p", namespace="a").created = harness.now + 1800.0
    session(harness, 3600.0)
    assert usage(harness)["a"] == pytest.approx(1_800_000, rel=1e-4)
    session(harness, 3600.0)
    assert usage(harness)["a"] == pytest.approx(5_400_000, rel=1e-4)


def stored(document: Any) -> deltas.ObjectChanged:
    """The ConfigMap with the state."""
    data = {"state.json": document if isinstance(document, str) else json.dumps(document)}
    meta = {"name": "fairshare-usage-state", "namespace": "volcano-system"}
    return deltas.ObjectChanged(msgspec.convert({"metadata": meta, "data": data}, ConfigMapObject))


def test_the_state_is_written_in_the_form_of_volcano_and_read_after_a_restart() -> None:
    harness = world(conf(persistState=True, halfLifeMinutes=60, flushIntervalSeconds=30))
    harness.step()
    assert not [one for one in session(harness, 29.0).intents if isinstance(one, WriteConfigMap)]
    [written] = [one for one in session(harness, 1.0).intents if isinstance(one, WriteConfigMap)]
    assert (written.namespace, written.name) == ("volcano-system", "fairshare-usage-state")
    assert written.labels == {"app": "volcano-scheduler", "component": "fairshare"}
    document = json.loads(written.data["state.json"])
    assert document["queues"]["q"]["a"] == pytest.approx(usage(harness)["a"])
    assert document["lastCycle"].endswith("Z")
    assert not [one for one in session(harness, 5.0).intents if isinstance(one, WriteConfigMap)]

    restarted = world(conf(persistState=True, halfLifeMinutes=60))
    restarted.apply(stored({"lastCycle": document["lastCycle"], "queues": {"q": {"a": 3_600_000.0, "b": 8000.0}}}))
    restarted.now = harness.now - 5.0 + 3600.0 - 1.0  # an hour after `lastCycle`
    restarted.step()
    assert usage(restarted) == {"a": pytest.approx(1_800_000 + 3_600_000, rel=0.01), "b": pytest.approx(4000, rel=0.01)}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"queues": {"q": {"a": "x"}}}', '{"queues": {"q": {"a": -5}}}'])
def test_a_malformed_state_counts_as_none(text: str) -> None:
    harness = world(conf(persistState=True))
    harness.apply(stored(text))
    harness.step()
    assert usage(harness) == {}


def test_shares_are_max_min_fair() -> None:
    assert max_min(8000, {"a": 1000, "b": 5000, "c": 9000}) == {"a": 1000, "b": 3500, "c": 3500}
    assert max_min(10, {}) == {}


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ({"a": 100.0, "b": 100.9}, ["b", "a"]),  # equal within one unit: the fewer running cards
        ({"a": 100.0, "b": 200.0}, ["a", "b"]),
        ({"b": 0.5}, ["b", "a"]),
        ({"a": 5000.0}, ["b", "a"]),
    ],
)
def test_order_of_jobs(given: dict[str, float], order: list[str]) -> None:
    harness = world(conf(persistState=True, resourceKey=GPU, halfLifeMinutes=1e9))
    harness.apply(stored({"lastCycle": "2026-01-01T00:00:00Z", "queues": {"q": given}}))
    harness.delete_pod("p", namespace="a")
    for namespace, running in (("a", 2), ("b", 1)):
        harness.group("run", namespace=namespace, phase="Running")
        for number in range(running):
            name = f"r{number}"
            harness.pod(name, group="run", namespace=namespace, node="n1", requests={GPU: 1}, limits={GPU: 1})
            harness.apply()
        harness.group("wait", namespace=namespace)
    harness.now = 1767225600.0 - 1.0  # the time of `lastCycle`
    harness.step()
    plugin = harness.plugin("fairshare")
    jobs = {namespace: harness.job("wait", namespace=namespace) for namespace in ("a", "b")}
    assert sorted(jobs, key=lambda one: plugin.job_order(jobs[one])) == order


def test_queues_that_are_no_targets_come_first_and_are_not_charged() -> None:
    harness = world(conf(targetQueues="other, more", **{"resourceKey.other": "cpu"}))
    harness.step()
    session(harness, 10.0)
    assert usage(harness) == {}
    assert harness.plugin("fairshare").job_order(harness.job("g", namespace="a")) == (0, 0, 0)


def test_the_gate_refuses_a_namespace_with_its_share() -> None:
    harness = Harness(conf(enableEnqueueGate=True))
    harness.node("n1", resources={GPU: 8})
    harness.queue("q")
    for namespace, running, wanted in (("a", 1, 0), ("b", 4, 1), ("c", 3, 6)):
        harness.group("run", namespace=namespace, phase="Running")
        for number in range(running):
            name = f"r{number}"
            harness.pod(name, group="run", namespace=namespace, node="n1", requests={GPU: 1}, limits={GPU: 1})
        if wanted:
            harness.group("more", namespace=namespace, phase="Pending", min_resources={GPU: wanted})
    harness.group("cpu", namespace="b", phase="Pending", min_resources={"cpu": 1})
    harness.step()
    groups = [("more", "b"), ("more", "c"), ("cpu", "b")]
    phases = [harness.job(name, namespace=namespace).phase for name, namespace in groups]
    assert phases == ["Pending", "Inqueue", "Inqueue"]
    assert [text for _, text in harness.event_messages("PodGroup", "more")] == [
        "namespace b holds 4 nvidia.com/gpu of its fair share of 3500m in queue q"
    ]
