"""A copy of the process that holds one state of a cluster, prepared: it makes views without reading the cluster anew.

The copy reads the state, runs the diagnoses of its lists and makes the first views. A second copy, of the first, runs a
session that attempts every job: diagnoses of single jobs come from there. A view with trials is made in a further copy;
what it changes reaches no other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.limits import LimitReader
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, fork
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.web.cluster import DiagnosisRequest
from capcard_sched.web.copies import PageAnswer, answer_of, as_copy, as_slow_copy
from capcard_sched.web.job_page import diagnose_attempted, tries_jobs
from capcard_sched.web.pages import FIRST_ADDRESSES, PAGES
from capcard_sched.web.views import JobView

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.pages import Page

#: Seconds after which a copy that prepares itself, or makes one view, ends.
_MOST_SECONDS: Final = 120
#: Queues of which a job is diagnosed before the first request.
_MOST_QUEUES: Final = 32
#: The message beside the pipes of a request.
_REQUEST: Final = b"r"


class ViewRequest(msgspec.Struct, frozen=True):
    """A view that a prepared copy makes."""

    document: str
    query: dict[str, str]
    #: Namespaces of the viewer; None for all.
    namespaces: tuple[str, ...] | None = None


class FirstViews(msgspec.Struct, frozen=True):
    """By document the views that are made before the first request, or the error of the preparation."""

    views: dict[str, PageAnswer] = {}
    error: str = ""


class _Diagnosed(msgspec.Struct, frozen=True):
    diagnosis: JobDiagnosis | None = None
    unknown: str = ""
    error: str = ""


class PreparedCluster:
    """The parent's end of a prepared copy. Ends with `stop`; requests in progress still end."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        """Begin with the preparation. `cluster` is called in the copy."""
        self._socket, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._first, writer = os.pipe()
        self.pid = fork(lambda: _prepare(cluster, peer, writer))
        peer.close()
        os.close(writer)

    def first_views(self) -> FirstViews:
        """Wait for the end of the preparation. Once."""
        with os.fdopen(self._first, "rb") as stream:
            body = stream.read()
        if not body:
            return FirstViews(error="the copy of the process ended before its first views were made")
        return msgspec.msgpack.decode(body, type=FirstViews)

    def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> PageAnswer:
        """The view of a page. Raises ForkedCopyError."""
        names = None if namespaces is None else tuple(sorted(namespaces))
        body = _ask(self._socket, msgspec.msgpack.encode(ViewRequest(page.document, dict(query), names)))
        return msgspec.msgpack.decode(body, type=PageAnswer)

    def stop(self) -> None:
        """End the copy."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _ask(server: socket.socket, request: bytes) -> bytes:
    """The response of a copy to a request. Raises ForkedCopyError."""
    (request_reader, request_writer), (reader, writer) = os.pipe(), os.pipe()
    try:
        try:
            socket.send_fds(server, [_REQUEST], [request_reader, writer])
        finally:
            os.close(request_reader)
            os.close(writer)
        with os.fdopen(request_writer, "wb") as stream:
            stream.write(request)
        with os.fdopen(reader, "rb", closefd=False) as stream:
            body = stream.read()
    except OSError as error:
        raise ForkedCopyError(f"the prepared copy of the process ended: {error}") from None
    finally:
        os.close(reader)
    if not body:
        raise ForkedCopyError("the copy ended without a result")
    return body


def _prepare(cluster: Callable[[], Cluster], requests: socket.socket, writer: int) -> int:
    """In the copy: read the cluster, write the first views, and serve requests until the parent ends."""
    as_copy(_MOST_SECONDS)
    _release({requests.fileno(), writer})
    pages, first = {page.document: page for page in PAGES}, FirstViews()
    made: Cluster | None = None
    try:
        made = _with_attempts(cluster())
        views = {page.document: answer_of(made, page, {}) for page in PAGES if page.address in FIRST_ADDRESSES}
        first = FirstViews(views)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; requests report it
        first = FirstViews(error=str(error) or type(error).__name__)
    with os.fdopen(writer, "wb") as stream:
        stream.write(msgspec.msgpack.encode(first))
    if made is None or first.error:
        return 1
    shown = made

    def view(body: bytes) -> bytes:
        wanted = msgspec.msgpack.decode(body, type=ViewRequest)
        namespaces = None if wanted.namespaces is None else frozenset(wanted.namespaces)
        seen = replace(shown, namespaces=namespaces)
        return msgspec.msgpack.encode(answer_of(seen, pages[wanted.document], wanted.query))

    def is_quick(body: bytes) -> bool:
        wanted = msgspec.msgpack.decode(body, type=ViewRequest)
        page = pages[wanted.document]
        return not page.is_slow or (page.kind is JobView and not tries_jobs(shown, wanted.query))

    return _serve(requests, view, is_quick)


def _with_attempts(cluster: Cluster) -> Cluster:
    """The cluster, with a further copy in which a session has attempted every job."""
    client, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def attempt() -> int:
        _release({peer.fileno()})
        cluster.session()
        limits = _diagnose_some(cluster)

        def diagnose(body: bytes) -> bytes:
            wanted = msgspec.msgpack.decode(body, type=DiagnosisRequest)
            try:
                found = _Diagnosed(diagnose_attempted(cluster, wanted, limits))
            except LookupError as error:
                found = _Diagnosed(unknown=str(error.args[0]))
            except Exception as error:  # noqa: BLE001 - as of a copy
                found = _Diagnosed(error=f"{type(error).__name__}: {error}")
            return msgspec.msgpack.encode(found)

        def is_quick(body: bytes) -> bool:
            wanted = msgspec.msgpack.decode(body, type=DiagnosisRequest)
            return not (wanted.tries or wanted.fix or wanted.start)

        return _serve(peer, diagnose, is_quick)

    def attempted(wanted: DiagnosisRequest) -> JobDiagnosis:
        found = msgspec.msgpack.decode(_ask(client, msgspec.msgpack.encode(wanted)), type=_Diagnosed)
        if found.unknown:
            raise LookupError(found.unknown)
        if found.diagnosis is None:
            raise ForkedCopyError(found.error)
        return found.diagnosis

    fork(attempt)
    peer.close()
    return replace(cluster, attempted=attempted)


def _diagnose_some(cluster: Cluster) -> LimitReader | None:
    """The reader of limits and rejections, after a diagnosis of each queue: most of its figures are those of others."""
    if cluster.unreadable:
        return None
    snapshot = cluster.core.snapshot()
    found: dict[str, Job] = {}
    limits = LimitReader(snapshot, CapacityReader(snapshot))
    for job in snapshot.state.jobs.values():
        if job.pending:
            found.setdefault(job.queue, job)
    for job in [*found.values()][:_MOST_QUEUES]:
        diagnose_job(snapshot, job, now=cluster.now, limits=limits)
    return limits


def _serve(requests: socket.socket, answer: Callable[[bytes], bytes], is_quick: Callable[[bytes], bool]) -> int:
    """Make the response to each request, until the other end of the socket is closed.

    In a copy, unless it is quick and changes nothing: a copy duplicates each page of memory that it reads objects of.
    """
    signal.alarm(0)
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        message, descriptors, _, _ = socket.recv_fds(requests, len(_REQUEST), 2)
        if not message:
            return 0
        reader, writer = descriptors
        with os.fdopen(reader, "rb") as stream:
            body = stream.read()
        if is_quick(body):
            _respond(answer, body, writer)
        else:
            fork(lambda body=body, writer=writer: _respond_slowly(answer, body, writer))  # type: ignore[misc]
            os.close(writer)


def _respond_slowly(answer: Callable[[bytes], bytes], body: bytes, writer: int) -> int:
    as_slow_copy()
    return _respond(answer, body, writer)


def _respond(answer: Callable[[bytes], bytes], body: bytes, writer: int) -> int:
    signal.alarm(_MOST_SECONDS)
    with os.fdopen(writer, "wb") as stream, contextlib.suppress(BrokenPipeError):
        stream.write(answer(body))
        stream.flush()
    signal.alarm(0)
    return 0


def _release(own: Collection[int]) -> None:
    """Let go of the connections of the parent: a copy that lives on would keep them open after their end.

    Their numbers stay in use: objects of the parent close them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in [path.name for path in Path("/dev/fd").iterdir()]:
        number = int(name)
        if number in {0, 1, 2, null, *own}:
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(number).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(null, number)
    os.close(null)
