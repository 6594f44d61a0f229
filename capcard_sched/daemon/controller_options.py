"""The flags of `capcard-sched controllers`: names, defaults and spellings are those of Volcano's controller manager."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from capcard_sched.controllers.owner_rules import OwnerRule, OwnerRulesError, built_in_rules, parse_owner_rules
from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.common_options import (
    DIAGNOSIS,
    ELECTION,
    SERVING,
    LeaderOptions,
    address,
    names,
    path,
    switch,
)
from capcard_sched.daemon.compat_flags import ControllerCompatFlags
from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.flags import Flag, FlagGroup, flag
from capcard_sched.input_files import read_input
from capcard_sched.model.topology_discovery import DiscoveryConfig, read_discovery

CONTROLLERS: Final = FlagGroup("Controllers", 2)

#: The controllers, by the names that users of Volcano know.
NAMES: Final = (
    *("pg-controller", "queue-controller", "namespacequeue-controller", "job-controller", "gc-controller"),
    *("cronjob-controller", "hypernode-controller"),
)
#: Controllers of Volcano that do not exist here.
FOREIGN_NAMES: Final = frozenset(
    {
        *("jobflow-controller", "jobtemplate-controller", "sharding-controller"),
        *("colocation-config-controller", "hyperjob-controller"),
    }
)
_METRICS_ADDRESS: Final = AddressFlag("", 8081)
_HEALTH_ADDRESS: Final = AddressFlag("", 11252)


def _workers() -> Flag:
    return flag(CONTROLLERS, values.whole(1, 256), metavar="N")


@dataclass(frozen=True, kw_only=True)
class ControllerOptions(LeaderOptions):
    """Everything that is decided on the command line. Times are seconds."""

    controllers: Annotated[
        tuple[str, ...],
        flag(CONTROLLERS, values.words, negative=(), show_default=values.show_list, metavar="NAME"),
    ] = ("*",)
    """Controllers to run: `*` for all, `+name` to enable and `-name` to disable one; repeatable or comma-separated.
    Names: pg-controller, queue-controller, namespacequeue-controller, job-controller, gc-controller,
    cronjob-controller, hypernode-controller. Volcano's other controllers are accepted; enabling one has no effect."""

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

    owner_groups: Annotated[Path | None, path(CONTROLLERS)] = None
    """File with the list `ownerGroups`: rules that make gangs of the pods of operators without PodGroups. They precede
    the built-in ones and replace those of their name. `none`: no rules, as in Volcano. Default: the built-in rules."""

    network_topology_discovery: Annotated[Path | None, path(CONTROLLERS)] = None
    """File with the list `networkTopologyDiscovery`, as Volcano's `volcano-controller.conf`: HyperNodes from node
    labels (source `label`). Default: no HyperNodes are made."""

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

    ignored: ControllerCompatFlags = field(default_factory=ControllerCompatFlags)

    @property
    def enabled(self) -> frozenset[str]:
        """The controllers to run."""
        known = [entry for entry in self.controllers if _controller(entry) in NAMES]
        removed = {_controller(entry) for entry in known if entry.startswith("-")}
        added = {_controller(entry) for entry in known if not entry.startswith("-")}
        is_list = any(not entry.startswith("-") for entry in self.controllers) and "*" not in self.controllers
        return frozenset((added if is_list else set(NAMES)) - removed)

    def given(self) -> dict[str, str]:
        """Flags, and names of controllers, without effect: each with the reason."""
        foreign = {
            f"--controllers={entry}": "there is no such controller"
            for entry in self.controllers
            if not entry.startswith("-") and _controller(entry) in FOREIGN_NAMES
        }
        if self.network_topology_discovery is not None and "hypernode-controller" not in self.enabled:
            foreign["--network-topology-discovery"] = "--controllers excludes hypernode-controller"
        return {**self.ignored.given(), **foreign}

    def problems(self) -> list[str]:
        """Invalid combinations of flags, one line each."""
        found = super().problems()
        if "*" in self.controllers and any(entry != "*" and not entry.startswith("-") for entry in self.controllers):
            found.append("--controllers: '*' cannot be combined with names that are not removed by '-'")
        for entry in self.controllers:
            name = _controller(entry)
            if name not in {*NAMES, *FOREIGN_NAMES, "*"}:
                found.append(f"--controllers: unknown controller {name!r}; accepted: *, {', '.join(NAMES)}")
        try:
            self.owner_rules()
        except OSError as error:
            found.append(f"--owner-groups: {self.owner_groups}: {error.strerror or error}")
        except OwnerRulesError as error:
            found += [f"--owner-groups: {self.owner_groups}: {problem}" for problem in error.problems]
        try:
            problems = self.discovery().problems
        except OSError as error:
            problems = (error.strerror or str(error),)
        found += [f"--network-topology-discovery: {self.network_topology_discovery}: {each}" for each in problems]
        return found

    def discovery(self) -> DiscoveryConfig:
        """The configuration of HyperNodes from node labels. Raises OSError."""
        file = self.network_topology_discovery
        return DiscoveryConfig() if file is None else read_discovery(read_input(file))

    def owner_rules(self) -> tuple[OwnerRule, ...]:
        """The rules of `ownerGroups`. Raises OSError and OwnerRulesError."""
        if self.owner_groups is None:
            return built_in_rules()
        if str(self.owner_groups) == "none":
            return ()
        return parse_owner_rules(read_input(self.owner_groups), built_in_rules())


def _controller(entry: str) -> str:
    """The name in an entry of `--controllers`."""
    return (entry[1:] if entry[:1] in {"+", "-"} else entry).lower()
