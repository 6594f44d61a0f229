"""The time machine of a recording."""

from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from tests.daemon.recording.day import Event, record
from tests.web.served import serving

_HAPPENINGS = [*["pod"] * 3, "step", *["echo"] * 3, "step", "step", "finish", "step"]


def test_each_step_of_a_recording_is_a_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recording"
    record(path, [Event(what, number) for number, what in enumerate(_HAPPENINGS)])
    with serving("--recording", str(path)) as served:
        overview = served.get("/api/v1/overview").json
        length = overview["moment"]["length"]
        assert overview["moment"]["at"] == length > 0

        def used(at: float) -> float:
            rows = served.get(f"/api/v1/queues?at={at:g}").json["queues"]
            cells = [cell for row in rows for cell in row["resources"] if row["queue"] == "q"]
            return float(sum(cell["used"] for cell in cells if cell["card"] == "cpu"))

        amounts = [used(at) for at in range(int(length) + 1)]
        assert amounts[0] == 0
        assert len(set(amounts)) > 1
        assert served.get(f"/?at={length + 60:g}").status == 400
        assert served.get("/api/v1/what-if?quota=q/A=6").json["error"] == ""
    report = tmp_path / "report.html"
    capsys.readouterr()
    assert run(["replay", str(path), "--report", str(report)]) == 0
    assert "Largest free block" in report.read_text("utf-8")
