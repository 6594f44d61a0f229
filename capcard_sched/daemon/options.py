"""The flags of `capcard-sched run`, besides `common_options`: names, defaults, checks, `--help` and docs/flags.md.

Names, defaults and spellings are those of Volcano's scheduler, so that arguments of existing deployments work. One
difference: the name of the Lease follows the scheduler name (docs/rulings.md#lease-by-scheduler-name).
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.common_options import (
    CLUSTER,
    DIAGNOSIS,
    ELECTION,
    SERVING,
    LeaderOptions,
    address,
    is_object_name,
    names,
    path,
    period,
    switch,
)
from capcard_sched.daemon.compat_flags import CompatFlags
from capcard_sched.daemon.flag_values import AddressFlag, LabelMatch
from capcard_sched.daemon.flags import FlagGroup, flag
from capcard_sched.framework.session.half_gangs import HALF_GANG_SECONDS
from capcard_sched.model.autoscaling import AutoscalingOptions
from capcard_sched.model.provisioning import ProvisioningClass
from capcard_sched.model.timestamps import format_duration

SCHEDULING: Final = FlagGroup("Scheduling", 2)

#: Environment variables of Volcano's scheduler and their effect here.
ENVIRONMENT: Final = {
    "DEBUG_SOCKET_DIR": "as `--debug-socket-dir`, which takes precedence",
    "BATCH_BIND_NUM": "ignored: binds are sent one by one, `--bind-workers` at a time",
    "PANIC_ON_ERROR": "ignored: an internal error is recovered, logged and counted; the process continues",
    "MULTI_SCHEDULER_ENABLE": "ignored: nodes and jobs are not sharded; one leader per `--scheduler-name`",
    "SCHEDULER_POD_NAME": "ignored, as MULTI_SCHEDULER_ENABLE",
    "SCHEDULER_NUM": "ignored, as MULTI_SCHEDULER_ENABLE",
}

_METRICS_ADDRESS: Final = AddressFlag("", 8080)
_HEALTH_ADDRESS: Final = AddressFlag("", 11251)


@dataclass(frozen=True, kw_only=True)
class Options(LeaderOptions):
    """All flags. Times are seconds; an absent path is None."""

    bind_workers: Annotated[int, flag(CLUSTER, values.whole(1, 256), metavar="N")] = 32
    """Number of concurrent bind requests."""

    use_eviction_api: Annotated[bool, switch(CLUSTER)] = False
    """Evict through the eviction subresource, which respects PodDisruptionBudgets, instead of deleting pods."""

    scheduler_name: Annotated[tuple[str, ...], names(SCHEDULING)] = ("capcard-sched",)
    """Schedule pods with this `schedulerName`; repeatable. To replace Volcano, stop it and use `volcano`."""

    scheduler_conf: Annotated[Path | None, path(SCHEDULING)] = None
    """Scheduler-conf file. Default: the built-in one. Reloaded on change; a file with errors is rejected and changes
    nothing."""

    strict_conf: Annotated[bool, switch(SCHEDULING)] = False
    """Do not start with a missing, empty or invalid scheduler-conf. Otherwise the built-in one is used until it is
    fixed."""

    disable_default_scheduler_config: Annotated[bool, switch(SCHEDULING)] = False
    """As --strict-conf for an invalid scheduler-conf; without --scheduler-conf, the built-in one is used."""

    resource_sync_timeout: Annotated[
        float, flag(SCHEDULING, values.duration, show_default=format_duration, metavar="DURATION")
    ] = 0.0
    """Time for the first lists of the API server, after which the process ends with an error. 0: no limit."""

    schedule_period: Annotated[float, period(SCHEDULING)] = 1.0
    """Maximum time between sessions; a change in the cluster starts one earlier."""

    session_deadline: Annotated[float, period(SCHEDULING)] = 10.0
    """Time for the attempts of one session, in equal shares for the queues with waiting jobs. A queue beyond its share
    continues in the next session; a gang that takes the whole time alone is not scheduled."""

    half_gang_timeout: Annotated[
        float, flag(SCHEDULING, values.duration, show_default=format_duration, metavar="DURATION")
    ] = HALF_GANG_SECONDS
    """How long a gang with bound pods that never had its minimum, for example after its leader was killed, is scheduled
    before all other jobs. Its bound pods are evicted afterwards. 0: never."""

    wait_for_podgroups: Annotated[bool, switch(SCHEDULING)] = False
    """A pod that names no PodGroup is not scheduled until the controllers have created one: no pod of a gang starts
    alone. Requires pg-controller with the same scheduler names; without it such pods stay pending. By default such a
    pod is a job of its own."""

    pod_pending_reasons: Annotated[Literal["precise", "volcano"], flag(SCHEDULING)] = "precise"
    """Reasons of the pod condition PodScheduled. precise: Unschedulable, for which cluster autoscalers add nodes, only
    for pods that have quota and lack nodes; docs/autoscaling.md has the others. volcano: those of Volcano."""

    node_autoscaling: Annotated[bool, switch(SCHEDULING)] = False
    """Admit jobs that only the size of the cluster holds back, so that an autoscaler adds nodes for their pods."""

    provisioning_request_class: Annotated[ProvisioningClass, flag(SCHEDULING, show_default=False, metavar="CLASS")] = ""
    """Create a ProvisioningRequest of this class for each gang that lacks nodes, instead of the condition Unschedulable
    of its pods: check-capacity.autoscaling.x-k8s.io or best-effort-atomic-scale-up.autoscaling.x-k8s.io. Default: none.
    Implies --node-autoscaling."""

    default_queue: Annotated[str, flag(SCHEDULING, values.name, metavar="NAME")] = "default"
    """Queue of PodGroups that name none; created at startup if it does not exist."""

    node_selector: Annotated[
        tuple[LabelMatch, ...],
        flag(SCHEDULING, values.matches, negative=(), show_default=False, metavar="LABEL:VALUE"),
    ] = ()
    """Schedule only on nodes with this label; repeatable or comma-separated, a node needs one of them."""

    plugins_dir: Annotated[Path | None, path(SCHEDULING)] = None
    """Folder of Python files with additional plugins and actions."""

    priority_class: Annotated[bool, switch(SCHEDULING)] = True
    """Watch PriorityClasses, the source of PodGroup priorities."""

    max_affinity_terms: Annotated[int, flag(SCHEDULING, values.whole(1, 10000), metavar="N")] = 64
    """Affinity terms per pod, node affinity included. A pod with more is unschedulable; 16 label requirements per term
    are allowed in all terms together."""

    max_spread_constraints: Annotated[int, flag(SCHEDULING, values.whole(1, 10000), metavar="N")] = 16
    """Topology spread constraints per pod. A pod with more is unschedulable."""

    leader_elect_resource_lock: Annotated[Literal["leases"], flag(ELECTION)] = "leases"
    """Kind of the lock object."""

    leader_elect_resource_name: Annotated[str, flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Name of the Lease. Default: the scheduler name, so that schedulers with different names do not exclude each
    other."""

    lock_object_namespace: Annotated[str, flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Older name of --leader-elect-resource-namespace; takes precedence."""

    fence: Annotated[bool, switch(ELECTION)] = False
    """Fencing: a ValidatingAdmissionPolicy rejects bindings and writes to ResourceClaims of a former leader."""

    listen_address: Annotated[AddressFlag, address(SERVING)] = _METRICS_ADDRESS
    """Listen address of /metrics."""

    enable_healthz: Annotated[bool, switch(SERVING)] = False
    """Serve /healthz (fails when the scheduler thread is dead) and /readyz (fails until all lists are applied)."""

    healthz_address: Annotated[AddressFlag, address(SERVING)] = _HEALTH_ADDRESS
    """Listen address of /healthz and /readyz."""

    tls_cert_file: Annotated[Path | None, path(SERVING)] = None
    """Certificate of the health server, PEM. Default: plain HTTP."""

    tls_private_key_file: Annotated[Path | None, path(SERVING)] = None
    """Private key of the health server, PEM."""

    ca_cert_file: Annotated[Path | None, path(SERVING)] = None
    """CA for optional client certificates of the health server."""

    verbosity: Annotated[int, flag(DIAGNOSIS, values.whole(0, 10), name=("-v", "--v"), metavar="N")] = 0
    """Log verbosity. 0 to 2: daemon events and sessions with decisions; 3: all sessions; 4: every decision and refusal;
    5: also libraries."""

    cache_dumper: Annotated[bool, switch(DIAGNOSIS)] = True
    """On SIGUSR1 dump the nodes, jobs and queues in memory to a file; on SIGUSR2 compare them with the API server and
    log the differences."""

    cache_dump_dir: Annotated[Path, flag(DIAGNOSIS, metavar="PATH")] = Path("/tmp")  # noqa: S108 - Volcano's default
    """Folder of dumps, `snapshot-<unix seconds>.json`, and of the objects of the API server beside them,
    `objects-<unix seconds>.json`, which `-f` of the commands reads."""

    debug_socket_dir: Annotated[
        Path | None, flag(DIAGNOSIS, values.path, env_var="DEBUG_SOCKET_DIR", show_env_var=False, metavar="PATH")
    ] = None
    """Folder for a unix socket that serves /getlevel and /setlevel?level=N&duration=D, which change -v temporarily.
    Default: no socket. Also $DEBUG_SOCKET_DIR."""

    record: Annotated[Path | None, path(DIAGNOSIS)] = None
    """Record deltas and decisions to this file, for `capcard-sched replay`."""

    ignored: CompatFlags = field(default_factory=CompatFlags)

    @property
    def lease_name(self) -> str:
        """Name of the Lease: the flag's value, else the scheduler names converted to an object name.

        The Helm chart, which grants access to this Lease only, uses the same rule.
        """
        given = self.leader_elect_resource_name or "-".join(sorted(self.scheduler_name))
        if is_object_name(given):
            return given
        # Scheduler names that differ only in invalid characters must not share a Lease.
        digest = hashlib.sha256(given.encode()).hexdigest()[:8]
        plain = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:200].strip("-")
        return f"{plain}-{digest}" if plain else f"capcard-sched-{digest}"

    @property
    def lease_namespace(self) -> str:
        """Namespace of the Lease; "" is the namespace of the scheduler."""
        return self.lock_object_namespace or self.leader_elect_resource_namespace

    @property
    def autoscaling(self) -> AutoscalingOptions:
        """The parameters of the core that autoscaling of nodes needs."""
        return AutoscalingOptions(
            precise_reasons=self.pod_pending_reasons == "precise",
            expects_nodes=self.node_autoscaling,
            provisioning_class=self.provisioning_request_class,
        )

    @property
    def component(self) -> str:
        """Source component of events: the scheduler name if there is exactly one."""
        return self.scheduler_name[0] if len(self.scheduler_name) == 1 else "capcard-sched"

    def problems(self) -> list[str]:
        """Invalid combinations of flags, one line each."""
        found = super().problems()
        if self.provisioning_request_class and self.pod_pending_reasons == "volcano":
            found.append("--provisioning-request-class: needs --pod-pending-reasons=precise")
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            found.append("--tls-cert-file and --tls-private-key-file: set both or neither")
        if self.ca_cert_file is not None and self.tls_cert_file is None:
            found.append("--ca-cert-file: needs --tls-cert-file and --tls-private-key-file")
        if self.fence and not self.leader_elect:
            found.append("--fence: needs --leader-elect")
        if self.strict_conf and self.scheduler_conf is None:
            found.append("--strict-conf: needs --scheduler-conf")
        same = self.enable_metrics and self.enable_healthz and self.listen_address.port
        if same and self.listen_address == self.healthz_address and self.tls_cert_file is not None:
            found.append("--healthz-address: must differ from --listen-address when the health server uses TLS")
        return found
