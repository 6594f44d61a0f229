"""Skipped jobs that no eviction can help: bounds on the pods that would fit if all possible victims left.

An eviction attempt of a job fails, whatever the order of the victims, while the pods of its classes that fit into free
capacity and the capacity of possible victims are fewer than it needs. A possible victim is a running pod within the
scope of the action that no plugin protects for good (hook `protects`). Sums are kept per scope, queue and priority, and
updated for the nodes and jobs that changed. Where they suffice, a search that failed all the same fails again until one
of its inputs changes (`FailedSearches`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.backlog.class_fits import ClassFit
from capcard_sched.framework.backlog.failed_searches import FailedSearches, search_id
from capcard_sched.model.status import EVICTABLE_STATUSES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows
    from capcard_sched.framework.backlog.failed_searches import EvictionHook, EvictionInputs, SearchId
    from capcard_sched.framework.backlog.queue_books import QueueBooks
    from capcard_sched.framework.placement.signature_cache import SignatureCache
    from capcard_sched.model.job import Job
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.state.cluster import ClusterState

#: Maximum number of bounds with counts per node; jobs beyond take part in every session.
_MAX_BOUNDS = 1024


class _GroupKey(NamedTuple):
    """Preemptors with the same possible victims: the queue is "" and the priority 0 across queues."""

    hook: EvictionHook
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
        known: dict[str, bool] = {}
        for row in rows:
            total: Vector | None = None
            for task in nodes[row].tasks.values():
                job = task.job
                if task.status not in EVICTABLE_STATUSES or job is None:
                    continue
                may_go = known.get(job.key)
                if may_go is None:
                    may_go = known[job.key] = self._may_go(job)
                if may_go:
                    total = zeros() if total is None else total
                    total += state.columns.fit(task.cls.request)
            if total is None:
                self.by_row.pop(row, None)
            else:
                self.by_row[row] = total

    def _may_go(self, job: Job) -> bool:
        hook, queue, priority = self._key
        if hook == "preemptable" and job.queue != queue:
            return False
        return not self._dispatch.protects(hook, job, priority)

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
        #: Search to pods needed to the keys of the jobs.
        self.waiting: dict[SearchId, dict[int, set[str]]] = {}


class _Needs(NamedTuple):
    """What a skipped job needs for a success."""

    group: _GroupKey
    search: SearchId
    #: The pods of each class.
    classes: dict[Hashable, int]


class Skipped(NamedTuple):
    """The skipped jobs that may evict, by their keys."""

    #: Those that evictions may help now.
    promising: list[str]
    #: By queue those that only evictions for other jobs may help; they include the promising ones.
    others: Mapping[str, Mapping[str, object]]


class EvictionBounds:
    """The skipped jobs by the result that an eviction attempt can have, for each hook of eviction.

    B3 at 100 nodes and 200 gangs, one new pod: 2.9 ms; 135 ms without bounds.
    """

    def __init__(self, state: ClusterState, dispatch: Dispatch, books: QueueBooks) -> None:
        self._state = state
        self._dispatch = dispatch
        self._groups: dict[_GroupKey, PossibleVictims] = {}
        self._bounds: dict[_GroupKey, dict[Hashable, _Bound]] = {}
        #: Kind and queue to the keys of the jobs with bounds.
        self._bounded: dict[EvictionHook, dict[str, dict[str, _Needs]]] = {}
        #: Kind to the keys of the jobs without bounds.
        self._unbounded: dict[EvictionHook, set[str]] = {}
        #: Failed searches of jobs for which the bounds suffice.
        self.searches = FailedSearches(self._rows_of_queue, books)
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
        self, hook: EvictionHook, job: Job, cache: SignatureCache, needs: Mapping[PodSignature, int] | None
    ) -> None:
        """Adds a job that may evict. `needs`: its pending classes, each with the pods that one success takes.

        None for a job whose own pods are possible victims.
        """
        count = sum(map(len, self._bounds.values()))
        if needs is None or count + len(needs) > _MAX_BOUNDS:
            self._unbounded.setdefault(hook, set()).add(job.key)
            return
        self._refresh(cache)
        group, search = _group_of(hook, job), search_id(hook, job, needs)
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
            bound.waiting.setdefault(search, {}).setdefault(needed, set()).add(job.key)
            keyed[key] = needed
        self._bounded.setdefault(hook, {}).setdefault(job.queue, {})[job.key] = _Needs(group, search, keyed)
        self.searches.keep(search)

    def is_hopeless(
        self, hook: EvictionHook, job: Job, cache: SignatureCache, signature: PodSignature, needed: int
    ) -> bool:
        """Whether evictions cannot help an active job that needs pods of one signature; call `skipped` first.

        False where sums are missing: across queues without skipped jobs.
        """
        group = _group_of(hook, job)
        victims = self._groups.get(group) or self._passing_groups.get(group)
        if victims is None:
            if hook == "reclaimable":
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
        if fit.total < needed:
            return True
        failing = self.searches.failing(search_id(hook, job, (signature,)))
        return failing is not None and needed >= failing

    def discard(self, key: str, queue: str) -> None:
        """Removes a job, by key, from the queue it was added with."""
        for jobs in self._unbounded.values():
            jobs.discard(key)
        for by_queue in self._bounded.values():
            found = by_queue.get(queue, {}).pop(key, None)
            if found is None:
                continue
            group, search, classes = found
            bounds = self._bounds[group]
            for cls, needed in classes.items():
                waiting = bounds[cls].waiting[search]
                waiting[needed].discard(key)
                if not waiting[needed]:
                    del waiting[needed]
                    if not waiting:
                        del bounds[cls].waiting[search]
                        self.searches.drop(search)
                        if not bounds[cls].waiting:
                            del bounds[cls]
            if not by_queue[queue]:
                del by_queue[queue]
            if not bounds:
                del self._bounds[group], self._groups[group]

    def skipped(
        self, hook: EvictionHook, cache: SignatureCache, changed_jobs: Iterable[str], inputs: EvictionInputs
    ) -> Skipped:
        """The jobs of a hook. `changed_jobs`: keys of those that changed in this session."""
        self.note_changes(changed_jobs)
        self._refresh(cache)
        self.searches.begin(hook, inputs)
        promising = set(self._unbounded.get(hook, ()))
        for group, bounds in list(self._bounds.items()):
            if group.hook == hook and self._groups[group].by_row:  # without victims there is nothing to evict
                for bound in bounds.values():
                    promising |= self._promising(bound)
        return Skipped(sorted(promising), self._bounded.get(hook, {}))

    def _promising(self, bound: _Bound) -> set[str]:
        """The keys of the jobs for which the bound suffices, and whose search did not fail as it would now."""
        found: set[str] = set()
        for search, waiting in bound.waiting.items():
            enough = [needed for needed in waiting if needed <= bound.fit.total]
            if enough:
                failing = self.searches.failing(search, enough, partial(self._sample, waiting))
                found.update(*(waiting[needed] for needed in enough if failing is None or needed < failing))
        return found

    def _sample(self, waiting: Mapping[int, set[str]], needed: int) -> Job | None:
        return self._state.schedulable.get(min(waiting[needed]))

    def note_no_eviction(self) -> None:
        """Ends an action that evicted nothing: its attempts were undone, and the sums are those of its start."""
        table = self._state.nodes
        for bounds in self._bounds.values():
            for bound in bounds.values():
                if bound.fit.serial == self._serial:
                    bound.fit.serial = table.serial
                for search in bound.waiting:
                    self.searches.keep(search)
        self._serial = table.serial

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
        if is_current and before == self._serial and not changed:
            return
        if is_current:
            moved.update(np.flatnonzero(table.stamps > before).tolist())
            for key in changed:
                job = self._state.jobs.get(key)
                if job is not None and job.count(EVICTABLE_STATUSES):
                    moved.update(_rows_of(job))
            self.searches.note_fresh_rows(moved)
        else:
            self.searches.open()
        rows = np.array(sorted(moved), dtype=np.intp)
        for group, victims in self._groups.items():
            if is_current:
                victims.update(self._state, moved)
            else:
                victims.by_row.clear()
                victims.update(self._state, self._rows_with_victims(group))
            for bound in self._bounds[group].values():
                fit = bound.fit
                if not victims.by_row:
                    changes = None  # the bounds of the group are not read
                elif is_current and fit.serial == before:
                    fitted = fit.fits(rows)
                    fit.update(table, rows)
                    changes = rows[(fitted > 0) | (fit.fits(rows) > 0)].tolist()
                else:
                    fit.rebuild(table, _open_rows(cache, cache.intern(fit.cls, fit.contexts)))
                    changes = None
                if changes is not None:
                    held = [row for row in changes if row in victims.by_row]
                    self.searches.note_rows(bound.waiting, held, freed=len(held) < len(changes))
                else:
                    for search in bound.waiting:
                        self.searches.drop(search)

    def _rows_of_queue(self, name: str) -> list[int]:
        queue = self._state.queues.get(name)
        return sorted({row for job in queue.jobs.values() for row in _rows_of(job)}) if queue is not None else []

    def _rows_with_victims(self, group: _GroupKey) -> Iterable[int]:
        if group.hook == "reclaimable":
            return range(len(self._state.nodes))
        return self._rows_of_queue(group.queue)


def _rows_of(job: Job) -> Iterator[int]:
    return (task.node.row for task in job.tasks.values() if task.node is not None and task.node.row >= 0)


def _group_of(hook: EvictionHook, job: Job) -> _GroupKey:
    return _GroupKey(hook, job.queue, job.priority) if hook == "preemptable" else _GroupKey(hook, "", 0)


def _open_rows(cache: SignatureCache, signature: PodSignature) -> Mask:
    """The rows that the signature may use after evictions: bool [nodes]."""
    return cache.open_to_evictions(signature) if signature.contexts else cache.static_results(signature)[0]
