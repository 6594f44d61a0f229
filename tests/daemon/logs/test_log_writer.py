"""Logging does not block: neither its callers nor the end of the process, whatever happens to the stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog

from capcard_sched.daemon.observability.log_writer import LogWriter
from capcard_sched.daemon.observability.logs import Logs
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod, queue
from tests.e2e.daemons import Daemon

pytestmark = pytest.mark.processes


class Blocked(StringIO):
    """A stream whose writes wait for `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        assert self.released.wait(30)
        return super().write(text)


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe that takes no further byte."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.close(writing)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, __file__, 1, text, None, None)


@pytest.mark.parametrize(
    "limits, kept",
    [({"lines": 5, "characters": 1000}, 5), ({"lines": 100, "characters": 9}, 3)],
    ids=["by lines", "by size"],
)
def test_lines_that_do_not_fit_are_dropped_counted_and_reported(limits: dict[str, int], kept: int) -> None:
    stream = Blocked()
    writer = LogWriter(stream, **limits)
    writer.emit(record("00"))
    time.sleep(0.2)  # the thread has taken it and is blocked
    for index in range(20):
        writer.emit(record(f"{index:02}"))
    assert writer.dropped == 20 - kept
    stream.released.set()
    assert writer.drain(5)
    writer.stop(1)
    assert stream.getvalue().splitlines() == ["00", *(f"{index:02}" for index in range(kept)), "log lines dropped"]


def test_the_report_about_dropped_lines_is_a_line_like_others() -> None:
    stream = Blocked()
    with Logs(0, "json", stream) as logs:
        log = structlog.get_logger("capcard_sched.x")
        log.info("first")
        time.sleep(0.2)
        for _ in range(30):
            log.info("long", text="x" * 200_000)
        dropped = logs.dropped
        assert dropped >= 10
        stream.released.set()
        assert logs.drain()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["count"]) for line in lines if line["msg"] == "log lines dropped"] == [
        ("warning", dropped)
    ]


def test_a_closed_pipe_drops_lines_and_ends_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream)
        os.close(reading)
        writer.emit(record("lost"))
        assert writer.drain(5)
        assert writer.dropped == 1
        writer.emit(record("lost, too"))
        writer.stop(1)
        assert writer.dropped == 2


def test_a_process_ends_at_once_although_its_stderr_is_blocked() -> None:
    code = """
import logging
from capcard_sched.daemon.observability.logs import Logs
with Logs(0, "json"):
    for index in range(50000):
        logging.getLogger("capcard_sched.x").warning("line %d", index)
"""
    with full_pipe() as (_, writing):
        process = subprocess.Popen([sys.executable, "-c", code], stderr=writing)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.campaign
@pytest.mark.controlplane
async def test_a_daemon_with_a_blocked_stderr_binds_serves_probes_and_ends_within_five_seconds(
    cluster: Cluster, tmp_path: Path
) -> None:
    daemon = Daemon(cluster.control_plane.kubeconfig_for("scheduler-a"), tmp_path, "-v=5")
    with full_pipe() as (_, writing):
        daemon._process = await asyncio.to_thread(subprocess.Popen, daemon.command, stderr=writing)
        try:
            await cluster.create_all([node("n1"), queue("q"), pod("p")])
            await cluster.wait_until(cluster.bound, "the pod to be bound", within=40)
            for page in ("/healthz", "/readyz", "/metrics"):
                status, text = await daemon.get(page)
                assert status == 200
            assert "volcano_log_lines_dropped_total 0.0\n" in text
            assert await daemon.stop(within=5.5) == 0
        finally:
            await daemon.kill()
