"""Capacity and proportion over sessions, and trees of any depth. Vectors have the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.plugins.capacity import Capacity
from capcard_sched.plugins.proportion import Proportion
from tests.unit.plugins.capacity.clusters import capacity, cluster, work


def test_a_refusal_is_worked_out_again_only_when_something_it_follows_from_changed() -> None:
    h = cluster("4")
    h.queue("q", capability={"cpu": "2"})
    h.queue("other")
    h.group("g", queue="q", phase="Pending", min_resources={"cpu": "3"})

    def token() -> tuple[object, ...]:
        h.session()
        return capacity(h).admission_version(h.job("g"))

    known = token()
    work(h, "other", runs=1)
    assert token() == known
    changes: list[Callable[[], None]] = [
        lambda: h.queue("q", capability={"cpu": "2"}, state="Closed"),
        lambda: h.queue("q", capability={"cpu": "3"}),
        lambda: h.group("g", queue="q", phase="Pending", min_resources={"cpu": "2"}),
        lambda: h.group("h", queue="q", phase="Inqueue", min_resources={"cpu": "1"}),
        lambda: h.node("n2", cpu="1"),
    ]
    for change in changes:
        change()
        now = token()
        assert now != known
        known = now
    h.pod("p", group="h", node="n1")
    assert token() == known, "the pod holds what was reserved for it"
    h.group("held", queue="q", phase="Running", min_resources={"cpu": "1"})
    h.pod("p1", group="held")
    session = h.session()
    known = capacity(h).admission_version(h.job("g"))
    statement = Statement(session)
    statement.allocate(h.job("held"), [h.task("p1")], [session.nodes.by_name["n1"]])
    assert capacity(h).admission_version(h.job("g")) != known


@pytest.mark.parametrize(
    "kind, tree",
    [
        pytest.param(Proportion, False, id="proportion"),
        pytest.param(Capacity, False, id="capacity"),
        pytest.param(Capacity, True, id="a tree of capacity"),
    ],
)
def test_figures_kept_over_sessions_equal_those_of_a_new_plugin(kind: type[Proportion | Capacity], tree: bool) -> None:
    h = cluster("20", tree=tree, name=kind.name)
    for name, parent in (("root", None), ("eng", None), ("sci", None), ("a", "eng"), ("b", "eng"), ("c", "sci")):
        guarantee = {"cpu": "3"} if name == "eng" else None
        h.queue(
            name, parent=parent if tree else None, guarantee=guarantee, deserved={"cpu": "4"} if name == "a" else None
        )
    work(h, "a", runs=3, waits=30)
    work(h, "c", runs=1)
    h.session()
    changes: list[Callable[[], None]] = [
        lambda: h.delete_pod("a-runs0"),
        lambda: h.pod("b-more", group="a", node="n1", requests={"cpu": "2", "example.com/new": 1}),
        lambda: h.pod("b-waits", group="a", requests={"cpu": "2", "example.com/other": 1}),
        lambda: h.queue("b", parent="sci", guarantee={"cpu": "1"}, weight=3, capability={"cpu": "4"}),
        lambda: h.group("a", queue="b"),
        lambda: h.delete_queue("sci"),
        lambda: h.queue("sci"),
        lambda: h.node("n2", cpu="3"),
        lambda: h.set_phase("a-runs1", "Succeeded"),
    ]
    for change in changes:
        change()
        session = h.session()
        anew = kind(hierarchy=tree)
        session.changed.everything = True
        anew.open(session)
        kept = h.plugin(kind.name)
        assert list(kept.metrics()) == list(anew.metrics())
        for queue in session.queues.values():
            assert kept.queue_order(queue) == anew.queue_order(queue)


def test_queues_may_be_nested_deeper_than_calls() -> None:
    h = cluster(tree=True)
    for i in range(1200):
        h.queue(f"q{i}", parent=f"q{i - 1}" if i else "")
    work(h, "q1199", waits=1)
    h.step()
    assert h.binds == {"q1199-waits0": "n1"}
    samples = {one.labels["queue_name"]: one.value for one in capacity(h).metrics() if one.name == "queue_share"}
    assert len(samples) == 1200
