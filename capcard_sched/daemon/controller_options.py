"""The flags of `capcard-sched controllers`: names, defaults and spellings are those of Volcano's controller manager."""

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.common_options import (
    DIAGNOSIS,
    ELECTION,
    SERVING,
    LeaderOptions,
    address,
    flag,
    names,
    switch,
)
from capcard_sched.daemon.flag_values import AddressFlag

CONTROLLERS: Final = Group("Controllers", sort_key=2)

#: The controllers, by the names that users of Volcano know.
NAMES: Final = ("pg-controller", "queue-controller", "job-controller", "gc-controller", "cronjob-controller")
_METRICS_ADDRESS: Final = AddressFlag("", 8081)
_HEALTH_ADDRESS: Final = AddressFlag("", 11252)


def _workers() -> Parameter:
    return flag(CONTROLLERS, values.whole(1, 256), metavar="N")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ControllerOptions(LeaderOptions):
    """Everything that is decided on the command line. Times are seconds."""

    controllers: Annotated[tuple[str, ...], names(CONTROLLERS)] = ("*",)
    """Controllers to run: `*` for all, `+name` to enable and `-name` to disable one; repeatable. Names: pg-controller,
    queue-controller, job-controller, gc-controller, cronjob-controller."""

    scheduler_name: Annotated[tuple[str, ...], names(CONTROLLERS)] = ("capcard-sched",)
    """Pods of this `schedulerName` get PodGroups; Jobs that name no scheduler get the first one. Repeatable."""

    worker_threads: Annotated[int, _workers()] = 32
    """Jobs that are reconciled at the same time."""

    worker_threads_for_podgroup: Annotated[int, _workers()] = 5
    """Pods and their owners that are reconciled at the same time."""

    worker_threads_for_queue: Annotated[int, _workers()] = 5
    """Queues that are reconciled at the same time."""

    worker_threads_for_gc: Annotated[int, _workers()] = 1
    """Finished Jobs that are deleted, and CronJobs that are reconciled, at the same time."""

    max_requeue_num: Annotated[int, flag(CONTROLLERS, values.whole(-1, 10**6), metavar="N")] = 15
    """Refused writes of an object after which it is given up; a Job is terminated then. -1: never."""

    count_preemptions: Annotated[bool, switch(CONTROLLERS)] = True
    """Count restarts of a Job after evictions by the scheduler towards its maxRetry."""

    inherit_owner_annotations: Annotated[bool, switch(CONTROLLERS)] = True
    """Copy the `volcano.sh/` annotations of a pod's owners, and the gang size they name, to its PodGroup."""

    queue_status_counts: Annotated[bool, switch(CONTROLLERS)] = False
    """Write the number of PodGroups per phase into the status of each queue, at most every 5 seconds."""

    leader_elect_resource_name: Annotated[str, flag(ELECTION, metavar="NAME")] = "capcard-sched-controllers"
    """Name of the Lease."""

    listen_address: Annotated[AddressFlag, address(SERVING)] = _METRICS_ADDRESS
    """Address of /metrics."""

    healthz_address: Annotated[AddressFlag, address(SERVING)] = _HEALTH_ADDRESS
    """Address of /healthz and /readyz."""

    verbosity: Annotated[int, flag(DIAGNOSIS, values.whole(0, 10), name=("-v", "--v"), metavar="N")] = 0
    """0 to 2: errors and changes of leadership; 4: every pass that failed; 5: libraries too."""

    @property
    def enabled(self) -> frozenset[str]:
        """The controllers to run."""
        if "*" in self.controllers:
            return frozenset(NAMES)
        added = {entry.removeprefix("+") for entry in self.controllers if not entry.startswith("-")}
        removed = {entry.removeprefix("-") for entry in self.controllers if entry.startswith("-")}
        return frozenset((added or set(NAMES)) - removed)

    def problems(self) -> list[str]:
        """Invalid combinations of flags, one line each."""
        found = super().problems()
        if "*" in self.controllers and len(self.controllers) > 1:
            found.append("--controllers: '*' cannot be combined with other values")
        for entry in self.controllers:
            name = entry[1:] if entry[:1] in {"+", "-"} else entry
            if name not in {*NAMES, "*"}:
                found.append(f"--controllers: unknown controller {name!r}; accepted: *, {', '.join(NAMES)}")
        return found
