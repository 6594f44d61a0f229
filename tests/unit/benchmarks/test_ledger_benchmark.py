"""The benchmark of the ledger records what it measures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ledger import measure
from capcard_sched.ledger.usage_ledger import open_ledger


def test_all_gangs_and_jobs_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    found = measure(4, 24, 2, file)
    assert found["first_file_bytes"] > 0
    with open_ledger(str(file), create=False) as ledger:
        lives = ledger.history_before(ledger.recorded_until, 10**6, "", "")
    assert sorted((len(str(life.job.outcome)) > 0, life.pods) for life in lives) == [
        (False, 8),
        (True, 1),
        (True, 1),
        (True, 8),
        (True, 8),
    ]
