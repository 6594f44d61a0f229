"""The flags that select the cluster of a reading verb."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from cyclopts import Group, Parameter

from capcard_sched.cli.files import Files
from capcard_sched.model.autoscaling import AutoscalingOptions
from capcard_sched.model.provisioning import ProvisioningClass

#: Where manifests/ and the chart keep the scheduler-conf of a cluster.
INSTALLED_CONF: Final = "capcard-system/capcard-sched-conf"

_SIMULATED: Final = Group("With -f", sort_key=2)
_LIVE: Final = Group("Without -f: a live cluster", sort_key=3)


CacheFlag: TypeAlias = Annotated[str | None, Parameter(group=_LIVE, show_default=False, metavar="PATH")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Source:
    """Flags that select the cluster and the scheduler-conf."""

    file: Files = ()
    """File, folder or `-` for standard input, YAML or JSON; simulated as by `simulate`. Repeatable. A single file of
    `snapshot`, or one beside a dump, is read as it is. Default: a live cluster."""

    scheduler_conf: Path | None = None
    """Scheduler-conf file. Default: the installed one (live cluster), else the built-in one."""

    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NAME")] = ()
    """Schedule pods with this `schedulerName`. Repeatable. Default: capcard-sched and volcano."""

    default_queue: Annotated[str, Parameter(metavar="NAME")] = "default"
    """Queue of PodGroups that name none."""

    plugins_dir: Path | None = None
    """Folder with additional plugins and actions."""

    autoscaler: Annotated[bool, Parameter(negative=())] = False
    """Admit jobs that only the size of the cluster holds back, as `run --node-autoscaling` does."""

    provisioning_request_class: Annotated[ProvisioningClass, Parameter(show_default=False, metavar="CLASS")] = ""
    """Class of the ProvisioningRequests of gangs, as in `run`. Implies --autoscaler."""

    until: Annotated[str | None, Parameter(group=_SIMULATED, allow_leading_hyphen=True, metavar="DURATION")] = None
    """Stop the simulation at this virtual time, such as 10m; also simulates a file of `snapshot`. Default: when no
    further change is possible."""

    schedule_period: Annotated[str, Parameter(group=_SIMULATED, allow_leading_hyphen=True, metavar="DURATION")] = "1s"
    """Virtual time between sessions."""

    recording: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None
    """Recording of `run --record`: its last state, under the recorded scheduler-conf."""

    kubeconfig: Annotated[Path | None, Parameter(group=_LIVE)] = None
    """Kubeconfig file. Default: the one kubectl uses."""

    context: Annotated[str, Parameter(group=_LIVE, show_default=False, metavar="NAME")] = ""
    """Context of the kubeconfig. Default: its current context."""

    installed_conf: Annotated[str, Parameter(group=_LIVE, metavar="NAMESPACE/NAME")] = INSTALLED_CONF
    """ConfigMap that holds the installed scheduler-conf; ignored with --scheduler-conf."""

    cache: CacheFlag = None
    """Socket of `capcard-sched cache`, which serves from memory. Default: $CAPCARD_SCHED_CACHE."""

    @property
    def autoscaling(self) -> AutoscalingOptions:
        """The parameters of the core that autoscaling of nodes needs."""
        return AutoscalingOptions(
            expects_nodes=self.autoscaler or bool(self.provisioning_request_class),
            provisioning_class=self.provisioning_request_class,
        )

    @property
    def is_live(self) -> bool:
        """Neither manifests nor a file of a daemon."""
        return not self.file and self.recording is None
