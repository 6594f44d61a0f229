"""Alternatives of multi-card pods: nodes, order and node filter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.model.refusal import Code, Figures
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import allocated, hold_on, nodes, scalar

GPU = "nvidia.com/gpu"


def diagnosis(h: Harness, pod: str = "p") -> Diagnosis:
    session = h.session()
    profile = session.engine.signature(h.state.queues["q"], h.task(pod))
    rows = session.all_rows()
    verdict = Diagnosis(len(rows))
    plugin = h.plugin("capacity-card")
    plugin.filter_by_card(profile, rows, verdict)
    return verdict


def scores(h: Harness, pod: str = "p") -> list[float] | None:
    session = h.session()
    profile = session.engine.signature(h.state.queues["q"], h.task(pod))
    found = h.plugin("capacity-card").score_cards(profile, session.all_rows())
    return None if found is None else [float(score) for score in found]


def test_a_pod_goes_where_its_queue_has_quota(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    hold_on(h, "A", 2)
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    found = diagnosis(h)
    assert found.reasons == {"node(s) had card <A> without quota left in queue <q>": 1}
    assert found.codes.tolist() == [Code.UNSCHEDULABLE, Code.SUCCESS]
    h.node("wake")
    h.step()
    assert h.binds == {"p": "n-b"}
    assert allocated(h) == {"A": 2000, "B": 1000}


def test_the_first_alternative_is_preferred_and_recorded(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    assert scores(h) == [100.0, 50.0]
    h.node("wake")
    h.step()
    assert h.binds == {"p": "n-a"}
    assert h.bind_annotations["p"] == {"volcano.sh/card.assigned": "A"}
    assert allocated(h) == {"A": 1000}
    assert h.plugin("capacity-card").ledger.charge_of(h.task("p")).card == "A"


@pytest.mark.parametrize("groups", [1, 4], ids=["one gang", "four jobs"])
def test_alternatives_are_used_up_in_order(harness: Callable[..., Harness], groups: int) -> None:
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    for i in range(4):
        name = f"g{i % groups}"
        if i < groups:
            h.group(name, min_member=4 // groups)
        h.pod(f"g-p-{i}", group=name, card="A|B", cards=1)
    h.step()
    assert [h.binds[f"g-p-{i}"] for i in range(4)] == ["n-a", "n-a", "n-b", "n-b"]
    assert allocated(h) == {"A": 2000, "B": 2000}


def test_a_gang_never_overdraws_an_alternative(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B", count=64)
    h.queue("q", cards={"A": 5, "B": 4})
    h.group("g", min_member=1)
    for i in range(8):
        h.pod(f"g-p-{i}", card="A|B", cards=2)
    h.settle()
    assert len(h.binds) == 4
    assert allocated(h) == {"A": 4000, "B": 4000}
    assert scalar("A|B", 2000, 6000, 4000) in h.event_messages("Pod", "g-p-7")


def test_unknown_alternatives_do_not_stop_a_pod(harness: Callable[..., Harness]) -> None:
    """Vector 63, end to end."""
    h = harness()
    nodes(h, "4090D")
    h.queue("q", cards={"4090D": 1})
    h.group("g", phase="Pending")
    h.pod("p", card="4090|4090D", cards=1)
    h.step()
    assert h.binds == {"p": "n-4090d"}
    assert h.bind_annotations["p"] == {"volcano.sh/card.assigned": "4090D"}
    assert allocated(h) == {"4090D": 1000}


def test_a_gang_beyond_the_plain_limit_is_undone_whole(harness: Callable[..., Harness]) -> None:
    h = harness({"overCommitFactor": 2})
    nodes(h, "A")
    h.queue("q", cards={"A": 3})
    h.group("g", phase="Pending", min_member=4)
    for i in range(4):
        h.pod(f"g-p-{i}", card="A", cards=1)
    h.step()
    assert h.phases["g"] == "Inqueue"
    assert h.binds == {}
    assert allocated(h) == {}
    refused = [i for i in range(4) if scalar("A", 1000, 4000, 3000) in h.event_messages("Pod", f"g-p-{i}")]
    assert refused == [3]
    assert h.pod_message("g-p-3") == scalar("A", 1000, 4000, 3000)[1]


def test_a_run_of_pods_is_allowed_as_one_by_one(harness: Callable[..., Harness]) -> None:
    """`allocatable_many` counts what one after the other would fit, whichever dimension ends it."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 3, "B": 4}, capability={"cpu": "6", "memory": "1Ti"})
    h.group("g", min_member=8)
    for i in range(8):
        h.pod(f"g-p-{i}", card="A|B", requests={"cpu": "1", GPU: 1})
    session = h.session()
    queue, tasks = h.state.queues["q"], session.pending_tasks(h.job("g"))
    grant = h.plugin("capacity-card").allocatable_many(queue, session.engine.signature(queue, tasks[0]), tasks)
    assert grant.count == 6
    assert grant.refusal.reason == "InsufficientCPUQuota"
    assert grant.refusal.figures == Figures("cpu", 1000, 7000, 6000)
    assert grant.alternative_limits == (3, 4)
    assert np.array_equal(grant.alternatives, [0, 1])


class TestSameCardForAllPods:
    """`multiCardJobMode: single`."""

    def test_the_first_pod_fixes_the_card_of_the_rest(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=2)
        h.queue("q", cards={"A": 4, "B": 4})
        h.group("g", min_member=1)
        for i in range(4):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.settle()
        assert set(h.binds.values()) == {"n-a"}
        assert len(h.binds) == 2
        assert "1 node(s) had card <B>, but pods of this job use card <A>" in h.pod_message("g-p-3")

    def test_a_gang_takes_the_alternative_that_carries_all_of_it(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=8)
        h.queue("q", cards={"A": 2, "B": 3})
        h.group("g", phase="Pending", min_member=3)
        for i in range(3):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.step()
        assert set(h.binds.values()) == {"n-b"}
        assert len(h.binds) == 3

    def test_quota_of_the_other_card_does_not_help_later_pods(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=8)
        h.queue("q", cards={"A": 2, "B": 3})
        h.group("g", min_member=1)
        for i in range(4):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.settle()
        assert allocated(h) == {"A": 2000}
        assert h.pod_message("g-p-3") == scalar("A|B", 1000, 3000, 2000)[1]
