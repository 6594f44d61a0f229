"""Load of simulated nodes: an annotation instead of a measurement."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.objects import JsonObject
from capcard_sched.model.annotations import SIMULATION_USAGE
from capcard_sched.model.deltas import Delta, NodeUsageChanged, NodeUsageGone, ObjectGone
from capcard_sched.model.usage import NodeUsage
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.kinds import NODE
from capcard_sched.simulation.store import Store, StoreWatch
from capcard_sched.validation.structure import check_object
from tests.objects import change_of


def _node(load: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": NODE, "metadata": {"name": "n", "annotations": {SIMULATION_USAGE: load}}}


def _watched(load: str) -> tuple[Store, StoreWatch]:
    """A store with a node of this load, and its deltas."""
    store = SimulatedCluster(("capcard-sched",), "default").store
    feed = StoreWatch(store)
    store.observe(feed.observe)
    store.create(NODE, _node(load))
    return store, feed


def _drained(feed: StoreWatch) -> list[Delta]:
    return [delta for delta in feed.drain() if change_of(delta) != "NodeChanged"]


def test_a_written_load_its_changes_and_its_end_are_each_emitted_once() -> None:
    store, feed = _watched("cpu=80,memory=50")
    assert _drained(feed) == [NodeUsageChanged({"n": NodeUsage(80.0, 50.0)})]
    store.patch(NODE, "", "n", {"metadata": {"labels": {"a": "b"}}})
    assert _drained(feed) == []
    store.patch(NODE, "", "n", {"metadata": {"annotations": {SIMULATION_USAGE: "cpu=10"}}})
    assert _drained(feed) == [NodeUsageChanged({"n": NodeUsage(10.0)})]
    store.patch(NODE, "", "n", {"metadata": {"annotations": {SIMULATION_USAGE: None}}})
    assert _drained(feed) == [NodeUsageGone("n")]


def test_the_load_of_a_node_goes_with_it() -> None:
    store, feed = _watched("cpu=80")
    feed.drain()
    uid = store.get(NODE, "", "n")["metadata"]["uid"]  # type: ignore[index]
    store.delete(NODE, "", "n")
    assert sorted(feed.drain(), key=lambda delta: type(delta).__name__) == [
        NodeUsageGone("n"),
        ObjectGone("Node", "", "n", uid),
    ]


@pytest.mark.parametrize("load", ["80", "cpu=80%", "cpu=200", "gpu=1", ""])
def test_a_malformed_load_is_reported_with_its_place_and_the_accepted_form(load: str) -> None:
    (problem,) = check_object(NODE, _node(load))
    assert problem.field == f'metadata.annotations["{SIMULATION_USAGE}"]'
    assert 'expected "cpu=80,memory=50" in percent from 0 to 100' in problem.message
