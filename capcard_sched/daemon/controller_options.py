"""The flags of `capcard-sched controllers`: names, defaults and spellings are those of Volcano's controller manager."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.compat_flags import CommonCompatFlags
from capcard_sched.daemon.flag_values import AddressFlag

CLUSTER: Final = Group("The cluster", sort_key=1)
CONTROLLERS: Final = Group("Controllers", sort_key=2)
ELECTION: Final = Group("Leader election", sort_key=3)
SERVING: Final = Group("Metrics and health", sort_key=4)
DIAGNOSIS: Final = Group("Logs", sort_key=5)

#: The controllers, by the names that users of Volcano know.
NAMES: Final = ("pg-controller", "queue-controller", "job-controller", "gc-controller", "cronjob-controller")
_METRICS_ADDRESS: Final = AddressFlag("", 8081)
_HEALTH_ADDRESS: Final = AddressFlag("", 11252)


def _flag(group: Group, converter: Any = None, **more: Any) -> Parameter:
    return Parameter(group=group, converter=converter, **more)


def _period() -> Parameter:
    return _flag(ELECTION, values.period, show_default=values.show_duration, metavar="DURATION")


def _switch(group: Group) -> Parameter:
    return _flag(group, negative=(), show_default=lambda value: str(value).lower())


def _address() -> Parameter:
    return _flag(SERVING, values.address, show_default=str, metavar="HOST:PORT")


def _workers() -> Parameter:
    return _flag(CONTROLLERS, values.whole(1, 256), metavar="N")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Everything that is decided on the command line. Times are seconds."""

    kubeconfig: Annotated[Path | None, _flag(CLUSTER, values.path, metavar="PATH")] = None
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

    controllers: Annotated[
        tuple[str, ...], _flag(CONTROLLERS, values.names, negative=(), show_default=values.show_list, metavar="NAME")
    ] = ("*",)
    """Controllers to run: `*` for all, `+name` to enable and `-name` to disable one; repeatable. Names: pg-controller,
    queue-controller, job-controller, gc-controller, cronjob-controller."""

    scheduler_name: Annotated[
        tuple[str, ...], _flag(CONTROLLERS, values.names, negative=(), show_default=values.show_list, metavar="NAME")
    ] = ("capcard-sched",)
    """Pods of this `schedulerName` get PodGroups; Jobs that name no scheduler get the first one. Repeatable."""

    worker_threads: Annotated[int, _workers()] = 32
    """Jobs that are reconciled at the same time."""

    worker_threads_for_podgroup: Annotated[int, _workers()] = 5
    """Pods and their owners that are reconciled at the same time."""

    worker_threads_for_queue: Annotated[int, _workers()] = 5
    """Queues that are reconciled at the same time."""

    worker_threads_for_gc: Annotated[int, _workers()] = 1
    """Finished Jobs that are deleted, and CronJobs that are reconciled, at the same time."""

    max_requeue_num: Annotated[int, _flag(CONTROLLERS, values.whole(-1, 10**6), metavar="N")] = 15
    """Refused writes of an object after which it is given up; a Job is terminated then. -1: never."""

    count_preemptions: Annotated[bool, _switch(CONTROLLERS)] = True
    """Count restarts of a Job after evictions by the scheduler towards its maxRetry."""

    inherit_owner_annotations: Annotated[bool, _switch(CONTROLLERS)] = True
    """Copy the `volcano.sh/` annotations of a pod's owners, and the gang size they name, to its PodGroup."""

    queue_status_counts: Annotated[bool, _switch(CONTROLLERS)] = False
    """Write the number of PodGroups per phase into the status of each queue, at most every 5 seconds."""

    leader_elect: Annotated[bool, _switch(ELECTION)] = True
    """Reconcile only while holding the Lease, so that several replicas can stand by for each other."""

    leader_elect_lease_duration: Annotated[float, _period()] = 15.0
    """How long the others wait after the leader's last renewal."""

    leader_elect_renew_deadline: Annotated[float, _period()] = 10.0
    """How long the leader may fail to renew before it stops writing; shorter than the lease."""

    leader_elect_retry_period: Annotated[float, _period()] = 2.0
    """Time between attempts."""

    leader_elect_resource_namespace: Annotated[str, _flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Namespace of the Lease; that of the pod when absent."""

    leader_elect_resource_name: Annotated[str, _flag(ELECTION, metavar="NAME")] = "capcard-sched-controllers"
    """Name of the Lease."""

    enable_metrics: Annotated[bool, _switch(SERVING)] = False
    """Serve /metrics."""

    listen_address: Annotated[AddressFlag, _address()] = _METRICS_ADDRESS
    """Address of /metrics."""

    enable_healthz: Annotated[bool, _switch(SERVING)] = False
    """Serve /healthz and /readyz."""

    healthz_address: Annotated[AddressFlag, _address()] = _HEALTH_ADDRESS
    """Address of /healthz and /readyz."""

    verbosity: Annotated[int, _flag(DIAGNOSIS, values.whole(0, 10), name=("-v", "--v"), metavar="N")] = 0
    """0 to 2: errors and changes of leadership; 4: every pass that failed; 5: libraries too."""

    log_format: Annotated[Literal["auto", "json", "console"], _flag(DIAGNOSIS)] = "auto"
    """One JSON object per line, or lines for people; auto: for people on a terminal."""

    ignored: CommonCompatFlags = field(default_factory=CommonCompatFlags)

    @property
    def enabled(self) -> frozenset[str]:
        """The controllers to run."""
        if "*" in self.controllers:
            return frozenset(NAMES)
        added = {entry.removeprefix("+") for entry in self.controllers if not entry.startswith("-")}
        removed = {entry.removeprefix("-") for entry in self.controllers if entry.startswith("-")}
        return frozenset((added or set(NAMES)) - removed)

    def problems(self) -> list[str]:
        """What does not fit together, a line each, naming the flags."""
        found = []
        if "*" in self.controllers and len(self.controllers) > 1:
            found.append("--controllers: '*' cannot be combined with other values")
        for entry in self.controllers:
            name = entry[1:] if entry[:1] in {"+", "-"} else entry
            if name not in {*NAMES, "*"}:
                found.append(f"--controllers: unknown controller {name!r}; accepted: *, {', '.join(NAMES)}")
        if self.leader_elect_lease_duration <= self.leader_elect_renew_deadline:
            found.append("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline")
        if self.leader_elect_renew_deadline <= 1.2 * self.leader_elect_retry_period:
            found.append("--leader-elect-renew-deadline must be longer than 1.2 times --leader-elect-retry-period")
        return found

    def summary(self) -> dict[str, object]:
        """The options that differ from their defaults, for the first line of the log."""
        default = ControllerOptions()
        names = [item.name for item in fields(self) if item.name != "ignored"]
        return {name: str(getattr(self, name)) for name in names if getattr(self, name) != getattr(default, name)}
