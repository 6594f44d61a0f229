"""The commands of README.md and docs/*.md run, and print what stands below them.

`pytest -n 0 --rewrite tests/docs` writes the outputs without `...` anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from capcard_sched.cli.commands import app
from tests.docs.pages import ROOT, Command, all_commands, inline_commands, matches

TABLE: Final[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text("utf-8"))
COMMANDS: Final = all_commands()
#: Words of the prose that stand for values: NAME, FILE, JOB.
_PLACEHOLDER: Final = re.compile(r"^[A-Z]+$")


def is_live(command: Command) -> bool:
    return command.text in TABLE["live"].get(command.page, ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The content of the repository, the files of the table, and the README's queue with a mistake in its quota."""
    for entry in ROOT.iterdir():
        if entry.name not in {".git", ".hypothesis"}:
            (tmp_path / entry.name).symlink_to(entry)
    for name, content in TABLE["files"].items():
        (tmp_path / name).write_text(content)
    (queue,) = re.findall(r"^```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert '"NVIDIA-H200": 8' in queue
    (tmp_path / "queue.yaml").write_text(queue.replace('"NVIDIA-H200": 8', '"NVIDIA-H200": 2.5'))
    return tmp_path


def run_offline(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
    if command.startswith("make "):  # with the interpreter of the tests
        command = f"make -s -o .venv/run.stamp BIN={programs} {command.removeprefix('make ')}"
    command = re.sub(r"^\.venv/bin/", "", command)
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


SHOWN: Final = [command for command in COMMANDS if command.output is not None and not is_live(command)]


@pytest.mark.parametrize("command", SHOWN, ids=[command.id for command in SHOWN])
def test_a_command_prints_the_output_below_it(command: Command, folder: Path, request: pytest.FixtureRequest) -> None:
    done = run_offline(command.text, folder)
    assert command.output is not None
    if request.config.getoption("--rewrite") and not matches(done.stdout, command.output):
        page = ROOT / command.page
        text = page.read_text("utf-8")
        assert text.count(command.output) == 1, f"{command.id}: rewrite this output by hand"
        page.write_text(text.replace(command.output, done.stdout), "utf-8")
        return
    assert matches(done.stdout, command.output), (
        f"{command.text} prints\n{done.stdout}{done.stderr}\nnot\n{command.output}"
    )


@pytest.mark.parametrize("page", TABLE["offline"])
def test_the_commands_of_a_page_run_in_their_order(page: str, folder: Path) -> None:
    listed = TABLE["offline"][page]
    assert listed == [command.text for command in COMMANDS if command.page == page and command.text in listed]
    for text in listed:
        done = run_offline(text, folder)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


def test_every_command_is_run_or_has_a_reason_why_not() -> None:
    shown = {command.text for command in SHOWN}

    def place(command: Command) -> bool:
        listed = command.text in TABLE["offline"].get(command.page, ()) or is_live(command)
        return listed or command.text in shown or command.text.startswith(tuple(TABLE["elsewhere"]))

    assert [command.id for command in COMMANDS if not place(command)] == []
    unused = [start for start in TABLE["elsewhere"] if not any(c.text.startswith(start) for c in COMMANDS)]
    assert unused == []


OURS: Final = sorted({c.text for c in inline_commands() if "capcard-sched " in c.text and "|" not in c.text})


@pytest.mark.parametrize("text", OURS)
def test_a_command_in_the_prose_has_a_verb_and_flags_that_exist(text: str) -> None:
    words = shlex.split(re.sub(r"^\.venv/bin/", "", text))[1:]
    verb, rest = app, words
    while rest and not rest[0].startswith("-") and rest[0] in [*verb]:
        verb, rest = verb[rest[0]], rest[1:]
    assert verb is not app, f"{text}: no such verb"
    if verb.default_command is None:
        assert rest == [], f"{text}: no such verb"
        return
    flags = {name for argument in verb.assemble_argument_collection() for name in argument.names}
    given = [word.partition("=")[0] for word in rest if word.startswith("-")]
    assert [flag for flag in given if flag not in {*flags, "--help"}] == []


def test_a_target_of_make_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {c.text.split()[1] for c in [*COMMANDS, *inline_commands()] if c.text.startswith("make ")}
    assert named <= targets


def test_outputs_match_with_lines_left_out() -> None:
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert matches("a\nc\n", "...\na\n...\nc\n...\n")
    assert not matches("a\nb\nc\n", "a\nc\n")
    assert not matches("a\nb\n", "...\na\n")
