"""The delta store delivers every difference, and none twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.decode import UndecodableObject
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS, WatchedKind, chosen_kinds
from capcard_sched.kube.reflector import DeltaStore
from capcard_sched.model import deltas
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.objects import NodeObject, ObjectMeta, PodObject
from capcard_sched.state.cluster import ClusterState
from tests import objects
from tests.kube.read.mirror import Ears

POD, NODE = (next(kind for kind in KINDS if kind.name == name) for name in ("Pod", "Node"))


def pod(namespace: str, name: str, phase: str = "Pending", **more: Any) -> PodObject:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", **more.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}, **more}, PodObject)


class Reported(dict[tuple[str, str], str]):
    """The view of a listener: namespace and name of each pod to its phase."""

    def take(self, out: list[Delta]) -> None:
        for delta in out:
            match delta:
                case deltas.ObjectChanged(PodObject() as pod):
                    key = (pod.metadata.namespace or "", pod.metadata.name)
                    assert self.get(key) != pod.status.phase, "a delta of a known object"
                    self[key] = pod.status.phase or ""
                case deltas.ObjectGone("Pod", namespace, name):
                    del self[namespace, name]  # KeyError: a deletion of an object that was never added
                case _:
                    pytest.fail(f"unexpected {delta}")


KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))
PHASES = st.sampled_from(["Pending", "Running", "Failed"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, PHASES),
        st.tuples(st.just("delete"), KEYS),
        # While there was no watch: the current objects, and after how many items the list broke off (None: not).
        st.tuples(st.just("list"), st.dictionaries(KEYS, PHASES), st.none() | st.integers(0, 4)),
    ),
    max_size=25,
)


@given(STEPS)
def test_a_listener_matches_the_truth_and_gets_no_delta_twice(steps: list[Any]) -> None:
    known, reported = DeltaStore(POD, Observer()), Reported()
    truth: dict[tuple[str, str], str] = {}
    behind = False
    for step in steps:
        out: list[Delta] = []
        match step:
            case ("set", key, phase):
                truth[key] = phase
                known.changed(pod(key[0], key[1], phase), out)
            case ("delete", key):
                truth.pop(key, None)
                known.gone(pod(key[0], key[1]).metadata, out)
            case ("list", now, None):
                truth, behind = dict(now), False
                known.begin_list()
                known.items([pod(space, name, phase) for (space, name), phase in now.items()], out)
                known.end_list(out)
            case ("list", now, count):
                truth, behind = dict(now), True
                known.begin_list()
                known.items([pod(space, name, phase) for (space, name), phase in list(now.items())[:count]], out)
                known.abort_list()
        reported.take(out)
        assert behind or reported == truth
        assert len(known) == len(reported)


@pytest.mark.parametrize(
    ("change", "emitted"),
    [
        ({"metadata": {"resourceVersion": "2"}}, False),
        ({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}}, False),
        ({"metadata": {"uid": "another"}}, True),
        ({"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
        ({"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}}, True),
        ({"spec": {"nodeName": "n"}}, True),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, True),
        ({"status": {"phase": "Pending", "nominatedNodeName": "n"}}, True),
    ],
    ids=str,
)
def test_only_changes_of_fields_that_the_scheduler_reads_are_emitted(change: dict[str, Any], emitted: bool) -> None:
    known, out = DeltaStore(POD, Observer()), list[Delta]()
    known.changed(pod("a", "x"), out)
    known.changed(pod("a", "x", **change), out)
    assert len(out) == 1 + emitted


def test_heartbeats_of_a_node_are_dropped() -> None:
    known, out = DeltaStore(NODE, Observer()), list[Delta]()
    for beat in range(3):
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-11-21T10:00:0{beat}Z"}
        meta = {"name": "n", "resourceVersion": str(beat)}
        known.changed(msgspec.convert({"metadata": meta, "status": {"conditions": [ready]}}, NodeObject), out)
    assert len(out) == 1


def node(name: str, resource_version: str = "1", **labels: str) -> NodeObject:
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels, "resourceVersion": resource_version}}, NodeObject
    )


def _node_kind(*selector: tuple[str, str]) -> WatchedKind[Any]:
    return next(kind for kind in chosen_kinds(node_selector=selector) if kind.name == "Node")


def test_a_node_that_no_longer_matches_the_selector_is_gone() -> None:
    kind = _node_kind(("zone", "a"), ("pool", "gpu"))
    known, out = DeltaStore(kind, Observer()), list[Delta]()
    known.changed(node("n", zone="b"), out)
    assert out == []
    known.changed(node("n", zone="a"), out)
    known.changed(node("n", zone="c"), out)
    known.changed(node("n", zone="d"), out)
    known.changed(node("n", pool="gpu"), out)
    assert [objects.change_of(delta) for delta in out] == ["NodeChanged", "NodeGone", "NodeChanged"]
    known.begin_list()
    known.items([node("n", zone="b")], out)
    known.end_list(out)
    assert out[3:] == [deltas.ObjectGone("Node", "", "n")], "also in a list"


def test_flags_choose_kinds() -> None:
    assert [kind.name for kind in chosen_kinds(provisioning=True)] == [kind.name for kind in KINDS]
    assert {kind.name for kind in KINDS} - {kind.name for kind in chosen_kinds()} == {"ProvisioningRequest"}
    assert "PriorityClass" not in [kind.name for kind in chosen_kinds(priority_classes=False)]
    assert {kind.name for kind in KINDS if kind.required} == {"Node", "Pod", "PodGroup", "Queue"}


def test_an_unreadable_object_is_reported_once_per_problem_and_emitted_when_fixed() -> None:
    problems = Ears()
    known, out = DeltaStore(NODE, problems), list[Delta]()
    known.changed(node("n"), out)
    for problem in ("spec: bad", "spec: bad", "status: bad"):
        known.undecodable(UndecodableObject("MODIFIED", ObjectMeta(name="n"), problem), out)
    known.changed(node("n"), out)
    assert problems.watches == [
        ("nodes", "undecodable", "Node n: spec: bad"),
        ("nodes", "undecodable", "Node n: status: bad"),
    ]
    assert out[0] == out[-1] == deltas.ObjectChanged(node("n"))
    assert len(out) == 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_unreadable_object_gets_an_event_where_events_can_be_written(kind: WatchedKind[Any]) -> None:
    namespace = "a" if KIND_BY_NAME[kind.name].namespaced else None
    meta = ObjectMeta(name="x", namespace=namespace, uid="u")
    reported = kind.undecodable(meta, "spec: bad", "n")
    if reported is None:
        assert not kind.explained
        return
    assert isinstance(reported, deltas.ObjectUnreadable)
    assert (reported.object.kind, reported.object.name, reported.object.uid) == (kind.name, "x", "u")
    assert msgspec.convert(msgspec.to_builtins(reported.object), ObjectRef) == reported.object, (
        "a kind that a ref may have"
    )
    state = ClusterState(("capcard-sched",), "default")
    state.apply(reported)
    assert state.problems == {reported.object: "spec: bad"}
    state.apply(kind.gone(meta))
    assert state.problems == {}


def test_rows_of_the_kind_table_name_the_deleted_object() -> None:
    meta = ObjectMeta(name="x", namespace="a", uid="u")
    assert POD.gone(meta) == deltas.ObjectGone("Pod", "a", "x", "u")
    assert NODE.gone(ObjectMeta(name="x", uid="u")) == deltas.ObjectGone("Node", "", "x", "u")
    assert {kind.resource for kind in KINDS} >= {"pods", "nodes", "podgroups", "queues", "csinodes"}
