"""Malformed scheduler-confs: an error stops the program with its place, a warning does not stop the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from capcard_sched.cli.main import run
from capcard_sched.testing import registry
from tests.malformed.case import table
from tests.malformed.world import MANIFESTS

#: Of the registry; others stand in the file.
WORDS: Final = {
    "KNOWN_ACTIONS": "allocate, backfill, enqueue, preempt, reclaim, shuffle",
    "PLUGINS": ", ".join(sorted(registry().plugin_names())),
}


class Case(NamedTuple):
    """A scheduler-conf and all its messages: `SEVERITY: PLACE: MESSAGE; accepted: FORM`."""

    id: str
    text: str | bytes
    problems: tuple[str, ...]


GOOD = 'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: capacity-card\n'
HUGE = f'"{"x" * 57}..."'
CASES = [
    *(Case(*row) for row in table("confs.yaml", WORDS)),
    Case("very deep", "tiers: " + "[" * 100_000, ("error: scheduler-conf (line 1): nested more than 32 levels deep",)),
    Case("too long", "#" * (1 << 20) + "\n", ("error: scheduler-conf: longer than 1048576 bytes",)),
    Case("an integer of many digits", "actions: " + "9" * 5000,
         (f"error: scheduler-conf (line 1): '{'9' * 60}' is not an integer: too long",)),
    Case("a program", b"\x7fELF\xff", ("error: scheduler-conf: not UTF-8 text (byte 5); is it a binary file?",)),
    Case("UTF-16", GOOD.encode("utf-16-le"),
         ("error: scheduler-conf: not valid YAML: control characters are not allowed",)),
    Case("a huge action", GOOD.replace("allocate", "allocate, " + "x" * 5000),
         (f"warning: actions (line 1): unknown action {HUGE}; skipped; accepted: {WORDS['KNOWN_ACTIONS']}",)),
    Case("a huge plugin", GOOD.replace("capacity-card", "x" * 5000),
         (f"warning: tiers[0].plugins[0].name (line 4): unknown plugin {HUGE}; skipped; accepted: {WORDS['PLUGINS']}",
          "warning: tiers (line 2): no plugin is enabled: jobs are placed wherever their requests fit")),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_an_error_stops_the_simulation_and_a_warning_does_not(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, conf = tmp_path / "good.yaml", tmp_path / "conf.yaml"
    manifests.write_text(MANIFESTS)
    conf.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    rejected = any(problem.startswith("error") for problem in case.problems)
    expected = [problem.replace(": ", f": {conf}: ", 1) for problem in case.problems]
    flags = ["-f", str(manifests), "--scheduler-conf", str(conf), "-o", "json"]
    assert run(["simulate", *flags]) == (2 if rejected else 0)
    captured = capsys.readouterr()
    if rejected:
        assert captured.out == ""
        assert captured.err.splitlines() == [*expected, f"error: {conf}: invalid scheduler-conf"]
        return
    # Without capacity-card the card quota of the manifests is one more warning.
    assert [line for line in captured.err.splitlines() if "card.quota" not in line] == expected
    pods = [item for item in json.loads(captured.out)["items"] if item["kind"] == "Pod"]
    assert [pod["spec"].get("nodeName") for pod in pods] == ["good", "good"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_validate_reports_the_same(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    rejected = any(problem.startswith("error") for problem in case.problems)
    assert run(["validate", "--scheduler-conf", str(conf), "-o", "json"]) == (2 if rejected else 0)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [
        (row["severity"], row["file"], row.get("field", ""), row["message"], row.get("accepted", ""))
        for row in findings
        if row["severity"] != "note"
    ] == [parts(problem, str(conf)) for problem in case.problems]


def parts(problem: str, conf: str) -> tuple[str, ...]:
    """Severity, file, place, message and accepted form of a line."""
    severity, place, text = problem.split(": ", 2)
    message, _, accepted = text.partition("; accepted: ")
    return severity, conf, place.removeprefix("scheduler-conf").strip(), message, accepted
