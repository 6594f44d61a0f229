"""Runs the services `run`, `controllers` and `admission`; each of them imports its own flags only."""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.plain_flags import read_plain

#: Arguments of existing deployments end with `2>&1`, which without a shell arrives here as a word.
_REDIRECTION = re.compile(r"[0-9]?>+&?[0-9]?")


class ServiceOptions(Protocol):
    """The flags of a service."""

    def problems(self) -> list[str]:
        """Invalid combinations of flags, one line each."""


class _Service(NamedTuple):
    """The modules of a service: one with a function `run`, and that of its flags."""

    module: str
    options: str
    options_class: str


#: By command.
SERVICES: Final = {
    "run": _Service("capcard_sched.daemon.service", "capcard_sched.daemon.options", "Options"),
    "controllers": _Service(
        "capcard_sched.daemon.controller_manager", "capcard_sched.daemon.controller_options", "ControllerOptions"
    ),
    "admission": _Service(
        "capcard_sched.daemon.admission.service", "capcard_sched.daemon.admission.options", "AdmissionOptions"
    ),
}


def stray_words(words: Iterable[str]) -> list[str]:
    """A line for each word that is no redirection."""
    stray = [word for word in words if not _REDIRECTION.fullmatch(word)]
    return [f'unexpected argument "{word}": pass values as --flag=value' for word in stray]


def serve_plain(command: str, arguments: Sequence[str]) -> int | None:
    """Run the service of an ordinary command line; None if cyclopts is to parse it."""
    service = SERVICES[command]
    words = list(arguments)
    while words and _REDIRECTION.fullmatch(words[-1]):
        words.pop()
    options = read_plain(getattr(import_module(service.options), service.options_class), words)
    return None if options is None else serve(command, options)


def serve(command: str, options: ServiceOptions, stray: Sequence[str] = ()) -> int:
    """Run a service, unless the flags have problems or words are stray. Returns the exit status."""
    if problems := [*stray, *options.problems()]:
        return usage_error("\n".join(problems))
    from capcard_sched.daemon.common_options import ServeError, StartError
    from capcard_sched.kube.connection import ConnectionConfigError

    import_module("capcard_sched.daemon.observability.structlog_alone")
    try:
        import_module(SERVICES[command].module).run(options)
    except (StartError, ConnectionConfigError, ServeError) as error:
        return usage_error(str(error))
    return 0
