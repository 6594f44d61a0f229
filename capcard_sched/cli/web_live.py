"""The live cluster of `web`, followed by informers as that of `cache`; views are made in copies of the process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections import OrderedDict
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.cli.sources.held_cluster import HeldCluster, HeldInput
from capcard_sched.cli.web_files import cluster_of
from capcard_sched.gc import keep_all
from capcard_sched.insight.trials.forked_copy import ForkedCopyError
from capcard_sched.ledger.ledger_thread import in_ledger_thread
from capcard_sched.web.copies import PageAnswer, view_of
from capcard_sched.web.pages import PAGES
from capcard_sched.web.prepared import PreparedCluster
from capcard_sched.web.server import VIEWS_AT_ONCE
from capcard_sched.web.source import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from capcard_sched.cli.sources.source import Source
    from capcard_sched.framework.core import Core
    from capcard_sched.kube.connection import Connection
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.pages import Page

#: Views of one state that are kept.
_MOST_VIEWS: Final = 256
#: Seconds for which a request waits for the present state, and shows the last prepared one then; without any, and for
#: an object that this one lacks.
_PATIENCE: Final = 0.1
_FIRST_PATIENCE: Final = 60.0
#: Seconds without a request and open page after which states are prepared seldom, and the time between two of these.
_UNWATCHED: Final = 60.0
_SELDOM: Final = 60.0
#: Seconds for which an unchanged state is shown, with its ages and periods, and for which views of the ledger are.
_OLDEST: Final = 60.0
_RECORDED: Final = 2.0
#: Seconds between two events: changes in between are one event.
_PAUSE: Final = 1.0
#: Seconds without a change after which a stream gets a sign of life.
_BEAT: Final = 10.0
#: Seconds between two reads of changes.
_TICK: Final = 0.2


class FollowedCluster(HeldCluster):
    """A held cluster that wakes streams of events, and shows its last state while watches are interrupted."""

    def __init__(self, core: Core, connection: Connection, namespace: str) -> None:
        super().__init__(core, connection, namespace)
        #: Number of deliveries so far.
        self.version = 0
        #: Gets changes after they are taken in.
        self.on_changes: Callable[[Sequence[Delta]], None] | None = None
        self._changed = asyncio.Event()

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Take in changes."""
        super().deliver(deltas)
        if self.on_changes is not None:
            self.on_changes(deltas)
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Raises BadInputError until every list is complete. Later, pages show how long a watch is interrupted."""
        if self.stale_for() is None:
            super().check()

    def namespaces(self) -> set[str]:
        """The namespaces with pods, PodGroups, Jobs or NamespaceQueues."""
        found = {namespace for kind in ("Pod", "PodGroup", "Job") for namespace, _ in self.objects.of(kind)}
        queues = (queue.partition("/") for queue in self.core.snapshot().state.queues)
        return found | {namespace for namespace, slash, _ in queues if slash}

    def queue_parents(self) -> dict[str, str]:
        """Each Queue to its parent, "" for root."""
        return {name: queue.parent for name, queue in self.core.snapshot().state.queues.items()}

    async def wait_changed(self, seconds: float) -> None:
        """Wait for the next change, at most for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


class _Generation(NamedTuple):
    """One state of the cluster, with the views that are made or begun."""

    #: The version of the cluster.
    version: int
    prepared: PreparedCluster
    #: Document, query and namespaces of a view to its task.
    views: OrderedDict[tuple[object, ...], asyncio.Task[InsightPart]]
    #: On the monotonic clock.
    made: float


class LiveClusters:
    """Views of a followed cluster: of its last prepared state, while the next one is prepared in the background."""

    def __init__(self, source: Source, held: FollowedCluster, ledger: str = "") -> None:
        """`ledger`: database of the page of usage, "" for none."""
        self._source, self._held, self._ledger = source, held, ledger
        self._slots = asyncio.Semaphore(VIEWS_AT_ONCE)
        self._shown: _Generation | None = None
        #: The error of the last preparation; "" for none.
        self._error = ""
        #: Wakes the worker; and what waits for the next prepared state.
        self._wanted, self._prepared = asyncio.Event(), asyncio.Event()
        #: On the monotonic clock: when a view was requested last; when the cluster changed first after the state that
        #: is shown, and after the one that is being prepared; None for not yet.
        self._requested = -_UNWATCHED
        self._behind_since: float | None = None
        self._next_behind_since: float | None = None
        #: Version of the state that is being prepared.
        self._next = -1

    @property
    def is_ready(self) -> bool:
        """Whether the lists are complete."""
        return self._held.stale_for() is not None

    async def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view of a page, of the last prepared state. Raises LookupError, ValueError and UnavailableError."""
        if query.get("at"):
            return await self._past(page, query, namespaces)
        if not self.is_ready:
            raise UnavailableError("the cluster is read for the first time")
        version = self._held.version
        self._request()
        await self._wait_prepared(version, _PATIENCE if self._shown is not None else _FIRST_PATIENCE)
        used = self._shown
        try:
            view = await self._view(page, query, namespaces)
        except (LookupError, ForkedCopyError):
            if self._shown is used and self._version() >= version:
                raise
            # The object may be younger than the state, or its copy ended for the next one.
            await self._wait_prepared(version, _FIRST_PATIENCE)
            view = await self._view(page, query, namespaces)
        since = self._behind_since
        behind = round(time.monotonic() - since) if since is not None and self._is_behind() else self._age()
        stale = round(self._held.stale_for() or 0.0)
        moment = msgspec.structs.replace(view.moment, stale=stale, behind=behind)  # type: ignore[attr-defined]
        return msgspec.structs.replace(view, moment=moment)

    async def _past(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view at a moment of the ledger. Raises LookupError and ValueError."""
        if not self._ledger:
            raise ValueError("at: a live cluster has a past with --ledger, and a recording with --recording")
        from capcard_sched.web.past import past_view

        server = self._held.connection.server
        async with self._slots:
            return await in_ledger_thread(partial(past_view, self._ledger, server, page.document, query, namespaces))

    async def _view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view of the state that is shown; requests share it."""
        shown = self._shown
        if shown is None:
            raise UnavailableError(self._error or "the first pages are being made")
        now = int(time.monotonic() / _RECORDED) if page.is_recorded else 0
        key = page.document, *sorted(query.items()), namespaces, now
        if key not in shown.views:
            shown.views[key] = asyncio.create_task(self._make(shown.prepared, page, query, namespaces))
            if len(shown.views) > _MOST_VIEWS:
                shown.views.popitem(last=False)
        shown.views.move_to_end(key)
        return await asyncio.shield(shown.views[key])

    async def _make(
        self, prepared: PreparedCluster, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None
    ) -> InsightPart:
        async with self._slots:
            answer = await asyncio.to_thread(prepared.view, page, query, namespaces)
        return view_of(answer, page)

    # --- the worker -------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Prepare states of the cluster, one at a time, for ever: after a request at half the time, else seldom."""
        watching = asyncio.create_task(self._note_changes())
        try:
            while True:
                await self._wait_due()
                begun = time.monotonic()
                await self._prepare()
                took = time.monotonic() - begun
                await asyncio.sleep(took if self._error == "" else max(took, _PAUSE))
        finally:
            watching.cancel()
            if self._shown is not None:
                self._shown.prepared.stop()
                self._shown = None

    async def _note_changes(self) -> None:
        """Note when the cluster changes first after the state that is shown, and wake the worker."""
        while True:
            await self._held.wait_changed(_BEAT)
            if not self._is_behind():
                continue
            if self._behind_since is None:
                self._behind_since = time.monotonic()
            if self._next_behind_since is None and self._held.version != self._next:
                self._next_behind_since = time.monotonic()
            if time.monotonic() - self._requested < _UNWATCHED:
                self._wanted.set()
            await asyncio.sleep(_TICK)

    async def _wait_due(self) -> None:
        """Wait until a state is to be prepared."""
        while True:
            self._wanted.clear()
            is_watched = time.monotonic() - self._requested < _UNWATCHED
            if self.is_ready and self._is_behind() and (is_watched or self._shown is None):
                return
            if is_watched and self._age():
                return
            try:
                async with asyncio.timeout(_TICK if not self.is_ready else _SELDOM):
                    await self._wanted.wait()
            except TimeoutError:
                if self.is_ready and self._is_behind():
                    return

    async def _prepare(self) -> None:
        """Prepare the present state, and show it."""
        version, begun = self._held.version, time.monotonic()
        self._next = version
        self._next_behind_since = None
        prepared = PreparedCluster(self._cluster)
        try:
            first = await asyncio.to_thread(prepared.first_views)
        except asyncio.CancelledError:
            prepared.stop()
            raise
        self._error = first.error
        if first.error:
            await asyncio.to_thread(prepared.stop)
        else:
            former, self._shown = self._shown, _Generation(version, prepared, OrderedDict(), begun)
            for page in PAGES:
                if page.document in first.views:
                    self._shown.views[page.document, None, 0] = asyncio.create_task(
                        _made(first.views[page.document], page)
                    )
            if former is not None:
                await asyncio.to_thread(former.prepared.stop)
        ended, self._prepared = self._prepared, asyncio.Event()
        ended.set()

    def _request(self) -> None:
        """Note a request, and wake the worker where the cluster has changed."""
        self._requested = time.monotonic()
        if self._is_behind() or self._age():
            self._wanted.set()

    def _age(self) -> int:
        """Seconds since a state that is too old for its ages was read; 0 for a younger one."""
        age = 0.0 if self._shown is None else time.monotonic() - self._shown.made
        return round(age) if age > _OLDEST else 0

    def _is_behind(self) -> bool:
        """Whether the cluster changed after the state that is shown; true while none is shown."""
        return self._shown is None or self._shown.version != self._held.version

    async def _wait_prepared(self, version: int, seconds: float) -> None:
        """Wait until the state that is shown has a version, at most for so long, and no longer than until an error."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._version() < version:
                    await self._prepared.wait()
                    if self._error:
                        return

    def _cluster(self) -> Cluster:
        """The cluster, in a copy of the process."""
        keep_all()
        notes = io.StringIO()
        with redirect_stderr(notes):
            found = HeldInput(self._source, self._held, jobs=True).load(read_only=True, headlines=True)
        server = self._held.connection.server
        cluster = cluster_of(found, server, like_jobs=self._ledger)
        warnings = (*cluster.warnings, *(line.removeprefix("warning: ") for line in notes.getvalue().splitlines()))
        return replace(cluster, warnings=tuple(dict.fromkeys(warnings)), ledger=self._ledger)

    async def changes(self) -> AsyncIterator[tuple[str, str]]:
        """Events of the cluster: `change` once its state is prepared, `beat`, and `stale` with seconds."""
        seen, state = self._version(), self._shown
        yield "beat", str(seen)
        while True:
            self._request()
            if state is self._shown:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT):
                        await self._prepared.wait()
            stale = self._held.stale_for()
            if stale is None or stale > 0:
                yield "stale", f"{stale or 0:.0f}"
            elif self._shown is not state:
                seen, state = self._version(), self._shown
                yield "change", str(seen)
            else:
                yield "beat", str(seen)
            await asyncio.sleep(_PAUSE)

    def _version(self) -> int:
        return -1 if self._shown is None else self._shown.version


async def _made(answer: PageAnswer, page: Page) -> InsightPart:
    return view_of(answer, page)
