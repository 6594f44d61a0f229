"""Namespaces, quotas and budgets in the state: what is kept, and what is a reason for a session."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.namespace_queues import NamespaceQueueObject
from capcard_sched.model.objects import QueueObject
from capcard_sched.state.cluster import ClusterState
from tests import objects


def fresh() -> ClusterState:
    state = ClusterState(("ours",), "default")
    state.open_session()
    return state


def quota(cpu: str, name: str = "q") -> deltas.Delta:
    obj = {"metadata": {"name": name, "namespace": "ns"}, "spec": {"hard": {"cpu": cpu}}}
    return deltas.ObjectChanged(msgspec.convert(obj, ResourceQuotaObject))


def budget(allowed: int, name: str = "b", **spec: Any) -> deltas.Delta:
    obj = {
        "metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"disruptionsAllowed": allowed},
    }  # fmt: skip
    return deltas.ObjectChanged(msgspec.convert(obj, PodDisruptionBudgetObject))


@pytest.mark.parametrize(
    ("first", "other", "gone", "field"),
    [
        (quota("1"), quota("2"), deltas.ObjectGone("ResourceQuota", "ns", "q"), "quotas"),
        (budget(1), budget(2), deltas.ObjectGone("PodDisruptionBudget", "ns", "b"), "budgets"),
    ],
)
def test_only_a_delta_with_a_difference_is_a_change(
    first: deltas.Delta, other: deltas.Delta, gone: deltas.Delta, field: str
) -> None:
    state = fresh()
    for delta, changed in ((gone, False), (first, True), (first, False), (other, True), (gone, True), (gone, False)):
        state.apply(delta)
        assert not state.changes, "no reason for a session by itself"
        assert getattr(state.open_session(), field) == ({"ns"} if changed else set())
    assert (state.quotas, state.budgets) == ({}, {})


def test_they_are_kept_by_name_in_order() -> None:
    state = fresh()
    for name in ("b", "c", "a"):
        state.apply(quota("1", name))
    assert list(state.quotas["ns"]) == ["a", "b", "c"]
    state.apply(deltas.ObjectGone("ResourceQuota", "ns", "b"))
    assert list(state.quotas["ns"]) == ["a", "c"]


def test_former_labels_of_a_namespace_are_those_of_the_last_session() -> None:
    state = fresh()
    state.apply(objects.namespace("ns", {"a": "1"}))
    state.apply(objects.namespace("ns", {"a": "2"}))
    changed = state.open_session()
    assert changed.namespaces == {"ns": None}
    state.apply(objects.namespace("ns", {"a": "2"}))
    assert state.open_session().namespaces == {}
    state.apply(objects.namespace("ns", {"a": "3"}))
    state.apply(deltas.ObjectGone("Namespace", "", "ns"))
    assert not state.changes
    assert state.open_session().namespaces == {"ns": {"a": "2"}}


def test_allowed_namespaces_and_parents_of_queues_are_a_reason_for_a_session() -> None:
    """They decide whether pods of NamespaceQueues start, whatever else is unchanged."""
    state = fresh()

    def changed(delta: deltas.Delta) -> set[str]:
        state.apply(delta)
        found = set(state.changes.queues)
        state.open_session()
        return found

    def above(*allowed: str) -> deltas.Delta:
        obj = {"metadata": {"name": "q"}, "spec": {"allowedNamespaces": allowed}}
        return deltas.ObjectChanged(msgspec.convert(obj, QueueObject))

    def local(parent: str) -> deltas.Delta:
        obj = {"metadata": {"name": "t", "namespace": "ns"}, "spec": {"parent": parent}}
        return deltas.ObjectChanged(msgspec.convert(obj, NamespaceQueueObject))

    assert changed(above("other")) == {"q"}
    assert changed(local("cluster/q")) == {"ns/t"}
    assert "NamespaceNotAllowed" in state.queues["ns/t"].blocked
    assert changed(above("other")) == set()
    assert changed(above("ns")) == {"q"}
    assert state.queues["ns/t"].blocked == ""
    assert changed(local("cluster/root")) == {"ns/t"}
    assert "RootParentForbidden" in state.queues["ns/t"].blocked
    assert changed(local("namespace/x")) == {"ns/t"}, "another problem, the same (missing) parent"
    assert "InvalidParentReference" in state.queues["ns/t"].blocked
    assert changed(local("namespace/x")) == set()
