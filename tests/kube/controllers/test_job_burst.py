"""The loop of a controller, and its writes per pod while many Jobs start on an API server that is the bottleneck.

Counts in virtual time: the store of the simulator takes so many writes per second, from the controllers, from a
scheduler and from kubelets, and delivers changes to the cache as a watch does.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.objects import JOB, POD, POD_GROUP, JsonObject, Key, meta, status
from capcard_sched.controllers.view import Controller, Create, Failure, Result, View
from capcard_sched.kube.controllers.controller_loop import ControllerLoop
from capcard_sched.kube.controllers.object_cache import ObjectCache
from capcard_sched.kube.controllers.records import BUILT_IN
from capcard_sched.kube.controllers.write_executor import WriteExecutor
from capcard_sched.kube.errors import ApiError, RequestError
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.writes.api_writer import ApiWriter
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.simulation.clock import SECOND, VirtualClock
from capcard_sched.simulation.store import Change, Store
from tests.controlplane import manifests

GANG = 8
#: Seconds until a watch delivers a change, between two sessions, and until a bound pod runs.
_DELIVERY, _PERIOD, _START = 0.05, 1.0, 2.0
_KINDS = {kind.resource: name for name, kind in KIND_BY_NAME.items()}


class VirtualSelector(selectors.DefaultSelector):
    """Waits in no time: the clock of the loop moves instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when nothing is ready."""

    def __init__(self) -> None:
        self.selector = VirtualSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


class SlowServer:
    """The store behind `rate` writes per second, first come, first served."""

    def __init__(self, rate: float, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = VirtualClock()
        self.store = Store(self.clock)
        self.cache = ObjectCache(loop.time, self._changed)
        self.jobs: ControllerLoop | None = None
        self.writes: Counter[str] = Counter()
        self._seconds = 1 / rate
        self._free = 0.0
        self._deliveries: deque[Change] = deque()
        self.starts: set[asyncio.Task[None]] = set()
        self.store.observe(self._observe)

    async def turn(self) -> None:
        """Wait until the server has done one more write."""
        self._free = max(self._free, self.loop.time()) + self._seconds
        await asyncio.sleep(self._free - self.loop.time())
        self.clock.now = round(self.loop.time() * SECOND)

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> bytes:
        """A write of the controllers."""
        await self.turn()
        parts = path.partition("/namespaces/")[2].split("/")
        namespace, kind = parts[0], _KINDS[parts[1]]
        self.writes[f"{method} {'/'.join((parts[1], *parts[3:]))}"] += 1
        content = json.loads(body or b"{}")
        if method == "POST":
            return json.dumps(self.store.create(kind, content)).encode()
        content.get("metadata", {}).pop("resourceVersion", None)
        if method == "PATCH":
            return json.dumps(self.store.patch(kind, namespace, parts[2], content)).encode()
        self.store.delete(kind, namespace, parts[2])
        return b"{}"

    def _observe(self, change: Change) -> None:
        self._deliveries.append(change)
        self.loop.call_later(_DELIVERY, self._deliver)

    def _deliver(self) -> None:
        change = self._deliveries.popleft()
        if change.new is None:
            self.cache.apply(ObjectGone(change.kind, *change.key, meta(change.object)["uid"]))
            return
        decoded = BUILT_IN.decode_change(change.kind, json.dumps(change.new).encode())
        assert decoded is not None
        self.cache.apply(decoded)

    def _changed(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> None:
        if self.jobs is not None:
            self.jobs.observe(kind, old, new)

    def found(self, kind: str) -> list[JsonObject]:
        return list(self.store.list(kind))


def loop_of(
    controller: Controller,
    client: Any,
    cache: ObjectCache,
    clock: Callable[[], float],
    problems: list[str],
    workers: int,
) -> ControllerLoop:
    """The loop of a controller that leads."""
    writer = ApiWriter(client, lambda _: None, Observer(), time_left=lambda: 60.0, scheduler_name="a", clock=clock)
    executor = WriteExecutor(writer, cache, count=lambda _: None, clock=clock)
    return ControllerLoop(
        "a-controller",
        controller,
        cache,
        executor,
        term=executor.gate.term,
        workers=workers,
        max_requeue=15,
        clock=clock,
        steady=clock,
        report=lambda _, key, text: problems.append(f"{key}: {text}"),
    )


async def schedule(server: SlowServer) -> None:
    """Admit PodGroups and bind whole gangs, a session per second, 32 writes at a time."""
    bound: set[str] = set()
    while True:
        await asyncio.sleep(_PERIOD)
        patches = [
            (POD_GROUP, meta(group)["name"], {"status": {"phase": "Inqueue"}})
            for group in server.found(POD_GROUP)
            if not status(group).get("phase")
        ]
        gangs: dict[str, list[str]] = {}
        for pod in server.found(POD):
            if meta(pod)["name"] not in bound:
                gangs.setdefault(meta(pod)["ownerReferences"][0]["uid"], []).append(meta(pod)["name"])
        for names in gangs.values():
            if len(names) == GANG:
                bound.update(names)
                patches += [(POD, name, {"spec": {"nodeName": "n"}}) for name in names]
        for first in range(0, len(patches), 32):
            await asyncio.gather(*(_patch(server, *patch) for patch in patches[first : first + 32]))


async def _patch(server: SlowServer, kind: str, name: str, patch: Mapping[str, Any]) -> None:
    await server.turn()
    server.store.patch(kind, "ns", name, dict(patch))
    if "spec" in patch:
        server.starts.add(asyncio.create_task(_start(server, name)))


async def _start(server: SlowServer, pod: str) -> None:
    await asyncio.sleep(_START)
    await _patch(server, POD, pod, {"status": {"phase": "Running"}})


async def burst(server: SlowServer, jobs: int, workers: int) -> None:
    """Create the Jobs, and return when every pod runs."""
    problems: list[str] = []
    controller = JobController("capcard-sched", lambda: pytest.fail("no Job uses ssh"))
    server.jobs = loop_of(controller, server, server.cache, server.loop.time, problems, workers)
    endless: list[Coroutine[Any, Any, None]] = [server.jobs.run(), schedule(server)]
    tasks = [asyncio.create_task(each) for each in endless]
    for number in range(jobs):
        await server.turn()
        made = manifests.job(f"train-{number:04}", GANG, minAvailable=GANG)
        server.store.create(JOB, {**made, "metadata": {**made["metadata"], "namespace": "ns"}})
    while sum(status(pod).get("phase") == "Running" for pod in server.found(POD)) < jobs * GANG:
        assert server.loop.time() < 3600, "the pods do not run"
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(_PERIOD)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not problems


@pytest.mark.campaign
@pytest.mark.parametrize(("jobs", "rate"), [(200, 15), (150, 100), (150, 1000)])
def test_a_burst_of_jobs_takes_at_most_1_3_writes_per_pod(jobs: int, rate: float) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        server = SlowServer(rate, loop)
        runner.run(burst(server, jobs, workers=8))
    pods = jobs * GANG
    assert server.writes["POST pods"] == pods
    assert server.writes["POST podgroups"] == jobs
    assert server.writes.total() / pods <= 1.3, (server.writes, loop.time())


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
    """The loop of a controller shares its thread with the watches and the election."""
    cache = ObjectCache(time.monotonic, lambda *_: None)
    loop = loop_of(NothingToDo(), None, cache, time.monotonic, [], workers=3)
    for number in range(500):
        loop.observe("Job", None, {"metadata": {"name": str(number)}})
    running = asyncio.create_task(loop.run())
    turns = 0
    while len(loop):
        turns += 1
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert turns >= 500 / 3


class OneCreation(NothingToDo):
    """A controller that creates an object, and its reports of failed passes."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        if view.get(POD_GROUP, "ns", key.name) is not None:
            return Result()
        return Result(
            [Create({"apiVersion": "v1", "kind": POD_GROUP, "metadata": {"name": key.name, "namespace": "ns"}})]
        )

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        self.last.append(failure.last)
        return Result()


def test_a_pass_is_repeated_later_each_time_and_not_before_the_server_allows_it() -> None:
    responses: list[RequestError | None] = [
        *(ApiError(403, "Forbidden", "no") for _ in range(17)),
        ApiError(429, "TooManyRequests", "later", retry_after=400.0),
        None,
    ]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        times: list[float] = []

        class Server:
            async def request(self, method: str, path: str, **_: Any) -> bytes:
                times.append(loop.time())
                error = responses.pop(0)
                if error is not None:
                    raise error
                return json.dumps({"metadata": {"name": "j", "namespace": "ns", "uid": "u"}}).encode()

        async def run() -> None:
            cache, controller = ObjectCache(loop.time, lambda *_: None), OneCreation()
            of_creation = loop_of(controller, Server(), cache, loop.time, [], workers=1)
            of_creation.observe("Job", None, {"metadata": {"name": "j"}})
            running = asyncio.create_task(of_creation.run())
            while responses or len(of_creation):
                assert loop.time() < 3600
                await asyncio.sleep(1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert controller.last == [*[False] * 15, True, True, False], "the limit of retries is 15"

        runner.run(run())
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] < 0.2
    assert 100 < pauses[16] < 181
    assert pauses[17] >= 400
