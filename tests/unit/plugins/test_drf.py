"""DRF and its hierarchy."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.framework.session.statement import Statement
from capcard_sched.plugins.drf import Drf
from capcard_sched.testing import Harness

_GPU = "nvidia.com/gpu"


def _conf(hierarchy: bool = False) -> str:
    return f"""
actions: "allocate"
tiers: [{{plugins: [{{name: drf, enableHierarchy: {str(hierarchy).lower()}}}]}}]
"""


def _cluster(*, hierarchy: bool = False, **node: Any) -> Harness:
    h = Harness(_conf(hierarchy))
    h.node("n1", **{"cpu": "16", "memory": "64Gi", "pods": 10_000, "resources": {_GPU: 8}, **node})
    h.queue("q")
    return h


# --- shares of jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "held, share",
    [
        pytest.param({"cpu": "4", "memory": "8Gi"}, 0.25, id="cpu dominates"),
        pytest.param({"cpu": "2", "memory": "8Gi", _GPU: 4}, 0.5, id="cards dominate"),
        pytest.param({"example.com/unknown": 5, "cpu": "1"}, 0.0625, id="a resource the cluster has none of"),
    ],
)
def test_dominant_share(held: dict[str, Any], share: float) -> None:
    h = _cluster()
    h.group("g")
    h.pod("p0", node="n1", requests=held)
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == share


def test_many_tiny_pods_are_dominated_by_pods() -> None:
    h = _cluster(pods=10)
    h.group("g")
    for i in range(4):
        h.pod(f"p{i}", node="n1", requests={"cpu": "1m"})
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == 0.4


def test_a_job_without_placements_has_no_share_and_no_series() -> None:
    h = _cluster()
    h.group("g")
    h.group("busy")
    h.pod("p0")
    h.pod("p1", group="busy", node="n1", requests={"cpu": "4"})
    h.session()
    drf: Drf = h.plugin("drf")
    assert drf.job_order(h.job("g")) == 0
    assert list(drf.metrics()) == [Sample("job_share", {"job_ns": "default", "job_id": "busy"}, 0.25)]


def test_shares_follow_placements_and_their_undoing() -> None:
    h = _cluster()
    h.group("g")
    for i in range(3):
        h.pod(f"p{i}", requests={"cpu": "4"})
    session = h.session()
    drf, job, node = h.plugin("drf"), h.job("g"), session.nodes.by_name["n1"]
    statement = Statement(session)
    statement.allocate(job, [h.task("p0"), h.task("p1")], [node, node])
    assert drf.job_order(job) == 0.5
    statement.pipeline(job, [h.task("p2")], [node])
    assert drf.job_order(job) == 0.75
    statement.discard()
    assert drf.job_order(job) == 0


def test_shares_follow_the_cluster() -> None:
    h = _cluster()
    h.group("g")
    h.pod("p0", node="n1", requests={"cpu": "4"})
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == 0.25
    h.node("n2", cpu="16")
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == 0.125
    h.pod("p1", node="n1", requests={"cpu": "8"})
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == 0.375
    h.delete_pod("p0")
    h.delete_pod("p1")
    h.session()
    assert h.plugin("drf").job_order(h.job("g")) == 0


def test_the_job_with_the_smaller_share_is_placed_first() -> None:
    h = _cluster(cpu="5")
    h.group("rich")
    h.group("poor")
    h.pod("r0", group="rich", node="n1", requests={"cpu": "3"})
    h.pod("p0", group="poor", node="n1", requests={"cpu": "1"})
    h.pod("r1", group="rich", requests={"cpu": "1"})
    h.pod("p1", group="poor", requests={"cpu": "1"})
    h.step()
    assert h.binds == {"p1": "n1"}


@pytest.mark.parametrize(
    "held, victims",
    [
        pytest.param("2", ["v0", "v1", "v2"], id="down to the preemptor's share, equal included"),
        pytest.param("3500m", ["v0"], id="a larger preemptor"),
        pytest.param("6", [], id="never from a poorer job"),
    ],
)
def test_preemptable_leaves_victim_jobs_at_least_the_share_of_the_preemptor(held: str, victims: list[str]) -> None:
    h = _cluster(cpu="10")
    h.group("g")
    h.group("victims")
    h.pod("has", node="n1", requests={"cpu": held})
    h.pod("asks", requests={"cpu": "1"})
    for i in range(6):
        h.pod(f"v{i}", group="victims", node="n1", requests={"cpu": "1"})
    h.pod("foreign", group=None, node="n1", scheduler="default-scheduler")
    h.session()
    candidates = [h.task("foreign"), *(h.task(f"v{i}") for i in range(6))]
    answer = h.plugin("drf").preemptable(h.task("asks"), candidates)
    assert [task.name for task in answer] == victims


# --- hierarchy --------------------------------------------------------------------------------------------------------


def _place(path: str, weights: str) -> dict[str, str]:
    return {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}


def _tree(h: Harness, *, waiting: bool = True) -> None:
    """Example 4.5: eng (weight 2) holds cpu 2 and memory 4, sci (weight 1) cpu 3, of 10 and 10."""
    h.queue("eng", annotations=_place("root/eng", "1/2"))
    h.queue("sci", annotations=_place("root/sci", "1/1"))
    for name, queue, request in (
        ("e0", "eng", {"cpu": "2"}),
        ("e1", "eng", {"memory": "4Gi"}),
        ("s0", "sci", {"cpu": "3"}),
    ):
        h.group(name, queue=queue)
        h.pod(f"{name}-runs", group=name, node="n1", requests=request)
        if waiting or queue == "sci":
            h.pod(f"{name}-waits", group=name, requests=request)


def test_without_hierarchy_all_queues_are_equal_and_reclaim_is_not_its_business() -> None:
    h = _cluster()
    _tree(h)
    session = h.session()
    drf = h.plugin("drf")
    assert len({drf.queue_order(queue) for queue in session.queues.values()}) == 1
    assert drf.reclaimable(h.task("s0-waits"), [h.task("e0-runs")]) is None


def test_groups_are_compared_by_share_over_weight() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h)
    session = h.session()
    drf = h.plugin("drf")
    assert drf.queue_order(session.queues["eng"]) == (0, pytest.approx(0.1))
    assert drf.queue_order(session.queues["sci"]) == (0, pytest.approx(0.3))


def test_saturated_groups_come_last_at_any_share() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h, waiting=False)
    session = h.session()
    drf = h.plugin("drf")
    assert drf.queue_order(session.queues["sci"]) < drf.queue_order(session.queues["eng"])


def test_a_job_that_waits_for_an_exhausted_resource_is_saturated() -> None:
    h = _cluster(hierarchy=True, cpu="5", memory="10Gi")
    _tree(h)  # cpu is used up: e0 and s0 can use no more, e1 can
    session = h.session()
    drf = h.plugin("drf")
    assert drf.queue_order(session.queues["eng"])[0] == 0
    assert drf.queue_order(session.queues["sci"])[0] == 1


def test_a_job_with_nothing_allocated_keeps_its_queue_unsaturated() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h, waiting=False)
    h.group("e2", queue="eng")
    h.pod("e2-waits", group="e2")
    session = h.session()
    drf = h.plugin("drf")
    assert drf.queue_order(session.queues["eng"]) < drf.queue_order(session.queues["sci"])


def test_order_goes_down_the_tree_when_parents_are_the_same() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    for name, weights in (("prod", "1/1/4"), ("dev", "1/1/1")):
        h.queue(name, annotations=_place(f"root/eng/{name}", weights))
        h.group(name, queue=name)
        h.pod(f"{name}-runs", group=name, node="n1", requests={"cpu": "2"})
        h.pod(f"{name}-waits", group=name, requests={"cpu": "2"})
    session = h.session()
    drf = h.plugin("drf")
    prod, dev = (drf.queue_order(session.queues[name]) for name in ("prod", "dev"))
    assert prod[:2] == dev[:2]
    assert prod < dev


@pytest.mark.parametrize("weights", ["1/0", "1/x", "1/-3", "1/nan", "1", ""])
def test_weights_that_are_none_count_as_one(weights: str) -> None:
    h = _cluster(hierarchy=True, cpu="10")
    h.queue("a", annotations=_place("root/a", weights))
    h.group("a", queue="a")
    h.pod("a-runs", group="a", node="n1", requests={"cpu": "2"})
    h.pod("a-waits", group="a", requests={"cpu": "2"})
    session = h.session()
    assert h.plugin("drf").queue_order(session.queues["a"]) == (0, pytest.approx(0.2))


def test_the_tree_kept_over_sessions_equals_one_built_anew() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h)
    session = h.session()
    kept: Drf = h.plugin("drf")
    before = {name: kept.queue_order(queue) for name, queue in session.queues.items()}
    statement = Statement(session)
    statement.allocate(h.job("s0"), [h.task("s0-waits")], [session.nodes.by_name["n1"]])
    assert kept.queue_order(session.queues["sci"]) > before["sci"]
    statement.discard()
    assert {name: kept.queue_order(queue) for name, queue in session.queues.items()} == before
    h.delete_pod("e0-runs")
    h.group("e1", queue="sci")
    h.queue("new", annotations=_place("root/eng/new", "1/2/1"))
    h.group("n", queue="new")
    h.pod("n-runs", group="n", node="n1", requests={"cpu": "1"})
    session = h.session()
    anew = Drf(hierarchy=True)
    session.changed.everything = True
    anew.open(session)
    for queue in session.queues.values():
        assert kept.queue_order(queue) == anew.queue_order(queue)


def test_a_job_that_goes_takes_its_share_along() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h)
    session = h.session()
    assert h.plugin("drf").queue_order(session.queues["sci"]) == (0, pytest.approx(0.3))
    h.delete_pod("s0-runs")
    h.delete_pod("s0-waits")
    h.delete_group("s0")
    session = h.session()
    assert h.plugin("drf").queue_order(session.queues["sci"])[1] == 0


def test_a_resource_that_runs_out_saturates_jobs_of_other_queues() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    _tree(h)
    session = h.session()
    assert h.plugin("drf").queue_order(session.queues["sci"])[0] == 0
    h.group("filler", queue="q")
    h.pod("filler", group="filler", node="n1", requests={"cpu": "5"})
    session = h.session()
    assert h.plugin("drf").queue_order(session.queues["sci"])[0] == 1


def test_reclaim_stops_where_the_queues_would_change_places() -> None:
    h = _cluster(hierarchy=True, cpu="10", memory="10Gi")
    for name in ("poor", "rich"):
        h.queue(name, annotations=_place(f"root/{name}", "1/1"))
        h.group(name, queue=name)
        h.pod(f"{name}-waits", group=name, requests={"cpu": "1"})
        h.pod(f"{name}-waits-too", group=name, requests={"cpu": "1"})
    for i in range(6):
        h.pod(f"v{i}", group="rich", node="n1", requests={"cpu": "1"})
    session = h.session()
    drf = h.plugin("drf")
    before = [drf.queue_order(session.queues[name]) for name in ("poor", "rich")]
    answer = drf.reclaimable(h.task("poor-waits"), [h.task(f"v{i}") for i in range(6)])
    # The reclaimer would hold .1: after four victims the other queue would hold .2, after five no more than it.
    assert [task.name for task in answer] == ["v0", "v1", "v2", "v3"]
    assert [drf.queue_order(session.queues[name]) for name in ("poor", "rich")] == before


@st.composite
def _queues(draw: st.DrawFn) -> list[tuple[str, list[list[tuple[int, int, bool]]]]]:
    """Paths of queues with the pods of their jobs: cpu, memory in Gi, whether it runs."""
    pods = st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans())
    jobs = st.lists(st.lists(pods, min_size=1, max_size=4), min_size=1, max_size=3)
    paths = ["root/eng/a", "root/eng/b", "root/sci", "root/sci/c"]
    return [(path, draw(jobs)) for path in paths[: draw(st.integers(2, 4))]]


@given(world=_queues(), data=st.data(), cpu=st.integers(4, 30))
def test_trying_out_victims_leaves_no_trace_and_answers_as_a_tree_built_for_it(
    world: list[tuple[str, list[list[tuple[int, int, bool]]]]], data: st.DataObject, cpu: int
) -> None:
    h = _cluster(hierarchy=True, cpu=str(cpu), memory="20Gi")
    for q, (path, jobs) in enumerate(world):
        h.queue(f"q{q}", annotations=_place(path, "1/2/3"))
        for j, pods in enumerate(jobs):
            h.group(f"q{q}-{j}", queue=f"q{q}")
            for i, (cores, gib, runs) in enumerate(pods):
                requests = {"cpu": str(cores), "memory": f"{gib}Gi"}
                h.pod(f"q{q}-{j}-{i}", group=f"q{q}-{j}", node="n1" if runs else None, requests=requests)
    h.group("asks", queue="q0")
    h.pod("asks", group="asks", requests={"cpu": "2", "memory": "1Gi"})
    session = h.session()
    kept: Drf = h.plugin("drf")
    task = h.task("asks")
    running = [one for one in h.state.tasks.values() if one.node is not None and one.job is not None]
    running = [
        one for one in sorted(running, key=lambda one: one.name) if one.job is not None and one.job.queue != "q0"
    ]
    candidates = data.draw(st.permutations(running))
    before = {name: kept.queue_order(queue) for name, queue in session.queues.items()}
    victims = kept.reclaimable(task, candidates)
    assert {name: kept.queue_order(queue) for name, queue in session.queues.items()} == before
    # The same question, each step really done in the state and weighed by a new plugin.
    assert task.job is not None
    statement = Statement(session)
    statement.allocate(task.job, [task], [session.nodes.by_name["n1"]])
    expected = []
    for candidate in candidates:
        mark = len(statement)
        statement.evict(candidate, "reclaim")
        anew = Drf(hierarchy=True)
        session.changed.everything = True
        anew.open(session)
        assert candidate.job is not None
        ours, theirs = (anew.queue_order(session.queues[name]) for name in ("q0", candidate.job.queue))
        depth = min(len(ours), len(theirs))
        if ours[:depth] < theirs[:depth]:
            expected.append(candidate)
        else:
            statement.rollback(mark)
    assert [one.name for one in victims or []] == [one.name for one in expected]
