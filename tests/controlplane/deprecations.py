"""Deprecated APIs that clients of a test use: the API server reports them in Warning headers, and the test fails.

The clients are those of the tests (`tracing`), the product's in the process of the test (`Observer.warned`, patched by
tests/conftest.py), and programs, which write warnings to standard error (`scan`) or to a log (`watch`).
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import aiohttp

#: A line of kubectl, one of the product (plain or in JSON), and one of Helm, by klog.
_WRITTEN: Final = re.compile(
    r"(?:^Warning: |API server warning: |^W\d{4} .*warnings\.go:\d+\] )([^\"\n]*)", re.MULTILINE
)
#: Client and text, in the order of their appearance.
_found: Final[dict[str, None]] = {}
#: Log to the number of its bytes that were read.
_logs: Final[dict[Path, int]] = {}


class DeprecatedApiError(AssertionError):
    """A client of the test used a deprecated API."""


def record(client: str, text: str) -> None:
    """Records a warning of the API server if it is about a deprecation; others do not matter here."""
    if "deprecated" in text:
        _found[f"{client}: {text}"] = None


def scan(client: str, output: str) -> None:
    """Records the warnings in the output of a program."""
    for text in _WRITTEN.findall(output):
        record(client, text)


def watch(log: Path) -> None:
    """Has `take` read what is appended to a log from now on."""
    _logs.setdefault(log, log.stat().st_size if log.exists() else 0)


def tracing() -> aiohttp.TraceConfig:
    """For a session of aiohttp: records the warnings of its responses."""

    async def ended(_session: aiohttp.ClientSession, _: SimpleNamespace, end: aiohttp.TraceRequestEndParams) -> None:
        for value in end.response.headers.getall("Warning", ()):
            record(f"{end.method} {end.url.path}", value)

    config = aiohttp.TraceConfig()
    config.on_request_end.append(ended)
    return config


def take() -> list[str]:
    """What was recorded since the last call."""
    for log, read in list(_logs.items()):
        if not log.exists():
            del _logs[log]
        elif log.stat().st_size > read:
            with log.open("rb") as file:
                file.seek(read)
                appended = file.read()
            whole = appended.rfind(b"\n") + 1
            _logs[log] = read + whole
            scan(log.name, appended[:whole].decode("utf-8", "replace"))
    found = list(_found)
    _found.clear()
    return found
