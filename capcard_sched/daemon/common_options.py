"""The flags that several services share: connection, leader election, metrics, health and logs."""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Final, Literal

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.compat_flags import CommonCompatFlags
from capcard_sched.daemon.flags import Flag, FlagGroup, flag
from capcard_sched.model.timestamps import format_duration

CLUSTER: Final = FlagGroup("Cluster", 1)
ELECTION: Final = FlagGroup("Leader election", 3)
SERVING: Final = FlagGroup("Metrics and health", 4)
DIAGNOSIS: Final = FlagGroup("Logs and diagnosis", 5)

#: A Kubernetes object name.
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
#: Flags with names of the Lease and its namespace.
_LEASE_FLAGS: Final = ("leader_elect_resource_name", "leader_elect_resource_namespace", "lock_object_namespace")
#: Minimum ratio of renew deadline to retry period: retries have this much jitter.
_JITTER: Final = 1.2


def period(group: FlagGroup) -> Flag:
    """A flag with a duration above 0."""
    return flag(group, values.period, show_default=format_duration, metavar="DURATION")


def switch(group: FlagGroup) -> Flag:
    return flag(group, negative=(), show_default=lambda value: str(value).lower())


def path(group: FlagGroup) -> Flag:
    return flag(group, values.path, metavar="PATH")


def names(group: FlagGroup) -> Flag:
    """A repeatable flag with names."""
    return flag(group, values.names, negative=(), show_default=values.show_list, metavar="NAME")


def address(group: FlagGroup) -> Flag:
    return flag(group, values.address, show_default=str, metavar="HOST:PORT")


def is_object_name(text: str) -> bool:
    """Whether an object, such as a Lease, may have this name."""
    return len(text) <= _LONGEST_NAME and _OBJECT_NAME.fullmatch(text) is not None


class StartError(Exception):
    """Invalid input at startup: flags, files, plugins, ports. The text has one line per problem."""


class ServeError(Exception):
    """A port or certificate that cannot be used; the text names the flag's value and the cause."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Flags of every service. An absent path is None."""

    kubeconfig: Annotated[Path | None, path(CLUSTER)] = None
    """Kubeconfig file. Without this and --master: $KUBECONFIG, ~/.kube/config, or the pod's own service account."""

    master: Annotated[str, flag(CLUSTER, show_default=False, metavar="URL")] = ""
    """Address of the API server; overrides the kubeconfig."""

    log_format: Annotated[Literal["auto", "json", "console"], flag(DIAGNOSIS)] = "auto"
    """Log format; auto: console on a terminal, else json."""


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
        found = self.ignored.problems()
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
