"""Sentences of a diagnosis: amounts, lists of names, the reasons why no node fits, and quotas."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.diagnosis import MOST_LISTED, LimitUse
from capcard_sched.model.node_conditions import condition_word, is_condition
from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.selectors import BLOCKING_EFFECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.model.diagnosis import CardCapacity, HolderUse, NodeUse
    from capcard_sched.model.refusal import Figures, Refusal


#: Nodes that get a sentence each.
_MOST_NODES: Final = 3
#: Similarity above which a name is suggested.
_CLOSE: Final = 0.6
_BRACKETS = re.compile(r"<([^<>]*)>")


def amount_of(resource: str, value: float | None) -> str:
    """An amount without its resource; bytes with their unit."""
    return "no limit" if value is None else shown_amount(resource, value)


def quantity(resource: str, value: float | None) -> str:
    """`8 NVIDIA-H200`, `12 cpu`, `16Gi memory`."""
    return f"{amount_of(resource, value)} {resource}"


def amounts(resource: str, used: float, quota: float | None) -> str:
    """`4 of 8 NVIDIA-H200`."""
    if quota is None:
        return quantity(resource, used)
    return f"{amount_of(resource, used)} of {quantity(resource, quota)}"


def form(count: float, one: str, many: str) -> str:
    """The form of a verb whose subject is a number."""
    return one if count == 1 else many


def holders(row: LimitUse | CardCapacity, found: Sequence[HolderUse]) -> str:
    """`default/job/hog of queue a (16), ...`, the largest first; without the queue in a row of that queue."""
    resource, own = (row.resource, row.queue) if isinstance(row, LimitUse) else (row.card, "")
    shown = [
        f"{one.workload}{f' of queue {one.queue}' if one.queue not in {'', own} else ''} "
        f"({amount_of(resource, one.amount)})"
        for one in found
    ]
    return brief(shown) if len(found) < MOST_LISTED else f"{', '.join(shown[:4])} and others"


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name, regardless of case; "" when none is similar."""
    folded = {other.casefold(): other for other in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_CLOSE)
    return folded[close[0]] if close else ""


def plain(text: str) -> str:
    """An event's text without the angle brackets of its values."""
    return _BRACKETS.sub(r"\1", _BRACKETS.sub(r"\1", text)).rstrip(".")


def capital(text: str) -> str:
    """With an upper-case first letter."""
    return text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """With a lower-case first letter."""
    return text[:1].lower() + text[1:]


# --- nodes ----------------------------------------------------------------------------------------------------------


def no_node(data: JobFacts) -> tuple[str, list[str]]:
    """Summary and facts of pods that no node fits."""
    message = plain(next(pods.message for pods in data.pending if pods.outcome == "unfit"))
    rows: Sequence[CardCapacity] = data.capacity
    facts = [*nodes(data), *_quota_is_free(data)]
    if not rows:
        return f"No node fits: {message}", facts
    cards = " or ".join(row.card for row in rows)
    if not any(row.histogram for row in rows):
        return _no_candidates(rows, cards), facts
    of_cards = [row for row in rows if row.card != row.resource]
    if of_cards and all(row.largest_free < row.per_pod for row in of_cards):
        rows, cards = of_cards, " or ".join(row.card for row in of_cards)
    if all(row.largest_free < row.per_pod for row in rows):
        largest = max(rows, key=lambda row: row.largest_free)
        on = sum(bar.nodes for row in rows for bar in row.histogram if bar.free == largest.largest_free)
        listed = [node.name for row in rows for node in row.candidates if node.free == largest.largest_free]
        if not largest.largest_free:
            rest = f"none is free on {plural(sum(bar.nodes for row in rows for bar in row.histogram), 'node')}"
            rest += "".join(f"; held by {holders(row, row.holders)}" for row in rows if row.holders)
        else:
            block = amount_of(largest.card, largest.largest_free)
            rest = f"the largest free block is {block}, on {plural(on, 'node')} ({brief(listed)})"
        return f"No node has {quantity(cards, largest.per_pod)} free: {rest}", facts
    return f"No node fits: {message}", facts


def _no_candidates(rows: Sequence[CardCapacity], cards: str) -> str:
    """No node may be used: all are cordoned or have a taint."""
    excluded = [node for row in rows for node in (*row.cordoned, *row.tainted)]
    causes = [
        f"{node.name} is {_excluded(node)}" if _is_state(node) else f"{node.name} has taint {node.excluded}"
        for node in excluded
    ]
    tolerated = ", which the pods do not tolerate" if not all(map(_is_state, excluded)) else ""
    return f"No node with {cards} accepts the pods: {brief(causes)}{tolerated}"


def nodes(data: JobFacts) -> list[str]:
    """Free blocks, the nodes that lack least, excluded nodes, and the holders of the cards."""
    facts: list[str] = []
    for row in data.capacity:
        if row.histogram:
            bars = ", ".join(f"{amount_of(row.card, bar.free)} on {plural(bar.nodes, 'node')}" for bar in row.histogram)
            facts.append(
                f"Free {row.card}: {amount_of(row.card, row.free)} of {amount_of(row.card, row.total)} ({bars})"
            )
        short = [node for node in row.candidates if node.free < row.per_pod <= node.total][:_MOST_NODES]
        facts += [_missing(row, node) for node in short if node.holders]
        for node in (*row.cordoned[:_MOST_NODES], *row.tainted[:_MOST_NODES]):
            free = f"{amount_of(row.card, node.free)} of {amount_of(row.card, node.total)} free"
            facts.append(f"{node.name} is {_excluded(node)} ({free})")
        chosen = [node for node in row.tainted if not is_condition(node.excluded)]
        facts += [f"Toleration for {node.name}: {toleration(node.excluded)}" for node in chosen[:1]]
    return facts


def _is_state(node: NodeUse) -> bool:
    """Whether a node is excluded by what it is: cordoned, or in a condition that no pod tolerates away."""
    return node.excluded == "cordoned" or is_condition(node.excluded)


def _excluded(node: NodeUse) -> str:
    if is_condition(node.excluded):
        return condition_word(node.excluded)
    return "cordoned" if node.excluded == "cordoned" else f"tainted {node.excluded}"


def _missing(row: CardCapacity, node: NodeUse) -> str:
    lacks = quantity(row.card, row.per_pod - node.free)
    return f"{node.name} lacks {lacks}: {holders(row, node.holders)}"


def toleration(taint: str) -> str:
    """The toleration of a taint `key=value:effect`."""
    plain_taint, _, effect = taint.rpartition(":")
    key, equals, value = plain_taint.partition("=")
    assert effect in BLOCKING_EFFECTS
    operator = f"operator: Equal, value: {value}" if equals else "operator: Exists"
    return f"{{key: {key}, {operator}, effect: {effect}}}"


def _quota_is_free(data: JobFacts) -> list[str]:
    """Whether the quotas of the queue and its ancestors cover one pod, or the rest of the gang."""
    facts = []
    for row in data.limits:
        if not row.quota or row.cluster_total is None or not row.requested_per_pod:
            continue
        missing = 1 if data.job.is_ready() else max(1, data.job.min_available - data.job.ready_tasks)
        needed = min(row.requested, missing * row.requested_per_pod)
        free = f"queue {row.queue} has {amount_of(row.resource, row.free)} of {quantity(row.resource, row.quota)} free"
        if (row.free or 0) >= needed:
            facts.append(f"Quota is not the reason: {free}")
        else:
            facts.append(f"Quota is too small as well: {free}, and {amount_of(row.resource, needed)} are needed")
    return facts


# --- quotas ---------------------------------------------------------------------------------------------------------


def over_quota(data: JobFacts, *, gang: bool = False) -> tuple[str, list[str]]:
    """Summary and facts of pods for which the queue or an ancestor lacks quota.

    `gang`: other pods of the gang fit, and none starts alone.
    """
    assert data.quota_refusal is not None
    figures = data.quota_refusal.figures
    assert figures is not None
    keys = figures.resource.split("|")
    rows = [row for key in keys if (row := _tightest(data, key)) is not None]
    if not rows:
        return _over_limit(data, data.quota_refusal, figures)
    queues = list(dict.fromkeys(row.queue for row in rows))
    of = _subject(data.queue.name, queues)
    has = form(len(queues), "has", "have")
    pods = sum(len(pods.names) for pods in data.pending if pods.outcome == "refused")
    per_pod = rows[0].requested_per_pod or in_units(figures.resource, figures.requested)
    names = " or ".join(row.resource for row in rows)
    verb, each = ("needs", "") if pods == 1 else ("need", " each")
    needs, starts = f"{plural(pods, 'pending pod')} {verb} {quantity(names, per_pod)}{each}", pods
    if gang and len(data.pod_cards) == 1:
        starts = max(1, data.job.min_available - data.job.ready_tasks)
        needs = f"the gang needs {quantity(names, starts * per_pod)}"
    used = " and ".join(
        amounts(row.resource, row.used, row.quota) + (f" of queue {row.queue}" if len(queues) > 1 else "")
        for row in rows
    )
    if any(row.over for row in rows):
        over = sum(row.over for row in rows)
        summary = f"{of} {form(len(queues), 'is', 'are')} over {form(len(queues), 'its', 'their')} quota by "
        summary += f"{amount_of(names, over)}: {used} used; {needs}"
    elif not any(row.free for row in rows):
        left = f"left: {used} used" if any(row.quota for row in rows) else f"for {names}"
        summary = f"{of} {has} no quota {left}; {needs}"
    else:
        summary = f"{of} {has} too little quota left: {used} used; {needs}"
    facts = _remedies(data, rows, per_pod, starts, gang=gang)
    for row in rows:
        facts += users(row)
    return summary, facts


def _over_limit(data: JobFacts, refusal: Refusal, figures: Figures) -> tuple[str, list[str]]:
    """Summary and facts of a refusal whose limit is in no row: that of a plugin without card quotas."""
    name, queue = figures.resource, refusal.queue or data.queue.name
    limit, total = in_units(name, figures.limit), in_units(name, figures.total)
    summary = (
        f"{plain(refusal.message)}: the limit of queue {queue} is {amount_of(name, limit)}, and with one more pod "
    )
    summary += f"it would use {amount_of(name, total)}"
    capability = data.capabilities.get(queue, {}).get(name)
    if capability is None or capability <= figures.limit:
        return summary, []
    share = quantity(name, in_units(name, capability))
    nodes = f"the nodes have {amount_of(name, limit)} without the guarantees of other queues"
    return summary, [f"The capability of queue {queue} is {share}, but {nodes}"]


def _subject(own: str, queues: Sequence[str]) -> str:
    """The queues that lack quota, with their relation to the queue of the job."""
    above = [name for name in queues if name != own]
    if len(above) < len(queues):
        more = f" and its {form(len(above), 'ancestor', 'ancestors')} {' and '.join(above)}" if above else ""
        return f"Queue {own}{more}"
    listed = " and ".join(above)
    return f"Queue {listed}, an ancestor of {own}," if len(above) == 1 else f"Queues {listed}, ancestors of {own},"


def _tightest(data: JobFacts, resource: str) -> LimitUse | None:
    """The limit that refuses one pod: that of the queue, else of its nearest ancestor; that of the queue for none."""
    rows = [row for row in data.limits if row.resource == resource]
    short = [row for row in rows if row.free is not None and row.free < row.requested_per_pod]
    return next(iter((*short, *rows)), None)


def _remedies(data: JobFacts, rows: Sequence[LimitUse], per_pod: float, starts: int, *, gang: bool) -> list[str]:
    """What has to become free, or which quota is needed. `rows`: the limit of each alternative; `starts`: pods."""
    if any(row.quota is None for row in rows):
        return []
    if len(rows) == 1:
        row = rows[0]
        pods = starts if gang and len(data.pod_cards) == 1 else 1
        missing = row.used + pods * per_pod - (row.quota or 0.0)
        if missing <= 0:  # pods of other templates take the rest
            return []
        released = f"{quantity(row.resource, missing)} of queue {row.queue} {form(missing, 'becomes', 'become')} free"
        quota = amount_of(row.resource, row.used + pods * per_pod)
        return [f"The {'gang' if gang else 'next pod'} starts when {released}, or with a quota of {quota}"]
    # A quota of one queue helps where the other queues of the chain have enough left.
    rest = [
        other.free
        for row in rows
        for other in data.limits
        if other.resource == row.resource and other.queue != row.queue and other.free is not None
    ]
    if len({row.queue for row in rows}) > 1 or min(rest, default=per_pod) < per_pod:
        return []
    if min(rest, default=starts * per_pod) < starts * per_pod:
        if gang:
            return []
        starts = 1
    who = "The gang starts" if gang else "The next pod starts" if starts == 1 else f"All {starts} start"
    more = max(starts * per_pod + row.used - (row.quota or 0.0) for row in rows)
    names = " or ".join(row.resource for row in rows)
    where = "" if rows[0].queue == data.queue.name else f" in queue {rows[0].queue}"
    return [f"{who} with a quota of {amount_of(names, more)} more of either card{where}"]


def users(row: LimitUse | None) -> list[str]:
    """The users of a limit, and the reservations."""
    if row is None:
        return []
    facts = []
    if row.users:
        facts.append(f"{row.resource} used in queue {row.queue}: {holders(row, row.users)}")
    if row.reservations:
        facts.append(
            f"{row.resource} reserved in queue {row.queue} (limits admission only): {holders(row, row.reservations)}"
        )
    return facts
