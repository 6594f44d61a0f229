"""The oracle of the soak over the history of a test, and the comparison of caches with the API server."""

from __future__ import annotations

import signal
from typing import Final

from tests.clock import until
from tests.e2e.daemons import Daemon
from tests.e2e.history import History
from tests.soak.oracle import Oracle

_COMPARED: Final = "cache compared with the API server"


class ViolationError(AssertionError):
    """Violations."""


async def prove(history: History, *daemons: Daemon, gangs: bool = True) -> Oracle:
    """Check all properties. `gangs`: nothing is to be waited for any more.

    Raises ViolationError with a line for each.
    """
    await history.caught_up()
    oracle = Oracle()
    for moment in history.moments:
        oracle.apply(moment)
    oracle.finish(history.control_plane.audit(), {}, {bind.namespace for bind in oracle.binds}, gangs=gangs)
    found = [f"revision {one.revision}: {one.text}" for one in oracle.violations]
    for daemon in daemons:
        found += await differences(daemon)
    if found:
        raise ViolationError("\n".join(found))
    return oracle


async def differences(daemon: Daemon) -> list[str]:
    """Differences between a daemon's cache and the API server, when its watches are current and its writes are done.

    It counts statuses, too, which are written with a delay.
    """
    for _ in range(2):  # gauges are set every second: a watch that was cut a moment ago is not known to be yet
        await _at_rest(daemon)
        compared, before = len(daemon.lines(_COMPARED)), len(daemon.lines("cache differs"))
        daemon.signal(signal.SIGUSR2)
        answer = await daemon.logged(_COMPARED, times=compared + 1, within=60)
        difference_lines = [str(line["difference"]) for line in daemon.lines("cache differs")[before:]]
        assert len(difference_lines) == min(100, answer["differences"])
        if not difference_lines:
            break
    return [f"{daemon.log_path.stem}: cache differs: {line}" for line in difference_lines]


async def _at_rest(daemon: Daemon, *, within: float = 60.0) -> None:
    """Wait until a daemon watches every kind and has nothing left to write but events."""

    async def rests() -> bool:
        waiting = [await daemon.metric("volcano_api_queue_depth", lane=lane) for lane in ("bind", "evict", "status")]
        return not (await daemon.metric("volcano_cache_age_seconds") or any(waiting))

    await until(rests, f"open watches of {daemon.log_path.stem} and the end of its writes", within=within)
