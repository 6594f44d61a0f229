"""The rows a profile may use, best first, kept up to date at the price of what changed.

A ranking is built once per session with one vector evaluation over all feasible rows. A placement touches one row;
rankings learn of it from the node table's stamps when they are next asked. Three things keep this cheap:

*States.* For most profiles the answer of the row hooks follows from the amounts of the node alone, and many nodes have
equal amounts: a cluster of a thousand equal machines has few different ones at any time. Rows with equal amounts are in
one *state*, and a state is scored once per profile.
*Curves.* A node that takes several pods in turn is scored several pods ahead in one call: hooks see hypothetical rows
whose `used` includes the pods to come.
*The list.* Only the best rows stand in a sorted list. Rows outside it are known to sort behind its floor, so that
neither building nor asking sorts all nodes.

Scores are plain floats; equal scores go to the lower row, which is the lower node name.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.rows import NodeRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.framework.placement import PlacementEngine
    from capcard_sched.framework.rows import Mask, Profile, Rows, Scores
    from capcard_sched.state.columns import NodeTable

#: How many of the best rows are listed at a time, and how long the list may grow before it is made anew.
_LISTED_ROWS = 64
_LONG_LIST = 512
#: A curve looks this many pods ahead, for this many rows at once.
_CURVE_STEPS = 8
_CURVE_ROWS = 8
#: Among more new rows than this, those in the same state are not sorted out: scoring them twice is cheaper.
_FEW_STATES = 64
#: States beyond this many are not shared: the cluster is too mixed for it to pay.
_MOST_STATES = 16384

_NEVER = float("-inf")
#: Free room that any node has: the bar for resources that are not requested.
_ANY = np.iinfo(np.int64).min
#: 1, 2, ... up to the end of a curve, again for each row: int64 [rows * steps, 1].
_STEPS = np.tile(np.arange(1, _CURVE_STEPS + 1, dtype=np.int64), _CURVE_ROWS)[:, None]


class RowStates:
    """Numbers for equal amounts: rows with the same allocatable and charged amounts are in the same state.

    Lives for one session. Numbers are given when they are asked for, and again after the row changed.
    """

    __slots__ = ("_ids", "_numbers", "_stamps", "_table")

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._numbers: dict[bytes, int] = {}
        #: int64 [nodes] each: state of the row, and the row's stamp when it was numbered.
        self._ids = np.zeros(len(table), dtype=np.int64)
        self._stamps = np.full(len(table), -1, dtype=np.int64)

    @property
    def crowded(self) -> bool:
        """Whether there are too many different states for sharing to pay."""
        return len(self._numbers) > _MOST_STATES

    def of(self, row: int) -> int:
        """The state of one row."""
        stamp = self._table.stamps.item(row)
        if self._stamps.item(row) == stamp:
            return self._ids.item(row)
        self._stamps[row] = stamp
        amounts = self._table.allocatable[row].tobytes() + self._table.charged[row].tobytes()
        number = self._ids[row] = self._numbers.setdefault(amounts, len(self._numbers))
        return number

    def of_all(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The states of many rows: int64 [k]."""
        stale = self._stamps.take(rows) != self._table.stamps.take(rows)
        if stale.any():
            for row in rows[stale].tolist():
                self.of(row)
        return self._ids.take(rows)


class Ranking:
    """See the module docstring.

    `_listed` holds (negative score, row) in order, from `_head` on. Every row whose entry would not sort behind the
    floor stands there; an entry counts only while it says what `_scores` says.
    """

    __slots__ = (
        "_bar",
        "_curves",
        "_engine",
        "_feasible",
        "_floor",
        "_head",
        "_known",
        "_listed",
        "_profile",
        "_progress",
        "_scores",
        "_static",
        "_synced",
        "_table",
        "known_limit",
        "row_bound",
    )

    def __init__(self, engine: PlacementEngine, profile: Profile, feasible: Mask, static: Scores | None) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): what placements cannot change."""
        self._engine = engine
        self._table = engine.table
        self._profile = profile
        self._feasible = feasible
        self._static = static
        request = profile.cls.request
        self._bar = np.where(request > 0, request, _ANY)
        self._scores: Scores = np.full(len(feasible), _NEVER)
        self._listed: list[tuple[float, int]] = []
        self._head = 0
        self._floor: tuple[float, int] = (_NEVER, -1)
        #: Score by state without the static part, float64; NaN where not known yet.
        self._known: Scores = np.zeros(0)
        #: State to the scores after one, two, ... more pods, without the static part.
        self._curves: dict[int, Sequence[float]] = {}
        #: Of the rows of the last `take`: their curve and how far along it they are.
        self._progress: dict[int, tuple[Sequence[float], int]] = {}
        self._synced = engine.table.serial
        #: Rows of a failed attempt that used nothing but this profile, the release count it is valid for, and its
        #: fit text: no later attempt of the session can place more, unless something was released meanwhile (W-18).
        self.known_limit: tuple[list[int], int, str] | None = None
        #: Whether every placement must re-ask all candidates: a hook compares nodes with each other, or looks at more
        #: of a node than its amounts.
        self.row_bound = engine.is_private(profile)
        if not self.row_bound:
            rows = np.flatnonzero(feasible)
            self._scores[rows] = self._with_static(self._score(rows), rows)
            self.row_bound = engine.compares_nodes(profile, rows[self._scores[rows] > _NEVER])

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _with_static(self, scores: Scores, rows: Rows) -> Scores:
        return scores if self._static is None else scores + self._static.take(rows)

    def _score(self, rows: Rows, ahead: npt.NDArray[np.int64] | None = None) -> Scores:
        """Scores of rows without the static part, -inf where there is no room: float64 [k].

        `ahead` (int64 [k, 1]): so many more pods of the class are there than the table says.
        """
        table, cls = self._table, self._profile.cls
        allocatable, charged = table.allocatable.take(rows, axis=0), table.charged.take(rows, axis=0)
        if ahead is not None:
            charged += ahead * cls.charge
        fits: Mask = np.logical_and.reduce(allocatable - charged[:, :-2] >= self._bar, axis=1)
        if fits.all():
            return self._engine.scores(self._profile, NodeRows(table, rows, allocatable=allocatable, charged=charged))
        scores: Scores = np.full(len(rows), _NEVER)
        if fits.any():
            selection = NodeRows(table, rows[fits], allocatable=allocatable[fits], charged=charged[fits])
            scores[fits] = self._engine.scores(self._profile, selection)
        return scores

    def _score_changed(self, rows: Rows) -> Scores:
        """Scores of rows as they stand, without the static part, each state scored once."""
        states = self._engine.states
        if states.crowded:
            return self._score(rows)
        ids = states.of_all(rows)
        highest = int(ids.max())
        if highest >= len(self._known):
            more = max(len(self._known), highest + 256 - len(self._known))
            self._known = np.concatenate([self._known, np.full(more, np.nan)])
        scores = self._known.take(ids)
        missing = np.isnan(scores)
        if missing.any():
            fresh_ids, fresh_rows = ids[missing], rows[missing]
            if len(fresh_rows) <= _FEW_STATES:
                fresh = dict(zip(fresh_ids.tolist(), fresh_rows.tolist(), strict=True))  # a row for each state
                fresh_rows = np.fromiter(fresh.values(), dtype=np.intp, count=len(fresh))
                fresh_ids = np.fromiter(fresh, dtype=np.int64, count=len(fresh))
            self._known[fresh_ids] = self._score(fresh_rows)
            scores = self._known.take(ids)
        return scores

    # --- keeping up -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Re-score the rows that others changed since the last time."""
        table, since = self._table, self._synced
        if since == table.serial:
            return
        self._synced = table.serial
        rows = np.flatnonzero((table.stamps > since) & self._feasible)
        if not len(rows):
            return
        scores = self._with_static(self._score_changed(rows), rows)
        self._scores[rows] = scores
        floor = self._floor
        if floor[0] == _NEVER:
            return  # nothing is listed yet
        near = (scores >= -floor[0]) & (scores > _NEVER)
        newcomers = list(zip((-scores[near]).tolist(), rows[near].tolist(), strict=True))
        if not newcomers:
            return
        listed = self._listed[self._head :]
        listed += newcomers
        listed.sort()
        self._listed, self._head = listed, 0
        if len(listed) > _LONG_LIST:
            self._relist()

    def applied(self) -> None:
        """The rows of the last `take` now stand in the table. What they are worth next is known already."""
        self._synced = self._table.serial
        states = self._engine.states
        if states.crowded:
            return
        known, curves = self._known, self._curves
        for row, (curve, position) in self._progress.items():
            state = states.of(row)
            if state < len(known):
                known[state] = curve[position - 1]
            if position < len(curve) and state not in curves:
                curves[state] = curve[position:]

    def _relist(self) -> bool:
        """List the best rows anew. False when no row is left."""
        scores = self._scores
        rows = np.flatnonzero(scores > _NEVER)
        end = (float("inf"), len(scores))
        if not len(rows):
            self._listed, self._head, self._floor = [], 0, end
            return False
        if len(rows) <= _LISTED_ROWS:
            self._floor = end
        else:
            found = scores.take(rows)
            bar = np.partition(found, len(rows) - _LISTED_ROWS)[len(rows) - _LISTED_ROWS]
            above = rows[found > bar]
            level = rows[found == bar][: _LISTED_ROWS - len(above)]
            rows = np.concatenate([above, level])
            self._floor = (-float(bar), int(level[-1]))
        self._listed = sorted(zip((-scores.take(rows)).tolist(), rows.tolist(), strict=True))
        self._head = 0
        return True

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self, count: int, lanes: Rows | None, lane_limits: tuple[int, ...]) -> list[int]:
        """The rows of the next up to `count` pods, one after the other, each seeing the ones before.

        Stops early when no row is left or when a lane is full. The caller must put exactly these pods into the table
        and call `applied`.
        """
        taken: list[int] = []
        progress = self._progress = {}
        scores, static, listed, head = self._scores, self._static, self._listed, self._head
        score_of = scores.item  # plain floats compare quicker than array scalars
        states, curves = self._engine.states, self._curves
        shared = not states.crowded
        lane_counts = [0] * len(lane_limits)
        for _ in range(count):
            while True:  # the best row that is listed under what it is worth now
                if head >= len(listed) or listed[head] > self._floor:
                    if not self._relist():
                        return taken
                    listed, head = self._listed, 0
                negative, row = listed[head]
                if score_of(row) == -negative:
                    break
                head += 1
            self._head = head
            known = progress.get(row)
            if known is None:
                known_curve = curves.get(states.of(row)) if shared else None
                curve, position = known_curve or self._curve(row, count - len(taken)), 0
            else:
                curve, position = known
                if position == len(curve):
                    curve = [*curve, *self._look_ahead([row], position + 1)[0]]
            score = curve[position]
            progress[row] = (curve, position + 1)
            if static is not None:
                score += float(static[row])
            scores[row] = score
            head += 1
            if score != _NEVER:
                entry = (-score, row)
                if entry <= self._floor:
                    insort(listed, entry, lo=head)
            self._head = head
            taken.append(row)
            if lanes is not None:
                lane = int(lanes[row])
                if lane >= 0:
                    lane_counts[lane] += 1
                    if lane_counts[lane] >= lane_limits[lane]:
                        break
        return taken

    def _curve(self, row: int, count: int) -> Sequence[float]:
        """What the row is worth after one, two, ... pods more than the table says; new states of next rows too."""
        states = self._engine.states
        if states.crowded:
            return self._look_ahead([row], 1)[0]
        state = states.of(row)
        wanted = {state: row}
        for _, other in self._listed[self._head + 1 : self._head + 2 * min(count, _CURVE_ROWS)]:
            if len(wanted) == _CURVE_ROWS:
                break
            if other not in self._progress:
                state_of_other = states.of(other)
                if state_of_other not in self._curves:
                    wanted.setdefault(state_of_other, other)
        self._curves.update(zip(wanted, self._look_ahead(list(wanted.values()), 1), strict=True))
        return self._curves[state]

    def _look_ahead(self, rows: list[int], first: int) -> list[list[float]]:
        """Scores after `first` and more pods beyond the table: `_CURVE_STEPS` of them for each row."""
        steps = _STEPS[: len(rows) * _CURVE_STEPS]
        scores = self._score(
            np.array(rows, dtype=np.intp).repeat(_CURVE_STEPS), steps if first == 1 else steps + (first - 1)
        )
        curves: list[list[float]] = scores.reshape(len(rows), _CURVE_STEPS).tolist()
        return curves
