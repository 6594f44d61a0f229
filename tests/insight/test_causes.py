"""The first sentence of an answer names the filter, or the plugin and the object, that refuses; with its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.insight.test_situations import explained
from tests.scenarios.notation import objects_of

HERE = Path(__file__).parent
DATA: dict[str, Any] = yaml.safe_load((HERE / "causes.yaml").read_text())


def written(case: dict[str, Any], folder: Path) -> Path:
    """A file of the objects of a case."""
    file = folder / "cluster.yaml"
    objects = [json.dumps(one) for one in case.get("objects", ())]
    plan = {"cluster": case["cluster"].replace("; ", "\n"), "operations": case.get("operations", ())}
    file.write_text("\n---\n".join([*(json.dumps(one) for one in objects_of(plan)), *objects]))
    return file


def answer(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """The answer about the job of a case as text and as JSON."""
    file = written(case, tmp_path)
    start = "--expected-start" if "start" in case else "--no-expected-start"
    words = [
        case.get("explain", "g"),
        "-f",
        str(file),
        "--until",
        case.get("until", "1m"),
        start,
        *(["--fix"] if "fixes" in case else []),
    ]
    if text := DATA["confs"][case["conf"]]:
        (tmp_path / "conf.yaml").write_text(text)
        words += ["--scheduler-conf", str(tmp_path / "conf.yaml")]
    return explained(capsys, *words)


def check(case: dict[str, Any], text: str, document: dict[str, Any]) -> None:
    """Compare an answer with a case; `fixes` are all of them, their changes joined."""
    for pattern in case["head"]:
        assert re.search(pattern, document["summary"]), text
    for pattern in case.get("never", ()):
        assert not re.search(pattern, text), text
    for fact in case.get("facts", ()):
        assert fact in text
    if "start" in case:
        assert re.search(case["start"], document["expectedStart"]["reason"]), text
    if "fixes" in case:
        found = [" and ".join(change["text"] for change in fix["changes"]) for fix in document["fixes"]["fixes"]]
        assert sorted(found) == sorted(case["fixes"]), text
    assert document["stage"] == case.get("stage", document["stage"]), text


@pytest.mark.parametrize("case", DATA["refusals"], ids=lambda case: case["name"])
def test_a_refused_job_names_what_refuses(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(case, *answer(case, tmp_path, capsys))


@pytest.mark.parametrize("conf", ["shipped", "volcano"])
@pytest.mark.parametrize("case", DATA["filters"], ids=lambda case: case["name"])
def test_a_gang_that_fits_in_part_names_the_filter_of_its_next_pod(
    conf: str, case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = "labels=zone:{0},kubernetes.io/hostname:n{0}"
    nodes = [f"node n{number} 8*A memory=512Gi {case['nodes']} {labels.format(number)}" for number in (1, 2)]
    cluster = "\n".join([*nodes, "queue q cards=A:16", f"job g queue=q min=3 + w*3 gpu=1 card=A {case['pods']}"])
    text, document = answer({"conf": conf, "cluster": cluster}, tmp_path, capsys)
    check({**case, "never": ["needs \\d A free on one node", "quota of"]}, text, document)
