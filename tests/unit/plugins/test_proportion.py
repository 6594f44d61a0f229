"""Proportion's hooks. test_proportion_filling.py tests the division."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import PodSignature
from capcard_sched.framework.api.plugin import Grant, VictimDecision
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import Vote
from capcard_sched.plugins.proportion import Proportion
from capcard_sched.testing import Harness


def _cluster(cpu: str = "10", *, actions: str = "enqueue, allocate", arguments: str = "", **node: Any) -> Harness:
    h = Harness(f"""
actions: "{actions}"
tiers: [{{plugins: [{{name: proportion, arguments: {{{arguments}}}}}]}}]
""")
    h.node("n1", cpu=cpu, pods=10_000, **node)
    return h


def _work(h: Harness, queue: str, *, runs: int = 0, waits: int = 0, each: str = "1") -> None:
    """A group named as its queue, with running and pending pods."""
    h.group(queue, queue=queue)
    for i in range(runs):
        h.pod(f"{queue}-runs{i}", group=queue, node="n1", requests={"cpu": each})
    for i in range(waits):
        h.pod(f"{queue}-waits{i}", group=queue, requests={"cpu": each})


def _deserved(h: Harness) -> dict[str, int]:
    samples = h.plugin("proportion").metrics()
    return {s.labels["queue_name"]: int(s.value) for s in samples if s.name == "queue_deserved_milli_cpu"}


def _insufficient(hook: str, figures: Figures, names: str = "insufficient cpu") -> Refusal:
    return Refusal(
        hook,
        "proportion",
        "Unschedulable",
        f"queue resource quota insufficient: {names}",
        queue="q",
        figures=figures,
        event=hook == "job_enqueueable",
        type="Normal",
    )


# --- deserved ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterative", [False, True])
def test_deserved_follows_the_weights_within_request_capability_and_guarantee(iterative: bool) -> None:
    h = _cluster("18", arguments=f"proportion.iterative: {str(iterative).lower()}")
    h.queue("heavy", weight=2)
    h.queue("capped", capability={"cpu": "3"})
    h.queue("modest")
    h.queue("guaranteed", guarantee={"cpu": "2"})
    _work(h, "heavy", runs=4, waits=20)
    _work(h, "capped", waits=20)
    _work(h, "modest", runs=1)
    h.session()
    assert _deserved(h) == pytest.approx({"capped": 3000, "guaranteed": 2000, "heavy": 12_000, "modest": 1000}, abs=1)


def test_a_guarantee_of_a_queue_without_jobs_is_kept_free_for_it() -> None:
    h = _cluster()
    h.queue("idle", guarantee={"cpu": "4"})
    h.queue("busy")
    _work(h, "busy", waits=20)
    h.session()
    assert _deserved(h) == {"busy": 6000, "idle": 4000}


def test_the_iterative_argument_gives_guarantees_their_head_start() -> None:
    h = _cluster("20", arguments="proportion.iterative: true")
    h.queue("a", guarantee={"cpu": "6"})
    h.queue("b", weight=2)
    h.queue("d")
    for queue, pods in (("a", 20), ("b", 2), ("d", 20)):
        _work(h, queue, waits=pods)
    h.session()
    assert _deserved(h) == pytest.approx({"a": 9500, "b": 2000, "d": 8500}, abs=1)


def test_queues_without_jobs_take_no_part_of_the_rounds() -> None:
    h = _cluster("20", arguments="proportion.iterative: true")
    h.queue("a", guarantee={"cpu": "6"})
    h.queue("b", weight=2)
    h.queue("d")
    h.queue("jobless", weight=100)
    for queue, pods in (("a", 20), ("b", 2), ("d", 20)):
        _work(h, queue, waits=pods)
    h.session()
    assert _deserved(h) == pytest.approx({"a": 9500, "b": 2000, "d": 8500, "jobless": 0}, abs=1)


def test_a_capability_of_zero_limits_cards_but_not_cpu() -> None:
    h = _cluster(resources={"nvidia.com/gpu": 8})
    h.queue("q", capability={"cpu": "0", "nvidia.com/gpu": "0"})
    h.group("g", queue="q")
    h.pod("p0", requests={"cpu": "1"})
    h.pod("p1", requests={"nvidia.com/gpu": 1})
    session = h.session()
    plugin = h.plugin("proportion")
    assert plugin.allocatable(session.queues["q"], h.task("p0")) is None
    refusal = plugin.allocatable(session.queues["q"], h.task("p1"))
    assert refusal == _insufficient(
        "allocatable", Figures("nvidia.com/gpu", 1000, 1000, 0), "insufficient nvidia.com/gpu"
    )


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


def test_figures_kept_over_sessions_equal_those_of_a_new_plugin() -> None:
    h = _cluster()
    h.queue("a")
    h.queue("b", weight=3)
    _work(h, "a", runs=2, waits=20)
    _work(h, "b", waits=3)
    h.session()
    h.delete_pod("a-runs0")
    h.pod("b-more", group="b", requests={"cpu": "2", "example.com/new": 1})
    h.queue("c", guarantee={"cpu": "1"})
    h.queue("b", weight=1, capability={"cpu": "4"})
    h.group("a", queue="c")
    session = h.session()
    anew = Proportion()
    session.changed.everything = True
    anew.open(session)
    assert list(h.plugin("proportion").metrics()) == list(anew.metrics())


# --- orders and quotas ------------------------------------------------------------------------------------------------


def test_queues_are_ordered_by_priority_then_share_of_deserved() -> None:
    h = _cluster("12")
    h.queue("full")
    h.queue("half")
    h.queue("urgent", priority=5)
    _work(h, "full", runs=4, waits=4)
    _work(h, "half", runs=2, waits=4)
    _work(h, "urgent", runs=4, waits=4)
    session = h.session()
    plugin = h.plugin("proportion")
    keys = {name: plugin.queue_order(queue) for name, queue in session.queues.items()}
    assert sorted(keys, key=keys.__getitem__) == ["urgent", "half", "full"]
    assert keys["half"] == (0, 0.5)


def test_shares_follow_placements_and_nominations() -> None:
    h = _cluster("8")
    h.queue("q")
    _work(h, "q", waits=4)
    session = h.session()
    plugin, queue, node = h.plugin("proportion"), session.queues["q"], session.nodes.by_name["n1"]
    statement = Statement(session)
    statement.allocate(h.job("q"), [h.task("q-waits0")], [node])
    assert plugin.queue_order(queue) == (0, 0.25)
    statement.pipeline(h.job("q"), [h.task("q-waits1"), h.task("q-waits2")], [node, node])
    assert plugin.queue_order(queue) == (0, 0.75)
    statement.discard()
    assert plugin.queue_order(queue) == (0, 0)


def test_a_queue_is_overused_when_its_whole_request_except_pods_is_reached() -> None:
    h = _cluster("8", memory="8Gi")
    h.queue("reached")
    h.queue("room")
    h.queue("empty")
    _work(h, "reached", runs=4, waits=4)
    _work(h, "room", runs=3, waits=4)
    session = h.session()
    overused = {name: h.plugin("proportion").overused(queue) for name, queue in session.queues.items()}
    assert overused == {"empty": True, "reached": True, "room": False}


def test_allocatable_counts_placements_and_nominations_of_the_session() -> None:
    h = _cluster("3")
    h.queue("q")
    _work(h, "q", runs=1, waits=4)
    session = h.session()
    plugin, queue, node = h.plugin("proportion"), session.queues["q"], session.nodes.by_name["n1"]
    tasks = [h.task(f"q-waits{i}") for i in range(4)]
    refusal = _insufficient("allocatable", Figures("cpu", 1000, 4000, 3000))
    profile = PodSignature(tasks[0].cls, {}, 0)
    assert plugin.allocatable_many(queue, profile, tasks) == Grant(2, refusal)
    assert plugin.allocatable_many(queue, profile, tasks[:2]) == Grant(2)
    Statement(session).pipeline(h.job("q"), tasks[:2], [node, node])
    assert plugin.allocatable(queue, tasks[2]) == refusal
    assert plugin.preemptive(queue, tasks[2]) == _insufficient("preemptive", Figures("cpu", 1000, 4000, 3000))


def test_insufficient_resources_are_named_in_full() -> None:
    h = _cluster("2", memory="4Gi")
    h.queue("q")
    h.group("g")
    h.pod("p0", node="n1", requests={"cpu": "1", "memory": "2Gi"})
    h.pod("p1", requests={"cpu": "2", "memory": "3Gi"})
    session = h.session()
    refusal = h.plugin("proportion").allocatable(session.queues["q"], h.task("p1"))
    assert refusal == _insufficient(
        "allocatable", Figures("cpu", 2000, 3000, 2000), "insufficient cpu, insufficient memory"
    )


@pytest.mark.parametrize("hook", ["allocatable", "preemptive"])
def test_a_closed_queue_gets_nothing(hook: str) -> None:
    h = _cluster()
    h.queue("q", state="Closed")
    _work(h, "q", waits=1)
    session = h.session()
    refusal = getattr(h.plugin("proportion"), hook)(session.queues["q"], h.task("q-waits0"))
    assert refusal == Refusal(hook, "proportion", "QueueNotOpen", "Queue <q> is <Closed>", queue="q")


def _reclaim(h: Harness, task: str, candidates: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names of victims, and what protects the others."""
    answer = h.plugin("proportion").reclaimable(h.task(task), [h.task(name) for name in candidates])
    assert isinstance(answer, VictimDecision)
    assert answer.protected is not None
    assert answer.victims is not None
    causes = {h.state.tasks[uid].name: cause for uid, cause in answer.protected.items()}
    return [task.name for task in answer.victims], causes


def test_reclaim_takes_from_a_queue_while_it_is_above_deserved() -> None:
    h = _cluster("8")
    h.queue("rich")
    h.queue("poor")
    _work(h, "rich", runs=4, each="1500m")
    _work(h, "poor", waits=8)
    h.session()
    assert _deserved(h) == {"poor": 4000, "rich": 4000}
    victims, causes = _reclaim(h, "poor-waits0", ["rich-runs0", "rich-runs1", "rich-runs2"])
    assert victims == ["rich-runs0", "rich-runs1"]
    assert causes == {"rich-runs2": "deserved"}


def test_reclaim_keeps_a_guarantee() -> None:
    h = _cluster("8")
    h.queue("rich", guarantee={"cpu": "4"})
    h.queue("poor")
    _work(h, "rich", runs=4, each="1500m")
    _work(h, "poor", waits=8)
    h.session()
    assert _deserved(h) == {"poor": 4000, "rich": 4000}
    victims, causes = _reclaim(h, "poor-waits0", ["rich-runs0", "rich-runs1", "rich-runs2"])
    assert victims == ["rich-runs0"]
    assert causes == {"rich-runs1": "guarantee", "rich-runs2": "guarantee"}


def test_victims_are_only_pods_their_queue_cannot_reclaim() -> None:
    h = _cluster("8", memory="8Gi")
    h.queue("rich")
    h.queue("poor")
    for name, requests in (("big", {"memory": "6Gi"}), ("small", {"cpu": "1"})):
        h.group(name, queue="rich")
        h.pod(name, group=name, node="n1", requests=requests)
    h.group("poor", queue="poor")
    h.pod("waits", group="poor", requests={"cpu": "1", "memory": "8Gi"})
    session = h.session()
    # The queue has too much memory and no more cpu than it deserves: its pod without memory would come back at once.
    victims, causes = _reclaim(h, "waits", ["small", "big"])
    assert (victims, causes) == (["big"], {"small": "deserved"})
    plugin = h.plugin("proportion")
    statement = Statement(session)
    statement.evict(h.task("big"), "reclaim")
    assert plugin.preemptive(session.queues["rich"], h.task("big")) is not None
    statement.discard()


def test_deserved_amounts_are_protected_behind_a_permissive_tier() -> None:
    h = Harness("""
actions: "allocate"
tiers: [{plugins: [{name: conformance}]}, {plugins: [{name: proportion}]}]
""")
    h.node("n1", cpu="8", pods=10_000)
    h.queue("rich")
    h.queue("poor")
    _work(h, "rich", runs=4, each="1500m")
    _work(h, "poor", waits=8)
    session = h.session()
    candidates = [h.task(f"rich-runs{i}") for i in range(3)]
    victims = session.dispatch.victims("reclaimable", h.task("poor-waits0"), candidates)
    assert [task.name for task in victims] == ["rich-runs0", "rich-runs1"]


def test_pods_of_unknown_queues_are_left_to_others() -> None:
    h = _cluster("8")
    h.queue("q")
    _work(h, "q", waits=1)
    h.pod("foreign", group=None, node="n1", scheduler="default-scheduler")
    h.session()
    assert _reclaim(h, "q-waits0", ["foreign"]) == ([], {})


# --- admission --------------------------------------------------------------------------------------------------------


def test_admission_counts_allocated_and_admitted_but_not_elastic() -> None:
    h = _cluster("7")
    h.queue("q")
    h.group("elastic", phase="Running", min_resources={"cpu": "3"})
    for i in range(4):
        h.pod(f"p{i}", group="elastic", node="n1")
    h.group("admitted", phase="Inqueue", min_resources={"cpu": "1"})
    h.group("big", phase="Pending", min_resources={"cpu": "3"})
    h.group("small", phase="Pending", min_resources={"cpu": "1"})
    h.session()
    plugin = h.plugin("proportion")
    assert plugin.job_enqueueable(h.job("big")) is Vote.PERMIT
    assert plugin.job_enqueueable(h.job("small")) is Vote.PERMIT  # a vote reserves nothing
    plugin.job_enqueued(h.job("big"))
    assert plugin.job_enqueueable(h.job("small")) == _insufficient("job_enqueueable", Figures("cpu", 1000, 8000, 7000))


def test_admission_stays_exact_while_admitted_groups_are_placed() -> None:
    h = _cluster("4")
    h.queue("q")
    h.group("admitted", phase="Inqueue", min_resources={"cpu": "2"})
    h.pod("p0", group="admitted", requests={"cpu": "2"})
    h.group("next", phase="Pending", min_resources={"cpu": "2"})
    session = h.session()
    plugin = h.plugin("proportion")
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT
    Statement(session).allocate(h.job("admitted"), [h.task("p0")], [session.nodes.by_name["n1"]])
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT


def test_resources_of_a_placed_group_beyond_its_minimum_are_elastic_at_once() -> None:
    h = _cluster("4")
    h.queue("q")
    h.group("placed", phase="Inqueue", min_resources={"cpu": "1"})
    h.pod("p0", group="placed", requests={"cpu": "3"})
    h.group("next", phase="Pending", min_resources={"cpu": "3"})
    session = h.session()
    plugin = h.plugin("proportion")
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT
    Statement(session).allocate(h.job("placed"), [h.task("p0")], [session.nodes.by_name["n1"]])
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT


def test_a_group_without_minimum_resources_is_admitted_unless_the_queue_is_closed() -> None:
    h = _cluster("1")
    h.queue("q")
    h.queue("closed", state="Closing")
    h.group("a", phase="Pending")
    h.group("b", queue="closed", phase="Pending")
    h.session()
    plugin = h.plugin("proportion")
    assert plugin.job_enqueueable(h.job("a")) is Vote.PERMIT
    assert plugin.job_enqueueable(h.job("b")) == Refusal(
        "job_enqueueable",
        "proportion",
        "QueueNotOpen",
        "Queue <closed> is <Closing>, cannot enqueue",
        queue="closed",
        event=True,
    )


def test_reservations_count_cards_in_the_same_unit_as_requests() -> None:
    h = _cluster(resources={"nvidia.com/gpu": 8})
    h.queue("q")
    h.group("partly", phase="Running", min_resources={"nvidia.com/gpu": "6"})
    h.pod("p0", group="partly", node="n1", requests={"nvidia.com/gpu": 2})
    h.pod("p1", group="partly", requests={"nvidia.com/gpu": 4})
    h.group("a", phase="Pending", min_resources={"nvidia.com/gpu": "3"})
    h.session()
    refusal = h.plugin("proportion").job_enqueueable(h.job("a"))
    assert refusal == _insufficient(
        "job_enqueueable", Figures("nvidia.com/gpu", 3000, 9000, 8000), "insufficient nvidia.com/gpu"
    )


# --- in sessions ------------------------------------------------------------------------------------------------------


def test_two_queues_share_a_full_cluster_by_weight() -> None:
    h = _cluster("9")
    h.queue("a")
    h.queue("b", weight=2)
    _work(h, "a", waits=9)
    _work(h, "b", waits=9)
    h.settle()
    bound = [name.partition("-")[0] for name in h.binds]
    assert (bound.count("a"), bound.count("b")) == (3, 6)


def test_series_of_every_queue_are_there() -> None:
    h = _cluster("8")
    h.queue("idle")
    h.queue("q", weight=3)
    _work(h, "q", runs=2, waits=2)
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
        _work(h, f"q{i}", waits=int(rng.integers(0, 9)), each=f"{rng.integers(1, 3000)}m")
    session = h.session()
    total = sum(np.array(a.deserved) for a in h.plugin("proportion")._attributes.values())
    assert (total <= session.total).all()
