"""The debug socket: another verbosity for a while."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
import pytest_asyncio

from capcard_sched.daemon.observability.level_server import LevelServer
from capcard_sched.daemon.observability.logs import Logs
from tests.clock import until


@pytest_asyncio.fixture
async def server() -> AsyncIterator[tuple[Logs, LevelServer]]:
    # A unix socket's path may have 107 characters: pytest's own folders are often longer.
    with TemporaryDirectory() as folder, Logs(2, "json", StringIO()) as logs:
        running = LevelServer(logs, Path(folder) / "debug")
        await running.start()
        yield logs, running
        await running.stop()
        assert not running.path.exists()


async def fetch(server: LevelServer, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as client,
        client.get(f"http://localhost{path}") as response,
    ):
        return response.status, await response.text()


async def test_a_level_is_set_for_a_while_and_then_restored(server: tuple[Logs, LevelServer]) -> None:
    logs, running = server
    assert await fetch(running, "/getlevel") == (200, "2\n")
    assert await fetch(running, "/setlevel?level=5&duration=200ms") == (200, "5 for 200ms, then 2\n")
    assert await fetch(running, "/getlevel") == (200, "5\n")
    await until(lambda: logs.verbosity == 2, "the usual level")
    await fetch(running, "/setlevel?level=5&duration=1h")
    assert await fetch(running, "/setlevel?level=4&duration=1h") == (200, "4 for 1h0m0s, then 2\n"), "the usual level"
    await running.stop()
    assert logs.verbosity == 2


BAD = [
    ("/setlevel", "level: '' is not accepted"),
    ("/setlevel?level=5", "duration: '' is not a duration"),
    ("/setlevel?duration=1m", "level: '' is not accepted"),
    ("/setlevel?level=0&duration=1m", "level: '0' is not accepted"),
    ("/setlevel?level=-1&duration=1m", "level: '-1' is not accepted"),
    ("/setlevel?level=11&duration=1m", "level: '11' is not accepted"),
    ("/setlevel?level=x&duration=1m", "level: 'x' is not accepted"),
    ("/setlevel?level=5&duration=0s", "duration: '0s' is not accepted"),
    ("/setlevel?level=5&duration=-1m", "duration: '-1m' is not accepted"),
    ("/setlevel?level=5&duration=10", "duration: '10' is not a duration"),
    ("/setlevel?level=5&duration=25h", "duration: '25h' is not accepted"),
]


@pytest.mark.parametrize("path, text", BAD)
async def test_a_request_without_both_or_with_wrong_ones_changes_nothing(
    path: str, text: str, server: tuple[Logs, LevelServer]
) -> None:
    logs, running = server
    status, response = await fetch(running, path)
    assert (status, logs.verbosity) == (400, 2)
    assert response.startswith(text)


async def test_only_our_own_user_may_connect_and_a_socket_left_behind_is_replaced(
    server: tuple[Logs, LevelServer],
) -> None:
    _, running = server
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600
    await running.stop()
    running.path.touch()
    await running.start()
    assert await fetch(running, "/getlevel") == (200, "2\n")


@pytest.mark.parametrize("folder", ["file", "x" * 120], ids=["no folder", "a path too long for a socket"])
async def test_a_folder_that_cannot_be_used_is_a_warning_and_no_more(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = StringIO()
    with Logs(0, "json", out) as logs:
        refused = LevelServer(logs, tmp_path / folder)
        await refused.start()
        await refused.stop()
    line = json.loads(out.getvalue())
    assert (line["level"], line["msg"], line["path"]) == ("warning", "failed to open debug socket", str(refused.path))
    assert line["why"]
