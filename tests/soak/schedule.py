"""The fault schedule of a soak: a function of seed and duration."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final, NamedTuple


class ScheduledFault(NamedTuple):
    """One fault. `choice` selects its target among those that exist when it strikes."""

    #: Seconds since the start of the soak.
    at: float
    kind: str
    #: Seconds the fault lasts; 0 for an instant one.
    seconds: float
    choice: int


#: Kind to weight and range of its duration in seconds.
KINDS: Final[dict[str, tuple[int, float, float]]] = {
    # Replicas
    "kill-leader": (3, 0.0, 2.0),
    "kill-standby": (2, 0.0, 2.0),
    "stop-leader": (3, 1.0, 8.0),
    "stop-standby": (1, 1.0, 8.0),
    "terminate-leader": (1, 0.0, 0.0),
    # Control plane
    "restart-apiserver": (1, 0.0, 0.0),
    "restart-etcd": (1, 0.0, 0.0),
    "compact": (1, 0.0, 0.0),
    # Watches: a pause of one kind reorders its events after those of the other kinds.
    "cut-watches": (3, 0.0, 0.0),
    "cut-event": (3, 0.0, 0.0),
    "pause-pods": (2, 0.5, 6.0),
    "pause-nodes": (2, 0.5, 6.0),
    "pause-podgroups": (2, 0.5, 6.0),
    "pause-queues": (1, 0.5, 6.0),
    # Requests
    "partition": (2, 1.0, 8.0),
    "refuse-binds": (3, 0.0, 0.0),
    "refuse-writes": (3, 0.0, 0.0),
    "refuse-evictions": (2, 0.0, 0.0),
    "delay-binds": (3, 0.5, 3.0),
    "lose-bind-responses": (3, 0.0, 0.0),
    "time-out-binds": (2, 0.0, 0.0),
    "lose-eviction-responses": (2, 0.0, 0.0),
    # Cluster
    "delete-node": (2, 3.0, 10.0),
    "cordon-node": (2, 3.0, 10.0),
    "shrink-node": (1, 3.0, 10.0),
    "lower-quota": (2, 3.0, 15.0),
    "raise-quota": (1, 3.0, 15.0),
    "slow-kubelet": (2, 3.0, 10.0),
    # Administrators: no admission policy applies to them.
    "reassign-podgroup": (2, 0.0, 0.0),
    "remove-podgroup": (2, 0.0, 0.0),
    # Tenants
    "edit-card-name": (3, 0.0, 0.0),
    "malform-card-name": (2, 0.0, 0.0),
    "move-podgroup": (3, 0.0, 0.0),
    "delete-podgroup": (3, 0.0, 0.0),
    "long-grace": (2, 0.0, 0.0),
    "unnamed-card": (2, 0.0, 0.0),
    "critical-podgroup": (1, 0.0, 0.0),
    "impossible-gang": (2, 0.0, 0.0),
    "affinity-terms": (1, 0.0, 0.0),
    # A tenant of the controllers, and their end
    "kill-controllers": (3, 0.0, 2.0),
    "hostile-job": (4, 0.0, 0.0),
    "hostile-failure": (4, 0.0, 0.0),
    "hostile-command": (4, 0.0, 0.0),
    "hostile-cronjob": (1, 0.0, 0.0),
    "hostile-owner": (2, 0.0, 0.0),
    # The admission server
    "kill-admission": (3, 0.0, 4.0),
}
#: Kinds that end a process.
ENDING: Final = frozenset({"kill-leader", "kill-standby", "terminate-leader", "kill-controllers", "kill-admission"})
#: Seconds: in the second half of each period no process ends, so that its memory is measured over a quarter of an hour.
PERIOD: Final = 1800.0
#: Seconds: mean time between two faults.
MEAN_GAP: Final = 2.5
#: Seconds without faults at the beginning.
WARM_UP: Final = 5.0


def fault_schedule(
    seed: int, seconds: float, only: Collection[str] = (), gap: float = MEAN_GAP
) -> list[ScheduledFault]:
    """Faults in order of time. The schedule of a shorter soak is a prefix of that of a longer one.

    `only`: kinds to choose from; empty: all. `gap`: seconds, mean time between two faults.
    """
    rng = random.Random(seed)
    chosen = [kind for kind in KINDS if not only or kind in only]
    found: list[ScheduledFault] = []
    at = WARM_UP
    while True:
        at += rng.expovariate(1 / gap)
        if at >= seconds:
            return found
        kinds = [kind for kind in chosen if at % PERIOD < PERIOD / 2 or kind not in ENDING]
        if not kinds:
            continue
        kind = rng.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
        _, shortest, longest = KINDS[kind]
        found.append(ScheduledFault(round(at, 3), kind, round(rng.uniform(shortest, longest), 3), rng.randrange(10**6)))
