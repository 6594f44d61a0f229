"""Jobs whose minimum exceeds a limit of their queue reserve nothing, and finished groups stay finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.testing import Harness

TEXT = "can never start: needs 16, quota is 8 (<H200> of Queue <q>); nothing is reserved for it"


def world(harness: Callable[..., Harness], quota: int = 8) -> Harness:
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="H200")
    h.queue("q", cards={"H200": quota})
    return h


def add(h: Harness, name: str, pods: int, cards: int, *, declared: int = 0, minimum: int = 0) -> None:
    notes = {"volcano.sh/card.request": f'{{"H200": {declared}}}'} if declared else {}
    h.group(name, phase="Pending", min_member=minimum or pods, annotations=notes)
    for i in range(pods):
        h.pod(f"{name}-p-{i}", group=name, card="H200", cards=cards)


def test_an_admitted_gang_above_the_quota_blocks_no_declared_job(harness: Callable[..., Harness]) -> None:
    h = world(harness)
    h.group("dead", phase="Inqueue", min_member=2)
    for i in range(2):
        h.pod(f"dead-p-{i}", group="dead", card="H200", cards=8)
    h.settle()
    add(h, "small", 1, 4, declared=4)
    h.settle()
    assert h.binds.keys() == {"small-p-0"}
    assert ("CanNeverStart", TEXT) in h.event_messages("PodGroup", "dead")
    conditions = {c.type: (c.status, c.reason, c.message) for c in h.job("dead").conditions}
    assert conditions["CanNeverStart"] == ("True", "CanNeverStart", TEXT)
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert not account.own.inqueue


def test_an_overcommitted_gang_above_the_quota_reserves_nothing(harness: Callable[..., Harness]) -> None:
    h = harness({"overCommitFactor": 2})
    for node in ("n1", "n2"):
        h.gpu_node(node, card="H200")
    h.queue("q", cards={"H200": 8})
    add(h, "dead", 2, 8)
    h.settle()
    assert h.job("dead").phase == "Inqueue"
    add(h, "small", 2, 4, declared=8)
    h.settle()
    ledger = h.plugin("capacity-card").ledger
    ledger.recompute()
    assert not ledger.queues["q"].own.inqueue
    assert h.binds.keys() == {"small-p-0", "small-p-1"}


@pytest.mark.parametrize(
    ("claim", "quotas", "impossible"),
    [
        ("A|B", {"A": 4, "B": 4}, False),
        ("A|B", {"A": 4, "B": 3}, True),
        ("A|B", {"A": 8}, False),
    ],
)
def test_alternatives_of_a_job_add_up(
    harness: Callable[..., Harness], claim: str, quotas: dict[str, int], impossible: bool
) -> None:
    h = harness()
    for card in ("A", "B"):
        h.gpu_node(f"n-{card}", card=card)
    h.queue("q", cards=quotas)
    h.group("g", phase="Inqueue", min_member=8)
    for i in range(8):
        h.pod(f"p-{i}", card=claim, cards=1)
    h.session()
    ledger = h.plugin("capacity-card").ledger
    ledger.recompute()
    assert (ledger.jobs["default/g"].impossible is not None) == impossible
    assert (ledger.queues["q"].own.inqueue == {}) == impossible


# --- finished groups --------------------------------------------------------------------------------------------------


def finished(harness: Callable[..., Harness]) -> Harness:
    h = world(harness)
    h.group("done", phase="Running", min_member=2, annotations={"volcano.sh/card.request": '{"H200": 8}'})
    for i in range(2):
        h.pod(f"done-{i}", group="done", card="H200", cards=4, node="n1", phase="Succeeded")
    h.settle()
    assert h.job("done").phase == "Completed"
    return h


def test_a_completed_group_stays_completed_when_its_pods_are_deleted(harness: Callable[..., Harness]) -> None:
    h = finished(harness)
    for i in range(2):
        h.delete_pod(f"done-{i}")
    add(h, "next", 2, 4, declared=8)
    h.settle()
    assert h.job("done").phase == "Completed"
    assert h.binds.keys() == {"next-p-0", "next-p-1"}


def test_new_pending_pods_reopen_a_completed_group(harness: Callable[..., Harness]) -> None:
    h = finished(harness)
    for i in range(2):
        h.delete_pod(f"done-{i}")
        h.pod(f"again-{i}", group="done", card="H200", cards=4)
    h.settle()
    assert h.binds.keys() == {"again-0", "again-1"}
    assert h.job("done").phase == "Running"
