"""The states a profile may use, best first, kept up to date at the price of what changed.

A ranking is built once per session with one vector evaluation over all states that have rows (`classes`). A placement
moves one row from a state to another; rankings learn of it from the log of states when they are next asked. Two more
things keep this cheap:

*Curves.* A node that takes several pods in turn is scored several pods ahead in one call: hooks see hypothetical rows
whose `used` includes the pods to come.
*The list.* Only the best states stand in a sorted list. States outside it are known to sort behind its floor, so that
neither building nor asking sorts all of them.

Scores are plain floats; equal scores go to the lower row, which is the lower node name.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from capcard_sched.framework.api.node_view import NodeView

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.placement.node_classes import NodeClasses
    from capcard_sched.model.resources import Matrix

#: Negative score, lowest row, state: in the order in which rows are taken.
_Entry: TypeAlias = tuple[float, int, int]

#: How many of the best states are listed at a time, and how long the list may grow before it is made anew.
_LISTED = 64
_LONG_LIST = 512
#: A curve looks this many pods ahead, for this many states at once.
_LOOKAHEAD_STEPS = 8
_LOOKAHEAD_CLASSES = 8

#: So many states that changed are looked at one by one.
_FEW_EVENTS = 32

_NEVER = float("-inf")
#: What any score is, but `_NEVER`.
_LOWEST = -sys.float_info.max
#: Free room that any node has: the bar for resources that are not requested.
_ANY = np.iinfo(np.int64).min
#: 1, 2, ... up to the end of a curve, again for each state: int64 [states * steps, 1].
_STEPS = np.tile(np.arange(1, _LOOKAHEAD_STEPS + 1, dtype=np.int64), _LOOKAHEAD_CLASSES)[:, None]
#: Before the first list is made, and when all that is left is listed.
_NOTHING_LISTED: _Entry = (_NEVER, -1, -1)
_EVERYTHING_LISTED: _Entry = (float("inf"), 1 << 62, 0)


class Ranking:
    """See the module docstring.

    `_listed` holds entries in order, from `_head` on. Every state with rows whose entry would not sort behind the floor
    stands there under its lowest row or a lower one; an entry counts only while its row is the lowest of its state.
    """

    __slots__ = (
        "_all_feasible",
        "_bar",
        "_engine",
        "_epoch",
        "_feasible",
        "_floor",
        "_head",
        "_listed",
        "_lookahead",
        "_node_classes",
        "_position",
        "_scores",
        "_signature",
        "_static",
        "_successors",
        "is_per_node",
        "known_limit",
    )

    def __init__(self, engine: PlacementEngine, signature: PodSignature, feasible: Mask, static: Scores | None) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): what placements cannot change."""
        self._engine = engine
        self._signature = signature
        self._feasible = feasible
        self._all_feasible = bool(feasible.all())
        self._static = static
        request = signature.cls.request
        self._bar = np.where(request > 0, request, _ANY)
        #: Rows of a failed attempt that used nothing but this profile, the release count it is valid for, and its
        #: fit text: no later attempt of the session can place more, unless something was released meanwhile (W-18).
        self.known_limit: tuple[list[int], int, str] | None = None
        #: Whether every placement must re-ask all candidates: a hook compares nodes with each other, or looks at more
        #: of a node than its amounts.
        self.is_per_node = engine.is_private(signature)
        if not self.is_per_node:
            self._node_classes: NodeClasses = engine.classes_for(feasible, static)
            self._build()
            rows = self._node_classes.members
            rows = rows[self._scores.take(self._node_classes.ids.take(rows)) > _NEVER]
            self.is_per_node = engine.compares_nodes(signature, rows)

    def _build(self) -> None:
        """Score all states that have rows."""
        classes = self._node_classes
        self._epoch = classes.epoch
        self._successors = classes.successors(self._signature.cls)
        #: Score by state, float64 [room]; NaN where not known.
        self._scores: Scores = np.full(len(classes.first), np.nan)
        #: State to the scores after one, two, ... more pods.
        self._lookahead: dict[int, Sequence[float]] = {}
        self._listed: list[_Entry] = []
        self._head = 0
        self._floor = _NOTHING_LISTED
        #: How much of the log of states has been read.
        self._position = classes.logged
        self._learn(np.flatnonzero(classes.first[: classes.count] < len(classes.ids)))

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _learn(self, numbers: npt.NDArray[np.int64]) -> None:
        """Score states."""
        classes = self._node_classes
        rows = classes.example.take(numbers)
        if not self._all_feasible:
            usable = self._feasible.take(rows)
            self._scores[numbers[~usable]] = _NEVER
            numbers, rows = numbers[usable], rows[usable]
        if len(numbers):
            allocatable, charged = classes.allocatable.take(numbers, axis=0), classes.charged.take(numbers, axis=0)
            self._scores[numbers] = self._score(rows, allocatable, charged)

    def _score(self, rows: Rows, allocatable: Matrix, charged: Matrix) -> Scores:
        """Scores of feasible rows that had these amounts, -inf where there is no room: float64 [k]."""
        table, static = self._engine.table, self._static
        fits: Mask = np.logical_and.reduce(allocatable - charged[:, :-2] >= self._bar, axis=1)
        fitting = np.count_nonzero(fits)
        whole = fitting == len(fits)
        if not whole:
            scores: Scores = np.full(len(rows), _NEVER)
            if not fitting:
                return scores
            rows, allocatable, charged = rows[fits], allocatable[fits], charged[fits]
        found = self._engine.scores(self._signature, NodeView(table, rows, allocatable=allocatable, charged=charged))
        if static is not None:
            found = found + static.take(rows)
        if whole:
            return found
        scores[fits] = found
        return scores

    def _look_ahead(self, numbers: list[int]) -> list[list[float]]:
        """Scores of states after one and more pods: `_LOOKAHEAD_STEPS` of them for each."""
        classes = self._node_classes
        repeated = np.array(numbers, dtype=np.intp).repeat(_LOOKAHEAD_STEPS)
        charged = classes.charged.take(repeated, axis=0)
        charged += _STEPS[: len(repeated)] * self._signature.cls.charge
        scores = self._score(classes.example.take(repeated), classes.allocatable.take(repeated, axis=0), charged)
        lookahead: list[list[float]] = scores.reshape(len(numbers), _LOOKAHEAD_STEPS).tolist()
        return lookahead

    # --- keeping up -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Take in what others changed since the last time."""
        if self.is_per_node:
            return  # all candidates are asked anyway
        classes = self._node_classes
        classes.catch_up()
        if classes.epoch != self._epoch:
            self._build()
            return
        since, self._position = self._position, classes.logged
        if since == classes.logged:
            return
        if classes.count > len(self._scores):
            self._grow()
        events = classes.log[since : classes.logged]
        newcomers = self._few_newcomers(events) if len(events) <= _FEW_EVENTS else self._newcomers(events)
        if not newcomers:
            return
        listed = self._listed[self._head :]
        listed += newcomers  # one that is there already does no harm
        listed.sort()
        self._listed, self._head = listed, 0
        if len(listed) > _LONG_LIST:
            self._relist()

    def _newcomers(self, events: npt.NDArray[np.int64]) -> list[_Entry]:
        """The entries that are to be listed of states that changed; scores those that are not known yet."""
        classes = self._node_classes
        scores = self._scores.take(events)
        unknown = np.isnan(scores)
        if unknown.any():
            fresh = events[unknown]
            fresh = fresh[classes.first.take(fresh) < len(classes.ids)]
            if len(fresh):
                self._learn(fresh)  # one that is there twice does no harm
                scores = self._scores.take(events)
        floor = self._floor
        first = classes.first.take(events)
        near = (scores >= -floor[0]) & (scores > _NEVER) & (first < len(classes.ids))
        found = zip((-scores[near]).tolist(), first[near].tolist(), events[near].tolist(), strict=True)
        return [entry for entry in found if entry <= floor]

    def _few_newcomers(self, events: npt.NDArray[np.int64]) -> list[_Entry]:
        """`_newcomers` without arrays, which cost more than they save for a handful."""
        rows_of, score_of, floor = self._node_classes.rows, self._scores.item, self._floor
        changed = [node_class for node_class in events.tolist() if rows_of[node_class]]
        fresh = [node_class for node_class in changed if (score := score_of(node_class)) != score]
        if fresh:
            self._learn(np.array(fresh, dtype=np.int64))
        bar = max(-floor[0], _LOWEST)
        return [
            entry
            for node_class in changed
            if (score := score_of(node_class)) >= bar
            and (entry := (-score, rows_of[node_class][0], node_class)) <= floor
        ]

    def _grow(self) -> None:
        more = len(self._node_classes.first) - len(self._scores)
        self._scores = np.concatenate([self._scores, np.full(more, np.nan)])

    def _list(self, entry: _Entry) -> None:
        """Put an entry into its place, unless it is behind the floor or there already."""
        if entry > self._floor:
            return
        listed = self._listed
        place = bisect_left(listed, entry, self._head)
        if place == len(listed) or listed[place] != entry:
            listed.insert(place, entry)

    def _relist(self) -> bool:
        """List the best states anew. False when no row is left."""
        classes = self._node_classes
        first = classes.first[: classes.count]
        scores = self._scores[: classes.count]
        numbers = np.flatnonzero((scores > _NEVER) & (first < len(classes.ids)))
        self._head, self._floor = 0, _EVERYTHING_LISTED
        if not len(numbers):
            self._listed = []
            return False
        if len(numbers) > _LISTED:
            found = scores.take(numbers)
            bar = np.partition(found, len(numbers) - _LISTED)[len(numbers) - _LISTED]
            above, level = numbers[found > bar], numbers[found == bar]
            wanted = _LISTED - len(above)
            if len(level) > wanted:
                level = level[np.argpartition(first.take(level), wanted - 1)[:wanted]]
            numbers = np.concatenate([above, level])
            self._floor = (-float(bar), int(first.take(level).max()), 1 << 62)
        negative = (-scores.take(numbers)).tolist()
        self._listed = sorted(zip(negative, first.take(numbers).tolist(), numbers.tolist(), strict=True))
        return True

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self, count: int, alternatives: Rows | None, alternative_limits: tuple[int, ...]) -> list[int]:
        """The rows of the next up to `count` pods, one after the other, each seeing the ones before.

        Stops early when no row is left or when a lane is full. The caller must put exactly these pods into the table
        and call `applied`; if it cannot, what it did and undid is found out by the next `sync`.
        """
        taken: list[int] = []
        classes, successors = self._node_classes, self._successors
        rows_of = classes.rows
        alternative_counts = [0] * len(alternative_limits)
        while len(taken) < count:
            if self._head >= len(self._listed) or self._listed[self._head] > self._floor:
                if not self._relist():
                    break
                continue
            entry = self._listed[self._head]
            negative, row, node_class = entry
            rows = rows_of[node_class]
            if not rows or rows[0] != row:
                self._head += 1
                if rows and rows[0] > row:  # its lowest row was taken; a lower one would have been listed
                    self._list((negative, rows[0], node_class))
                continue
            after = successors.get(node_class)
            if after is None:
                after = classes.successor(node_class, row, self._signature.cls)
                if classes.count > len(self._scores):
                    self._grow()
            score = self._scores.item(after)
            if score != score:  # noqa: PLR0124 - NaN: nobody has asked yet
                score = self._score_after(node_class, after, count - len(taken))
            if (
                alternatives is None and score < -negative
            ):  # no row is taken twice before its equals: all of them at once
                run = rows[: self._run(rows, negative, count - len(taken))]
                classes.advance(run, node_class, after)
                taken += run
            else:
                classes.advance([row], node_class, after)
                taken.append(row)
            if score != _NEVER and rows_of[after][0] == row:
                self._list((-score, row, after))
            if alternatives is not None:
                alternative = int(alternatives[row])
                if alternative >= 0:
                    alternative_counts[alternative] += 1
                    if alternative_counts[alternative] >= alternative_limits[alternative]:
                        break
        self._position = classes.logged
        return taken

    def _run(self, rows: list[int], negative: float, most: int) -> int:
        """How many rows of the state at the head come before everything else that is listed, up to `most`."""
        beyond = self._floor
        if self._head + 1 < len(self._listed):
            beyond = min(beyond, self._listed[self._head + 1])
        return min(most, len(rows) if beyond[0] > negative else max(1, bisect_left(rows, beyond[1])))

    def applied(self) -> None:
        """The rows of the last `take` now stand in the table."""
        self._node_classes.mark_synced()

    def _score_after(self, node_class: int, after: int, count: int) -> float:
        """The score of a row of `node_class` with one more pod, as node class `after`; cached with the scores ahead."""
        lookahead = self._lookahead
        if node_class not in lookahead:
            wanted = [node_class]
            for _, _, other in self._listed[self._head + 1 : self._head + 2 * min(count, _LOOKAHEAD_CLASSES)]:
                if len(wanted) == _LOOKAHEAD_CLASSES:
                    break
                if other not in lookahead and other not in wanted and self._node_classes.rows[other]:
                    wanted.append(other)
            lookahead.update(zip(wanted, self._look_ahead(wanted), strict=True))
        scores_ahead = lookahead.pop(node_class)
        score = self._scores[after] = scores_ahead[0]
        if len(scores_ahead) > 1:
            lookahead.setdefault(after, scores_ahead[1:])
        return score
