"""Bound pods: their charge follows from the node's card and the resource requests, never from annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.testing import Harness

ASSIGNED = "volcano.sh/card.assigned"


def world(harness: Callable[..., Harness], arguments: dict[str, Any] | None = None) -> Harness:
    """16 cards, a queue of 4 that are in use, and a job that waits for one more."""
    h = harness(arguments)
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="H200")
    h.queue("q", cards={"H200": 4})
    h.group("run", phase="Running", min_member=4)
    for i in range(4):
        h.pod(f"run-{i}", group="run", card="H200", cards=1, node="n1")
    h.step()
    return h


def add_job(h: Harness) -> None:
    h.group("more")
    h.pod("more-0", group="more", card="H200", cards=1)


def held(h: Harness) -> dict[str, int]:
    cards: dict[str, int] = h.plugin("capacity-card").ledger.queues["q"].own.allocated.cards
    return cards


@pytest.mark.parametrize(
    "card",
    [None, "OTHER", "OTHER|H200", "H200||", "|"],
    ids=["removed", "changed", "first alternative changed", "malformed", "empty alternatives"],
)
@pytest.mark.parametrize("mode", ["ignore", "infer", "deny"])
def test_editing_the_card_name_of_a_bound_pod_changes_no_charge(
    harness: Callable[..., Harness], card: str | None, mode: str
) -> None:
    h = world(harness, {"unnamedCards": mode})
    for i in range(4):
        h.pod(f"run-{i}", group="run", card=card, cards=1, node="n1")
    h.step()
    add_job(h)
    h.settle()
    assert held(h) == {"H200": 4000}
    assert h.binds == {}


def test_a_forged_assigned_card_changes_no_charge(harness: Callable[..., Harness]) -> None:
    h = world(harness)
    h.gpu_node("n3", card="OTHER")
    for i in range(4):
        h.pod(f"run-{i}", group="run", card="H200|OTHER", cards=1, node="n1", annotations={ASSIGNED: "OTHER"})
    add_job(h)
    h.settle()
    assert held(h) == {"H200": 4000}
    assert h.binds == {}


def test_after_a_restart_an_edited_card_name_is_charged_the_card_of_the_node(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="OTHER")
    h.queue("q", cards={"H200": 4})
    h.group("run", phase="Running", min_member=4)
    for i in range(4):
        h.pod(f"run-{i}", group="run", card="OTHER", cards=1, node="n1")
    add_job(h)
    h.settle()
    assert held(h) == {"H200": 4000}
    assert h.binds == {}


def test_under_infer_unnamed_bound_pods_are_charged_the_card_of_their_node(harness: Callable[..., Harness]) -> None:
    h = harness({"unnamedCards": "infer"})
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="OTHER")
    h.queue("q", cards={"H200": 4, "OTHER": 4})
    h.group("run", phase="Running", min_member=2)
    h.pod("run-0", group="run", cards=3, node="n1")
    h.pod("run-1", group="run", cards=2, node="n2")
    h.step()
    assert held(h) == {"H200": 3000, "OTHER": 2000}


@pytest.mark.parametrize("mode", ["infer", "deny"])
def test_a_second_card_resource_beside_the_named_card_is_refused(harness: Callable[..., Harness], mode: str) -> None:
    h = harness({"unnamedCards": mode})
    h.gpu_node("n1", card="H200", resources={"nvidia.com/mig-1g.18gb": 4})
    h.queue("q", cards={"H200": 0, "H200/mig-1g.18gb-mixed": 4})
    h.group("g")
    h.pod(
        "p",
        card="H200/mig-1g.18gb-mixed",
        requests={"nvidia.com/mig-1g.18gb": 1, "nvidia.com/gpu": 8},
        limits={"nvidia.com/mig-1g.18gb": 1, "nvidia.com/gpu": 8},
    )
    h.settle()
    assert h.binds == {}
    assert "card resources <nvidia.com/gpu, nvidia.com/mig-1g.18gb>" in h.pod_message("p")


def test_an_edit_is_reported_once_per_pod(harness: Callable[..., Harness]) -> None:
    h = world(harness)
    for card in (None, "OTHER", None, "X"):
        h.pod("run-0", group="run", card=card, cards=1, node="n1")
        h.step()
    events = [reason for reason, _ in h.event_messages("Pod", "run-0") if reason == "QuotaEvasionIgnored"]
    assert events == ["QuotaEvasionIgnored"]


def test_other_annotations_of_a_bound_pod_are_no_evasion(harness: Callable[..., Harness]) -> None:
    h = world(harness)
    h.pod("run-0", group="run", card="H200", cards=1, node="n1", annotations={"team": "x"}, labels={"a": "b"})
    h.step()
    assert not [reason for reason, _ in h.event_messages("Pod", "run-0")]
