"""The task-topology plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.annotations import (
    TASK_TOPOLOGY_AFFINITY,
    TASK_TOPOLOGY_ANTI_AFFINITY,
    TASK_TOPOLOGY_TASK_ORDER,
)
from capcard_sched.model.task_topology import GROUPS_FORM, ORDER_FORM, TaskAffinityGroups
from capcard_sched.plugins.task_topology import Relations
from capcard_sched.testing import Harness
from tests.unit.plugins.task_topology.world import World, conf, notes, snapshot


def team(**topology: str) -> World:
    return World({"ps": 1, "worker": 2}, **({"affinity": "ps,worker"} | topology))


# --- worked examples --------------------------------------------------------------------------------------------------


def test_19_1_a_node_that_takes_the_whole_bucket_gets_all_points() -> None:
    w = team().nodes(n1=4)
    w.open()
    assert w.buckets() == [["ps-0", "worker-0", "worker-1"]]
    assert w.job.most == 3
    assert w.scores("ps-0") == {"n1": 100}


def test_19_2_tasks_that_repel_each_other_are_in_buckets_of_their_own() -> None:
    w = World({"ps": 2}, anti="ps").nodes(n1=4)
    w.open()
    assert w.buckets() == [["ps-0"], ["ps-1"]]


def test_19_3_other_tasks_of_the_bucket_that_do_not_fit_cost_a_point_each() -> None:
    w = World({"a": 4}, affinity="a").nodes(n1=1, n2=3, n3=0)
    w.open()
    assert w.scores("a-0") == {"n1": 25, "n2": 75, "n3": 0}


@pytest.mark.parametrize("earlier", [False, True], ids=["in this session", "in an earlier session"])
def test_19_4_the_bucket_stays_where_it_began(earlier: bool) -> None:
    w = team().nodes(n1=8, n2=8)
    if earlier:
        w.bound("ps-0", "n1")
    w.open()
    if not earlier:
        w.place("ps-0", "n1")
    assert w.scores("worker-0") == {"n1": 100, "n2": 66.67}


# --- buckets ----------------------------------------------------------------------------------------------------------

BUCKETS = [
    pytest.param({"a": 4}, {"affinity": "a"}, {}, [["a-0", "a-1", "a-2", "a-3"]], id="a role with itself"),
    pytest.param({"a": 2, "b": 2}, {"affinity": "a,b", "anti": "a"}, {}, [["a-0", "b-0"], ["a-1", "b-1"]],
                 id="the best net, then the smaller bucket"),
    pytest.param({"a": 1, "b": 1, "c": 1}, {"affinity": "a,b"}, {}, [["a-0", "b-0"]], id="roles without topology"),
    pytest.param({"a": 1, "b": 1, "c": 1}, {"affinity": "a, b; b,c;"}, {}, [["a-0", "b-0", "c-0"]],
                 id="several groups, blanks, an empty one"),
    pytest.param({"a": 2, "b": 2}, {"anti": "a,b"}, {}, [["a-0", "a-1"], ["b-0", "b-1"]], id="roles apart"),
    pytest.param({"a": 2, "b": 4}, {"affinity": "a,b", "anti": "a;b"}, {},
                 [["a-0", "b-0", "b-2"], ["a-1", "b-1", "b-3"]], id="what draws weighs against what repels"),
    pytest.param({"b": 3}, {"affinity": "a,b", "order": "a"}, {"a-0": "n1", "a-1": "n2"},
                 [["a-0", "b-0", "b-2"], ["a-1", "b-1"]], id="ties go to the smaller bucket"),
    pytest.param({"a": 2}, {"affinity": "a"}, {"a-2": "n1", "a-3": "n2", "a-4": "n2"},
                 [["a-2"], ["a-0", "a-1", "a-3", "a-4"]], id="placed tasks are in the bucket of their node"),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "topology", "placed", "expected"), BUCKETS)
def test_buckets(
    pods: dict[str, int], topology: dict[str, str], placed: dict[str, str], expected: list[list[str]]
) -> None:
    w = World(pods, **topology).nodes(n1=8, n2=8)
    for pod, node in placed.items():
        w.bound(pod, node)
    w.open()
    assert w.buckets() == expected
    assert w.job.most == max(map(len, expected))


@pytest.mark.parametrize(
    ("topology", "priorities"),
    [
        (TaskAffinityGroups(anti_affinity=(("a",),)), {"a": 4}),
        (TaskAffinityGroups(affinity=(("a", "b"),)), {"a": 3, "b": 3}),
        (TaskAffinityGroups(affinity=(("a",),)), {"a": 2}),
        (TaskAffinityGroups(anti_affinity=(("a", "b"),)), {"a": 1, "b": 1}),
        (TaskAffinityGroups((("a",), ("a", "b")), (("b", "c"), ("c",))), {"a": 3, "b": 3, "c": 4}),
    ],
)
def test_priorities_of_roles(topology: TaskAffinityGroups, priorities: dict[str, int]) -> None:
    assert Relations(topology).priority == priorities


def test_pods_that_cannot_be_placed_are_in_no_bucket() -> None:
    w = World({"a": 2}, affinity="a").nodes(n1=8)
    w.h.pod("a-2", role="a", schedulingGates=[{"name": "wait"}])
    w.h.pod("a-3", role="a", node="n1")
    w.h.terminate("a-3")
    w.h.pod("a-4", role="a", phase="Succeeded", node="n1")
    w.open()
    assert w.buckets() == [["a-0", "a-1"]]


def test_a_job_with_nothing_to_place_is_left_alone() -> None:
    w = World({}, affinity="a").nodes(n1=8).bound("a-0", "n1")
    w.open()
    assert w.plugin._jobs == {}


def test_buckets_do_not_depend_on_the_order_of_arrival() -> None:
    def built(names: Sequence[str]) -> list[list[str]]:
        w = World({}, affinity="a,b", anti="a").nodes(n1=8)
        for name in names:
            w.h.pod(name, role=name[0])
        w.open()
        return w.buckets()

    names = ["a-0", "b-0", "a-1", "b-1", "b-2"]
    assert built(names) == built(names[::-1])


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "points"), [(3, 300), (-1, -100), (0, None)])
def test_the_weight_is_a_factor(weight: int, points: int | None) -> None:
    w = World({"a": 1}, affinity="a", conf_=conf(**{"task-topology.weight": weight})).nodes(n1=8)
    w.open()
    assert w.scores("a-0") == (None if points is None else {"n1": points})


def test_a_task_without_topology_has_no_opinion() -> None:
    w = World({"a": 1, "x": 1}, affinity="a").nodes(n1=8)
    w.open()
    assert w.scores("x-0") is None
    assert not w.session.engine.reads_other_nodes(w.session.engine.signature(w.session.queues["q"], w.h.task("x-0")))


def test_better_the_largest_of_the_others_are_left_out_first() -> None:
    """By name the small ones would go first, and nothing but the task itself would be left."""
    w = World({"a": 1}, affinity="a").nodes(n1=4)
    for name, cpu in (("a-1", "1"), ("a-2", "1"), ("a-3", "4"), ("a-4", "1")):
        w.h.pod(name, role="a", requests={"cpu": cpu})
    w.open()
    assert w.scores("a-0") == {"n1": 80}


def test_releasing_capacity_counts() -> None:
    w = World({"a": 2}, affinity="a").nodes(n1=2, n2=2)
    w.h.group("other")
    for node in ("n1", "n2"):
        w.h.pod(f"there-{node}", group="other", node=node)
    w.h.terminate("there-n2")
    w.open()
    assert w.scores("a-0") == {"n1": 50, "n2": 100}


def test_roles_that_a_session_put_on_a_node_keep_others_off() -> None:
    w = World({"a": 1, "b": 2}, anti="a,b").nodes(n1=8, n2=8)
    w.open()
    w.place("b-0", "n1")
    w.place("b-1", "n1")
    assert w.scores("a-0") == {"n1": -50, "n2": 50}


@pytest.mark.parametrize(("count_running", "points"), [(False, 100), (True, 0)])
def test_anti_affinity_to_roles_of_earlier_sessions_applies_if_enabled(count_running: bool, points: float) -> None:
    arguments = {"task-topology.count-running": count_running}
    w = World({"a": 1}, anti="a", conf_=conf(**arguments)).nodes(n1=8, n2=8).bound("a-1", "n1")
    w.open()
    assert w.scores("a-0") == {"n1": points, "n2": 100}


# --- whole sessions ---------------------------------------------------------------------------------------------------


def test_a_team_goes_to_the_node_that_takes_all_of_it() -> None:
    w = team().nodes(n1=2, n2=3, n3=2)
    w.h.settle()
    assert set(w.h.binds.values()) == {"n2"}


def test_teams_of_one_job_are_spread_each_to_its_node() -> None:
    w = World({"ps": 2, "worker": 4}, affinity="ps,worker", anti="ps").nodes(n1=3, n2=3)
    w.h.settle()
    by_node = Counter((node, pod.partition("-")[0]) for pod, node in w.h.binds.items())
    assert by_node == {(node, role): count for node in ("n1", "n2") for role, count in (("ps", 1), ("worker", 2))}


def test_tasks_of_one_template_go_each_to_the_node_of_its_bucket() -> None:
    w = World({"a": 2}, affinity="a,b", anti="a").nodes(n0=8, n1=8, n2=8, n3=8).bound("b-0", "n3").bound("b-1", "n2")
    w.h.settle()
    assert w.h.binds == {"a-0": "n3", "a-1": "n2"}


def test_better_a_gang_that_is_undone_leaves_no_trace() -> None:
    w = World({"a": 3}, affinity="a").nodes(n1=2)
    session = w.open()
    before = snapshot(w.job)
    statement = Statement(session)
    node = session.nodes.by_name["n1"]
    statement.allocate(w.h.job("g"), [w.h.task("a-0"), w.h.task("a-1")], [node, node])
    assert snapshot(w.job) != before
    assert w.job.next(w.h.task("a-0").cls, "a", session.task_key) is w.h.task("a-2")
    statement.discard()
    assert snapshot(w.job) == before
    assert w.job.next(w.h.task("a-0").cls, "a", session.task_key) is w.h.task("a-0")


@pytest.mark.parametrize("count_running", [False, True])
def test_an_eviction_leaves_the_bucket_and_its_undoing_comes_back(count_running: bool) -> None:
    arguments = {"task-topology.count-running": count_running}
    w = World({"a": 1}, affinity="a", anti="a,b", conf_=conf(**arguments)).nodes(n1=8, n2=8)
    w.h.pod("b-0", role="b")
    w.bound("a-1", "n1")
    session = w.open()
    before = snapshot(w.job)
    statement = Statement(session)
    statement.evict(w.h.task("a-1"), "preempt")
    assert w.scores("a-0") == {"n1": 50, "n2": 50}, "terminating tasks attract none"
    statement.discard()
    assert snapshot(w.job) == before
    assert w.scores("a-0") == {"n1": 100, "n2": 50}


# --- annotations that cannot be read ----------------------------------------------------------------------------------

WRONG = [
    ({"affinity": "ps,chief"}, TASK_TOPOLOGY_AFFINITY, "<chief> is not a task of the job", GROUPS_FORM),
    ({"anti": "ps,worker,ps"}, TASK_TOPOLOGY_ANTI_AFFINITY, "<ps> occurs twice in <ps,worker,ps>", GROUPS_FORM),
    ({"affinity": "ps,,worker"}, TASK_TOPOLOGY_AFFINITY, "<ps,,worker> contains an empty name", GROUPS_FORM),
    ({"affinity": ";" * 9_000 + "ps,chief;" * 9_000}, TASK_TOPOLOGY_AFFINITY, "<chief> is not a task of the job",
     GROUPS_FORM),
    ({"affinity": "ps," * 9_000}, TASK_TOPOLOGY_AFFINITY, f"<ps> occurs twice in <{'ps,' * 21}p...>", GROUPS_FORM),
    ({"order": "ps;worker"}, TASK_TOPOLOGY_TASK_ORDER, "<ps;worker> is not a task of the job", ORDER_FORM),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "key", "detail", "form"), WRONG, ids=[row[2] for row in WRONG])
def test_an_invalid_topology_is_ignored_and_reported_once(
    topology: dict[str, str], key: str, detail: str, form: str
) -> None:
    w = team(**topology).nodes(n1=2)
    w.h.settle()
    w.h.node("n2", cpu="2")
    w.h.settle()
    (event,) = [event for event in w.h.all_events if event.reason == "InvalidAnnotation"]
    assert (event.object.kind, event.object.name, event.type) == ("PodGroup", "g", "Warning")
    assert event.message == (
        f"Invalid annotation {key}: {detail}; the job's task topology is ignored; "
        f"accepted: {form}; tasks of the job: ps, worker"
    )
    assert w.h.binds.keys() == {"ps-0", "worker-0", "worker-1"}, "nothing else is lost"
    assert w.plugin._jobs == {}


def test_a_task_that_the_group_counts_is_known_before_it_has_pods() -> None:
    h = Harness(conf())
    h.queue("q")
    h.node("n1")
    h.group("g", annotations=notes("ps,worker"), min_member=1, min_task_member={"ps": 1, "worker": 0})
    h.pod("ps-0", role="ps")
    h.session()
    assert h.plugin("task-topology")._jobs.keys() == {"default/g"}


def test_a_corrected_topology_applies_from_the_next_session_on() -> None:
    w = team(affinity="ps,chief").nodes(n1=1)
    w.h.step()
    w.h.group("g", annotations=notes("ps,worker"), min_member=3)
    w.h.node("n2", cpu="3")
    w.h.settle()
    assert set(w.h.binds.values()) == {"n2"}
