"""ClusterState: nodes, their columns, and objects that cannot be read."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.objects import NodeObject
from capcard_sched.state.decode import MOST_RESOURCES
from tests.accounting import CheckedState, gone, recorded
from tests.objects import group, node, pod, queue

ONE = {"cpu": 1000, "pods": 1}


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_offers_its_allocatable_amounts_and_follows_them_down() -> None:
    state = CheckedState()
    for allocatable in (8, 6):
        status = {"capacity": {"nvidia.com/gpu": 8}, "allocatable": {"nvidia.com/gpu": allocatable}}
        state.apply(deltas.ObjectChanged(msgspec.convert({"metadata": {"name": "n1"}, "status": status}, NodeObject)))
        assert state.columns.amounts(state.nodes.allocatable[0]) == {"nvidia.com/gpu": allocatable * 1000}


def test_a_node_that_goes_and_comes_back_finds_its_pods_again() -> None:
    pods = (pod("p", group="g", node="n1"), pod("f", scheduler="x", node="n1"))
    state = CheckedState(node("n1"), queue("q"), group("g"), *pods)
    before = recorded(state)
    state.delete("Node", "n1")
    assert len(state.nodes) == 0
    assert not state.nodes.total_used.any()
    state.apply(node("n1"))
    assert recorded(state) == before


def test_changes_of_pods_without_their_node_count_when_the_node_returns() -> None:
    state = CheckedState(node("n1"), group("g"), *(pod(f"p{i}", group="g", node="n1") for i in range(4)))
    state.apply(gone("Node", "n1"), gone("Pod", "p0"), pod("p1", group="g", node="n1", phase="Failed"))
    state.apply(pod("p2", group="g", node="n1", deleting=True))
    state.release(state.tasks["p3-uid"])
    state.apply(deltas.EvictFailed("default", "p3", "p3-uid", ""), pod("p4", group="g", node="n1"), node("n1"))
    assert set(state.nodes.by_name["n1"].tasks) == {"p2-uid", "p3-uid", "p4-uid"}


def test_the_only_pod_of_a_missing_node_may_be_evicted_and_stay() -> None:
    state = CheckedState(group("g"), pod("p", group="g", node="n1"))
    state.release(state.tasks["p-uid"])
    state.apply(deltas.EvictFailed("default", "p", "p-uid", ""), node("n1"))
    assert state.columns.amounts(state.nodes.used[0]) == ONE


def test_placeholders_go_with_the_last_pod_that_names_them() -> None:
    state = CheckedState(pod("a", node="x"), pod("b", node="x"), node("y"), pod("c", node="y"), gone("Node", "y"))
    state.apply(*(gone("Pod", name) for name in "abc"))
    assert not state._node_cache._nodes


def test_rows_are_in_order_of_name_in_any_order_of_arrival() -> None:
    names = [f"n{i:02d}" for i in range(100)]
    for order in (names, names[::-1], names[50:] + names[:50]):
        state = CheckedState(pod("p", node="n42"))
        state.apply_all(node(name, cpu=str(1 + int(name[1:]))) for name in order)
        state.open_session()
        assert state.nodes.names == names
        assert [item.row for item in state.nodes.nodes] == list(range(100))
        assert state.nodes.allocatable[:, 0].tolist() == [1000 * (1 + i) for i in range(100)]
        assert state.columns.amounts(state.nodes.used[42]) == ONE
        lost = ("n00", "n42", "n99")
        state.apply(*(gone("Node", name) for name in lost))
        state.open_session()
        assert state.nodes.names == [name for name in names if name not in lost]


@pytest.mark.parametrize(
    "change, raised",
    [
        pytest.param(node("n1"), False, id="the same again"),
        pytest.param(node("n1", labels={"zone": "a"}), True, id="a label"),
        pytest.param(node("n1", memory="1Gi"), True, id="an amount"),
        pytest.param(node("n1", cpu="2", devices={"nvidia.com/gpu": 4}), True, id="a new amount"),
        pytest.param(pod("p", node="n1"), False, id="a pod"),
    ],
)
def test_the_generation_is_raised_by_changes_of_node_facts_only(change: deltas.Delta, raised: bool) -> None:
    state = CheckedState(node("n1"), pod("other", node="n1"))
    state.open_session()
    before, own = state.nodes.generation, state.nodes.by_name["n1"].generation
    state.apply(change)
    assert (state.nodes.generation > before) is raised
    assert (state.nodes.by_name["n1"].generation > own) is raised


def test_the_echo_of_a_node_changes_nothing() -> None:
    assert CheckedState(node("n1")).marked(node("n1")) == set()


# --- more resources than columns --------------------------------------------------------------------------------------


def test_columns_grow_with_the_resources_and_keep_every_amount() -> None:
    state = CheckedState(node("n0"), queue("q"), group("g"), pod("p0", group="g", node="n0"))
    for i in range(40):
        offered = {f"example.com/device-{i}": i + 1}
        state.apply(node(f"n{i}", devices=offered))
        state.apply(pod(f"p{i}", group="g", node=f"n{i}", requests={"cpu": "1", f"example.com/device-{i}": 1}))
        state.apply(pod(f"w{i}", group="g", requests={f"example.com/other-{i}": 1}))
    assert state.columns.width >= 43
    assert "example.com/other-0" not in state.columns
    assert state.columns.amounts(state.queues["q"].allocated)["example.com/device-39"] == 1000


_FOO = "example.com/foo"


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_a_resource_has_a_column_once_a_node_offers_it_whatever_the_order(order: tuple[int, ...]) -> None:
    found = [
        node("n", devices={_FOO: 4}),
        queue("q"),
        group("g"),
        pod("bound", group="g", node="n", requests={_FOO: 3}),
    ]
    state = CheckedState(*(found[index] for index in order), pod("waits", group="g", requests={_FOO: 2}))
    assert state.columns.amounts(state.queues["q"].allocated)[_FOO] == 3000
    assert not state.unoffered
    assert state.tasks["waits-uid"].cls.unoffered == frozenset()


def test_pods_of_a_node_that_is_gone_keep_their_amounts_by_name() -> None:
    state = CheckedState(queue("q"), group("g"), pod("lost", group="g", node="gone", requests={_FOO: 3, "cpu": "1"}))
    assert _FOO not in state.columns
    assert state.unoffered["default/g"] == {_FOO: 3000}
    state.apply(pod("more", group="g", node="gone", requests={_FOO: 1}))
    assert state.unoffered["default/g"] == {_FOO: 4000}
    state.apply(gone("Pod", "lost"))
    assert state.unoffered["default/g"] == {_FOO: 1000}
    state.apply(node("other", devices={_FOO: 1}))
    assert not state.unoffered
    assert state.columns.amounts(state.jobs["default/g"].allocated)[_FOO] == 1000


def test_a_limit_of_a_queue_gives_its_resources_a_column() -> None:
    state = CheckedState(group("g"), pod("p", group="g", node="gone", requests={_FOO: 3}))
    state.apply(queue("q", capability={_FOO: "5"}))
    assert state.columns.amounts(state.queues["q"].allocated)[_FOO] == 3000
    many = {f"example.com/limit-{index}": "1" for index in range(1000)}
    state.apply(queue("r", capability=many))
    assert len(state.columns) < 200


def test_a_node_offers_a_bounded_number_of_resources_and_its_native_ones_first() -> None:
    state = CheckedState(node("n", devices={f"a.example.com/r-{index:04}": 1 for index in range(1000)}))
    assert len(state.columns) <= 3 + MOST_RESOURCES
    assert {"cpu", "memory", "pods"} <= state.nodes.by_name["n"].allocatable.keys()
    [problem] = state.problems.values()
    assert problem.startswith(
        "status.allocatable: 1,003 resources: 128 of them are offered, up to a.example.com/r-0124"
    )


def test_a_column_added_by_a_plugin_does_not_disturb_new_jobs() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    for i in range(20):
        state.columns.column(f"example.com/quota-only-{i}")
    state.apply(group("h"), group("g", queue="r"), queue("r"), gone("Pod", "p"))


# --- unreadable objects -----------------------------------------------------------------------------------------------

_UNREADABLE: dict[str, tuple[deltas.Delta, deltas.Delta, str]] = {
    "Pod": (pod("bad", group="g", requests={"cpu": "lots"}), pod("bad", group="g"), "spec.containers[0]"),
    "Pod, a negative request": (pod("bad", requests={"cpu": "-1"}), pod("bad"), "negative"),
    "Node": (node("bad", memory="much"), node("bad"), "status.allocatable[memory]"),
    "PodGroup": (group("bad", minResources={"cpu": "x"}), group("bad"), "spec.minResources[cpu]"),
    "PodGroup, its phase": (group("bad", phase="Dancing"), group("bad"), "status.phase"),
    "Queue": (queue("bad", capability={"cpu": "x"}), queue("bad"), "spec.capability[cpu]"),
    "Queue, its share": (queue("bad", deserved={"cpu": "x"}), queue("bad"), "spec.deserved[cpu]"),
    "Queue, its floor": (queue("bad", guarantee={"resource": {"cpu": "-1"}}), queue("bad"), "spec.guarantee"),
}
_UIDS = {"Pod": "bad-uid", "PodGroup": "bad-group"}


@pytest.mark.parametrize(("kind", "bad", "good", "words"), [(key, *row) for key, row in _UNREADABLE.items()])
def test_an_unreadable_object_is_listed_until_it_is_readable_or_deleted_and_others_continue(
    kind: str, bad: deltas.Delta, good: deltas.Delta, words: str
) -> None:
    kind = kind.partition(",")[0]
    for end in (good, gone(kind, "bad", _UIDS.get(kind, "")), gone(kind, "bad")):
        state = CheckedState(node("n1"), queue("q"), group("g"), bad, pod("fine", group="g", node="n1"))
        (ref,) = state.problems
        namespace = "default" if kind in _UIDS else ""
        assert ref == ObjectRef(kind, namespace, "bad", _UIDS.get(kind, ""))  # type: ignore[arg-type]
        assert words in state.problems[ref]
        assert state.columns.amounts(state.nodes.used[state.nodes.by_name["n1"].row]) == ONE
        state.apply(end)
        assert not state.problems


def test_a_problem_goes_when_another_object_takes_the_name() -> None:
    state = CheckedState(pod("bad", requests={"cpu": "x"}), pod("bad", uid="second"))
    assert not state.problems
    state.apply(group("bad", phase="x"), group("bad", uid="second", phase="y"))
    assert [ref.uid for ref in state.problems] == ["second"]


def test_an_unreadable_limit_of_a_queue_is_zero() -> None:
    state = CheckedState(queue("q", capability={"cpu": "4", "memory": "x"}))
    assert state.queues["q"].capability == {"cpu": 4000, "memory": 0}
