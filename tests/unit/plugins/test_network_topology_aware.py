"""The network-topology-aware plugin: vectors, and their effect in sessions."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from capcard_sched.model.intents import AnnotatePodGroup
from capcard_sched.testing import Harness, hooks_of

CONF = """
actions: "allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: network-topology-aware%s}]
"""
SOFT = {"mode": "soft", "highestTierAllowed": 3}


def world(arguments: str = "", *, tiers: int = 3, cpu: str = "8") -> Harness:
    """Leaves s0 to s3 of two nodes each; s0 and s1 under t0, s2 and s3 under t1; all under u, as far as tiers go."""
    h = Harness(CONF % arguments)
    h.queue("q")
    for leaf in range(4):
        names = [f"n{leaf}a", f"n{leaf}b"]
        for name in names:
            h.node(name, cpu=cpu)
        h.hyper_node(f"s{leaf}", 1, nodes=names)
    if tiers > 1:
        h.hyper_node("t0", 2, hyper_nodes=["s0", "s1"])
        h.hyper_node("t1", 2, hyper_nodes=["s2", "s3"])
    if tiers > 2:
        h.hyper_node("u", 3, hyper_nodes=["t0", "t1"])
    return h


def scores(h: Harness, pod: str = "next") -> dict[str, float] | None:
    """The plugin's scores of all nodes for a pending pod; None without any."""
    session = h.session()
    task = h.task(pod)
    assert task.job is not None
    signature = session.engine.signature(session.queues[task.job.queue], task)
    found = hooks_of(h.plugin("network-topology-aware"), signature).comparing_scores(session.all_rows())
    return None if found is None else dict(zip(session.nodes.names, found.tolist(), strict=True))


def compared(plugin: Any, signature: PodSignature, rows: NodeView) -> list[float]:
    found = hooks_of(plugin, signature).comparing_scores(rows)
    assert found is not None
    scores: list[float] = found.tolist()
    return scores


def job_on(h: Harness, *nodes: str, pending: int = 1) -> None:
    """A job in soft mode with pods on these nodes, and some that wait; `next` is the first of them."""
    h.group("g", topology=SOFT, min_member=1)
    for index, node in enumerate(nodes):
        h.pod(f"on-{index}", node=node, phase="Running")
    h.pod("next")
    for index in range(pending - 1):
        h.pod(f"after-{index}")


@pytest.mark.parametrize(
    ("node", "score"),
    [
        pytest.param("n0b", 100.0, id="22.1-tier-1"),
        pytest.param("n1a", 50.0, id="22.1-tier-2"),
        pytest.param("n2a", 0.0, id="22.1-tier-3"),
        pytest.param("outside", 0.0, id="22.1-unknown"),
    ],
)
def test_the_lower_the_common_tier_the_better(node: str, score: float) -> None:
    h = world()
    h.node("outside")
    h.node("n0a", unschedulable=True)
    job_on(h, "n0a")
    session = h.session()
    task = h.task("next")
    signature = session.engine.signature(session.queues["q"], task)
    one = session.rows(session.nodes.by_name[node].row + session.all_rows().rows[:1] * 0)
    assert compared(h.plugin("network-topology-aware"), signature, one) == [score]


@pytest.mark.parametrize(
    ("weight", "tiers", "placed", "pending", "expected"),
    [
        pytest.param(1, 3, ("single",), 1, {"single": 100.0, "n0a": 0.0, "n3b": 0.0}, id="22.2-same-hypernode"),
        pytest.param(
            1, 3, ("n0a", "n0a"), 2, {"n0a": 150.0, "n0b": 150.0, "n1a": 50.0, "n2b": 0.0}, id="22.3-several-best-nodes"
        ),
        pytest.param(10, 3, ("single", "single"), 2, {"single": 1000.0}, id="22.4-one-best-node"),
        pytest.param(
            1,
            1,
            ("n0a", "n0b"),
            2,
            {"n0a": 150.0, "n0b": 150.0, "n1a": 0.0, "n2b": 0.0, "n3a": 0.0},
            id="22.5-one-tier",
        ),
    ],
)
def test_the_best_nodes_count_by_the_pods_there(
    weight: int, tiers: int, placed: tuple[str, ...], pending: int, expected: dict[str, float]
) -> None:
    h = world(f", arguments: {{weight: {weight}}}", tiers=tiers)
    h.hyper_node("alone", 1, nodes=["single"])
    h.node("single")
    job_on(h, *placed, pending=pending)
    found = scores(h)
    assert found is not None
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("weight", ["0", "1"])
def test_the_first_pod_and_jobs_without_topology_are_not_scored(weight: str) -> None:
    h = world(f", arguments: {{weight: {weight}}}")
    job_on(h)
    assert scores(h) is None
    h = world(f", arguments: {{weight: {weight}, hypernode.binpack.normal-pod.enable: false}}")
    h.group("plain")
    h.pod("on", group="plain", node="n0a", phase="Running")
    h.pod("next", group="plain")
    assert scores(h) is None


# --- sessions -------------------------------------------------------------------------------------------------------


def test_without_the_plugin_they_would_not() -> None:
    h = world(cpu="2")
    h.reconfigure((CONF % "").replace("network-topology-aware", "nodeorder"))
    h.group("g", min_member=6, topology=SOFT)
    for index in range(6):
        h.pod(f"p{index}")
    h.step()
    assert len(set(h.binds.values())) == 6


# --- filling up -------------------------------------------------------------------------------------------------------


def normal(h: Harness, **requests: str) -> None:
    """A pod without a topology."""
    h.group("plain")
    h.pod("next", group="plain", requests=requests or {"cpu": "2"})


def only_cpu(more: str = "") -> str:
    return f", arguments: {{hypernode.binpack.memory: 0{more}}}"


@pytest.mark.parametrize(("fading", "second"), [("0", 0.0), ("0.5", 0.5), ("1", 1.0)])
def test_fading_is_the_factor_of_each_further_tier(fading: str, second: float) -> None:
    h = world(only_cpu(f", hypernode.binpack.normal-pod.fading: {fading}"), tiers=2)
    h.pod("old", group=None, node="n0a", requests={"cpu": "4"})
    normal(h)
    found = scores(h)
    assert found is not None
    assert found["n1a"] == pytest.approx(100 * (2 / 16 + second * 6 / 32) / (1 + second))


def test_usage_is_counted_incrementally() -> None:
    h = world(only_cpu(), tiers=1)
    normal(h)
    session = h.session()
    plugin = h.plugin("network-topology-aware")
    task = h.task("next")
    signature = session.engine.signature(session.queues["q"], task)
    before = compared(plugin, signature, session.all_rows())
    statement = Statement(session)
    statement.allocate(h.job("plain"), [task], [session.nodes.by_name["n2a"]])
    after = dict(zip(session.nodes.names, compared(plugin, signature, session.all_rows()), strict=True))
    assert (after["n2b"], after["n0a"]) == (25.0, 12.5)
    statement.discard()
    assert compared(plugin, signature, session.all_rows()) == before


# --- annotations ----------------------------------------------------------------------------------------------------


def written(h: Harness) -> list[dict[str, str | None]]:
    return [intent.annotations for intent in h.step().intents if isinstance(intent, AnnotatePodGroup)]


def test_the_hypernode_of_a_job_is_written_on_its_group() -> None:
    h = world(cpu="2")
    h.group("g", min_member=2, topology=SOFT)
    for index in range(2):
        h.pod(f"p{index}", requests={"cpu": "2"})
    assert written(h) == [{JOB_ALLOCATED_HYPERNODE: "s0"}]
    h.pod("p2", requests={"cpu": "2"})
    assert written(h) == [{JOB_ALLOCATED_HYPERNODE: "t0"}]
    assert written(h) == []


def test_w47_a_change_of_the_annotation_alone_is_saved() -> None:
    h = world()
    h.group("g", min_member=1, phase="Running", topology=SOFT, annotations={JOB_ALLOCATED_HYPERNODE: "s3"})
    h.pod("p", node="n1a", phase="Running")
    assert written(h) == [{JOB_ALLOCATED_HYPERNODE: "s1"}]


def test_nothing_is_written_on_groups_without_topology_or_placed_pods() -> None:
    h = world()
    h.group("g", min_member=1)
    h.pod("p", node="n1a", phase="Running")
    h.group("empty", min_member=1, topology=SOFT, annotations={JOB_ALLOCATED_HYPERNODE: "s3"})
    assert written(h) == []
