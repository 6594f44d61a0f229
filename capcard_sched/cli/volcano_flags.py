"""The arguments of Volcano's Deployments, as the services of capcard-sched read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import cyclopts

from capcard_sched.cli.admission import admission
from capcard_sched.cli.controllers import controllers
from capcard_sched.cli.run import run
from capcard_sched.cli.serving import stray_words
from capcard_sched.daemon.admission.options import AdmissionOptions
from capcard_sched.daemon.controller_options import ControllerOptions
from capcard_sched.daemon.options import Options
from capcard_sched.model.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Options: TypeAlias = Options | ControllerOptions | AdmissionOptions
_Verdict: TypeAlias = Literal["same", "ignored", "differs"]


class FlagFinding(NamedTuple):
    """An argument without effect, one that is refused, or one that is to be added."""

    verdict: _Verdict
    #: Field of the Deployment.
    place: str
    message: str


class _Program(NamedTuple):
    """A program of Volcano, and the service that takes its place."""

    #: Matches the program in an image or command, or the name of a container or Deployment.
    pattern: str
    service: str
    command: Callable[..., int]
    defaults: _Options


_PROGRAMS: Final = (
    _Program(r"vc-scheduler|volcano-scheduler", "run", run, Options()),
    _Program(r"vc-controller-manager|volcano-controllers?", "controllers", controllers, ControllerOptions()),
    _Program(r"vc-webhook-manager|volcano-admission", "admission", admission, AdmissionOptions()),
)
_NAME: Final = "--scheduler-name"


def serves_volcano(deployment: dict[str, Any]) -> bool:
    """Whether a Deployment runs a program of Volcano."""
    return any(True for _ in _programs_of(deployment))


def flag_findings(deployment: dict[str, Any]) -> Iterator[FlagFinding]:
    """The findings about the arguments of a Deployment; none for one of another program."""
    for index, container, program in _programs_of(deployment):
        place = f"spec.template.spec.containers[{index}].args"
        for verdict, message in _judge(program, _words_of(container)):
            yield FlagFinding(verdict, place, message)


def _programs_of(deployment: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], _Program]]:
    """The containers of a Deployment that run a program of Volcano, by index."""
    spec: Any = deployment.get("spec")
    for step in ("template", "spec", "containers"):
        spec = spec.get(step) if isinstance(spec, dict) else None
    metadata = deployment.get("metadata")
    name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    for index, container in enumerate(spec if isinstance(spec, list) else ()):
        program = _program_of(container, name) if isinstance(container, dict) else None
        if program is not None:
            yield index, container, program


def _program_of(container: dict[str, Any], deployment: str) -> _Program | None:
    image = str(container.get("image") or "").rpartition("/")[2].partition("@")[0].partition(":")[0]
    command = container.get("command")
    first = str(command[0]).rpartition("/")[2] if isinstance(command, list) and command else ""
    for found in (image, first, str(container.get("name") or ""), deployment):
        for program in _PROGRAMS:
            if re.fullmatch(program.pattern, found):
                return program
    return None


def _words_of(container: dict[str, Any]) -> list[str]:
    """The words behind the program."""
    found: list[str] = []
    for field in ("command", "args"):
        value = container.get(field)
        found += [str(word) for word in value] if isinstance(value, list) else []
    return found[1:] if found and not found[0].startswith("-") else found


def _judge(program: _Program, words: Sequence[str]) -> Iterator[tuple[_Verdict, str]]:
    accepted: list[str] = []
    for argument in _arguments(words):
        options = _parse(program, argument)
        if isinstance(options, str):
            yield "differs", f"{quoted(' '.join(argument))}: {options}"
        else:
            accepted += argument
    options = _parse(program, accepted)
    if isinstance(options, str):
        yield "differs", options
        return
    for problem in options.problems():
        yield "differs", problem
    given = options.ignored.given() if isinstance(options, Options) else options.given()
    for flag, reason in given.items():
        yield "ignored", f"{flag} has no effect: {reason}"
    if not any(word.partition("=")[0] == _NAME for word in words):
        yield (
            "differs",
            f"{_NAME} is absent: capcard-sched {program.service} defaults to capcard-sched; add {_NAME}=volcano",
        )


def _arguments(words: Sequence[str]) -> Iterator[list[str]]:
    """Each flag, with its value where that is the next word."""
    position = 0
    while position < len(words):
        word, following = words[position], words[position + 1 : position + 2]
        is_pair = word.startswith("-") and "=" not in word and following and not following[0].startswith("-")
        if is_pair and not stray_words(following):  # a redirection
            is_pair = False
        yield [word, *following] if is_pair else [word]
        position += 2 if is_pair else 1


def _parse(program: _Program, words: Sequence[str]) -> _Options | str:
    """The options of a command line, or why the service refuses it."""
    app = cyclopts.App(help_flags=(), version_flags=(), result_action="return_value")
    app.default(program.command)
    try:
        _, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return " ".join(str(error).split())
    stray = stray_words(bound.arguments.get("redirections", ()))
    found: _Options = bound.arguments.get("options", program.defaults)
    return stray[0] if stray else found
