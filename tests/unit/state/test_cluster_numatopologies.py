"""Numatopology objects in the state: facts, problems, and the classes of their pods."""

from __future__ import annotations

from typing import Any

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.testing import Harness


def _changed(name: str = "n", **spec: Any) -> deltas.ObjectChanged:
    body = {"cpuDetail": {"0": {}, "1": {"core": 1}}, "numares": {"cpu": {"allocatable": "0-1"}}, **spec}
    obj = {"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": body}
    return deltas.ObjectChanged(msgspec.convert(obj, NumatopologyObject))


def test_an_object_stays_until_it_is_deleted_and_only_a_difference_is_a_change() -> None:
    state = Harness().state
    state.apply(_changed())
    assert state.numa["n"].free == 0b11
    assert state.changes.drain().numa == {"n"}
    known = state.numa["n"]
    state.apply(_changed())
    assert state.numa["n"] is known
    assert state.changes.drain().numa == set()
    state.apply(_changed(numares={"cpu": {"allocatable": "1"}}))
    assert (state.numa["n"].free, state.changes.drain().numa) == (0b10, {"n"})
    state.apply(deltas.ObjectGone("Numatopology", "", "n"))
    assert (state.numa, state.changes.drain().numa) == ({}, {"n"})
    state.apply(deltas.ObjectGone("Numatopology", "", "n"))
    assert state.changes.drain().numa == set()


def test_equal_machines_share_their_topology() -> None:
    state = Harness().state
    state.apply(_changed("a"))
    state.apply(_changed("b"))
    assert state.numa["a"].topology is state.numa["b"].topology
    for number in range(3, 300):
        state.apply(_changed("a", cpuDetail={str(cpu): {"core": cpu} for cpu in range(number)}))
    assert len(state._tables.numa._topologies) < 100, "those that no node has are forgotten"
    state.apply(_changed("a"))
    assert state.numa["a"].topology is state.numa["b"].topology


def test_an_invalid_object_leaves_no_facts_and_has_an_event() -> None:
    h = Harness()
    h.apply(_changed())
    h.step()
    h.apply(_changed(cpuDetail=None))
    h.step()
    assert h.state.numa == {}
    form = "a map of CPU number to numa, socket and core"
    assert h.event_messages("Numatopology", "n") == [("InvalidObject", f"spec.cpuDetail: is missing: expected {form}")]
    h.step()
    assert len(h.event_messages("Numatopology", "n")) == 1
    h.apply(_changed())
    h.step()
    assert (h.state.problems, set(h.state.numa)) == ({}, {"n"})


def test_an_undecodable_object_keeps_its_last_known_facts_until_it_is_deleted() -> None:
    h = Harness()
    h.apply(_changed(), deltas.ObjectUnreadable(ObjectRef("Numatopology", "", "n", "n-uid"), "spec.numares: bad"))
    h.step()
    assert set(h.state.numa) == {"n"}
    assert h.event_messages("Numatopology", "n") == [("InvalidObject", "spec.numares: bad")]
    h.apply(deltas.ObjectGone("Numatopology", "", "n"))
    h.step()
    assert (h.state.numa, h.state.problems) == ({}, {})


def test_pods_that_get_cpus_of_their_own_are_a_class_of_their_own() -> None:
    h = Harness()
    amounts = {"cpu": "2", "memory": "1Gi"}
    h.pod("a", requests=amounts, limits=amounts)
    h.pod("b", requests=amounts, limits=amounts)
    h.pod("c", requests=amounts, limits={"cpu": "2", "memory": "2Gi"})
    parts = [{"name": name, "resources": {"limits": {"cpu": "1", "memory": "512Mi"}}} for name in "xy"]
    h.pod("d", containers=parts)
    h.step()
    assert h.task("a").cls is h.task("b").cls
    assert [h.task(name).cls.own_cpus for name in "acd"] == [(("main", 2),), None, (("x", 1), ("y", 1))]
