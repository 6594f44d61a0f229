"""Scores of plugins for HyperNodes; tests/vectors/framework-topology-search.yaml has the search for one."""

from __future__ import annotations

from typing import Any

import numpy as np

from capcard_sched.framework.api.plugin import Plugin
from tests.vectors.notation import VectorHarness

CONF = """
actions: "allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}]}, {plugins: [{name: predicates}, {name: nodeorder}, %s]}]
"""


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


def _tasting(plugins: str = "{name: taste}, {name: other-taste}", **likes: float) -> VectorHarness:
    """Four leaves of four nodes, each for two of the eight pods of gang g."""
    Taste.likes, Taste.scored = likes, []
    h = VectorHarness(CONF % plugins, plugins=[Taste, OtherTaste, Broken])
    for leaf in range(4):
        names = [f"{leaf}-{index}" for index in range(4)]
        h.do(f"node {leaf}-0..3 cpu=2; hyper_node leaf{leaf} 1 nodes={names}")
    h.do("queue q; group g min=8 topology=mode:hard,highestTierAllowed:1; pod g-0..7 cpu=1")
    return h


def _leaves(h: VectorHarness, name: str = "g") -> set[str]:
    return {node.partition("-")[0] for pod, node in h.binds.items() if pod.startswith(f"{name}-")}


def test_the_scores_of_plugins_for_hyper_nodes_add_up() -> None:
    h = _tasting(leaf1=3.0, leaf2=5.0)
    h.step()
    assert _leaves(h) == {"2"}
    assert Taste.scored == [("leaf0", "leaf1", "leaf2", "leaf3")] * 2, "once each"


def test_only_feasible_hyper_nodes_are_scored_and_a_single_one_is_not() -> None:
    h = _tasting(leaf0=9.0)
    h.do("pod -/old @0-0; pod -/old2 @1-0; group f min=8 topology=mode:hard,highestTierAllowed:1; pod f/f-0..7 cpu=1")
    h.step()
    assert (_leaves(h), _leaves(h, "f")) == ({"2"}, {"3"}), "the last with room"
    assert set(Taste.scored) == {("leaf2", "leaf3")}


def test_the_switch_turns_the_scores_for_hyper_nodes_off() -> None:
    h = _tasting("{name: taste, enabledHyperNodeOrder: false}", leaf2=5.0)
    h.step()
    assert (_leaves(h), Taste.scored) == ({"0"}, [])


def test_a_plugin_that_fails_over_hyper_nodes_skips_its_job_and_affects_no_other() -> None:
    h = _tasting("{name: broken}")
    h.do("group plain min=2; pod plain/plain-0..1")
    result = h.step()
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("broken", "hyper_node_order")]
    assert set(h.binds) == {"plain-0", "plain-1"}
    assert (h.state.nodes.used >= 0).all()
