"""`capcard-sched card` and `capcard-sched node`: cards and nodes, used and free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import cyclopts
import msgspec

from capcard_sched.cli.lists import Column, Listing, add_list, cell, field
from capcard_sched.cli.unused_cards import unused_cards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.cli.sources.inputs import LoadedCluster
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.reports.shared_cards import SharedCardRow

_Row: TypeAlias = dict[str, Any]
#: Cores of one card.
_PERCENT: Final = 100

card_app = cyclopts.App(name="card", help="List the cards of nodes.", result_action="return_value")
node_app = cyclopts.App(name="node", help="List nodes.", result_action="return_value")


def _share(header: str, name: str, unit: str = "") -> Column:
    """The column of an amount of shared cards, as used/total."""
    used = f"used{name.capitalize()}"

    def text(item: _Row) -> str:
        return "-" if item[name] is None else f"{item[used]}/{item[name]}{unit}"

    return Column(f"{header} (USED/TOTAL)", lambda item: item[used], text, "present")


_AMOUNTS = (field("TOTAL", "total"), field("USED", "used"), field("FREE", "free"))
_CARDS = Listing(
    "Card",
    (
        field("NODE", "node"),
        field("CARD", "name"),
        *_AMOUNTS,
        Column("UNUSED", lambda card: card["unused"], lambda card: cell(card["unused"]), "present"),
        Column("STRANDED", lambda card: card["stranded"] or None, lambda card: cell(card["stranded"]), "present"),
        Column("SHARED CARDS", lambda card: card["sharedCards"], shown="present"),
        _share("MEMORY", "memory"),
        _share("CORES", "cores", "%"),
        field("STATE", "state"),
        field("LARGEST FREE MEMORY", "largestFreeMemory", wide=True),
        Column("HOLDERS", lambda card: [_holder_text(each) for each in card["holders"]], shown="wide"),
    ),
    lambda card: f"card/{card['name']}",
    remarks=lambda card: [f"warning: {card['name']} of node {card['node']}: {card['note']}"] if card["note"] else (),
    needs=("nodes",),
)
_NODES = Listing(
    "Node",
    (
        field("NODE", "name"),
        field("STATE", "state"),
        field("CARDS", "cards"),
        *_AMOUNTS,
        _share("VGPUS", "vgpus"),
        field("FREE CPU", "freeCpu", wide=True),
        field("FREE MEMORY", "freeMemory", wide=True, text=lambda size: f"{size / 2**30:.0f}Gi"),
        field("PODS", "pods", wide=True),
        field("MAX PODS", "maxPods", wide=True),
    ),
    lambda node: f"node/{node['name']}",
    needs=("nodes",),
)


def read_cards(found: LoadedCluster) -> list[_Row]:
    """The items of `card list`."""
    from capcard_sched.framework.explain.capacity import CapacityReader
    from capcard_sched.framework.explain.stranded import StrandedReader

    state = found.core.snapshot().state
    nodes, rule = state.nodes.by_name, state.card_labels
    stranded = StrandedReader(found.core.snapshot()).of_nodes()
    whole = [
        {
            "name": card,
            "node": use.name,
            "total": use.total,
            "used": use.used,
            "free": use.free,
            **dict.fromkeys(_SHARED_FIELDS),
            "state": use.excluded,
            "note": _note(rule, card, nodes[use.name].labels),
            "holders": [msgspec.to_builtins(each) for each in use.holders],
            "queues": sorted({each.queue for each in use.holders}),
            "labels": dict(nodes[use.name].labels),
        }
        for card, use in CapacityReader(found.core.snapshot()).list_cards()
    ]
    items = sorted([*whole, *_shared_items(found)], key=lambda item: (item["node"], item["name"]))
    unused = unused_cards(found)
    for item in items:
        item["unused"] = unused.get((item["node"], item["name"]))
        item["stranded"] = None if stranded is None else stranded.get((item["node"], item["name"]), 0.0)
    return items


def _note(rule: CardLabels, card: str, labels: Mapping[str, str]) -> str:
    """That no label names the model of the cards of a node; "" if one does."""
    if not rule.is_device(card):
        return ""
    return f"{rule.unlabelled(card, labels)}; accepted: {rule.needed(card, labels)}"


def read_nodes(found: LoadedCluster) -> list[_Row]:
    """The items of `node list`."""
    from capcard_sched.framework.explain.capacity import CapacityReader

    nodes = found.core.snapshot().state.nodes.by_name
    shared: dict[str, list[_Row]] = {}
    for item in _shared_items(found):
        shared.setdefault(item["node"], []).append(item)
    return [
        {
            "name": node.name,
            "state": node.state,
            "cards": [*node.cards, *(item["name"] for item in shared.get(node.name, ()))],
            "total": node.total,
            "used": node.used,
            "free": node.free,
            "vgpus": _sum(shared.get(node.name, ()), "total"),
            "usedVgpus": _sum(shared.get(node.name, ()), "used"),
            "freeCpu": node.free_cpu,
            "freeMemory": node.free_memory,
            "pods": node.pods,
            "maxPods": node.max_pods,
            "queues": sorted({task.job.queue for task in nodes[node.name].tasks.values() if task.job}),
            "labels": dict(nodes[node.name].labels),
        }
        for node in CapacityReader(found.core.snapshot()).list_nodes()
    ]


add_list(
    card_app,
    _CARDS,
    """List the cards of each node: total, used, free, and with -o wide the workloads that hold them.

FREE is also the largest block that one pod can get on the node. STRANDED are free cards, or parts of cards, that no \
pod of the cluster can use there: it requests more cpu or memory than is free beside them, more cards, or another \
model. UNUSED are used cards without utilization in the last five minutes, with the Prometheus of the scheduler-conf. \
Of cards that a device plugin shares, TOTAL, USED and \
FREE count vGPUs; memory is in units of the device plugin, cores in percent of one card. """,
    read_cards,
)
add_list(
    node_app,
    _NODES,
    """List nodes with their cards: total, used and free, and vGPUs; with -o wide also free cpu and memory, and pods.

""",
    read_nodes,
)

#: Fields of shared cards in an item of `card list`; null in one of whole cards.
_SHARED_FIELDS = ("sharedCards", "memory", "usedMemory", "cores", "usedCores", "largestFreeMemory")


def read_shared_cards(found: LoadedCluster) -> tuple[SharedCardRow, ...]:
    """Every card that a device plugin shares, by node and index."""
    from capcard_sched.reports.shared_cards import shared_cards

    shares = found.core.snapshot().state.shares
    return shared_cards(found.objects.all_of("Node"), found.objects.all_of("Pod"), shares)


def _shared_items(found: LoadedCluster) -> list[_Row]:
    """The shared cards of each node and model, from the registrations of nodes and the devices of pods."""
    from capcard_sched.framework.explain.capacity import CapacityReader, workload_name

    rows: dict[tuple[str, str], list[SharedCardRow]] = {}
    state = found.core.snapshot().state
    for row in read_shared_cards(found):
        rows.setdefault((row.node, row.card.type), []).append(row)
    if not rows:
        return []
    tasks = {f"{task.namespace}/{task.name}": task for task in state.tasks.values()}
    states = {node.name: node.state for node in CapacityReader(found.core.snapshot()).list_nodes()}
    items = []
    for (node, card), cards in rows.items():
        holders: dict[tuple[str, str], _Row] = {}
        for tenant in (tenant for row in cards for tenant in row.tenants):
            task = tasks.get(tenant.pod)
            workload = workload_name(task) if task is not None else tenant.pod.replace("/", "/pod/")
            queue = task.job.queue if task is not None and task.job is not None else ""
            held = holders.setdefault(
                (workload, queue), {"workload": workload, "queue": queue, "amount": 0, "memory": 0, "cores": 0}
            )
            held["amount"] += tenant.shares
            held["memory"] += tenant.memory
            held["cores"] += tenant.cores
        total, used = sum(row.card.slots for row in cards), sum(row.shares for row in cards)
        available = [row for row in cards if row.is_available]
        missing = [f"{len(cards) - len(available)} of {len(cards)} unavailable"] if len(available) < len(cards) else []
        items.append(
            {
                "name": card,
                "node": node,
                "total": total,
                "used": used,
                "free": sum(max(0, row.card.slots - row.shares) for row in available),
                "sharedCards": len(cards),
                "memory": sum(row.card.memory for row in cards),
                "usedMemory": sum(row.memory for row in cards),
                "cores": _PERCENT * len(cards),
                "usedCores": sum(row.cores for row in cards),
                "largestFreeMemory": max((max(0, row.card.memory - row.memory) for row in available), default=0),
                "note": "",
                "state": ",".join([*filter(None, [states.get(node, "")]), *missing]),
                "holders": sorted(holders.values(), key=lambda held: (-held["memory"], held["workload"])),
                "queues": sorted({queue for _, queue in holders}),
                "labels": dict(state.nodes.by_name[node].labels) if node in state.nodes.by_name else {},
            }
        )
    return items


def _sum(items: Iterable[_Row], name: str) -> int | None:
    found = [item[name] for item in items]
    return sum(found) if found else None


def _holder_text(holder: _Row) -> str:
    shares = f", memory {holder['memory']}, cores {holder['cores']}%" if "memory" in holder else ""
    return f"{holder['workload']} ({holder['amount']:g}{shares})"
