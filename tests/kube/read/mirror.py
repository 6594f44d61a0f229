"""A listener that records deltas, and an observer that records watch events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection, load_connection
from capcard_sched.kube.decode import WatchSettings
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS, WatchedKind
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.objects import NodeObject, PodObject
from tests.clock import until
from tests.controlplane.cluster import ALL, Cluster
from tests.controlplane.proxy import Proxy

PODS_AND_NODES = tuple(kind for kind in KINDS if kind.name in {"Pod", "Node"})
#: Short delays, so that tests need not wait.
QUICK = WatchSettings(first_delay=0.01, longest_delay=0.2, page=3)
#: Read access to pods.
GRANT = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


class Ears(Observer):
    """Remembers what happened to watches and requests."""

    def __init__(self) -> None:
        self.watches: list[tuple[str, str, str]] = []
        self.requests: list[tuple[str, str, int]] = []

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        self.watches.append((resource, event, detail))

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((verb, resource, code))

    def watch_events(self, resource: str, *events: str) -> list[str]:
        """The watch events of one kind, all or the named ones."""
        return [event for kind, event, _ in self.watches if kind == resource and (not events or event in events)]

    def undecodable(self) -> list[str]:
        """Details of undecodable objects."""
        return [detail for _, event, detail in self.watches if event == "undecodable"]


class Mirror:
    """Nodes and pods of the deltas, and every delta, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Delta]] = []
        self.nodes: dict[str, dict[str, str]] = {}
        self.pods: dict[str, tuple[str, str]] = {}

    @property
    def deltas(self) -> list[Delta]:
        return [delta for batch in self.batches for delta in batch]

    def deliver(self, batch: Sequence[Delta]) -> None:
        assert batch
        self.batches.append(batch)
        for delta in batch:
            match delta:
                case ObjectChanged(NodeObject() as node):
                    self.nodes[node.metadata.name] = node.metadata.labels or {}
                case ObjectGone("Node", _, name):
                    self.nodes.pop(name, None)
                case ObjectChanged(PodObject() as pod):
                    meta = pod.metadata
                    self.pods[f"{meta.namespace}/{meta.name}"] = (meta.uid, pod.spec.node_name or "")
                case ObjectGone("Pod", namespace, name, uid):
                    before = self.pods.pop(f"{namespace}/{name}", None)
                    assert before is None or uid in {"", before[0]}
                case _:
                    pass

    async def agrees_with(self, cluster: Cluster) -> bool:
        """Whether it shows what the API server has."""
        pods, nodes = await cluster.list("pods", namespace=ALL), await cluster.list("nodes")
        return self.nodes == {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in nodes} and (
            self.pods
            == {
                f"{each['metadata']['namespace']}/{each['metadata']['name']}": (
                    each["metadata"]["uid"],
                    each["spec"].get("nodeName", ""),
                )
                for each in pods
            }
        )


@asynccontextmanager
async def watching(
    where: Cluster | Proxy,
    *,
    kinds: Iterable[WatchedKind[Any]] = PODS_AND_NODES,
    settings: WatchSettings = QUICK,
    connection: Connection | None = None,
    synced: bool = True,
) -> AsyncIterator[tuple[Informers, Mirror, Ears]]:
    """A running feed, directly or by a proxy; with `synced` everything there is has been delivered."""
    path = where.kubeconfig_for() if isinstance(where, Proxy) else where.control_plane.kubeconfig
    mirror, ears = Mirror(), Ears()
    async with Client(connection or load_connection(str(path)), observer=ears) as client:
        feed = Informers(client, mirror.deliver, ears, kinds, settings=settings)
        running = asyncio.create_task(feed.run())
        try:
            if synced:
                async with asyncio.timeout(20):
                    await feed.wait_synced()
                await until(lambda: feed.stale_for() == 0.0, "open watches")
            yield feed, mirror, ears
            assert not running.done(), "the feed has ended"
        finally:
            running.cancel()
            await asyncio.wait({running})
    if not running.cancelled() and running.exception() is not None:
        running.result()
