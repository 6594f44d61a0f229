"""Claims that pods name by `resourceClaimName`: one of their pods is charged for the devices.

It is the first in `status.reservedFor`, else the first by uid; pods that are evicted come last. So the charge follows
from claims and pods alone, also after a restart, and undoing a placement restores it. It stays in the queue of the pod
whose placement allocated the claim: pods of other queues are refused. An allocated claim without such a pod is charged
to the queue that its record names.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from capcard_sched.model.pod_claims import named_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.devices.claims import Claim
    from capcard_sched.model.job import Job, Task
    from capcard_sched.plugins.capacity_card.cards import CardDemand, CardDemands
    from capcard_sched.plugins.capacity_card.claim_cards import SharedPart
    from capcard_sched.plugins.capacity_card.quota import JobAccount

    #: Adds cards to the sums of a queue, a number of times. False if it does not exist.
    ChargeQueue: TypeAlias = Callable[[str, tuple[tuple[str, int], ...], int], bool]


class _Payer(NamedTuple):
    """The pod that is charged for a claim."""

    uid: str
    account: JobAccount
    #: Cards and thousandths.
    cards: tuple[tuple[str, int], ...]


class _Unused(NamedTuple):
    """The queue that is charged for an allocated claim without pods, and its cards."""

    queue: str
    cards: tuple[tuple[str, int], ...]


class SharedClaims:
    """The pods that hold quota and name such claims, and which of them is charged for each claim."""

    def __init__(self, demands: CardDemands) -> None:
        self.demands = demands
        #: By key of a claim: uid of each pod to the account of its job.
        self._users: dict[str, dict[str, JobAccount]] = {}
        self._payers: dict[str, _Payer] = {}
        self._unused: dict[str, _Unused] = {}
        #: By key of a claim the jobs that name it, and the claims by key of the job.
        self._jobs: dict[str, set[str]] = {}
        self._named: dict[str, frozenset[str]] = {}
        self._unsettled: set[str] = set()
        #: Those of them whose charge ended with their pod.
        self._unpaid: set[str] = set()
        #: Keys of claims whose record names a queue that does not exist: they are tried once in a session.
        self._without_queue: set[str] = set()
        #: Equal for equal payers: undoing a placement restores it.
        self.version = 0

    def demand(self, task: Task) -> CardDemand:
        """The demand of a pod, without the claims that other pods of its queue are charged for."""
        demand = self.demands.of(task.cls)
        if not demand.shared:
            return demand
        paid, held = list[str](), list[tuple[str, int]]()
        for key, _ in demand.shared:
            payer = self._payers.get(key)
            queue = payer.account.queue.name if payer is not None else self.demands.claims.queue_of(key)
            if queue and (task.job is None or queue != task.job.queue):
                own = "" if task.job is None else f": pods of queue {task.job.queue} cannot use it"
                return demand.refused(f"resourceclaim {key} is charged to queue {queue}{own}")
            if payer is not None and payer.uid != task.uid:
                paid.append(key)
                held += payer.cards
            elif payer is None and key in self._unused:
                paid.append(key)
                held += self._unused[key].cards
        if not paid:
            return demand
        return demand.reduced(next((card for card, _ in held if card in demand.alternatives), ""), tuple(paid))

    def unpaid(self, task: Task) -> tuple[SharedPart, ...]:
        """The claims that a pod may share and that no pod is charged for, with their amounts."""
        paid = self._payers.keys() | self._unused.keys()
        return tuple([each for each in self.demands.of(task.cls).shared if each[0] not in paid])

    def held(self, task: Task) -> Mapping[str, int]:
        """The thousandths by card of the claims of a pod that have devices and are not charged yet."""
        found = Counter[str]()
        for key in named_claims(task.namespace, task.cls.claims):
            if key not in self._payers and key not in self._unused:
                found.update(self.demands.claims.cards_of(key) or {})
        return found

    # --- pods -------------------------------------------------------------------------------------------------------

    def note(self, job: Job) -> None:
        """Notes the claims that the pods of a job name. O(pods)."""
        classes = [cls for cls in job.classes if cls.claims]
        if not classes and job.key not in self._named:
            return
        named = {key for cls in classes for key, _ in self.demands.of(cls).shared}
        self._unname(job.key)
        if named:
            self._named[job.key] = frozenset(named)
        for key in named:
            self._jobs.setdefault(key, set()).add(job.key)
        self._unsettled |= named

    def _unname(self, job: str) -> frozenset[str]:
        named = self._named.pop(job, frozenset())
        for key in named:
            self._jobs[key].discard(job)
            if not self._jobs[key]:
                del self._jobs[key]
        return named

    def use(self, account: JobAccount, uid: str, shared: Iterable[SharedPart]) -> None:
        """Notes that a pod holds quota, begins to leave, or stays after all."""
        for key, _ in shared:
            self._users.setdefault(key, {})[uid] = account
            self._unsettled.add(key)

    def drop(self, uid: str, shared: Iterable[SharedPart]) -> None:
        """Notes that a pod is not charged any more."""
        for key, _ in shared:
            self._forget(key, uid)

    def close(self, account: JobAccount) -> None:
        """Notes that no pod of a job is charged any more."""
        for key in sorted(self._unname(account.job.key)):
            for uid in [uid for uid, of in self._users.get(key, {}).items() if of is account]:
                self._forget(key, uid)

    def _forget(self, key: str, uid: str) -> None:
        users = self._users.get(key, {})
        users.pop(uid, None)
        if not users:
            self._users.pop(key, None)
        payer = self._payers.get(key)
        if payer is not None and payer.uid == uid:
            del self._payers[key]
            self._toggle(key, payer)
            self._unpaid.add(key)
        self._unsettled.add(key)

    def watch(self, keys: Iterable[str], claims: Mapping[str, Claim]) -> None:
        """Notes claims that changed: those of no single pod may be allocated without one."""
        self._unsettled |= self._without_queue
        self._without_queue.clear()
        for key in keys:
            claim = claims.get(key)
            if key in self._unused or (claim is not None and claim.owner is None and claim.record.cards):
                self._unsettled.add(key)

    def close_queue(self, name: str, charge: ChargeQueue) -> None:
        """Takes back the charges of a queue for claims without pods."""
        for key in [key for key, unused in self._unused.items() if unused.queue == name]:
            self._toggle(key, self._unused[key])
            charge(*self._unused.pop(key), -1)
            self._unpaid.add(key)
            self._unsettled.add(key)

    # --- charges ----------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the pods of no claim changed since `settle`."""
        return not self._unsettled

    def settle(
        self,
        claims: Mapping[str, Claim],
        recharge: Callable[[JobAccount, str, tuple[tuple[str, int], ...], int], None],
        charge: ChargeQueue,
    ) -> set[str]:
        """Chooses who is charged for the claims whose pods changed. Returns the keys of the jobs that name them.

        `recharge` adds cards to the charge of a pod, a number of times, `charge` to a queue; False if it does not
        exist.
        """
        found: set[str] = set()
        for key in sorted(self._unsettled):
            claim, before, unused = claims.get(key), self._payers.get(key), self._unused.get(key)
            payer = self._payer(key, claim.first_consumer if claim is not None else "")
            if payer != before:
                if before is not None:
                    self._toggle(key, before)
                    recharge(before.account, before.uid, before.cards, -1)
                if payer is None:
                    self._payers.pop(key, None)
                else:
                    self._payers[key] = payer
                    self._toggle(key, payer)
                    recharge(payer.account, payer.uid, payer.cards, 1)
            self._settle_unused(key, claim if payer is None else None, charge)
            if payer != before or key in self._unpaid or self._unused.get(key) != unused:
                found |= self._jobs.get(key, set())
        self._unsettled.clear()
        self._unpaid.clear()
        return found

    def _settle_unused(self, key: str, claim: Claim | None, charge: ChargeQueue) -> None:
        """Charges the queue of a claim that has no pod, None for others."""
        unused, before = None, self._unused.get(key)
        if claim is not None and claim.owner is None and claim.record.cards:
            cards = self.demands.claims.recorded(claim)
            unused = _Unused(claim.record.queue, cards) if cards else None
        if unused == before:
            return
        if before is not None:
            charge(*before, -1)
            self._toggle(key, before)
            del self._unused[key]
        if unused is not None and charge(*unused, 1):
            self._unused[key] = unused
            self._toggle(key, unused)
        elif unused is not None:
            self._without_queue.add(key)

    def _toggle(self, key: str, charged: _Payer | _Unused) -> None:
        """Adds a charge to `version`, or takes it out again."""
        what = (charged.uid, charged.cards) if isinstance(charged, _Payer) else charged
        self.version ^= hash((key, what))

    def _payer(self, key: str, first: str) -> _Payer | None:
        users = self._users.get(key)
        if not users:
            return None
        uid = min(users, key=lambda uid: (uid in users[uid].leaving, uid != first, uid))
        account = users[uid]
        demand = self.demands.of(account.job.tasks[uid].cls)
        return _Payer(uid, account, self.demands.part(demand, key, account.charges[uid]))
