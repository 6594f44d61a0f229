"""Gangs in hard mode: which HyperNode they get, what they wait for, and that they leave no trace of trying."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from capcard_sched.model.intents import AnnotatePodGroup
from capcard_sched.testing import Harness

CONF = """
actions: "%s"
tiers:
- plugins: [{name: priority}, {name: gang%s}]
- plugins: [{name: predicates}, {name: nodeorder}%s]
"""


def conf(*plugins: str, actions: str = "allocate, backfill", gang: str = "") -> str:
    return CONF % (actions, gang, "".join(f", {{name: {plugin}}}" for plugin in plugins))


def hard(tier: int | None = None) -> dict[str, Any]:
    return {"mode": "hard"} if tier is None else {"mode": "hard", "highestTierAllowed": tier}


def cluster(h: Harness, *, leaves: int = 4, per_leaf: int = 4, cpu: str = "2") -> None:
    """Leaves of equal nodes; two leaves to a spine, all spines in one core. Leaf i has nodes `<i>-0` and so on."""
    h.queue("q")
    for leaf in range(leaves):
        names = [f"{leaf}-{index}" for index in range(per_leaf)]
        for name in names:
            h.node(name, cpu=cpu)
        h.hyper_node(f"leaf{leaf}", 1, nodes=names)
    for spine in range(leaves // 2):
        h.hyper_node(f"spine{spine}", 2, hyper_nodes=[f"leaf{2 * spine}", f"leaf{2 * spine + 1}"], tier_name="spine")
    h.hyper_node("core", 3, hyper_nodes=[f"spine{spine}" for spine in range(leaves // 2)])


def gang(h: Harness, name: str, pods: int, *, minimum: int | None = None, cpu: str = "1", **more: Any) -> None:
    h.group(name, min_member=pods if minimum is None else minimum, **more)
    for index in range(pods):
        h.pod(f"{name}-{index}", group=name, requests={"cpu": cpu})


def leaves_of(h: Harness, name: str) -> set[str]:
    return {node.partition("-")[0] for pod, node in h.binds.items() if pod.startswith(f"{name}-")}


def world(*plugins: str, **more: Any) -> Harness:
    h = Harness(conf(*plugins), **more)
    cluster(h)
    return h


# --- which HyperNode --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugins", [(), ("network-topology-aware",)], ids=["without-the-plugin", "with-it"])
def test_a_gang_goes_into_one_leaf_and_the_next_into_another(plugins: tuple[str, ...]) -> None:
    h = world(*plugins)
    for name in ("a", "b"):
        gang(h, name, 8, topology=hard(1))
        h.step()
    assert (len(h.binds), leaves_of(h, "a"), leaves_of(h, "b")) == (16, {"0"}, {"1"})


@pytest.mark.parametrize("plugins", [(), ("network-topology-aware",)], ids=["without-the-plugin", "with-it"])
def test_a_gang_too_big_for_a_leaf_goes_into_the_lowest_allowed_tier_that_holds_it(plugins: tuple[str, ...]) -> None:
    h = world(*plugins)
    gang(h, "small", 2, topology=hard(1))
    h.step()
    gang(h, "big", 15, topology=hard(3))
    result = h.step()
    assert leaves_of(h, "big") == {"2", "3"}, "spine0 has room for 14"
    (note,) = [intent for intent in result.intents if isinstance(intent, AnnotatePodGroup)]
    assert (note.name, note.annotations) == ("big", {JOB_ALLOCATED_HYPERNODE: "spine1"})


@pytest.mark.parametrize("plugins", [(), ("network-topology-aware",)], ids=["without-the-plugin", "with-it"])
def test_a_later_pod_stays_within_the_tier_of_its_job(plugins: tuple[str, ...]) -> None:
    h = world(*plugins)
    gang(h, "g", 8, topology=hard(2))
    h.step()
    gang(h, "other", 7, topology=hard(1))
    h.step()
    assert (leaves_of(h, "g"), leaves_of(h, "other")) == ({"0"}, {"1"})
    for index in range(8, 10):
        h.pod(f"g-{index}", group="g", requests={"cpu": "1"})
    h.step()
    assert h.binds["g-8"].startswith("1-")
    assert "g-9" not in h.binds, "leaves 2 and 3 are empty, and too far"
    assert h.pod_message("g-9") == "HyperNode leaf1: 0/4 nodes are unavailable: 4 Insufficient cpu."
    h.pod("g-10", group="g", requests={"cpu": "1"})
    h.step()
    none = "no HyperNode up to tier 2 fits 1 pods of the job: none of them fits anywhere"
    assert (h.pod_message("g-9"), h.pod_message("g-10")) == (none, none)


def test_releasing_capacity_is_pipelined_only_when_no_tier_fits() -> None:
    h = world()
    for leaf in range(4):
        for index in range(4):
            h.pod(f"old-{leaf}-{index}", group=None, node=f"{leaf}-{index}", phase="Running", requests={"cpu": "1"})
    for index in range(4):
        h.terminate(f"old-3-{index}")
    gang(h, "g", 8, topology=hard(1))
    result = h.step()
    assert not h.binds
    assert {task.name for task in h.job("g").tasks.values() if task.node is not None} == set()
    assert h.pod_message("g-7").startswith("Pod default/g-7 can possibly be assigned to 3-")
    assert "once resource is released" in h.pod_message("g-7")
    assert not result.report.errors
    gang(h, "wide", 8, topology=hard(2))
    h.step()
    assert leaves_of(h, "wide") == {"0", "1"}, "room now at tier 2 before room later at tier 1"


# --- scores of plugins ------------------------------------------------------------------------------------------------


class Taste(Plugin):
    """Prefers some HyperNodes and records the calls."""

    name = "taste"
    likes: dict[str, float] = {}
    scored: list[tuple[str, ...]] = []

    def hyper_node_order(self, job: Any, candidates: Any) -> Any:
        type(self).scored.append(tuple(one.name for one in candidates))
        for one in candidates:
            assert len(one.rows) == 4**one.tier or one.tier != 1
        return np.array([self.likes.get(one.name, 0.0) for one in candidates])


class OtherTaste(Taste):
    name = "other-taste"


class Broken(Plugin):
    name = "broken"

    def hyper_node_order(self, job: Any, candidates: Any) -> Any:
        raise ValueError("no idea")


def tasting(likes: dict[str, float], *, text: str = "") -> Harness:
    Taste.likes, Taste.scored = likes, []
    h = Harness(text or conf("taste", "other-taste"), plugins=[Taste, OtherTaste, Broken])
    cluster(h)
    return h


def test_the_scores_of_plugins_for_hyper_nodes_add_up() -> None:
    h = tasting({"leaf1": 3.0, "leaf2": 5.0})
    gang(h, "g", 8, topology=hard(1))
    h.step()
    assert leaves_of(h, "g") == {"2"}
    assert Taste.scored == [("leaf0", "leaf1", "leaf2", "leaf3")] * 2, "once each"


def test_only_feasible_hyper_nodes_are_scored_and_a_single_one_is_not() -> None:
    h = tasting({"leaf0": 9.0})
    h.pod("old", group=None, node="0-0", phase="Running")
    h.pod("old2", group=None, node="1-0", phase="Running")
    gang(h, "g", 8, topology=hard(1))
    gang(h, "f", 8, topology=hard(1))
    h.step()
    assert leaves_of(h, "g") == {"2"}
    assert leaves_of(h, "f") == {"3"}, "the last with room"
    assert set(Taste.scored) == {("leaf2", "leaf3")}


def test_the_switch_turns_the_scores_for_hyper_nodes_off() -> None:
    text = conf("taste").replace("{name: taste}", "{name: taste, enabledHyperNodeOrder: false}")
    h = tasting({"leaf2": 5.0}, text=text)
    gang(h, "g", 8, topology=hard(1))
    h.step()
    assert (leaves_of(h, "g"), Taste.scored) == ({"0"}, [])


def test_a_plugin_that_fails_over_hyper_nodes_skips_its_job_and_affects_no_other() -> None:
    h = tasting({}, text=conf("broken"))
    gang(h, "g", 8, topology=hard(1))
    gang(h, "plain", 2)
    result = h.step()
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("broken", "hyper_node_order")]
    assert set(h.binds) == {"plain-0", "plain-1"}
    assert (h.state.nodes.used >= 0).all()


def test_the_scores_of_nodes_decide_between_hyper_nodes() -> None:
    h = Harness(conf("binpack").replace("nodeorder", "conformance"))
    cluster(h)
    h.pod("old", group=None, node="2-0", phase="Running", requests={"cpu": "1"})
    gang(h, "g", 3, topology=hard(1))
    h.step()
    assert leaves_of(h, "g") == {"2"}, "where nodes are fuller"


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_quota_refusal_is_reported_as_such_and_checked_once() -> None:
    h = Harness(conf("capacity"))
    cluster(h)
    h.queue("q", capability={"cpu": "2"})
    gang(h, "g", 3, topology=hard(3))
    result = h.step()
    assert not h.binds
    assert h.pod_message("g-0").endswith("once minAvailable is satisfied")
    assert h.pod_message("g-2") == "queue resource quota insufficient: insufficient cpu"
    assert [ref.name for ref, _ in result.report.refusals] == ["g-2"]
    gang(h, "f", 4, minimum=2, topology=hard(1))
    for _ in range(3):
        h.step()
        h.group("f", min_member=2, topology=hard(1), labels={"seen": str(h.now)})
    assert set(h.binds) == {"f-0", "f-1"}
    assert h.last_session.report.visited_jobs == 2, "g and f once each"
    assert h.pod_message("f-2") == h.pod_message("f-3") == "queue resource quota insufficient: insufficient cpu"


# --- no trace ---------------------------------------------------------------------------------------------------------


def test_trying_leaves_no_trace() -> None:
    h = world()
    h.step()
    gang(h, "g", 33, topology=hard(3))
    result = h.step()
    assert not h.binds
    assert (h.state.nodes.used == 0).all()
    assert (h.state.nodes.pipelined == 0).all()
    assert len(h.job("g").pending) == 33
    assert not result.report.errors
