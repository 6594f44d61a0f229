"""Several recorders of one database: the last one that began writes, and sums are those of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text

from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.ledger import schema
from capcard_sched.ledger.database import FencedError, LedgerError
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.model.deltas import Delta, ObjectGone
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.simulation.clock import EPOCH
from tests.unit.ledger.simulated_day import SimulatedDay
from tests.unit.ledger.test_ledger_histories import DAY0, group, node, pod

LEASE = "capcard-system/pages"
KINDS = ("Node", "Queue", "PodGroup", "Pod")


def test_a_database_of_the_first_version_gets_a_recorder(new_url: Callable[[], str]) -> None:
    url = new_url()
    with open_ledger(url) as ledger, ledger.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE recorder"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with open_ledger(url) as ledger:
        ledger.start("a", "live", EPOCH)
        ledger.feed(EPOCH, [])


@pytest.mark.parametrize("behind", [0.0, 5.0], ids=["equal clocks", "clocks that differ"])
def test_handovers_lose_and_double_nothing(new_url: Callable[[], str], behind: float) -> None:
    """Two recorders alternate, and writes of the former one are refused. A pod may be gone in between."""
    seed = next(seed for seed in range(100) if SimulatedDay(seed).evictions)
    day, url, objects = SimulatedDay(seed), new_url(), DeltaObjects(())
    with open_ledger(url) as one, open_ledger(url) as two:
        writer, former = two, one
        for number, (now, deltas, intents) in enumerate(day.steps):
            for delta in deltas:
                objects.apply(delta)
            if number % 4 or any(isinstance(delta, ObjectGone) and delta.kind == "Pod" for delta in deltas):
                writer.feed(now, deltas, intents)
                continue
            writer, former = former, writer
            writer.start(f"live-{number}", "live", now - behind, lease=LEASE)
            writer.feed(now, [delta for kind in KINDS for delta in objects.of(kind).values()], intents)
            if number:
                before = list(writer.database.sources())
                with pytest.raises(FencedError, match="another process has begun to record into it"):
                    former.feed(now + 60, deltas)
                assert list(writer.database.sources()) == before
        writer.flush()
        report = writer.usage(UsageQuery(EPOCH - 86400, EPOCH + 86400))
        assert {row.group: row.used for row in report.rows if row.used} == day.integral
        assert len(writer.database.sources()) > 3


def test_what_ended_before_a_restart_stays_as_it_was(new_url: Callable[[], str]) -> None:
    """Objects of finished pods and jobs still exist; another life of one of these jobs begins later."""

    def end(name: str, phase: str) -> Delta:
        return pod(name, 2, at=DAY0 + 10, group=name, phase=phase, end=DAY0 + 50)

    present = [node(), group("whole"), group("part", least=2), group("again")]
    first = [pod(name, 2, at=DAY0 + 10, group=name) for name in ("whole", "part", "again")]
    part = pod("part-1", 2, at=DAY0 + 10, group="part")
    ended = [end("whole", "Succeeded"), end("part", "Succeeded"), end("again", "Failed")]
    with open_ledger(new_url()) as ledger:
        ledger.start("a", "live", DAY0)
        ledger.feed(DAY0 + 20, [*present, *first, part])
        ledger.feed(DAY0 + 60, ended)
        for number, now in enumerate((DAY0 + 100, DAY0 + 200)):
            ledger.start(f"b{number}", "live", now)
            ledger.feed(now, [*present, *ended, part])
        again = pod("again-2", 2, at=DAY0 + 260, group="again", creationTimestamp=format_timestamp(DAY0 + 250))
        ledger.feed(DAY0 + 300, [again])
        charges = {row.pod: row for row in ledger.database.read(schema.CHARGE.select())}
        spans = {name: (row.began // 1000 - DAY0, (row.ended or 0) // 1000 - DAY0) for name, row in charges.items()}
        lives = [(life.job.name, life.job.life, life.job.outcome) for life in ledger.history(DAY0, DAY0 + 400)]
    assert {name: span for name, span in spans.items() if name in ("whole", "part", "again")} == dict.fromkeys(
        ("whole", "part", "again"), (10, 50)
    )
    assert [charges[name].ended for name in ("part-1", "again-2")] == [None, None]
    assert not any(row.gap for row in charges.values())
    assert sorted(lives) == [("again", 1, "Failed"), ("again", 2, ""), ("part", 1, ""), ("whole", 1, "Completed")]


def test_the_holder_of_another_lease_records_only_after_silence(new_url: Callable[[], str]) -> None:
    url = new_url()
    with open_ledger(url) as one, open_ledger(url) as two:
        one.start("a", "live", EPOCH, lease=LEASE)
        one.feed(EPOCH, [])
        for lease in ("default/pages", ""):
            with pytest.raises(LedgerError, match=f"the holder of Lease {LEASE} records into it"):
                two.start("b", "live", EPOCH + 60, lease=lease)
        one.feed(EPOCH + 61, [])
        one.flush()
        two.start("b", "live", EPOCH + 200, lease="default/pages")
        with pytest.raises(FencedError):
            one.feed(EPOCH + 201, [])  # 140 s after its last write
