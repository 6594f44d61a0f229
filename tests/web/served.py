"""A process of `capcard-sched web`, and the examples that it shows."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path("config/examples")
_CONF = "--scheduler-conf"
ARGUMENTS: dict[str, list[str]] = {
    "demo": ["-f", str(EXAMPLES / "demo"), "--until", "10m"],
    "tidal": ["-f", str(EXAMPLES / "tidal"), _CONF, str(EXAMPLES / "tidal/conf/scheduler.yaml"), "--until", "24h"],
    "vgpu": ["-f", str(EXAMPLES / "vgpu"), _CONF, str(EXAMPLES / "vgpu/conf/scheduler.yaml")],
}


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)


class Served(NamedTuple):
    """A server."""

    url: str
    #: Of its process.
    pid: int = 0

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """The response to a request."""
        request = Request(self.url + path, method=method, headers=headers)
        try:
            with urlopen(request, timeout=60) as response:
                return Reply(response.status, dict(response.headers), response.read().decode())
        except HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read().decode())


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """A server on a free port, with these arguments."""
    command = [
        str(Path(sys.executable).with_name("capcard-sched")),
        "web",
        "--listen-address",
        "127.0.0.1:0",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving on "), line
            yield Served(line.removeprefix("serving on ").strip().rstrip("/"), process.pid)
        finally:
            process.terminate()
            assert process.wait(60) == 0
