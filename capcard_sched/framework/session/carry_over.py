"""State that outlives a session, so that a repeated result is not computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.framework.session.node_places import NodePlaces

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.session.session_deadline import Deferral
    from capcard_sched.model.autoscaled_groups import AutoscaledGroup
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


class UsageRecord(NamedTuple):
    """Usage per queue and namespace up to a session, for the plugin fairshare."""

    #: Unix seconds.
    at: float
    #: Queue to namespace to base units x seconds, decayed.
    usage: Mapping[str, Mapping[str, float]]
    #: `ClusterState.terms` at that time.
    term: int
    #: Unix seconds of the last write of the state.
    written: float


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
        self._is_silent = self._leaves_out_counts = self._expects_nodes = False
        self._node_groups: tuple[AutoscaledGroup, ...] = ()
        self._provisioning_class = ""
        self._admissions: dict[str, AdmissionRefusal] = {}
        #: Refusals at admission, by key of a waiting job.
        self.admissions: Final[Mapping[str, AdmissionRefusal]] = self._admissions
        self._refusals: Mapping[tuple[ObjectRef, str], Refusal] = {}
        self._reclaim_refusals: dict[str, tuple[str, Refusal, float]] = {}
        #: By key of a job: its first pod that reclaim did not place (uid), the refusal, Unix seconds of new figures.
        self.reclaim_refusals: Final[Mapping[str, tuple[str, Refusal, float]]] = self._reclaim_refusals
        self._deferrals: dict[str, dict[str, Deferral]] = {}
        #: Queues whose attempts the session deadline ended in the last session, by action and queue.
        self.deferrals: Final[Mapping[str, Mapping[str, Deferral]]] = self._deferrals
        self._nominations: dict[str, Nomination] = {}
        #: Nominations by pod uid: the capacity stays reserved until the pod is bound, gone or out of time.
        self.nominations: Final[Mapping[str, Nomination]] = self._nominations
        self._expired_nominations: set[str] = set()
        #: Uids of pods whose nomination expired and must be cleared from their status.
        self.expired_nominations: Final[AbstractSet[str]] = self._expired_nominations
        self._refused_evictions: dict[str, float] = {}
        #: Uid of a pod whose eviction was refused to the Unix seconds from which it is a candidate again.
        self.refused_evictions: Final[Mapping[str, float]] = self._refused_evictions
        self._evicted: dict[str, list[EvictedPod]] = {}
        #: Key of a job to its last evicted pods, oldest first.
        self.evicted: Final[Mapping[str, Sequence[EvictedPod]]] = self._evicted

        self._usage_record: UsageRecord | None = None
        #: The pods that the nodes hold when they are empty.
        self.node_places: Final = NodePlaces()
        #: Unix seconds at which terminating pods are overdue.
        self.overdue_moments: Sequence[float] = ()

    def successor(self) -> CarryOver:
        """The part that outlives a change of the scheduler-conf: nominations, results of evictions, and usage."""
        fresh = CarryOver()
        fresh._is_silent, fresh._leaves_out_counts = self._is_silent, self._leaves_out_counts
        fresh._expects_nodes, fresh._node_groups = self._expects_nodes, self._node_groups
        fresh._provisioning_class = self._provisioning_class
        fresh._nominations.update(self._nominations)
        fresh._expired_nominations.update(self._expired_nominations)
        fresh._refused_evictions.update(self._refused_evictions)
        fresh._evicted.update(self._evicted)
        fresh._usage_record = self._usage_record
        return fresh

    def keep(self, jobs: Container[str]) -> None:
        """Drops the state of jobs that are gone. `jobs`: keys."""
        tables: tuple[dict[str, Any], ...] = (self._admissions, self._evicted, self._reclaim_refusals)
        for table in tables:
            for key in [key for key in table if key not in jobs]:
                del table[key]

    @property
    def is_silent(self) -> bool:
        """Whether nothing carries out the intents of sessions: they make no texts for objects."""
        return self._is_silent

    @property
    def leaves_out_counts(self) -> bool:
        """Whether pods of protected jobs are not counted in searches for victims: nothing reads the counts."""
        return self._leaves_out_counts

    @property
    def expects_nodes(self) -> bool:
        """Whether an autoscaler adds nodes for pending pods: the size of the cluster keeps no job from admission."""
        return self._expects_nodes or bool(self._node_groups)

    @property
    def node_groups(self) -> tuple[AutoscaledGroup, ...]:
        """The groups of the scheduler-conf that an autoscaler extends; () for unknown ones."""
        return self._node_groups

    def expects_card(self, cards: Iterable[str]) -> bool:
        """Whether an autoscaler may add nodes with one of some cards, as far as node groups are known."""
        groups = self._node_groups
        return any(card in group.cards for group in groups for card in cards) if groups else self._expects_nodes

    @property
    def provisioning_class(self) -> str:
        """Class of the ProvisioningRequests of gangs that lack nodes; "" for none."""
        return self._provisioning_class

    def expect_nodes(self, provisioning_class: str = "") -> None:
        """Expects nodes of any shape; gangs request theirs with a `provisioning_class`."""
        self._expects_nodes, self._provisioning_class = True, provisioning_class

    def expect_nodes_of(self, groups: tuple[AutoscaledGroup, ...]) -> None:
        """Expects nodes of these groups alone; () of any shape or none, as `expect_nodes`."""
        self._node_groups = groups

    def keep_silent(self, *, searches: bool = False) -> None:
        """Makes every session from now on silent; `searches`: `leaves_out_counts`, too, once it evicts."""
        self._is_silent, self._leaves_out_counts = True, searches

    # --- refusals ---------------------------------------------------------------------------------------------------

    def keep_admission(self, key: str, refusal: AdmissionRefusal) -> None:
        self._admissions[key] = refusal

    def drop_admission(self, key: str) -> None:
        self._admissions.pop(key, None)

    def keep_reclaim_refusal(self, key: str, uid: str, refusal: Refusal, refresh_at: float) -> None:
        """Keeps the refusal of a pod of the job by reclaim; see `reclaim_refusals`."""
        self._reclaim_refusals[key] = uid, refusal, refresh_at

    def keep_refusals(self, refusals: Mapping[tuple[ObjectRef, str], Refusal]) -> None:
        self._refusals = refusals

    def repeats(self, ref: ObjectRef, refusal: Refusal) -> bool:
        """Whether the very same refusal (the record, not only its text) was recorded in an earlier session."""
        if self._refusals.get((ref, refusal.hook)) is refusal:
            return True
        known = self._admissions.get(f"{ref.namespace}/{ref.name}")
        return known is not None and known.is_repeated and known.refusal is refusal

    # --- usage ------------------------------------------------------------------------------------------------------

    @property
    def usage_record(self) -> UsageRecord | None:
        """The usage up to the last session; None before the first one that keeps it."""
        return self._usage_record

    def keep_usage(self, record: UsageRecord) -> None:
        self._usage_record = record

    # --- the session deadline ---------------------------------------------------------------------------------------

    def defer(self, action: str, queue: str, deferral: Deferral) -> None:
        """Keeps the jobs of a queue that an action did not try."""
        self._deferrals.setdefault(action, {})[queue] = deferral

    def pop_deferrals(self, action: str) -> Mapping[str, Deferral]:
        """Removes and returns what an action deferred in the last session, by queue."""
        return self._deferrals.pop(action, {})

    # --- evictions --------------------------------------------------------------------------------------------------

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

    def clear_expired_nomination(self, uid: str) -> None:
        """Records that the status of the pod has no nomination any more."""
        self._expired_nominations.discard(uid)

    def expect_overdue(self, moments: Sequence[float]) -> None:
        """Replaces the moments, Unix seconds, at which terminating pods are overdue."""
        self.overdue_moments = moments

    def refuse_eviction(self, uid: str, until: float) -> None:
        """Excludes a pod from the victims until `until`, Unix seconds, unless it is excluded already."""
        self._refused_evictions.setdefault(uid, until)

    def end_refused_evictions(self, now: float) -> None:
        """Drops the exclusions that have ended; `now` in Unix seconds."""
        for uid in [uid for uid, until in self._refused_evictions.items() if until <= now]:
            del self._refused_evictions[uid]

    def remember_eviction(self, key: str, evicted: EvictedPod) -> None:
        """Keeps an eviction among the last ones of a job, by key."""
        evictions = self._evicted.setdefault(key, [])
        evictions.append(evicted)
        del evictions[:-_MOST_EVICTIONS]
