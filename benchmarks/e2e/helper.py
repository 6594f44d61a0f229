"""Programs beside the benchmark, one process each, so that none of them waits for another's interpreter.

A helper reads one line of JSON, its job, and writes results as lines of JSON.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
import msgspec

T = TypeVar("T")

#: Bytes: longest line of a result, some hundred per pod.
_LONGEST_LINE = 64 * 2**20


class Target(msgspec.Struct, frozen=True):
    """An API server and the credentials of a user."""

    server: str
    ca: str
    token: str

    def session(self, connections: int = 0) -> aiohttp.ClientSession:
        """An HTTP client of it with at most so many connections; 0: no limit."""
        return aiohttp.ClientSession(
            self.server,
            connector=aiohttp.TCPConnector(limit=connections, ssl=ssl.create_default_context(cafile=self.ca)),
            headers={"Authorization": f"Bearer {self.token}", "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=60),
            read_bufsize=2**22,
        )


class Helper:
    """A helper from outside: `async with Helper("benchmarks.e2e.watcher", job) as helper`."""

    def __init__(self, module: str, job: msgspec.Struct) -> None:
        self._module = module
        self._job = job
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._job) + b"\n")
        await self._process.stdin.drain()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def answer(self, type: type[T], within: float) -> T:
        """The next result. Raises TimeoutError after `within` seconds, RuntimeError if the helper has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended with status {await self._process.wait()}")
        return msgspec.json.decode(line, type=type)


def read_job(type: type[T]) -> T:
    """The job, in the helper."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=type)


def say(answer: object) -> None:
    """Write one result, in the helper."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
