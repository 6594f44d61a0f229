"""Rules that proportion and capacity share, as both stand on the same accounts of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.api.node_view import PodSignature
from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import Vote
from capcard_sched.plugins.capacity import Capacity
from capcard_sched.plugins.proportion import Proportion
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import GPU, insufficient, work

PLUGINS: dict[str, type[Proportion | Capacity]] = {"proportion": Proportion, "capacity": Capacity}

pytestmark = pytest.mark.parametrize("name", PLUGINS)


def _cluster(name: str, cpu: str = "10", **node: Any) -> Harness:
    h = Harness(f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: {name}}}]}}]')
    h.node("n1", cpu=cpu, pods=10_000, **node)
    return h


def test_a_capability_of_zero_limits_cards_but_not_cpu(name: str) -> None:
    h = _cluster(name, resources={GPU: 8})
    h.queue("q", capability={"cpu": "0", GPU: "0"})
    h.group("g", queue="q")
    h.pod("p0", requests={"cpu": "1"})
    h.pod("p1", requests={GPU: 1})
    queue = h.session().queues["q"]
    assert h.plugin(name).allocatable(queue, h.task("p0")) is None
    refusal = h.plugin(name).allocatable(queue, h.task("p1"))
    assert refusal == insufficient("allocatable", Figures(GPU, 1000, 1000, 0), f"insufficient {GPU}", plugin=name)


def test_figures_kept_over_sessions_equal_those_of_a_new_plugin(name: str) -> None:
    h = _cluster(name)
    h.queue("a", deserved={"cpu": "4"})
    h.queue("b", guarantee={"cpu": "2"}, weight=3)
    work(h, "a", runs=2, waits=20)
    work(h, "b", waits=3)
    h.session()
    changes: list[Callable[[], object]] = [
        lambda: h.delete_pod("a-runs0"),
        lambda: h.pod("b-more", group="b", requests={"cpu": "2", "example.com/new": 1}),
        lambda: h.queue("c", guarantee={"cpu": "1"}),
        lambda: h.queue("b", weight=1, capability={"cpu": "4"}),
        lambda: h.group("a", queue="c"),
        lambda: h.delete_queue("a"),
        lambda: h.node("n2", cpu="3"),
        lambda: h.pod("c-runs", group="a", node="n1", requests={"cpu": "1"}),
    ]
    for change in changes:
        change()
        session = h.session()
        anew = PLUGINS[name]()
        session.changed.everything = True
        anew.open(session)
        assert list(h.plugin(name).metrics()) == list(anew.metrics())


def test_shares_follow_placements_and_nominations(name: str) -> None:
    h = _cluster(name, "8")
    h.queue("q", deserved={"cpu": "4"})
    work(h, "q", waits=4)
    session = h.session()
    plugin, queue, node = h.plugin(name), session.queues["q"], session.nodes.by_name["n1"]
    statement = Statement(session)
    statement.allocate(h.job("q"), [h.task("q-waits0")], [node])
    assert plugin.queue_order(queue)[:2] == (0, 0.25)
    statement.pipeline(h.job("q"), [h.task("q-waits1"), h.task("q-waits2")], [node, node])
    assert plugin.queue_order(queue)[:2] == (0, 0.75)
    statement.discard()
    assert plugin.queue_order(queue)[:2] == (0, 0)


def test_allocatable_counts_placements_and_nominations_of_the_session(name: str) -> None:
    h = _cluster(name, "5")
    h.queue("q", capability={"cpu": "3"}, deserved={"cpu": "1"})
    work(h, "q", runs=1, waits=4)
    session = h.session()
    plugin, queue, node = h.plugin(name), session.queues["q"], session.nodes.by_name["n1"]
    tasks = [h.task(f"q-waits{i}") for i in range(4)]
    refusal = insufficient("allocatable", Figures("cpu", 1000, 4000, 3000), plugin=name)
    profile = PodSignature(tasks[0].cls, {}, 0)
    assert plugin.allocatable_many(queue, profile, tasks) == Grant(2, refusal)
    assert plugin.allocatable_many(queue, profile, tasks[:2]) == Grant(2)
    Statement(session).pipeline(h.job("q"), tasks[:2], [node, node])
    assert plugin.allocatable(queue, tasks[2]) == refusal
    if name == "proportion":  # what capacity reclaims is bounded by the deserved amount
        figures = Figures("cpu", 1000, 4000, 3000)
        assert plugin.preemptive(queue, tasks[2]) == insufficient("preemptive", figures, plugin=name)


def test_insufficient_resources_are_named_in_full(name: str) -> None:
    h = _cluster(name, "8", memory="8Gi")
    h.queue("q", capability={"cpu": "2", "memory": "4Gi"})
    h.group("g")
    h.pod("p0", node="n1", requests={"cpu": "1", "memory": "2Gi"})
    h.pod("p1", requests={"cpu": "2", "memory": "3Gi"})
    refusal = h.plugin(name).allocatable(h.session().queues["q"], h.task("p1"))
    both = "insufficient cpu, insufficient memory"
    assert refusal == insufficient("allocatable", Figures("cpu", 2000, 3000, 2000), both, plugin=name)


@pytest.mark.parametrize("hook", ["allocatable", "preemptive"])
def test_a_closed_queue_gets_nothing(name: str, hook: str) -> None:
    h = _cluster(name)
    h.queue("q", state="Closed", deserved={"cpu": "5"})
    work(h, "q", waits=1)
    refusal = getattr(h.plugin(name), hook)(h.session().queues["q"], h.task("q-waits0"))
    assert refusal == Refusal(hook, name, "QueueNotOpen", "Queue <q> is <Closed>", queue="q")


def test_admission_counts_allocated_and_admitted_but_not_elastic(name: str) -> None:
    h = _cluster(name, "7")
    h.queue("q")
    h.group("elastic", phase="Running", min_resources={"cpu": "3"})
    for i in range(4):
        h.pod(f"p{i}", group="elastic", node="n1")
    h.group("admitted", phase="Inqueue", min_resources={"cpu": "1"})
    h.group("big", phase="Pending", min_resources={"cpu": "3"})
    h.group("small", phase="Pending", min_resources={"cpu": "1"})
    h.session()
    plugin = h.plugin(name)
    assert plugin.job_enqueueable(h.job("big")) is Vote.PERMIT
    assert plugin.job_enqueueable(h.job("small")) is Vote.PERMIT  # a vote reserves nothing
    plugin.job_enqueued(h.job("big"))
    refusal = insufficient("job_enqueueable", Figures("cpu", 1000, 8000, 7000), plugin=name)
    assert plugin.job_enqueueable(h.job("small")) == refusal


@pytest.mark.parametrize("cpu", ["2", "3"])
def test_admission_stays_exact_while_admitted_groups_are_placed(name: str, cpu: str) -> None:
    """The third core of a group whose minimum is two is elastic."""
    h = _cluster(name, "4")
    h.queue("q")
    h.group("admitted", phase="Inqueue", min_resources={"cpu": "2"})
    h.pod("p0", group="admitted", requests={"cpu": cpu})
    h.group("next", phase="Pending", min_resources={"cpu": "2"})
    session = h.session()
    plugin = h.plugin(name)
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT
    statement = Statement(session)
    statement.allocate(h.job("admitted"), [h.task("p0")], [session.nodes.by_name["n1"]])
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT
    statement.discard()
    assert plugin.job_enqueueable(h.job("next")) is Vote.PERMIT


def test_reservations_count_cards_in_the_same_unit_as_requests(name: str) -> None:
    h = _cluster(name, resources={GPU: 8})
    h.queue("q")
    h.group("partly", phase="Running", min_resources={GPU: "6"})
    h.pod("p0", group="partly", node="n1", requests={GPU: 2})
    h.pod("p1", group="partly", requests={GPU: 4})
    h.group("a", phase="Pending", min_resources={GPU: "3"})
    h.session()
    refusal = insufficient("job_enqueueable", Figures(GPU, 3000, 9000, 8000), f"insufficient {GPU}", plugin=name)
    assert h.plugin(name).job_enqueueable(h.job("a")) == refusal
