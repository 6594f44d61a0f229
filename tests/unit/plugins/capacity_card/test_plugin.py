"""Answers and annotations of the plugin that vectors do not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from capcard_sched.framework.api.plugin import Placement
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.plugins.capacity_card import CapacityCard
from capcard_sched.testing import Harness


def cluster(h: Harness) -> Harness:
    """Nodes `n-a` and `n-b` of two cards, a queue with quota of both, a running pod and one that waits."""
    for card in "AB":
        h.gpu_node(f"n-{card.lower()}", card=card)
    h.queue("q", cards={"A": 1, "B": 2})
    h.group("run", phase="Running")
    h.pod("run", group="run", card="A", cards=1, node="n-a")
    h.group("declared", phase="Pending", annotations={"volcano.sh/card.request": '{"A|B": 9}'})
    h.group("g", phase="Pending")
    h.pod("p", card="A|B", cards=3)
    return h


def test_a_refusal_has_the_figures_of_every_alternative(harness: Callable[..., Harness]) -> None:
    h = cluster(harness())
    h.session()
    refusal = h.plugin("capacity-card").method("allocatable")(h.state.queues["q"], h.task("p"))
    assert refusal.figures == Figures("A|B", 3000, 3000, 2000)
    assert refusal.alternatives == (Figures("A", 3000, 4000, 1000), Figures("B", 3000, 3000, 2000))
    assert (refusal.hook, refusal.component, refusal.event) == ("allocatable", "volcano.capacity-card", True)
    refusal = h.plugin("capacity-card").method("preemptive")(h.state.queues["q"], h.task("p"))
    assert (refusal.hook, refusal.component, refusal.event) == ("preemptive", "volcano.capacity-card", True)
    refusal = h.plugin("capacity-card").method("job_enqueueable")(h.job("declared"))
    assert refusal.figures == Figures("A|B", 9000, 10000, 3000)
    assert refusal.alternatives == (Figures("A", 9000, 1000, 1000), Figures("B", 9000, 0, 2000))
    assert (refusal.queue, refusal.component, refusal.pods_too, refusal.event) == ("q", "", False, True)


def test_a_run_of_pods_is_granted_by_alternative(harness: Callable[..., Harness]) -> None:
    h = cluster(harness())
    h.queue("q", cards={"A": 4, "B": 6})
    session = h.session()
    queue, task = h.state.queues["q"], h.task("p")
    grant = h.plugin("capacity-card").method("allocatable_many")(queue, session.engine.signature(queue, task), [task])
    assert (grant.count, grant.alternative_limits, grant.alternatives.tolist()) == (1, (1, 2), [0, 1])


def test_hooks_before_the_first_session_refuse(harness: Callable[..., Harness]) -> None:
    h = cluster(harness())
    h.session()
    fresh = CapacityCard()
    assert isinstance(fresh.method("job_enqueueable")(h.job("declared")), Refusal)
    assert fresh.method("allocatable")(h.state.queues["q"], h.task("p")) is not None


def test_unknown_releases_are_counted_and_change_nothing(harness: Callable[..., Harness]) -> None:
    h = cluster(harness())
    session = h.session()
    plugin, node = h.plugin("capacity-card"), session.nodes.by_name["n-a"]
    waiting = Placement(h.job("g"), h.task("p").cls, [h.task("p")], [node])
    placed = Placement(h.job("run"), h.task("run").cls, [h.task("run")], [node])
    plugin.on_deallocate(waiting)
    plugin.on_allocate(placed)
    account = plugin.accounts.ledger.queues["q"]
    assert account.own.allocated.cards == {"A": 1000}
    plugin.on_deallocate(placed)
    plugin.on_deallocate(placed)
    assert account.own.releasing.cards == {"A": 1000}
    assert [one.value for one in plugin.method("metrics")() if "internal" in one.name] == [3]


@pytest.mark.parametrize("enabled", [True, False])
def test_usage_is_published_on_queues_when_enabled(harness: Callable[..., Harness], enabled: bool) -> None:
    h = cluster(harness({"publishCardUsage": enabled}))
    h.queue("idle", cards={"A": 16})

    def published() -> Mapping[str, Mapping[str, str | None]]:
        session = h.session()
        h.plugin("capacity-card").method("close")(session)
        return session.results.queue_annotations

    assert published() == ({"q": {"volcano.sh/card.allocated": '{"A":1}'}} if enabled else {})
    h.queue("q", cards={"A": 1}, annotations={"volcano.sh/card.allocated": '{"A":1}'})
    assert published() == {}
    h.delete_pod("run")
    assert published() == ({"q": {"volcano.sh/card.allocated": None}} if enabled else {})
