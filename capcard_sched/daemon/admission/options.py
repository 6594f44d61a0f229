"""The flags of `capcard-sched admission`: one field each; names are those of Volcano's webhook manager."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from capcard_sched.admission.queues import QueueRules
from capcard_sched.admission.webhooks import WEBHOOKS
from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.common_options import (
    CLUSTER,
    DIAGNOSIS,
    SERVING,
    ConnectionOptions,
    address,
    names,
    path,
    switch,
)
from capcard_sched.daemon.compat_flags import AdmissionCompatFlags
from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.flags import FlagGroup, flag
from capcard_sched.model.timestamps import format_duration

WEBHOOK: Final = FlagGroup("Webhooks", 2)
CERTIFICATES: Final = FlagGroup("Certificates", 3)

#: Webhook paths of Volcano that are not served here.
FOREIGN_PATHS: Final = frozenset(
    {"/hypernodes/validate", "/cronjobs/validate", "/jobflows/validate", "/namespacequeues/validate"}
)
_HEALTH_ADDRESS: Final = AddressFlag("", 11251)


@dataclass(frozen=True, kw_only=True)
class AdmissionOptions(ConnectionOptions):
    """Settings of the admission server."""

    port: Annotated[int, flag(WEBHOOK, values.whole(0, 65535), metavar="N")] = 8443
    """Port of the HTTPS server."""

    listen_address: Annotated[str, flag(WEBHOOK, show_default=False, metavar="HOST")] = ""
    """Address of the HTTPS server; its port is --port. Default: all interfaces."""

    graceful_shutdown_time: Annotated[
        float, flag(WEBHOOK, values.duration, show_default=format_duration, metavar="DURATION")
    ] = 1.0
    """Time for the reviews in progress after SIGTERM."""

    kube_api_qps: Annotated[float, flag(CLUSTER, values.rate, metavar="N", show_default=lambda rate: f"{rate:g}")] = (
        2000.0
    )
    """Maximum requests per second to the API server."""

    kube_api_burst: Annotated[int, flag(CLUSTER, values.whole(1, 10**6), metavar="N")] = 2000
    """Burst of requests above that rate."""

    max_queue_depth: Annotated[int, flag(WEBHOOK, values.whole(1, 1000), metavar="N")] = 5
    """Levels of queues below root: a Queue below that is not created, and not moved there."""

    enable_root_queue_protection: Annotated[bool, switch(WEBHOOK)] = True
    """Reject changes of capability, deserved and guarantee of the queue root."""

    enable_queue_allocated_pods_check: Annotated[bool, switch(WEBHOOK)] = False
    """Reject the deletion of a Queue with allocated pods."""

    scheduler_name: Annotated[tuple[str, ...], names(WEBHOOK)] = ("capcard-sched",)
    """Schedulers whose pods are checked; repeatable. The first is the default of vcjobs."""

    enabled_admission: Annotated[tuple[str, ...], flag(WEBHOOK, negative=(), show_default="all", metavar="PATH")] = ()
    """Paths that are served, such as /jobs/validate, with commas between them; all when absent."""

    admission_conf: Annotated[Path | None, path(WEBHOOK)] = None
    """File with `resourceGroups` for pods; read again when it changes."""

    webhook_namespace: Annotated[str, flag(CERTIFICATES, metavar="NAME")] = "capcard-system"
    """Namespace of the Service and of the Secret with the certificate."""

    webhook_service_name: Annotated[str, flag(CERTIFICATES, metavar="NAME")] = "capcard-sched-admission"
    """Name of the Service; the certificate is issued for it."""

    webhook_host: Annotated[str, flag(CERTIFICATES, show_default=False, metavar="HOST")] = ""
    """Further name or address in the certificate, for webhooks that are called by URL."""

    webhook_configuration: Annotated[
        tuple[str, ...], flag(CERTIFICATES, negative=(), show_default=values.show_list, metavar="NAME")
    ] = ("capcard-sched-admission", "capcard-sched-admission-cards")
    """Webhook configurations whose caBundle is written, with commas between them; empty: none."""

    secret_name: Annotated[str, flag(CERTIFICATES, metavar="NAME")] = "capcard-sched-admission"  # noqa: S105
    """Secret with the certificate and its authority; created and renewed by the server."""

    tls_cert_file: Annotated[Path | None, path(CERTIFICATES)] = None
    """Certificate, PEM, instead of the Secret; read again when it changes."""

    tls_private_key_file: Annotated[Path | None, path(CERTIFICATES)] = None
    """Its key, PEM."""

    client_ca_file: Annotated[Path | None, path(CERTIFICATES)] = None
    """CA bundle, PEM: clients without a certificate of it are refused before a request is read."""

    healthz_address: Annotated[AddressFlag, address(SERVING)] = _HEALTH_ADDRESS
    """Where /healthz, /readyz and /metrics are served."""

    verbosity: Annotated[int, flag(DIAGNOSIS, values.whole(0, 10), name=("-v", "--v"), metavar="N")] = 0
    """3 and more: a line for each rejected object; 5: libraries too."""

    ignored: AdmissionCompatFlags = field(default_factory=AdmissionCompatFlags)

    @property
    def paths(self) -> tuple[str, ...]:
        """The webhook paths to serve: those of `--enabled-admission` except `FOREIGN_PATHS`; all when it is empty."""
        given = _split(self.enabled_admission)
        return tuple(path for path in given if path not in FOREIGN_PATHS) if given else tuple(WEBHOOKS)

    @property
    def server_address(self) -> AddressFlag:
        """Address of the HTTPS server."""
        return AddressFlag(self._listen_address[0], self.port)

    @property
    def _listen_address(self) -> tuple[str, str]:
        """Host and port of --listen-address; the port is "" without one."""
        host, colon, port = self.listen_address.rpartition(":")
        has_port = colon and port.isdigit() and (host.endswith("]") or ":" not in host)
        return (host.strip("[]"), port) if has_port else (self.listen_address.strip("[]"), "")

    @property
    def queue_rules(self) -> QueueRules:
        """Settings of the rules of Queues."""
        return QueueRules(
            self.max_queue_depth, self.enable_root_queue_protection, self.enable_queue_allocated_pods_check
        )

    def given(self) -> dict[str, str]:
        """Flags, and parts of them, without effect: each with the reason."""
        found = self.ignored.given()
        foreign = FOREIGN_PATHS.intersection(_split(self.enabled_admission))
        found |= {f"--enabled-admission={each}": "there is no such webhook" for each in sorted(foreign)}
        if self._listen_address[1] not in {"", str(self.port)}:
            found["--listen-address"] = f"port {self._listen_address[1]} is ignored: --port is {self.port}"
        return found

    @property
    def configurations(self) -> tuple[str, ...]:
        return _split(self.webhook_configuration)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names in the certificate, the one that the API server uses first."""
        service = f"{self.webhook_service_name}.{self.webhook_namespace}"
        names = (f"{service}.svc", service, f"{service}.svc.cluster.local")
        return (*names, self.webhook_host) if self.webhook_host else names

    def problems(self) -> list[str]:
        """Invalid combinations, a line each, naming the flags."""
        found = self.ignored.problems()
        found += [
            f'--enabled-admission: "{path}" is not a webhook path; accepted: {", ".join(WEBHOOKS)}'
            for path in self.paths
            if path not in WEBHOOKS
        ]
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            found.append("--tls-cert-file and --tls-private-key-file: give both, or neither")
        return found


def _split(values: tuple[str, ...]) -> tuple[str, ...]:
    """Values of a flag that is repeatable and takes commas."""
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())
