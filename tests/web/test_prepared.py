"""Prepared copies of a cluster: views from memory, shared by requests, of the last state while the next one is made."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_files import FileClusters
from capcard_sched.cli.web_live import LiveClusters
from capcard_sched.insight.trials.forked_copy import ForkedCopyError
from capcard_sched.web.cluster import Cluster
from capcard_sched.web.copies import answer_of
from capcard_sched.web.pages import OVERVIEW, PAGES
from capcard_sched.web.prepared import PreparedCluster
from capcard_sched.web.server import VIEWS_AT_ONCE
from capcard_sched.web.source import UnavailableError
from capcard_sched.web.views import JobView, Overview
from tests.clock import until

BY_DOCUMENT = {page.document: page for page in PAGES}
JOBS, JOB = BY_DOCUMENT["/jobs"], BY_DOCUMENT["/jobs/{namespace}/{name}"]
CHAT = {"namespace": "default", "name": "chat", "kind": "deployment"}


@pytest.fixture(scope="module")
def demo() -> Cluster:
    return FileClusters(Source(file=("config/examples/demo",), until="10m")).load()


@pytest.fixture
def prepared(demo: Cluster) -> Iterator[PreparedCluster]:
    found = PreparedCluster(lambda: demo)
    yield found
    found.stop()


def test_views_are_those_of_the_cluster(demo: Cluster, prepared: PreparedCluster) -> None:
    first = prepared.first_views()
    assert first.error == ""
    assert set(first.views) == {"/overview", "/queues", "/jobs", "/nodes"}
    for document, found in first.views.items():
        assert found == answer_of(demo, BY_DOCUMENT[document], {})
    shown = frozenset({"nowhere"})
    for page, query in ((JOBS, {"text": "chat"}), (JOB, CHAT), (BY_DOCUMENT["/queues/{name}"], {"name": "serving"})):
        assert prepared.view(page, query, None) == answer_of(demo, page, query)
        hidden = prepared.view(page, query, shown)
        assert hidden == answer_of(replace(demo, namespaces=shown), page, query)
    assert prepared.view(JOB, {**CHAT, "name": "none"}, None).problem == "unknown"
    assert prepared.view(JOBS, {"sort": "luck"}, None).problem == "invalid"


def test_a_copy_does_not_keep_connections_of_its_parent_open(demo: Cluster) -> None:
    ours, client = socket.socketpair()
    found = PreparedCluster(lambda: demo)
    assert found.first_views().error == ""
    ours.close()
    client.settimeout(60)
    assert client.recv(1) == b""
    client.close()
    found.stop()


def test_a_copy_that_ended_is_an_error(prepared: PreparedCluster) -> None:
    prepared.first_views()
    prepared._socket.close()
    with pytest.raises(ForkedCopyError):
        prepared.view(OVERVIEW, {}, None)


def test_an_error_of_the_preparation_is_reported(demo: Cluster) -> None:
    def fail() -> Cluster:
        raise RuntimeError("a plugin failed")

    found = PreparedCluster(fail)
    assert found.first_views().error == "a plugin failed"
    found.stop()


class _Held:
    """A followed cluster at a version."""

    def __init__(self) -> None:
        self.version = 1

    def stale_for(self) -> float | None:
        return 0.0

    async def wait_changed(self, seconds: float) -> None:
        await asyncio.sleep(0.01)


class _Live(LiveClusters):
    """States of the demo: the hour is the version. A copy waits for the file of its version, and notes it."""

    def __init__(self, demo: Cluster, folder: Path) -> None:
        self.held = _Held()
        super().__init__(Source(), self.held)  # type: ignore[arg-type]
        self._demo, self._folder = demo, folder

    def finish(self, version: int) -> None:
        (self._folder / f"{version}").touch()

    def begun(self) -> list[int]:
        return sorted(int(path.suffix[1:]) for path in self._folder.glob("begun.*"))

    def _cluster(self) -> Cluster:
        version = self.held.version
        (self._folder / f"begun.{version}").touch()
        while not (self._folder / f"{version}").exists():
            time.sleep(0.01)
        return replace(self._demo, now=self._demo.now + 3600 * version, parts={})


@asynccontextmanager
async def _running(demo: Cluster, folder: Path) -> AsyncIterator[_Live]:
    live = _Live(demo, folder)
    task = asyncio.create_task(live.prepare())
    try:
        yield live
    finally:
        for version in range(1, live.held.version + 1):
            live.finish(version)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _overview(live: LiveClusters) -> Overview:
    found = await live.view(OVERVIEW, {}, None)
    assert isinstance(found, Overview)
    return found


async def test_a_request_shows_the_last_state_while_the_next_is_prepared(demo: Cluster, tmp_path: Path) -> None:
    async with _running(demo, tmp_path) as live:
        live.finish(1)
        first = await _overview(live)
        for version in (2, 3, 4):
            live.held.version = version
            last = await _overview(live)
            assert last.moment.now == first.moment.now, "its time is that of the state"
            await until(lambda: 2 in live.begun(), "the next state is being prepared")
        assert live.begun() == [1, 2], "one at a time"
        live.finish(2)
        live.finish(4)

        async def shows(hours: int) -> bool:
            return (await _overview(live)).moment.now.partition("T")[2].startswith(f"{hours:02}:10")

        await until(lambda: shows(4), "the latest state", within=60)
        assert live.begun() == [1, 2, 4], "those in between are left out"
        assert (await _overview(live)).moment.behind == 0


async def test_requests_of_one_state_share_a_view(demo: Cluster, tmp_path: Path) -> None:
    async with _running(demo, tmp_path) as live:
        live.finish(1)
        await _overview(live)
        found = await asyncio.gather(*(live.view(JOBS, {"queue": "serving"}, None) for _ in range(5)))
        assert len({id(view.items) for view in found}) == 1  # type: ignore[attr-defined]
        other = await live.view(JOBS, {"queue": "serving"}, frozenset())
        assert other.items == (), "that of another viewer is another"  # type: ignore[attr-defined]


async def test_an_object_that_a_state_lacks_may_be_younger(demo: Cluster, tmp_path: Path) -> None:
    async with _running(demo, tmp_path) as live:
        live.finish(1)
        await _overview(live)
        with pytest.raises(LookupError):
            await live.view(JOB, {**CHAT, "name": "none"}, None)
        live.held.version = 2
        waiting = asyncio.create_task(live.view(JOB, {**CHAT, "name": "none"}, None))
        await until(lambda: 2 in live.begun(), "the next state is being prepared")
        assert not waiting.done()
        live.finish(2)
        with pytest.raises(LookupError):
            await waiting
        assert isinstance(await live.view(JOB, CHAT, None), JobView)


async def test_a_request_whose_state_ends_has_the_next_one(demo: Cluster, tmp_path: Path) -> None:
    async with _running(demo, tmp_path) as live:
        live.finish(1)
        await _overview(live)
        former = live._shown
        assert former is not None
        async with AsyncExitStack() as slots:
            for _ in range(VIEWS_AT_ONCE):
                await slots.enter_async_context(live._slots)
            known = len(former.views)
            waiting = asyncio.create_task(live.view(JOBS, {"queue": "serving"}, None))
            await until(lambda: len(former.views) > known, "the view is begun")
            live.held.version = 2
            live.finish(2)
            await until(lambda: former.prepared._socket.fileno() == -1, "its copy ended", within=60)
        assert (await waiting).moment.now.partition("T")[2].startswith("02:10")  # type: ignore[attr-defined]


async def test_an_open_page_learns_of_a_prepared_state(demo: Cluster, tmp_path: Path) -> None:
    async with _running(demo, tmp_path) as live:
        live.finish(1)
        await _overview(live)
        events = live.changes()
        assert await anext(events) == ("beat", "1")
        live.held.version = 2
        live.finish(2)
        async with asyncio.timeout(60):
            found = [data async for event, data in _until_change(events)]
        assert found[-1] == "2"


async def _until_change(events: AsyncIterator[tuple[str, str]]) -> AsyncIterator[tuple[str, str]]:
    async for event, data in events:
        yield event, data
        if event == "change":
            return


async def test_without_a_prepared_state_the_error_is_shown(
    demo: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Cluster:
        raise UnavailableError("the scheduler-conf is not readable")

    monkeypatch.setattr(_Live, "_cluster", fail)
    async with _running(demo, tmp_path) as live:
        with pytest.raises(UnavailableError, match="scheduler-conf is not readable"):
            await _overview(live)
