"""Load of simulated nodes: an annotation instead of a measurement."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.objects import JsonObject
from capcard_sched.model.annotations import SIMULATION_USAGE
from capcard_sched.model.deltas import Delta, NodeUsageChanged, NodeUsageGone, ObjectGone
from capcard_sched.model.usage import NodeUsage
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.kinds import NODE
from capcard_sched.simulation.watch import StoreWatch
from capcard_sched.validation.structure import check_object
from tests.objects import change_of


def _node(load: str | None) -> JsonObject:
    notes = {} if load is None else {SIMULATION_USAGE: load}
    return {"apiVersion": "v1", "kind": NODE, "metadata": {"name": "n", "annotations": notes}}


def _drained(feed: StoreWatch) -> list[Delta]:
    return [delta for delta in feed.drain() if change_of(delta) != "NodeChanged"]


def test_a_written_load_its_changes_and_its_end_are_each_emitted_once() -> None:
    cluster = SimulatedCluster(("capcard-sched",), "default")
    feed = StoreWatch(cluster.store)
    cluster.store.observe(feed.observe)
    cluster.store.create(NODE, _node("cpu=80,memory=50"))
    assert _drained(feed) == [NodeUsageChanged({"n": NodeUsage(80.0, 50.0)})]
    cluster.store.patch(NODE, "", "n", {"metadata": {"labels": {"a": "b"}}})
    assert _drained(feed) == []
    cluster.store.patch(NODE, "", "n", {"metadata": {"annotations": {SIMULATION_USAGE: "cpu=10"}}})
    assert _drained(feed) == [NodeUsageChanged({"n": NodeUsage(10.0)})]
    cluster.store.patch(NODE, "", "n", {"metadata": {"annotations": {SIMULATION_USAGE: None}}})
    assert _drained(feed) == [NodeUsageGone("n")]


def test_the_load_of_a_node_goes_with_it() -> None:
    cluster = SimulatedCluster(("capcard-sched",), "default")
    feed = StoreWatch(cluster.store)
    cluster.store.observe(feed.observe)
    cluster.store.create(NODE, _node("cpu=80"))
    feed.drain()
    uid = cluster.store.get(NODE, "", "n")["metadata"]["uid"]  # type: ignore[index]
    cluster.store.delete(NODE, "", "n")
    assert sorted(feed.drain(), key=lambda delta: type(delta).__name__) == [
        NodeUsageGone("n"),
        ObjectGone("Node", "", "n", uid),
    ]


@pytest.mark.parametrize("load", ["80", "cpu=80%", "cpu=200", "gpu=1", ""])
def test_a_malformed_load_is_reported_with_its_place_and_the_accepted_form(load: str) -> None:
    (problem,) = check_object(NODE, _node(load))
    assert problem.field == f'metadata.annotations["{SIMULATION_USAGE}"]'
    assert 'expected "cpu=80,memory=50" in percent from 0 to 100' in problem.message
