"""Loads the cluster of a reading verb: simulated manifests, a saved state, a recording, or a live cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

from cyclopts import Group, Parameter

from capcard_sched.cli.exit_codes import FailureWatch, Files
from capcard_sched.cli.inputs import CONF_IN_FILE, READER_HINT, BadInputError, build_core, options_of, settings_of
from capcard_sched.cli.live_cluster import ClusterRequest, LiveCluster, Receiver, leave_cache, reader
from capcard_sched.cli.output import put_error
from capcard_sched.cli.sessions import first_session
from capcard_sched.controllers.objects import ROOT_QUEUE
from capcard_sched.daemon.diagnosis.saved_state import (
    SavedSettings,
    SavedStateError,
    manifests_of,
    read_saved_state,
)
from capcard_sched.gc import keep
from capcard_sched.insight.object_view import DeltaObjects, StoreObjects, for_core
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.reports.progress import shown_progress
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.expected_start import KnownState
    from capcard_sched.insight.headlines import HeadlineReader
    from capcard_sched.insight.object_view import ObjectView
    from capcard_sched.model.deltas import Delta
    from capcard_sched.reports.recording import Recorder
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import Scenario

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
    """An autoscaler adds nodes, as with `run --node-autoscaling`: the size of the cluster is no limit."""

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
    #: Resources that were not readable and without which no session can run.
    unreadable: tuple[str, ...] = ()
    #: Set for a live cluster.
    live: LiveCluster | None = None
    #: Namespace of the kubeconfig's context.
    namespace: str = "default"
    #: Diagnoses waiting jobs; set where they are wanted.
    headlines: HeadlineReader | None = None

    @property
    def is_live(self) -> bool:
        """Whether the objects are those of a live cluster."""
        return self.live is not None

    def report(self) -> int:
        """Print the errors of plugins. Returns the exit status."""
        return self.watched.report()


class SourceState(NamedTuple):
    """The state of a recording, of a saved state, or of a live cluster."""

    settings: SavedSettings
    deltas: Iterable[Delta]
    #: Unix seconds.
    now: float
    #: For messages: of the scheduler-conf, and "at the end of the recording".
    conf_name: str
    when: str
    recorded: tuple[Path, ...] = ()


class SimulationInput(NamedTuple):
    """A scenario. `settings` are those of the state it was made from; None for manifests."""

    scenario: Scenario
    settings: SavedSettings | None
    conf_name: str = ""


def load_cluster(source: Source, *, read_only: bool = False, namespace: str = "", jobs: bool = False) -> ClusterSource:
    """Load the cluster. Raises BadInputError when the input, the connection or a response is invalid.

    `read_only`: run no actions over it, so that the core holds its present state only. `namespace`: the one to read
    where pods and PodGroups of all namespaces are not readable; "" for that of the kubeconfig's context. `jobs`: read
    the Jobs of a live cluster, too, and diagnose waiting jobs.
    """
    if source.is_live:
        made: list[Core] = []

        def receive(conf: str | None) -> Callable[[Sequence[Delta]], None]:
            core = _core_of(source, _live_settings(source, conf), _live_conf_name(source), source.scheduler_conf)
            made.append(core)
            return core.apply_all

        read = read_live(source, namespace, jobs=jobs, receiver=receive)
        core = made[0] if read.core is None else _core_of_cache(source, read, read.core, made[0])
        cluster = live_cluster(source, read, core, read_only=read_only, headlines=jobs)
    else:
        leave_cache(source.cache, "-f and --recording read files")
        state = state_of_file(source) if source.until is None or source.recording is not None else None
        if state is None:
            cluster = _simulated(source, read_only=read_only, headlines=jobs)
        else:
            cluster = cluster_of_state(source, state, read_only=read_only, headlines=jobs)
    keep(cluster)
    return cluster


def load_input(source: Source, *more: str, state: SourceState | None = None) -> SimulationInput:
    """The input of a simulation: manifests and saved states, or the objects of a `state`; then further files.

    Raises BadInputError.
    """
    from capcard_sched.simulation.manifests import ManifestDocument
    from capcard_sched.simulation.scenario_reader import load_scenario

    settings = state.settings if state is not None else settings_of(source.file)
    if settings is not None and settings.unreadable:
        text = f"access denied: {', '.join(settings.unreadable)}; a simulation needs them"
        raise BadInputError(f"{text}: {READER_HINT}")
    queue = source.default_queue if settings is None else settings.default_queue
    documents, files = [], (*source.file, *more)
    if state is not None:
        value = {"apiVersion": "v1", "kind": "List", "items": manifests_of(state.deltas)}
        documents, files = [ManifestDocument(state.when, 1, value)], more
    try:
        scenario = load_scenario(files, existing_queues=(ROOT_QUEUE, queue), documents=documents)
    except InputError as error:
        raise BadInputError(str(error)) from None
    return SimulationInput(scenario, settings, state.conf_name if state is not None else CONF_IN_FILE)


def load_state(source: Source) -> SourceState | None:
    """The state of a recording or a live cluster; None for files of -f. Raises BadInputError."""
    if not source.is_live:
        leave_cache(source.cache, "-f and --recording read files")
    if source.recording is not None:
        return _recorded(source.recording, source)
    if source.file:
        return None
    return live_state(source, read_live(source))


def state_of_file(source: Source, until: float = inf) -> SourceState | None:
    """The state of a recording or of a single saved state; None for manifests. Raises BadInputError.

    `until`: that of a recording at this time, in Unix seconds.
    """
    if source.recording is not None:
        return _recorded(source.recording, source, until)
    try:
        saved = read_saved_state(Path(source.file[0])) if len(source.file) == 1 else None
    except SavedStateError as error:
        raise BadInputError(str(error)) from None
    if saved is None:
        return None
    settings = saved.settings
    return SourceState(settings, saved.deltas, settings.now, CONF_IN_FILE, f"in {source.file[0]}")


def _recorded(file: Path, source: Source, until: float = inf) -> SourceState:
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader, read_state

    if source.file:
        raise BadInputError("-f and --recording: give one of them")
    try:
        state = read_state(RecordingReader(file), until)
    except RecordingError as error:
        raise BadInputError(str(error)) from None
    header, time = state.header, format_timestamp(state.now)
    settings = SavedSettings(time, header.scheduler_names, header.default_queue, state.conf.decode())
    return SourceState(settings, state.deltas, state.now, str(file), "at the end of the recording", (file,))


def cluster_of_state(source: Source, state: SourceState, *, read_only: bool, headlines: bool) -> ClusterSource:
    """The cluster of a state; flags as of `load_cluster`. Raises BadInputError."""
    core = _core_of(source, state.settings, state.conf_name, source.scheduler_conf)
    watched, conf = FailureWatch(core), core.snapshot().conf
    objects, unreadable = DeltaObjects(state.deltas), state.settings.unreadable
    core.apply_all(state.deltas)
    reader = first_session(core, objects, watched, state.now, unreadable, read_only=read_only, headlines=headlines)

    def known_state() -> KnownState:
        from capcard_sched.insight.expected_start import KnownState

        return KnownState(manifests_of(state.deltas), state.now, conf, recorded=state.recorded)

    return ClusterSource(core, state.now, watched, state.when, objects, known_state, unreadable, headlines=reader)


def _core_of(source: Source, settings: SavedSettings | None, conf_name: str, conf: Path | None) -> Core:
    """A core under a scheduler-conf file, else that of the settings, else the built-in one."""
    options = options_of(None, "1s", source.scheduler_name, source.default_queue, settings)
    return build_core(conf, source.plugins_dir, options, settings, conf_name, expects_nodes=source.autoscaler)


def run_scenario(
    given: SimulationInput,
    source: Source,
    conf: Path | None,
    verb: str = "simulating",
    recorder: Callable[[Core], Recorder] | None = None,
) -> tuple[Core, FailureWatch, SimulationOutcome]:
    """Simulate under the scheduler-conf of a file; None: that of the input, else the built-in one.

    `verb`: of the progress on a terminal; `recorder` makes what records the run. Raises BadInputError.
    """
    from capcard_sched.simulation.run import simulate as run

    names, queue = source.scheduler_name, source.default_queue
    options = options_of(source.until, source.schedule_period, names, queue, given.settings)
    core = _core_of(source, given.settings, given.conf_name, conf)
    options = options._replace(card_labels=core.snapshot().state.card_labels)
    watched = FailureWatch(core, *(() if recorder is None else (recorder(core),)))
    try:
        with shown_progress(verb) as progress:
            return core, watched, run(given.scenario, watched, options, progress.simulated)
    except InputError as error:
        raise BadInputError(str(error)) from None


def _simulated(source: Source, *, read_only: bool, headlines: bool) -> ClusterSource:
    given = load_input(source)
    core, watched, outcome = run_scenario(given, source, source.scheduler_conf)
    for warning in outcome.warnings:
        put_error(f"warning: {warning}")
    return ended_simulation(core, watched, outcome, read_only=read_only, headlines=headlines)


def ended_simulation(
    core: Core, watched: FailureWatch, outcome: SimulationOutcome, *, read_only: bool, headlines: bool
) -> ClusterSource:
    """The cluster at the end of a simulation; flags as of `load_cluster`."""
    now, conf = EPOCH + outcome.end / SECOND, core.snapshot().conf
    progress = core.progress()  # of the simulation: the next session is one more
    store = outcome.store
    core.apply_all(outcome.deltas)
    reader = first_session(core, StoreObjects(store), watched, now, read_only=read_only, headlines=headlines)

    def known_state() -> KnownState:
        from capcard_sched.insight.expected_start import KnownState

        objects = [obj for kind in store.kinds() for obj in store.list(kind)]
        return KnownState(objects, now, conf, ends=outcome.ends, progress=progress)

    when = "at the end of the simulation"
    return ClusterSource(core, now, watched, when, StoreObjects(store), known_state, headlines=reader)


def read_live(
    source: Source, namespace: str = "", *, jobs: bool = False, receiver: Receiver | None = None
) -> LiveCluster:
    """Read a live cluster, or what a cache holds of it. Raises BadInputError."""
    installed = source.installed_conf if source.scheduler_conf is None else ""
    read = reader(source.cache)
    return read(ClusterRequest(source.kubeconfig, source.context, installed, namespace, jobs, receiver))


def _core_of_cache(source: Source, read: LiveCluster, held: Core, made: Core) -> Core:
    """The core of a cache under the scheduler-conf of a new one; with other parameters the new one, loaded."""
    wanted, known = made.snapshot(), held.snapshot()
    parameters = ("scheduler_names", "default_queue")
    if (
        source.plugins_dir is None
        and not source.autoscaler
        and all(getattr(wanted.state, n) == getattr(known.state, n) for n in parameters)
    ):
        held.reconfigure(wanted.conf)
        return held
    made.apply_all(for_core(read.deltas))
    return made


def live_cluster(
    source: Source, read: LiveCluster, core: Core | None = None, *, read_only: bool, headlines: bool = False
) -> ClusterSource:
    """The cluster of what was read from a live one. Raises BadInputError for an invalid scheduler-conf.

    `core`: the one that took in the objects while they were read; None for a new one. Flags as of `load_cluster`.
    """
    from capcard_sched.insight.live_objects import fetch_events, fetch_object

    state, connection = live_state(source, read), read.connection
    if core is None:
        core = _core_of(source, state.settings, state.conf_name, source.scheduler_conf)
        core.apply_all(for_core(state.deltas))
    watched, conf = FailureWatch(core), core.snapshot().conf
    objects = DeltaObjects(state.deltas) if read.objects is None else read.objects
    objects.fetch, objects.fetch_events = partial(fetch_object, connection), partial(fetch_events, connection)
    unreadable = read.unreadable
    reader = first_session(core, objects, watched, state.now, unreadable, read_only=read_only, headlines=headlines)
    namespace = connection.namespace or "default"

    def known_state() -> KnownState:
        from capcard_sched.insight.expected_start import KnownState
        from capcard_sched.insight.live_objects import fetch_jobs

        return KnownState([*fetch_jobs(connection), *manifests_of(state.deltas)], state.now, conf)

    return ClusterSource(
        core, state.now, watched, state.when, objects, known_state, unreadable, read, namespace, reader
    )


def live_state(source: Source, read: LiveCluster) -> SourceState:
    """The state of a live cluster."""
    now = time.time()
    settings, when = _live_settings(source, read.conf, read.unreadable, now), f"at {read.connection.server}"
    return SourceState(settings, read.deltas, now, _live_conf_name(source), when)


def _live_settings(
    source: Source, conf: str | None, unreadable: tuple[str, ...] = (), now: float = 0.0
) -> SavedSettings:
    options = options_of(None, "1s", source.scheduler_name, source.default_queue)
    return SavedSettings(format_timestamp(now), options.scheduler_names, options.default_queue, conf or "", unreadable)


def _live_conf_name(source: Source) -> str:
    return f"ConfigMap {source.installed_conf}"
