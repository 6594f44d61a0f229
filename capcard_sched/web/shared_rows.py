"""Cards that a device plugin shares, with their tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import annotations_of
from capcard_sched.model.annotations import NODE_VGPU_REGISTER
from capcard_sched.reports.shared_cards import shared_cards

if TYPE_CHECKING:
    from capcard_sched.reports.shared_cards import SharedCardRow
    from capcard_sched.web.cluster import Cluster


def shared_rows(cluster: Cluster) -> tuple[SharedCardRow, ...]:
    """Every shared card of the cluster. Reads the pods only where some node has registered cards."""
    return cluster.part("shared cards", lambda: _shared_rows(cluster))


def _shared_rows(cluster: Cluster) -> tuple[SharedCardRow, ...]:
    nodes = [node for node in cluster.objects.all_of("Node") if annotations_of(node).get(NODE_VGPU_REGISTER)]
    if not nodes:
        return ()
    return shared_cards(nodes, cluster.objects.all_of("Pod"), cluster.core.snapshot().state.shares)
