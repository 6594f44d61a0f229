"""Commands as data: `commands/*.yaml` holds what commands print, and their exit status.

words: {DEMO: -f config/examples/demo}  # these words of `run` stand for others
files: {a.yaml: TEXT}       # manifests, or statements of tests/scenarios/notation.py; a list is a scheduler-conf
cases:
- name: what holds          # `of`: the case is run for each of these values of `$1`
  files: {b.yaml: TEXT}     # beside those of the file
  run: queue list -f a.yaml # names of files stand for their paths, `.` for their folder; `steps`: several runs
  status: 2                 # 0 where absent
  all: [a b]                # the lines of standard output without repeated blanks; `lines`: some of them
  out: [text]               # parts of it, with the blanks at the beginning of lines; `lacks`: what is no part of it
  ordered: [a, b]           # first occurrences in this order
  found: {regex: [match]}   # all matches of an expression
  err: [text]               # a part of each line of standard error; where absent, there is no line
  json: {field: value}      # fields of the JSON, as `match` of tests/scenarios; `items`: all of them
  pick: [name, free]        # these fields of its items or findings are `rows`
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from capcard_sched.cli.main import run
from tests.scenarios.notation import is_statement, manifests
from tests.scenarios.test_scenarios import fits
from tests.vectors.world import conf_text

FOLDER: Final = Path(__file__).with_name("commands")
_KEYS: Final = {"run", "status", "all", "lines", "out", "lacks", "ordered", "found", "err", "json", "items", "pick",
                "rows"}  # fmt: skip


def cases() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        for case in content["cases"]:
            for value in case.pop("of", [""]):
                one = json.loads(json.dumps(case).replace("$1", value))
                one["files"] = {**content.get("files", {}), **one.get("files", {})}
                one["words"] = content.get("words", {})
                found.append(pytest.param(one, id=" ".join(filter(None, (path.stem, one["name"], value)))))
    return found


def text_of(content: Any) -> str:
    """The text of a file."""
    if not isinstance(content, str):
        return conf_text(content)
    parts = [
        "\n---\n".join(map(json.dumps, manifests(part))) if is_statement(part) else part
        for part in content.split("\n---\n")
    ]
    return "\n---\n".join(parts)


def squeezed(text: str) -> str:
    """Without blanks at the end of lines, and with one blank where several follow a word."""
    return "\n".join(re.sub(r"(?<=\S)\s+", " ", line.rstrip()) for line in text.splitlines())


@pytest.mark.parametrize("case", cases())
def test_a_command_prints(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in case["files"].items():
        (tmp_path / name).write_text(text_of(content))
    places = {name: [str(tmp_path / name)] for name in case["files"]} | {".": [str(tmp_path)]}
    places |= {word: shlex.split(text) for word, text in case["words"].items()}
    for step in case.get("steps", [case]):
        assert set(step) <= _KEYS | {"name", "files", "words"}, step
        words = [part for word in shlex.split(step["run"]) for part in places.get(word, [word])]
        status = run(words)
        captured = capsys.readouterr()
        out, err = (text.replace(f"{tmp_path}/", "") for text in captured)
        assert status == step.get("status", 0), err
        check_text(step, out)
        check_errors(step.get("err", []), err)
        if {"json", "items", "pick"} & set(step):
            check_document(step, json.loads(out))
        elif status == 2:
            assert out == "" or {"all", "lines", "out", "ordered", "found"} & set(step)


def check_text(step: dict[str, Any], out: str) -> None:
    text = squeezed(out)
    lines = [line.strip() for line in text.splitlines()]
    assert step.get("all", lines) == lines
    for line in step.get("lines", []):
        assert line in lines, text
    for part in step.get("out", []):
        assert part in text
    for part in step.get("lacks", []):
        assert part not in text
    places = [out.index(part) for part in step.get("ordered", [])]
    assert places == sorted(places)
    for expression, matches in step.get("found", {}).items():
        assert re.findall(expression, out, re.MULTILINE) == matches


def check_errors(wanted: list[str], err: str) -> None:
    lines = err.splitlines(keepends=True)
    assert len(lines) == len(wanted), err
    for part, line in zip(wanted, lines, strict=True):
        assert part in line


def check_document(step: dict[str, Any], document: Any) -> None:
    listed = document["findings"] if "findings" in document else document.get("items")
    assert fits(step.get("json", {}), document), document
    assert step.get("items", listed) == listed
    if "pick" in step:
        assert [[row.get(field) for field in step["pick"]] for row in listed] == step["rows"]
