"""The rate of bindings that an API server on this machine takes from `ApiWriter`, by connections, and the cost of each.

Run: `python -m tests.kube.write.bind_rate [PODS]`. Figures, no verdicts; `raw` sends the same from a bare loop.
"""
# ruff: noqa: T201 -- it prints

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import time
from collections.abc import Sequence

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.api_writer import ApiWriter
from capcard_sched.model.intents import Bind, EmitEvent, Intent, ObjectRef
from tests.controlplane.build import locate
from tests.controlplane.cluster import Cluster, install_crds
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import pod


class Count(Observer):
    """Counts what is bound and what is written."""

    def __init__(self) -> None:
        self.bindings = 0
        self.writes = 0
        self._wanted = 0
        self._all = asyncio.Event()

    async def reached(self, bindings: int) -> None:
        self._wanted = bindings
        await self._all.wait()

    def bound(self, bind: Bind, seconds: float) -> None:
        self.bindings += 1
        if self.bindings == self._wanted:
            self._all.set()

    def written(self, kind: str, seconds: float) -> None:
        self.writes += 1


async def by_effects(client: Client, binds: Sequence[Bind], connections: int, *, events: bool) -> tuple[float, float]:
    """Seconds and CPU seconds until all are bound; with events, those are written after."""
    count = Count()
    effects = ApiWriter(
        client, lambda deltas: None, count, time_left=lambda: math.inf, binders=connections, scheduler_name="x"
    )
    running = asyncio.create_task(effects.run())
    started, cpu = time.perf_counter(), time.process_time()
    effects.submit(list(binds))
    if events:
        effects.submit([_scheduled(bind) for bind in binds])
    await count.reached(len(binds))
    spent = time.perf_counter() - started, time.process_time() - cpu
    if events:
        print(f"    {count.writes} events were written beside them", end="")
        await effects.drain(60)
        more = time.perf_counter() - started - spent[0], time.process_time() - cpu - spent[1]
        print(f"; the rest took {more[0]:.1f} s, {more[1] / len(binds) * 1e6:.0f} us of CPU per event")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return spent


async def raw(client: Client, binds: Sequence[Bind], connections: int) -> tuple[float, float]:
    """The same requests without lanes or outcomes."""
    left = iter(binds)

    async def work() -> None:
        for bind in left:
            body = requests.binding(bind, None)
            await client.request(
                "POST", object_path("Pod", bind.namespace, bind.name, "binding"), body=body, throttled=False
            )

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(connections)))
    return time.perf_counter() - started, time.process_time() - cpu


def _scheduled(bind: Bind) -> Intent:
    about = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
    return EmitEvent(about, "Normal", "Scheduled", f"Successfully assigned {bind.namespace}/{bind.name} to {bind.node}")


async def measure(control_plane: ControlPlane, count: int) -> None:
    """Print a line per way and number of connections."""
    names = (f"p{index}" for index in itertools.count())
    connection = load_connection(str(control_plane.kubeconfig))
    async with Cluster(control_plane) as cluster:
        await install_crds(cluster)
        cluster.namespace = await cluster.make_namespace()
        rounds = [("raw", 32), *(("effects", each) for each in (8, 16, 32, 64)), ("raw", 32), ("effects+events", 32)]
        for way, connections in rounds:
            made = await cluster.create_all([pod(next(names)) for _ in range(count)])
            metas = [each["metadata"] for each in made]
            binds = [
                Bind(meta["namespace"], meta["name"], meta["uid"], f"n{index % 1000}", {})
                for index, meta in enumerate(metas)
            ]
            async with Client(connection, connections=connections + 16, qps=0) as client:
                if way == "raw":
                    seconds, cpu = await raw(client, binds, connections)
                else:
                    seconds, cpu = await by_effects(client, binds, connections, events="events" in way)
            rate, cost = count / seconds, cpu / count * 1e6
            print(f"{way:15} {connections:3} connections: {rate:6.0f} binds/s, {cost:4.0f} us of CPU each", flush=True)
            await cluster.wipe()
            cluster.namespace = await cluster.make_namespace()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with ControlPlane(locate(), audit=False) as control_plane:
        asyncio.run(measure(control_plane, count))


if __name__ == "__main__":
    main()
