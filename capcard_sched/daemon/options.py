"""The flags of `capcard-sched run`: one field each; names, defaults, checks, `--help` and docs/flags.md come from it.

Names, defaults and spellings are the reference's (core reference §1.5), so that the arguments of an existing deployment
work as they are. It differs where a ruling says so: the name of the Lease follows the scheduler name (W-33).
"""

import hashlib
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.compat_flags import CompatFlags
from capcard_sched.daemon.flag_values import AddressFlag, LabelMatch

CLUSTER: Final = Group("The cluster", sort_key=1)
SCHEDULING: Final = Group("Scheduling", sort_key=2)
ELECTION: Final = Group("Leader election", sort_key=3)
SERVING: Final = Group("Metrics and health", sort_key=4)
DIAGNOSIS: Final = Group("Logs and diagnosis", sort_key=5)

#: Environment variables of the reference, and what they do here.
ENVIRONMENT: Final = {
    "DEBUG_SOCKET_DIR": "the same as `--debug-socket-dir`, which wins",
    "BATCH_BIND_NUM": "ignored: bindings leave one by one, `--bind-workers` at a time",
    "PANIC_ON_ERROR": "ignored: an internal error is contained, logged and counted; it never ends the process",
    "MULTI_SCHEDULER_ENABLE": "ignored: nodes and jobs are not shared out by hash; one leader per `--scheduler-name`",
    "SCHEDULER_POD_NAME": "ignored, as MULTI_SCHEDULER_ENABLE",
    "SCHEDULER_NUM": "ignored, as MULTI_SCHEDULER_ENABLE",
}

#: A Kubernetes object name: what a Lease may be called.
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
#: The renew deadline must be longer than the retry period by this factor: retries are spread by as much.
_JITTER: Final = 1.2


def _flag(group: Group, converter: Any = None, **more: Any) -> Parameter:
    return Parameter(group=group, converter=converter, **more)


def _period(group: Group) -> Parameter:
    return _flag(group, values.period, show_default=values.show_duration, metavar="DURATION")


def _switch(group: Group) -> Parameter:
    return _flag(group, negative=(), show_default=lambda value: str(value).lower())


def _path(group: Group) -> Parameter:
    return _flag(group, values.path, metavar="PATH")


def _address() -> Parameter:
    return _flag(SERVING, values.address, show_default=str, metavar="HOST:PORT")


_METRICS_ADDRESS: Final = AddressFlag("", 8080)
_HEALTH_ADDRESS: Final = AddressFlag("", 11251)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything that is decided on the command line. Times are seconds; a path that was not given is None."""

    # --- the cluster ------------------------------------------------------------------------------------------------

    kubeconfig: Annotated[Path | None, _path(CLUSTER)] = None
    """Kubeconfig file. Without this and --master: $KUBECONFIG, ~/.kube/config, or the pod's own service account."""

    master: Annotated[str, _flag(CLUSTER, show_default=False, metavar="URL")] = ""
    """Address of the API server, over the one in the kubeconfig."""

    context: Annotated[str, _flag(CLUSTER, show_default=False, metavar="NAME")] = ""
    """Context of the kubeconfig; its current one when absent."""

    kube_api_qps: Annotated[float, _flag(CLUSTER, values.rate, metavar="N", show_default=lambda rate: f"{rate:g}")] = (
        2000.0
    )
    """Most requests per second to the API server."""

    kube_api_burst: Annotated[int, _flag(CLUSTER, values.whole(1, 10**6), metavar="N")] = 2000
    """Most requests at once above that rate."""

    bind_workers: Annotated[int, _flag(CLUSTER, values.whole(1, 256), metavar="N")] = 32
    """Bindings on their way to the API server at the same time."""

    use_eviction_api: Annotated[bool, _switch(CLUSTER)] = False
    """Evict through the eviction subresource, which honours PodDisruptionBudgets, instead of deleting pods."""

    # --- scheduling -------------------------------------------------------------------------------------------------

    scheduler_name: Annotated[
        tuple[str, ...], _flag(SCHEDULING, values.names, negative=(), show_default=values.show_list, metavar="NAME")
    ] = ("capcard-sched",)
    """Pods of this `schedulerName` are ours; repeatable. To take over from Volcano, stop it and name `volcano`."""

    scheduler_conf: Annotated[Path | None, _path(SCHEDULING)] = None
    """The scheduler-conf; the built-in one when absent. Read again whenever it changes; one with errors changes
    nothing."""

    strict_conf: Annotated[bool, _switch(SCHEDULING)] = False
    """Do not start with a scheduler-conf that is missing, empty or has errors; else the built-in one is used until it
    is mended."""

    schedule_period: Annotated[float, _period(SCHEDULING)] = 1.0
    """Longest gap between sessions; a change in the cluster starts one sooner."""

    default_queue: Annotated[str, _flag(SCHEDULING, values.name, metavar="NAME")] = "default"
    """Queue of PodGroups that name none; created at start if it does not exist."""

    node_selector: Annotated[
        tuple[LabelMatch, ...],
        _flag(SCHEDULING, values.matches, negative=(), show_default=False, metavar="LABEL:VALUE"),
    ] = ()
    """Schedule on nodes with this label only; repeatable, or several with commas: a node needs one of them."""

    plugins_dir: Annotated[Path | None, _path(SCHEDULING)] = None
    """Folder of Python files with further plugins and actions."""

    priority_class: Annotated[bool, _switch(SCHEDULING)] = True
    """Watch PriorityClasses, which give PodGroups their priority."""

    # --- leader election --------------------------------------------------------------------------------------------

    leader_elect: Annotated[bool, _switch(ELECTION)] = True
    """Schedule only while holding the Lease, so that several replicas can stand by for each other."""

    leader_elect_lease_duration: Annotated[float, _period(ELECTION)] = 15.0
    """How long the others wait after the leader's last sign of life."""

    leader_elect_renew_deadline: Annotated[float, _period(ELECTION)] = 10.0
    """How long the leader may fail to renew before it stops writing; shorter than the lease."""

    leader_elect_retry_period: Annotated[float, _period(ELECTION)] = 2.0
    """Time between attempts."""

    leader_elect_resource_lock: Annotated[Literal["leases"], _flag(ELECTION)] = "leases"
    """Kind of the lock object."""

    leader_elect_resource_namespace: Annotated[str, _flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Namespace of the Lease; the one we run in when absent."""

    leader_elect_resource_name: Annotated[str, _flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Name of the Lease; the scheduler name when absent, so that schedulers of different names do not exclude each
    other."""

    lock_object_namespace: Annotated[str, _flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Older name of --leader-elect-resource-namespace; wins when set."""

    fence: Annotated[bool, _switch(ELECTION)] = False
    """Let the API server itself refuse bindings of a former leader, by a ValidatingAdmissionPolicy on pods/binding."""

    # --- metrics and health -----------------------------------------------------------------------------------------

    enable_metrics: Annotated[bool, _switch(SERVING)] = False
    """Serve /metrics."""

    listen_address: Annotated[AddressFlag, _address()] = _METRICS_ADDRESS
    """Where /metrics is served."""

    enable_healthz: Annotated[bool, _switch(SERVING)] = False
    """Serve /healthz (fails when the scheduler thread is dead) and /readyz (fails until all lists are applied)."""

    healthz_address: Annotated[AddressFlag, _address()] = _HEALTH_ADDRESS
    """Where those are served."""

    tls_cert_file: Annotated[Path | None, _path(SERVING)] = None
    """Certificate of the health server, PEM; it speaks plain HTTP when absent."""

    tls_private_key_file: Annotated[Path | None, _path(SERVING)] = None
    """Its key, PEM."""

    ca_cert_file: Annotated[Path | None, _path(SERVING)] = None
    """CA by which the health server checks client certificates, where clients show one."""

    # --- logs and diagnosis -----------------------------------------------------------------------------------------

    verbosity: Annotated[int, _flag(DIAGNOSIS, values.whole(0, 10), name=("-v", "--v"), metavar="N")] = 0
    """0 to 2: what happens to the daemon, and a line per session that decided something; 3: a line per session;
    4: every decision and refusal; 5: libraries too."""

    log_format: Annotated[Literal["auto", "json", "console"], _flag(DIAGNOSIS)] = "auto"
    """One JSON object per line, or lines for people; auto: for people on a terminal."""

    cache_dumper: Annotated[bool, _switch(DIAGNOSIS)] = True
    """On SIGUSR1 write nodes, jobs and queues as they are in memory to a file; on SIGUSR2 log where they differ from
    the API server."""

    cache_dump_dir: Annotated[Path, _flag(DIAGNOSIS, metavar="PATH")] = Path("/tmp")  # noqa: S108 - the reference's
    """Folder of those files, `snapshot-<unix seconds>.json`."""

    debug_socket_dir: Annotated[
        Path | None, _flag(DIAGNOSIS, values.path, env_var="DEBUG_SOCKET_DIR", show_env_var=False, metavar="PATH")
    ] = None
    """Folder for a unix socket that serves /getlevel and /setlevel?level=N&duration=D, which change -v for a while; no
    socket when absent. Also $DEBUG_SOCKET_DIR."""

    record: Annotated[Path | None, _path(DIAGNOSIS)] = None
    """Write what comes in and what is decided to this file, for `capcard-sched replay`."""

    ignored: CompatFlags = field(default_factory=CompatFlags)

    # --- what follows ------------------------------------------------------------------------------------------------

    @property
    def lease_name(self) -> str:
        """Name of the Lease: as given, else from the scheduler names (W-33), made to fit an object name.

        The Helm chart, which grants rights to this Lease only, names it by the same rule.
        """
        given = self.leader_elect_resource_name or "-".join(sorted(self.scheduler_name))
        if len(given) <= _LONGEST_NAME and _OBJECT_NAME.fullmatch(given):
            return given
        # Names that differ only in what cannot be written must not share a Lease.
        digest = hashlib.sha256(given.encode()).hexdigest()[:8]
        plain = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:200].strip("-")
        return f"{plain}-{digest}" if plain else f"capcard-sched-{digest}"

    @property
    def lease_namespace(self) -> str:
        """Namespace of the Lease; "" means the one we run in."""
        return self.lock_object_namespace or self.leader_elect_resource_namespace

    @property
    def component(self) -> str:
        """Source of our events: the scheduler name if there is exactly one (core reference §1.5)."""
        return self.scheduler_name[0] if len(self.scheduler_name) == 1 else "capcard-sched"

    def problems(self) -> list[str]:
        """What does not go together, a line each, naming the flags."""
        found = []
        lease, deadline, retry = (
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
        )
        show = values.show_duration
        if lease <= deadline:
            found.append(
                f"--leader-elect-lease-duration: {show(lease)} must be longer than --leader-elect-renew-deadline "
                f"({show(deadline)})"
            )
        if deadline <= _JITTER * retry:
            found.append(
                f"--leader-elect-renew-deadline: {show(deadline)} must be longer than {_JITTER} times "
                f"--leader-elect-retry-period ({show(retry)})"
            )
        given = self.leader_elect_resource_name
        if given and self.lease_name != given:
            found.append(
                f"--leader-elect-resource-name: {given!r} is no object name; accepted: lower-case letters, digits, "
                f"'-' and '.', {_LONGEST_NAME} at most; a letter or digit first, last and beside every '.'"
            )
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            found.append("--tls-cert-file and --tls-private-key-file: give both, or neither")
        if self.ca_cert_file is not None and self.tls_cert_file is None:
            found.append("--ca-cert-file: needs --tls-cert-file and --tls-private-key-file")
        if self.fence and not self.leader_elect:
            found.append("--fence: needs --leader-elect, whose Lease it is measured by")
        if self.strict_conf and self.scheduler_conf is None:
            found.append("--strict-conf: needs --scheduler-conf")
        same = self.enable_metrics and self.enable_healthz and self.listen_address.port
        if same and self.listen_address == self.healthz_address and self.tls_cert_file is not None:
            found.append("--healthz-address: must differ from --listen-address when the health server speaks TLS")
        return found

    def without_effect(self) -> dict[str, str]:
        """Flags that were given another value than their default and do nothing here: name to why not."""
        return self.ignored.given()

    def summary(self) -> dict[str, object]:
        """The options that differ from their defaults, for the first line of the log."""
        default = Options()
        changed = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name != "ignored" and getattr(self, item.name) != getattr(default, item.name)
        }
        return {name: value if isinstance(value, int | float) else _plain(value) for name, value in changed.items()}


def _plain(value: object) -> object:
    return [str(item) for item in value] if type(value) is tuple else str(value)
