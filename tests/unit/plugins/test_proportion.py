"""Proportion's hooks. test_proportion_filling.py tests the division, test_queue_quotas.py what capacity has alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import reclaim, work


def _cluster(cpu: str = "10", *, actions: str = "enqueue, allocate", arguments: str = "", **node: Any) -> Harness:
    h = Harness(f"""
actions: "{actions}"
tiers: [{{plugins: [{{name: proportion, arguments: {{{arguments}}}}}]}}]
""")
    h.node("n1", cpu=cpu, pods=10_000, **node)
    return h


def _deserved(h: Harness) -> dict[str, int]:
    samples = h.plugin("proportion").metrics()
    return {s.labels["queue_name"]: int(s.value) for s in samples if s.name == "queue_deserved_milli_cpu"}


# --- deserved ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterative", [False, True])
def test_deserved_follows_the_weights_within_request_capability_and_guarantee(iterative: bool) -> None:
    h = _cluster("18", arguments=f"proportion.iterative: {str(iterative).lower()}")
    h.queue("heavy", weight=2)
    h.queue("capped", capability={"cpu": "3"})
    h.queue("modest")
    h.queue("guaranteed", guarantee={"cpu": "2"})
    work(h, "heavy", runs=4, waits=20)
    work(h, "capped", waits=20)
    work(h, "modest", runs=1)
    h.session()
    assert _deserved(h) == pytest.approx({"capped": 3000, "guaranteed": 2000, "heavy": 12_000, "modest": 1000}, abs=1)


def test_a_guarantee_of_a_queue_without_jobs_is_kept_free_for_it() -> None:
    h = _cluster()
    h.queue("idle", guarantee={"cpu": "4"})
    h.queue("busy")
    work(h, "busy", waits=20)
    h.session()
    assert _deserved(h) == {"busy": 6000, "idle": 4000}


def test_the_iterative_argument_gives_guarantees_their_head_start() -> None:
    h = _cluster("20", arguments="proportion.iterative: true")
    h.queue("a", guarantee={"cpu": "6"})
    h.queue("b", weight=2)
    h.queue("d")
    for queue, pods in (("a", 20), ("b", 2), ("d", 20)):
        work(h, queue, waits=pods)
    h.session()
    assert _deserved(h) == pytest.approx({"a": 9500, "b": 2000, "d": 8500}, abs=1)


def test_queues_without_jobs_take_no_part_of_the_rounds() -> None:
    h = _cluster("20", arguments="proportion.iterative: true")
    h.queue("a", guarantee={"cpu": "6"})
    h.queue("b", weight=2)
    h.queue("d")
    h.queue("jobless", weight=100)
    for queue, pods in (("a", 20), ("b", 2), ("d", 20)):
        work(h, queue, waits=pods)
    h.session()
    assert _deserved(h) == pytest.approx({"a": 9500, "b": 2000, "d": 8500, "jobless": 0}, abs=1)


def test_ended_and_terminating_pods_request_nothing() -> None:
    h = _cluster()
    h.queue("a")
    h.group("a", queue="a")
    h.pod("done", group="a", node="n1", phase="Succeeded", requests={"cpu": "4"})
    h.pod("leaves", group="a", node="n1", requests={"cpu": "2"})
    h.pod("runs", group="a", node="n1", requests={"cpu": "1"})
    h.terminate("leaves")
    h.session()
    assert _deserved(h) == {"a": 1000}


# --- orders and quotas ------------------------------------------------------------------------------------------------


def test_reclaim_takes_from_a_queue_while_it_is_above_deserved() -> None:
    h = _cluster("8")
    h.queue("rich")
    h.queue("poor")
    work(h, "rich", runs=4, each="1500m")
    work(h, "poor", waits=8)
    h.session()
    assert _deserved(h) == {"poor": 4000, "rich": 4000}
    victims, causes = reclaim(h, "poor-waits0", ["rich-runs0", "rich-runs1", "rich-runs2"], plugin="proportion")
    assert victims == ["rich-runs0", "rich-runs1"]
    assert causes == {"rich-runs2": "deserved"}


def test_reclaim_keeps_a_guarantee() -> None:
    h = _cluster("8")
    h.queue("rich", guarantee={"cpu": "4"})
    h.queue("poor")
    work(h, "rich", runs=4, each="1500m")
    work(h, "poor", waits=8)
    h.session()
    assert _deserved(h) == {"poor": 4000, "rich": 4000}
    victims, causes = reclaim(h, "poor-waits0", ["rich-runs0", "rich-runs1", "rich-runs2"], plugin="proportion")
    assert victims == ["rich-runs0"]
    assert causes == {"rich-runs1": "guarantee", "rich-runs2": "guarantee"}


def test_deserved_amounts_are_protected_behind_a_permissive_tier() -> None:
    h = Harness("""
actions: "allocate"
tiers: [{plugins: [{name: conformance}]}, {plugins: [{name: proportion}]}]
""")
    h.node("n1", cpu="8", pods=10_000)
    h.queue("rich")
    h.queue("poor")
    work(h, "rich", runs=4, each="1500m")
    work(h, "poor", waits=8)
    session = h.session()
    candidates = [h.task(f"rich-runs{i}") for i in range(3)]
    victims = session.dispatch.victims("reclaimable", h.task("poor-waits0"), candidates)
    assert [task.name for task in victims] == ["rich-runs0", "rich-runs1"]


# --- in sessions ------------------------------------------------------------------------------------------------------


def test_series_of_every_queue_are_there() -> None:
    h = _cluster("8")
    h.queue("idle")
    h.queue("q", weight=3)
    work(h, "q", runs=2, waits=2)
    h.session()
    samples = {(s.name, *s.labels.values()): s.value for s in h.plugin("proportion").metrics()}
    expected = {
        ("queue_allocated_milli_cpu", "q"): 2000,
        ("queue_request_milli_cpu", "q"): 4000,
        ("queue_deserved_milli_cpu", "q"): 4000,
        ("queue_deserved_memory_bytes", "q"): 0,
        ("queue_allocated_scalar_resources", "q", "pods"): 2,
        ("queue_share", "q"): 0.5,
        ("queue_weight", "q"): 3,
        ("queue_overused", "q"): 0,
        ("queue_allocated_milli_cpu", "idle"): 0,
        ("queue_request_milli_cpu", "idle"): 0,
        ("queue_overused", "idle"): 1,
    }
    assert {key: samples[key] for key in expected} == expected


def test_reservations_are_a_series() -> None:
    h = _cluster("8", resources={"nvidia.com/gpu": 8})
    h.queue("q")
    h.group("g", queue="q", phase="Inqueue", min_member=2, min_resources={"cpu": "6", "nvidia.com/gpu": "3"})
    h.pod("p", group="g", node="n1", requests={"cpu": "2", "nvidia.com/gpu": 1})
    h.session()
    samples = {(s.name, *s.labels.values()): s.value for s in h.plugin("proportion").metrics()}
    assert samples["queue_inqueue_milli_cpu", "q"] == 4000
    assert samples["queue_inqueue_scalar_resources", "q", "nvidia.com/gpu"] == 2000


def test_deserved_never_adds_up_to_more_than_the_cluster() -> None:
    h = _cluster("10", memory="10Gi")
    rng = np.random.default_rng(1)
    for i in range(12):
        h.queue(f"q{i}", weight=int(rng.integers(1, 9)))
        work(h, f"q{i}", waits=int(rng.integers(0, 9)), each=f"{rng.integers(1, 3000)}m")
    session = h.session()
    total = sum(np.array(a.deserved) for a in h.plugin("proportion")._attributes.values())
    assert (total <= session.total).all()
