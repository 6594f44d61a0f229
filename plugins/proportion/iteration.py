"""Volcano's rounds of sharing out the cluster (`proportion.iterative`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from capcard_sched.model.resources import Matrix, Vector

Floats = npt.NDArray[np.float64]

#: Base units. Amounts closer than this count as equal.
EPSILON = 0.1
#: Rounds. The loop ends when nothing changes; this bound is never reached.
_MAX_ROUNDS = 10_000


def iterate(
    total: Vector, weights: Vector, floors: Matrix, real_capability: Matrix, requests: Matrix, *, pods_column: int
) -> Floats:
    """Deserved amounts, float64 [queues, resources], from int64 arrays of that shape (`total`: [resources]).

    Every round gives each unmet queue its part, by weight, of the remainder of every resource, and returns the part it
    cannot use. With guarantees the parts may exceed `total`. A remainder of `pods` alone starts no further round.
    """
    deserved: Floats = np.zeros(floors.shape)
    met = np.zeros(len(weights), dtype=bool)
    remaining: Floats = total.astype(np.float64)
    ceilings = np.minimum(real_capability, requests)
    others = np.arange(len(total)) != pods_column
    for _ in range(_MAX_ROUNDS):
        weight = int(weights[~met].sum())
        if weight <= 0:
            break
        parts = remaining * (np.where(met, 0, weights)[:, None] / weight)
        after: Floats = np.where(met[:, None], deserved, np.maximum(np.minimum(deserved + parts, ceilings), floors))
        change = after - deserved
        met |= (requests < after + EPSILON).all(axis=1) | (change == 0).all(axis=1)
        deserved = after
        before = remaining
        given, returned = np.maximum(change, 0).sum(axis=0), np.maximum(-change, 0).sum(axis=0)
        remaining = np.maximum(remaining + returned - given, 0)
        if (remaining[others] < EPSILON).all() or np.array_equal(remaining, before):
            break
    return deserved
