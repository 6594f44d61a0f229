"""`capcard-sched admission`: the admission webhooks of a Kubernetes cluster."""

from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.flag_parameters import with_parameters
from capcard_sched.cli.serving import serve, stray_words
from capcard_sched.daemon.admission.options import AdmissionOptions

with_parameters(AdmissionOptions)


def admission(
    *redirections: Annotated[str, Parameter(show=False)],
    options: AdmissionOptions = AdmissionOptions(),  # noqa: B008 - frozen
) -> int:
    """Serve the admission webhooks of vcjobs, Queues, PodGroups and pods over HTTPS.

    Issues its own certificate, keeps it in a Secret, renews it without a restart and writes the caBundle of the
    webhook configurations; --tls-cert-file uses the files of cert-manager or of your own instead. All replicas serve.

    Exit status: 0 after SIGTERM or SIGINT; 2 for invalid flags, kubeconfig or ports; 1 on an internal error.
    """
    return serve("admission", options, stray_words(redirections))
