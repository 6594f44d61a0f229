"""Exact weighted max-min shares of one resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fractions x/w of weights below 2**31 differ by more than 2**-62, so their floors at this precision keep their order.
_PRECISION = 64


def fill(total: int, weights: Sequence[int], floors: Sequence[int], ceilings: Sequence[int]) -> list[int]:
    """Share out `total`: each entry gets `level * weight`, at least its floor and at most its ceiling.

    The level is the highest whose shares do not exceed `total`; it is found exactly, as a fraction, by one pass over
    the sorted levels at which an entry leaves its floor or reaches its ceiling. Shares are rounded down to whole base
    units, which changes no comparison with whole requests.

    When the floors exceed `total`, each entry gets its floor. A floor above its ceiling wins. Weights below 1 get their
    floor. O(n log n).
    """
    tops = [max(floor, ceiling) for floor, ceiling in zip(floors, ceilings, strict=True)]
    given = sum(floors)  # of the entries at their floor or at their ceiling
    rate = 0  # sum of the weights of the entries between
    if given >= total:
        return list(floors)
    events: list[tuple[int, int, int]] = []  # (level as a sortable integer, entry, 1 at its ceiling)
    for entry, (weight, floor, top) in enumerate(zip(weights, floors, tops, strict=True)):
        if weight > 0 and top > floor:
            events.append(((floor << _PRECISION) // weight, entry, 0))
            events.append(((top << _PRECISION) // weight, entry, 1))
    events.sort()
    for _, entry, full in events:
        weight = weights[entry]
        amount = tops[entry] if full else floors[entry]
        if given * weight + amount * rate >= total * weight:  # the shares of this level reach `total`
            return [
                max(floor, min(top, (total - given) * weight // rate)) if weight > 0 else floor
                for weight, floor, top in zip(weights, floors, tops, strict=True)
            ]
        if full:
            given += amount
            rate -= weight
        else:
            given -= amount
            rate += weight
    return [top if weight > 0 else floor for weight, floor, top in zip(weights, floors, tops, strict=True)]
