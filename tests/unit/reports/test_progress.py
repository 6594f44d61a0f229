"""The bar of long runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from capcard_sched.reports.progress import SimulationProgress


def test_short_runs_draw_no_bar_and_long_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [0.0]
    monkeypatch.setattr("capcard_sched.reports.progress.time.monotonic", lambda: wall[0])
    output = io.StringIO()
    progress = SimulationProgress(Console(file=output, force_terminal=True, width=100))
    progress.update(1, 2)
    assert output.getvalue() == ""
    wall[0] = 1.5
    progress.update(3_600_000_000, 7_200_000_000)
    progress.close()
    assert "1h of 2h" in output.getvalue()
