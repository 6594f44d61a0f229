"""Sentences about pods that no node fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.device_causes import class_hint, missing_claims
from capcard_sched.framework.explain.label_causes import NO_AFFINE_POD, affine_nodes, affinity_cause
from capcard_sched.framework.explain.limit_causes import quota_beside
from capcard_sched.framework.explain.rejections import CORDONED, INSUFFICIENT, PINNED, TAINTED
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
from capcard_sched.framework.explain.volume_causes import unbound_claims
from capcard_sched.model.diagnosis import MOST_LISTED
from capcard_sched.model.node_conditions import condition_word, is_condition
from capcard_sched.model.quoting import brief, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import CardCapacity, NodeUse, PendingPods, RejectedNodes, StrandedCards
    from capcard_sched.model.job import Task

#: Nodes that get a sentence each.
_MOST_NODES: Final = 3
_NO_NODE: Final = "No node fits: "
#: In the message of a pod whose claims allow no node.
_VOLUMES: Final = "VolumeBinding"


def no_node(data: JobFacts, pods: PendingPods, *, restricted: bool = False) -> tuple[str, list[str]]:
    """Summary and facts of pods that no node fits. `restricted`: that no node of a HyperNode fits."""
    summary, facts = _no_node(data, pods, restricted=restricted)
    task = _first(data, pods)
    if task is None or pods.names[0] not in data.apart:
        return summary, facts
    of_affinity = next((row.text for row in pods.nodes if row.decides and row.reason == NO_AFFINE_POD), "")
    if of_affinity and of_affinity in summary:
        return summary, facts
    # The resources are checked first; what they lack on some nodes the pod does not need on others.
    snapshot = data.session_snapshot
    where = "that would do is in the topology of" if affine_nodes(snapshot, task) else "has"
    text = f"pod affinity: no node {where} a pod that it selects{affinity_cause(snapshot, task)}"
    rest = [fact for fact in facts if not of_affinity or fact != capital(of_affinity)]
    former = summary.removeprefix(_NO_NODE)
    row = next((row for row in pods.nodes if row.text == former), None)
    if not any(fact.startswith(former) for fact in rest):
        rest[:0] = [capital(former) if row is None else _sentence(row)]
    return f"{_NO_NODE}{text}", rest


def _no_node(data: JobFacts, pods: PendingPods, *, restricted: bool) -> tuple[str, list[str]]:
    if pods.refusal is not None and pods.refusal.hook == "pre_predicate":  # whatever the nodes have
        return f"{_NO_NODE}{_of_pod(data, pods)}", quota_beside(data)
    short = [] if restricted else [row for row in _short_rows(data, pods) if row.largest_free < row.per_pod]
    facts = [*_nodes(data, short), *quota_beside(data)]
    others = _others(pods, short)
    pinned = [] if restricted else _pinned(data, pods)
    further = list(map(_sentence, others[1:]))
    if short:
        of_cards = [row for row in short if row.card != row.resource]
        groups = [of_cards, *([row] for row in short if row not in of_cards)] if of_cards else [[row] for row in short]
        if pinned:
            rest = [_sentence(row) for row in others if row not in pinned]
            first, *more = (_largest_block(group, other=True) for group in groups)
            causes = "; ".join(row.text for row in pinned)
            return f"{_NO_NODE}{causes}, and {_lack(groups[0]) or lower(first)}", [*more, *rest, *facts]
        first, *more = map(_largest_block, groups)
        return (f"{first}; {others[0].text}" if others else first), [*more, *further, *facts]
    if not others:
        return f"{_NO_NODE}{_of_pod(data, pods)}", facts
    alternatives = data.cards_of_pods.get(pods.names[0], ())
    cards = " or ".join(alternatives)
    smaller = [row for row in data.capacity if row.card in alternatives and row.histogram]  # they accept the pods
    if smaller and len({row.per_pod for row in smaller}) == 1:
        cards = quantity(cards, smaller[0].per_pod)
    excluded = all(row.reason == CORDONED or row.reason.startswith(TAINTED) for row in others)
    if pinned and _is_short(others[0].reason):
        return f"{_NO_NODE}{'; '.join(row.text for row in (*pinned, others[0]))}", [*further, *facts]
    head = f"No node with {cards} accepts the pods" if cards and excluded else "No node fits"
    return f"{head}: {others[0].text}", [*further, *facts]


def _of_pod(data: JobFacts, pods: PendingPods) -> str:
    """The cause of a pod that was not tried on nodes: its claims, else the text of the check."""
    task = _first(data, pods)
    claims = unbound_claims(data.volumes, task) if task is not None and _VOLUMES in pods.message else ""
    devices = missing_claims(data.session_snapshot, task) if task is not None and not claims else ""
    text = plain(pods.message)
    return claims or devices or f"{text}{class_hint(data.session_snapshot, text)}"


def _first(data: JobFacts, pods: PendingPods) -> Task | None:
    return next((task for task in data.tasks if task.name == pods.names[0]), None)


def gang_waits(data: JobFacts, pods: PendingPods, fitting: int) -> tuple[str, list[str]]:
    """Summary and facts of a gang of which `fitting` pods have a node, and `pods` have none beside them."""
    short = _short_rows(data, pods)
    others = _others(pods, short)
    if len(pods.nodes) > 1 and all(row.fits_now > fitting for row in short):
        # The gang itself takes what is free: the nodes lack it beside the pods that fit, and others have other reasons.
        near = {node.name for row in short for node in (*row.candidates, *row.cordoned, *row.tainted)}
        rest = sorted(pods.nodes, key=lambda row: (_is_short(row.reason), near.isdisjoint(row.names)))
        short, others = [], rest
    blocks = [_free_blocks(row, several=len(data.capacity) > 1) for row in short]
    first = next(iter((*blocks, *(row.text for row in others))), lower(_of_pod(data, pods)))
    further = [*map(capital, blocks), *map(_sentence, others)][1:]
    return f"{partly(data, fitting)}: {first}", [*further, *_nodes(data, short)]


def partly(data: JobFacts, fitting: int) -> str:
    """`2 of 3 pending pods fit now beside 1 scheduled, and the gang starts with 4`."""
    placed = f" beside {data.job.ready_tasks} scheduled" if data.job.ready_tasks else ""
    pods = plural(sum(len(pods.names) for pods in data.pending), "pending pod")
    fit = f"{fitting} of {pods} {form(fitting, 'fits', 'fit')} now{placed}"
    return f"{fit}, and the gang starts with {data.job.starting_pods}"


def _short_rows(data: JobFacts, pods: PendingPods) -> list[CardCapacity]:
    """The capacity of the resources that the deciding nodes lack. Of the cards that the pods accept: all on them."""
    lacking = {
        row.reason.removeprefix(INSUFFICIENT): row.names for row in pods.nodes if row.decides and _is_short(row.reason)
    }
    alternatives = data.cards_of_pods.get(pods.names[0], ())
    return [
        row
        for row in data.capacity
        if row.resource in lacking
        and row.histogram
        and (row.card == row.resource or (row.card in alternatives and _may_be_on(row, lacking[row.resource])))
    ]


def _may_be_on(row: CardCapacity, names: Sequence[str]) -> bool:
    """Whether nodes with a card are among some nodes: lists of many nodes are not complete."""
    listed = [node.name for node in (*row.candidates, *row.cordoned, *row.tainted)]
    return len(listed) < row.nodes or len(names) == MOST_LISTED or not set(names).isdisjoint(listed)


def _others(pods: PendingPods, short: Sequence[CardCapacity]) -> list[RejectedNodes]:
    """The deciding reasons without those of the capacity rows."""
    resources = {row.resource for row in short}
    return [
        row
        for row in pods.nodes
        if row.decides and not (_is_short(row.reason) and row.reason.removeprefix(INSUFFICIENT) in resources)
    ]


def _sentence(row: RejectedNodes) -> str:
    """The text of a reason; the name of a node at its beginning stays as it is."""
    return row.text if row.text.startswith(row.names) else capital(row.text)


def _pinned(data: JobFacts, pods: PendingPods) -> list[RejectedNodes]:
    """The rejections of nodes that are not those of a claim of the pod; of a pod with a card, of nodes that have it."""
    task = _first(data, pods)
    # Devices of claims are no cards of a node.
    alternatives = set(() if task is None or task.cls.claims else data.cards_of_pods.get(task.name, ()))
    state = data.session_snapshot.state
    nodes = state.nodes.by_name
    return [
        row
        for row in pods.nodes
        if row.reason.startswith(PINNED)
        and any(
            name in nodes and (not alternatives or alternatives & state.cards_of(nodes[name]).keys())
            for name in row.names
        )
    ]


def _lack(rows: Sequence[CardCapacity]) -> str:
    """`n1 lacks 1 cpu` of the only node that may have a resource; "" for several."""
    if len(rows) > 1 or sum(bar.nodes for bar in rows[0].histogram) != 1 or not rows[0].candidates:
        return ""
    return _shortage(rows[0], rows[0].candidates[0])


def _is_short(reason: str) -> bool:
    return reason.startswith(INSUFFICIENT)


def _free_blocks(row: CardCapacity, *, several: bool) -> str:
    """`each pod needs 8 NVIDIA-H200 free on one node; 1 node has them (h200-2)`."""
    enough = [node for node in row.candidates if node.free >= row.per_pod]
    count = sum(bar.nodes for bar in row.histogram if bar.free >= row.per_pod)
    has = f"{plural(count, 'node')} {form(count, 'has', 'have')} them"
    listed = f" ({brief([node.name for node in enough])})" if enough else ""
    space = f", for {plural(row.fits_now, 'pod')}" if row.fits_now > count else ""
    which = f" that requests {row.card}" if several else ""
    return f"each pod{which} needs {quantity(row.card, row.per_pod)} free on one node; {has}{listed}{space}"


def _largest_block(rows: Sequence[CardCapacity], *, other: bool = False) -> str:
    """`No node has 8 NVIDIA-H200 free: the largest free block is 6, on 1 node (h200-1)`; `other`: `No other node`."""
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
    return f"No {'other ' if other else ''}node has {quantity(cards, largest.per_pod)} free: {rest}"


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
    return list(dict.fromkeys([*facts, *map(_stranded, data.stranded)]))


def _stranded(row: StrandedCards) -> str:
    """`NVIDIA-H200: 18 free, 11 of them stranded by cpu`, or `stranded: 8 by cpu, 3 by size` of several causes."""
    causes = [f"by {cause}" for cause in row.causes]
    if len(causes) > 1:
        causes = [f"{amount:g} by {cause}" for cause, amount in row.causes.items()]
    end = f"{':' if len(causes) > 1 else ''} {', '.join(causes)}"
    return f"{row.card}: {row.free:g} free, {row.stranded:g} of them stranded{end}"


def _missing(row: CardCapacity, node: NodeUse) -> str:
    return f"{_shortage(row, node)}: {holders(row, node.holders)}"


def _shortage(row: CardCapacity, node: NodeUse) -> str:
    return f"{node.name} lacks {quantity(row.card, row.per_pod - node.free)}"


def _excluded(node: NodeUse) -> str:
    if is_condition(node.excluded):
        return condition_word(node.excluded)
    return "cordoned" if node.excluded == "cordoned" else f"tainted {node.excluded}"
