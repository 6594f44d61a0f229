"""Reloads of the scheduler-conf file, on real files."""
# ruff: noqa: ASYNC240 -- the loop has nothing better to do

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from capcard_sched.daemon.conf_file import ConfFile
from capcard_sched.framework.api.problems import ConfProblem
from capcard_sched.framework.conf.scheduler_conf import Conf, ConfError, default_conf
from capcard_sched.testing import registry

GOOD = 'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}, {name: capacity-card}]}]\n'
OTHER = 'actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]\n'
BAD = 'actions: 3\ntiers: [{plugins: [{name: gang, enableJobOrder: "yes"}]}]\n'
BROKEN = 'actions: "enqueue\n'

#: Seconds: far longer than the debounce of a change.
PATIENCE = 20.0
#: Seconds: debounce of the tests.
DEBOUNCE = 0.02
#: Seconds: longer than a change takes to be noticed and read.
QUIET = 0.4


class Callbacks:
    """Records the calls of the callbacks, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, object]] = []
        self._called = asyncio.Event()

    def accepted(self, conf: Conf, digest: str) -> None:
        assert conf.hash == digest
        self._add("accepted", conf.actions)

    def rejected(self, problems: tuple[ConfProblem, ...]) -> None:
        self._add("rejected", tuple(problem.message for problem in problems if problem.severity == "error"))

    def unchanged(self) -> None:
        self._add("unchanged", ())

    def _add(self, word: str, detail: object) -> None:
        self.log.append((word, detail))
        self._called.set()

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.log]

    async def next(self) -> tuple[str, object]:
        async with asyncio.timeout(PATIENCE):
            await self._called.wait()
        self._called.clear()
        return self.log[-1]


def conf_file(path: Path | None, callbacks: Callbacks, **settings: Any) -> ConfFile:
    """A file that is looked at every minute, and read soon after a notice."""
    settings = {"strict": False, "poll_seconds": 60.0, "debounce_seconds": DEBOUNCE, **settings}
    return ConfFile(
        path,
        registry(),
        on_accepted=callbacks.accepted,
        on_rejected=callbacks.rejected,
        on_unchanged=callbacks.unchanged,
        **settings,
    )


@asynccontextmanager
async def watching(path: Path, callbacks: Callbacks, **settings: Any) -> AsyncIterator[ConfFile]:
    """A file that is loaded and watched; by notice only, unless `poll_seconds` is short."""
    file = conf_file(path, callbacks, **settings)
    file.load()
    callbacks.log.clear()
    callbacks._called.clear()
    task = asyncio.create_task(file.run())
    await asyncio.sleep(0.3)  # the watch is set
    try:
        yield file
        assert not task.done(), "the watch must never end by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- the first load ---------------------------------------------------------------------------------------------------

Made = str | Callable[[Path], None] | None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file."""
    put(tmp_path / "scheduler.conf", GOOD)
    return tmp_path / "scheduler.conf"


@pytest.fixture
def callbacks() -> Callbacks:
    return Callbacks()


def put(path: Path, made: Made) -> None:
    if isinstance(made, str):
        path.write_text(made)
    elif made is not None:
        made(path)


FIRST: dict[str, tuple[Made, str]] = {
    "empty": ("", "('the file is empty',)"),
    "blank": (" \n\n", "('the file is empty',)"),
    "only comments": ("# nothing\n", "('the file is empty',)"),
    "an empty map": ("{}\n", "('the file is empty',)"),
    "no file": (None, "('cannot be read: No such file or directory',)"),
    "a pipe": (os.mkfifo, "('cannot be read: "),
    "a folder": (Path.mkdir, "('cannot be read: "),
    "a file without end": ("#" * (1 << 21), f"('longer than {1 << 20} bytes',)"),
    "no YAML": (BROKEN, "("),
    "two errors": (BAD, "('expected a string, got the number 3', 'expected true or false, got the string \"yes\"')"),
}


@pytest.mark.parametrize("made, problems", FIRST.values(), ids=FIRST)
def test_the_first_load_of_an_invalid_file_reports_all_problems_and_uses_the_built_in_conf_unless_it_is_strict(
    made: Made, problems: str, tmp_path: Path, callbacks: Callbacks
) -> None:
    put(tmp_path / "x", made)
    with pytest.raises(ConfError, match=r"."):
        conf_file(tmp_path / "x", callbacks, strict=True).load()
    assert callbacks.words == []
    file = conf_file(tmp_path / "x", callbacks)
    conf = file.load()
    assert callbacks.words == ["rejected"]
    assert str(callbacks.log[0][1]).startswith(problems)
    assert (file.rejected, file.conf, file.digest) == (True, conf, conf.hash)
    assert conf.hash == default_conf(registry()).hash


@pytest.mark.parametrize("strict", [False, True])
def test_the_first_load_of_a_good_file_uses_it(path: Path, callbacks: Callbacks, strict: bool) -> None:
    file = conf_file(path, callbacks, strict=strict)
    assert file.load().actions == ("enqueue", "allocate")
    assert (callbacks.words, file.rejected) == (["accepted"], False)


def test_a_warning_does_not_reject_and_is_available(tmp_path: Path, callbacks: Callbacks) -> None:
    path = tmp_path / "scheduler.conf"
    path.write_text(GOOD + "colour: blue\n")
    file = conf_file(path, callbacks)
    file.load()
    assert callbacks.words == ["accepted"]
    assert [(problem.severity, problem.path) for problem in file.problems] == [("warning", "colour")]
    assert not file.rejected


def test_every_problem_and_the_conf_in_use_are_lines_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.conf"
    path.write_text(BAD)
    with capture_logs() as lines:
        conf = conf_file(path, Callbacks()).load()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "scheduler-conf error"),
        ("error", "scheduler-conf error"),
        ("error", "scheduler-conf rejected"),
    ]
    assert lines[0]["problem"].startswith("actions (line 1): expected a string, got the number 3; accepted: ")
    assert lines[1]["problem"].startswith("tiers[0].plugins[0].enableJobOrder (line 2): ")
    assert (lines[2]["hash"], lines[2]["note"]) == (conf.hash, "using the built-in scheduler-conf")
    assert {line["file"] for line in lines} == {str(path)}


async def test_without_a_file_the_built_in_one_is_used_for_good(callbacks: Callbacks) -> None:
    file = conf_file(None, callbacks)
    assert file.load().hash == default_conf(registry()).hash
    async with asyncio.timeout(1):
        await file.run()
    assert callbacks.words == ["accepted"]


# --- changes ----------------------------------------------------------------------------------------------------------


async def _write(path: Path, text: str) -> None:
    path.write_text(text)


async def _rename(path: Path, text: str) -> None:
    """Replace the file at once: a look at it by the clock finds it whole."""
    part = path.with_name(".part")
    part.write_text(text)
    part.rename(path)


async def _remove_and_write(path: Path, text: str) -> None:
    path.unlink()
    await asyncio.sleep(0.05)
    path.write_text(text)


async def _write_slowly(path: Path, text: str) -> None:
    with path.open("w") as file:
        for start in range(0, len(text), 20):
            file.write(text[start : start + 20])
            file.flush()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("change", [_write, _rename, _remove_and_write, _write_slowly])
async def test_a_change_is_loaded_once_however_the_file_is_written(
    change: Callable[[Path, str], Awaitable[None]], path: Path, callbacks: Callbacks
) -> None:
    async with watching(
        path, callbacks, debounce_seconds=10 * DEBOUNCE
    ) as file:  # longer than the pauses of the writer
        await change(path, OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))
        assert file.conf.actions == ("allocate",)
        await asyncio.sleep(QUIET)
        assert callbacks.words == ["accepted"]


class ConfigMap:
    """A folder as the kubelet fills it: files link through `..data` to a folder that is replaced by a rename."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.file = folder / "scheduler.conf"
        self._serial = 0
        self.put(text)
        self.file.symlink_to(Path("..data") / "scheduler.conf")

    def put(self, text: str) -> None:
        self._serial += 1
        fresh = self.folder / f"..2026_{self._serial}"
        fresh.mkdir(parents=True)
        (fresh / "scheduler.conf").write_text(text)
        link = self.folder / "..data_tmp"
        link.symlink_to(fresh.name)
        before = self.folder / "..data"
        old = before.resolve() if before.exists() else None
        link.rename(before)
        if old is not None:
            shutil.rmtree(old)


async def test_the_symlink_swap_of_a_config_map_is_taken_over_once(tmp_path: Path, callbacks: Callbacks) -> None:
    mounted = ConfigMap(tmp_path / "etc", GOOD)
    async with watching(mounted.file, callbacks) as file:
        for text, actions in ((OTHER, ("allocate",)), (GOOD, ("enqueue", "allocate"))):
            mounted.put(text)
            assert await callbacks.next() == ("accepted", actions)
        mounted.put(BAD)
        assert (await callbacks.next())[0] == "rejected"
        assert file.conf.actions == ("enqueue", "allocate")
        mounted.put(OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))
        await asyncio.sleep(QUIET)
        assert callbacks.words == ["accepted", "accepted", "rejected", "accepted"]


async def test_an_equivalent_file_is_unchanged(path: Path, callbacks: Callbacks) -> None:
    async with watching(path, callbacks) as file:
        before = file.conf
        path.write_text(f"# a comment\n{GOOD}")
        assert await callbacks.next() == ("unchanged", ())
        assert file.conf is before


async def test_the_same_bytes_and_other_files_of_the_folder_are_no_change_at_all(
    tmp_path: Path, path: Path, callbacks: Callbacks
) -> None:
    async with watching(path, callbacks):
        path.write_text(GOOD)
        path.touch()
        (tmp_path / "scheduler.conf.swp").write_text("x")
        await asyncio.sleep(QUIET)
        assert callbacks.words == []


REJECTED = {"errors": BAD, "no YAML": BROKEN, "empty": "", "no UTF-8": "\udcff"}


@pytest.mark.parametrize("text", REJECTED.values(), ids=REJECTED)
async def test_an_invalid_file_changes_nothing_and_is_reported_once_until_it_is_fixed(
    text: str, path: Path, callbacks: Callbacks
) -> None:
    async with watching(path, callbacks, poll_seconds=0.2) as file:
        good = file.conf
        path.write_text(text, errors="surrogateescape")
        word, problems = await callbacks.next()
        assert word == "rejected"
        assert problems
        assert (file.conf, file.rejected) == (good, True)
        await asyncio.sleep(QUIET)  # looked at again and again by now
        assert callbacks.words == ["rejected"]
        path.write_text(GOOD)
        assert await callbacks.next() == ("unchanged", ())
        assert (file.conf, file.rejected) == (good, False)


async def test_a_file_that_is_removed_changes_nothing_until_it_is_back(path: Path, callbacks: Callbacks) -> None:
    async with watching(path, callbacks) as file:
        path.unlink()
        assert await callbacks.next() == ("rejected", ("cannot be read: No such file or directory",))
        assert file.conf.actions == ("enqueue", "allocate")
        path.write_text(OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))


async def test_a_folder_that_vanishes_and_comes_back_is_watched_again(tmp_path: Path, callbacks: Callbacks) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "scheduler.conf"
    path.write_text(GOOD)
    async with watching(path, callbacks, poll_seconds=0.2) as file:
        shutil.rmtree(folder)
        assert (await callbacks.next())[0] == "rejected"
        assert file.conf.actions == ("enqueue", "allocate")
        folder.mkdir()
        await _rename(path, OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))
        await asyncio.sleep(QUIET)
        await _rename(path, GOOD)
        assert await callbacks.next() == ("accepted", ("enqueue", "allocate"))


async def test_a_folder_that_is_replaced_by_another_is_watched_in_its_place(
    tmp_path: Path, callbacks: Callbacks
) -> None:
    folder, fresh = tmp_path / "etc", tmp_path / "fresh"
    for place, text in ((folder, GOOD), (fresh, OTHER)):
        place.mkdir()
        (place / "scheduler.conf").write_text(text)
    async with watching(folder / "scheduler.conf", callbacks, poll_seconds=10.0):
        folder.rename(tmp_path / "old")
        fresh.rename(folder)
        assert await callbacks.next() == ("accepted", ("allocate",))
        began = asyncio.get_running_loop().time()
        for text, actions in ((GOOD, ("enqueue", "allocate")), (OTHER, ("allocate",)), (GOOD, ("enqueue", "allocate"))):
            await asyncio.sleep(QUIET)
            (folder / "scheduler.conf").write_text(text)
            assert await callbacks.next() == ("accepted", actions)
        # By notice: looking every now and then would have taken three times ten seconds.
        assert asyncio.get_running_loop().time() - began < 9


async def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path: Path, callbacks: Callbacks) -> None:
    path = tmp_path / "later" / "scheduler.conf"
    async with watching(path, callbacks, poll_seconds=0.2):
        path.parent.mkdir()
        await _rename(path, OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))


async def test_a_change_that_gives_no_notice_is_found_by_looking(tmp_path: Path, callbacks: Callbacks) -> None:
    real = tmp_path / "elsewhere" / "real.conf"
    real.parent.mkdir()
    real.write_text(GOOD)
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc" / "scheduler.conf"
    path.symlink_to(real)
    async with watching(path, callbacks, poll_seconds=0.2):
        await _rename(real, OTHER)
        assert await callbacks.next() == ("accepted", ("allocate",))


async def test_a_change_between_load_and_watch_is_not_missed(path: Path, callbacks: Callbacks) -> None:
    file = conf_file(path, callbacks)
    file.load()
    path.write_text(OTHER)
    callbacks._called.clear()
    task = asyncio.create_task(file.run())
    assert await callbacks.next() == ("accepted", ("allocate",))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_watch_ends_at_once_when_it_is_cancelled(path: Path) -> None:
    file = conf_file(path, Callbacks())
    file.load()
    task = asyncio.create_task(file.run())
    await asyncio.sleep(0.5)
    task.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await task
