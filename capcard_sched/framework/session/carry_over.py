"""State that outlives a session, so that a repeated result is not computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from capcard_sched.framework.session.session_deadline import Deferral
    from capcard_sched.model.explanation import EvictedPod
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.refusal import Refusal


#: Seconds before figures in the texts of an unchanged failure are written again, and before an event is repeated.
REFRESH_SECONDS = 300.0
#: Evictions kept per job.
_MOST_EVICTIONS = 16


class Nomination(msgspec.Struct, frozen=True):
    """Capacity on one node that is nominated to one pod: its whole request."""

    uid: str
    node: str
    #: The action that evicted the victims.
    action: str
    #: Unix seconds of its creation and of its expiry.
    since: float
    expires: float
    #: Uids of the pods that were evicted for it or for others of its gang.
    victims: tuple[str, ...]
    #: The leader term in which it was made (`ClusterState.terms`).
    term: int = 0


class AdmissionRefusal(NamedTuple):
    """The refusal of a waiting job at admission."""

    #: The admission version of its votes.
    version: tuple[object, ...]
    refusal: Refusal
    #: Unix seconds at which its figures are refreshed.
    refresh_at: float
    #: Whether the refusal is that of an earlier session.
    is_repeated: bool


class CarryOver:
    """Refusals of earlier sessions, and nominations. Everything can be dropped at any time and is recomputed."""

    def __init__(self) -> None:
        #: By key of a waiting job.
        self.enqueue: dict[str, AdmissionRefusal] = {}
        #: The refusals of the last session, by object and hook.
        self.refusals: Mapping[tuple[ObjectRef, str], Refusal] = {}

        #: By key of a job the uid of its first pod that reclaim did not place, the refusal, and the Unix seconds at
        #: which its figures are refreshed.
        self.reclaim_refusals: dict[str, tuple[str, Refusal, float]] = {}
        #: Queues whose attempts the session deadline ended in the last session, by action and queue.
        self.deferrals: dict[str, dict[str, Deferral]] = {}

        #: Unix seconds since which an admitted job has had no pod placed, by queue and job key, the longest first, and
        #: the queue by job key; kept by the enqueue action.
        self.stuck_since: dict[str, dict[str, float]] = {}
        self.stuck_in: dict[str, str] = {}
        #: The limits of each queue at the last session; kept by the enqueue action.
        self.queue_limits: dict[str, tuple[object, ...] | None] = {}
        #: Unix seconds at which a job without progress returned to Pending, by job key: others go first.
        self.requeued_at: dict[str, float] = {}
        #: Unix seconds at which an admitted job without progress returns to Pending; None for none.
        self.inqueue_wakeup: float | None = None

        #: Nominations by pod uid: the capacity stays reserved until the pod is bound, gone or out of time.
        self.nominations: dict[str, Nomination] = {}
        #: Uids of pods whose nomination expired and must be cleared from their status.
        self.expired_nominations: set[str] = set()
        #: uid of a pod whose eviction was refused to the Unix seconds from which it is a candidate again.
        self.refused_evictions: dict[str, float] = {}
        #: Key of a job to its last evicted pods, oldest first.
        self.evicted: dict[str, list[EvictedPod]] = {}

    def successor(self) -> CarryOver:
        """The part that outlives a change of the scheduler-conf: nominations and results of evictions."""
        fresh = CarryOver()
        fresh.nominations = self.nominations
        fresh.expired_nominations = self.expired_nominations
        fresh.refused_evictions = self.refused_evictions
        fresh.evicted = self.evicted
        return fresh

    def remember_eviction(self, key: str, evicted: EvictedPod) -> None:
        """Keeps an eviction among the last ones of a job, by key."""
        evictions = self.evicted.setdefault(key, [])
        evictions.append(evicted)
        del evictions[:-_MOST_EVICTIONS]

    def expire(self, uid: str) -> None:
        """Drops a nomination that was not used."""
        if self.nominations.pop(uid, None) is not None:
            self.expired_nominations.add(uid)

    def repeats(self, ref: ObjectRef, refusal: Refusal) -> bool:
        """Whether the very same refusal (the record, not only its text) was recorded in an earlier session."""
        if self.refusals.get((ref, refusal.hook)) is refusal:
            return True
        known = self.enqueue.get(f"{ref.namespace}/{ref.name}")
        return known is not None and known.is_repeated and known.refusal is refusal

    def keep(self, jobs: Container[str]) -> None:
        """Drops the state of jobs that are gone. `jobs`: keys."""
        self.enqueue = {key: value for key, value in self.enqueue.items() if key in jobs}
        self.evicted = {key: value for key, value in self.evicted.items() if key in jobs}
        self.reclaim_refusals = {key: value for key, value in self.reclaim_refusals.items() if key in jobs}
