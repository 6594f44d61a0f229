"""Limits of queues by resource: capabilities as vectors, requests that exceed them, and the refusals."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import is_card_quota
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.resources import CPU, MEMORY, PODS, VGPU_RESOURCES
from capcard_sched.validation.hint_checks import parent_problem, unenforced_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.refusal import ExceededLimit, Limiter
    from capcard_sched.model.resources import Amounts, ResourceColumns, Vector
    from capcard_sched.validation.checks import Finding
    from capcard_sched.validation.hint_checks import QuotaPlugins

#: Base units. No limit: above any amount, small enough to add amounts to.
UNLIMITED: Final = 2**62

#: Request of one pod: (resource, column, amount > 0), without `pods`; in the order of messages.
Needs = list[tuple[str, int, int]]


class QuotaBound(NamedTuple):
    """One limit on one resource, for pods of one request."""

    #: Number of further pods that fit; may be negative.
    fitting: int
    resource: str
    #: Request of one pod, > 0.
    amount: int
    #: The queue that has the limit.
    queue: str
    held: int
    limit: int


class QuotaShortage(NamedTuple):
    """A request that does not fit: the insufficient resources in order, and the figures of the first."""

    names: list[str]
    figures: Figures
    #: The queue that has the limit of the first; "" for that of the request.
    queue: str = ""
    #: For a request with alternatives: the figures of each.
    alternatives: tuple[Figures, ...] = ()


def capability_vector(capability: Amounts | None, resources: ResourceColumns) -> Vector:
    """int64 [resource columns]; UNLIMITED for scalars not named, and for cpu and memory not named or not above 0."""
    vector = np.full(resources.width, UNLIMITED, dtype=np.int64)
    for name, amount in (capability or {}).items():
        column = resources.find(name)
        if column is not None and (amount > 0 or name not in (CPU, MEMORY)):
            vector[column] = amount
    return vector


def scaled(amount: int, factor: float) -> int:
    """`amount` x `factor`, rounded down to the unit; exact for the decimal in the scheduler-conf."""
    if factor == 1:
        return amount
    numerator, denominator = _ratio(factor)
    return amount * numerator // denominator


# Computed 2.4 us, kept 0.04 (benchmarks/caches.py).
@lru_cache(maxsize=8)
def _ratio(factor: float) -> tuple[int, int]:
    return Fraction(str(factor)).as_integer_ratio()


def limiting_total(total: Vector, guaranteed: Vector, shares: Rows) -> Vector:
    """The amounts that all queues together can hold: int64 [resource columns].

    `total`: of the cluster; `guaranteed`: sum of the guarantees. Shared devices have no limit where no queue names
    them, so the cluster limits their columns `shares` only to keep guarantees free.
    """
    found = total.copy()
    found[shares[guaranteed[shares] == 0]] = UNLIMITED
    return found


def unenforced(
    queue: Queue, parents: Mapping[str, str], plugins: QuotaPlugins, *, is_parent: bool, shares: AbstractSet[str]
) -> list[Finding]:
    """Warnings about limits without effect: of the queue, and of a parent that is missing or part of a cycle.

    `parents`: each queue to its parent, "" for root; `shares`: resources of shared devices.
    """
    limits = {
        "capability": queue.capability or {},
        "deserved": queue.deserved or {},
        "guarantee": queue.guarantee or {},
    }
    found = unenforced_limits(queue.name, limits, queue.annotations, plugins, is_parent=is_parent, shares=shares)
    if not plugins.is_tree:  # the tree of capacity reports its own faults
        problem = parent_problem(queue.name, parents, "does not exist: limits of a parent do not apply")
        found += [problem] if problem is not None else []
    return found


def lacks_card_quota(exceeded: ExceededLimit, queues: Mapping[str, Queue], plugins: QuotaPlugins) -> bool:
    """Whether the limit is that of a card, 0 because its queue has no card quota."""
    figures, queue = exceeded.figures, queues.get(exceeded.queue)
    of_card = "capacity-card" in plugins.names and figures.resource not in (CPU, MEMORY, *VGPU_RESOURCES)
    return of_card and not figures.limit and not (queue and is_card_quota(queue.annotations.get(CARD_QUOTA)))


def tightest(bounds: Iterable[QuotaBound], wanted: int) -> tuple[int, Sequence[QuotaBound]]:
    """How many of `wanted` pods fit all bounds, and the bounds that are reached then: the first of each resource."""
    count, found = wanted, dict[str, QuotaBound]()
    for bound in bounds:
        fitting = max(0, bound.fitting)
        if fitting < count:
            count, found = fitting, {bound.resource: bound}
        elif fitting == count < wanted:
            found.setdefault(bound.resource, bound)
    return count, list(found.values())


def shortage_at(bounds: Sequence[QuotaBound], before: int) -> QuotaShortage:
    """The shortage of the pod that comes after `before` others. `bounds`: those that are reached, in order."""
    first = bounds[0]
    figures = Figures(first.resource, first.amount, first.held + first.amount * (before + 1), first.limit)
    return QuotaShortage([bound.resource for bound in bounds], figures, first.queue)


def admit(
    need: Amounts, used: Vector, reserved: Vector, limit: Vector, resources: ResourceColumns
) -> QuotaShortage | None:
    """Whether a request fits a limit beside `used`, of which `reserved` is for admitted jobs; None when it does.

    Only requested resources (> 0) count, `pods` never does. A name without a column has a limit of 0.
    """
    names = None
    for name, amount in need.items():
        if amount <= 0 or name == PODS:
            continue
        column = resources.find(name)
        if column is None or amount + used.item(column) > limit.item(column):
            names = [*names, name] if names else [name]
    if names is None:
        return None
    names = resources.sorted_names(names)
    first = names[0]
    column = resources.find(first)
    before, held_back, most = 0, 0, 0
    if column is not None:
        before, held_back, most = used.item(column), reserved.item(column), limit.item(column)
    held_back = max(0, min(held_back, before))
    return QuotaShortage(names, Figures(first, need[first], need[first] + before, most, held_back))


def refusal(
    plugin: str, hook: str, queue: str, row: Reason, word: str, found: QuotaShortage, limiter: Limiter | None = None
) -> Refusal:
    """The refusal of a plugin; `word`: that before each resource in the message. An event only at enqueue."""
    return Refusal(
        hook,
        plugin,
        row.code,
        row.render(dimensions=_listed(word, found.names), queue=queue),
        queue=queue,
        figures=found.figures,
        limiter=limiter,
        event=hook == "job_enqueueable",
        type=row.type,
    )


def _listed(word: str, names: Iterable[str]) -> str:
    """`: <word> cpu, <word> memory`."""
    return f": {', '.join(f'{word} {name}' for name in names)}"
