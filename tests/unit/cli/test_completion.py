"""Shell completion: the candidates of the program, in each shell, and as kubectl requests them."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from capcard_sched.cli.candidates import candidates
from capcard_sched.cli.commands import app
from capcard_sched.cli.main import run
from tests.insight.scenes import WAITING

COMMANDS = [name for name in app if not name.startswith("-")]
PROGRAMS = Path(sys.executable).parent
#: Writes the candidates of each TAB to $OUT, and a line after them.
ZSHRC = """
PATH=$PROGRAMS:$PATH
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit
compinit -u -D
compadd() {
    local -a found
    builtin compadd -O found "$@"
    print -rl -- $found >> $OUT
    builtin compadd "$@"
}
capture() { zle complete-word; print END >> $OUT }
zle -N capture
bindkey '^I' capture
zle-line-init() { print READY >> $OUT }
zle -N zle-line-init
"""

#: The words of a line, the last of which is completed, and its candidates: one line of each form. Files: those of the
#: folder.
LINES = [
    (["capcard-sched", ""], COMMANDS),
    (["capcard-sched", "job", "list", "--sort"], ["--sort-by"]),
    (["capcard-sched", "node", "list", "--output=n"], ["--output=name"]),
    (["capcard-sched", "validate", "-f", "situ"], ["situations.yaml"]),
    (["capcard-sched", "what-if", "--conf=situ"], ["--conf=situations.yaml"]),
    (["capcard-sched", "no-such-command", ""], []),
    (["capcard-sched", "explain", "-f", "situations.yaml", "wai"], ["waits"]),
]


class CompletingShell:
    """A shell with the completion script, in a folder with one file."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.folder, self.shell = folder, shell
        (folder / "situations.yaml").write_text(WAITING)
        self.script = folder / "_capcard-sched"
        self.script.write_bytes(subprocess.check_output([PROGRAMS / "capcard-sched", "completion", shell]))
        self.env = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(folder)}

    def candidates(self, words: list[str]) -> list[str]:
        """What the shell makes of TAB after the words."""
        return {"bash": self._in_bash, "zsh": self._in_zsh, "fish": self._in_fish}[self.shell](words)

    def _run(self, *command: str) -> list[str]:
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=self.folder, env=self.env)
        assert not found.stderr
        return found.stdout.splitlines()

    def _in_bash(self, words: list[str]) -> list[str]:
        # Readline splits at `=`, and completes files where the function sets `-o default` and finds nothing.
        split = [part for word in words for part in (word.partition("=") if "=" in word else (word,))]
        quoted = " ".join(f"'{part}'" for part in split)
        code = f"source {self.script}; compopt() {{ files=1; }}; COMP_WORDS=({quoted}); COMP_CWORD={len(split) - 1}; "
        code += '_capcard_sched; [[ $files ]] && mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"); '
        found = self._run("bash", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"')
        flag, equals, _ = words[-1].partition("=")
        return [f"{flag}{equals}{one}" if equals else one for one in found if one]

    def _in_fish(self, words: list[str]) -> list[str]:
        line = " ".join(words)
        found = self._run("fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'")
        return [row.partition("\t")[0] for row in found]

    def _in_zsh(self, words: list[str]) -> list[str]:
        out = self.folder / "out"
        out.write_text("")
        (self.folder / ".zshrc").write_text(ZSHRC)
        own = {"ZDOTDIR": str(self.folder), "OUT": str(out), "PROGRAMS": str(PROGRAMS), "TERM": "dumb"}
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-d", "-i"], {**self.env, **own})
        try:
            _wait(lambda: "READY\n" in out.read_text())
            os.write(terminal, f"{' '.join(words)}\t".encode())
            _wait(lambda: "END\n" in out.read_text())
        finally:
            os.close(terminal)
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        flag, equals, _ = words[-1].partition("=")
        found = [row for row in out.read_text().splitlines() if row not in {"", "READY", "END"}]
        # _files offers files in two groups
        return list({f"{flag}{equals}{row}" if equals and not row.startswith("--") else row: 1 for row in found})


def _wait(until: Callable[[], bool]) -> None:
    while not until():
        time.sleep(0.02)


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompletingShell:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return CompletingShell(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("words, expected", LINES, ids=[" ".join(words) for words, _ in LINES])
def test_a_shell_completes_commands_flags_values_and_files(
    words: list[str], expected: list[str], shell: CompletingShell
) -> None:
    assert sorted(shell.candidates(words)) == sorted(expected)


def test_zsh_also_completes_with_the_script_sourced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    sourced = ZSHRC.replace("fpath=($ZDOTDIR $fpath)\n", "") + "source $ZDOTDIR/_capcard-sched\n"
    monkeypatch.setattr("tests.unit.cli.test_completion.ZSHRC", sourced)
    assert CompletingShell(tmp_path, "zsh").candidates(["capcard-sched", "expl"]) == ["explain"]


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, expected, files",
    [
        ([""], COMMANDS, False),
        (["wh"], ["what-if"], False),
        (["job", ""], ["list", "get", "run", "suspend", "resume", "delete"], False),
        (["queue", "cl"], ["close"], False),
        (["pod", "list", "--sel"], ["--selector"], False),
        (["node", "list", "-o", "w"], ["wide"], False),
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
    found, directive = candidates(app, words)
    assert (found, directive) == (expected, 0 if files else 4)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("explain -f FILE ", ["runs", "waits"]),
        ("explain --file=FILE --until 1s r", ["runs"]),
        ("job list -n other -f FILE ", []),
        ("queue list -f FILE ", ["default", "root", "team"]),
        ("job list -f FILE -q t", ["team"]),
        ("card list -f FILE --queue=te", ["--queue=team"]),
        ("card list -f FILE NV", ["NVIDIA-H200"]),
        ("what-if -f FILE --drain ", ["n1"]),
        ("explain -f no-such-file ", []),
        ("queue get --kubeconfig no-such-file ", []),
    ],
)
def test_names_of_objects_are_those_of_the_source(words: str, expected: list[str], tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(WAITING)
    assert candidates(app, words.replace("FILE", str(file)).split(" ")) == (expected, 4)
