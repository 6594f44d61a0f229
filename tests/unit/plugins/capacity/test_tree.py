"""Capacity with `enableHierarchy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Figures
from capcard_sched.model.status import Vote
from capcard_sched.plugins.capacity import Capacity
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import GPU, capacity, cluster, figures, insufficient, reclaim, work


def _company(h: Harness, *, root: bool = True, **eng: Any) -> None:
    """root -> eng -> a, b and root -> sci -> c."""
    if root:
        h.queue("root")
    h.queue("eng", **eng)
    h.queue("sci")
    h.queue("a", parent="eng")
    h.queue("b", parent="eng")
    h.queue("c", parent="sci")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_limits_pass_down_the_tree() -> None:
    h = cluster("20", tree=True, resources={GPU: 8})
    h.queue("eng", capability={"cpu": "8", GPU: "4"})
    h.queue("sci", guarantee={"cpu": "3"})
    h.queue("a", parent="eng", capability={GPU: "9"}, guarantee={"cpu": "2"})
    h.queue("b", parent="eng", capability={"cpu": "1"}, guarantee={"cpu": "1"})
    h.session()
    # eng may have min(20 - (3 + 3) + 3, 8); what its children are guaranteed is guaranteed to it.
    assert figures(h, "real_capacity_milli_cpu") == {"a": 7000, "b": 1000, "eng": 8000, "sci": 17_000}
    cards = {
        s.labels["queue_name"]: s.value
        for s in capacity(h).metrics()
        if s.name == "queue_real_capacity_scalar_resources" and s.labels["resource"] == GPU
    }
    assert cards == {"a": 4000, "b": 4000, "eng": 4000, "sci": 8000}


def test_the_root_has_at_most_the_capacity_of_the_cluster() -> None:
    h = cluster("10", tree=True)
    h.queue("root", capability={"cpu": "4"})
    h.queue("q")
    h.session()
    assert figures(h, "real_capacity_milli_cpu") == {"q": 4000, "root": 4000}


def test_deserved_of_the_root_is_the_sum_below_and_a_guarantee_is_always_deserved() -> None:
    h = cluster("10", tree=True)
    h.queue("root")
    h.queue("a", deserved={"cpu": "2"}, guarantee={"cpu": "3"})
    h.queue("b", deserved={"cpu": "4"})
    h.queue("c", deserved={"cpu": "9"}, capability={"cpu": "5"})
    h.session()
    assert figures(h, "deserved_milli_cpu") == {"a": 3000, "b": 4000, "c": 9000, "root": 15_000}


def test_sums_are_of_a_queue_and_all_below_it() -> None:
    h = cluster("20", tree=True)
    _company(h)
    work(h, "a", runs=2, waits=1)
    work(h, "b", runs=1)
    work(h, "c", runs=4)
    h.session()
    assert figures(h, "allocated_milli_cpu") == {
        "a": 2000,
        "b": 1000,
        "c": 4000,
        "eng": 3000,
        "root": 7000,
        "sci": 4000,
    }
    assert figures(h, "request_milli_cpu") == {"a": 3000, "b": 1000, "c": 4000, "eng": 4000, "root": 8000, "sci": 4000}


# --- admission --------------------------------------------------------------------------------------------------------


def test_admission_checks_the_leaf_and_then_all_above_it() -> None:
    h = cluster("20", tree=True)
    _company(h, capability={"cpu": "6"})
    h.group("running", queue="b", phase="Running", min_resources={"cpu": "2"})
    h.pod("p0", group="running", node="n1", requests={"cpu": "3"})
    h.group("big", queue="a", phase="Pending", min_resources={"cpu": "5"})
    h.group("fits", queue="a", phase="Pending", min_resources={"cpu": "4"})
    h.group("other", queue="c", phase="Pending", min_resources={"cpu": "14"})
    h.session()
    plugin = capacity(h)
    # b holds 3, one of them elastic.
    assert plugin.job_enqueueable(h.job("big")) == insufficient(
        "job_enqueueable", Figures("cpu", 5000, 7000, 6000), queue="eng"
    )
    assert plugin.job_enqueueable(h.job("fits")) is Vote.PERMIT
    plugin.job_enqueued(h.job("fits"))
    assert plugin.job_enqueueable(h.job("fits")) == insufficient(
        "job_enqueueable", Figures("cpu", 4000, 8000, 6000), queue="a"
    )
    assert plugin.job_enqueueable(h.job("other")) is Vote.PERMIT
    plugin.job_enqueued(h.job("other"))
    assert plugin.job_enqueueable(h.job("other")) == insufficient(
        "job_enqueueable", Figures("cpu", 14_000, 28_000, 20_000), queue="c"
    )


@pytest.mark.parametrize(
    "capability, limit",
    [
        pytest.param({}, None, id="w15 a full cluster admits what may take room back"),
        pytest.param({"cpu": "8"}, 8000, id="as written"),
        pytest.param({"cpu": "80"}, 10_000, id="no more than there is"),
    ],
)
def test_the_root_limits_all_together_where_it_is_given_a_capability(
    capability: dict[str, str], limit: int | None
) -> None:
    h = cluster("10", tree=True)
    _company(h)
    h.queue("root", capability=capability)
    h.group("one", queue="a", phase="Pending", min_resources={"cpu": "6"})
    h.group("two", queue="c", phase="Pending", min_resources={"cpu": "6"})
    h.session()
    plugin = capacity(h)
    plugin.job_enqueued(h.job("one"))
    vote = plugin.job_enqueueable(h.job("two"))
    if limit is None:
        assert vote is Vote.PERMIT
    else:
        assert vote == insufficient("job_enqueueable", Figures("cpu", 6000, 12_000, limit), queue="root")


# --- orders -----------------------------------------------------------------------------------------------------------


def _shares(h: Harness) -> None:
    """eng holds .8 and sci .5 of what they deserve, a .1 and c .9."""
    h.queue("root")
    h.queue("eng", deserved={"cpu": "10"})
    h.queue("sci", deserved={"cpu": "18"})
    h.queue("a", parent="eng", deserved={"cpu": "10"})
    h.queue("b", parent="eng", deserved={"cpu": "7"})
    h.queue("c", parent="sci", deserved={"cpu": "10"})
    work(h, "a", runs=1)
    work(h, "b", runs=7)
    work(h, "c", runs=9)


def test_leaves_are_compared_below_their_lowest_common_ancestor() -> None:
    h = cluster("40", tree=True)
    _shares(h)
    session = h.session()
    shares = figures(h, "share")
    assert {name: shares[name] for name in ("eng", "sci", "a", "c")} == {"eng": 0.8, "sci": 0.5, "a": 0.1, "c": 0.9}
    keys = {name: capacity(h).queue_order(queue) for name, queue in session.queues.items()}
    # c before a and b for sci's sake; a before b by their own shares; leaves before the others; these by share.
    assert sorted(keys, key=keys.__getitem__) == ["c", "a", "b", "sci", "root", "eng"]


def test_shares_of_queues_above_follow_placements() -> None:
    h = cluster("40", tree=True)
    _shares(h)
    h.group("more", queue="c")
    for i in range(9):
        h.pod(f"more{i}", group="more")
    session = h.session()
    plugin, node = capacity(h), session.nodes.by_name["n1"]
    tasks = [h.task(f"more{i}") for i in range(9)]
    statement = Statement(session)
    statement.allocate(h.job("more"), tasks, [node] * 9)
    assert figures(h, "share")["sci"] == 1
    assert plugin.queue_order(session.queues["a"]) < plugin.queue_order(session.queues["c"])
    statement.discard()
    assert plugin.queue_order(session.queues["c"]) < plugin.queue_order(session.queues["a"])


def test_the_nearest_queues_are_drained_first() -> None:
    h = cluster(tree=True)
    _company(h)
    h.queue("far")
    session = h.session()
    order = {
        name: capacity(h).victim_queue_order(session.queues[name], session.queues["a"]) for name in ("b", "c", "far")
    }
    assert order["b"] < order["c"] == order["far"]


# --- reclaim ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level, victims, protected",
    [
        pytest.param(0, ["a-runs0", "a-runs1"], {}, id="the victim's queue alone"),
        pytest.param(1, ["a-runs0"], {"a-runs1": "deserved"}, id="the queue above it too"),
        pytest.param(5, ["a-runs0"], {"a-runs1": "deserved"}, id="all of them"),
    ],
)
def test_ancestors_may_have_to_be_above_deserved_too(level: int, victims: list[str], protected: dict[str, str]) -> None:
    h = cluster("20", tree=True, level=level)
    _company(h, deserved={"cpu": "4"})
    h.queue("c", parent="sci", deserved={"cpu": "9"})
    work(h, "a", runs=2)
    work(h, "b", runs=3)
    work(h, "c", waits=1)
    h.session()
    assert reclaim(h, "c-waits0", ["a-runs0", "a-runs1"]) == (victims, protected)


# --- over sessions ---------------------------------------------------------------------------------------------------


def test_the_tree_kept_over_sessions_equals_one_built_anew() -> None:
    h = cluster("20", tree=True)
    _company(h, guarantee={"cpu": "3"})
    work(h, "a", runs=3, waits=3)
    work(h, "c", runs=1)
    h.session()
    changes: list[Callable[[], None]] = [
        lambda: h.delete_pod("a-runs0"),
        lambda: h.pod("b-more", group="a", node="n1", requests={"cpu": "2", "example.com/new": 1}),
        lambda: h.queue("b", parent="sci", guarantee={"cpu": "1"}),
        lambda: h.group("a", queue="b"),
        lambda: h.delete_queue("sci"),
        lambda: h.queue("sci"),
        lambda: h.node("n2", cpu="3"),
        lambda: h.set_phase("a-runs1", "Succeeded"),
    ]
    for change in changes:
        change()
        session = h.session()
        anew = Capacity(hierarchy=True)
        session.changed.everything = True
        anew.open(session)
        assert list(capacity(h).metrics()) == list(anew.metrics())
        for queue in session.queues.values():
            assert capacity(h).queue_order(queue) == anew.queue_order(queue)
