"""ClusterState: nodes, their columns, and objects that cannot be read."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.objects import NodeObject
from capcard_sched.state.cluster import ClusterState
from tests.accounting import rebuilt, recorded
from tests.objects import group, node, pod, queue


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_offers_its_allocatable_amounts_and_follows_them_down() -> None:
    state = CheckedState()
    for allocatable in (8, 6):
        status = {"capacity": {"nvidia.com/gpu": 8}, "allocatable": {"nvidia.com/gpu": allocatable}}
        state.apply(deltas.ObjectChanged(msgspec.convert({"metadata": {"name": "n1"}, "status": status}, NodeObject)))
        assert state.columns.amounts(state.nodes.allocatable[0]) == {"nvidia.com/gpu": allocatable * 1000}


def test_a_node_that_goes_and_comes_back_finds_its_pods_again() -> None:
    state = CheckedState(
        node("n1"), queue("q"), group("g"), pod("p", group="g", node="n1"), pod("f", scheduler="x", node="n1")
    )
    before = recorded(state)
    state.apply(gone("Node", "n1"))
    assert len(state.nodes) == 0
    assert not state.nodes.total_used.any()
    state.apply(node("n1"))
    assert recorded(state) == before


def test_changes_of_pods_without_their_node_count_when_the_node_returns() -> None:
    state = CheckedState(
        node("n1"),
        group("g"),
        *(pod(f"p{i}", group="g", node="n1") for i in range(4)),
        gone("Node", "n1"),
    )
    state.apply(gone("Pod", "p0"))
    state.apply(pod("p1", group="g", node="n1", phase="Failed"))
    state.apply(pod("p2", group="g", node="n1", deleting=True))
    state.release(state.tasks["p3-uid"])
    state.apply(deltas.EvictFailed("default", "p3", "p3-uid", ""))
    state.apply(pod("p4", group="g", node="n1"))
    state.apply(node("n1"))
    assert set(state.nodes.by_name["n1"].tasks) == {"p2-uid", "p3-uid", "p4-uid"}


def test_the_only_pod_of_a_missing_node_may_be_evicted_and_stay() -> None:
    state = CheckedState(group("g"), pod("p", group="g", node="n1"))
    state.release(state.tasks["p-uid"])
    state.apply(deltas.EvictFailed("default", "p", "p-uid", ""))
    state.apply(node("n1"))
    assert state.columns.amounts(state.nodes.used[0]) == {"cpu": 1000, "pods": 1}


def test_placeholders_go_with_the_last_pod_that_names_them() -> None:
    state = CheckedState(
        pod("a", node="x"), pod("b", node="x"), node("y"), pod("c", node="y"), gone("Node", "y")
    )
    for name in ("a", "b", "c"):
        state.apply(gone("Pod", name))
    assert not state._node_cache._nodes


def test_rows_are_in_order_of_name_in_any_order_of_arrival() -> None:
    names = [f"n{i:02d}" for i in range(100)]
    for order in (names, names[::-1], names[50:] + names[:50]):
        state = CheckedState(*(node(name, cpu=str(1 + int(name[1:]))) for name in order), pod("p", node="n42"))
        state.open_session()
        assert state.nodes.names == names
        assert [item.row for item in state.nodes.nodes] == list(range(100))
        assert state.nodes.allocatable[:, 0].tolist() == [1000 * (1 + i) for i in range(100)]
        assert state.columns.amounts(state.nodes.used[42]) == {"cpu": 1000, "pods": 1}
        for gone in ("n00", "n42", "n99"):
            state.apply(gone("Node", gone))
        state.open_session()
        assert state.nodes.names == [name for name in names if name not in {"n00", "n42", "n99"}]
        assert recorded(state) == rebuilt(state)


def test_a_change_of_allocatable_is_no_change_of_usage() -> None:
    state = CheckedState(node("n1"), pod("p", node="n1"))
    generation = state.nodes.generation
    state.apply(node("n1", cpu="2", devices={"nvidia.com/gpu": 4}))
    assert state.nodes.generation > generation
    assert state.columns.amounts(state.nodes.total_allocatable)["nvidia.com/gpu"] == 4000


@pytest.mark.parametrize(
    "change, raised",
    [
        pytest.param(node("n1"), False, id="the same again"),
        pytest.param(node("n1", labels={"zone": "a"}), True, id="a label"),
        pytest.param(node("n1", memory="1Gi"), True, id="an amount"),
        pytest.param(pod("p", node="n1"), False, id="a pod"),
    ],
)
def test_the_generation_is_raised_by_changes_of_node_facts_only(change: deltas.Delta, raised: bool) -> None:
    state = CheckedState(node("n1"))
    state.open_session()
    before, own = state.nodes.generation, state.nodes.by_name["n1"].generation
    state.apply(change)
    assert (state.nodes.generation > before) is raised
    assert (state.nodes.by_name["n1"].generation > own) is raised


def test_the_echo_of_a_node_changes_nothing() -> None:
    state = CheckedState(node("n1"))
    state.open_session()
    state.apply(node("n1"))
    assert not state.open_session()


# --- more resources than columns --------------------------------------------------------------------------------------


def test_columns_grow_with_the_resources_and_keep_every_amount() -> None:
    state = CheckedState(node("n0"), queue("q"), group("g"), pod("p0", group="g", node="n0"))
    for i in range(40):
        offered = {f"example.com/device-{i}": i + 1}
        state.apply(node(f"n{i}", devices=offered))
        state.apply(pod(f"p{i}", group="g", node=f"n{i}", requests={"cpu": "1", f"example.com/device-{i}": 1}))
        state.apply(pod(f"w{i}", group="g", requests={f"example.com/other-{i}": 1}))
    assert state.columns.width >= 83
    assert state.columns.amounts(state.queues["q"].allocated)["example.com/device-39"] == 1000


def test_a_column_added_by_a_plugin_does_not_disturb_new_jobs() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    for i in range(20):
        state.columns.column(f"example.com/quota-only-{i}")
    state.apply(group("h"))
    state.apply(group("g", queue="r"))
    state.apply(queue("r"))
    state.apply(gone("Pod", "p"))


# --- unreadable objects -----------------------------------------------------------------------------------------------

_POD, _NODE, _GROUP, _QUEUE = (
    ObjectRef("Pod", "default", "bad", "bad-uid"),
    ObjectRef("Node", "", "bad"),
    ObjectRef("PodGroup", "default", "bad", "bad-group"),
    ObjectRef("Queue", "", "bad"),
)


@pytest.mark.parametrize(
    "bad, good, ref, words",
    [
        pytest.param(
            pod("bad", group="g", requests={"cpu": "lots"}), pod("bad", group="g"), _POD, "spec.containers[0]", id="pod"
        ),
        pytest.param(pod("bad", requests={"cpu": "-1"}), pod("bad"), _POD, "negative", id="pod, a negative request"),
        pytest.param(node("bad", memory="much"), node("bad"), _NODE, "status.allocatable[memory]", id="node"),
        pytest.param(
            group("bad", minResources={"cpu": "x"}), group("bad"), _GROUP, "spec.minResources[cpu]", id="PodGroup"
        ),
        pytest.param(group("bad", phase="Dancing"), group("bad"), _GROUP, "status.phase", id="PodGroup, its phase"),
        pytest.param(queue("bad", capability={"cpu": "x"}), queue("bad"), _QUEUE, "spec.capability[cpu]", id="queue"),
        pytest.param(queue("bad", deserved={"cpu": "x"}), queue("bad"), _QUEUE, "spec.deserved[cpu]", id="share"),
        pytest.param(
            queue("bad", guarantee={"resource": {"cpu": "-1"}}),
            queue("bad"),
            _QUEUE,
            "spec.guarantee",
            id="floor",
        ),
    ],
)
def test_an_unreadable_object_is_listed_until_it_is_readable_and_others_continue(
    bad: deltas.Delta, good: deltas.Delta, ref: ObjectRef, words: str
) -> None:
    state = CheckedState(node("n1"), queue("q"), group("g"), bad, pod("fine", group="g", node="n1"))
    assert list(state.problems) == [ref]
    assert words in state.problems[ref]
    assert state.columns.amounts(state.nodes.used[state.nodes.by_name["n1"].row]) == {"cpu": 1000, "pods": 1}
    state.apply(good)
    assert not state.problems


@pytest.mark.parametrize(
    "bad, gone",
    [
        pytest.param(
            pod("bad", requests={"cpu": "x"}), gone("Pod", "bad", "bad-uid"), id="pod"
        ),
        pytest.param(pod("bad", requests={"cpu": "x"}), gone("Pod", "bad"), id="pod, by name"),
        pytest.param(node("bad", cpu="x"), gone("Node", "bad"), id="node"),
        pytest.param(
            group("bad", phase="x"), gone("PodGroup", "bad", "bad-group"), id="PodGroup"
        ),
        pytest.param(group("bad", phase="x"), gone("PodGroup", "bad"), id="PodGroup, by name"),
        pytest.param(queue("bad", deserved={"cpu": "x"}), gone("Queue", "bad"), id="queue"),
    ],
)
def test_a_problem_goes_with_its_object(bad: deltas.Delta, gone: deltas.Delta) -> None:
    state = CheckedState(bad)
    assert state.problems
    state.apply(gone)
    assert not state.problems


def test_a_problem_goes_when_another_object_takes_the_name() -> None:
    state = CheckedState(pod("bad", requests={"cpu": "x"}), pod("bad", uid="second"))
    assert not state.problems
    state.apply(group("bad", phase="x"))
    state.apply(group("bad", uid="second", phase="y"))
    assert [ref.uid for ref in state.problems] == ["second"]


def test_an_unreadable_limit_of_a_queue_closes_the_gate() -> None:
    state = CheckedState(queue("q", capability={"cpu": "4", "memory": "x"}))
    assert state.queues["q"].capability == {"cpu": 4000, "memory": 0}
