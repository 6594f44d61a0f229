"""The pending pods that have quota and lack only nodes, and the reason of each other one.

Pods are counted against quotas as if nodes were added: limits that follow from the size of the cluster do not apply.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

from capcard_sched.devices.selector_work import EvaluationsPostponedError
from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.plugin import Placement
from capcard_sched.framework.placement.engine import quota_hooks
from capcard_sched.framework.session.group_units import GroupUnit, units_of
from capcard_sched.framework.session.ordering import KeyHeap
from capcard_sched.framework.session.results import reference
from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.job import Node
from capcard_sched.model.queue import ROOT, ancestors
from capcard_sched.model.status import ALLOCATED

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.state.changes import Changes

_ENQUEUE = "job_enqueueable"
_UNSCHEDULABLE = reasons.POD_UNSCHEDULABLE.code
_QUOTA, _GANG = reasons.POD_QUOTA_PENDING.code, reasons.POD_GANG_PENDING.code
_PREREQUISITE = reasons.POD_PREREQUISITE_PENDING.code
_NOTHING: Mapping[str, str] = {}


class QuotaClaims:
    """Reasons of pending pods by job and uid: `Unschedulable` for those with quota. One per core.

    A pod with quota holds it against the pods behind it, in the order of allocate: two pods never claim the same quota.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, str]] = {}
        #: Job key to the uids of the pods with quota that its minimum lacks; jobs at their minimum are absent.
        self._minimums: dict[str, tuple[str, ...]] = {}
        #: Keys of the jobs without claims, as of the last pass.
        self._released: AbstractSet[str] = frozenset()
        #: Job key to the group of its queue, and group to its job keys. Queues of different groups share no quota.
        self._group_of: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        #: Queue to its group, and generation of the nodes, as of the last pass; after a change it finds all claims.
        self._inputs: tuple[dict[str, str], int] | None = None
        #: By group, the fewest jobs that a pass since its last change left out for want of steps of selectors.
        self._fewest: dict[str, int] = {}
        #: Groups whose last pass left out fewer jobs than those before it: the next session continues.
        self._unfinished: set[str] = set()

    def clear(self) -> None:
        """Drops all claims: the next session finds them anew."""
        self._reasons.clear()
        self._minimums.clear()
        self._group_of.clear()
        self._members.clear()
        self._fewest.clear()
        self._unfinished.clear()
        self._inputs = None

    def of(self, key: str) -> Mapping[str, str]:
        """The reasons of the pending pods of a job, by uid; empty for a job that was not attempted."""
        return self._reasons.get(key, _NOTHING)

    @property
    def minimums(self) -> Mapping[str, tuple[str, ...]]:
        """By key of a job below its minimum: the uids of the pods that complete it, all of them with quota."""
        return self._minimums

    def update(self, session: Session, released: AbstractSet[str] = frozenset()) -> AbstractSet[str]:
        """Finds the claims of the waiting jobs of changed queues; returns the keys of the jobs whose claims changed.

        `released`: keys of the jobs that claim nothing for the present.

        Call it while pipelined pods hold their quota. O(pending pods within quota + jobs) of the changed queues and of
        those that share a limit with them; of all queues after a change of other objects than jobs. (B1 of `make bench`
        at 1,000 nodes and 2,000 gangs, one new pod: 2.1 ms, with a pass over all queues 108 ms.)
        """
        changed = session.changed
        moved, self._released = released ^ self._released, frozenset(released)
        is_touched = session.results.touched_jobs or changed.queues or changed.everything or moved
        if not (is_touched or session.results.report.decided or self._unfinished):
            return frozenset()
        group_of = _groups(session.queues)
        stale, inputs = set(group_of.values()) | self._members.keys(), (group_of, session.nodes.generation)
        if inputs == self._inputs and not _concerns_all(changed):
            jobs = session.state.jobs
            keys = session.results.touched_jobs | moved
            queues = changed.queues | {jobs[key].queue for key in keys if key in jobs}
            left = {self._group_of.get(key, "") for key in session.results.touched_jobs}
            fresh = left | {group_of.get(name, "") for name in queues}
            stale &= fresh | self._unfinished
            if not stale:
                return frozenset()
        else:
            fresh = stale
        before = {key: self._reasons.pop(key) for group in stale for key in self._members.pop(group, ())}
        for key in before:
            del self._group_of[key]
            self._minimums.pop(key, None)
        self._inputs = inputs
        names = {name for name, group in group_of.items() if group in stale}
        made = _ClaimPass(session, before, names, released)
        found = made.run()
        self._reasons |= found
        self._minimums |= {key: uids for key, uids in made.minimums.items() if uids}
        self._continue(session, Counter(group_of[session.jobs[key].queue] for key in made.postponed), stale, fresh)
        for key in found:
            group = self._group_of[key] = group_of[session.state.jobs[key].queue]
            self._members.setdefault(group, set()).add(key)
        return {key for key in before.keys() | found.keys() if before.get(key) != found.get(key)}

    def _continue(
        self, session: Session, postponed: Mapping[str, int], stale: AbstractSet[str], fresh: AbstractSet[str]
    ) -> None:
        """Has the next session continue with the groups of a pass that left out fewer jobs than the passes before.

        Plans of claims are not all kept: a pass may plan the same ones again. `fresh`: groups that changed.
        """
        for group in stale:
            count, before = postponed.get(group, 0), None if group in fresh else self._fewest.get(group)
            self._unfinished.discard(group)
            self._fewest.pop(group, None)
            if count:
                self._fewest[group] = count if before is None else min(count, before)
                if before is None or count < before:
                    self._unfinished.add(group)
                    session.results.report.leave_unfinished()


def _concerns_all(changed: Changes) -> bool:
    """Whether objects changed that may concern the pods of every queue: others than jobs, queues and nodes."""
    return bool(
        changed.everything
        or changed.volumes
        or changed.devices
        or changed.hyper_nodes
        or changed.namespaces
        or changed.quotas
        or changed.card_budgets
        or changed.config_maps
    )


def _groups(queues: Mapping[str, Queue]) -> dict[str, str]:
    """Queue to its topmost ancestor below root, or itself; one group if root has limits."""
    root = queues.get(ROOT)
    if root is not None and (root.capability or root.annotations.get(CARD_QUOTA)):
        return dict.fromkeys(queues, ROOT)
    return {
        name: name
        if queue.parent in ("", ROOT)
        else next((one.name for one in reversed([*ancestors(queue, queues)]) if one.name != ROOT), name)
        for name, queue in queues.items()
    }


class _ClaimPass:
    """One pass over the waiting jobs: pods with quota are held on a node that does not exist, and released at last."""

    def __init__(
        self, session: Session, known: Container[str], names: Container[str], released: Container[str]
    ) -> None:
        """Keys: `known` of the jobs with claims in the last session, `released` of those that make none.

        `names`: of the queues of the pass.
        """
        self._released = released
        #: Keys of jobs whose claims are planned in a later session, for want of steps of selectors.
        self.postponed: set[str] = set()
        #: Job key to the uids of the pods that complete its minimum; () for a job that has it.
        self.minimums: dict[str, tuple[str, ...]] = {}
        self._session, self._known, self._queues, dispatch = session, known, names, session.dispatch
        queues = list(session.queues.values())
        versions = dispatch.plain_entries("allocation_version") if queues else []
        #: Plugins whose quotas follow from the state alone. A webhook is not called.
        self._names = {name for name, call in versions if call(queues[0]) is not None}
        self._hooks = [hook for hook in quota_hooks(dispatch) if hook[0] in self._names]
        self._voters = {name for name, _ in dispatch.plain_entries("admission_version")}
        orders = (*dispatch.plain_entries("job_order"), *dispatch.plain_entries("queue_order"))
        counting = self._names | {name for name, _ in orders}
        self._counts, self._discounts = (
            [call for name, call in dispatch.plain_entries(hook) if name in counting]
            for hook in ("on_allocate", "on_deallocate")
        )
        self._node = Node("")
        self._held: list[Placement] = []
        #: Signatures without quota left, by queue.
        self._full: set[tuple[str, PodSignature]] = set()
        self._found: dict[str, dict[str, str]] = {}
        #: Keys of the jobs for which a plugin failed in this session.
        self._failed = {error.object.partition(" ")[2] for error in session.results.report.errors}

    def run(self) -> dict[str, dict[str, str]]:
        """The reasons of pending pods by job and uid."""
        session = self._session
        queues: KeyHeap[Queue] = KeyHeap(session.queue_key)
        jobs: dict[str, KeyHeap[Job]] = {}
        with session.assumptions.assume_growth():
            try:
                for job in session.with_pending_tasks():
                    if job.queue in self._queues and job.key in session.jobs and self._is_attempted(job):
                        waiting = jobs.setdefault(job.queue, KeyHeap(session.job_key))
                        session.results.guarded(job, waiting.push)
                for name in jobs:
                    session.results.guarded(session.queues[name], queues.push)
                tasks: dict[str, Sequence[Task]] = {}
                while queues:
                    queue = queues.pop()
                    if waiting := jobs[queue.name]:
                        job = waiting.pop()
                        alone = not waiting and not queues
                        visit = partial(self._visit_within_bounds, queue, tasks.get(job.key), alone=alone)
                        rest = session.results.guarded(job, visit)
                        if rest:
                            tasks[job.key] = rest
                            session.results.guarded(job, waiting.push)
                        session.results.guarded(queue, queues.push)
            finally:
                self._release(0)
        return self._found

    def _is_attempted(self, job: Job) -> bool:
        """Whether the job is admitted, or would be in a larger cluster, and its turn has come.

        A job keeps its claims while the session deadline defers it.
        """
        session = self._session
        if job.key in session.results.blocked_by_head or job.key in self._failed or job.key in self._released:
            return False
        outcomes = [] if job.key in self._known else [session.results.outcome_of(uid) for uid in job.pending]
        if any(one is not None and one.refusal is not None and one.refusal.in_order for one in outcomes):
            return False
        if not session.is_pending_phase(job):
            return session.results.guarded(job, lambda job: session.job_valid(job) is None) or False
        refusal = self._refusal_at_admission(job)
        return refusal is not None and not refusal.in_order and refusal.plugin in self._voters

    def _refusal_at_admission(self, job: Job) -> Refusal | None:
        session, key = self._session, (reference(job), _ENQUEUE)
        refusal = session.results.refusals.get(key)
        if refusal is None and (record := session.failed_attempts.get(job.key)) is not None:
            refusal = record.refusals.get(key)
        return refusal

    def _visit_within_bounds(
        self, queue: Queue, rest: Sequence[Task] | None, job: Job, *, alone: bool
    ) -> Sequence[Task]:
        """`_visit`; beyond the bounds of the namespace the job makes no claims for the rest of its pods."""
        start, full = len(self._held), set(self._full)
        try:
            with self._session.namespace_work.plans_of(job):
                return self._visit(queue, rest, job, alone=alone)
        except HookFailed as failed:
            if not isinstance(failed.error, EvaluationsPostponedError):
                raise
        self._release(start)
        self._full = full
        if rest is None:
            self._found[job.key] = {}
        self.postponed.add(job.key)
        return ()

    def _visit(self, queue: Queue, rest: Sequence[Task] | None, job: Job, *, alone: bool) -> Sequence[Task]:
        """Holds the minimum of the job, or one further pod, all of them if it is `alone`. Returns the tasks left."""
        session = self._session
        tasks = session.pending_tasks(job) if rest is None else rest
        own, barred = self._found.setdefault(job.key, {}), self._barred(job)
        if rest is None and session.is_pending_phase(job):
            admitted, _ = session.dispatch.votes(_ENQUEUE, job, self._voters)
            if not admitted:
                own.update(dict.fromkeys(job.pending, _QUOTA))
                return ()
        if job.groups is not None:
            return self._visit_groups(queue, tasks, job, barred, alone=alone)
        start, full, position, why = len(self._held), set(self._full), 0, _QUOTA
        while position < len(tasks):
            ready = self._is_ready(job)
            if ready and position and len(self._held) > start and not alone:
                break
            missing = max(1, job.missing_tasks)
            run = _run_of(tasks, position, (len(tasks) if alone else 1) if ready else missing)
            position += len(run)
            own.update(dict.fromkeys((task.uid for task in run), _QUOTA))
            run = [task for task in run if task.uid not in barred]
            if not run:
                continue
            signature = session.engine.signature(queue, run[0])
            if session.dispatch.refusal("pre_predicate", signature) is not None:
                why = _GANG
                own.update(dict.fromkeys((task.uid for task in run), _PREREQUISITE))
                continue
            count = self._grant(queue, signature, run)
            if count:
                self._hold(job, run[:count])
                own.update(dict.fromkeys((task.uid for task in run[:count]), _UNSCHEDULABLE))
        if self._is_ready(job):
            return tasks[position:]
        self._release(start)
        self._full = full
        others = [task.uid for task in tasks if own.get(task.uid) != _PREREQUISITE]
        own.update(dict.fromkeys(others, why))
        return ()

    def _visit_groups(
        self, queue: Queue, tasks: Sequence[Task], job: Job, barred: AbstractSet[str], *, alone: bool
    ) -> Sequence[Task]:
        """`_visit` of a job with subgroups, in the order of its units: a subgroup is held whole, or not at all."""
        session, own = self._session, self._found[job.key]
        start, full, was_ready = len(self._held), set(self._full), self._is_ready(job)
        units = units_of(session, job, [task for task in tasks if task.uid in job.pending])
        reasons_of = {task.uid: _GANG for waiting in units.incomplete.values() for task in waiting}
        waiting = deque((*units.groups, *units.singles))
        while waiting and (was_ready or not self._is_ready(job)):
            unit = waiting.popleft()
            reason = self._hold_unit(queue, job, unit.tasks, unit.need, barred)
            if reason:
                reasons_of.update(dict.fromkeys((task.uid for task in unit.tasks), reason))
                continue
            if unit.completes:
                extras = [task for task in unit.tasks if task.uid in job.pending]
                waiting += [GroupUnit(unit.group, (task,), 1, completes=False, is_begun=True) for task in extras]
            if was_ready and not alone:
                break
        own.update(reasons_of)
        if self._is_ready(job):
            left = {task.uid for unit in waiting for task in unit.tasks}
            return [task for task in tasks if task.uid in left]
        self._release(start)
        self._full = full
        others = [task.uid for task in tasks if reasons_of.get(task.uid, _QUOTA) == _QUOTA]
        own.update(dict.fromkeys(others, _GANG if _PREREQUISITE in reasons_of.values() else _QUOTA))
        return ()

    def _hold_unit(self, queue: Queue, job: Job, tasks: Sequence[Task], need: int, barred: AbstractSet[str]) -> str:
        """Holds `need` of the tasks, and returns ""; else holds none, and returns the reason."""
        start, full, why, own = len(self._held), set(self._full), _QUOTA, dict[str, str]()
        free = [task for task in tasks if task.uid not in barred]
        while free and len(own) < need:
            run = _run_of(free, 0, need - len(own))
            free = free[len(run) :]
            signature = self._session.engine.signature(queue, run[0])
            if self._session.dispatch.refusal("pre_predicate", signature) is not None:
                why = _PREREQUISITE
                continue
            count = self._grant(queue, signature, run)
            if count:
                self._hold(job, run[:count])
                own.update(dict.fromkeys((task.uid for task in run[:count]), _UNSCHEDULABLE))
        if len(own) < need:
            self._release(start)
            self._full = full
            return why
        self._found[job.key].update(own)
        return ""

    def _is_ready(self, job: Job) -> bool:
        """Whether the job has its minimum with what is held; the first time it notes the pods that complete it."""
        is_ready = self._session.job_ready(job)
        if is_ready and job.key not in self.minimums:
            own = self._found.get(job.key, {})
            self.minimums[job.key] = tuple(uid for uid, reason in own.items() if reason == _UNSCHEDULABLE)
        return is_ready

    def _barred(self, job: Job) -> AbstractSet[str]:
        """The uids of the pods that a plugin refused whose quota follows from more than the state."""
        found = ((uid, self._session.results.outcome_of(uid)) for uid in job.pending)
        return {
            uid
            for uid, outcome in found
            if outcome is not None
            and (refusal := outcome.refusal) is not None
            and refusal.pending_reason.code == _QUOTA
            and refusal.plugin not in ("", *self._names, *self._voters)
        }

    def _grant(self, queue: Queue, signature: PodSignature, run: Sequence[Task]) -> int:
        """The number of pods of a run that quotas admit, as `PlacementEngine.quota_grant`."""
        if (queue.name, signature) in self._full:
            return 0
        count = len(run)
        for _, many, single in self._hooks:
            if many is None:
                count = 0 if single(queue, run[0]) is not None else min(count, 1)
            else:
                count = min(count, many(queue, signature, run[:count]).count)
            if count <= 0:
                break
        if count < len(run) and all(many is not None for _, many, _ in self._hooks):
            self._full.add((queue.name, signature))
        return max(0, count)

    def _hold(self, job: Job, tasks: Sequence[Task]) -> None:
        placement = Placement(job, tasks[0].cls, list(tasks), [self._node] * len(tasks))
        self._session.state.place(job, placement.tasks, placement.nodes, ALLOCATED)
        self._held.append(placement)
        for call in self._counts:
            call(placement)

    def _release(self, length: int) -> None:
        """Releases what was held since there were `length` placements, last first."""
        while len(self._held) > length:
            placement = self._held.pop()
            for call in self._discounts:
                call(placement)
            self._session.state.unplace(placement.job, placement.tasks)


def _run_of(tasks: Sequence[Task], start: int, most: int) -> Sequence[Task]:
    """The tasks from `start` on, at most `most`, with the class and labels of the first."""
    first, end = tasks[start], start + 1
    while end < min(len(tasks), start + most):
        if tasks[end].cls is not first.cls or tasks[end].labels is not first.labels:
            break
        end += 1
    return tasks[start:end]
