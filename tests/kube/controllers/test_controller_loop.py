"""The loop of a controller shares its thread with the watches and the election."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from capcard_sched.controllers.objects import JsonObject, Key
from capcard_sched.controllers.view import Failure, Result, View
from capcard_sched.kube.controllers.controller_loop import ControllerLoop
from capcard_sched.kube.controllers.object_cache import ObjectCache
from capcard_sched.kube.controllers.write_executor import WriteExecutor
from capcard_sched.kube.writes.leadership_gate import LeadershipGate

OBJECTS = 500


class NothingToDo:
    """A controller whose objects are in line."""

    watches = frozenset({"Job"})
    replays = watches

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        assert new is not None
        yield Key(kind, "ns", new["metadata"]["name"])

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        return Result()

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        return Result()


async def test_passes_without_writes_let_others_run_in_between() -> None:
    cache = ObjectCache(time.monotonic, lambda *_: None)
    nothing: Any = None
    gate = LeadershipGate(lambda: 60.0)
    executor = WriteExecutor(nothing, gate, cache, emit=nothing, count=nothing, clock=time.time)
    loop = ControllerLoop(
        "test",
        NothingToDo(),
        cache,
        executor,
        term=gate.term,
        workers=3,
        max_requeue=15,
        lazy_seconds=1.0,
        clock=time.time,
        steady=time.monotonic,
        report=lambda *_: None,
    )
    for number in range(OBJECTS):
        loop.observe("Job", None, {"metadata": {"name": str(number)}})
    running = asyncio.create_task(loop.run())
    turns = 0
    while len(loop):
        turns += 1
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert turns >= OBJECTS / 3
