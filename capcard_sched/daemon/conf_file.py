"""The scheduler-conf file and its reloads.

| The file | at startup | later |
|---|---|---|
| is valid | is used | is used from the next session on |
| equals the scheduler-conf in use | | changes nothing |
| is missing, empty or invalid | the built-in one is used; all errors are logged | the one in use stays; the same |

With `strict` startup fails instead of using the built-in one. No part of an invalid file is ever used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

import structlog

from capcard_sched.framework.api.problems import ConfProblem
from capcard_sched.framework.conf.scheduler_conf import Conf, ConfError, ConfResult, default_conf, parse_conf
from capcard_sched.model.yaml_reader import MAX_BYTES, YamlError, read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from capcard_sched.framework.conf.registry import Registry

#: Seconds: debounce of changes, and its maximum, so that a file is read once after it is written or replaced.
_DEBOUNCE_SECONDS: Final = 0.2
_MAX_DEBOUNCE_SECONDS: Final = 2.0
#: Seconds: poll interval, for file systems and links without notifications.
_POLL_SECONDS: Final = 10.0


def _nothing(*_: object) -> None:
    """The default callback."""


class ConfFile:
    """The scheduler-conf in use and its file. Call `load` once, then `run`, in the event loop.

    Callbacks run in the loop: `on_accepted(conf, digest)` for a new scheduler-conf, `on_rejected(problems)` once per
    invalid content, `on_unchanged()` when a rewritten file equals the scheduler-conf in use. Every outcome is logged.
    """

    def __init__(
        self,
        path: Path | None,
        registry: Registry,
        *,
        strict: bool = False,
        on_accepted: Callable[[Conf, str], None] = _nothing,
        on_rejected: Callable[[tuple[ConfProblem, ...]], None] = _nothing,
        on_unchanged: Callable[[], None] = _nothing,
        poll_seconds: float = _POLL_SECONDS,
        debounce_seconds: float = _DEBOUNCE_SECONDS,
    ) -> None:
        """Without a path the built-in scheduler-conf is used."""
        self._path = path
        self._registry = registry
        self._strict = strict
        self._on_accepted = on_accepted
        self._on_rejected = on_rejected
        self._on_unchanged = on_unchanged
        self._poll_seconds = poll_seconds
        self._debounce_seconds = debounce_seconds
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._conf: Conf | None = None
        #: The content last read, or the error.
        self._seen: bytes | str = ""
        #: Problems of the file as last read: errors if it is rejected, else warnings.
        self.problems: tuple[ConfProblem, ...] = ()

    @property
    def conf(self) -> Conf:
        assert self._conf is not None, "load() must be called first"
        return self._conf

    @property
    def digest(self) -> str:
        """Hash of the scheduler-conf in use, 16 hexadecimal digits."""
        return self.conf.hash

    @property
    def rejected(self) -> bool:
        """Whether the file as last read is rejected."""
        return any(problem.severity == "error" for problem in self.problems)

    def load(self) -> Conf:
        """The scheduler-conf at startup; calls one callback with the outcome.

        Raises ConfError if the built-in one is invalid or, with `strict`, if the file is invalid.
        """
        if self._path is None:
            self._conf = default_conf(self._registry)
            self._log.info(
                "scheduler-conf loaded", file=None, hash=self.digest, note="built-in: --scheduler-conf is not set"
            )
            self._on_accepted(self._conf, self.digest)
            return self._conf
        self._seen = _read(self._path)
        result = self._parse(self._seen)
        if result.conf is None and self._strict:
            raise ConfError(result.problems)
        self._conf = result.conf if result.conf is not None else default_conf(self._registry)
        self._finish(result, fallback="using the built-in scheduler-conf")
        return self._conf

    async def run(self) -> None:
        """Watch the file and reload it on change, until cancelled. Returns immediately without a file."""
        if self._path is None:
            return
        while True:
            try:
                await self._watch(self._path.parent)
            except (OSError, RuntimeError) as error:
                # The folder is missing, or the limit of inotify watches is reached: poll instead.
                self._log.debug("cannot watch the folder of the scheduler-conf, polling", err=str(error))
                await self.check()
                await asyncio.sleep(self._poll_seconds)

    async def _watch(self, folder: Path) -> None:
        """Check at every change in the folder and at the poll interval, until the folder is replaced."""
        from watchfiles import awatch  # not before: a start needs no watch, and the package imports anyio

        before = _identity(folder)
        changes = awatch(
            folder,
            watch_filter=None,
            debounce=int(_MAX_DEBOUNCE_SECONDS * 1000),
            step=max(1, int(self._debounce_seconds * 1000)),
            rust_timeout=max(1, int(self._poll_seconds * 1000)),
            yield_on_timeout=True,
            recursive=False,
        )
        async with contextlib.aclosing(changes):
            await self.check()  # changes before the watch began
            async for _ in changes:
                await self.check()
                if _identity(folder) != before:
                    return

    async def check(self) -> None:
        """Read the file and use its content if it is new."""
        assert self._path is not None
        content = await asyncio.to_thread(_read, self._path)
        if content == self._seen:
            return
        self._seen = content
        result = await asyncio.to_thread(self._parse, content)
        if result.conf is None:
            self._finish(result, fallback="keeping the scheduler-conf in use")
        elif result.conf.hash == self.digest:
            self.problems = result.problems
            self._log.info("scheduler-conf unchanged", file=str(self._path), hash=self.digest)
            self._on_unchanged()
        else:
            self._conf = result.conf
            self._finish(result, fallback="")

    def _parse(self, content: bytes | str) -> ConfResult:
        """The parsed content; unreadable and empty files are errors."""
        if isinstance(content, str):
            return ConfResult(None, (ConfProblem("error", "", content),))
        if _is_blank(content):
            return ConfResult(None, (ConfProblem("error", "", "the file is empty"),))
        return parse_conf(content, registry=self._registry)

    def _finish(self, result: ConfResult, fallback: str) -> None:
        self.problems = result.problems
        for problem in result.problems:
            log = self._log.error if problem.severity == "error" else self._log.warning
            log(f"scheduler-conf {problem.severity}", file=str(self._path), problem=problem.render())
        if result.conf is None:
            self._log.error("scheduler-conf rejected", file=str(self._path), hash=self.digest, note=fallback)
            self._on_rejected(result.problems)
        else:
            self._log.info(
                "scheduler-conf loaded", file=str(self._path), hash=self.digest, actions=", ".join(self.conf.actions)
            )
            self._on_accepted(self.conf, self.digest)


def _read(path: Path) -> bytes | str:
    """The content of a file, or the error."""
    try:
        # Non-blocking: opening a pipe would otherwise block until it has a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "cannot be read: not a regular file"
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)  # `read_document` rejects a longer one
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    finally:
        os.close(descriptor)


def _is_blank(content: bytes) -> bool:
    try:
        value = read_document(content).value
    except YamlError:
        return False  # reported by `parse_conf`
    return value is None or value == {} or (isinstance(value, str) and not value.strip())


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
