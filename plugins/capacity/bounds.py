"""The bounds on further pods of a queue of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.quota.limits import QuotaBound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.framework.quota.limits import Needs
    from capcard_sched.plugins.capacity.branch import Branch


def allocation_bounds(leaf: Branch, needs: Needs, *, nominating: bool) -> Iterator[QuotaBound]:
    """Bounds of allocate: the real capability of the queue and of every branch above it.

    The unused guarantees of other queues are not available either. Pods that are being released count until they are
    gone, except when `nominating`.
    """
    for name, column, amount in needs:
        for branch in leaf.path:
            held, limit = _held(branch, column, nominating), branch.real_capability.item(column)
            yield QuotaBound((limit - held) // amount, name, amount, branch.name, held, limit)
        if leaf.guarded:
            yield from _guarantee_bounds(leaf, name, column, amount, nominating)


def _held(branch: Branch, column: int, nominating: bool) -> int:
    return branch.held.item(column) + (0 if nominating else branch.releasing.item(column))


def _guarantee_bounds(leaf: Branch, name: str, column: int, amount: int, nominating: bool) -> Iterator[QuotaBound]:
    own = leaf.kept.item(column)  # the unused guarantee that is kept for this queue
    branch = leaf
    while branch.parent is not None:
        parent = branch.parent
        others = parent.earmarked.item(column) - own
        if others > 0:
            held, limit = _held(parent, column, nominating), parent.real_capability.item(column) - others
            fitting = max(own // amount, (limit - held) // amount)
            yield QuotaBound(fitting, name, amount, parent.name, held, limit)
        own += parent.kept.item(column) - parent.earmarked.item(column)
        branch = parent


def reclaim_bounds(leaf: Branch, needs: Needs) -> Iterator[QuotaBound]:
    """Bounds of reclaim: the deserved amounts and the real capability of the queue.

    `deserved` limits only the resources it names; a queue that names none of the requested ones reclaims nothing.
    """
    named = any(column in leaf.named for _, column, _ in needs)
    for name, column, amount in needs:
        held, limit = leaf.held.item(column), leaf.real_capability.item(column)
        if not named:
            yield QuotaBound(0, name, amount, leaf.name, held, 0)
            continue
        if column in leaf.named:
            limit = min(limit, leaf.deserved.item(column))
        yield QuotaBound((limit - held) // amount, name, amount, leaf.name, held, limit)
