"""The live cluster of `web`, followed by informers as that of `cache`; views are made in copies of the process."""

from __future__ import annotations

import asyncio
import io
import time
from contextlib import redirect_stderr
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.cli.cluster_source import live_state, load_cluster
from capcard_sched.cli.held_cluster import HeldCluster
from capcard_sched.cli.inputs import BadInputError
from capcard_sched.cli.live_cluster import hold
from capcard_sched.cli.web_files import cluster_of, once
from capcard_sched.gc import keep_all
from capcard_sched.web.copies import begin_view, view_of
from capcard_sched.web.source import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from capcard_sched.cli.cluster_source import Source
    from capcard_sched.cli.ledger_feed import LedgerFeed
    from capcard_sched.framework.core import Core
    from capcard_sched.kube.connection import Connection
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.pages import Page

#: Views that are made at a time; others wait.
_AT_ONCE: Final = 4
#: Seconds after the beginning of a view in which further requests share it while nothing changes: all open pages
#: request theirs at a change.
_SHARED: Final = 2.0
#: Seconds between two events: changes in between are one event.
_PAUSE: Final = 1.0
#: Seconds without a change after which a stream gets a sign of life.
_BEAT: Final = 10.0


class FollowedCluster(HeldCluster):
    """A held cluster that wakes streams of events, and shows its last state while watches are interrupted."""

    def __init__(self, core: Core, connection: Connection, namespace: str) -> None:
        super().__init__(core, connection, namespace)
        #: Number of deliveries so far.
        self.version = 0
        #: Records changes, where wanted.
        self.feed: LedgerFeed | None = None
        self._changed = asyncio.Event()

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Take in changes."""
        super().deliver(deltas)
        if self.feed is not None:
            self.feed.note(deltas)
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Raises BadInputError until every list is complete. Later, pages show how long a watch is interrupted."""
        if self.stale_for() is None:
            super().check()

    def namespaces(self) -> set[str]:
        """The namespaces with pods, PodGroups or Jobs."""
        return {namespace for kind in ("Pod", "PodGroup", "Job") for namespace, _ in self.objects.of(kind)}

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


class LiveClusters:
    """Views of a followed cluster at the present."""

    def __init__(self, source: Source, held: FollowedCluster, ledger: str = "") -> None:
        """`ledger`: database of the page of usage, "" for none."""
        self._source, self._held, self._ledger = source, held, ledger
        self._slots = asyncio.Semaphore(_AT_ONCE)
        #: Address, query and namespaces of a view to the version of the cluster, the beginning, and the task.
        self._recent: dict[tuple[object, ...], tuple[int, float, asyncio.Task[InsightPart]]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether the lists are complete."""
        return self._held.stale_for() is not None

    async def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view of a page now. Raises LookupError, ValueError and UnavailableError."""
        if "at" in query:
            raise ValueError("at: a live cluster has no past; --recording shows that of a recording")
        if not self.is_ready:
            raise UnavailableError("the cluster is read for the first time")
        key = page.address, *sorted(query.items()), namespaces
        now, version = time.monotonic(), self._held.version
        self._recent = {of: one for of, one in self._recent.items() if one[0] == version and now - one[1] < _SHARED}
        if key not in self._recent:
            self._recent[key] = version, now, asyncio.create_task(self._make(page, query, namespaces))
        view = await asyncio.shield(self._recent[key][2])
        stale = round(self._held.stale_for() or 0.0)
        moment = msgspec.structs.replace(view.moment, stale=stale)  # type: ignore[attr-defined]
        return msgspec.structs.replace(view, moment=moment)

    async def prepare(self) -> None:
        """Nothing: views of a cluster that changes do not stay valid."""

    async def _make(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        async with self._slots:
            running = begin_view(lambda: self._cluster(namespaces), page, query)
            answer = await asyncio.to_thread(running.result)
        return view_of(answer, page)

    def _cluster(self, namespaces: frozenset[str] | None) -> Cluster:
        """The cluster, in a copy of the process."""
        keep_all()
        hold(self._held.read)
        notes = io.StringIO()
        try:
            with redirect_stderr(notes):
                found = load_cluster(self._source, read_only=True, jobs=True)
        except BadInputError as error:
            raise UnavailableError(str(error)) from None
        assert found.live is not None
        headlines = once(lambda: found.headlines.read(found.now) if found.headlines is not None else {})
        state = live_state(self._source, found.live)
        server = self._held.connection.server
        cluster = cluster_of(found, self._source, state, server, headlines, like_jobs=self._ledger)
        warnings = (*cluster.warnings, *(line.removeprefix("warning: ") for line in notes.getvalue().splitlines()))
        warnings = tuple(dict.fromkeys(warnings))
        return replace(cluster, warnings=warnings, namespaces=namespaces, ledger=self._ledger)

    async def changes(self) -> AsyncIterator[tuple[str, str]]:
        """Events of the cluster: `change`, `beat`, and `stale` with seconds."""
        seen = self._held.version
        yield "beat", str(seen)
        while True:
            if seen == self._held.version:
                await self._held.wait_changed(_BEAT)
            stale = self._held.stale_for()
            if stale is None or stale > 0:
                yield "stale", f"{stale or 0:.0f}"
            elif self._held.version != seen:
                seen = self._held.version
                yield "change", str(seen)
            else:
                yield "beat", str(seen)
            await asyncio.sleep(_PAUSE)
