"""`capcard-sched controllers`: the controllers of a Kubernetes cluster."""

from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.flag_parameters import with_parameters
from capcard_sched.cli.serving import serve, stray_words
from capcard_sched.daemon.controller_options import ControllerOptions

with_parameters(ControllerOptions)


def controllers(
    *redirections: Annotated[str, Parameter(show=False)],
    options: ControllerOptions = ControllerOptions(),  # noqa: B008 - frozen
) -> int:
    """Run the controllers of Jobs, PodGroups and Queues, until a signal ends them.

    For clusters without Volcano's controllers. Several replicas may run; one of them leads. Flags are written
    `--flag=value` or `--flag value`, switches `--flag` and `--flag=false`. Flags of Volcano's controllers are accepted.

    Signals: SIGTERM and SIGINT end it. Exit status: 0 after a signal; 2 for flags, a kubeconfig or ports that cannot be
    used; 1 on an internal error.
    """
    return serve("controllers", options, stray_words(redirections))
