"""Skipped jobs that no eviction can help: bounds on the pods that would fit if all possible victims left.

An eviction attempt of a job fails, whatever the order of the victims, while the pods of its classes that fit into free
capacity and the capacity of possible victims are fewer than it needs. A possible victim is a running pod within the
scope of the action that no plugin protects for good (hook `protects`). Sums are kept per scope, queue and priority, and
updated for the nodes and jobs that changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.framework.placement.class_fits import ClassFit
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows
    from capcard_sched.framework.placement.signature_cache import SignatureCache
    from capcard_sched.model.job import Job
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.state.cluster import ClusterState

#: Victims in the queue of the preemptor, or anywhere.
EvictionKind: TypeAlias = Literal["within-queue", "across-queues"]
_HOOKS: dict[EvictionKind, str] = {"within-queue": "preemptable", "across-queues": "reclaimable"}
_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND)
#: Maximum number of bounds with counts per node; jobs beyond take part in every session.
_MAX_BOUNDS = 1024


class _GroupKey(NamedTuple):
    """Preemptors with the same possible victims: the queue is "" and the priority 0 across queues."""

    kind: EvictionKind
    queue: str
    priority: int


class PossibleVictims:
    """The requests of the possible victims of one group, by node row."""

    def __init__(self, key: _GroupKey, dispatch: Dispatch) -> None:
        self._key = key
        self._dispatch = dispatch
        #: Row to int64 [resource columns]; only rows with possible victims.
        self.by_row: dict[int, Vector] = {}

    def update(self, state: ClusterState, rows: Iterable[int]) -> None:
        """Sums up rows anew. O(pods there)."""
        nodes, zeros = state.nodes.nodes, state.columns.zeros
        for row in rows:
            total: Vector | None = None
            for task in nodes[row].tasks.values():
                if task.status in _LIVE and task.job is not None and self._may_go(task.job):
                    total = zeros() if total is None else total
                    total += state.columns.fit(task.cls.request)
            if total is None:
                self.by_row.pop(row, None)
            else:
                self.by_row[row] = total

    def _may_go(self, job: Job) -> bool:
        kind, queue, priority = self._key
        if kind == "within-queue" and job.queue != queue:
            return False
        return not self._dispatch.protects(_HOOKS[kind], job, priority)

    def of(self, rows: Rows, columns: Rows) -> Matrix:
        """The requests on rows (intp) in columns: int64 [rows, columns]."""
        found = np.zeros((len(rows), len(columns)), dtype=np.int64)
        for position, row in enumerate(rows.tolist()) if self.by_row else ():
            amounts = self.by_row.get(row)
            if amounts is not None:
                found[position] = amounts[columns]
        return found


class _Bound:
    """The bound of one class in one group, and the jobs it concerns."""

    __slots__ = ("fit", "waiting")

    def __init__(self, fit: ClassFit) -> None:
        self.fit = fit
        #: Pods needed to the keys of the jobs.
        self.waiting: dict[int, set[str]] = {}


class Skipped(NamedTuple):
    """The skipped jobs that may evict, by their keys."""

    #: Those that evictions may help now.
    promising: list[str]
    #: By queue those that only evictions for other jobs may help; they include the promising ones.
    others: Mapping[str, Mapping[str, object]]


class EvictionBounds:
    """The skipped jobs by the result that an eviction attempt can have, for each kind of eviction."""

    def __init__(self, state: ClusterState, dispatch: Dispatch) -> None:
        self._state = state
        self._dispatch = dispatch
        self._groups: dict[_GroupKey, PossibleVictims] = {}
        self._bounds: dict[_GroupKey, dict[Hashable, _Bound]] = {}
        #: Kind and queue to the keys of the jobs with bounds, each with its classes and the pods it needs of each.
        self._bounded: dict[EvictionKind, dict[str, dict[str, tuple[_GroupKey, dict[Hashable, int]]]]] = {}
        #: Kind to the keys of the jobs without bounds.
        self._unbounded: dict[EvictionKind, set[str]] = {}
        #: Keys of the jobs that changed since the last refresh.
        self._changed: set[str] = set()
        #: The table's generation and serial of the sums.
        self._generation, self._serial = -1, -1
        #: Groups and counts of jobs that are not skipped, valid until the next refresh.
        self._passing_groups: dict[_GroupKey, PossibleVictims] = {}
        self._passing_fits: dict[tuple[_GroupKey, Hashable], ClassFit] = {}

    def note_changes(self, jobs: Iterable[str]) -> None:
        """Records changed jobs, by key."""
        if self._groups:
            self._changed.update(jobs)

    def add(
        self, kind: EvictionKind, job: Job, cache: SignatureCache, needs: Mapping[PodSignature, int] | None
    ) -> None:
        """Adds a job that may evict. `needs`: its pending classes, each with the pods that one success takes.

        None for a job whose own pods are possible victims.
        """
        count = sum(map(len, self._bounds.values()))
        if needs is None or count + len(needs) > _MAX_BOUNDS:
            self._unbounded.setdefault(kind, set()).add(job.key)
            return
        group = _group_of(kind, job)
        if group not in self._groups:
            self._groups[group] = PossibleVictims(group, self._dispatch)
            self._groups[group].update(self._state, self._rows_with_victims(group))
        bounds = self._bounds.setdefault(group, {})
        keyed: dict[Hashable, int] = {}
        for signature, needed in needs.items():
            key: Hashable = signature.cls, tuple(signature.contexts.items())
            bound = bounds.get(key)
            if bound is None:
                feasible, victims = _open_rows(cache, signature), self._groups[group].of
                fit = ClassFit(signature.cls, signature.contexts, self._state.nodes, feasible, victims)
                bound = bounds[key] = _Bound(fit)
                fit.serial = -1  # the sums of the group may be older
            bound.waiting.setdefault(needed, set()).add(job.key)
            keyed[key] = needed
        self._bounded.setdefault(kind, {}).setdefault(job.queue, {})[job.key] = group, keyed

    def is_hopeless(
        self, kind: EvictionKind, job: Job, cache: SignatureCache, signature: PodSignature, needed: int
    ) -> bool:
        """Whether evictions cannot help an active job that needs pods of one signature; call `skipped` first.

        False where sums are missing: across queues without skipped jobs.
        """
        group = _group_of(kind, job)
        victims = self._groups.get(group) or self._passing_groups.get(group)
        if victims is None:
            if kind == "across-queues":
                return False
            victims = self._passing_groups[group] = PossibleVictims(group, self._dispatch)
            victims.update(self._state, self._rows_with_victims(group))
        if not victims.by_row:
            return True
        key: Hashable = signature.cls, tuple(signature.contexts.items())
        bound = self._bounds.get(group, {}).get(key)
        fit = self._passing_fits.get((group, key)) if bound is None else bound.fit
        if fit is None:
            feasible, table = _open_rows(cache, signature), self._state.nodes
            fit = ClassFit(signature.cls, signature.contexts, table, feasible, victims.of)
            self._passing_fits[group, key] = fit
        return fit.total < needed

    def discard(self, key: str, queue: str) -> None:
        """Removes a job, by key, from the queue it was added with."""
        for jobs in self._unbounded.values():
            jobs.discard(key)
        for by_queue in self._bounded.values():
            group, keyed = by_queue.get(queue, {}).pop(key, (None, {}))
            if group is None:
                continue
            bounds = self._bounds[group]
            for cls, needed in keyed.items():
                waiting = bounds[cls].waiting
                waiting[needed].discard(key)
                if not waiting[needed]:
                    del waiting[needed]
                    if not waiting:
                        del bounds[cls]
            if not by_queue[queue]:
                del by_queue[queue]
            if not bounds:
                del self._bounds[group], self._groups[group]

    def skipped(self, kind: EvictionKind, cache: SignatureCache, changed_jobs: Iterable[str]) -> Skipped:
        """The jobs of a kind. `changed_jobs`: keys of those that changed in this session."""
        self.note_changes(changed_jobs)
        self._refresh(cache)
        promising = set(self._unbounded.get(kind, ()))
        for group, bounds in self._bounds.items():
            if group.kind == kind and self._groups[group].by_row:  # without victims there is nothing to evict
                for bound in bounds.values():
                    for needed, keys in bound.waiting.items():
                        if needed <= bound.fit.total:
                            promising |= keys
        return Skipped(sorted(promising), self._bounded.get(kind, {}))

    def _refresh(self, cache: SignatureCache) -> None:
        """Updates the sums of the nodes that changed, and of the nodes of changed jobs."""
        self._passing_groups.clear()
        self._passing_fits.clear()
        table = self._state.nodes
        before, self._serial = self._serial, table.serial
        changed, self._changed = self._changed, set()
        moved: set[int] = set()
        is_current = table.generation == self._generation
        self._generation = table.generation
        if not self._groups:
            return
        if is_current:
            moved.update(np.flatnonzero(table.stamps > before).tolist())
            for key in changed:
                job = self._state.jobs.get(key)
                for task in job.tasks.values() if job is not None and job.count(_LIVE) else ():
                    if task.node is not None and task.node.row >= 0:
                        moved.add(task.node.row)
        rows = np.array(sorted(moved), dtype=np.intp)
        for group, victims in self._groups.items():
            if is_current:
                victims.update(self._state, moved)
            else:
                victims.by_row.clear()
                victims.update(self._state, self._rows_with_victims(group))
            if not victims.by_row:
                continue  # the bounds of the group are not read
            for bound in self._bounds[group].values():
                fit = bound.fit
                if is_current and fit.serial == before:
                    fit.update(table, rows)
                else:
                    fit.rebuild(table, _open_rows(cache, cache.intern(fit.cls, fit.contexts)))

    def _rows_with_victims(self, group: _GroupKey) -> Iterable[int]:
        if group.kind == "across-queues":
            return range(len(self._state.nodes))
        queue = self._state.queues.get(group.queue)
        tasks = (task for job in queue.jobs.values() for task in job.tasks.values()) if queue is not None else ()
        return sorted({task.node.row for task in tasks if task.node is not None and task.node.row >= 0})


def _group_of(kind: EvictionKind, job: Job) -> _GroupKey:
    return _GroupKey(kind, job.queue, job.priority) if kind == "within-queue" else _GroupKey(kind, "", 0)


def _open_rows(cache: SignatureCache, signature: PodSignature) -> Mask:
    """The rows that the signature may use after evictions: bool [nodes]."""
    return cache.open_to_evictions(signature) if signature.contexts else cache.static_results(signature)[0]
