"""Situations of a platform team: the answer of `explain` contains these facts, and not those. The JSON is valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.reports.explain import print_diagnosis
from tests.insight.json_schema import violations
from tests.scenarios.notation import expanded

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = yaml.safe_load((HERE / "cases.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((HERE.parents[1] / "docs" / "diagnosis.schema.json").read_text())


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    """The answer of `explain` as text and as JSON, of one run: the JSON has all that the text has."""
    assert run(["explain", *words, "-o", "json"]) == 0
    printed = capsys.readouterr().out
    document = json.loads(printed)
    assert violations(document, SCHEMA, SCHEMA) == []
    print_diagnosis(msgspec.json.decode(printed, type=JobDiagnosis))
    return capsys.readouterr().out, document


def check(case: dict[str, Any], text: str, document: dict[str, Any]) -> None:
    """Compare an answer, as text and as JSON, with a case."""
    assert violations(document, SCHEMA, SCHEMA) == []
    assert document["stage"] == case["stage"], text
    lines = "\n".join(" ".join(line.split()) for line in text.splitlines())
    for fact in case["contains"]:
        assert fact in lines, f"{fact!r} is missing:\n{text}"
    for other in case.get("lacks", ()):
        assert other not in lines, f"{other!r} is there:\n{text}"
    first = text.splitlines()[0]
    assert document["summary"] in first, "the first line is the answer"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}, {case['name']}, {case['until']}")
def test_the_answer_has_the_facts_of_the_situation(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = str(expanded(HERE / "situations" / f"{case['file']}.yaml"))
    check(case, *explained(capsys, case["name"], "-f", file, "--until", case["until"]))


@pytest.mark.parametrize("verb", ["simulate", "queue"])
def test_malformed_quotas_are_reported_with_place_and_cause(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(expanded(HERE / "situations" / "20-malformed-quotas.yaml"))
    assert run([*([verb] if verb == "simulate" else [verb, "list"]), "-f", file, "--until", "1m"]) == 0
    captured = capsys.readouterr()
    printed = captured.err if verb == "simulate" else captured.out
    for queue, cause in {
        "q": '<NVIDIA-H200>: "8" is not a whole number',
        "q2": "not JSON: Expecting value at line 1 column 1",
        "q3": "not JSON: ",
        "q4": "<NVIDIA-H200>: -1 is not a whole number",
    }.items():
        (line,) = [line for line in printed.splitlines() if f"ueue {queue}: " in line]
        assert f'metadata.annotations["volcano.sh/card.quota"]: {cause}' in line


def test_validate_finds_gangs_above_the_quota(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "-f", str(expanded(HERE / "situations" / "24-larger-than-quota.yaml"))]) != 0
    assert "can never start: needs 16, quota is 8" in capsys.readouterr().out
