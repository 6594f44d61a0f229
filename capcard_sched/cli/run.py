"""`capcard-sched run`: the scheduler daemon."""

import re
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.daemon.options import Options

#: Arguments of existing deployments end with `2>&1`, which without a shell arrives here as a word.
_REDIRECTION = re.compile(r"[0-9]?>+&?[0-9]?")


def stray_words(words: Iterable[str]) -> list[str]:
    """A line for each word that is no redirection."""
    stray = [word for word in words if not _REDIRECTION.fullmatch(word)]
    return [f'unexpected argument "{word}": pass values as --flag=value' for word in stray]


def run(
    *redirections: Annotated[str, Parameter(show=False)],
    options: Options = Options(),  # noqa: B008 - frozen
) -> int:
    """Run the scheduler on a Kubernetes cluster.

    Connects with the kubeconfig that kubectl uses, or with the service account of its pod. With several replicas, one
    is elected leader and schedules. Flags take the form `--flag=value` or `--flag value`, boolean flags `--flag` or
    `--flag=false`. The flags of Volcano's scheduler are accepted.

    Signals: SIGTERM and SIGINT stop it within 5 seconds; SIGUSR1 and SIGUSR2: see --cache-dumper. Exit status: 0 after
    SIGTERM or SIGINT; 2 on invalid input (flags, kubeconfig, plugins, ports and, with --strict-conf, the
    scheduler-conf); 1 on an internal error.
    """
    problems = [*stray_words(redirections), *options.problems()]
    if problems:
        return usage_error("\n".join(problems))
    from capcard_sched.daemon.service import StartError
    from capcard_sched.daemon.service import run as serve

    try:
        serve(options)
    except StartError as error:
        return usage_error(str(error))
    return 0
