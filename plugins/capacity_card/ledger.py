"""The ledger of all queues and jobs.

`allocated` is exact after every event. Admission and metrics also read pending, inqueue and elastic amounts: these are
recomputed on the next read, for the jobs that changed. A session open recomputes only changed jobs, queues and nodes;
the result equals a full rebuild.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from capcard_sched.framework.quota.limits import QuotaBound
from capcard_sched.framework.quota.queue_sums import SumTree
from capcard_sched.model.annotations import SERVICE_TYPE
from capcard_sched.model.job import NO_ENTRIES
from capcard_sched.model.queue import ancestors
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN
from capcard_sched.model.status import PLACED_STATUSES, SESSION_STATUSES, TaskStatus
from capcard_sched.plugins.capacity_card.charge import NO_CHARGE, PLAIN, ChargeSum
from capcard_sched.plugins.capacity_card.quota import (
    NO_PODS,
    JobAccount,
    QueueAccount,
    QueueBook,
    limit_by_ancestors,
    queue_quota,
    used_card,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.status import PodGroupPhase
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments, ServiceType
    from capcard_sched.plugins.capacity_card.card_inventory import CardInventory
    from capcard_sched.plugins.capacity_card.cards import CardDemand
    from capcard_sched.plugins.capacity_card.charge import Charge, JobQuantities, Part
    from capcard_sched.plugins.capacity_card.minimum import Minimum
    from capcard_sched.plugins.capacity_card.shared_claims import SharedClaims

#: Statuses of charged pods: on a node until they are gone, and inside a session the nominated ones.
CHARGED_STATUSES = PLACED_STATUSES | {TaskStatus.PIPELINED}
#: Unused sums that may stay shared, beyond twice the number of jobs.
_SPARE = 1024


class Ledger:
    """The accounts of all queues and jobs, and the charges of their pods."""

    def __init__(
        self, arguments: CapacityCardArguments, inventory: CardInventory, shared: SharedClaims, minimum: Minimum
    ) -> None:
        self._inventory = inventory
        self._demands, self._shared = shared.demands, shared
        self._minimum = minimum
        self._arguments = arguments
        #: Whether all pods of a job get the same card.
        self.same_card = arguments.multi_card_job_mode == "single"
        self._session: Session
        self._tree = SumTree(QueueBook)
        self.queues: dict[str, QueueAccount] = {}
        self.jobs: dict[str, JobAccount] = {}
        #: Thousandths of cards that charged pods hold, by (card, service type); entries stay at 0.
        self.by_service: dict[tuple[str, ServiceType], int] = {}
        #: Sums of jobs by content, and the same by service type: jobs with equal ones share them.
        self._sums: dict[tuple[Part, ...], ChargeSum] = {}
        self._services: dict[
            tuple[tuple[tuple[str, ServiceType], int], ...], Mapping[tuple[str, ServiceType], int]
        ] = {}
        #: Events that contradict the ledger: pods charged twice, or discharged without a charge.
        self.internal_errors = 0
        #: Queue name to `spec.parent`, as of the tree of accounts.
        self._parents: dict[str, str] = {}
        #: cpu and memory of the cluster that no queue is guaranteed, by key; and the guarantees of all queues.
        self._free: dict[str, int] = {}
        self._guaranteed: dict[str, int] = {}
        #: By queue the jobs recomputed before the next read: by key the phase to reserve for, None for that of then.
        self._stale: defaultdict[str, dict[str, PodGroupPhase | None]] = defaultdict(dict)
        #: Keys of jobs with events in this session: the next session open rebuilds them from their pods.
        self._touched: set[str] = set()
        #: Jobs whose phase may have changed when the last session closed.
        self._closing: Iterable[str] = ()

    def held_cards(self) -> set[str]:
        return {card for (card, _), amount in self.by_service.items() if amount}

    def refresh(self, session: Session, renamed: set[str], claimed: set[str]) -> tuple[list[Queue], list[Job]]:
        """Apply the changes since the last session. `renamed`: cards and resources whose relation changed.

        `claimed`: keys of jobs whose ResourceClaims changed. Returns the rebuilt queues and jobs by name and key.
        """
        self._session, changed = session, session.changed
        for shared in (self._sums, self._services):
            if len(shared) > 2 * len(self.jobs) + _SPARE:
                shared.clear()
        names = self.queues.keys() | session.queues.keys() if changed.everything else set(changed.queues)
        keys = self.jobs.keys() | session.jobs.keys() if changed.everything else changed.jobs | self._touched | claimed
        for one in self.jobs.values() if renamed else ():
            if not renamed.isdisjoint(self._minimum.names_in(one.job)):
                keys.add(one.job.key)
        self._touched = set()
        nodes = self._inventory.relabeled if self.jobs else ()  # at first, all of them: no pod has a charge yet
        relabeled = {task.uid: task for node in nodes for task in node.tasks.values()}
        keys |= {task.job.key for task in relabeled.values() if task.job is not None}
        queues = self._refresh_queues(session, names)
        for queue in queues:
            if not self.queues[queue.name].jobs:
                keys |= queue.jobs.keys()
        jobs = []
        for key in sorted(keys):
            job = session.jobs.get(key)
            if job is None or job.queue not in self.queues:
                self._close_job(key)
            else:
                self._reopen_job(job, relabeled, changed.moved)
                self._shared.note(job)
                jobs.append(job)
        claims = session.snapshot.claims.claims
        self._shared.watch(claims if changed.everything else changed.devices, claims)
        self._settle()
        for key in self._closing:
            account = self.jobs.get(key)
            if account is not None and account.phase is not account.job.phase:
                self._stale[account.queue.name][key] = None
        self._closing = session.results.touched_jobs
        return queues, jobs

    def _refresh_queues(self, session: Session, names: set[str]) -> list[Queue]:
        queues, parents = session.queues, self._parents
        self._minimum.forget_limits()
        for name in names - queues.keys():
            self._close_queue(name)
        found = [queues[name] for name in sorted(names) if name in queues]
        if names:
            self._parents = {queue.name: queue.parent for queue in queues.values()}
            guarantees = [queue.guarantee for queue in queues.values() if queue.guarantee]
            self._guaranteed = {key: sum(one.get(name, 0) for one in guarantees) for key, name in PLAIN.items()}
        before, total = (
            self._free,
            zip(PLAIN, session.snapshot.total[[CPU_COLUMN, MEMORY_COLUMN]].tolist(), strict=True),
        )
        self._free = {key: max(0, amount - self._guaranteed.get(key, 0)) for key, amount in total}
        resized = found if self._free == before else queues.values()
        limited = {queue.name for queue in resized if self._update_quota(queue)}
        if self._parents != parents:
            above = {name: [one.name for one in ancestors(queues[name], queues)] for name in self.queues}
            self._tree.connect(above)
            for name, account in self.queues.items():
                account.connect(self._tree, [self.queues[one] for one in above[name]])
        if self._parents != parents or limited:
            for account in limit_by_ancestors(self.queues.values(), limited):
                self._stale[account.name].update(dict.fromkeys(account.jobs))
        return found

    def _update_quota(self, queue: Queue) -> bool:
        """Recompute the quota of a queue from its object and the cluster total. Whether its own limits changed."""
        account, facts = self.queues.get(queue.name), (queue.limits, queue.deserved, self._inventory.shares, self._free)
        if account is not None and account.facts == facts:
            return False
        quota = queue_quota(queue, self._inventory.shares, self._free, self._arguments.queues_without_card_quota)
        if account is None:
            account = self.queues[queue.name] = QueueAccount(queue.name, quota, self._tree)
        changed = quota.own_limits != account.quota.own_limits
        account.quota, account.facts = quota, facts
        for book in (account.own, account.subtree):
            book.seen.update(quota.cards, quota.shares)
        account.invalidate()
        return changed

    def _close_queue(self, name: str) -> None:
        self._shared.close_queue(name, self._charge_queue)
        account = self.queues.pop(name, None)
        if account is not None:
            for key in sorted(account.jobs):
                self._close_job(key)
            self._stale.pop(name, None)
            self._tree.drop(name)

    def _reopen_job(self, job: Job, relabeled: Container[str], moved: Container[str]) -> None:
        """Rebuild a job from its pods, unless their charges stay.

        `relabeled`: uids of the pods on nodes whose cards changed; `moved`: of those that are on another node.
        """
        before = self.jobs.get(job.key)
        if before is None and len(job.pending) == len(job.tasks):
            self._open_job(job)
            return
        known = NO_ENTRIES if before is None else before.charges
        charges = self._charges(job, known, relabeled, moved)
        releasing = TaskStatus.RELEASING
        gone = [uid for uid in charges if job.tasks[uid].status is releasing] if job.counts[releasing] else ()
        leaving = frozenset(gone) or NO_PODS
        if before is not None:
            place = job, self.queues[job.queue], job.annotations.get(SERVICE_TYPE), charges, leaving
            if place == (before.job, before.queue, before.service, known, before.leaving):
                before.admitted, before.charges = False, charges or NO_ENTRIES
                self._stale[job.queue][job.key] = None
                return
            self._close_job(job.key)
        account = self._open_job(job)
        account.charges, account.leaving = charges or NO_ENTRIES, leaving
        booked: dict[int, tuple[TaskClass, Charge, int]] = {}
        for uid, charge in charges.items():
            key = id(charge)  # one object for equal pods
            booked[key] = job.tasks[uid].cls, charge, booked[key][2] + 1 if key in booked else 1
        for cls, charge, count in booked.values():
            self._book(account, cls, charge, count)
        for uid in leaving:
            self._release(account, charges[uid])
        for uid in charges:
            self._shared.use(account, uid, self._demands.of(job.tasks[uid].cls).shared)

    def _charges(
        self, job: Job, known: Mapping[str, Charge], relabeled: Container[str], moved: Container[str]
    ) -> dict[str, Charge]:
        """The charges of the pods of a job, without claims that pods share; `known`: those so far."""
        charges: dict[str, Charge] = {}
        new: dict[tuple[int, str, str], Charge] = {}  # pods of a class on one node are charged the same
        for uid, task in job.tasks.items() if len(job.pending) < len(job.tasks) else ():
            if task.status not in CHARGED_STATUSES or task.node is None:
                continue
            cls, charge = task.cls, known.get(uid)
            demand = self._demands.of(cls)
            same = demand.claim.class_id, demand.claim.shares, not demand.shared
            known_as = charge and (charge.class_id, charge.shares, charge.complete)
            if charge is None or known_as != same or uid in relabeled or uid in moved:
                kind = cls.id, task.node.name, task.assigned_card
                if charge is not None:
                    charge = self._demands.placed(task, task.node, charge, moved=uid in moved)
                elif (charge := new.get(kind)) is None:
                    charge = new[kind] = self._demands.placed(task, task.node)
                charge = self._demands.own_part(demand, charge)
            charges[uid] = charge
        return charges

    def _open_job(self, job: Job) -> JobAccount:
        queue = self.queues[job.queue]
        account = self.jobs[job.key] = JobAccount(job, queue, job.annotations.get(SERVICE_TYPE), job.phase)
        queue.jobs[job.key] = None
        self._stale[queue.name][job.key] = None
        return account

    def _close_job(self, key: str) -> None:
        account = self.jobs.pop(key, None)
        if account is None:
            return
        self._shared.close(account)
        queue = account.queue
        self._stale[queue.name].pop(key, None)
        queue.jobs.pop(key, None)
        for book in queue.books:
            book -= account  # noqa: PLW2901 - in place
        queue.invalidate()
        for held, amount in account.by_service.items():
            self.by_service[held] -= amount

    def charge(self, placement: Placement) -> None:
        """Charge pods that were placed, or whose eviction was undone. A pod is charged once."""
        job, cls, tasks = placement.job, placement.cls, placement.tasks
        account = self._account_for(job)
        if account is None:
            self.internal_errors += len(tasks)
            return
        demand = self._demands.of(cls)
        is_open = demand.several or demand.error or demand.shared or demand.ranges
        card, fixed = demand.claim.card, not is_open
        is_equal = fixed and (demand.by_claims or self._inventory.is_on_each(card, placement.nodes))
        if is_equal and tasks[0].status in SESSION_STATUSES:
            known = account.charges
            new = {task.uid: demand.claim for task in tasks if task.uid not in known}
            if known:
                account.open_charges().update(new)
            else:
                account.charges = new
            self.internal_errors += len(tasks) - len(new)
            self._book(account, cls, demand.claim, len(new))
        else:
            given: dict[Charge, int] = {}
            taken, charges = ChargeSum(), account.open_charges()
            for task, node in zip(tasks, placement.nodes, strict=True):
                if task.uid in account.leaving:
                    account.leaving -= {task.uid}
                    self._release(account, charges[task.uid], -1)
                    self._shared.use(account, task.uid, demand.shared)
                elif task.uid in charges:
                    self.internal_errors += 1
                else:
                    charge = self._charge_on(account, demand, task, node, taken)
                    charge = self._demands.own_part(demand, charge)
                    charges[task.uid] = charge
                    self._shared.use(account, task.uid, demand.shared)
                    given[charge] = given.get(charge, 0) + 1
                    taken.add(charge.cards)
            for charge, count in given.items():
                self._book(account, cls, charge, count)
            self._settle()
        self._moved(account)

    def discharge(self, placement: Placement) -> None:
        """Subtract the charges of undone placements. Pods about to be evicted keep theirs until they are gone."""
        account = self.jobs.get(placement.job.key)
        if account is None:
            self.internal_errors += len(placement.tasks)
            return
        given: dict[Charge, int] = {}
        charges = account.open_charges()
        shared = self._demands.of(placement.cls).shared if placement.cls.claims else ()
        for task in placement.tasks:
            charge = charges.get(task.uid)
            if charge is None or task.uid in account.leaving:
                self.internal_errors += 1
            elif task.status in SESSION_STATUSES:
                given[charge] = given.get(charge, 0) + 1
                del charges[task.uid]
                if shared:
                    self._shared.drop(task.uid, shared)
            else:
                account.leaving |= {task.uid}
                self._release(account, charge)
                if shared:
                    self._shared.use(account, task.uid, shared)
        for charge, count in given.items():
            self._book(account, placement.cls, charge, -count)
        self._settle()
        self._moved(account)

    def _settle(self) -> None:
        """Charges each claim that pods share to one of them; jobs that name it are recomputed at the next read."""
        if self._shared.is_settled:
            return
        for key in self._shared.settle(self._session.snapshot.claims.claims, self._recharge, self._charge_queue):
            if (account := self.jobs.get(key)) is not None:
                self._stale[account.queue.name].setdefault(key, None)
                account.queue.invalidate()

    def _charge_queue(self, name: str, cards: tuple[tuple[str, int], ...], times: int) -> bool:
        account = self.queues.get(name)
        if account is None:
            return False
        for book in account.books:
            book.allocated.add(cards, times)
            book.seen.update(book.allocated)
        account.invalidate()
        return True

    def _recharge(self, account: JobAccount, uid: str, cards: tuple[tuple[str, int], ...], times: int) -> None:
        """Adds to the cards that a pod is charged."""
        charges = account.open_charges()
        cls, before = account.job.tasks[uid].cls, charges[uid]
        held = dict(before.held)
        for card, amount in cards:
            held[card] = held.get(card, 0) + amount * times
        main, *others = held.items()
        charge = charges[uid] = self._demands.of(cls).on(*main, *sorted([each for each in others if each[1]]))
        for each, sign in ((before, -1), (charge, 1)):
            self._book(account, cls, each, sign)
            if uid in account.leaving:
                self._release(account, each, sign)
        account.queue.invalidate()

    def admit(self, job: Job) -> None:
        account = self._account_for(job)
        if account is None:
            return
        account.admitted = True
        self._touched.add(job.key)
        stale = self._stale[account.queue.name]
        if account.quantities is not None and job.key not in stale:
            account.reserve()  # nothing else follows from being admitted
        else:
            stale[job.key] = None

    def reassess(self, job: Job) -> None:
        """Recompute the reservation of a job before the next read."""
        if (account := self._account_for(job)) is not None:
            self._touched.add(job.key)
            self._stale[account.queue.name].setdefault(job.key, None)

    def _account_for(self, job: Job) -> JobAccount | None:
        account = self.jobs.get(job.key)
        if account is None and job.queue in self.queues:
            account = self._open_job(job)
        return account

    def _charge_on(self, account: JobAccount, demand: CardDemand, task: Task, node: Node, taken: ChargeSum) -> Charge:
        """A new pod with alternatives gets the first that the node offers with quota, else the first it offers.

        `taken`: the cards of the pods before it, which are not booked yet.
        """
        several = demand.several and not demand.ranges and task.status in SESSION_STATUSES
        choices = self._demands.choices_on(demand, task, node) if several else []
        if not choices:
            return self._demands.placed(task, node)
        card = choices[0]
        if len(choices) > 1:
            fixed = used_card(account, demand.alternatives, taken) if self.same_card else ""
            fitting = (one for one in choices if self.free(account.queue, one) - taken[one] >= demand.amount)
            card = fixed if fixed in choices else next(fitting, card)
        return demand.on(card, demand.amount)

    def _book(self, account: JobAccount, cls: TaskClass, charge: Charge, times: int) -> None:
        amounts = charge.amounts if times == 1 else tuple([(key, amount * times) for key, amount in charge.amounts])
        account.allocated = self._added(account.allocated, amounts)
        for book in account.queue.books:
            book.allocated.add(amounts)
            book.seen.update(account.allocated)
        for card, amount in charge.cards:
            held = card, self._arguments.service_type(account.job, cls)
            total = account.by_service.get(held, 0) + amount * times
            of_job = {**account.by_service, held: total}
            account.by_service = self._services.setdefault(tuple(of_job.items()), of_job)
            self.by_service[held] = self.by_service.get(held, 0) + amount * times

    def _added(self, held: ChargeSum, amounts: tuple[Part, ...], times: int = 1) -> ChargeSum:
        """A sum of a job with further amounts."""
        if not held and times == 1 and (known := self._sums.get(amounts)) is not None:
            return known
        found = ChargeSum(held)
        found.add(amounts, times)
        if not found:
            return NO_CHARGE
        return self._sums.setdefault(tuple(found.items()), found)

    def _release(self, account: JobAccount, charge: Charge, times: int = 1) -> None:
        account.releasing = self._added(account.releasing, charge.amounts, times)
        for book in account.queue.books:
            book.releasing.add(charge.amounts, times)

    def _moved(self, account: JobAccount) -> None:
        account.queue.invalidate()
        stale, job = self._stale[account.queue.name], account.job
        if self._session.assumptions.growing:  # a trial leaves nothing behind
            stale.setdefault(job.key, job.phase)
            return
        stale[job.key] = None
        self._touched.add(job.key)

    def recompute(self, queue: QueueAccount | None = None) -> None:
        """Recompute pending, inqueue and elastic amounts of the jobs that changed. O(pods of these jobs).

        `queue`: only those of a queue without limits above it.
        """
        for name in [*self._stale] if queue is None or queue.limiting else [queue.name]:
            if (stale := self._stale.get(name)) is None:
                continue
            for key in [*stale]:
                self.current(self.jobs[key])
            if not stale:
                stale.clear()  # or each later iteration passes all removed entries

    def current(self, account: JobAccount) -> JobAccount:
        """The account of a job, with up-to-date quantities. O(pods of the job)."""
        stale = self._stale[account.queue.name]
        if account.job.key in stale:
            quantities = self._minimum.quantities(account.job, account.charges)
            account.assess(quantities, self._minimum.exceeded(account.queue, quantities), stale.pop(account.job.key))
        return account

    def impossible(self, account: JobAccount) -> QuotaShortage | None:
        """The limit that the minimum of a job exceeds. Its sums follow at the next read, for its phase of now."""
        stale, job = self._stale[account.queue.name], account.job
        if job.key not in stale:
            return account.impossible
        stale[job.key] = stale[job.key] or job.phase
        return self._minimum.exceeded_by(account)

    def quantities_of(self, job: Job) -> JobQuantities | None:
        """Current quantities of a job; None for a job without a queue."""
        account = self._account_for(job)
        if account is None:
            return None
        self.recompute(account.queue)
        return account.quantities

    def grown_quantities(self, account: JobAccount) -> JobQuantities:
        """The quantities of a job in a cluster with nodes that offer its cards."""
        return self._minimum.quantities(account.job, account.charges)

    def charges_of(self, job: Job | None) -> Mapping[str, Charge]:
        """The current charges of the pods of a job that hold quota, by uid."""
        account = self.jobs.get(job.key) if job is not None else None
        return account.charges if account is not None else NO_ENTRIES

    def charge_of(self, task: Task) -> Charge | None:
        """The current charge of a pod, None when it holds nothing."""
        return self.charges_of(task.job).get(task.uid)

    def free(self, queue: QueueAccount, key: str, *, own: bool = False) -> int:
        """`QueueAccount.free` now."""
        assumed = self._session.assumptions
        return queue.free(key, nominating=assumed.nominating, growing=assumed.growing, own=own)

    def bounds(self, queue: QueueAccount, key: str, amount: int, *, own: bool = False) -> list[QuotaBound]:
        """The limits, as `QueueAccount.limits`, on further pods that request an amount of a key; none for 0."""
        if not amount:
            return []
        assumed = self._session.assumptions
        limits = queue.limits(key, nominating=assumed.nominating, growing=assumed.growing, own=own)
        return [QuotaBound((most - held) // amount, name, amount, one, held, most) for one, name, held, most in limits]

    def beyond_group(self, queue: QueueAccount, demand: CardDemand, card: str, *, own: bool) -> list[QuotaBound]:
        """The limits of groups that the further cards of a pod exceed together, or one of them with `card`, at most."""
        cards = {name: demand.ranges[name][1] for name in (card, *dict(demand.claim.others)) if name in demand.ranges}
        if len(cards) < 2:
            return []
        found = []
        for name, group, held in queue.groups(nominating=self._session.assumptions.nominating, own=own):
            amounts = [amount for one, amount in cards.items() if one in group.cards]
            if len(amounts) > 1 and held + sum(amounts) > group.limit:
                found.append(QuotaBound(0, group.key, sum(amounts), name, held, group.limit))
        return found

    def full(self, queue: QueueAccount, key: str, amount: int) -> list[str]:
        """The names of the queues without `amount` of free quota for a key: of the queue, then of its ancestors."""
        return [bound.queue for bound in self.bounds(queue, key, amount) if bound.fitting < 1]
