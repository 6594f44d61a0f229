"""ClusterState: pods of a list that follow one another and are nearly alike, at once and one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from capcard_sched.daemon.diagnosis.saved_state import (
    SavedSettings,
    SavedStateError,
    as_manifest,
    document_text,
    manifests_of,
    read_saved_state,
)
from capcard_sched.model import deltas
from capcard_sched.model.annotations import BOUND_QUEUE, CARD_ASSIGNED, COOLDOWN_TIME
from capcard_sched.model.kinds import kind_of_object
from capcard_sched.model.objects import PodObject
from capcard_sched.state.cluster import ClusterState
from capcard_sched.state.document import to_document
from tests.accounting import rebuilt, recorded
from tests.objects import group, node, pod, queue

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = SavedSettings("2026-01-01T00:00:00Z", ("capcard-sched",), "default")
_CLUSTER = (node("m"), node("n"), queue("q"), group("g", queue="q", min_member=2))
_RUNNING: dict[str, Any] = {"group": "g", "node": "n"}


def _with(delta: deltas.ObjectChanged, **parts: dict[str, Any]) -> deltas.ObjectChanged:
    """A pod with further fields, by part."""
    body = msgspec.to_builtins(delta.object)
    for part, fields in parts.items():
        body[part] |= fields
    return deltas.ObjectChanged(msgspec.convert(body, PodObject))


def _ready(second: int) -> dict[str, Any]:
    time = f"2026-01-01T00:00:{second:02d}Z"
    return {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]}


def _resized(cpu: str) -> dict[str, Any]:
    amounts = {"resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": cpu}}
    return {"containerStatuses": [{"name": "main", **amounts}]}


def _volume(name: str, **source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": name, **source}]}


_COOLDOWN = (
    pod("a", **_RUNNING, annotations={COOLDOWN_TIME: "60s"}),
    pod("b", **_RUNNING, annotations={COOLDOWN_TIME: "60s"}),
)


_LISTS: list[list[deltas.ObjectChanged]] = [
    [pod("a", group="g"), pod("b", group="g"), pod("c", group="g", created=5)],
    [pod("job-w-1", group="g"), pod("job-w-2", group="g"), pod("job-w-x", group="g")],
    [pod("a", **_RUNNING), pod("b", group="g", node="m"), pod("c", group="g", node="new")],
    [pod("a", **_RUNNING), pod("b", group="g")],
    [pod("a", **_RUNNING, phase="Pending"), pod("b", group="g")],
    [pod("a", **_RUNNING, labels={"x": "1"}), pod("b", **_RUNNING, labels={"x": "2"})],
    [pod("a", **_RUNNING, namespace="x"), pod("b", **_RUNNING, namespace="y")],
    [pod("a", **_RUNNING, annotations={BOUND_QUEUE: "p"}), pod("b", **_RUNNING, annotations={BOUND_QUEUE: "p"})],
    [
        pod("a", **_RUNNING, annotations={CARD_ASSIGNED: "A"}),
        pod("b", **_RUNNING, annotations={CARD_ASSIGNED: "B"}),
    ],
    [pod("a", group="g", priority=1), pod("b", group="g", priority=2)],
    [pod("a", group="g", gated=True), pod("b", group="g", gated=True), pod("c", group="g")],
    [pod("a", **_RUNNING, deleting=True), pod("b", **_RUNNING, deleting=True), pod("c", **_RUNNING)],
    [pod("a", group="g", nominated="m"), pod("b", group="g", nominated="n")],
    [pod("a", **_RUNNING, phase="Succeeded"), pod("b", **_RUNNING, phase="Succeeded"), pod("c", **_RUNNING)],
    [pod("a", **_RUNNING, phase="Unknown"), pod("b", group="g", node="m", phase="Unknown")],
    [pod("a"), pod("b"), pod("c", node="n"), pod("d", node="n")],
    [pod("a", owner="rs", queue="q", created=4), pod("b", owner="rs", queue="q", created=2)],
    [pod("a", group="g"), pod("b", group="g", requests={"cpu": "?"}), pod("c", group="g")],
    [pod("a", group="g", requests={"cpu": "?"}), pod("b", group="g", requests={"cpu": "?"})],
    [pod("a", group="g", requests={"new.example/x": 1}), pod("b", group="g", requests={"new.example/x": 1})],
    [pod("a", group="g", scheduler="other"), pod("b", group="g", scheduler="other")],
    [pod("a", **_RUNNING, scheduler="other"), pod("b", **_RUNNING, scheduler="other")],
    [
        pod("a", group="g"),
        pod("b", group="g", uid="1"),
        pod("b", group="g", uid="2"),
        pod("b", **_RUNNING, uid="2"),
    ],
    [pod("a", group="g", uid="1"), pod("b", group="g", uid="1")],
    [_with(pod("a", **_RUNNING), spec=_volume("token-a")), _with(pod("b", **_RUNNING), spec=_volume("token-b"))],
    [_with(pod(name, **_RUNNING), spec=_volume("v", ephemeral={})) for name in ("a", "b")],
    [_with(pod(name, **_RUNNING), spec=_volume("v", persistentVolumeClaim={"claimName": "c"})) for name in "ab"],
    [_with(each, status=_ready(number)) for number, each in enumerate(_COOLDOWN)],
    [_with(pod("a", **_RUNNING), status=_resized("1")), _with(pod("b", **_RUNNING), status=_resized("3"))],
    [_with(pod("a", **_RUNNING), status=_resized("3")), pod("b", **_RUNNING)],
    [_with(pod("a", **_RUNNING), status=_resized("3")), _with(pod("b", **_RUNNING), status=_resized("3"))],
]


@pytest.mark.parametrize("pods", _LISTS)
@pytest.mark.parametrize("before", [_CLUSTER, ()])
def test_a_list_at_once_gives_the_state_of_its_pods_one_by_one(
    before: tuple[deltas.Delta, ...], pods: list[deltas.ObjectChanged]
) -> None:
    single, whole = (ClusterState(("capcard-sched",), "default") for _ in range(2))
    for delta in (*before, *pods):
        single.apply(delta)
    whole.apply_all((*before, *pods))
    assert to_document(whole) == to_document(single)


@pytest.mark.parametrize("pods", _LISTS)
@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_saved_list_gives_the_state_of_its_pods_one_by_one(
    known: int, pods: list[deltas.ObjectChanged], tmp_path: Path
) -> None:
    single, saved = (ClusterState(("capcard-sched",), "default") for _ in range(2))
    for delta in (*_CLUSTER, *pods[:known], *pods):
        single.apply(delta)
    found = _read_back(tmp_path / "saved.json", [*_CLUSTER, *pods])
    saved.apply_all((*_CLUSTER, *pods[:known]))
    saved.apply_all(found)
    assert to_document(saved) == to_document(single)
    assert manifests_of(found) == manifests_of([*_CLUSTER, *pods])


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"startTime": 1}, "status.startTime: expected a string, got the number 1"),
        ({"conditions": [{"type": 1}]}, "status.conditions[0].type: expected a string, got the number 1"),
        ({"containerStatuses": {}}, "status.containerStatuses: expected a list, got a mapping"),
        ({"phase": 1}, "status.phase: expected a string, got the number 1"),
    ],
)
def test_an_invalid_pod_among_alike_ones_is_named(status: dict[str, Any], problem: str, tmp_path: Path) -> None:
    items = manifests_of([pod("a", **_RUNNING), pod("b", **_RUNNING)])
    items[1]["status"] |= status
    file = tmp_path / "saved.json"
    file.write_bytes(document_text(_SETTINGS, items))
    with pytest.raises(SavedStateError, match=re.escape(f"{file}: items[1]: Pod: {problem}")):
        read_saved_state(file)


def _read_back(file: Path, found: list[deltas.ObjectChanged]) -> list[deltas.Delta]:
    """The changes of a saved state with these objects."""
    file.write_bytes(
        document_text(_SETTINGS, [as_manifest(kind_of_object(each.object), each.object) for each in found])
    )
    state = read_saved_state(file)
    assert state is not None
    return state.deltas


def test_a_pod_that_ends_an_invalid_one_in_a_run_opens_its_node() -> None:
    broken = pod("b", **_RUNNING, requests={"cpu": "?"})
    state = ClusterState(("capcard-sched",), "default")
    state.apply_all((*_CLUSTER, broken))
    assert state.problems
    state.apply_all([pod("a", **_RUNNING), pod("b", **_RUNNING)])
    assert not state.problems
    assert recorded(state) == rebuilt(state)


def test_a_node_without_object_keeps_the_pods_of_a_run_when_a_later_one_opens_it() -> None:
    state = ClusterState(("capcard-sched",), "default")
    state.apply_all([group("g", queue="q"), pod("c", group="g", node="x", requests={"cpu": "?"})])
    state.apply_all([pod("a", group="g", node="y"), pod("b", group="g", node="x"), pod("c", group="g", node="x")])
    state.apply(node("x"))
    assert {name: task.node for name, task in state.tasks.items()} == {
        "a-uid": state.node_named("y"),
        "b-uid": state.node_named("x"),
        "c-uid": state.node_named("x"),
    }
    assert recorded(state) == rebuilt(state)


def test_a_failing_delta_ends_the_list_or_is_reported() -> None:
    state = ClusterState(("capcard-sched",), "default")
    failed: list[tuple[deltas.Delta, type[Exception]]] = []
    unknown = deltas.ObjectGone("Unheard", "", "x")
    found: list[deltas.Delta] = [pod("a", group="g"), pod("b", group="g"), unknown, pod("c", group="g")]
    state.apply_all(found, lambda delta, error: failed.append((delta, type(error))))
    assert failed == [(unknown, KeyError)]
    assert state.jobs["default/g"].pending.keys() == {"a-uid", "b-uid", "c-uid"}
    other = ClusterState(("capcard-sched",), "default")
    with pytest.raises(KeyError):
        other.apply_all(found)
    assert other.jobs["default/g"].pending.keys() == {"a-uid", "b-uid"}
