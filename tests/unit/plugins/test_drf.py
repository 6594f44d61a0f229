"""DRF and its hierarchy."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
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
