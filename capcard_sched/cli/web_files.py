"""The clusters of `web` from files: manifests in the simulator, a recording or a saved state, at moments."""

from __future__ import annotations

import asyncio
import io
import signal
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.expected_start import explain_start
from capcard_sched.cli.sources.cores import valid_conf
from capcard_sched.cli.sources.inputs import ManifestInput, RecordedInput, saved_input
from capcard_sched.cli.what_if import compare, copies_of, describe_changes
from capcard_sched.insight.sources.changes import UnknownObjectError
from capcard_sched.model.diagnosis import no_start
from capcard_sched.reports.recording import Recorder
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.web.changes import Comparison, ProposedChanges
from capcard_sched.web.cluster import Cluster
from capcard_sched.web.copies import begin_view, view_of
from capcard_sched.web.history import history_of
from capcard_sched.web.moments import parse_moment
from capcard_sched.web.pages import FIRST_ADDRESSES, PAGES
from capcard_sched.web.prepared import PreparedCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from capcard_sched.cli.sources.inputs import Input, LoadedCluster
    from capcard_sched.cli.sources.source import Source
    from capcard_sched.insight.trials.forked_copy import RunningCopy
    from capcard_sched.model.diagnosis import ExpectedStart, JobDiagnosis
    from capcard_sched.model.trials import InsightPart
    from capcard_sched.simulation.scenario import Scenario
    from capcard_sched.web.copies import PageAnswer
    from capcard_sched.web.history import History
    from capcard_sched.web.pages import Page

#: Moments that are kept.
_MOST_KEPT: Final = 16
#: Views that are kept.
_MOST_VIEWS: Final = 256
#: Seconds of a comparison, and its further nodes.
_MOST_SECONDS: Final = 100
_MOST_NODES: Final = 10_000


class FileClusters:
    """Loads clusters from files, each moment once. One thread loads; views are made in copies."""

    def __init__(self, source: Source, ledger: str = "") -> None:
        """`ledger`: database of the page of usage, "" for none."""
        self._source, self._ledger = source, ledger
        self._label = ", ".join(source.file) or str(source.recording)
        self._thread = ThreadPoolExecutor(1, "clusters")
        self._kept: OrderedDict[float | None, Cluster] = OrderedDict()
        self._history: History | None = None
        self._given = ManifestInput(source)
        #: Of manifests, once they are read.
        self._scenario: Scenario | None = None
        #: Document and query of a page to its view: files do not change.
        self._views: OrderedDict[tuple[object, ...], InsightPart] = OrderedDict()
        #: Locks of the views that are made now.
        self._making: dict[tuple[object, ...], asyncio.Lock] = {}
        #: The end of the input, once its first views are made.
        self._prepared: PreparedCluster | None = None

    def load(self) -> Cluster:
        """The cluster at the end of the input, with its history. Raises BadInputError."""
        if "-" in self._source.file:
            raise BadInputError(
                "-f -: the input is read again for a comparison, standard input only once; save it to a file"
            )
        source = self._source
        state = saved_input(source) if source.recording is None else RecordedInput(source, source.recording)
        if state is None:
            found, recorder = self._simulate(self._given)
            begin = recorder.begin if recorder.begin is not None else found.now
            self._history = history_of(recorder, min(begin, found.now))
        else:
            found = state.load(read_only=True, headlines=True)
            self._history = None if source.recording is None else recorded_history(source.recording)
        cluster = self._kept[None] = self._cluster(found)
        return cluster

    @property
    def history(self) -> History | None:
        """Of the input; None for a saved state."""
        return self._history

    @property
    def is_ready(self) -> bool:
        """Files are read before the server starts."""
        return True

    async def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view of a page at the moment of the query. Raises LookupError and ValueError."""
        key = page.document, *sorted(query.items())
        if namespaces is not None:
            return await self._make(page, query, namespaces)
        async with self._making.setdefault(key, asyncio.Lock()):  # of several first requests, one makes the view
            try:
                if key not in self._views:
                    self._views[key] = await self._make(page, query, None)
            finally:
                self._making.pop(key, None)
        self._views.move_to_end(key)
        found = self._views[key]
        if len(self._views) > _MOST_VIEWS:
            self._views.popitem(last=False)
        return found

    async def prepare(self) -> None:
        """Make the views of the first pages at the end of the input, and keep a copy that makes others, for ever."""
        cluster = await asyncio.get_running_loop().run_in_executor(self._thread, self.at, "")
        pages = {page.document: page for page in PAGES if page.address in FIRST_ADDRESSES}
        locks = {document: self._making.setdefault((document,), asyncio.Lock()) for document in pages}
        prepared = PreparedCluster(lambda: cluster)
        try:
            for lock in locks.values():  # their requests wait
                await lock.acquire()
            try:
                first = await asyncio.to_thread(prepared.first_views)
                for document, answer in first.views.items():
                    if not answer.problem:
                        self._views[document,] = view_of(answer, pages[document])
            finally:
                for document, lock in locks.items():
                    lock.release()
                    self._making.pop((document,), None)
            self._prepared = None if first.error else prepared  # a request without it reports the error
            await asyncio.Event().wait()
        finally:
            self._prepared = None
            prepared.stop()

    async def _make(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        if self._prepared is not None and not query.get("at"):
            return view_of(await asyncio.to_thread(self._prepared.view, page, query, namespaces), page)
        loop = asyncio.get_running_loop()
        running = await loop.run_in_executor(self._thread, self._begin, page, query, namespaces)
        return view_of(await asyncio.to_thread(running.result), page)

    async def changes(self) -> AsyncIterator[tuple[str, str]]:
        """No events: files do not change."""
        while True:
            yield "beat", ""
            await asyncio.sleep(10.0)

    def _begin(
        self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None
    ) -> RunningCopy[PageAnswer]:
        cluster = replace(self.at(query.get("at", "")), namespaces=namespaces)
        return begin_view(lambda: cluster, page, query)

    def at(self, text: str) -> Cluster:
        """The cluster at a moment; "" for the end. Raises ValueError."""
        moment = None
        if text:
            if self._history is None:
                raise ValueError("at: the input has no past; a simulation and a recording have one")
            moment = parse_moment(text, self._history)
            moment = None if moment >= self._history.end else moment
        if moment not in self._kept:
            try:
                self._kept[moment] = self._load_at(moment or 0.0)
            except BadInputError as error:
                raise ValueError(str(error)) from None
            if len(self._kept) > _MOST_KEPT:
                self._kept.pop(next(key for key in self._kept if key is not None))
        if moment is not None:
            self._kept.move_to_end(moment)
        return self._kept[moment]

    def _load_at(self, moment: float) -> Cluster:
        assert self._history is not None
        if self._source.recording is not None:
            found = RecordedInput(self._source, self._source.recording, moment).load(read_only=True, headlines=True)
            return self._cluster(replace(found, now=moment))
        given = copy(self._given)
        given.source = replace(self._source, until=f"{max(0.0, moment - self._history.begin):.0f}s")
        return self._cluster(self._simulate(given)[0])

    def _simulate(self, given: ManifestInput) -> tuple[LoadedCluster, Recorder]:
        self._scenario = self._scenario or given.scenario()
        core = given.core(given.source.scheduler_conf, simulated=True)
        recorder = Recorder(core.snapshot().state.card_labels)
        watched, outcome = given.simulate(self._scenario, core, recorder)
        recorder.finish(EPOCH + outcome.end / SECOND)
        found = given.ended(core, watched, outcome, read_only=True, headlines=True)
        for warning in outcome.warnings:
            watched.warnings.setdefault(warning, None)
        return found, recorder

    def _cluster(self, found: LoadedCluster) -> Cluster:
        cluster = cluster_of(found, self._label, self._history)
        cluster.headlines()
        return replace(cluster, ledger=self._ledger)


def cluster_of(found: LoadedCluster, label: str, history: History | None = None, like_jobs: str = "") -> Cluster:
    """The cluster of pages. `like_jobs`: the ledger with durations of like jobs, "" for none."""

    def expected_start(diagnosis: JobDiagnosis, wanted: bool) -> ExpectedStart | None:
        try:
            return explain_start(found, diagnosis, (), like_jobs, wanted=wanted)
        except BadInputError as error:  # the page shows what does not depend on the ledger
            return no_start(found.now, str(error))

    return Cluster(
        core=found.core,
        objects=found.objects,
        now=found.now,
        source=label,
        is_live=found.given.is_live,
        unreadable=found.unreadable,
        warnings=tuple(found.watched.warnings),
        headlines=cache(lambda: found.headlines.read(found.now) if found.headlines is not None else {}),
        session=lambda: found.watched.full_session(found.now, read_only=False),
        expected_start=expected_start,
        what_if=lambda changes: _compare(found.given, changes),
        history=history,
    )


def recorded_history(file: Path) -> History:
    """The history of a recording. Raises BadInputError."""
    from capcard_sched.daemon.diagnosis.recording import Applied, RecordingError, RecordingReader, Stepped

    recorder = Recorder()
    try:
        reader = RecordingReader(file)
        now = reader.header.at
        for record in reader:
            if isinstance(record, Applied):
                recorder.record(record.deltas, now, (), ())
            elif isinstance(record, Stepped):
                now = record.now
                recorder.record(record.deltas, now, record.intents, ())
    except RecordingError as error:
        raise BadInputError(str(error)) from None
    recorder.finish(now)
    return history_of(recorder, min(reader.header.at, now if recorder.begin is None else recorder.begin))


def _compare(given: Input, changes: ProposedChanges) -> Comparison:
    """The effect of changes. Called in a copy of the process, which writes to no stream of the server."""
    signal.alarm(_MOST_SECONDS)
    printed = io.StringIO()
    with TemporaryDirectory() as folder, redirect_stderr(printed):
        conf = None
        try:
            if changes.conf:
                conf = Path(folder, "scheduler-conf")
                conf.write_text(changes.conf, "utf-8")
                _refuse_requests(changes.conf, given.source)
            if sum(copies_of(text).number for text in changes.add_nodes) > _MOST_NODES:
                raise BadInputError(f"--add-nodes: a page compares at most {_MOST_NODES} further nodes")
            words = describe_changes((), changes.quota, changes.drain, changes.add_nodes, None)
            words += ["--conf"] if conf is not None else []
            found = compare(given, words, (), changes.quota, changes.drain, changes.add_nodes, conf)
        except (BadInputError, UnknownObjectError) as error:
            text = str(error)
            return Comparison(error=text.replace(f"{folder}/", ""), warnings=_lines(printed, folder))
    return Comparison(report=found.report, warnings=_lines(printed, folder))


def _refuse_requests(text: str, source: Source) -> None:
    """Raises BadInputError for a scheduler-conf whose plugins send requests: the server sends none for a viewer."""
    from capcard_sched.framework.conf.registry import Registry

    conf = valid_conf(text, "scheduler-conf", Registry.load(source.plugins_dir))
    if conf.option("extender") is not None:
        raise BadInputError("scheduler-conf: plugin extender sends requests; a page compares without it")


def _lines(printed: io.StringIO, folder: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.replace(f"{folder}/", "") for line in printed.getvalue().splitlines()))
