"""The ledger equals the integral of what pods held, to the last unit, also after kills at any write."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from sqlalchemy import event

from capcard_sched.cli.usage import record
from capcard_sched.ledger import usage_ledger
from capcard_sched.ledger.database import IN_MEMORY
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.simulation.clock import EPOCH
from tests.unit.ledger.simulated_day import SimulatedDay

DAYS = 86400.0
KILLS = 20


def used(ledger: UsageLedger) -> dict[tuple[str, ...], int]:
    """Card-time by queue and card."""
    report = ledger.usage(UsageQuery(EPOCH - DAYS, EPOCH + DAYS))
    return {row.group: row.used for row in report.rows if row.used}


def record_steps(ledger: UsageLedger, day: SimulatedDay) -> None:
    ledger.start("day", "simulation", EPOCH)
    for now, deltas, intents in day.steps:
        ledger.feed(now, deltas, intents)
    ledger.flush()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=max(10, settings().max_examples // 4))
def test_the_ledger_equals_the_integral_of_the_pods(seed: int) -> None:
    day = SimulatedDay(seed)
    with open_ledger(IN_MEMORY) as ledger:
        record_steps(ledger, day)
        assert used(ledger) == day.integral
        report = ledger.usage(UsageQuery(EPOCH - DAYS, EPOCH + DAYS, ("day", "queue", "card", "user", "service")))
        assert sum(row.used for row in report.rows) == sum(day.integral.values())
        by_card = {row.card: row.used for row in report.cards if row.used}
        cards = {card for _, card in day.integral}
        assert by_card == {card: sum(n for (_, one), n in day.integral.items() if one == card) for card in cards}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=max(10, settings().max_examples // 8))
def test_quotas_are_used_idle_or_lent(seed: int) -> None:
    day = SimulatedDay(seed)
    with open_ledger(IN_MEMORY) as ledger:
        record_steps(ledger, day)
        for row in ledger.usage(UsageQuery(EPOCH - DAYS, EPOCH + DAYS)).rows:
            if row.quota is not None:
                assert row.idle is not None
                assert row.lent is not None
                assert min(row.idle, row.lent) >= 0
                # A quota that is lowered below what pods hold is used beyond it.
                assert row.quota <= row.used + row.idle + row.lent


def _rows(ledger: UsageLedger) -> dict[str, list[tuple[object, ...]]]:
    from capcard_sched.ledger import schema

    tables = [table for table in schema.metadata.sorted_tables if table.name not in ("source", "recorder")]
    return {table.name: sorted(map(tuple, ledger.database.read(table.select())), key=repr) for table in tables}


def _watch_writes(ledger: UsageLedger, written: Callable[[], None]) -> None:
    """Call `written` before each statement that writes, and before each commit."""

    def statement(_: object, __: object, text: str, *___: object) -> None:
        if text.startswith(("INSERT", "UPDATE")):
            written()

    event.listen(ledger.database.engine, "before_cursor_execute", statement)
    event.listen(ledger.database.engine, "commit", lambda _: written())


def _killed_import(url: str, file: Path, write: int) -> None:
    """Import in a process of its own that is killed before its nth write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        writes = count(1)
        try:
            with open_ledger(url) as ledger:
                _watch_writes(ledger, lambda: os.kill(os.getpid(), signal.SIGKILL) if next(writes) == write else None)
                record(file, ledger)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.timeout(600)  # 22 imports and 20 processes
def test_twenty_kills_lose_and_double_nothing(
    new_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, file = random.Random(27), tmp_path / "day.jsonl"
    seed = next(seed for seed in range(100) if SimulatedDay(seed).evictions)
    day = SimulatedDay(seed, file)
    assert day.integral
    monkeypatch.setattr(usage_ledger, "_BATCH", 1)
    whole, killed = new_url(), new_url()
    writes: list[None] = []
    with open_ledger(whole) as ledger:
        _watch_writes(ledger, lambda: writes.append(None))
        record(file, ledger)
        expected = _rows(ledger)
        assert used(ledger) == day.integral
    most = len(writes) // KILLS
    assert most > 3
    for _ in range(KILLS):
        _killed_import(killed, file, chance.randint(1, most))
    with open_ledger(killed) as ledger:
        record(file, ledger)
        assert _rows(ledger) == expected
        assert used(ledger) == day.integral
