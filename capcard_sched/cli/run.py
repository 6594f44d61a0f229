"""`capcard-sched run`: the scheduler of a Kubernetes cluster."""

from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.flag_parameters import with_parameters
from capcard_sched.cli.serving import serve, stray_words
from capcard_sched.daemon.options import Options

with_parameters(Options)


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
    return serve("run", options, stray_words(redirections))
