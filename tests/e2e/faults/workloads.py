"""Clusters with just enough cards, gangs that want them, and what to wait for."""

from __future__ import annotations

from pathlib import Path

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifests, gang, gpu_node, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import CARD_CONF, Daemon

CARD = "A10"
QUEUE = "q"
#: Request of each member of a gang.
REQUESTS = {"cpu": "1", "nvidia.com/gpu": "1"}


def replica(way: Proxy, user: str, folder: Path, *flags: str) -> Daemon:
    """A daemon on a way of its own, with the name of its user."""
    return Daemon(way.kubeconfig_for(user), folder, *flags, conf=CARD_CONF, name=user)


async def furnish(cluster: Cluster, *, cards: int, quota: int | None = None, per_node: int = 8) -> None:
    """Create nodes with `cards` cards in all, and a queue that may use them all, or `quota` of them."""
    sizes = [min(per_node, cards - first) for first in range(0, cards, per_node)]
    nodes = [gpu_node(f"n{index}", CARD, size, cpu=16, memory="64Gi") for index, size in enumerate(sizes)]
    limits = {"cpu": "512", "memory": "2048Gi"}
    await cluster.create_all([*nodes, queue(QUEUE, cards={CARD: cards if quota is None else quota}, capability=limits)])


def members(name: str, size: int) -> Manifests:
    """A gang of the queue."""
    return gang(name, size, queue=QUEUE, cards=CARD, requests=REQUESTS)


async def create_gangs(cluster: Cluster, names: list[str], size: int) -> None:
    """Create gangs of `size` members each, their PodGroups first, as controllers do."""
    all_members = [members(name, size) for name in names]
    await cluster.create_all([group for group, *_ in all_members])
    await cluster.create_all([pod for _, *pods in all_members for pod in pods])
