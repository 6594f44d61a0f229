"""Loads the cluster of a reading verb: simulated manifests, a recording, or a live cluster, read only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from cyclopts import Group, Parameter

from capcard_sched.cli.failures import FailureWatch
from capcard_sched.cli.simulate import BadInputError, build_core, core_with_conf, options_of
from capcard_sched.controllers.objects import ROOT_QUEUE
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError, load_scenario

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.expected_start import KnownState
    from capcard_sched.insight.object_view import ObjectView
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import Scenario

#: Where manifests/ and the chart keep the scheduler-conf of a cluster.
INSTALLED_CONF: Final = "capcard-system/capcard-sched-conf"
_CONF_KEY: Final = "scheduler.yaml"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
#: Watch event of an optional kind to the text of its note.
_UNREAD: Final = {"missing": "not served by the API server", "forbidden": "access denied"}

_SIMULATED: Final = Group("With -f", sort_key=2)
_LIVE: Final = Group("Without -f: a live cluster", sort_key=3)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Source:
    """Flags that select the cluster and the scheduler-conf."""

    file: Annotated[
        tuple[str, ...],
        Parameter(name=["--file", "-f"], negative=(), allow_leading_hyphen=True, show_default=False, metavar="PATH"),
    ] = ()
    """File, folder or `-` for standard input, YAML or JSON; simulated as by `simulate`. Repeatable. Default: a live
    cluster."""

    scheduler_conf: Path | None = None
    """Scheduler-conf file. Default: the installed one (live cluster), else the built-in one."""

    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NAME")] = ()
    """Schedule pods with this `schedulerName`. Repeatable. Default: capcard-sched and volcano."""

    default_queue: Annotated[str, Parameter(metavar="NAME")] = "default"
    """Queue of PodGroups that name none."""

    plugins_dir: Path | None = None
    """Folder with additional plugins and actions."""

    until: Annotated[str | None, Parameter(group=_SIMULATED, allow_leading_hyphen=True, metavar="DURATION")] = None
    """Stop the simulation at this virtual time, such as 10m. Default: when no further change is possible."""

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

    @property
    def is_live(self) -> bool:
        """Neither manifests nor a file of a daemon."""
        return not self.file and self.recording is None


@dataclass(frozen=True)
class ClusterSource:
    """A core that has loaded the cluster and run a session over all of it. `now` in Unix seconds."""

    core: Core
    now: float
    #: Steps the core and collects the errors of plugins that it recovered from.
    watched: FailureWatch
    #: For messages: "at the end of the simulation".
    when: str
    objects: ObjectView
    #: The state as manifests, with the ends of jobs that the source knows.
    known_state: Callable[[], KnownState]
    #: Set for a live cluster.
    live: LiveCluster | None = None
    #: Namespace of the kubeconfig's context.
    namespace: str = "default"

    @property
    def is_live(self) -> bool:
        """Whether the objects are those of a live cluster."""
        return self.live is not None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Resources that are not readable and without which no session can run."""
        return self.live.unreadable if self.live is not None else ()

    def report(self) -> int:
        """Print the errors of plugins. Returns the exit status."""
        return self.watched.report()


def load_cluster(source: Source, *, read_only: bool = False, namespace: str = "", jobs: bool = False) -> ClusterSource:
    """Load the cluster. Raises BadInputError when the input, the connection or a response is invalid.

    `read_only`: run no actions over it, so that the core holds its present state only. `namespace`: the one to read
    where pods and PodGroups of all namespaces are not readable; "" for that of the kubeconfig's context. `jobs`: read
    the Jobs of a live cluster, too.
    """
    if source.file and source.recording is not None:
        raise BadInputError("-f and --recording: give one of them")
    if source.file:
        return _simulated(source, read_only=read_only)
    if source.recording is not None:
        return _recorded(source, read_only=read_only)
    return live_cluster(source, read_live(source, namespace, jobs=jobs), read_only=read_only)


def _simulated(source: Source, *, read_only: bool) -> ClusterSource:
    from capcard_sched.insight.expected_start import KnownState
    from capcard_sched.insight.object_view import StoreObjects

    scenario = scenario_of(source)
    core, watched, outcome = run_scenario(scenario, source, source.scheduler_conf)
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    now, conf = EPOCH + outcome.end / SECOND, core.conf
    _full_session(core, watched, outcome.deltas, now, read_only=read_only)
    store = outcome.store

    def known_state() -> KnownState:
        return KnownState([obj for kind in store.kinds() for obj in store.list(kind)], now, conf, ends=outcome.ends)

    return ClusterSource(core, now, watched, "at the end of the simulation", StoreObjects(store), known_state)


def scenario_of(source: Source, *more: str) -> Scenario:
    """The scenario of the `-f` files and of further ones. Raises BadInputError."""
    try:
        return load_scenario((*source.file, *more), existing_queues=(ROOT_QUEUE, source.default_queue))
    except InputError as error:
        raise BadInputError(str(error)) from None


def run_scenario(scenario: Scenario, source: Source, conf: Path | None) -> tuple[Core, FailureWatch, SimulationOutcome]:
    """Simulate a scenario under the scheduler-conf of a file; None: the built-in one. Raises BadInputError."""
    from capcard_sched.simulation.run import simulate as run

    options = options_of(source.until, source.schedule_period, source.scheduler_name, source.default_queue)
    core = build_core(conf, source.plugins_dir, options)
    watched = FailureWatch(core)
    try:
        return core, watched, run(scenario, watched, options)
    except InputError as error:
        raise BadInputError(str(error)) from None


def _recorded(source: Source, *, read_only: bool) -> ClusterSource:
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader
    from capcard_sched.insight.expected_start import KnownState
    from capcard_sched.insight.object_view import DeltaObjects, manifests_of
    from capcard_sched.insight.recorded_state import read_state

    assert source.recording is not None
    try:
        state = read_state(RecordingReader(source.recording))
    except RecordingError as error:
        raise BadInputError(str(error)) from None
    header = state.header
    options = options_of(None, "1s", source.scheduler_name or header.scheduler_names, header.default_queue)
    if source.scheduler_conf is not None:
        core = build_core(source.scheduler_conf, source.plugins_dir, options)
    else:
        core = core_with_conf(state.conf, str(source.recording), source.plugins_dir, options)
    watched, conf = FailureWatch(core), core.conf
    _full_session(core, watched, state.deltas, state.now, read_only=read_only)
    file = source.recording

    def known_state() -> KnownState:
        return KnownState(manifests_of(state.deltas), state.now, conf, recorded=(file,))

    objects = DeltaObjects(state.deltas)
    return ClusterSource(core, state.now, watched, "at the end of the recording", objects, known_state)


def _full_session(core: Core, watched: FailureWatch, found: Sequence[Delta], now: float, *, read_only: bool) -> None:
    """One session that attempts every job, so that all figures are of one state."""
    if read_only:
        core.reconfigure(msgspec.structs.replace(core.conf, actions=()))
    core.state.changes.everything = True
    watched.step(found, now)


class LiveCluster(NamedTuple):
    """What one read of a live cluster found."""

    connection: Connection
    #: Text of the installed scheduler-conf; None when it is missing, not readable, or replaced by a flag.
    conf: str | None
    #: Every object that the scheduler watches, and Jobs when they are asked for.
    deltas: list[Delta]
    #: Required resources that are not readable.
    unreadable: tuple[str, ...]
    #: The kinds that are readable.
    kinds: tuple[WatchedKind[Any], ...]


def read_live(source: Source, namespace: str = "", *, jobs: bool = False) -> LiveCluster:
    """Read a live cluster. Raises BadInputError."""
    import asyncio

    from capcard_sched.insight.live_objects import MissingKindError
    from capcard_sched.kube.client import ApiError, Unreachable
    from capcard_sched.kube.connection import ConnectionConfigError, load_connection

    try:
        connection = load_connection(
            str(source.kubeconfig) if source.kubeconfig is not None else None, None, source.context or None
        )
    except ConnectionConfigError as error:
        text = str(error)
        if source.kubeconfig is None:
            text = f"{text.rstrip('.')}; or pass manifests with -f"
        raise BadInputError(text) from None
    try:
        return asyncio.run(_read(source, connection, namespace or connection.namespace or "default", jobs=jobs))
    except (ApiError, MissingKindError, Unreachable) as error:
        raise BadInputError(f"{connection.server}: {error}") from None


def live_cluster(source: Source, read: LiveCluster, *, read_only: bool) -> ClusterSource:
    """The cluster of what was read from a live one. Raises BadInputError for an invalid scheduler-conf."""
    import time

    from capcard_sched.insight.expected_start import KnownState
    from capcard_sched.insight.live_objects import fetch_events, fetch_jobs, fetch_object
    from capcard_sched.insight.object_view import DeltaObjects, for_core, manifests_of

    options = options_of(None, "1s", source.scheduler_name, source.default_queue)
    if read.conf is None:
        core = build_core(source.scheduler_conf, source.plugins_dir, options)
    else:
        core = core_with_conf(read.conf, f"ConfigMap {source.installed_conf}", source.plugins_dir, options)
    watched, conf = FailureWatch(core), core.conf
    now = time.time()
    _full_session(core, watched, for_core(read.deltas), now, read_only=read_only)
    connection = read.connection
    objects = DeltaObjects(read.deltas, partial(fetch_object, connection), partial(fetch_events, connection))
    namespace = connection.namespace or "default"

    def known_state() -> KnownState:
        return KnownState([*fetch_jobs(connection), *manifests_of(read.deltas)], now, conf)

    return ClusterSource(core, now, watched, f"at {connection.server}", objects, known_state, read, namespace)


async def _read(source: Source, connection: Connection, namespace: str, *, jobs: bool) -> LiveCluster:
    """Read the installed scheduler-conf and every object the daemon watches."""
    from capcard_sched.insight.live_objects import JOBS, list_readable
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import NullObserver

    unread: dict[str, list[str]] = {}

    class Notes(NullObserver):
        """Collects missing and forbidden kinds; prints undecodable objects."""

        def watch(self, resource: str, event: str, detail: str = "") -> None:
            if event == "undecodable":
                print(f"warning: {detail}; skipped", file=sys.stderr)
            elif event in _UNREAD:
                unread.setdefault(event, []).append(resource)

    async with Client(connection) as client:
        conf = None if source.scheduler_conf is not None else await _installed_conf(client, source.installed_conf)
        found = await list_readable(client, namespace, Notes(), [JOBS] if jobs else ())
    for event, resources in unread.items():
        print(f"note: {_UNREAD[event]}, assumed empty: {', '.join(resources)}", file=sys.stderr)
    if found.unreadable:
        consequence = "; no quota and no node is shown" if {"nodes", "queues"} <= set(found.unreadable) else ""
        print(f"note: access denied: {', '.join(found.unreadable)}{consequence}", file=sys.stderr)
    return LiveCluster(connection, conf, found.deltas, found.unreadable, found.kinds)


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
        reason = "not found" if error.status == _NOT_FOUND else "access denied"
        print(f"note: ConfigMap {name}: {reason}; using the built-in scheduler-conf", file=sys.stderr)
        return None
    conf = msgspec.json.decode(body, type=ConfigMap).data.get(_CONF_KEY)
    if conf is None:
        print(f"note: ConfigMap {name} has no key {_CONF_KEY}; using the built-in scheduler-conf", file=sys.stderr)
    return conf
