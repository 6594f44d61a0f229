"""The rounds by which the reference shares the cluster out, for comparison (plugins reference §6.2, Ref)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from capcard_sched.model.resources import Matrix, Vector

Floats = npt.NDArray[np.float64]

#: Amounts closer than this count as equal.
EPSILON = 0.1
#: The rounds end by themselves, when nothing moves any more; this many are never needed.
_MAX_ROUNDS = 10_000


def iterate(
    total: Vector, weights: Vector, floors: Matrix, real_capability: Matrix, requests: Matrix, *, pods_column: int
) -> Floats:
    """Deserved amounts, float64 [queues, resources], from int64 arrays of that shape (`total`: [resources]).

    Every round gives each queue that is not met its part, by weight, of what remains of every resource, and takes back
    what it cannot use. With guarantees the parts may add up to more than `total`. `pods` alone keeps no round going.
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
