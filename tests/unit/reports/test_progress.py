"""The line of long commands."""

from __future__ import annotations

import io

import pytest

from capcard_sched.reports.progress import Progress


def test_short_commands_show_nothing_and_long_ones_their_rate_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = [0.0]
    monkeypatch.setattr("capcard_sched.reports.progress.time.monotonic", lambda: wall[0])
    output = io.StringIO()
    progress = Progress("simulating", output)
    progress.simulated(1, 2)
    progress.close()
    assert output.getvalue() == ""
    wall[0] = 1.5
    progress.simulated(3_600_000_000, 7_200_000_000)
    assert output.getvalue() == "\r\x1b[Ksimulating ██████████░░░░░░░░░░  50% 1h of 2h, 40m per second, 2s left"
    wall[0] = 1.51
    progress.simulated(3_700_000_000, 7_200_000_000)
    wall[0] = 2.0
    output.truncate(0)
    output.seek(0)
    progress.counted(3000, 0, "objects")
    progress.close()
    assert output.getvalue() == "\r\x1b[Ksimulating 3000 objects, 1500 per second\r\x1b[K"
