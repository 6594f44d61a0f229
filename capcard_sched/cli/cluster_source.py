"""The cluster a question is about: manifests, simulated first, or a live cluster, read once and left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Group, Parameter

from capcard_sched.cli.failures import FailureWatch
from capcard_sched.cli.simulate import BadInputError, build_core, core_under, options_of
from capcard_sched.controllers.objects import ROOT_QUEUE
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError, load_scenario

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import Connection
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Job

#: Where manifests/ and the chart keep the scheduler-conf of a cluster.
INSTALLED_CONF: Final = "capcard-system/capcard-sched-conf"
_CONF_KEY: Final = "scheduler.yaml"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
#: Of a job's evictions so many are shown.
_SHOWN_EVENTS: Final = 5
#: Events of kinds that the scheduler can do without, in words.
_UNREAD: Final = {"missing": "not known to the API server", "forbidden": "may not be listed"}

_SIMULATED: Final = Group("With -f", sort_key=2)
_LIVE: Final = Group("Without -f: a live cluster", sort_key=3)


class _EventRow(msgspec.Struct, rename="camel"):
    message: str = ""
    last_timestamp: str | None = None


class _Events(msgspec.Struct):
    items: list[_EventRow] = []


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Source:
    """Which cluster, under which scheduler-conf."""

    file: Annotated[
        tuple[str, ...],
        Parameter(name=["--file", "-f"], negative=(), allow_leading_hyphen=True, show_default=False, metavar="PATH"),
    ] = ()
    """File, folder or `-` for standard input, YAML or JSON, to be simulated as `simulate` does. Repeatable. Without it
    the question is about a live cluster."""

    scheduler_conf: Path | None = None
    """The scheduler-conf to use; when absent the installed one (live), else the built-in one."""

    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NAME")] = ()
    """Pods of this `schedulerName` are ours. Repeatable; capcard-sched and volcano when absent."""

    default_queue: Annotated[str, Parameter(metavar="NAME")] = "default"
    """Queue of PodGroups that name none."""

    plugins_dir: Path | None = None
    """Folder with further plugins and actions."""

    until: Annotated[str | None, Parameter(group=_SIMULATED, allow_leading_hyphen=True, metavar="DURATION")] = None
    """The cluster at this virtual time, such as 10m; when absent, when nothing can change any more."""

    schedule_period: Annotated[str, Parameter(group=_SIMULATED, allow_leading_hyphen=True, metavar="DURATION")] = "1s"
    """Virtual time between sessions."""

    kubeconfig: Annotated[Path | None, Parameter(group=_LIVE)] = None
    """Kubeconfig file; found as kubectl finds it when absent."""

    context: Annotated[str, Parameter(group=_LIVE, show_default=False, metavar="NAME")] = ""
    """Context of the kubeconfig; its current one when absent."""

    installed_conf: Annotated[str, Parameter(group=_LIVE, metavar="NAMESPACE/NAME")] = INSTALLED_CONF
    """ConfigMap with the installed scheduler-conf, NAMESPACE/NAME, unless --scheduler-conf is given."""


@dataclass(frozen=True)
class ClusterSource:
    """A core that knows the cluster and has held a session over it. `now` in Unix seconds."""

    core: Core
    now: float
    #: Tells contained failures; returns the exit status.
    report: Callable[[], int]
    #: For messages: "the simulated cluster" or the address of the API server.
    where: str
    #: What events of a live cluster tell of evictions of a job.
    told: Callable[[Job], tuple[str, ...]] = lambda _: ()


def scene(source: Source, *, as_it_stands: bool = False) -> ClusterSource:
    """Load it. Raises BadInputError when the input, the connection or the cluster's answer is no use.

    `as_it_stands`: of a live cluster, what the session would decide is left out, and only what is there is shown.
    """
    return _simulated(source) if source.file else _live(source, as_it_stands=as_it_stands)


def _simulated(source: Source) -> ClusterSource:
    from capcard_sched.simulation.run import simulate as run

    options = options_of(source.until, source.schedule_period, source.scheduler_name, source.default_queue)
    try:
        scenario = load_scenario(source.file, existing_queues=(ROOT_QUEUE, source.default_queue))
        core = build_core(source.scheduler_conf, source.plugins_dir, options)
        watched = FailureWatch(core)
        outcome = run(scenario, watched, options)
    except InputError as error:
        raise BadInputError(str(error)) from None
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return ClusterSource(core, EPOCH + outcome.end / SECOND, watched.report, "the simulated cluster")


def _live(source: Source, *, as_it_stands: bool) -> ClusterSource:
    import asyncio
    import time

    from capcard_sched.kube.client import ApiError, Unreachable
    from capcard_sched.kube.connection import ConnectionConfigError, load_connection

    options = options_of(None, "1s", source.scheduler_name, source.default_queue)
    try:
        connection = load_connection(
            str(source.kubeconfig) if source.kubeconfig is not None else None, None, source.context or None
        )
    except ConnectionConfigError as error:
        why = str(error)
        if source.kubeconfig is None:
            why = f"{why.rstrip('.')}; a cluster in files is given with -f"
        raise BadInputError(why) from None
    try:
        conf, facts = asyncio.run(_read(source, connection))
    except (ApiError, Unreachable) as error:
        raise BadInputError(f"{connection.server}: {error}") from None
    if conf is None:
        core = build_core(source.scheduler_conf, source.plugins_dir, options)
    else:
        core = core_under(conf, f"ConfigMap {source.installed_conf}", source.plugins_dir, options)
    if as_it_stands:
        core.reconfigure(msgspec.structs.replace(core.conf, actions=()))
    watched = FailureWatch(core)
    now = time.time()
    watched.step(facts, now)
    return ClusterSource(core, now, watched.report, connection.server, lambda job: asyncio.run(_told(connection, job)))


async def _read(source: Source, connection: Connection) -> tuple[str | None, list[Delta]]:
    """The installed scheduler-conf, None when there is none to be had, and everything the scheduler would watch."""
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.informers import list_all
    from capcard_sched.kube.instrumentation import NullObserver

    unread: dict[str, list[str]] = {}

    class Notes(NullObserver):
        """What is not there or not to be had is said in one line each."""

        def watch(self, resource: str, event: str, detail: str = "") -> None:
            if event == "undecodable":
                print(f"warning: {detail}; left out", file=sys.stderr)
            elif event in _UNREAD:
                unread.setdefault(event, []).append(resource)

    async with Client(connection) as client:
        conf = None if source.scheduler_conf is not None else await _installed_conf(client, source.installed_conf)
        facts = await list_all(client, observer=Notes())
    for event, resources in unread.items():
        print(f"note: {_UNREAD[event]}, taken as none: {', '.join(resources)}", file=sys.stderr)
    return conf, facts


async def _told(connection: Connection, job: Job) -> tuple[str, ...]:
    """The messages of the last events `Evict` about a PodGroup, oldest first; none where events may not be read."""
    from capcard_sched.kube.client import ApiError, Client, Unreachable
    from capcard_sched.kube.paths import events_path
    from capcard_sched.model.reasons import GROUP_EVICTED

    about = f"involvedObject.kind=PodGroup,involvedObject.name={job.name},reason={GROUP_EVICTED.code}"
    try:
        async with Client(connection) as client:
            body = await client.request("GET", events_path(job.namespace), params={"fieldSelector": about})
    except (ApiError, Unreachable) as error:
        print(f"note: events are left out: {error}", file=sys.stderr)
        return ()
    found = sorted(msgspec.json.decode(body, type=_Events).items, key=lambda event: event.last_timestamp or "")
    return tuple(f"{event.message} ({event.last_timestamp})" for event in found[-_SHOWN_EVENTS:])


async def _installed_conf(client: Client, name: str) -> str | None:
    from capcard_sched.kube.client import ApiError
    from capcard_sched.kube.paths import CORE, object_path

    class ConfigMap(msgspec.Struct):
        data: dict[str, str] = {}

    namespace, _, plain = name.partition("/")
    if not namespace or not plain:
        raise BadInputError(f"--installed-conf: {name!r}: expected NAMESPACE/NAME")
    try:
        body = await client.request("GET", object_path(CORE, "configmaps", plain, namespace=namespace))
    except ApiError as error:
        if error.status not in {_NOT_FOUND, _FORBIDDEN}:
            raise
        why = "there is none" if error.status == _NOT_FOUND else "it may not be read"
        print(f"note: ConfigMap {name}: {why}; the built-in scheduler-conf is used", file=sys.stderr)
        return None
    conf = msgspec.json.decode(body, type=ConfigMap).data.get(_CONF_KEY)
    if conf is None:
        print(f"note: ConfigMap {name} has no key {_CONF_KEY}; the built-in scheduler-conf is used", file=sys.stderr)
    return conf
