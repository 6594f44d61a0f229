"""Command lines that are read without cyclopts: the same options, and nothing that it refuses."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import cyclopts
import pytest

from capcard_sched.cli.commands import app
from capcard_sched.cli.plain_flags import read_plain
from capcard_sched.daemon.admission.options import AdmissionOptions
from capcard_sched.daemon.controller_options import ControllerOptions
from capcard_sched.daemon.options import Options

SERVICES = {"run": Options, "controllers": ControllerOptions, "admission": AdmissionOptions}
#: Values by type; flags take those that their parsers accept.
VALUES = ("7", "7s", "a:b", ":7", "a", "none", "/jobs/mutate", "true", "false")


def by_cyclopts(command: str, *arguments: str) -> Any:
    """The options of cyclopts; None for a command line that it refuses."""
    try:
        _, bound, *_ = app.parse_args([command, *arguments], exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError:
        return None
    return bound.arguments.get("options", SERVICES[command]())


def all_flags(options: Any) -> list[tuple[str, Any]]:
    """Flags with their types, those of the field `ignored` included."""
    found = []
    for item in fields(options):
        factory: Any = item.default_factory
        if is_dataclass(factory):
            found += all_flags(factory)
        else:
            hint, flag = get_args(item.type)
            found += [(name, hint) for name in flag.settings.get("name", (f"--{item.name.replace('_', '-')}",))]
    return found


@pytest.mark.parametrize("command", SERVICES)
def test_every_flag_of_a_service_is_read_as_by_cyclopts(command: str) -> None:
    options = SERVICES[command]
    rounds: list[list[str]] = [[] for _ in range(4)]
    for flag, hint in all_flags(options):
        choices = tuple(map(str, get_args(hint))) if get_origin(hint) is not tuple else ()
        spellings = (
            [[f"{flag}={value}"] for value in (*VALUES, *choices)] + [[flag, value] for value in VALUES] + [[flag]]
        )
        plain = [line for line in spellings if read_plain(options, line) is not None]
        assert plain or get_origin(hint) is tuple, flag  # lists without a parser are left to cyclopts
        if flag != "--v":  # as -v
            for line, spelling in zip(rounds, (*plain[:3], *plain[-1:]), strict=False):
                line.extend(spelling)
    for line in rounds:
        assert read_plain(options, line) == by_cyclopts(command, *line) is not None, line


DEPLOYMENT = (
    *("--logtostderr", "--scheduler-conf=/c/volcano-scheduler.conf", "--enable-healthz=true", "--kube-api-qps=2000"),
    *("--schedule-period=3s", "--node-worker-threads=20", "-v", "3", "--scheduler-name=a", "--scheduler-name", "b"),
    *("--node-selector=zone:a,x:y", "--percentage-nodes-to-find=5", "--leader-elect=false"),
)


def test_flags_of_a_deployment_are_read_together() -> None:
    options = read_plain(Options, DEPLOYMENT)
    assert options == by_cyclopts("run", *DEPLOYMENT)
    assert options is not None
    assert (options.scheduler_conf, options.verbosity) == (Path("/c/volcano-scheduler.conf"), 3)
    assert options.ignored.given().keys() == {"--percentage-nodes-to-find"}


@pytest.mark.parametrize(
    "line",
    [
        *(["--help"], ["-v5"], ["--leader_elect=false"], ["--enable-healthz=1"], ["--enable-healthz", "true"]),
        *(["--scheduler-conf="], ["--scheduler-conf"], ["--kubeconfig", "--fence"], ["stray"], ["--", "-v=1"]),
        *(["-v=1", "--v=2"], ["-v=1", "-v=1"], ["-v=11"], ["--shedule-period=1s"], ["--schedule-period=10"], ["2>&1"]),
        *(["--log-format=xml"], ["--default-queue", "-a"], ["--ignored.csi-storage"], ["--default-queue= "]),
    ],
    ids=" ".join,
)
def test_other_command_lines_are_left_to_cyclopts(line: list[str]) -> None:
    assert read_plain(Options, line) is None


def test_a_flag_with_a_variable_in_the_environment_is_left_to_cyclopts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_plain(Options, []) == Options()
    monkeypatch.setenv("DEBUG_SOCKET_DIR", "/run/x")
    assert read_plain(Options, []) is None
    assert by_cyclopts("run").debug_socket_dir == Path("/run/x")
