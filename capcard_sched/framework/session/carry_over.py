"""State that outlives a session, so that a repeated result is not computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from collections.abc import Set as AbstractSet

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
    """Refusals of earlier sessions, and nominations. Everything can be dropped at any time and is recomputed.

    Its methods alone change it.
    """

    def __init__(self) -> None:
        self._is_silent = False
        self._admissions: dict[str, AdmissionRefusal] = {}
        self._refusals: Mapping[tuple[ObjectRef, str], Refusal] = {}
        self._reclaim_refusals: dict[str, tuple[str, Refusal, float]] = {}
        self._deferrals: dict[str, dict[str, Deferral]] = {}
        self._nominations: dict[str, Nomination] = {}
        self._expired_nominations: set[str] = set()
        self._refused_evictions: dict[str, float] = {}
        self._evicted: dict[str, list[EvictedPod]] = {}

    def successor(self) -> CarryOver:
        """The part that outlives a change of the scheduler-conf: nominations and results of evictions."""
        fresh = CarryOver()
        fresh._is_silent = self._is_silent
        fresh._nominations = self._nominations
        fresh._expired_nominations = self._expired_nominations
        fresh._refused_evictions = self._refused_evictions
        fresh._evicted = self._evicted
        return fresh

    def keep(self, jobs: Container[str]) -> None:
        """Drops the state of jobs that are gone. `jobs`: keys."""
        self._admissions = {key: value for key, value in self._admissions.items() if key in jobs}
        self._evicted = {key: value for key, value in self._evicted.items() if key in jobs}
        self._reclaim_refusals = {key: value for key, value in self._reclaim_refusals.items() if key in jobs}

    @property
    def is_silent(self) -> bool:
        """Whether nothing carries out the intents of sessions: they make no texts for objects."""
        return self._is_silent

    def keep_silent(self) -> None:
        """Makes every session from now on silent."""
        self._is_silent = True

    # --- refusals ---------------------------------------------------------------------------------------------------

    @property
    def admissions(self) -> Mapping[str, AdmissionRefusal]:
        """Refusals at admission, by key of a waiting job."""
        return self._admissions

    def keep_admission(self, key: str, refusal: AdmissionRefusal) -> None:
        """Keeps the refusal of a job, by key, at admission."""
        self._admissions[key] = refusal

    def drop_admission(self, key: str) -> None:
        """Drops the refusal of a job, by key, at admission."""
        self._admissions.pop(key, None)

    @property
    def reclaim_refusals(self) -> Mapping[str, tuple[str, Refusal, float]]:
        """By key of a job: its first pod that reclaim did not place (uid), the refusal, Unix seconds of new figures."""
        return self._reclaim_refusals

    def keep_reclaim_refusal(self, key: str, uid: str, refusal: Refusal, refresh_at: float) -> None:
        """Keeps the refusal of a pod of the job by reclaim; see `reclaim_refusals`."""
        self._reclaim_refusals[key] = uid, refusal, refresh_at

    def keep_refusals(self, refusals: Mapping[tuple[ObjectRef, str], Refusal]) -> None:
        """Keeps the refusals of the last session, by object and hook."""
        self._refusals = refusals

    def repeats(self, ref: ObjectRef, refusal: Refusal) -> bool:
        """Whether the very same refusal (the record, not only its text) was recorded in an earlier session."""
        if self._refusals.get((ref, refusal.hook)) is refusal:
            return True
        known = self._admissions.get(f"{ref.namespace}/{ref.name}")
        return known is not None and known.is_repeated and known.refusal is refusal

    # --- the session deadline ---------------------------------------------------------------------------------------

    @property
    def deferrals(self) -> Mapping[str, Mapping[str, Deferral]]:
        """Queues whose attempts the session deadline ended in the last session, by action and queue."""
        return self._deferrals

    def defer(self, action: str, queue: str, deferral: Deferral) -> None:
        """Keeps the jobs of a queue that an action did not try."""
        self._deferrals.setdefault(action, {})[queue] = deferral

    def pop_deferrals(self, action: str) -> Mapping[str, Deferral]:
        """Removes and returns what an action deferred in the last session, by queue."""
        return self._deferrals.pop(action, {})

    # --- evictions --------------------------------------------------------------------------------------------------

    @property
    def nominations(self) -> Mapping[str, Nomination]:
        """Nominations by pod uid: the capacity stays reserved until the pod is bound, gone or out of time."""
        return self._nominations

    def nominate(self, nomination: Nomination) -> None:
        """Keeps capacity for a pod, in place of an earlier nomination."""
        self._nominations[nomination.uid] = nomination

    def end_nomination(self, uid: str) -> None:
        """Drops the nomination of a pod that was bound or is gone."""
        self._nominations.pop(uid, None)

    def expire(self, uid: str) -> None:
        """Drops a nomination that was not used."""
        if self._nominations.pop(uid, None) is not None:
            self._expired_nominations.add(uid)

    @property
    def expired_nominations(self) -> AbstractSet[str]:
        """Uids of pods whose nomination expired and must be cleared from their status."""
        return self._expired_nominations

    def clear_expired_nomination(self, uid: str) -> None:
        """Records that the status of the pod has no nomination any more."""
        self._expired_nominations.discard(uid)

    @property
    def refused_evictions(self) -> Mapping[str, float]:
        """Uid of a pod whose eviction was refused to the Unix seconds from which it is a candidate again."""
        return self._refused_evictions

    def refuse_eviction(self, uid: str, until: float) -> None:
        """Excludes a pod from the victims until `until`, Unix seconds, unless it is excluded already."""
        self._refused_evictions.setdefault(uid, until)

    def end_refused_evictions(self, now: float) -> None:
        """Drops the exclusions that have ended; `now` in Unix seconds."""
        self._refused_evictions = {uid: until for uid, until in self._refused_evictions.items() if until > now}

    @property
    def evicted(self) -> Mapping[str, Sequence[EvictedPod]]:
        """Key of a job to its last evicted pods, oldest first."""
        return self._evicted

    def remember_eviction(self, key: str, evicted: EvictedPod) -> None:
        """Keeps an eviction among the last ones of a job, by key."""
        evictions = self._evicted.setdefault(key, [])
        evictions.append(evicted)
        del evictions[:-_MOST_EVICTIONS]
