"""`capcard-sched run`, `controllers` and `admission`: the services of a Kubernetes cluster."""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.daemon.admission.options import AdmissionOptions
from capcard_sched.daemon.controller_options import ControllerOptions
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
    return serve("service", options, [*stray_words(redirections), *options.problems()])


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
    return serve("controller_manager", options, [*stray_words(redirections), *options.problems()])


def serve(module: str, options: object, problems: list[str]) -> int:
    """Run the service of a module of the daemon, unless the flags have problems. Returns the exit status."""
    if problems:
        return usage_error("\n".join(problems))
    from capcard_sched.daemon.common_options import StartError
    from capcard_sched.daemon.observability.server import ServeError
    from capcard_sched.kube.connection import ConnectionConfigError

    try:
        import_module(f"capcard_sched.daemon.{module}").run(options)
    except (StartError, ConnectionConfigError, ServeError) as error:
        return usage_error(str(error))
    return 0


def admission(
    *redirections: Annotated[str, Parameter(show=False)],
    options: AdmissionOptions = AdmissionOptions(),  # noqa: B008 - frozen
) -> int:
    """Serve the admission webhooks of vcjobs, Queues, PodGroups and pods over HTTPS.

    Issues its own certificate, keeps it in a Secret, renews it without a restart and writes the caBundle of the
    webhook configurations; --tls-cert-file uses the files of cert-manager or of your own instead. All replicas serve.

    Exit status: 0 after SIGTERM or SIGINT; 2 for invalid flags, kubeconfig or ports; 1 on an internal error.
    """
    return serve("admission.service", options, [*stray_words(redirections), *options.problems()])
