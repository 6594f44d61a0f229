"""The flags that several services share: connection, leader election, metrics, health and logs; and ignored ones."""

import re
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values
from capcard_sched.model.timestamps import format_duration

GROUP: Final = Group("Accepted for compatibility, ignored", sort_key=6)

#: Prefix of the `--help` text of each flag.
NO_EFFECT: Final = "No effect: "

_SAMPLING: Final = "all nodes are considered, without sampling"
_STREAM: Final = "logs always go to standard error"
_FILE: Final = "logs go to standard error, not to files"


def _flag(why: str, converter: Any = None, **more: Any) -> Parameter:
    return Parameter(
        group=GROUP, help=f"{NO_EFFECT}{why}", converter=converter, negative=(), show_default=False, **more
    )


_text: Final = partial(_flag, metavar="TEXT")
_number: Final = partial(_flag, converter=values.whole(-(10**9), 10**9), metavar="N")
_duration: Final = partial(_flag, converter=values.duration, metavar="DURATION")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CommonCompatFlags:
    """Those of every program of Volcano. One field per flag; the form of values is checked; durations are seconds."""

    feature_gates: Annotated[str, _text("there are no feature gates")] = ""
    enable_pprof: Annotated[bool, _flag("there is no Go profile")] = False
    log_flush_frequency: Annotated[float, _duration("every line is written immediately")] = 5.0
    logtostderr: Annotated[bool, _flag(_STREAM)] = True
    alsologtostderr: Annotated[bool, _flag(_STREAM)] = False
    stderrthreshold: Annotated[str, _text(_STREAM)] = ""
    log_dir: Annotated[str, _text(_FILE)] = ""
    log_file: Annotated[str, _text(_FILE)] = ""
    log_file_max_size: Annotated[int, _number(_FILE)] = 1800
    one_output: Annotated[bool, _flag(_FILE)] = False
    skip_log_headers: Annotated[bool, _flag(_FILE)] = False
    skip_headers: Annotated[bool, _flag("see --log-format")] = False
    add_dir_header: Annotated[bool, _flag("see --log-format")] = False
    log_backtrace_at: Annotated[str, _text("internal errors are logged with a traceback")] = ""
    vmodule: Annotated[str, _text("-v applies to all modules")] = ""

    def given(self) -> dict[str, str]:
        """Flags with a value other than their default: name to the reason why they have no effect."""
        texts = {item.name: item.type.__metadata__[0].help for item in fields(self)}  # type: ignore[union-attr]
        default = type(self)()
        return {
            f"--{name.replace('_', '-')}": reason.removeprefix(NO_EFFECT)
            for name, reason in texts.items()
            if getattr(self, name) != getattr(default, name)
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompatFlags(CommonCompatFlags):
    """Those of the scheduler."""

    resync_period: Annotated[
        float,
        _duration("watches are relisted only when the API server requires it"),
    ] = 0.0
    node_worker_threads: Annotated[int, _number("the scheduler applies node updates itself, without workers")] = 20
    minimum_feasible_nodes: Annotated[int, _number(_SAMPLING)] = 100
    minimum_percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 5
    percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 0
    csi_storage: Annotated[bool, _flag("storage capacity is checked for every CSI driver that publishes it")] = False
    ignored_provisioners: Annotated[
        tuple[str, ...],
        _flag("a provisioner without published capacity is not checked", values.words, metavar="NAME"),
    ] = ()


CLUSTER: Final = Group("Cluster", sort_key=1)
ELECTION: Final = Group("Leader election", sort_key=3)
SERVING: Final = Group("Metrics and health", sort_key=4)
DIAGNOSIS: Final = Group("Logs and diagnosis", sort_key=5)

#: A Kubernetes object name.
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
#: Flags with names of the Lease and its namespace.
_LEASE_FLAGS: Final = ("leader_elect_resource_name", "leader_elect_resource_namespace", "lock_object_namespace")
#: Minimum ratio of renew deadline to retry period: retries have this much jitter.
_JITTER: Final = 1.2


def flag(group: Group, converter: Any = None, **more: Any) -> Parameter:
    """A flag of a group."""
    return Parameter(group=group, converter=converter, **more)


def period(group: Group) -> Parameter:
    """A flag with a duration above 0."""
    return flag(group, values.period, show_default=format_duration, metavar="DURATION")


def switch(group: Group) -> Parameter:
    """A flag that is true or false."""
    return flag(group, negative=(), show_default=lambda value: str(value).lower())


def path(group: Group) -> Parameter:
    """A flag with the path of a file or folder."""
    return flag(group, values.path, metavar="PATH")


def names(group: Group) -> Parameter:
    """A repeatable flag with names."""
    return flag(group, values.names, negative=(), show_default=values.show_list, metavar="NAME")


def address(group: Group) -> Parameter:
    """A flag with a listen address."""
    return flag(group, values.address, show_default=str, metavar="HOST:PORT")


def is_object_name(text: str) -> bool:
    """Whether an object, such as a Lease, may have this name."""
    return len(text) <= _LONGEST_NAME and _OBJECT_NAME.fullmatch(text) is not None


class StartError(Exception):
    """Invalid input at startup: flags, files, plugins, ports. The text has one line per problem."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Flags of every service. An absent path is None."""

    kubeconfig: Annotated[Path | None, path(CLUSTER)] = None
    """Kubeconfig file. Without this and --master: $KUBECONFIG, ~/.kube/config, or the pod's own service account."""

    master: Annotated[str, flag(CLUSTER, show_default=False, metavar="URL")] = ""
    """Address of the API server; overrides the kubeconfig."""

    log_format: Annotated[Literal["auto", "json", "console"], flag(DIAGNOSIS)] = "auto"
    """Log format; auto: console on a terminal, else json."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LeaderOptions(ConnectionOptions):
    """Flags of every service with leader election. Times are seconds."""

    context: Annotated[str, flag(CLUSTER, show_default=False, metavar="NAME")] = ""
    """Context of the kubeconfig. Default: its current context."""

    kube_api_qps: Annotated[float, flag(CLUSTER, values.rate, metavar="N", show_default=lambda rate: f"{rate:g}")] = (
        2000.0
    )
    """Maximum requests per second to the API server."""

    kube_api_burst: Annotated[int, flag(CLUSTER, values.whole(1, 10**6), metavar="N")] = 2000
    """Burst of requests above that rate."""

    leader_elect: Annotated[bool, switch(ELECTION)] = True
    """Elect a leader by a Lease; only the leader works, the other replicas are standbys."""

    leader_elect_lease_duration: Annotated[float, period(ELECTION)] = 15.0
    """Time after the last renewal observed until a standby may acquire the Lease."""

    leader_elect_renew_deadline: Annotated[float, period(ELECTION)] = 10.0
    """Time the leader retries a renewal before it stops writing; shorter than the lease duration."""

    leader_elect_retry_period: Annotated[float, period(ELECTION)] = 2.0
    """Time between attempts to acquire or renew the Lease."""

    leader_elect_resource_namespace: Annotated[str, flag(ELECTION, show_default=False, metavar="NAME")] = ""
    """Namespace of the Lease. Default: the namespace of the pod."""

    enable_metrics: Annotated[bool, switch(SERVING)] = False
    """Serve /metrics."""

    enable_healthz: Annotated[bool, switch(SERVING)] = False
    """Serve /healthz and /readyz."""

    ignored: CommonCompatFlags = field(default_factory=CommonCompatFlags)

    def problems(self) -> list[str]:
        """Invalid combinations of flags, one line each."""
        found = []
        lease, deadline, retry = (
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
        )
        show = format_duration
        for name in _LEASE_FLAGS:
            given = getattr(self, name, "")
            if given and not is_object_name(given):
                found.append(
                    f"--{name.replace('_', '-')}: {given!r} is not an object name; accepted: lower-case letters, "
                    f"digits, '-' and '.', at most {_LONGEST_NAME}; a letter or digit first, last and beside every '.'"
                )
        if lease < 1.0:
            found.append(f"--leader-elect-lease-duration: {show(lease)} must be at least 1s")
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
        return found

    def summary(self) -> dict[str, object]:
        """Options that differ from their defaults, for the first log line."""
        default = type(self)()
        changed = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name != "ignored" and getattr(self, item.name) != getattr(default, item.name)
        }
        return {name: value if isinstance(value, int | float) else _plain(value) for name, value in changed.items()}


def _plain(value: object) -> object:
    return [str(item) for item in value] if type(value) is tuple else str(value)
