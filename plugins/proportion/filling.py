"""Weighted max-min shares of one resource, exactly (plugins reference §6.2, Better)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fractions x/w of weights below 2**31 differ by more than 2**-62, so their floors at this precision keep their order.
_PRECISION = 64


def fill(total: int, weights: Sequence[int], floors: Sequence[int], ceilings: Sequence[int]) -> list[int]:
    """Share `total` out: everyone gets `level * weight`, but no less than its floor and no more than its ceiling.

    The level is the highest at which no more than `total` is given away; it is found exactly, as a fraction, by one
    pass over the sorted amounts at which someone leaves its floor or reaches its ceiling. Shares are rounded down to
    whole base units, which changes no comparison with whole requests.

    Floors alone may add up to more than `total`: then everyone gets its floor. A floor above its ceiling wins. Weights
    below 1 get their floor. O(n log n).
    """
    tops = [max(floor, ceiling) for floor, ceiling in zip(floors, ceilings, strict=True)]
    given = sum(floors)  # by those that do not rise: at their floor still, or at their ceiling already
    rate = 0  # sum of the weights of those that rise
    if given >= total:
        return list(floors)
    events: list[tuple[int, int, int]] = []  # (level as a sortable integer, who, 1 when it reaches its ceiling)
    for who, (weight, floor, top) in enumerate(zip(weights, floors, tops, strict=True)):
        if weight > 0 and top > floor:
            events.append(((floor << _PRECISION) // weight, who, 0))
            events.append(((top << _PRECISION) // weight, who, 1))
    events.sort()
    for _, who, full in events:
        weight = weights[who]
        amount = tops[who] if full else floors[who]
        if given * weight + amount * rate >= total * weight:  # the level of this event gives everything away
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
