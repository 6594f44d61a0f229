"""The lease is looked at when a write leaves, not when it begins to wait for its turn: for every kind of write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.queues import ensure_queues
from capcard_sched.model.intents import (
    AnnotatePodGroup,
    AnnotateQueue,
    Bind,
    ClaimBinding,
    EmitEvent,
    Intent,
    ObjectRef,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
)
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.proxy import Exchange, Proxy
from tests.kube.write.harness import Harness, bind_of, evict_of, ids

#: Seconds for one request: time enough to lose a lease while one waits for its turn, also on a loaded machine.
_TURN = 0.3
#: A write about pod p, PodGroup g or queue q as the API server returned them.
WRITES: dict[str, Callable[[Manifest, Manifest, str], Intent]] = {
    "binding": lambda p, g, q: bind_of(p),
    "volume": lambda p, g, q: msgspec.structs.replace(bind_of(p), volumes=(ClaimBinding("c", "v"),)),
    "eviction by deletion": lambda p, g, q: evict_of(p),
    "eviction by the API": lambda p, g, q: evict_of(p),
    "pod condition": lambda p, g, q: UpdatePodCondition(*ids(p), "Unschedulable", "no free node"),
    "PodGroup status": lambda p, g, q: UpdatePodGroup(*ids(g), "Inqueue", 0, 0, 0, ()),
    "PodGroup annotation": lambda p, g, q: AnnotatePodGroup(*ids(g), {"a": "b"}),
    "queue status": lambda p, g, q: UpdateQueueStatus(q, {"cpu": "1"}),
    "queue annotation": lambda p, g, q: AnnotateQueue(q, {"a": "b"}),
    "event": lambda p, g, q: EmitEvent(ObjectRef("Pod", *ids(p)), "Normal", "Told", "so"),
}


async def _settle(client: Client, bind: Bind) -> None:
    """Stands for the volumes of a pod: one write."""
    body = b'{"metadata": {"annotations": {"settled": "yes"}}}'
    path, kind = object_path("Pod", bind.namespace, bind.name), "application/merge-patch+json"
    await client.request("PATCH", path, body=body, content_type=kind)


def written(proxy: Proxy) -> list[Exchange]:
    return [each for each in proxy.exchanges if each.verb != "GET"]


async def occupy(client: Client, turns: int = 6) -> list[asyncio.Task[bytes]]:
    """Take the next turns, so that whatever follows waits for its own."""
    taken = [asyncio.create_task(client.request("GET", "/version")) for _ in range(turns)]
    await asyncio.sleep(0.05)
    return taken


async def send_late(cluster: Cluster, kind: str, end: str) -> None:
    """A write waits for its turn in a namespace of its own; meanwhile the renewal is late, or the lease is lost."""
    async with Cluster(cluster.control_plane) as own, Proxy(cluster.control_plane) as proxy:
        own.namespace = await own.make_namespace()
        made, group = await own.create_all([pod("p", grace=60), pod_group("g")])
        await own.create(queue(own.namespace))
        if kind.startswith("eviction"):
            await own.bind("p", "n1")
        intent, by_api = WRITES[kind](made, group, own.namespace), kind.endswith("API")
        async with Harness(own, proxy, qps=1 / _TURN, burst=1, use_eviction_api=by_api, pre_bind=_settle) as effects:
            taken = await occupy(effects.client)
            effects.submit(intent)
            await asyncio.sleep(_TURN / 2)  # it waits for its turn by now
            effects.leads = False
            if end == "lost":
                effects.reset()
            await asyncio.gather(*taken)
            await asyncio.sleep(2 * _TURN)
            assert written(proxy) == []
            effects.leads = True
            if end == "lost":
                await asyncio.sleep(2 * _TURN)
                assert written(proxy) == []
                assert effects.deltas == []
            else:
                await effects.quiet(within=60)
                assert written(proxy), "a renewal that was only late is no reason to forget"
                assert [each.status for each in written(proxy) if each.status >= 400] == []


@pytest.mark.parametrize("end", ["late", "lost"])
async def test_a_write_that_waited_for_its_turn_does_not_leave_when_the_lease_got_old_meanwhile(
    cluster: Cluster, end: str
) -> None:
    await cluster.create(node("n1"))
    found = await asyncio.gather(*(send_late(cluster, kind, end) for kind in WRITES), return_exceptions=True)
    assert {kind: repr(error) for kind, error in zip(WRITES, found, strict=True) if error is not None} == {}


async def test_a_lost_lease_voids_everything_unsent_also_when_it_comes_back(cluster: Cluster, proxy: Proxy) -> None:
    pods = [(cluster.namespace, f"p{number}", f"u{number}") for number in range(60)]
    async with Harness(cluster, proxy, binders=2, pre_bind=_settle) as effects:
        effects.leads = False
        for each in pods:
            volumes = Bind(*each[:2], f"{each[2]}-volumes", "n1", volumes=(ClaimBinding("c", "v"),))
            condition = UpdatePodCondition(*each, "Unschedulable", "no free node")
            told = EmitEvent(ObjectRef("Pod", *each), "Normal", "Told", "so")
            effects.submit(Bind(*each, "n1"), volumes, condition, told)
        await asyncio.sleep(0.2)
        effects.reset()
        effects.leads = True
        assert not any(effects.effects.backlog().values())
        await asyncio.sleep(1.0)
        assert (written(proxy), effects.deltas) == ([], [])


async def test_a_write_that_waited_for_a_connection_does_not_leave_either(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod("p"), pod("q")])
    await cluster.create(node("n1"))
    slow = proxy.delay("GET", "/nodes/n1", 1.0, times=None)
    async with Harness(cluster, proxy, binders=1) as effects:
        held = [asyncio.create_task(effects.client.request("GET", "/api/v1/nodes/n1")) for _ in range(17)]
        await slow.struck(17)  # all there are
        effects.submit(bind_of(made[0]))
        await asyncio.sleep(0.2)
        effects.leads = False
        await asyncio.gather(*held)
        await asyncio.sleep(0.3)
        assert written(proxy) == []
        effects.leads = True
        await effects.quiet()
    assert await cluster.bound() == {"p": "n1"}


async def test_missing_queues_are_not_created_after_the_lease_is_lost(proxy: Proxy) -> None:
    leads = True
    reported: list[str] = []
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a"))), qps=1 / _TURN, burst=1) as client:
        taken = await occupy(client)
        making = asyncio.create_task(
            ensure_queues(client, "default", lambda name, _: reported.append(name), lambda: leads)
        )
        await asyncio.sleep(0.2)
        leads = False
        await asyncio.gather(*taken)
        async with asyncio.timeout(5):
            await making
    assert (written(proxy), reported) == ([], [])
