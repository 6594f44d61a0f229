"""Programs that end with the test run, however that ends."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.controlplane import deprecations
from tests.controlplane.build import PROGRAMS

# Linux kills a process that requested it when the *thread* that started it ends. One thread that lives as long as the
# interpreter starts them all, so that a program started from a passing thread outlives that one.
_starter: Final = ThreadPoolExecutor(1, thread_name_prefix="starts-programs")
# 1 is PR_SET_PDEATHSIG. The new process makes the call: code between fork and exec is not safe beside other threads.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
_started: Final[set[subprocess.Popen[bytes]]] = set()


def spawn(
    command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program that is killed when this process ends, be it by SIGKILL; both its outputs are appended to `log`.

    `command[0]` is the path of the program, which is not searched for.
    """
    words = [str(word) for word in command]
    if sys.platform == "linux":
        import os

        words = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *words]

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    if Path(command[0]).name not in PROGRAMS:  # the control plane itself uses what it likes
        deprecations.watch(log)
    process = _starter.submit(start).result()
    _started.add(process)
    return process


async def output(*command: str | Path, succeeds: bool = True, **options: Any) -> str:
    """Standard output of a command that must succeed, or standard error of one that must not."""
    run = functools.partial(subprocess.run, command, capture_output=True, text=True, check=False, **options)
    done = await asyncio.to_thread(run)
    deprecations.scan(str(command[0]), done.stderr)
    assert (done.returncode == 0) is succeeds, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout if succeeds else done.stderr


def end(process: subprocess.Popen[bytes], *, gently: float = 0.0) -> None:
    """Ends a program and waits for it: SIGTERM first when it is given some seconds, then SIGKILL."""
    if gently and process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(gently)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    _started.discard(process)


@atexit.register
def _end_all() -> None:
    for process in list(_started):
        end(process)


def free_port() -> int:
    """A free TCP port of 127.0.0.1.

    Taken below the range from which the system numbers outgoing connections: a program that is killed finds its port
    free when it is started again.
    """
    for _ in range(200):
        port = 20_000 + secrets.randbelow(12_000)  # not from `random`, which every test worker seeds alike
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("found no free port from 20000 to 31999")


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for a failure's text."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:]) if log.exists() else ""
