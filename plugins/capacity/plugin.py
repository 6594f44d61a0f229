"""The capacity plugin: hooks over the tree of queues."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import VETO, Grant, Sample, VictimDecision
from capcard_sched.framework.quota.limits import UNLIMITED, QuotaBound
from capcard_sched.framework.quota.queue_sums import is_admitted
from capcard_sched.framework.quota.quota_plugin import QuotaPlugin
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.queue import Queue, subtree
from capcard_sched.model.reasons import DEVICE_QUOTA_UNBOUNDED, QUEUE_NOT_LEAF
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.capacity.charges import ALLOCATED, NOMINATED, RELEASING
from capcard_sched.plugins.capacity.claims import ClaimAmounts, ClaimBook, LeavingClaims
from capcard_sched.plugins.capacity.tree import Tree, depth_in_common
from capcard_sched.validation.hint_checks import DEVICE_CAPACITIES, DEVICE_COUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import PodSignature, Rows
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.quota.limits import Needs
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.resources import Amounts, ResourceColumns, Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity.claims import ClaimNeeds
    from capcard_sched.plugins.capacity.tree import Branch


def allocation_bounds(leaf: Branch, needs: Needs, *, nominating: bool, growing: bool) -> Iterator[QuotaBound]:
    """Bounds of allocate: the real capability of the queue and of every branch above it; `growing`: their ceilings.

    The unused guarantees of other queues are not available either. Pods that are being released count until they are
    gone, except when `nominating`.
    """
    for name, column, amount in needs:
        for branch in leaf.path:
            most = branch.ceiling if growing else branch.real_capability
            held, limit = _held(branch, column, nominating), most.item(column)
            yield QuotaBound((limit - held) // amount, name, amount, branch.name, held, limit)
        if leaf.guarded and not growing:  # a ceiling leaves out the guarantees of other queues
            yield from _guarantee_bounds(leaf, name, column, amount, nominating)


def claim_bounds(
    leaf: Branch, claims: ClaimNeeds, names: Sequence[str], *, nominating: bool, growing: bool
) -> Iterator[QuotaBound]:
    """The same bounds for the claims of pods: in each branch those count that it does not hold yet."""
    for one in leaf.path:
        most = one.ceiling if growing else one.real_capability
        for column, amount in claims.at(one, nominating=nominating).items():
            held, limit = _held(one, column, nominating), most.item(column)
            fitting = claims.pods_within(column, limit - held, amount)
            yield QuotaBound(fitting, names[column], amount, one.name, held, limit)
    if leaf.guarded and not growing:
        for column, amount in claims.at(leaf, nominating=nominating).items():
            for bound in _guarantee_bounds(leaf, names[column], column, amount, nominating):
                yield bound._replace(fitting=claims.pods_within(column, bound.fitting * amount, amount))


def _held(branch: Branch, column: int, nominating: bool) -> int:
    return branch.held.item(column) + (0 if nominating else branch.releasing.item(column))


def _guarantee_bounds(leaf: Branch, name: str, column: int, amount: int, nominating: bool) -> Iterator[QuotaBound]:
    own = leaf.kept.item(column)  # the unused guarantee that is kept for this queue
    branch = leaf
    while branch.parent is not None:
        parent = branch.parent
        others = parent.earmarked.item(column) - own
        if others > 0:
            held, limit = _held(parent, column, nominating), parent.real_capability.item(column) - others
            fitting = max(own // amount, (limit - held) // amount)
            yield QuotaBound(fitting, name, amount, parent.name, held, limit)
        own += parent.kept.item(column) - parent.earmarked.item(column)
        branch = parent


def reclaim_bounds(leaf: Branch, needs: Needs) -> Iterator[QuotaBound]:
    """Bounds of reclaim: the deserved amounts and the real capability of the queue.

    `deserved` limits only the resources it names; a queue that names none of the requested ones reclaims nothing.
    """
    named = any(column in leaf.named for _, column, _ in needs)
    for name, column, amount in needs:
        held, limit = leaf.held.item(column), leaf.real_capability.item(column)
        if not named:
            yield QuotaBound(0, name, amount, leaf.name, held, 0)
            continue
        if column in leaf.named:
            limit = min(limit, leaf.deserved.item(column))
        yield QuotaBound((limit - held) // amount, name, amount, leaf.name, held, limit)


class ReclaimPolicy:
    """Protects candidates of one reclaimer; subtracts each victim from its branches."""

    def __init__(self, reclaimer: Branch, needs: Needs, *, level: int) -> None:
        """`level`: how many branches above a victim's queue must be above what they deserve too."""
        self._needs = needs
        self._columns = frozenset(column for _, column, _ in needs)
        self._level = level
        self._above = frozenset(reclaimer.chain())
        #: The innermost branch above the reclaimer that is full: only victims below it help.
        self._within = next((branch for branch in reclaimer.path[1:] if not self._fits(branch)), None)
        #: Amounts freed by the victims so far, by branch and column.
        self._freed: dict[tuple[Branch, int], int] = {}
        #: Request of one victim of each class, by queue.
        self._victims: dict[Branch, dict[TaskClass, Needs]] = {}

    def _fits(self, branch: Branch) -> bool:
        return all(
            branch.held.item(column) + amount <= branch.real_capability.item(column)
            for _, column, amount in self._needs
        )

    def protections(
        self, candidates: Iterable[tuple[Task, Branch]], needs_of: Callable[[TaskClass], Needs], claims: LeavingClaims
    ) -> dict[str, str]:
        """Causes of protection by uid; candidates without one are victims.

        Candidates are examined in the order given, each without the victims before it. `needs_of`: without claims.
        """
        protected: dict[str, str] = {}
        for task, branch in candidates:
            plain = needs_of(task.cls)
            needs = [*plain, *claims.given_back(task, branch)]
            own = [one for one in branch.path if one not in self._above]
            cause = self._protection(branch, own, needs)
            if not cause and self._could_reclaim_back(branch, needs):
                cause = "deserved"
            if cause:
                protected[task.uid] = cause
                continue
            self._victims.setdefault(branch, {})[task.cls] = [*plain, *claims.taken_again(task, branch)]
            claims.leave(task, branch)
            for one in own:
                for _, column, amount in needs:
                    self._freed[one, column] = self._freed.get((one, column), 0) + amount
        return protected

    def _protection(self, branch: Branch, own: Sequence[Branch], needs: Needs) -> str:
        """`own`: the victim's queue and the branches above it that are not above the reclaimer too."""
        if branch.fault or not own:
            return "hierarchy"
        if self._within is not None and self._within not in branch.path:
            return "capability"  # of a full queue above the reclaimer: only victims below it help
        shared = [column for _, column, _ in needs if column in self._columns]
        if not shared:
            return "other-resources"
        if not all(self._is_above(one, shared, needs) for one in own[: self._level + 1]):
            return "deserved"
        return "guarantee" if any(self._invades(one, needs) for one in own) else ""

    def _invades(self, branch: Branch, needs: Needs) -> bool:
        """Whether the eviction leaves the branch below its guarantee of a resource the victim holds."""
        floor = branch.guarantee
        return any(
            floor.item(column) and self._left(branch, column) - amount < floor.item(column)
            for _, column, amount in needs
        )

    def _is_above(self, branch: Branch, shared: Sequence[int], needs: Needs) -> bool:
        """Whether the branch holds more than it deserves of a resource that both sides request.

        Prevents an eviction loop: with the victim back, its queue would exceed its deserved amount again. A pod that
        requests no resource its queue deserves is always a victim.
        """
        if not any(column in branch.named for _, column, _ in needs):
            return True
        return any(
            column in branch.named and self._left(branch, column) > branch.deserved.item(column) for column in shared
        )

    def _could_reclaim_back(self, branch: Branch, needs: Needs) -> bool:
        """Whether, without one more victim, the queue deserves an earlier victim again: an eviction loop."""
        going = {column: amount for _, column, amount in needs}
        for back in self._victims.get(branch, {}).values():
            named = [(column, amount) for _, column, amount in back if column in branch.named]
            if named and all(
                self._left(branch, column) - going.get(column, 0) + amount <= branch.deserved.item(column)
                for column, amount in named
            ):
                return True
        return False

    def _left(self, branch: Branch, column: int) -> int:
        return branch.allocated.item(column) - self._freed.get((branch, column), 0)


class CapacityArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Number of ancestors of a victim's queue that must exceed their deserved amounts too.
    ancestor_reclaim_level: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="ancestorReclaimLevel", default=0)
    #: Whether the keys `deviceclass/CLASS` limit the devices that pods get by ResourceClaims. The defaults of both are
    #: those of the feature gates of Kubernetes 1.35, which Volcano 1.15 takes them from.
    dynamic_resource_allocation: bool = msgspec.field(name=DEVICE_COUNTS, default=True)
    #: Whether the keys `CAPACITY.deviceclass/CLASS` limit the capacities that these claims request, too.
    dra_consumable_capacity: bool = msgspec.field(name=DEVICE_CAPACITIES, default=False)


class Capacity(QuotaPlugin):
    """Queues with guarantee, deserved and capability; with `enableHierarchy` they form a tree.

    A queue borrows unused resources up to its capability; other queues reclaim its usage beyond deserved.
    """

    name = "capacity"
    Arguments = CapacityArguments
    arguments: CapacityArguments

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        """The arguments; capacities without devices produce a warning."""
        arguments = problems.decode(CapacityArguments, raw)
        if arguments.dra_consumable_capacity and not arguments.dynamic_resource_allocation:
            problems.warning(DEVICE_CAPACITIES, f"has no effect with {DEVICE_COUNTS}: false")
        return arguments

    def setup(self) -> None:
        super().setup()
        self._amounts = ClaimAmounts(
            counts=self.arguments.dynamic_resource_allocation, capacities=self.arguments.dra_consumable_capacity
        )
        self._book = ClaimBook(self._amounts)
        self._tree: Tree
        #: Inputs of the tree, by queue.
        self._shape: dict[str, tuple[object, ...]] = {}
        self._total: Vector = np.zeros(0, dtype=np.int64)
        #: Number of resource names the tree was built with.
        self._names = 0

    def open(self, session: Session) -> None:
        self._amounts.open(session)
        claiming = self._claiming_jobs(session)
        for key in claiming:
            if key in session.jobs:
                self._inqueue.touch(session.jobs[key])
        super().open(session)
        resources, changed, queues = session.resources, session.changed, session.queues
        total, shares = self._cluster_total(session)
        if (
            changed.everything
            or len(resources) != self._names
            or len(queues) != len(self._shape)
            or any(name not in queues or _shape(queues[name]) != self._shape.get(name) for name in changed.queues)
            or not np.array_equal(total, self._total)
        ):
            self._names, self._total = len(resources), total.copy()
            self._shape = {name: _shape(queue) for name, queue in queues.items()}
            self._tree = Tree(queues, self._total, resources, shares, hierarchy=self.hierarchy)
            self._book.clear()
            claiming = {*session.jobs}
            for sums in (self._requested, self._inqueue, self._elastic):
                sums.connect(self._tree.ancestors)
            moved = set(queues)
        else:
            moved = changed.queues
        for name in sorted(moved):
            branch = self._tree.branches[name]
            change = resources.fit(queues[name].allocated) - branch.own
            if change.any():
                branch.add(change)
            released = resources.fit(queues[name].releasing) - branch.own_releasing
            if released.any():
                branch.release(released)
        for key in sorted(claiming | changed.jobs) if self._amounts.columns else ():
            job = session.jobs.get(key)
            self._book.recount(key, job, None if job is None else self._tree.branches.get(job.queue))
        for problem in self._tree.problems:
            session.results.notice(queues[problem.queue], problem.reason, problem.message)

    def _cluster_total(self, session: Session) -> tuple[Vector, Rows]:
        """The amounts of the cluster, and the columns that it limits only to keep guarantees free."""
        resources, columns = session.resources, self._amounts.all_columns
        total, shares = resources.fit(session.snapshot.total), session.snapshot.share_columns
        if not columns:
            return total, shares
        names = {name for queue in session.queues.values() for name in queue.guarantee or ()}
        guaranteed = [column for column in columns if resources.names[column] in names]
        if guaranteed:
            total = total.copy()
            for column, amount in self._amounts.totals(guaranteed).items():
                total[column] = amount
        return total, np.append(shares, np.array(sorted(columns), dtype=np.intp))

    def _claiming_jobs(self, session: Session) -> set[str]:
        """The jobs whose claims may be charged otherwise since the last session."""
        if not self._amounts.columns or not session.changed.devices:
            return set()
        found, tasks, claims = (
            self._book.users(session.changed.devices),
            session.snapshot.tasks_by_uid,
            session.snapshot,
        )
        for key in session.changed.devices:
            kind, space, _ = key.partition(" ")
            if space and kind not in ("ResourceClaimTemplate", "DeviceClass"):
                continue
            claim = None if space else claims.claims.claims.get(key)
            if claim is None or claim.owner is None:  # any pod may name it
                found |= {task.job.key for task in tasks.values() if task.cls.claims and task.job is not None}
                break
            owner = tasks.get(claim.owner.uid)
            if owner is not None and owner.job is not None:
                found.add(owner.job.key)
        return found

    def queue_order(self, queue: Queue) -> tuple[int | float, ...]:
        """Priority, then share of deserved; among equals a queue with deserved resources goes first.

        In the tree leaves precede the others and compare from the top: two leaves by the shares of the branches just
        below their lowest common ancestor.
        """
        branch = self._tree.branches[queue.name]
        if not self.hierarchy:
            return (-queue.priority, branch.dominant_share(), not branch.named)
        if not branch.is_leaf:
            return (-queue.priority, 1, branch.dominant_share(), not branch.named)
        ways = [(one.dominant_share(), not one.named) for one in branch.chain() if one is not self._tree.root]
        levels = [key for way in reversed(ways) for key in way]
        return (-queue.priority, 0, *levels)

    def victim_queue_order(self, queue: Queue, reclaimer: Queue) -> int:
        """Victims come first from the queue that is nearer to the reclaimer's in the tree."""
        if not self.hierarchy:
            return 0
        return -depth_in_common(self._tree.branches[queue.name], self._tree.branches[reclaimer.name])

    def _pod_bounds(self, queue: Queue, cls: TaskClass, hook: str) -> Iterator[QuotaBound]:
        branch = self._tree.branches[queue.name]
        if hook == "preemptive":
            yield from reclaim_bounds(branch, self._first_needs(cls, branch))
            return
        assumed, claims, needs = self._session.assumptions, self._amounts.needs_of(cls), self._needs_of(cls)
        yield from allocation_bounds(branch, needs, nominating=assumed.nominating, growing=assumed.growing)
        if claims:
            names = self._session.resources.names
            yield from claim_bounds(branch, claims, names, nominating=assumed.nominating, growing=assumed.growing)

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        if profile.cls.claims and self._amounts.columns and tasks[-1].cls is not tasks[0].cls:
            tasks = tasks[:1]  # the claims of each pod are counted by name
        return super().allocatable_many(queue, profile, tasks)

    def _grant(self, queue: Queue, cls: TaskClass, wanted: int, hook: str) -> Grant:
        refused = self._unbounded(queue, cls, hook) if cls.claims and self._amounts.columns else None
        return super()._grant(queue, cls, wanted, hook) if refused is None else Grant(0, refused)

    def _unbounded(self, queue: Queue, cls: TaskClass, hook: str) -> Refusal | None:
        """The refusal of pods with a claim for all devices of a class that is limited: their number is not known."""
        unbounded = [each for charge in self._amounts.of_class(cls) for each in charge.unbounded]
        for one in self._tree.branches[queue.name].path if unbounded else ():
            for column, request in unbounded:
                if one.real_capability[column] < UNLIMITED:
                    name, row = self._session.resources.names[column], DEVICE_QUOTA_UNBOUNDED
                    text = row.render(request=request, queue=one.name, resource=name)
                    return Refusal(hook, self.name, row.code, text, queue=one.name, type=row.type)
        return None

    def _first_needs(self, cls: TaskClass, branch: Branch) -> Needs:
        """What one pod needs in a branch, with its claims that the branch does not hold."""
        names, claimed = self._session.resources.names, self._amounts.needs_of(cls).at(branch, nominating=True)
        return [*self._needs_of(cls), *((names[column], column, amount) for column, amount in claimed.items())]

    def _unplaced(self, job: Job) -> Amounts:
        need = super()._unplaced(job)
        if not self._amounts.columns:
            return need
        names, branch = self._session.resources.names, self._tree.branches[job.queue]
        missing = self._amounts.missing(job, gated=True, held=branch.claims)
        claimed = {names[column] for column in self._amounts.all_columns}
        plain = {name: amount for name, amount in need.items() if name not in claimed}
        return plain | {names[column]: amount for column, amount in missing.items()}

    def _minimum(self, job: Job) -> Amounts:
        names, claimed = self._session.resources.names, Counter[int]()
        for charge in self._amounts.of_minimum(job, gated=True, whole=True):
            claimed.update(dict(charge.amounts))
        minimum = super()._minimum(job)
        found = {names[column]: max(amount, minimum.get(names[column], 0)) for column, amount in claimed.items()}
        return {**minimum, **found} if found else minimum

    def _reservation(self, job: Job) -> Vector | None:
        return self._with_claims(job, super()._reservation(job))

    def _admitted_reservation(self, job: Job, resources: ResourceColumns) -> Vector | None:
        reserved = super()._admitted_reservation(job, resources)
        return self._with_claims(job, reserved) if is_admitted(job) else reserved

    def _with_claims(self, job: Job, reserved: Vector | None) -> Vector | None:
        """A reservation with the claims that the minimum of the job lacks, other than claims in use by other jobs."""
        if not self._amounts.columns or job.node_limit is not None:
            return reserved
        missing = self._amounts.missing(job, gated=False, held=None)
        if not missing and reserved is None:
            return None
        found = self._session.resources.zeros() if reserved is None else reserved.copy()
        found[self._amounts.all_columns] = 0
        for column, amount in missing.items():
            found[column] = amount
        return found

    def claimed_amounts(self, owner: Queue | Job) -> Mapping[str, int]:
        """Of a queue with those below it, or of a job. Releasing pods count."""
        if not self._amounts.columns:
            return {}
        if isinstance(owner, Queue):
            found = self._claimed_below(owner)
        else:
            found = self._amounts.of_placed(owner)
        names = self._session.resources.names
        return {names[column]: amount for column, amount in sorted(found.items()) if amount}

    def _claimed_below(self, queue: Queue) -> Mapping[int, int]:
        branches = self._tree.branches
        if queue.name not in branches:
            return {}
        names = (queue,) if self.hierarchy else subtree(queue, self._session.queues)
        claims = {key: held for one in names if one.name in branches for key, held in branches[one.name].claims.items()}
        found = Counter[int]()
        for held in claims.values():
            if held.pods[ALLOCATED] or held.pods[RELEASING]:
                found.update(dict(held.amounts))
        return found

    def _admission_limits(self, queue: Queue) -> Iterator[tuple[str, Vector, Vector, Vector]]:
        for branch in self._tree.branches[queue.name].path:
            reserved = self._inqueue.subtree(branch.name)
            used = branch.held + reserved - self._elastic.subtree(branch.name)
            yield (
                branch.name,
                used,
                reserved,
                branch.ceiling if self._session.assumptions.growing else branch.real_capability,
            )

    def _capabilities(self, queue: Queue) -> Iterator[tuple[str, Vector]]:
        return ((branch.name, branch.ceiling) for branch in self._tree.branches[queue.name].path)

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        """The refusal of a queue that is faulty, closed or not a leaf, whatever the request."""
        branch = self._tree.branches[queue.name]
        if branch.fault:
            code, message = "InvalidQueueHierarchy", branch.fault
        elif self.hierarchy and not branch.is_leaf:
            code, message = QUEUE_NOT_LEAF.code, QUEUE_NOT_LEAF.render(queue=queue.name)
        else:
            return super()._barred(queue, hook)
        return Refusal(hook, self.name, code, message, queue=queue.name, event=hook == "job_enqueueable")

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Candidates while their queue exceeds its deserved amount of a resource both request; guarantees are kept.

        The others are protected in every tier. Members beyond the minimum of their gang are examined first.
        """
        branches = self._tree.branches
        reclaimer = branches.get(task.job.queue) if task.job is not None else None
        if reclaimer is None or reclaimer.fault:
            return VETO
        surplus, others = split_slack(candidates)
        queued = [
            (candidate, branches[candidate.job.queue])
            for candidate in (*surplus, *others)
            if candidate.job is not None and candidate.job.queue in branches
        ]
        needs = self._first_needs(task.cls, reclaimer)
        reclaim = ReclaimPolicy(reclaimer, needs, level=self.arguments.ancestor_reclaim_level)
        claims = LeavingClaims(self._amounts, self._session.resources.names)
        protected = reclaim.protections(queued, self._needs_of, claims)
        victims = {candidate.uid for candidate, _ in queued} - protected.keys()
        return VictimDecision(protected, [candidate for candidate in candidates if candidate.uid in victims])

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[object, ...]:
        """The place in the tree; of victims what their branches hold, deserve and guarantee."""
        branch = self._tree.branches[queue.name]
        if role == "preemptor":
            places = tuple([one.name for one in branch.chain()]), tuple([one.name for one in branch.path])
            return branch.fault, *places
        # The root is above every preemptor: what it holds protects nothing.
        amounts = [
            (
                *(one.name, one.deserved.tobytes(), one.named, one.allocated.tobytes(), one.guarantee.tobytes()),
                one.common_claims(),
            )
            for one in branch.path
            if one.parent is not None
        ]
        return branch.fault, len(branch.path), *amounts

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        branch = self._tree.branches[queue.name]
        barred = self._barred(queue, "allocatable")
        amounts = [
            vector.tobytes()
            for one in (branch.chain() if branch.guarded else branch.path)
            for vector in (one.held, one.releasing, one.real_capability, one.kept, one.earmarked)
        ]
        claims = [one.common_claims() for one in branch.path if one.common]
        return barred is None or barred.message, branch.deserved.tobytes(), branch.named, *amounts, *claims

    def metrics(self) -> Iterator[Sample]:
        for name, branch in self._tree.branches.items():
            if name not in self._session.queues:
                continue
            kinds = {
                "allocated": branch.allocated,
                "request": self._requested.subtree(name),
                "deserved": branch.deserved,
                "inqueue": self._inqueue.subtree(name),
                "real_capacity": branch.real_capability,
            }
            if branch.queue is not None and branch.queue.capability:
                kinds["capacity"] = branch.capability  # only where one is set
            yield from self._series(name, kinds)
            share = branch.dominant_share()
            yield Sample("queue_share", {"queue_name": name}, share)
            yield Sample("queue_overused", {"queue_name": name}, float(share > 1))

    def _count(self, placement: Placement, sign: int) -> None:
        job, tasks = placement.job, placement.tasks
        branch = self._tree.branches.get(job.queue)
        if branch is None:
            return
        pipelined = sum(task.status is TaskStatus.PIPELINED for task in tasks)
        request = self._session.resources.fit(placement.cls.request)
        if pipelined:
            branch.add(request * (sign * pipelined), pipelined=True)
        if pipelined < len(tasks):
            branch.add(request * (sign * (len(tasks) - pipelined)))
        evicted = sum(task.status in (TaskStatus.RUNNING, TaskStatus.BOUND) for task in tasks)
        if evicted:
            branch.release(request * (-sign * evicted))
        if self._amounts.columns and (placement.cls.claims or placement.cls.device_containers):
            self._book.move(job, branch, _moves(placement, sign))


def _moves(placement: Placement, sign: int) -> Iterator[tuple[Task, Node, int, int]]:
    """The pods of a placement with the kinds that they join (+1) and leave (-1)."""
    for task, node in zip(placement.tasks, placement.nodes, strict=True):
        yield task, node, NOMINATED if task.status is TaskStatus.PIPELINED else ALLOCATED, sign
        if task.status in (TaskStatus.RUNNING, TaskStatus.BOUND):
            yield task, node, RELEASING, -sign


def _shape(queue: Queue) -> tuple[object, ...]:
    return queue.uid, id(queue), queue.parent, queue.capability, queue.deserved, queue.guarantee
