"""The example plugin of docs/hooks.md, loaded from its folder."""

from __future__ import annotations

from pathlib import Path

from capcard_sched.framework.conf.registry import Registry
from tests.vectors.notation import VectorHarness

FOLDER = Path(__file__).parents[3] / "docs" / "example_plugin"
CONF = 'actions: "allocate"\ntiers: [{plugins: [{name: gang}, {name: racks}]}]'


def _harness() -> VectorHarness:
    plugin = Registry.load(FOLDER).plugin("racks")
    assert plugin is not None
    h = VectorHarness(CONF, plugins=[plugin])
    for name, rack, repair in (("n0", "a", "yes"), ("n1", "a", "no"), ("n2", "b", "no"), ("n3", "b", "no")):
        h.node(name, cpu="4", labels={"rack": rack, "repair": repair})
    h.do("queue q; pod -/other @n3 cpu=1 scheduler=other")
    return h


def test_pods_of_a_spread_job_go_to_fuller_nodes_of_different_racks_and_none_to_a_node_under_repair() -> None:
    h = _harness()
    h.do("group g min=2; pod p0..2 cpu=1 labels=spread:racks")
    h.step()
    assert h.binds == {"p0": "n3", "p1": "n1"}
    reasons = "1 node(s) were under repair, 3 node(s) were in a rack of the job"
    assert f"0/4 nodes are unavailable: {reasons}." in h.pod_message("p2")


def test_pods_of_other_jobs_fill_nodes_one_after_the_other() -> None:
    h = _harness()
    h.do("group g min=4; pod p0..3 cpu=1")
    h.step()
    assert list(h.binds.values()) == ["n3", "n3", "n3", "n1"]


def test_the_example_has_at_most_forty_lines() -> None:
    assert len((FOLDER / "racks.py").read_text().splitlines()) <= 40
