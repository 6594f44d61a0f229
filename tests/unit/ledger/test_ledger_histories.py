"""Gaps between sources, retention, and the rules of charges and lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from capcard_sched.ledger import schema
from capcard_sched.ledger.card_lives import card_lives
from capcard_sched.ledger.database import IN_MEMORY, LedgerError
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Evict
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, QueueObject
from capcard_sched.model.timestamps import format_timestamp

H200 = "NVIDIA-H200"
#: 2026-01-01T00:00:00Z.
DAY0 = 1767225600
HOUR = 3600


def node(cards: int = 8, **spec: Any) -> Delta:
    labels = {"nvidia.com/gpu.product": H200, "nvidia.com/gpu.memory": "100"}
    value = {
        "metadata": {"name": "n1", "labels": labels},
        "spec": spec,
        "status": {"allocatable": {"nvidia.com/gpu": cards}},
    }
    return ObjectChanged(msgspec.convert(value, NodeObject))


def queue(name: str, cards: int) -> Delta:
    notes = {"volcano.sh/card.quota": f'{{"{H200}": {cards}}}'}
    return ObjectChanged(msgspec.convert({"metadata": {"name": name, "annotations": notes}}, QueueObject))


def group(name: str = "g", least: int = 1, phase: str = "Inqueue", queue: str = "q") -> Delta:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": format_timestamp(DAY0)}
    spec = {"minMember": least, "queue": queue}
    return ObjectChanged(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, PodGroupObject))


def pod(
    name: str, cards: int = 1, at: float | None = None, phase: str = "Running", end: float = 0, **more: Any
) -> Delta:
    """A pod of group `g`, bound `at` Unix seconds unless None; `end`: of a finished one."""
    notes = {"scheduling.k8s.io/group-name": more.pop("group", "g")}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": notes,
            "creationTimestamp": format_timestamp(DAY0), **more}  # fmt: skip
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": cards}}}
    conditions = []
    if at is not None:
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": format_timestamp(at)})
    if end:
        conditions.append({"type": "Ready", "status": "False", "reason": "PodCompleted",
                           "lastTransitionTime": format_timestamp(end)})  # fmt: skip
    spec = {"containers": [container], **({"nodeName": "n1"} if at is not None else {})}
    status = {"phase": phase if at is not None else "Pending", "conditions": conditions}
    return ObjectChanged(msgspec.convert({"metadata": meta, "spec": spec, "status": status}, PodObject))


def gone(name: str) -> Delta:
    return ObjectGone("Pod", "ns", name, f"uid-{name}")


@pytest.fixture
def ledger() -> Iterator[UsageLedger]:
    with open_ledger(IN_MEMORY) as found:
        yield found


def start(ledger: UsageLedger, source: str, at: float, *deltas: Delta) -> None:
    """A live source with its first step."""
    ledger.start(source, "live", at)
    ledger.feed(at, [node(), queue("q", 4), group(least=2), *deltas])


def charges(ledger: UsageLedger) -> list[tuple[Any, ...]]:
    """Pod, began and ended in seconds since DAY0, reason, gap."""
    table = schema.CHARGE
    rows = ledger.database.read(table.select().order_by(table.c.began, table.c.pod))
    return [
        (
            row.pod,
            row.began / 1000 - DAY0,
            None if row.ended is None else row.ended / 1000 - DAY0,
            row.end_reason,
            row.gap,
        )
        for row in rows
    ]


def hours(ledger: UsageLedger, *by: Any, since: float = DAY0, until: float = DAY0 + 1000 * HOUR) -> dict[Any, float]:
    rows = ledger.usage(UsageQuery(since, until, by or ("queue", "card"))).rows
    return {row.group: row.used / 3.6e9 for row in rows if row.used}


def test_pods_that_run_when_the_first_source_begins_count_from_their_binding(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0 + 100, pod("p", at=DAY0 + 10), pod("done", at=DAY0 + 5, phase="Succeeded", end=DAY0 + 50))
    assert charges(ledger) == [("done", 5, 50, "Completed", False), ("p", 10, None, "", False)]


def test_a_gap_is_closed_from_what_still_exists_and_marked_where_it_does_not(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0, *(pod(name, at=DAY0) for name in ("stays", "ends", "vanishes", "unstamped")))
    ledger.feed(DAY0 + 100, [])
    ledger.flush()
    new, late = pod("new", at=DAY0 + 250), pod("late", at=DAY0 + 300)
    ended = pod("ends", at=DAY0, phase="Failed", end=DAY0 + 150)
    start(
        ledger, "b", DAY0 + 300, pod("stays", at=DAY0), ended, pod("unstamped", at=DAY0, phase="Succeeded"), new, late
    )
    ledger.feed(DAY0 + 400, [gone("stays")])
    assert charges(ledger) == [
        ("ends", 0, 150, "Failed", False),
        ("stays", 0, 400, "Deleted", False),
        ("unstamped", 0, 100, "Completed", True),
        ("vanishes", 0, 100, "Lost", True),
        ("new", 250, None, "", False),
        ("late", 300, None, "", False),
    ]
    notes = ledger.usage(UsageQuery(DAY0, DAY0 + HOUR)).notes
    assert notes == ["2 pods began or ended in a gap of the records: the card-time is a lower bound"]


def test_a_job_that_is_gone_after_a_gap_is_lost_and_a_quota_that_is_gone_ends(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0, pod("p", at=DAY0))
    ledger.feed(DAY0 + 100, [])
    ledger.flush()
    ledger.start("b", "live", DAY0 + 500)
    ledger.feed(DAY0 + 500, [node(4)])
    (life,) = ledger.history(DAY0, DAY0 + HOUR)
    assert (life.job.outcome, life.job.gap, life.job.ended) == ("Lost", True, (DAY0 + 100) * 1000)
    assert [(one.stage, one.ended) for one in life.stages][-1] == ("GangWaiting", (DAY0 + 100) * 1000)
    quotas = [(row.at // 1000 - DAY0, row.thousandths) for row in ledger.database.read(schema.QUOTA.select())]
    assert quotas == [(0, 4000), (500, None)]
    totals = [(row.at // 1000 - DAY0, row.total) for row in ledger.database.read(schema.CAPACITY.select())]
    assert totals == [(0, 8000), (500, 4000)]


def test_lives_of_jobs_have_ended_only_where_they_ended_by_themselves(ledger: UsageLedger) -> None:
    """Times in seconds; `late` began between the sources, and the end of `unstamped` fell into that gap."""

    def one(name: str, at: float, phase: str = "Running", end: float = 0) -> list[Delta]:
        return [group(name), pod(name, 2, at=DAY0 + at, group=name, phase=phase, end=DAY0 + end if end else 0)]

    first = [*one("done", 10), *one("lost", 10), *one("runs", 10), *one("unstamped", 10), *one("evicted", 10)]
    ledger.start("a", "live", DAY0 + 20)
    ledger.feed(DAY0 + 20, [node(32), *first], [Evict("ns", "evicted", "uid-evicted", "", "preempted by x")])
    ledger.feed(DAY0 + 60, [*one("done", 10, "Succeeded", 50), gone("evicted")])
    ledger.feed(DAY0 + 100, [])
    ledger.flush()
    ledger.start("b", "live", DAY0 + 500)
    ledger.feed(DAY0 + 500, [node(32), *one("runs", 10), *one("late", 300), *one("unstamped", 10, "Succeeded")])
    ledger.flush()
    lives = {life.name: life for life in card_lives(ledger.database)}
    found = {
        name: (life.began / 1000 - DAY0, life.observed_from / 1000 - DAY0, life.last / 1000 - DAY0, life.ended)
        for name, life in lives.items()
    }
    assert found == {
        "done": (10, 20, 50, True),
        "evicted": (10, 20, 60, False),
        "lost": (10, 20, 100, False),
        "runs": (10, 20, 500, False),
        "late": (300, 500, 500, False),
    }
    assert (lives["done"].card, lives["done"].per_pod, lives["done"].total) == (H200, 2000, 2000)
    assert "done" not in {life.name for life in card_lives(ledger.database, {"uid-done"})}


def test_a_source_before_the_last_record_of_another_one_is_refused(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0 + 100)
    for kind, began in (("recording", DAY0 + 100), ("live", DAY0 + 89)):  # clocks of replicas differ by less
        with pytest.raises(LedgerError, match="it has records of a later or the same time"):
            ledger.start("b", kind, began)


def test_a_gang_waits_for_its_minimum_and_is_degraded_without_it(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0, pod("p0"), pod("p1"))
    ledger.feed(DAY0 + 10, [pod("p0", at=DAY0 + 10)])
    ledger.feed(DAY0 + 30, [pod("p1", at=DAY0 + 30)])
    evicted = Evict(namespace="ns", name="p0", uid="uid-p0", node="n1", reason="reclaim", message="reclaim: x")
    ledger.feed(DAY0 + 50, [gone("p1")], [evicted])
    ledger.feed(DAY0 + 80, [gone("p0")])
    ledger.feed(DAY0 + 90, [pod("p2")])
    first, second = ledger.history(DAY0, DAY0 + HOUR)
    stages = [(one.stage, one.began // 1000 - DAY0, (one.ended or 0) // 1000 - DAY0) for one in first.stages]
    assert stages == [("Pending", 0, 10), ("GangWaiting", 10, 30), ("Scheduled", 30, 50), ("Degraded", 50, 80)]
    assert (first.job.outcome, first.preemptors, first.card_time) == (
        "Evicted",
        ["reclaim: x"],
        1000 * 1000 * (70 + 20),
    )
    assert (second.job.life, second.job.submitted // 1000 - DAY0) == (2, 80)
    assert [one.stage for one in second.stages] == ["Pending"]


def test_a_pod_with_another_uid_ends_the_charge_of_the_first(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0, pod("p", at=DAY0))
    ledger.feed(DAY0 + 60, [pod("p", cards=2, at=DAY0 + 60, uid="other")])
    ledger.feed(DAY0 + 100, [ObjectGone("Pod", "ns", "p", "uid-p")])  # of the first one, late
    ledger.feed(DAY0 + 120, [])
    assert charges(ledger) == [("p", 0, 60, "Deleted", False), ("p", 60, None, "", False)]


def test_cordoned_nodes_are_unavailable(ledger: UsageLedger) -> None:
    start(ledger, "a", DAY0)
    ledger.feed(DAY0 + HOUR, [node(unschedulable=True)])
    ledger.feed(DAY0 + 2 * HOUR, [])
    ledger.flush()
    (card,) = ledger.usage(UsageQuery(DAY0, DAY0 + 2 * HOUR)).cards
    assert (card.capacity / 3.6e9, card.unavailable / 3.6e9) == (16, 8)


@pytest.mark.parametrize("keep", [0.0, 12 * HOUR, 36 * HOUR])
def test_a_roll_up_keeps_the_card_hours_of_every_day(new_url: Callable[[], str], keep: float) -> None:
    """Twice: before and after the pod that lasts has ended."""
    with open_ledger(new_url()) as ledger:
        start(ledger, "a", DAY0, pod("long", at=DAY0), pod("p", at=DAY0), queue("other", 8))
        ledger.feed(
            DAY0 + 20 * HOUR, [gone("p"), group("h", queue="other"), pod("lent", 6, at=DAY0 + 20 * HOUR, group="h")]
        )
        ledger.feed(DAY0 + 30 * HOUR, [gone("lent")])
        ledger.feed(DAY0 + 50 * HOUR, [])
        ledger.flush()
        by = ("day", "queue", "card")

        def report() -> Any:
            found = ledger.usage(UsageQuery(DAY0, DAY0 + 1000 * HOUR, by))  # type: ignore[arg-type]
            rows = [(row.group, row.used, row.quota, row.idle, row.lent) for row in found.rows]
            return rows, [(card.card, card.used, card.capacity) for card in found.cards]

        before = report()
        ledger.keep(keep)
        assert report() == before
        ledger.feed(DAY0 + 60 * HOUR, [gone("long")])
        ledger.feed(DAY0 + 100 * HOUR, [])
        ledger.flush()
        after = report()
        ledger.keep(keep)
        ledger.keep(keep)
        assert report() == after
        assert hours(ledger) == {("q", H200): 80.0, ("other", H200): 60.0}
        assert [row[0] for row in charges(ledger)] == (["long"] if keep == 36 * HOUR else [])
