"""The socket that reads and sets the verbosity of a running service."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from capcard_sched.daemon.observability.logs import Logs

_MAX_LEVEL: Final = 10
#: Seconds of the longest duration: a forgotten level fills disks.
_LONGEST_SECONDS: Final = 24 * 3600.0
_STOP_SECONDS: Final = 0.5


class LevelServer:
    """The socket `capcard-sched-<process id>.sock` in a folder, from `start` to `stop`."""

    def __init__(self, logs: Logs, folder: Path) -> None:
        self._logs = logs
        self.path: Final = folder / f"capcard-sched-{os.getpid()}.sock"
        self._configured = logs.verbosity
        self._restore: asyncio.TimerHandle | None = None
        self._runner: web.AppRunner | None = None
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

    async def start(self) -> None:
        """Listen; only the user of this process may connect. A folder that is not writable is logged."""
        app = web.Application()
        app.router.add_get("/getlevel", self._get)
        app.router.add_get("/setlevel", self._set)
        app.router.add_post("/setlevel", self._set)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            await web.UnixSite(runner, str(self.path)).start()
            self.path.chmod(0o600)
        except OSError as error:
            await runner.cleanup()
            self._log.warning("failed to open debug socket", path=str(self.path), why=str(error))
        else:
            self._runner = runner

    async def stop(self) -> None:
        """Close and remove the socket, and restore the configured verbosity."""
        self._restore_level()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    async def _get(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{self._logs.verbosity}\n")

    async def _set(self, request: web.Request) -> web.Response:
        level, duration = request.query.get("level", ""), request.query.get("duration", "")
        if not (level.isascii() and level.isdigit() and len(level) < 3 and 0 < int(level) <= _MAX_LEVEL):
            return _bad(f"level: {level!r} is not accepted; accepted: a whole number from 1 to {_MAX_LEVEL}")
        try:
            seconds = parse_duration(duration)
        except DurationError as error:
            return _bad(f"duration: {error}")
        if not 0 < seconds <= _LONGEST_SECONDS:
            return _bad(f"duration: {duration!r} is not accepted; accepted: more than 0s, at most 24h")
        self._restore_level()
        self._configured = self._logs.verbosity
        self._logs.verbosity = int(level)
        self._restore = asyncio.get_running_loop().call_later(seconds, self._restore_level)
        self._log.info("verbosity", now=int(level), usual=self._configured, lasts=format_duration(seconds))
        return web.Response(text=f"{level} for {format_duration(seconds)}, then {self._configured}\n")

    def _restore_level(self) -> None:
        if self._restore is not None:
            self._restore.cancel()
            self._restore = None
            self._logs.verbosity = self._configured
            self._log.info("verbosity", now=self._configured)


def _bad(text: str) -> web.Response:
    return web.Response(status=400, text=f"{text}\n")
