"""A PostgreSQL server that accepts connections and never answers, or stops to answer: errors, not waits without end."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli import ledger_feed
from capcard_sched.cli.ledger_feed import LedgerFeed
from capcard_sched.cli.sources.cores import build_core, options_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_live import FollowedCluster
from capcard_sched.kube.connection import Connection
from capcard_sched.ledger import postgres as bounds
from capcard_sched.ledger.database import LedgerDatabase, LedgerError
from capcard_sched.ledger.ledger_thread import in_ledger_thread
from tests.clock import until
from tests.unit.ledger import postgres


class _Silent:
    """Accepts connections on loopback, and forwards bytes to a socket until `stop`; without a socket none."""

    def __init__(self, target: str = "") -> None:
        self._target, self._stopped = target, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self.reached = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(one)
            self.reached.set()
            if self._target:
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._servers.append(server)
                for pair in ((one, server), (server, one)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                if self._stopped.is_set():
                    return
                target.sendall(content)
        except OSError:
            pass

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self._listener.close()
        for one in (*self.accepted, *self._servers):
            one.close()


@contextmanager
def _silent(target: str = "") -> Iterator[_Silent]:
    server = _Silent(target)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of those of the product. psycopg waits two for a connection at least."""
    monkeypatch.setattr(bounds, "_CONNECT", 2)
    monkeypatch.setattr(bounds, "_SILENCE", 1.0)


@pytest.mark.timeout(60)
def test_a_server_that_never_answers_is_an_error() -> None:
    with _silent() as server, pytest.raises(LedgerError, match=rf"{server.port}/x: cannot connect: .*timeout"):
        LedgerDatabase(f"postgresql://me@127.0.0.1:{server.port}/x")


@pytest.mark.timeout(60)
def test_a_server_that_stops_to_answer_is_an_error_and_its_connection_is_not_used_again(postgres_server: Path) -> None:
    name = re.sub(r".*/(\w+)\?.*", r"\1", postgres.new_database(postgres_server))
    (target,) = postgres_server.glob(".s.PGSQL.*[0-9]")
    with _silent(str(target)) as server:
        database = LedgerDatabase(f"postgresql://postgres@127.0.0.1:{server.port}/{name}?sslmode=disable")
        assert list(database.sources()) == []
        database.begin_source("one", "live", 1000, "")
        server.stop()
        for use in (database.sources, lambda: database.begin_source("two", "live", 2000, "")):
            with pytest.raises(LedgerError, match=r"not responded for 1 seconds|timeout"):
                use()
        database.close()


def _feed(url: str) -> LedgerFeed:
    connection = Connection("http://127.0.0.1:1", None, lambda: None, "default")
    held = FollowedCluster(build_core(None, None, options_of(Source())), connection, "default")
    held.stale_for = lambda: 0.0  # type: ignore[method-assign]  # its lists are complete, and empty
    return LedgerFeed(url, held, "", lambda: True)


@pytest.mark.timeout(60)
def test_a_feed_reports_a_hanging_server_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger_feed, "_PAUSE", 0.1)

    async def record(server: _Silent) -> None:
        running = asyncio.create_task(_feed(f"postgresql://me@127.0.0.1:{server.port}/x").run())
        await until(lambda: len(server.accepted) >= 2, "a second attempt")
        running.cancel()
        await asyncio.wait({running})

    with _silent() as server:
        asyncio.run(record(server))
        assert f"warning: ledger: postgresql://me@127.0.0.1:{server.port}/x: cannot connect" in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["feed", "page"])
def test_the_end_of_the_process_does_not_wait_for_a_hanging_server(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is open still when the event loop is closed: its thread is not joined."""
    monkeypatch.setattr(bounds, "_CONNECT", 3600)

    async def end_in_between(server: _Silent) -> None:
        url = f"postgresql://me@127.0.0.1:{server.port}/x"
        calls: dict[str, Callable[[], Any]] = {
            "feed": lambda: _feed(url).run(),
            "page": lambda: in_ledger_thread(lambda: LedgerDatabase(url)),
        }
        running = asyncio.create_task(calls[part]())
        await until(server.reached.is_set, "a connection")
        running.cancel()
        await asyncio.wait({running})

    with _silent() as server:
        asyncio.run(end_in_between(server))
        (one,) = server.accepted
        while select.select([one], [], [], 0)[0] and (content := one.recv(65536)):
            assert content, "what the client sent before"
        threads = [each for each in threading.enumerate() if each.name == "ledger"]
        assert [each.daemon for each in threads] == [True], "the thread is waiting, and is not joined"


@pytest.mark.timeout(60)
def test_what_an_abandoned_call_opens_late_is_discarded() -> None:
    opened: list[Any] = []
    go = threading.Event()

    async def abandon() -> None:
        running = asyncio.create_task(in_ledger_thread(lambda: go.wait() and "late", opened.append))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        go.set()
        await until(lambda: bool(opened), "the end of the call")

    asyncio.run(abandon())
    assert opened == ["late"]
