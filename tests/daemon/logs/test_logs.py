"""The log: shape of its lines, what each verbosity shows, and that nothing private gets out."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
import structlog

from capcard_sched.daemon.observability.logs import Format, Logs, SessionLog
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.framework.api.plugin import OutsideError, Plugin, Reads
from capcard_sched.testing import Harness
from tests.clock import Clock

CARD = "NVIDIA-H200"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Written(StringIO):
    """What was logged."""

    logs: Logs

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Without errors of asyncio: the garbage collector may find a task of another test at any time."""
        lines = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in lines if not line["msg"].startswith("Task was destroyed")]


@contextmanager
def logging_to(verbosity: int = 0, form: Format = "json") -> Iterator[Written]:
    out = Written()
    with Logs(verbosity, form, out) as out.logs:
        yield out


def test_a_line_is_one_json_object_with_time_level_logger_message_and_fields_in_this_order() -> None:
    with logging_to() as out:
        structlog.get_logger("capcard_sched.daemon.x").info("started", path="/é", message="own", count=3)
    (line,) = out.lines
    assert list(line) == ["time", "level", "logger", "msg", "path", "message", "count"]
    assert line["time"].endswith("Z")
    assert {key: line[key] for key in list(line)[1:]} == {
        "level": "info",
        "logger": "capcard_sched.daemon.x",
        "msg": "started",
        "path": "/é",
        "message": "own",
        "count": 3,
    }
    assert "é" in out.getvalue()


def test_values_outside_json_and_line_breaks_stay_on_one_line() -> None:
    with logging_to() as out:
        structlog.get_logger("capcard_sched.x").info("a\nb", kind={1}, error=ValueError("x\ny"))
    (line,) = out.lines
    assert (line["msg"], line["kind"], line["error"]) == ("a\nb", "{1}", "ValueError('x\\ny')")


def test_for_people_a_line_begins_with_time_level_and_message() -> None:
    with logging_to(form="console") as out:
        structlog.get_logger("capcard_sched.x").warning("conf rejected", file="/x", note="two words")
    (line,) = out.getvalue().splitlines()
    assert "[warning  ] conf rejected" in line
    assert line.endswith("[capcard_sched.x] file=/x note='two words'")
    assert "\x1b" not in line


@pytest.mark.parametrize("stream, is_json", [(StringIO(), True), (Terminal(), False)])
def test_the_form_follows_the_stream_unless_configured(stream: StringIO, is_json: bool) -> None:
    with Logs(0, "auto", stream):
        structlog.get_logger("capcard_sched.x").info("hello")
    assert stream.getvalue().startswith("{") == is_json
    assert ("\x1b[" in stream.getvalue()) != is_json


def test_messages_of_libraries_and_warnings_use_the_same_handler() -> None:
    with logging_to() as out:
        logging.getLogger("aiohttp.server").error("request %s failed", 7, extra={"peer": "p"})
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    first, second = out.lines
    assert (first["level"], first["logger"], first["msg"]) == ("error", "aiohttp.server", "request 7 failed")
    assert first["peer"] == "p"
    assert second["logger"] == "py.warnings"


SHOWN = [
    (0, ["info", "warning", "error"], ["warning"]),
    (3, ["info", "warning", "error"], ["warning"]),
    (4, ["debug", "info", "warning", "error"], ["warning"]),
    (5, ["debug", "info", "warning", "error"], ["debug", "info", "warning"]),
    (10, ["debug", "info", "warning", "error"], ["debug", "info", "warning"]),
]


@pytest.mark.parametrize("verbosity, ours, theirs", SHOWN)
def test_a_verbosity_shows_these_levels_of_ours_and_of_libraries(
    verbosity: int, ours: list[str], theirs: list[str]
) -> None:
    with logging_to(verbosity) as out:
        log = structlog.get_logger("capcard_sched.daemon.x")
        for level in ("debug", "info", "warning", "error"):
            getattr(log, level)("x")
        for level in ("debug", "info", "warning"):
            getattr(logging.getLogger("asyncio"), level)("x")
    found = out.lines
    assert [line["level"] for line in found if line["logger"] != "asyncio"] == ours
    assert [line["level"] for line in found if line["logger"] == "asyncio"] == theirs


def test_the_verbosity_can_be_changed_while_running() -> None:
    with logging_to() as out:
        log = structlog.get_logger("capcard_sched.daemon.x")
        for verbosity in (0, 4, 0):
            out.logs.verbosity = verbosity
            log.debug("x", at=verbosity)
    assert [line["at"] for line in out.lines] == [4]


def test_response_bodies_of_the_client_library_are_never_logged() -> None:
    with logging_to(10) as out:
        logging.getLogger("kubernetes.client.rest").debug("response body: token")
        logging.getLogger("kubernetes.client.rest").info("fine")
    assert [line["msg"] for line in out.lines] == ["fine"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_trace_shows_where_and_not_the_values_of_variables(form: Format) -> None:
    with logging_to(form=form) as out:
        token = "hunter2"
        try:
            int(token + "!")
        except ValueError:
            structlog.get_logger("capcard_sched.x").exception("failed")
    assert "Traceback" in out.getvalue()
    assert "int(token" in out.getvalue()
    assert f"token = '{token}'" not in out.getvalue()
    assert "ValueError" in out.getvalue()


def test_afterwards_logging_is_as_it_was() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    with logging_to(5):
        assert (root.handlers[:], root.level) != before
    assert (root.handlers[:], root.level) == before
    assert not structlog.is_configured()


# --- sessions ---------------------------------------------------------------------------------------------------------


def gang() -> Harness:
    h = Harness(run=True)
    h.gpu_node("n1", count=4)
    h.queue("q", cards={CARD: 2})
    h.group("g", min_member=2)
    for name in ("a", "b"):
        h.pod(name, card=CARD, cards=1)
    h.group("h")
    h.pod("more", group="h", card=CARD, cards=2)
    h.group("fresh", phase="Pending")
    return h


def reported(verbosity: int, h: Harness, steps: int = 1) -> list[dict[str, Any]]:
    with logging_to(verbosity) as out:
        log = SessionLog(out.logs, Clock())
        for _ in range(steps):
            log.step(h.step(), 0.01234, backlog=3)
    return out.lines


def test_a_session_that_decided_something_is_one_line_with_its_figures() -> None:
    (line,) = reported(0, gang())
    assert {key: value for key, value in line.items() if key != "time"} == {
        "level": "info",
        "logger": "capcard_sched.daemon.session",
        "msg": "session",
        "session": "session-1",
        "milliseconds": 12.3,
        "jobs": 2,
        "bound": 2,
        "enqueued": 1,
        "refused": 1,
        "backlog": 3,
    }


def test_sessions_without_decisions_are_logged_from_verbosity_3_and_idle_steps_never() -> None:
    for verbosity, messages in ((0, ["session"]), (2, ["session"]), (3, ["session", "session"])):
        h = gang()
        assert [line["msg"] for line in reported(verbosity, h, 2)] == messages
        h.settle()
        assert reported(3, h, 3) == []


def test_every_binding_and_refusal_is_logged_from_verbosity_4() -> None:
    found = reported(4, gang())
    assert [(line["msg"], line.get("pod")) for line in found] == [
        ("bind", "default/a"),
        ("bind", "default/b"),
        ("refused", None),
        ("session", None),
    ]
    assert found[0]["node"] == "n1"
    refused = found[2]
    assert refused["object"] == "Pod default/more"
    assert (refused["plugin"], refused["hook"]) == ("capacity-card", "allocatable")
    assert refused["why"].startswith("Queue <q> has insufficient <NVIDIA-H200> quota")


@pytest.mark.parametrize(
    ("kind", "level"), [(ValueError, "error"), (OutsideError, "warning")], ids=["our own", "another client's"]
)
def test_a_repeated_failure_is_logged_once_a_minute_with_its_count(kind: type[Exception], level: str) -> None:
    class Broken(Plugin):
        name = "broken"
        reads = Reads.CLOCK

        def job_valid(self, job: Any) -> Any:
            raise kind("always")

    h = Harness('actions: "allocate"\ntiers: [{plugins: [{name: broken}]}]', plugins=[Broken])
    h.queue("q")
    h.group("g")
    h.pod("a")
    watch = Clock()
    with logging_to() as out:
        log = SessionLog(out.logs, watch)
        for second in range(0, 130, 10):
            watch.now = float(second)
            log.step(h.step(), 0.001)
    failures = [line for line in out.lines if line["msg"] == "plugin error (recovered)"]
    assert [line["repeated"] for line in failures] == [0, 5, 5]
    assert {(line["level"], line["plugin"], line["hook"], line["error"]) for line in failures} == {
        (level, "broken", "job_valid", f"{kind.__name__}: always")
    }


# --- failed writes ----------------------------------------------------------------------------------------------------


def test_failed_writes_of_one_kind_and_cause_get_a_line_a_minute_with_their_number() -> None:
    seconds = [0.0]
    with logging_to() as out:
        observer = LoggingObserver(Metrics(), lambda _: None, lambda: seconds[0])
        for number in range(1000):
            observer.write_failed("PodGroup", 500, f'podgroups "g-{number}": no response after {number} s')
            seconds[0] = number * 0.05
        observer.write_failed("Event", 500, 'podgroups "g": no response after 1 s')
        observer.write_failed("PodGroup", 403, 'podgroups "g": no response after 1 s')
        observer.write_failed("PodGroup", 500, 'podgroups "g": the webhook denied it')
        seconds[0] = 61.0
        observer.write_failed("PodGroup", 500, 'podgroups "later": no response after 2 s')
    assert [(line["msg"], line["kind"], line["code"], line.get("repeated")) for line in out.lines] == [
        ("write failed", "PodGroup", 500, None),
        ("write failed", "Event", 500, None),
        ("write failed", "PodGroup", 403, None),
        ("write failed", "PodGroup", 500, None),
        ("write failed", "PodGroup", 500, 999),
    ]
    assert "later" in out.lines[-1]["err"]


def test_every_failed_write_is_in_the_detailed_log() -> None:
    with logging_to(4) as out:
        observer = LoggingObserver(Metrics(), lambda _: None, lambda: 0.0)
        for number in range(3):
            observer.write_failed("PodGroup", 500, f'podgroups "g-{number}"')
    assert [(line["level"], line["err"]) for line in out.lines] == [
        ("warning", 'podgroups "g-0"'),
        ("debug", 'podgroups "g-1"'),
        ("debug", 'podgroups "g-2"'),
    ]
