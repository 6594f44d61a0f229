"""The task-topology plugin."""

from __future__ import annotations

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

BUCKETS = [
    pytest.param({"ps": 1, "worker": 2}, {"affinity": "ps,worker"}, {}, [["ps-0", "worker-0", "worker-1"]], id="19.1"),
    pytest.param({"ps": 2}, {"anti": "ps"}, {}, [["ps-0"], ["ps-1"]], id="19.2 tasks that repel each other"),
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
    w = World({"ps": 1, "worker": 2}, **({"affinity": "ps,worker"} | topology)).nodes(n1=2)
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
