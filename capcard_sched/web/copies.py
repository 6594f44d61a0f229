"""Views are made in copies of the process: sessions and trials change nothing, and a slow page delays no other."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from capcard_sched.insight.trials.forked_copy import RunningCopy
from capcard_sched.web.source import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.pages import Page

#: Seconds after which a copy ends without a result.
_MOST_SECONDS: Final = 120
#: Bytes that a copy may take beyond those of the process, at least; it may take as much again as the process has.
_MORE_BYTES: Final = 1 << 30
#: A slow view leaves the processors to others.
_NICE: Final = 10


class PageAnswer(msgspec.Struct, frozen=True):
    """A view, or why there is none."""

    #: MessagePack of the view.
    body: bytes = b""
    problem: Literal["", "unknown", "invalid", "unavailable"] = ""
    text: str = ""


def begin_view(cluster: Callable[[], Cluster], page: Page, query: Mapping[str, str]) -> RunningCopy[PageAnswer]:
    """A copy of this process that makes the view of a page. `cluster` is called there."""

    def answer() -> PageAnswer:
        as_copy(_MOST_SECONDS)
        as_slow_copy()
        try:
            return answer_of(cluster(), page, query)
        except UnavailableError as error:
            return PageAnswer(problem="unavailable", text=str(error))

    return RunningCopy(answer, PageAnswer)


def as_copy(seconds: int) -> None:
    """In a copy of the server: restore the default handlers of signals, and end after `seconds`."""
    signal.set_wakeup_fd(-1)  # that of the event loop belongs to the server
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(seconds)


def as_slow_copy() -> None:
    """In a copy that makes a slow view: bound its memory, and give way to other processes."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most, hard = size + max(size, _MORE_BYTES), resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    os.nice(_NICE)


def answer_of(cluster: Cluster, page: Page, query: Mapping[str, str]) -> PageAnswer:
    """The view of a page of a cluster."""
    try:
        return PageAnswer(msgspec.msgpack.encode(page.view(cluster, query)))
    except LookupError as error:
        return PageAnswer(problem="unknown", text=str(error.args[0]))
    except ValueError as error:
        return PageAnswer(problem="invalid", text=str(error))
    except MemoryError:
        return PageAnswer(problem="unavailable", text="the view takes more memory than one may take")


def view_of(answer: PageAnswer, page: Page) -> InsightPart:
    """The view of a reply. Raises LookupError, ValueError and UnavailableError."""
    if answer.problem == "unknown":
        raise LookupError(answer.text)
    if answer.problem == "invalid":
        raise ValueError(answer.text)
    if answer.problem == "unavailable":
        raise UnavailableError(answer.text)
    return msgspec.msgpack.decode(answer.body, type=page.kind)
