"""Sentences about pods that no node fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.limit_causes import quota_beside
from capcard_sched.framework.explain.rejections import CORDONED, INSUFFICIENT, TAINTED
from capcard_sched.framework.explain.sentences import (
    amount_of,
    capital,
    form,
    holders,
    lower,
    plain,
    quantity,
    toleration,
)
from capcard_sched.model.node_conditions import condition_word, is_condition
from capcard_sched.model.quoting import brief, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import CardCapacity, NodeUse, PendingPods, RejectedNodes

#: Nodes that get a sentence each.
_MOST_NODES: Final = 3


def no_node(data: JobFacts, pods: PendingPods, *, restricted: bool = False) -> tuple[str, list[str]]:
    """Summary and facts of pods that no node fits. `restricted`: that no node of a HyperNode fits."""
    causes = [row for row in pods.nodes if row.decides]
    short = [] if restricted else _short_rows(data, pods)
    facts = [*_nodes(data, short), *quota_beside(data)]
    rows = [row for row in causes if not _is_of(row.reason, short)]
    texts = [row.text for row in rows]
    if short:
        of_cards = [row for row in short if row.card != row.resource]
        groups = [of_cards, *([row] for row in short if row not in of_cards)] if of_cards else [[row] for row in short]
        first, *more = map(_largest_block, groups)
        return (f"{first}; {texts[0]}" if texts else first), [*more, *map(_fact, rows[1:]), *facts]
    if not causes:
        return f"No node fits: {plain(pods.message)}", facts
    cards = " or ".join(data.cards_of_pods.get(pods.names[0], ()))
    excluded = all(row.reason == CORDONED or row.reason.startswith(TAINTED) for row in causes)
    head = f"No node with {cards} accepts the pods" if cards and excluded else "No node fits"
    return f"{head}: {texts[0]}", [*map(_fact, rows[1:]), *facts]


def _fact(row: RejectedNodes) -> str:
    """A sentence of its own, which may begin with the name of a node."""
    return row.text if row.names and row.text.startswith(row.names[0]) else capital(row.text)


def gang_waits(data: JobFacts, pods: PendingPods, fitting: int) -> tuple[str, list[str]]:
    """Summary and facts of a gang of which `fitting` pods have a node, and `pods` have none beside them."""
    short = _short_rows(data, pods)
    texts = [_free_blocks(row, several=len(data.capacity) > 1) for row in short]
    texts += [row.text for row in pods.nodes if row.decides and not _is_of(row.reason, short)]
    texts = texts or [lower(plain(pods.message))]
    return f"{partly(data, fitting)}: {texts[0]}", [*map(capital, texts[1:]), *_nodes(data, short)]


def partly(data: JobFacts, fitting: int) -> str:
    """`2 of 3 pending pods fit now beside 1 scheduled, and the gang starts with 4`."""
    placed = f" beside {data.job.ready_tasks} scheduled" if data.job.ready_tasks else ""
    pods = plural(sum(len(pods.names) for pods in data.pending), "pending pod")
    fit = f"{fitting} of {pods} {form(fitting, 'fits', 'fit')} now{placed}"
    return f"{fit}, and the gang starts with {data.job.min_available}"


def _short_rows(data: JobFacts, pods: PendingPods) -> list[CardCapacity]:
    """The capacity of the resources that the deciding nodes lack. Of the cards that the pods accept: all."""
    lacking = {row.reason.removeprefix(INSUFFICIENT) for row in pods.nodes if row.decides and _is_short(row.reason)}
    alternatives = data.cards_of_pods.get(pods.names[0], ())
    return [
        row
        for row in data.capacity
        if row.resource in lacking and row.histogram and (row.card == row.resource or row.card in alternatives)
    ]


def _is_short(reason: str) -> bool:
    return reason.startswith(INSUFFICIENT)


def _is_of(reason: str, short: Sequence[CardCapacity]) -> bool:
    return _is_short(reason) and reason.removeprefix(INSUFFICIENT) in {row.resource for row in short}


def _free_blocks(row: CardCapacity, *, several: bool) -> str:
    """`each pod needs 8 NVIDIA-H200 free on one node; 1 node has them (h200-2)`."""
    enough = [node for node in row.candidates if node.free >= row.per_pod]
    count = sum(bar.nodes for bar in row.histogram if bar.free >= row.per_pod)
    has = f"{plural(count, 'node')} {form(count, 'has', 'have')} them"
    listed = f" ({brief([node.name for node in enough])})" if enough else ""
    space = f", for {plural(row.fits_now, 'pod')}" if row.fits_now > count else ""
    which = f" that requests {row.card}" if several else ""
    return f"each pod{which} needs {quantity(row.card, row.per_pod)} free on one node; {has}{listed}{space}"


def _largest_block(rows: Sequence[CardCapacity]) -> str:
    """`No node has 8 NVIDIA-H200 free: the largest free block is 6, on 1 node (h200-1)`."""
    largest = max(rows, key=lambda row: row.largest_free)
    cards = " or ".join(row.card for row in rows if row.per_pod == largest.per_pod)
    bars = [bar for row in rows for bar in row.histogram]
    if not largest.largest_free:
        rest = f"none is free on {plural(sum(bar.nodes for bar in bars), 'node')}"
        rest += "".join(f"; held by {holders(row, row.holders)}" for row in rows if row.holders)
    else:
        on = sum(bar.nodes for bar in bars if bar.free == largest.largest_free)
        listed = [node.name for row in rows for node in row.candidates if node.free == largest.largest_free]
        block = amount_of(largest.card, largest.largest_free)
        rest = f"the largest free block is {block}, on {plural(on, 'node')} ({brief(listed)})"
    return f"No node has {quantity(cards, largest.per_pod)} free: {rest}"


def _nodes(data: JobFacts, short: Sequence[CardCapacity]) -> list[str]:
    """Free blocks of what is short, the nodes that lack least, and excluded nodes."""
    facts: list[str] = []
    for row in data.capacity:
        if row in short:
            bars = ", ".join(f"{amount_of(row.card, bar.free)} on {plural(bar.nodes, 'node')}" for bar in row.histogram)
            facts.append(
                f"Free {row.card}: {amount_of(row.card, row.free)} of {amount_of(row.card, row.total)} ({bars})"
            )
            lacking = [node for node in row.candidates if node.free < row.per_pod <= node.total][:_MOST_NODES]
            facts += [_missing(row, node) for node in lacking if node.holders]
        for node in (*row.cordoned[:_MOST_NODES], *row.tainted[:_MOST_NODES]):
            free = f"{amount_of(row.card, node.free)} of {amount_of(row.card, node.total)} free"
            facts.append(f"{node.name} is {_excluded(node)} ({free})")
        chosen = [node for node in row.tainted if not is_condition(node.excluded)]
        facts += [f"Toleration for {node.name}: {toleration(node.excluded)}" for node in chosen[:1]]
    return list(dict.fromkeys(facts))


def _missing(row: CardCapacity, node: NodeUse) -> str:
    lacks = quantity(row.card, row.per_pod - node.free)
    return f"{node.name} lacks {lacks}: {holders(row, node.holders)}"


def _excluded(node: NodeUse) -> str:
    if is_condition(node.excluded):
        return condition_word(node.excluded)
    return "cordoned" if node.excluded == "cordoned" else f"tainted {node.excluded}"
