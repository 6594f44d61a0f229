"""`capcard-sched cache`: keeps a live cluster in memory and serves the reading verbs of its user.

Each request runs in a copy of the process, on the streams of the client, and does not block the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket as sockets
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Final, Self

from cyclopts import Parameter

from capcard_sched.cli.cache_client import DECLINED, ERROR, LENGTH, SEPARATOR, STATUS, CacheError, peer_uid
from capcard_sched.cli.commands import app
from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.main import complete, run
from capcard_sched.cli.sources.cores import build_core, options_of
from capcard_sched.cli.sources.held_cluster import HeldCluster, run_followed
from capcard_sched.cli.sources.live import connection_of
from capcard_sched.cli.sources.load import HELD, DeclinedError
from capcard_sched.cli.sources.source import Source
from capcard_sched.gc import keep_all
from capcard_sched.insight.trials.forked_copy import fork

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
#: Requests served at a time; others wait.
_AT_ONCE: Final = max(2, os.cpu_count() or 2)
#: Programs that wait to be accepted.
_BACKLOG: Final = 128
#: Connections at a time; others wait to be accepted.
_CONNECTIONS: Final = 128
#: Seconds in which a request must be complete.
_REQUEST_SECONDS: Final = 5.0
#: Seconds after which a request no longer counts towards `_AT_ONCE`.
_SLOT_SECONDS: Final = 10.0
#: Seconds for which requests wait for a watch that is opened again.
_PATIENCE: Final = 5.0
_PAUSE: Final = 0.05
#: Descriptors that come with a request.
_STREAMS: Final = 3
#: Bytes of the longest request: Linux limits a command line and its variables to 6 MiB.
_MOST_BYTES: Final = 2**23
_VERBS: Final = ("explain", "snapshot", "what-if", "job", "queue", "card", "node", "pod")
#: Modules that verbs import when they run.
_USED: Final = (
    "capcard_sched.cli.candidates",
    "capcard_sched.insight.estimates.expected_start",
    "capcard_sched.insight.diagnosis.explain",
    "capcard_sched.insight.fixes.search",
    "capcard_sched.insight.diagnosis.headlines",
    "capcard_sched.insight.diagnosis.lists",
    "capcard_sched.insight.what_if",
    "capcard_sched.reports.explain",
    "capcard_sched.reports.tables",
    "capcard_sched.reports.what_if",
    "capcard_sched.simulation.run",
    "capcard_sched.simulation.scenario_reader",
)


def cache(
    *,
    socket: Annotated[Path, Parameter(metavar="PATH")],
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], show_default=False, metavar="NAME")] = "",
    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NAME")] = (),
    default_queue: Annotated[str, Parameter(metavar="NAME")] = "default",
    kubeconfig: Path | None = None,
    context: Annotated[str, Parameter(show_default=False, metavar="NAME")] = "",
) -> int:
    """Keep a live cluster in memory and serve explain, what-if, snapshot and the lists of the same user.

    They use it with --cache PATH or CAPCARD_SCHED_CACHE=PATH and print the same. Lists the cluster once, watches it,
    and writes nothing to it. Results contain what the kubeconfig of the cache may read. Ends on SIGTERM and SIGINT.

    Exit status: 0 when it is ended; 2 on bad input or without the right to watch; 1 on an internal error.

    Args:
        socket: Unix socket to listen on, mode 0600.
        namespace: The namespace to read without rights in all of them. Default: that of the kubeconfig's context.
        scheduler_name: As of the verbs; another one there makes requests slower. Repeatable.
        default_queue: Likewise.
        kubeconfig: Kubeconfig file. Default: the one kubectl uses.
        context: Context of the kubeconfig. Default: its current context.
    """
    for number in _ENDS:
        signal.signal(number, lambda *_: sys.exit(0))  # until the event loop takes them
    try:
        options = options_of(Source(scheduler_name=scheduler_name, default_queue=default_queue))
        with _listening(socket) as listener:
            connection = connection_of(kubeconfig, context)
            own = namespace or connection.namespace or "default"
            held = HeldCluster(build_core(None, None, options), connection, own)
            for verb in _VERBS:
                app[verb]  # imported now
            for module in _USED:
                importlib.import_module(module)
            keep_all()  # until the lists are complete
            run_followed(_serve(held, listener))
    except BadInputError as error:
        return usage_error(str(error))
    except asyncio.CancelledError:
        return 0
    return 0


@contextmanager
def _listening(path: Path) -> Iterator[sockets.socket]:
    """A listening socket, removed at the end. Raises BadInputError."""
    with sockets.socket(sockets.AF_UNIX) as listener:
        umask = os.umask(0o177)
        try:
            _make_room(path)
            listener.bind(str(path))
            own = path.stat().st_ino
        except OSError as error:
            raise BadInputError(f"--socket: {path}: {error.strerror or error}") from None
        finally:
            os.umask(umask)
        try:
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            yield listener
        finally:
            with suppress(OSError):
                if path.stat().st_ino == own:  # not that of a successor
                    path.unlink()


def _make_room(path: Path) -> None:
    """Remove the socket of a process that ended. Raises BadInputError for anything else at the path, and OSError."""
    if not path.exists():
        return
    if not path.is_socket():
        raise BadInputError(f"--socket: {path}: exists and is no socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise BadInputError(f"--socket: {path}: a process listens on it already")


async def _serve(held: HeldCluster, listener: sockets.socket) -> None:
    """Follow the cluster and serve requests until a signal. Raises CancelledError, and groups of BadInputError."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in _ENDS:
        loop.add_signal_handler(number, task.cancel)
    async with asyncio.TaskGroup() as group:
        group.create_task(CacheServer(held, listener).run())
        await held.follow(await held.find_kinds())


class CacheServer:
    """Serves requests, each in a copy of the process."""

    def __init__(self, held: HeldCluster, listener: sockets.socket) -> None:
        self._held, self._listener = held, listener
        self._slots = asyncio.Semaphore(_AT_ONCE)
        #: One per connection: each has four descriptors.
        self._places = asyncio.Semaphore(_CONNECTIONS)
        #: Copies by process id; done when a copy ended.
        self._copies: dict[int, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Serve until cancelled; the copies end, too."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._places.acquire()
                    try:
                        connection, _ = await loop.sock_accept(self._listener)
                    except OSError:  # too many open files
                        self._places.release()
                        await asyncio.sleep(_PAUSE)
                        continue
                    group.create_task(self._answer(connection))
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            for pid in self._copies:
                _end(pid)

    async def _answer(self, connection: sockets.socket) -> None:
        try:
            with connection:
                request = await _accepted(connection)
                if request is not None:
                    with request:
                        await self._answer_request(request)
        finally:
            self._places.release()

    async def _answer_request(self, request: _Request) -> None:
        while 0.0 < (self._held.stale_for() or 0.0) < _PATIENCE:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_PAUSE)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        async with self._slots:
            loop.call_soon(self._begin, request, ended)  # outside of any task
            # A program that does not read its output, or a pipe as input, does not hold up the others.
            await asyncio.wait({ended}, timeout=_SLOT_SECONDS)
        await ended

    def _begin(self, request: _Request, ended: asyncio.Future[None]) -> None:
        try:
            pid = fork(partial(_answer_in_copy, self._held, request))
        except OSError as error:
            _reply(request.connection, ERROR + f"cannot fork: {error.strerror}".encode())
            ended.set_result(None)
        else:
            self._copies[pid] = ended
            request.close()  # the end of the copy is the end of the connection

    def _reap(self) -> None:
        for pid, ended in list(self._copies.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._copies[pid]
                _end(pid)  # copies of the copy
                if not ended.done():
                    ended.set_result(None)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _reply(connection: sockets.socket, reply: bytes) -> None:
    with suppress(OSError):  # the program is gone
        connection.sendall(reply)
        connection.shutdown(sockets.SHUT_WR)  # a copy of a copy may hold the connection open


def _answer_in_copy(held: HeldCluster, request: _Request) -> int:
    """Serve one request. Returns the exit status of the copy."""
    connection = request.connection
    os.setsid()  # ends with its own copies, and gets no signal of the cache's terminal
    signal.set_wakeup_fd(-1)
    for number in (*_ENDS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # What is open belongs to the cache. Its objects live to the end of the copy: none closes a descriptor twice.
    kept = sorted({connection.fileno(), *request.streams})
    for first, last in pairwise((2, *kept, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(first + 1, last)
    keep_all()
    HELD.set(held)
    try:
        connection.setblocking(True)
        arguments = request.take_place()
        Thread(target=_end_with, args=(connection,), daemon=True).start()
        if arguments[:1] == ["__complete"]:
            complete(arguments[1:])
            status = 0
        else:
            status = run(arguments)
        sys.stdout.flush()
        reply = STATUS + str(status).encode()
    except DeclinedError:
        reply = DECLINED
    except CacheError as error:
        reply = ERROR + str(error).encode()
    except BrokenPipeError:
        reply = STATUS + b"0"
    _reply(connection, reply)
    return 0


def _end_with(connection: sockets.socket) -> None:
    """End this process and its copies when the client is gone."""
    with suppress(OSError):
        while connection.recv(1):
            pass
    os.killpg(0, signal.SIGKILL)


async def _accepted(connection: sockets.socket) -> _Request | None:
    """The request of a new connection; None after a response with an error."""
    try:
        uid = peer_uid(connection)
        if uid != os.getuid():
            raise CacheError(f"it answers uid {os.getuid()} only, not uid {uid}")
        request = _Request(connection)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                await request.receive()
        except BaseException:
            request.close_streams()
            raise
    except TimeoutError:
        _reply(connection, ERROR + f"no request within {_REQUEST_SECONDS:g} s".encode())
    except OSError as error:
        _reply(connection, ERROR + (error.strerror or str(error)).encode())
    except CacheError as error:
        _reply(connection, ERROR + str(error).encode())
    else:
        return request
    return None


class _Request:
    """A request: the streams of the client, its umask, folder, arguments and variables."""

    def __init__(self, connection: sockets.socket) -> None:
        self.connection = connection
        #: Descriptors of standard input, output and error.
        self.streams: list[int] = []
        self._content = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.close_streams()
        self.connection.close()

    def close_streams(self) -> None:
        """Close the streams: the client may see the end of a pipe."""
        for stream in self.streams:
            os.close(stream)
        self.streams = []

    async def receive(self) -> None:
        """Read it without blocking. Raises CacheError and OSError."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.connection.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.connection.fileno())
        head, self.streams, _, _ = sockets.recv_fds(self.connection, LENGTH.size, _STREAMS)
        if len(head) < LENGTH.size or len(self.streams) < _STREAMS:
            raise CacheError("no request of capcard-sched")
        (length,) = LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise CacheError(f"a request of {length} bytes; at most {_MOST_BYTES}")
        while len(self._content) < length:
            part = await loop.sock_recv(self.connection, min(2**16, length - len(self._content)))
            if not part:
                raise CacheError("the request ends early")
            self._content += part

    def take_place(self) -> list[str]:
        """Take the place of the client. Returns its arguments. Raises CacheError."""
        try:
            umask, folder, count, *rest = bytes(self._content).split(SEPARATOR)
            number = int(count)
            os.umask(int(umask))
            os.environb.clear()
            os.environb.update((name, value) for name, _, value in (one.partition(b"=") for one in rest[number:]))
            os.chdir(folder)
        except (ValueError, OSError) as error:
            raise CacheError(f"no request of capcard-sched: {error}") from None
        time.tzset()
        for descriptor, stream in enumerate(self.streams):
            os.dup2(stream, descriptor)
            os.close(stream)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the copy
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        return [os.fsdecode(argument) for argument in rest[:number]]
