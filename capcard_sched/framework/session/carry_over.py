"""What a core keeps from one session to the next, so that a repeated answer costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container

    from capcard_sched.model.explanation import EvictedPod
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.refusal import Refusal


class Nomination(msgspec.Struct, frozen=True):
    """A promise of room on one node to one pod: its whole request."""

    uid: str
    node: str
    #: The action that took the room.
    action: str
    #: Unix seconds: since when, and until when.
    since: float
    expires: float
    #: Uids of the pods that were evicted for it or for others of its gang.
    victims: tuple[str, ...]
    #: The term of office in which it was made (`ClusterState.terms`).
    term: int = 0


class CarryOver:
    """Refusals of earlier sessions, and promises. All may be forgotten at any time: it is then worked out again."""

    def __init__(self) -> None:
        #: Key of a waiting job to what the votes on it followed from, and the refusal they came to.
        self.enqueue: dict[str, tuple[tuple[object, ...], Refusal]] = {}
        #: The refusals of the last session, by object and hook.
        self.refusals: dict[tuple[ObjectRef, str], Refusal] = {}

        #: Since when admitted jobs have had no pod placed, Unix seconds by job key; kept by the enqueue action.
        self.stuck_since: dict[str, float] = {}
        #: Until when jobs that made no progress let others go first.
        self.backoff_until: dict[str, float] = {}

        #: Room taken back for a pod, by its uid: nobody else gets it until the pod is bound, gone or out of time.
        self.nominations: dict[str, Nomination] = {}
        #: Uids of pods that wait on without the room they were promised: their nomination is to be cleared.
        self.expired_nominations: set[str] = set()
        #: uid of a pod whose eviction was refused to when it may be thought of again, Unix seconds.
        self.refused_evictions: dict[str, float] = {}
        #: Key of a job to its pods that were evicted last, oldest first.
        self.evicted: dict[str, list[EvictedPod]] = {}

    def successor(self) -> CarryOver:
        """What outlives a change of the scheduler-conf: promises and what became of evictions."""
        fresh = CarryOver()
        fresh.nominations = self.nominations
        fresh.expired_nominations = self.expired_nominations
        fresh.refused_evictions = self.refused_evictions
        fresh.evicted = self.evicted
        return fresh

    def expire(self, uid: str) -> None:
        """A promise of room ends before it was used."""
        if self.nominations.pop(uid, None) is not None:
            self.expired_nominations.add(uid)

    def repeats(self, ref: ObjectRef, refusal: Refusal) -> bool:
        """Whether the very same refusal (the record, not just its text) stood in the last session."""
        return self.refusals.get((ref, refusal.hook)) is refusal

    def keep(self, jobs: Container[str]) -> None:
        """Forget jobs that are gone. `jobs`: keys."""
        self.enqueue = {key: value for key, value in self.enqueue.items() if key in jobs}
        self.evicted = {key: value for key, value in self.evicted.items() if key in jobs}
