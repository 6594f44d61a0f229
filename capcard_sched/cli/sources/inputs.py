"""Inputs of a cluster: files and recordings; and the cluster that is loaded from an input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from capcard_sched.cli.exit_codes import READER_HINT, BadInputError, FailureWatch
from capcard_sched.cli.output import put_error
from capcard_sched.cli.sources.cores import CONF_IN_FILE, build_core, options_of, settings_of
from capcard_sched.controllers.objects import ROOT_QUEUE
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings, SavedStateError, manifests_of, read_saved_state
from capcard_sched.insight.sources.object_view import DeltaObjects, StoreObjects
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.reports.progress import shown_progress
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from capcard_sched.cli.exit_codes import StepRecorder
    from capcard_sched.cli.sources.source import Source
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.diagnosis.headlines import HeadlineReader
    from capcard_sched.insight.estimates.expected_start import KnownState
    from capcard_sched.insight.sources.object_view import ObjectView
    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.manifests import ManifestDocument
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import Scenario


class Input(ABC):
    """Where the objects and the scheduler-conf of a cluster come from. Nothing is read before the first method."""

    #: Whether the objects are those of a live cluster.
    is_live: bool = False
    #: Of the scheduler-conf of the settings, in messages.
    conf_name: str = CONF_IN_FILE
    #: For messages: "at the end of the recording".
    when: str = ""
    #: The namespace of the kubeconfig's context.
    namespace: str = "default"
    #: Of a saved or recorded state, once it is read; None without one.
    settings: SavedSettings | None = None

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def load(self, *, read_only: bool, headlines: bool) -> LoadedCluster:
        """Load the cluster into a new core. Raises BadInputError.

        `read_only`: run no actions over it, so that the core holds its present state only. `headlines`: diagnose
        waiting jobs.
        """

    @abstractmethod
    def scenario(self, *more: str) -> Scenario:
        """The objects, then those of further files, for a simulation. Raises BadInputError."""

    def core(self, conf: Path | None, *, simulated: bool = False) -> Core:
        """A core without objects under a scheduler-conf file, else that of the settings, else the built-in one.

        `simulated`: check the flags of a simulation first. Raises BadInputError.
        """
        source, settings = self.source, self.settings
        options = options_of(source, settings, simulated=simulated)
        return build_core(conf, source.plugins_dir, options, settings, self.conf_name, autoscaling=source.autoscaling)

    def simulate(
        self, scenario: Scenario, core: Core, *recorders: StepRecorder, verb: str = "simulating"
    ) -> tuple[FailureWatch, SimulationOutcome]:
        """Simulate a scenario of `scenario`, changed or not. Raises BadInputError.

        `core`: without objects. `verb`: of the progress on a terminal.
        """
        from capcard_sched.simulation.run import simulate as run

        watched = FailureWatch(core, *recorders)
        options = options_of(self.source, self.settings, simulated=True)
        snapshot = core.snapshot()
        names = snapshot.conf.quota_plugins.names
        options = options._replace(card_labels=snapshot.state.card_labels, plugins=names)
        try:
            with shown_progress(verb) as progress:
                return watched, run(scenario, watched, options, progress.simulated)
        except InputError as error:
            raise BadInputError(str(error)) from None

    def _scenario(self, files: Sequence[str], documents: Sequence[ManifestDocument] = ()) -> Scenario:
        from capcard_sched.simulation.scenario_reader import load_scenario

        settings = self.settings
        if settings is not None and settings.unreadable:
            text = f"access denied: {', '.join(settings.unreadable)}; a simulation needs them"
            raise BadInputError(f"{text}: {READER_HINT}")
        queue = self.source.default_queue if settings is None else settings.default_queue
        try:
            return load_scenario(
                files, existing_queues=(ROOT_QUEUE, queue), documents=documents, served=settings is not None
            )
        except InputError as error:
            raise BadInputError(str(error)) from None


@dataclass(frozen=True)
class LoadedCluster:
    """A core that has loaded the cluster and run a session over all of it. `now` in Unix seconds."""

    given: Input
    core: Core
    now: float
    #: Steps the core and collects the errors of plugins that it recovered from.
    watched: FailureWatch
    objects: ObjectView
    #: The state as manifests, with the ends of jobs that the input knows.
    known_state: Callable[[], KnownState]
    #: Resources that were not readable and without which no session can run.
    unreadable: tuple[str, ...] = ()
    #: Diagnoses waiting jobs; set where they are wanted.
    headlines: HeadlineReader | None = None


def begin_headlines(
    core: Core, objects: ObjectView, watched: FailureWatch, now: float, unreadable: tuple[str, ...] = ()
) -> HeadlineReader:
    """Begin to diagnose waiting jobs, in a copy of the process with the session that `explain` runs."""
    from capcard_sched.insight.diagnosis.headlines import HeadlineReader

    if core.snapshot().conf.option("extender") is not None:
        unreadable = (*unreadable, "responses of the extender")  # a list sends it nothing
    return HeadlineReader(core, objects, partial(watched.full_session, read_only=False), now, unreadable=unreadable)


class ManifestInput(Input):
    """The files of -f, which are simulated."""

    def scenario(self, *more: str) -> Scenario:
        """The objects of the files, saved states among them."""
        self.settings = settings_of(self.source.file)
        return self._scenario((*self.source.file, *more))

    def load(self, *, read_only: bool, headlines: bool) -> LoadedCluster:
        """Simulate, and print the warnings; a saved state is read as it is, unless --until simulates it."""
        saved = saved_input(self.source)
        if saved is not None:
            return saved.load(read_only=read_only, headlines=headlines)
        scenario = self.scenario()
        core = self.core(self.source.scheduler_conf, simulated=True)
        watched, outcome = self.simulate(scenario, core)
        for warning in outcome.warnings:
            put_error(f"warning: {warning}")
        return self.ended(core, watched, outcome, read_only=read_only, headlines=headlines)

    def ended(
        self, core: Core, watched: FailureWatch, outcome: SimulationOutcome, *, read_only: bool, headlines: bool
    ) -> LoadedCluster:
        """The cluster at the end of a simulation; flags as of `load`."""
        now, conf, store = EPOCH + outcome.end / SECOND, core.snapshot().conf, outcome.store
        progress = core.progress()  # of the simulation: the next session is one more
        self.when = "at the end of the simulation"

        def known_state() -> KnownState:
            from capcard_sched.insight.estimates.expected_start import KnownState

            found = [obj for kind in store.kinds() for obj in store.list(kind)]
            return KnownState(found, now, conf, ends=outcome.ends, progress=progress)

        core.apply_all(outcome.deltas)
        objects = StoreObjects(store)
        reader = begin_headlines(core, objects, watched, now) if headlines else None
        watched.full_session(now, read_only=read_only)
        return LoadedCluster(self, core, now, watched, objects, known_state, headlines=reader)


class StateInput(Input):
    """A state: its objects are deltas for a core."""

    #: Every object, once the state is read; Jobs of a live cluster, too, which are not for a core.
    deltas: Iterable[Delta] = ()
    #: The Jobs and events of a saved state, which are not for a core either.
    explained: Sequence[Delta] = ()
    #: Unix seconds of the state.
    now: float = 0.0
    #: Recordings of the cluster.
    recorded: tuple[Path, ...] = ()

    def pages(self) -> Generator[Iterable[Delta]]:
        """Read the state: an empty page once the scheduler-conf is known, then the deltas for a core.

        Sets `settings`, `deltas` and `now`. Raises BadInputError.
        """
        yield ()
        yield self.deltas

    def read(self) -> SavedSettings:
        """Read the state without a core. Raises BadInputError."""
        for _ in self.pages():
            pass
        assert self.settings is not None
        return self.settings

    def load(self, *, read_only: bool, headlines: bool) -> LoadedCluster:
        """Make a core, and apply the deltas to it page by page."""
        with closing(self.pages()) as pages:
            next(pages)
            core = self._first_core()
            for page in pages:
                core.apply_all(page)
        return self._loaded(core, read_only=read_only, headlines=headlines)

    def scenario(self, *more: str) -> Scenario:
        """The objects of the state, which is read where it is not yet."""
        from capcard_sched.simulation.manifests import ManifestDocument

        if self.settings is None:
            self.read()
        value = {"apiVersion": "v1", "kind": "List", "items": manifests_of(self.deltas)}
        return self._scenario(more, [ManifestDocument(self.when, 1, value)])

    def _loaded(self, core: Core, *, read_only: bool, headlines: bool) -> LoadedCluster:
        """The cluster of a core that has the objects, after a session over all of it."""
        assert self.settings is not None
        watched, objects, unreadable = FailureWatch(core), self._objects(), self.settings.unreadable
        known_state = partial(self._known_state, core.snapshot().conf)
        reader = begin_headlines(core, objects, watched, self.now, unreadable) if headlines else None
        watched.full_session(self.now, read_only=read_only)
        return LoadedCluster(self, core, self.now, watched, objects, known_state, unreadable, reader)

    def _first_core(self) -> Core:
        """The core that gets the deltas."""
        return self.core(self.source.scheduler_conf)

    def _objects(self) -> DeltaObjects:
        return DeltaObjects(chain(self.deltas, self.explained))

    def _known_state(self, conf: Conf) -> KnownState:
        from capcard_sched.insight.estimates.expected_start import KnownState

        jobs = DeltaObjects(self.explained).all_of("Job")
        return KnownState([*jobs, *manifests_of(self.deltas)], self.now, conf, recorded=self.recorded)


def saved_input(source: Source) -> StateInput | None:
    """The saved state that is the only file of -f; None for others, and with --until. Raises BadInputError."""
    if source.until is not None or len(source.file) != 1:
        return None
    try:
        saved = read_saved_state(Path(source.file[0]))
    except SavedStateError as error:
        raise BadInputError(str(error)) from None
    if saved is None:
        return None
    found = StateInput(source)
    found.settings, found.deltas, found.explained = saved
    found.now, found.when = saved.settings.now, f"in {source.file[0]}"
    return found


class RecordedInput(StateInput):
    """A recording of `run --record`: its state at a moment, under the recorded scheduler-conf."""

    when = "at the end of the recording"

    def __init__(self, source: Source, file: Path, until: float = inf) -> None:
        """`until`: the moment, in Unix seconds."""
        super().__init__(source)
        self._until = until
        self.conf_name, self.recorded = str(file), (file,)

    def pages(self) -> Generator[Iterable[Delta]]:
        """Read the recording."""
        from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader, read_state

        if self.source.file:
            raise BadInputError("-f and --recording: give one of them")
        try:
            state = read_state(RecordingReader(*self.recorded), self._until)
        except RecordingError as error:
            raise BadInputError(str(error)) from None
        header, self.now, self.deltas = state.header, state.now, state.deltas
        names, conf = header.scheduler_names, state.conf.decode()
        self.settings = SavedSettings(format_timestamp(self.now), names, header.default_queue, conf)
        yield from super().pages()
