"""Where the next pod of a class goes: one evaluation per class, repairs per touched row (architecture D4, D5).

For every profile (a class in its context) a `Ranking` keeps the score of each feasible row. It is built once per
session with one vector evaluation over all rows. A placement touches one row: rankings learn of touched rows from the
node table's log and re-score only these, when they are next asked. The best rows stand in a small heap; rows outside
it are known to be worse than its floor, so that neither building nor asking sorts all nodes.

A row that takes several pods in turn is scored several pods ahead in one vector call (a *curve*): hooks see
hypothetical rows whose `used` includes the pods to come. This makes the per-pod cost that of a heap operation.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from capcard_sched.framework.dispatch import HookFailed
from capcard_sched.framework.rows import Diagnosis, NodeRows, Profile, Verdict
from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from capcard_sched.framework.dispatch import Dispatch, Entry
    from capcard_sched.framework.rows import Mask, Rows, Scores
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, ResourceColumns
    from capcard_sched.model.task import Task, TaskClass
    from capcard_sched.state.columns import NodeTable

#: How many of the best rows a refill puts into the heap.
_HEAP_ROWS = 128
#: A curve looks this many pods ahead, for this many rows at once.
_CURVE_STEPS = 8
_CURVE_ROWS = 8
#: Static answers of profiles that no session used for so long are dropped.
_STATIC_SESSIONS = 64

_NEVER = float("-inf")


class Ranking:
    """The rows a profile may use, best first. Scores are plain floats; equal scores go to the lower row (node name)."""

    __slots__ = (
        "_curves",
        "_floor",
        "_heap",
        "_keys",
        "_requested",
        "_static",
        "_synced",
        "engine",
        "feasible",
        "known_limit",
        "profile",
        "row_bound",
    )

    def __init__(self, engine: PlacementEngine, profile: Profile, feasible: Mask, static: Scores | None) -> None:
        self.engine = engine
        self.profile = profile
        #: bool [nodes]: passes everything that placements cannot change.
        self.feasible = feasible
        self._static = static
        request = profile.cls.request
        self._requested = np.flatnonzero(request)
        self._keys: Scores = np.full(len(feasible), _NEVER)
        self._heap: list[tuple[float, int]] = []
        self._floor: tuple[float, int] = (_NEVER, -1)
        self._curves: dict[int, list[float]] = {}
        self._synced = len(engine.table.touched)
        #: Rows of a failed attempt that used nothing but this profile, the release count it is valid for, and its
        #: fit text: no later attempt of the session can place more, unless something was released meanwhile (W-18).
        self.known_limit: tuple[list[int], int, str] | None = None
        rows = np.flatnonzero(feasible)
        fitting = rows[self._fits(rows)]
        if len(fitting):
            self._keys[fitting] = self.evaluate(fitting)
        #: Whether a score hook compares nodes with each other: then every placement re-asks all candidates.
        self.row_bound = engine.compares_nodes(profile, fitting)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _fits(self, rows: Rows) -> Mask:
        table, columns = self.engine.table, self._requested
        index = np.ix_(rows, columns)
        free = table.allocatable[index] - table.used[index]
        fits: Mask = np.logical_and.reduce(free >= self.profile.cls.request[columns], axis=1)
        return fits

    def evaluate(self, rows: Rows, used: Matrix | None = None, nonzero_used: Matrix | None = None) -> Scores:
        """Scores of a selection, -inf where the pod may not go. Resource fit is the caller's business."""
        selection = NodeRows(self.engine.table, rows, used=used, nonzero_used=nonzero_used)
        return self.engine.scores(self.profile, selection, self._static)

    def _ahead(self, rows: list[int], offsets: list[int]) -> list[list[float]]:
        """Scores of the next `_CURVE_STEPS` pods on each row, when `offsets[i]` pods beyond the table are there.

        Returns a list per row, last step first, so that `pop()` gives the next one.
        """
        table, cls = self.engine.table, self.profile.cls
        count = len(rows)
        repeated = np.repeat(np.array(rows, dtype=np.intp), _CURVE_STEPS)
        steps = (np.array(offsets, dtype=np.int64)[:, None] + self.engine.steps).ravel()[:, None]
        used = table.used[repeated] + steps * cls.request
        columns = self._requested
        free = table.allocatable[repeated] - used
        fits = (free >= cls.request)[:, columns].all(axis=1)
        nonzero = table.nonzero_used[repeated] + steps * self.engine.nonzero(cls)
        scores = self.evaluate(repeated, used, nonzero)
        scores[~fits] = _NEVER
        return [curve[::-1] for curve in scores.reshape(count, _CURVE_STEPS).tolist()]

    # --- keeping up -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Re-score the rows that others touched since the last time. O(touched rows)."""
        touched = self.engine.table.touched
        start, end = self._synced, len(touched)
        if start == end:
            return
        self._synced = end
        feasible = self.feasible
        changed = [row for row in set(touched[start:end]) if feasible[row]]
        if not changed:
            return
        curves = self._curves
        for row in changed:
            curves.pop(row, None)
        changed.sort()
        rows = np.array(changed, dtype=np.intp)
        self._keys[rows] = _NEVER
        rows = rows[self._fits(rows)]
        if not len(rows):
            return
        scores = self.evaluate(rows)
        self._keys[rows] = scores
        floor, heap = self._floor, self._heap
        promising = scores >= -floor[0] if floor[0] != _NEVER else scores > _NEVER
        for entry in zip((-scores[promising]).tolist(), rows[promising].tolist(), strict=True):
            if entry <= floor and entry[0] != -_NEVER:
                heappush(heap, entry)

    def applied(self) -> None:
        """The rows of the last `take` now stand in the table; their curves know already."""
        self._synced = len(self.engine.table.touched)

    def _refill(self) -> bool:
        keys = self._keys
        rows = np.flatnonzero(keys > _NEVER)
        if not len(rows):
            self._heap, self._floor = [], (float("inf"), len(keys))
            return False
        if len(rows) <= _HEAP_ROWS:
            chosen, self._floor = rows, (float("inf"), len(keys))
        else:
            scores = keys[rows]
            bar = np.partition(scores, len(rows) - _HEAP_ROWS)[len(rows) - _HEAP_ROWS]
            above = rows[scores > bar]
            level = rows[scores == bar][: _HEAP_ROWS - len(above)]
            chosen = np.concatenate([above, level])
            self._floor = (-float(bar), int(level[-1]))
        self._heap = sorted(zip((-keys[chosen]).tolist(), chosen.tolist(), strict=True))
        return True

    # --- taking -----------------------------------------------------------------------------------------------------

    def best(self) -> int:
        """The best row, or -1."""
        heap, keys = self._heap, self._keys
        while True:
            if not heap or heap[0] > self._floor:
                if not self._refill():
                    return -1
                heap = self._heap
            negative, row = heap[0]
            if keys[row] == -negative:
                return row
            heappop(heap)

    def take(self, count: int, lanes: Rows | None, lane_limits: tuple[int, ...]) -> list[int]:
        """The rows of the next up to `count` pods, one after the other, each seeing the ones before.

        Stops early when no row is left or when a lane is full. The caller must put exactly these pods into the table
        and call `applied`.
        """
        taken: list[int] = []
        pending: dict[int, int] = {}
        keys, curves = self._keys, self._curves
        lane_counts = [0] * len(lane_limits)
        while len(taken) < count:
            row = self.best()
            if row < 0:
                break
            curve = curves.get(row)
            if not curve:
                self._extend(row, pending)
                curve = curves[row]
            score = curve.pop()
            keys[row] = score
            if score == _NEVER:
                heappop(self._heap)
            else:
                heapreplace(self._heap, (-score, row))
            taken.append(row)
            pending[row] = pending.get(row, 0) + 1
            if lanes is not None:
                lane = int(lanes[row])
                if lane >= 0:
                    lane_counts[lane] += 1
                    if lane_counts[lane] >= lane_limits[lane]:
                        break
        return taken

    def _extend(self, row: int, pending: dict[int, int]) -> None:
        """Look ahead for `row`, and for the rows likely to come next while we are at it."""
        curves, keys = self._curves, self._keys
        rows = [row]
        for negative, other in self._heap[1 : 2 * _CURVE_ROWS]:
            if len(rows) == _CURVE_ROWS:
                break
            if other not in curves and other not in pending and other not in rows and keys[other] == -negative:
                rows.append(other)
        offsets = [pending.get(other, 0) + 1 for other in rows]
        for other, curve in zip(rows, self._ahead(rows, offsets), strict=True):
            curves[other] = curve


class PlacementEngine:
    """Profiles and their rankings. One per scheduler-conf; rankings live for one session, static answers longer."""

    def __init__(self, dispatch: Dispatch, columns: ResourceColumns) -> None:
        self._dispatch = dispatch
        self._columns = columns
        self._class_context = dispatch.entries("class_context")
        self._task_context = dispatch.entries("task_context")
        self._domain_bound = dispatch.entries("domain_bound")
        self._predicate_static = dispatch.entries("predicate_static")
        self._predicate = dispatch.entries("predicate")
        self._predicate_domain = dispatch.entries("predicate_domain")
        self._order_static = dispatch.entries("node_order_static")
        self._order = dispatch.entries("node_order")
        self._batch_order = dispatch.entries("batch_node_order")
        self._best_node = dispatch.entries("best_node")
        self.has_task_context = bool(self._task_context)
        #: Per quota plugin (name, batch form, plain form).
        self.quota_hooks = quota_hooks(dispatch.entries("allocatable_many"), dispatch.entries("allocatable"))
        self.steps = np.arange(_CURVE_STEPS, dtype=np.int64)
        self._static: dict[Hashable, tuple[int, int, Mask, Scores | None]] = {}
        self._session = 0
        self._nonzero: dict[int, Matrix] = {}

    def open(self, table: NodeTable) -> None:
        """Start a session over a settled node table."""
        self._session += 1
        self.table = table
        self._profiles: dict[Hashable, Profile] = {}
        self._rankings: dict[Profile, Ranking] = {}
        self._diagnoses: dict[Profile, tuple[int, str, Diagnosis]] = {}
        #: Raised whenever room is released during the session (evictions), which voids known limits.
        self.releases = 0
        if self._session % _STATIC_SESSIONS == 0:
            old = self._session - _STATIC_SESSIONS
            self._static = {key: value for key, value in self._static.items() if value[1] > old}

    # --- profiles ---------------------------------------------------------------------------------------------------

    def profile(self, queue: Queue, task: Task) -> Profile:
        """The profile of a task now: contexts may change with every placement."""
        cls = task.cls
        contexts: dict[str, Hashable] = {}
        for name, call in self._class_context:
            context = call(queue, cls)
            if context is not None:
                contexts[name] = context
        for name, call in self._task_context:
            context = call(task)
            if context is not None:
                contexts[name] = (contexts[name], context) if name in contexts else context
        key: Hashable = (cls.id, tuple(contexts.items())) if contexts else cls.id
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = Profile(cls, contexts, len(self._profiles))
        return profile

    def nonzero(self, cls: TaskClass) -> Matrix:
        """int64 [1, 2]: what one pod of the class adds to `nonzero_used`."""
        found = self._nonzero.get(cls.id)
        if found is None:
            found = np.array([[cls.nonzero_cpu_milli, cls.nonzero_memory_bytes]], dtype=np.int64)
            self._nonzero[cls.id] = found
        return found

    # --- evaluation -------------------------------------------------------------------------------------------------

    def scores(self, profile: Profile, selection: NodeRows, static: Scores | None) -> Scores:
        """Row-bound predicates and scores of a selection: float64 [k], -inf where refused."""
        verdict: Verdict | None = None
        if self._predicate:
            verdict = Verdict(len(selection))
            self._judge(self._predicate, "predicate", profile, selection, verdict)
        total = static[selection.rows] if static is not None else np.zeros(len(selection))
        for name, call in self._order:
            try:
                part = call(profile, selection)
            except Exception as error:
                raise HookFailed(name, "node_order", error) from error
            if part is not None:
                total = total + part
        if verdict is not None and not verdict.ok.all():
            total[~verdict.ok] = _NEVER
        return total

    @staticmethod
    def _judge(
        entries: Sequence[Entry], hook: str, profile: Profile, selection: NodeRows, verdict: Verdict
    ) -> None:
        for name, call in entries:
            try:
                call(profile, selection, verdict)
            except Exception as error:
                raise HookFailed(name, hook, error) from error

    def _static_answers(self, profile: Profile) -> tuple[Mask, Scores | None]:
        """Mask and score of everything placements cannot change; kept until a node's facts change."""
        key = (profile.cls, tuple(profile.contexts.items()))
        generation = self.table.generation
        found = self._static.get(key)
        if found is not None and found[0] == generation and len(found[2]) == len(self.table):
            self._static[key] = (generation, self._session, found[2], found[3])
            return found[2], found[3]
        everything = self.all_rows()
        verdict = Verdict(len(everything))
        self._judge(self._predicate_static, "predicate_static", profile, everything, verdict)
        total: Scores | None = None
        for name, call in self._order_static:
            try:
                part = call(profile, everything)
            except Exception as error:
                raise HookFailed(name, "node_order_static", error) from error
            if part is not None:
                total = part if total is None else total + part
        self._static[key] = (generation, self._session, verdict.ok, total)
        return verdict.ok, total

    def all_rows(self) -> NodeRows:
        """Every row."""
        return NodeRows(self.table, np.arange(len(self.table), dtype=np.intp), whole=True)

    def ranking(self, profile: Profile) -> Ranking:
        """The ranking of a profile, brought up to date."""
        ranking = self._rankings.get(profile)
        if ranking is None:
            feasible, static = self._static_answers(profile)
            ranking = self._rankings[profile] = Ranking(self, profile, feasible, static)
        else:
            ranking.sync()
        return ranking

    def compares_nodes(self, profile: Profile, candidates: Rows) -> bool:
        """Whether some hook's answer for one node depends on other nodes, for this profile now."""
        if self._best_node:
            return True
        for name, call in self._batch_order:
            try:
                if call(profile, NodeRows(self.table, candidates)) is not None:
                    return True
            except Exception as error:
                raise HookFailed(name, "batch_node_order", error) from error
        return False

    def is_domain_bound(self, profile: Profile) -> bool:
        """Whether placements elsewhere may change what this profile may use."""
        for name, call in self._domain_bound:
            try:
                if call(profile):
                    return True
            except Exception as error:
                raise HookFailed(name, "domain_bound", error) from error
        return False

    # --- answers ----------------------------------------------------------------------------------------------------

    def candidates(self, profile: Profile, *, future: bool) -> Rows:
        """All rows that may take one pod now (`future`: once releasing pods are gone). The full, slow scan."""
        feasible, _ = self._static_answers(profile)
        rows = np.flatnonzero(feasible)
        selection = NodeRows(self.table, rows)
        requested = np.flatnonzero(profile.cls.request)
        free = (selection.future_idle if future else selection.idle)[:, requested]
        rows = rows[(free >= profile.cls.request[requested]).all(axis=1)]
        if not len(rows):
            return rows
        selection = NodeRows(self.table, rows)
        verdict = Verdict(len(rows))
        self._judge(self._predicate, "predicate", profile, selection, verdict)
        if self.is_domain_bound(profile):
            self._judge(self._predicate_domain, "predicate_domain", profile, selection, verdict)
        return rows[verdict.ok]

    def choose(self, profile: Profile, candidates: Rows) -> int:
        """The best of some candidate rows, all score hooks asked; -1 without candidates."""
        if not len(candidates):
            return -1
        selection = NodeRows(self.table, candidates)
        _, static = self._static_answers(profile)
        total = static[candidates] if static is not None else np.zeros(len(candidates))
        for hook, entries in (("node_order", self._order), ("batch_node_order", self._batch_order)):
            for name, call in entries:
                try:
                    part = call(profile, selection)
                except Exception as error:
                    raise HookFailed(name, hook, error) from error
                if part is not None:
                    total = total + part
        for name, call in self._best_node:
            try:
                row = call(profile, candidates, total)
            except Exception as error:
                raise HookFailed(name, "best_node", error) from error
            if row is not None:
                return int(row)
        return int(candidates[int(np.argmax(total))])

    def fits(self, profile: Profile, row: int, *, future: bool) -> bool:
        """Whether one row passes everything for one pod."""
        return bool(np.isin(row, self.candidates(profile, future=future)))

    def diagnose(self, profile: Profile) -> tuple[str, Diagnosis]:
        """Why no node takes a pod of the profile: the text of core reference §2.5 and the codes per row.

        Resources come first and end a node's list; then plugins in conf order. Counts sort by number (W-43).
        """
        position = len(self.table.touched)
        known = self._diagnoses.get(profile)
        if known is not None and known[0] == position:
            return known[1], known[2]
        everything = self.all_rows()
        diagnosis = Diagnosis(len(everything))
        free = everything.future_idle
        short_of_any = np.zeros(len(everything), dtype=bool)
        request = profile.cls.request
        for resource in self._columns.sorted_names(self._columns.amounts(request)):
            column = self._columns.column(resource)
            short = free[:, column] < request[column]
            diagnosis.reject(short, Code.UNSCHEDULABLE, f"Insufficient {resource}")
            short_of_any |= short
        rest = np.flatnonzero(~short_of_any)
        if len(rest):
            selection = NodeRows(self.table, rest)
            chain = Diagnosis(len(rest))
            entries = [("predicate_static", self._predicate_static), ("predicate", self._predicate)]
            if self.is_domain_bound(profile):
                entries.append(("predicate_domain", self._predicate_domain))
            for hook, calls in entries:
                for entry in calls:
                    chain.speaker = (entry[0], hook)
                    self._judge([entry], hook, profile, selection, chain)
            for reason, count in chain.reasons.items():
                diagnosis.reasons[reason] = diagnosis.reasons.get(reason, 0) + count
                diagnosis.sources.setdefault(reason, chain.sources[reason])
            diagnosis.codes[rest] = chain.codes
        text = fit_text(len(everything), diagnosis.reasons)
        self._diagnoses[profile] = (position, text, diagnosis)
        return text, diagnosis


def fit_text(nodes: int, reasons: dict[str, int]) -> str:
    """The fit text: `0/3 nodes are unavailable: 1 Insufficient cpu, 2 node(s) were unschedulable.`."""
    if not reasons:
        return f"0/{nodes} nodes are unavailable"
    parts = sorted((count, reason) for reason, count in reasons.items())
    return f"0/{nodes} nodes are unavailable: {', '.join(f'{count} {reason}' for count, reason in parts)}."


def quota_hooks(
    many: Sequence[Entry], single: Sequence[Entry]
) -> list[tuple[str, Callable[..., Any] | None, Callable[..., Any]]]:
    """Per quota plugin its batch form where it has one, and its plain form, in conf order."""
    by_name = dict(many)
    return [(name, by_name.get(name), call) for name, call in single]
