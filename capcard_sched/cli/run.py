"""`capcard-sched run`: the scheduler on a real cluster."""

import re
from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import refuse
from capcard_sched.daemon.options import Options

#: Arguments of existing deployments end with `2>&1`, which without a shell arrives here as a word.
_REDIRECTION = re.compile(r"[0-9]?>+&?[0-9]?")


def run(
    *redirections: Annotated[str, Parameter(show=False)],
    options: Options = Options(),  # noqa: B008 - frozen
) -> int:
    """Schedule pods on a Kubernetes cluster, until told to stop.

    Finds the cluster as kubectl does, or by the service account of the pod it runs in. Several replicas may run; one of
    them schedules. Flags are written `--flag=value` or `--flag value`, switches `--flag` and `--flag=false`. Those of
    Volcano's scheduler are accepted.

    Signals: SIGTERM and SIGINT end it, within 5 seconds; SIGUSR1 and SIGUSR2 see --cache-dumper. Exit status: 0 after
    SIGTERM or SIGINT; 2 when it cannot start with what it was given (flags, kubeconfig, plugins, ports and, with
    --strict-conf, the scheduler-conf); 1 on an internal error.
    """
    stray = [word for word in redirections if not _REDIRECTION.fullmatch(word)]
    problems = [f"{word!r} belongs to no flag; values are written --flag=value" for word in stray]
    problems += options.problems()
    if problems:
        return refuse("\n".join(problems))
    from capcard_sched.daemon.service import StartError
    from capcard_sched.daemon.service import run as serve

    try:
        serve(options)
    except StartError as error:
        return refuse(str(error))
    return 0
