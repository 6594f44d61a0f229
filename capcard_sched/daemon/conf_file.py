"""The scheduler-conf as a file that may change at any time (core reference §1.4; W-29, W-30, W-31).

| The file | at start | later |
|---|---|---|
| is good | it is used | it is used from the next session on |
| says what is in use already | | nothing happens |
| is missing, empty, has errors | the built-in one is used; everything wrong is told | the one in use stays; the same |

With `strict` the start fails instead of using the built-in one. No part of a file with errors ever counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

import structlog
from watchfiles import awatch

from capcard_sched.framework.api.problems import ConfProblem
from capcard_sched.framework.conf.scheduler_conf import Conf, ConfError, ConfResult, default_conf, parse_conf
from capcard_sched.framework.conf.yaml_document import MAX_BYTES, DocumentError, read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from capcard_sched.framework.conf.registry import Registry

#: Changes are gathered until nothing has happened for so long, at most for the second: a file that is being written,
#: or replaced by removing it first, is read once, when it is done.
_QUIET_MILLISECONDS: Final = 200
_GATHER_MILLISECONDS: Final = 2_000
#: The file is also looked at so often, for file systems and links that give no notice.
_POLL_SECONDS: Final = 10.0


def _nothing(*_: object) -> None:
    """The callback of somebody who does not want to know."""


class ConfFile:
    """The scheduler-conf in use, and the file it comes from. `load` once, then `run`; both for the event loop.

    The callbacks are called in the loop: `on_accepted(conf, digest)` with another conf than the one in use,
    `on_rejected(problems)` once per content that cannot be used, `on_unchanged()` when the file was written again and
    says what is in use. Everything is logged here.
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
    ) -> None:
        """Without a path the built-in scheduler-conf is used for good."""
        self._path = path
        self._registry = registry
        self._strict = strict
        self._on_accepted = on_accepted
        self._on_rejected = on_rejected
        self._on_unchanged = on_unchanged
        self._poll_seconds = poll_seconds
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._conf: Conf | None = None
        #: What was last read, or why it could not be.
        self._seen: bytes | str = ""
        #: Everything that is wrong with the file as last read: errors when it was rejected, else warnings.
        self.problems: tuple[ConfProblem, ...] = ()

    @property
    def conf(self) -> Conf:
        """The scheduler-conf in use."""
        assert self._conf is not None, "load() comes first"
        return self._conf

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over what it says."""
        return self.conf.hash

    @property
    def rejected(self) -> bool:
        """Whether the file as last read is not what is in use."""
        return any(problem.severity == "error" for problem in self.problems)

    def load(self) -> Conf:
        """The scheduler-conf to start with; calls back once, with what came of the file.

        Raises ConfError when the built-in one cannot be used, or, if strict, when the file cannot be used.
        """
        if self._path is None:
            self._conf = default_conf(self._registry)
            self._log.info(
                "scheduler-conf", file=None, hash=self.digest, note="the built-in one: --scheduler-conf is not given"
            )
            self._on_accepted(self._conf, self.digest)
            return self._conf
        self._seen = _read(self._path)
        result = self._judge(self._seen)
        if result.conf is None and self._strict:
            raise ConfError(result.problems)
        self._conf = result.conf if result.conf is not None else default_conf(self._registry)
        self._settle(result, fallback="the built-in one is used")
        return self._conf

    async def run(self) -> None:
        """Watch the file and take over what changes, until cancelled. Returns at once when there is no file."""
        if self._path is None:
            return
        while True:
            try:
                await self._watch(self._path.parent)
            except (OSError, RuntimeError) as error:
                # The folder is gone, or there are no more watches to be had. Looking again and again does as well.
                self._log.debug("the folder of the scheduler-conf cannot be watched", error=str(error))
                await self.check()
                await asyncio.sleep(self._poll_seconds)

    async def _watch(self, folder: Path) -> None:
        """Check at every change in the folder, and every now and then; until the folder is another one."""
        before = _identity(folder)
        changes = awatch(
            folder,
            watch_filter=None,
            debounce=_GATHER_MILLISECONDS,
            step=_QUIET_MILLISECONDS,
            rust_timeout=max(1, int(self._poll_seconds * 1000)),
            yield_on_timeout=True,
            recursive=False,
        )
        async with contextlib.aclosing(changes):
            await self.check()  # what changed before the watch began
            async for _ in changes:
                await self.check()
                if _identity(folder) != before:
                    return

    async def check(self) -> None:
        """Read the file, and take over what it says if that is new."""
        assert self._path is not None
        content = await asyncio.to_thread(_read, self._path)
        if content == self._seen:
            return
        self._seen = content
        result = await asyncio.to_thread(self._judge, content)
        if result.conf is None:
            self._settle(result, fallback="the one in use stays")
        elif result.conf.hash == self.digest:
            self.problems = result.problems
            self._log.info("scheduler-conf unchanged", file=str(self._path), hash=self.digest)
            self._on_unchanged()
        else:
            self._conf = result.conf
            self._settle(result, fallback="")

    def _judge(self, content: bytes | str) -> ConfResult:
        """What a content comes to; one that says nothing is no scheduler-conf here."""
        if isinstance(content, str):
            return ConfResult(None, (ConfProblem("error", "", content),))
        if _is_blank(content):
            return ConfResult(None, (ConfProblem("error", "", "the file is empty"),))
        return parse_conf(content, registry=self._registry)

    def _settle(self, result: ConfResult, fallback: str) -> None:
        self.problems = result.problems
        for problem in result.problems:
            tell = self._log.error if problem.severity == "error" else self._log.warning
            tell("scheduler-conf", file=str(self._path), problem=problem.render())
        if result.conf is None:
            self._log.error("scheduler-conf rejected", file=str(self._path), hash=self.digest, note=fallback)
            self._on_rejected(result.problems)
        else:
            self._log.info(
                "scheduler-conf", file=str(self._path), hash=self.digest, actions=", ".join(self.conf.actions)
            )
            self._on_accepted(self.conf, self.digest)


def _read(path: Path) -> bytes | str:
    """The content of a file, or why there is none."""
    try:
        # Opened without waiting: a pipe would keep us until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "cannot be read: not a regular file"
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)  # the reader of documents refuses what is longer
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    finally:
        os.close(descriptor)


def _is_blank(content: bytes) -> bool:
    try:
        value = read_document(content).value
    except DocumentError:
        return False  # that has words of its own
    return value is None or value == {} or (isinstance(value, str) and not value.strip())


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
