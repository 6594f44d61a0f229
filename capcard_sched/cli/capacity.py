"""`capcard-sched card` and `capcard-sched node`: cards and nodes, used and free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import cyclopts

from capcard_sched.cli.cluster_source import ClusterSource, Source
from capcard_sched.cli.lists import Column, ListFlags, Listing, field, show_list

if TYPE_CHECKING:
    from capcard_sched.model.diagnosis import HolderUse

_Row: TypeAlias = dict[str, Any]

card_app = cyclopts.App(name="card", help="List the cards of nodes.", result_action="return_value")
node_app = cyclopts.App(name="node", help="List nodes.", result_action="return_value")

_AMOUNTS = (field("TOTAL", "total"), field("USED", "used"), field("FREE", "free"))
_CARDS = Listing(
    "Card",
    (
        field("NODE", "node"),
        field("CARD", "name"),
        *_AMOUNTS,
        field("STATE", "state"),
        Column("HOLDERS", lambda card: [_holder_text(each) for each in card["holders"]], shown="wide"),
    ),
    lambda card: f"card/{card['name']}",
    needs=("nodes",),
)
_NODES = Listing(
    "Node",
    (
        field("NODE", "name"),
        field("STATE", "state"),
        field("CARDS", "cards"),
        *_AMOUNTS,
        field("FREE CPU", "freeCpu", wide=True),
        field("FREE MEMORY", "freeMemory", wide=True, text=lambda size: f"{size / 2**30:.0f}Gi"),
        field("PODS", "pods", wide=True),
        field("MAX PODS", "maxPods", wide=True),
    ),
    lambda node: f"node/{node['name']}",
    needs=("nodes",),
)


@card_app.command(name="list", usage="capcard-sched card list [OPTIONS] [NAMES...]")
def list_cards(
    *names: str,
    flags: ListFlags = ListFlags(),  # noqa: B008 - frozen
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List the cards of each node: total, used, free, and with -o wide the workloads that hold them.

    FREE is also the largest block that one pod can get on the node. With -f, runs the manifests through the simulator
    first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown card; 1 on an internal error.

    Args:
        names: Cards to list. Default: all.
        flags: Flags of every list.
        source: Flags that select the cluster.
    """

    def read(found: ClusterSource) -> list[_Row]:
        from capcard_sched.framework.explain.capacity import CapacityReader

        nodes = found.core.snapshot().state.nodes.by_name
        return [
            {
                "name": card,
                "node": use.name,
                "total": use.total,
                "used": use.total - use.free,
                "free": use.free,
                "state": use.excluded,
                "holders": [_holder(each) for each in use.holders],
                "queues": sorted({each.queue for each in use.holders}),
                "labels": dict(nodes[use.name].labels),
            }
            for card, use in CapacityReader(found.core.snapshot()).list_cards()
        ]

    return show_list(_CARDS, read, flags, source, names)


@node_app.command(name="list", usage="capcard-sched node list [OPTIONS] [NAMES...]")
def list_nodes(
    *names: str,
    flags: ListFlags = ListFlags(),  # noqa: B008 - frozen
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List nodes with their cards: total, used and free; with -o wide also free cpu and memory, and pods.

    With -f, runs the manifests through the simulator first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown node; 1 on an internal error.

    Args:
        names: Nodes to list. Default: all.
        flags: Flags of every list.
        source: Flags that select the cluster.
    """

    def read(found: ClusterSource) -> list[_Row]:
        from capcard_sched.framework.explain.capacity import CapacityReader

        nodes = found.core.snapshot().state.nodes.by_name
        return [
            {
                "name": node.name,
                "state": node.state,
                "cards": list(node.cards),
                "total": node.total,
                "used": node.total - node.free,
                "free": node.free,
                "freeCpu": node.free_cpu,
                "freeMemory": node.free_memory,
                "pods": node.pods,
                "maxPods": node.max_pods,
                "queues": sorted({task.job.queue for task in nodes[node.name].tasks.values() if task.job}),
                "labels": dict(nodes[node.name].labels),
            }
            for node in CapacityReader(found.core.snapshot()).list_nodes()
        ]

    return show_list(_NODES, read, flags, source, names)


def _holder(use: HolderUse) -> _Row:
    return {"workload": use.workload, "queue": use.queue, "amount": use.amount}


def _holder_text(holder: _Row) -> str:
    return f"{holder['workload']} ({holder['amount']:g})"
