"""How much more a queue may take, and what stands in the way (plugins reference §7.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.plugins.capacity.branch import Branch

#: What one pod asks for: (resource, column, amount > 0), without `pods`.
Needs = list[tuple[str, int, int]]


class QuotaBound(NamedTuple):
    """One limit on one resource."""

    #: How many pods it lets in; may be negative.
    lets_in: int
    resource: str
    #: Whose limit it is.
    queue: str
    taken: int
    limit: int


def may_hold(leaf: Branch, needs: Needs) -> Iterator[QuotaBound]:
    """Limits on what pods of the queue may hold: its own real capability and that of every branch above it.

    Beyond these, nobody may take what others are guaranteed and do not use yet, but for his own part of it.
    """
    for name, column, amount in needs:
        for branch in leaf.path:
            taken, limit = branch.held.item(column), branch.real_capability.item(column)
            yield QuotaBound((limit - taken) // amount, name, branch.name, taken, limit)
        if leaf.guarded:
            yield from _beside_guarantees(leaf, name, column, amount)


def _beside_guarantees(leaf: Branch, name: str, column: int, amount: int) -> Iterator[QuotaBound]:
    own = leaf.kept.item(column)  # the part of what is kept free that is kept for this queue
    branch = leaf
    while branch.parent is not None:
        parent = branch.parent
        others = parent.earmarked.item(column) - own
        if others > 0:
            taken, limit = parent.held.item(column), parent.real_capability.item(column) - others
            yield QuotaBound(max(own // amount, (limit - taken) // amount), name, parent.name, taken, limit)
        own += parent.kept.item(column) - parent.earmarked.item(column)
        branch = parent


def may_take_back(leaf: Branch, needs: Needs) -> Iterator[QuotaBound]:
    """Limits on what the queue may reclaim: what it deserves, and what it may have at most.

    A resource that `deserved` does not name is no matter of it, unless it names none that is asked for: such a queue
    is entitled to nothing.
    """
    named = any(column in leaf.named for _, column, _ in needs)
    for name, column, amount in needs:
        taken, limit = leaf.held.item(column), leaf.real_capability.item(column)
        if not named:
            yield QuotaBound(0, name, leaf.name, taken, 0)
            continue
        if column in leaf.named:
            limit = min(limit, leaf.deserved.item(column))
        yield QuotaBound((limit - taken) // amount, name, leaf.name, taken, limit)


def tightest(bounds: Iterable[QuotaBound], wanted: int) -> tuple[int, Sequence[QuotaBound]]:
    """How many of `wanted` pods all bounds let in, and the bounds that let in no more, one per resource."""
    count, found = wanted, dict[str, QuotaBound]()
    for bound in bounds:
        fitting = max(0, bound.lets_in)
        if fitting < count:
            count, found = fitting, {bound.resource: bound}
        elif fitting == count < wanted:
            found.setdefault(bound.resource, bound)
    return count, list(found.values())
