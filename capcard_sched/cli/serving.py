"""What the modules of `run`, `controllers` and `admission` share; each of them imports its own flags only."""

import re
from collections.abc import Iterable
from importlib import import_module

from capcard_sched.cli.exit_codes import usage_error

#: Arguments of existing deployments end with `2>&1`, which without a shell arrives here as a word.
_REDIRECTION = re.compile(r"[0-9]?>+&?[0-9]?")


def stray_words(words: Iterable[str]) -> list[str]:
    """A line for each word that is no redirection."""
    stray = [word for word in words if not _REDIRECTION.fullmatch(word)]
    return [f'unexpected argument "{word}": pass values as --flag=value' for word in stray]


def serve(module: str, options: object, problems: list[str]) -> int:
    """Run the service of a module of the daemon, unless the flags have problems. Returns the exit status."""
    if problems:
        return usage_error("\n".join(problems))
    from capcard_sched.daemon.common_options import ServeError, StartError
    from capcard_sched.kube.connection import ConnectionConfigError

    import_module("capcard_sched.daemon.observability.structlog_alone")
    try:
        import_module(f"capcard_sched.daemon.{module}").run(options)
    except (StartError, ConnectionConfigError, ServeError) as error:
        return usage_error(str(error))
    return 0
