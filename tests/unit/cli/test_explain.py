"""`capcard-sched explain` on the demo: the line that matters, and who waits how long."""

from pathlib import Path

import pytest

from capcard_sched.cli.main import run

DEMO = Path(__file__).parents[3] / "config" / "examples" / "demo"

ANSWERS = [
    ("chat", "10m", "4 placed, minimum 1, 6 pods, waiting 10m", "Queue <serving> has insufficient <NVIDIA-H200> quota"),
    ("tracker", "2m", "0 placed, minimum 2, 0 pods, waiting 2m", "Queue <vision> has insufficient"),
    ("llm-pretrain-xl", "10m", "0 placed, minimum 2, 2 pods, waiting 10m", "0/5 nodes are unavailable"),
    ("detector", "10m", "4 placed, minimum 4, 4 pods", "nothing waits: every pod is placed"),
    ("etl", "10m", "3 placed, minimum 3, 3 pods", "nothing waits: every pod has ended"),
]


@pytest.mark.parametrize("name, until, counts, why", ANSWERS, ids=[case[0] for case in ANSWERS])
def test_the_first_lines_say_who_waits_how_long_and_why(
    name: str, until: str, counts: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", name, "-f", str(DEMO), "--until", until]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("default/")
    assert lines[1] == counts
    assert lines[2].startswith(f"Why: {why}")


def test_a_job_whose_group_is_gone_names_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "etl", "-f", str(DEMO), "--until", "10m"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "no queue" in head
    assert "missing" not in head


def test_an_unknown_name_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "nobody", "-f", str(DEMO), "--until", "1s"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "default/nobody: no such job or pod" in captured.err
