"""Capacity without a tree: attributes, orders, quotas, admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.plugins.capacity import Capacity
from tests.unit.plugins.capacity.clusters import GPU, capacity, cluster, figures, work

# --- attributes -------------------------------------------------------------------------------------------------------


def test_real_capability_excludes_the_guarantees_of_others() -> None:
    h = cluster()
    h.queue("a", guarantee={"cpu": "2"}, capability={"cpu": "8"})
    h.queue("b", guarantee={"cpu": "3"})
    h.session()
    assert figures(h, "real_capacity_milli_cpu") == {"a": 7000, "b": 8000}


def test_deserved_is_capped_by_real_capability_and_raised_to_the_guarantee() -> None:
    h = cluster()
    h.queue("a", guarantee={"cpu": "2"}, capability={"cpu": "8"}, deserved={"cpu": "9"})
    h.queue("b", guarantee={"cpu": "3"})
    h.session()
    assert figures(h, "deserved_milli_cpu") == {"a": 7000, "b": 3000}


# --- orders -----------------------------------------------------------------------------------------------------------


def test_queues_are_ordered_by_priority_then_share_of_deserved() -> None:
    h = cluster("20")
    for name, deserved, priority in (("full", "4", 0), ("half", "4", 0), ("urgent", "4", 5), ("nothing", None, 0)):
        h.queue(name, deserved={"cpu": deserved} if deserved else None, priority=priority)
    h.queue("idle", deserved={"cpu": "4"})
    work(h, "full", runs=4)
    work(h, "half", runs=2)
    work(h, "urgent", runs=4)
    work(h, "nothing", runs=4)
    session = h.session()
    keys = {name: capacity(h).queue_order(queue) for name, queue in session.queues.items()}
    # Both hold nothing of what they deserve, but `idle` deserves something.
    assert sorted(keys, key=keys.__getitem__) == ["urgent", "idle", "nothing", "half", "full"]
    assert figures(h, "share") == {"full": 1, "half": 0.5, "idle": 0, "nothing": 0, "urgent": 1}


def test_without_a_tree_no_queue_is_drained_before_another() -> None:
    h = cluster()
    h.queue("a")
    h.queue("b")
    session = h.session()
    keys = {capacity(h).victim_queue_order(queue, session.queues["a"]) for queue in session.queues.values()}
    assert len(keys) == 1


# --- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deserved, may",
    [
        pytest.param({GPU: "2"}, True, id="what deserved does not name is no matter of it"),
        pytest.param({GPU: "2", "cpu": "1"}, False, id="all it names must be kept"),
        pytest.param({GPU: "0", "cpu": "9"}, False, id="zero is an amount"),
        pytest.param({"memory": "9Gi"}, False, id="no requested resource is deserved"),
        pytest.param(None, False, id="nothing is deserved"),
    ],
)
def test_entitlement_covers_the_resources_that_deserved_names(deserved: dict[str, str] | None, may: bool) -> None:
    h = cluster(resources={GPU: 8})
    h.queue("q", deserved=deserved)
    h.group("q", queue="q")
    h.pod("asks", group="q", requests={"cpu": "2", GPU: 1})
    session = h.session()
    assert (capacity(h).preemptive(session.queues["q"], h.task("asks")) is None) is may


# --- admission --------------------------------------------------------------------------------------------------------


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


def test_a_refused_group_gets_the_event_of_the_reference() -> None:
    h = cluster("4")
    h.queue("q", capability={"cpu": "1"})
    h.group("g", phase="Pending", min_resources={"cpu": "2", GPU: "1"})
    h.step()
    events = [e for e in h.events if e.object.kind == "PodGroup" and e.object.name == "g"]
    assert [(e.type, e.reason, e.message) for e in events if e.reason != "CanNeverStart"] == [
        ("Normal", "Unschedulable", f"queue resource quota insufficient: insufficient cpu, insufficient {GPU}")
    ]


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_series_of_every_queue_are_there() -> None:
    h = cluster("8", resources={GPU: 4})
    h.queue("idle", guarantee={"cpu": "2"})
    h.queue("q", capability={"cpu": "6", GPU: "3"}, deserved={"cpu": "1"})
    work(h, "q", runs=2, waits=2)
    h.session()
    samples: dict[tuple[Any, ...], float] = {(s.name, *s.labels.values()): s.value for s in capacity(h).metrics()}
    expected = {
        ("queue_allocated_milli_cpu", "q"): 2000,
        ("queue_request_milli_cpu", "q"): 4000,
        ("queue_deserved_milli_cpu", "q"): 1000,
        ("queue_capacity_milli_cpu", "q"): 6000,
        ("queue_capacity_scalar_resources", "q", GPU): 3000,
        ("queue_real_capacity_milli_cpu", "q"): 6000,
        ("queue_real_capacity_scalar_resources", "q", GPU): 3000,
        ("queue_allocated_scalar_resources", "q", "pods"): 2,
        ("queue_share", "q"): 2,
        ("queue_overused", "q"): 1,
        ("queue_request_milli_cpu", "idle"): 0,
        ("queue_deserved_milli_cpu", "idle"): 2000,
        ("queue_real_capacity_milli_cpu", "idle"): 8000,
        ("queue_overused", "idle"): 0,
    }
    assert {key: samples[key] for key in expected} == expected
    assert ("queue_capacity_milli_cpu", "idle") not in samples
    assert ("queue_capacity_memory_bytes", "q") not in samples


@pytest.mark.parametrize(("tree", "above"), [(False, 0), (True, 4000)])
def test_reservations_are_a_series_of_all_ancestors_too(tree: bool, above: int) -> None:
    h = cluster("8", tree=tree)
    h.queue("team")
    h.queue("q", parent="team")
    h.group("g", queue="q", phase="Inqueue", min_member=2, min_resources={"cpu": "6"})
    h.pod("p", group="g", node="n1", requests={"cpu": "2"})
    h.session()
    samples: dict[tuple[Any, ...], float] = {(s.name, *s.labels.values()): s.value for s in capacity(h).metrics()}
    assert samples["queue_inqueue_milli_cpu", "q"] == 4000
    assert samples["queue_inqueue_milli_cpu", "team"] == above


def test_the_argument_must_be_a_whole_number_of_levels() -> None:
    assert Capacity().arguments.ancestor_reclaim_level == 0
    assert capacity(cluster(level=2)).arguments.ancestor_reclaim_level == 2
    assert capacity(cluster(level=-1)).arguments.ancestor_reclaim_level == 0
