"""Shell completion: scripts of shells, and the candidates that kubectl requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capcard_sched.cli.completion import candidates
from capcard_sched.cli.main import app, run

COMMANDS = [name for name in app if not name.startswith("-")]


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "bash"
    program = Path(sys.executable).with_name("capcard-sched")
    file.write_bytes(subprocess.check_output([str(program), "completion", "bash"]))
    return file


def in_bash(script: Path, line: list[str]) -> set[str]:
    """The candidates of bash for the last word of a line."""
    words = " ".join(f"'{word}'" for word in line)
    code = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _capcard_sched; "
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.parametrize(
    "line, expected",
    [
        (["capcard-sched", ""], set(COMMANDS)),
        (["capcard-sched", "expl"], {"explain"}),
        (["capcard-sched", "job", ""], {"list", "get", "run", "suspend", "resume", "delete"}),
        (["capcard-sched", "job", "list", "--sort"], {"--sort-by"}),
        (["capcard-sched", "node", "list", "-o", "w"], {"wide"}),
    ],
    ids=["commands", "begin of a command", "subcommands", "flag", "value of a flag"],
)
def test_bash_completes(line: list[str], expected: set[str], bash_script: Path) -> None:
    assert in_bash(bash_script, line) >= expected
    if line[-1]:
        assert in_bash(bash_script, line) == expected


@pytest.mark.parametrize("shell, head", [("zsh", "#compdef capcard-sched"), ("fish", "complete -c capcard-sched")])
def test_other_shells_get_a_script_of_all_commands(shell: str, head: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert head in script
    assert all(command in script for command in COMMANDS)
    assert "--sort-by" in script


@pytest.mark.parametrize(
    "words, expected, files",
    [
        ([""], COMMANDS, False),
        (["wh"], ["what-if"], False),
        (["queue", "cl"], ["close"], False),
        (["pod", "list", "--sel"], ["--selector"], False),
        (["card", "list", "-o", ""], ["table", "wide", "json", "yaml", "name"], False),
        (["card", "list", "--output=y"], ["--output=yaml"], False),
        (["card", "list", "-w", "--output=n"], ["--output=name"], False),
        (["completion", ""], ["bash", "zsh", "fish"], False),
        (["what-if", "--conf", ""], [], True),
        (["explain", "-f", "x", "--until"], ["--until"], False),
        (["no-such-command", "x"], [], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value != COMMANDS else None,
)
def test_kubectl_gets_candidates_and_whether_files_fit(words: list[str], expected: list[str], files: bool) -> None:
    found, directive = candidates(words)
    assert (found, directive) == (expected, 0 if files else 4)
