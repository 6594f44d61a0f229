"""What held at a moment, summed by the database, against sums of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from capcard_sched.ledger import schema
from capcard_sched.ledger.past_state import past_jobs, past_state
from capcard_sched.ledger.rows import CapacityRow, ChargeRow, JobRecord, QuotaRecord, StageRow
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.simulation.clock import EPOCH
from tests.unit.ledger.simulated_day import SimulatedDay

DAY = 86_400_000


def recorded(ledger: UsageLedger, seed: int) -> None:
    ledger.start("day", "simulation", EPOCH)
    for now, deltas, intents in SimulatedDay(seed).steps:
        ledger.feed(now, deltas, intents)
    ledger.flush()


def moments(ledger: UsageLedger, random: Random) -> list[int]:
    """Random moments, and those at which something begins or ends."""
    begin, end = round(ledger.recorded_since * 1000), round(ledger.recorded_until * 1000)
    edges = [row.began for row in ledger.database.read(schema.CHARGE.select())]
    edges += [row.ended for row in ledger.database.read(schema.STAGE.select()) if row.ended is not None]
    near = [edge + step for edge in random.sample(edges, min(len(edges), 6)) for step in (-1, 0, 1)]
    return [at for at in (begin, end, *near, *(random.randint(begin, end) for _ in range(4))) if begin <= at <= end]


@pytest.mark.parametrize("seed", [6, 9, 33])
def test_sums_of_a_moment_are_those_of_its_rows(new_url: Callable[[], str], seed: int) -> None:
    with open_ledger(new_url()) as ledger:
        recorded(ledger, seed)
        read, began = ledger.database.read, round(ledger.recorded_since * 1000)
        charges = [schema.read_row(ChargeRow, row) for row in read(schema.CHARGE.select())]
        jobs = [schema.read_row(JobRecord, row) for row in read(schema.JOB.select())]
        stages = [schema.read_row(StageRow, row) for row in read(schema.STAGE.select())]
        capacity = [schema.read_row(CapacityRow, row) for row in read(schema.CAPACITY.select())]
        quotas = [schema.read_row(QuotaRecord, row) for row in read(schema.QUOTA.select())]
        assert charges
        for at in moments(ledger, Random(seed)):
            state, begin = past_state(ledger.database, at, began), max(at - DAY, began)
            used: Counter[tuple[str, str, str]] = Counter()
            held: Counter[tuple[str, str, str]] = Counter()
            pods: Counter[tuple[str, int]] = Counter()
            for one in charges:
                key, end = (one.queue, one.card, one.namespace), at if one.ended is None else min(one.ended, at)
                used[key] += one.thousandths * max(0, end - max(one.began, begin))
                if one.began <= at and (one.ended is None or one.ended > at):
                    held[key] += one.thousandths
                    pods[one.job_uid, one.life] += 1
            assert {row[:3]: row.used for row in state.held if row.used} == {key: n for key, n in used.items() if n}
            assert {row[:3]: row.thousandths for row in state.held if row.thousandths} == +held
            assert sum(row.pods for row in state.held) == pods.total()
            last = [one for one in jobs if one.submitted <= at and (one.ended is None or one.ended > at)]
            stage = {
                (one.uid, one.life): one.stage
                for one in sorted(stages, key=lambda one: one.began)
                if one.began <= at and (one.ended is None or one.ended > at)
            }
            expected = sorted(
                (one.namespace, one.name, one.queue, stage.get((one.uid, one.life), ""), pods[one.uid, one.life])
                for one in last
            )
            found = past_jobs(ledger.database, at)
            assert sorted((one.namespace, one.name, one.queue, one.stage, one.pods) for one in found) == expected
            counts = Counter((one[2], one[0], one[3]) for one in expected)
            assert {row[:3]: row.jobs for row in state.jobs} == counts
            waiting = past_jobs(ledger.database, at, without=("", "Scheduled"))
            assert waiting == [one for one in found if one.stage not in ("", "Scheduled")]
            evicted = [one for one in charges if one.end_reason == "Evicted" and at - DAY < (one.ended or 0) <= at]
            assert sorted(one.pod_uid for one in state.evicted) == sorted(one.pod_uid for one in evicted)
            then = {row.card: row for row in sorted(capacity, key=lambda row: row.at) if row.at <= at}
            assert state.capacity == then
            known = {(row.queue, row.card): row for row in sorted(quotas, key=lambda row: row.at) if row.at <= at}
            assert state.quotas == {key: row for key, row in known.items() if row.thousandths is not None}
