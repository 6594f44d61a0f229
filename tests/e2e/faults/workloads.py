"""Clusters with just enough cards, gangs that want them, and what to wait for."""

from __future__ import annotations

import re

from tests.controlplane.cluster import Cluster, Manifests
from tests.controlplane.manifests import gang, gpu_node, queue

CARD = "A10"
QUEUE = "q"
#: Request of each member of a gang.
REQUESTS = {"cpu": "1", "nvidia.com/gpu": "1"}


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


async def bound_of(cluster: Cluster, pattern: str = ".*") -> set[str]:
    """Names of the bound pods that match as a whole."""
    return {name for name in await cluster.bound() if re.fullmatch(pattern, name)}


async def until_bound(cluster: Cluster, count: int, pattern: str = ".*", *, within: float = 30.0) -> set[str]:
    """Wait until `count` pods of that pattern are bound; returns their names."""

    async def enough() -> set[str]:
        found = await bound_of(cluster, pattern)
        return found if len(found) >= count else set()

    try:
        return await cluster.wait_until(enough, f"{count} pods {pattern} to be bound", within=within)
    except AssertionError as error:
        error.add_note(f"bound are {len(await bound_of(cluster, pattern))}: {sorted(await bound_of(cluster, pattern))}")
        raise
