"""The node classes that fit a signature, best first, maintained at the cost of the changes.

A ranking is built once per session with one vector evaluation over all classes that have rows (`node_classes`). A
placement moves one row to another class; a ranking reads the log of these moves on its next use. The classes that the
best ones become with one more pod are scored in one call, the best one several pods ahead: hooks get hypothetical rows
whose `used` includes the pods.

Only the best classes are in a sorted list. Classes outside it sort behind its floor, so that neither the build nor a
placement sorts all of them.

Scores are plain floats; equal scores go to the lower row, which is the lower node name.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from capcard_sched.framework.api.node_view import NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.framework.placement.node_classes import NodeClasses, NodeSet
    from capcard_sched.framework.placement.node_hooks import SignatureHooks
    from capcard_sched.model.resources import Matrix

#: Negative score, lowest row, class: in placement order.
_Entry: TypeAlias = tuple[float, int, int]
#: Rows of a failed attempt that used only one signature, its release count and its fit text: no later attempt of the
#: session can place more, unless something was released meanwhile.
KnownLimit: TypeAlias = tuple[list[int], int, str]

#: Number of best classes listed at a time, and the length of the list that triggers a rebuild. With a list of all
#: classes, the session of scene W3 takes 7 % more at 1,000 nodes and 5,000 pods; nothing at 5,000 and 20,000.
_LISTED = 64
_LONG_LIST = 512
#: Classes that are scored with one more pod in one call.
_SCORED_AHEAD = 8
#: Pods that the best class is scored ahead: a node that binpack fills takes one after the other. With 1 in place of 8,
#: the session of scene V3 (shared cards, 1,000 nodes, 10,000 pods) takes 35 % more, that of V1 12 %, that of W3 5 %.
_STEPS_AHEAD = 8

#: Number of changed classes up to which they are processed without arrays. With 0, the session of scene W2 takes 14 %
#: more, and that of W3 7 % (3,000 nodes, 10,000 pods).
_FEW_EVENTS = 32

_NEVER = float("-inf")
_UNKNOWN = float("nan")
#: A position beyond the log of classes.
_NOTHING_UNREAD = 1 << 62
#: The lowest score of a feasible class.
_LOWEST = -sys.float_info.max
#: Threshold of resources that are not requested: any node meets it.
_ANY = np.iinfo(np.int64).min
_STEPS = np.arange(1, _STEPS_AHEAD + 1, dtype=np.int64)
#: The floor before the first list, and the floor when every class is listed.
_NOTHING_LISTED: _Entry = (_NEVER, -1, -1)
_EVERYTHING_LISTED: _Entry = (float("inf"), 1 << 62, 0)


class Ranking:
    """See the module docstring.

    `_listed` holds entries in order, from `_head` on. Every class with rows whose entry does not sort behind the floor
    is listed with its lowest row or a lower one; an entry is valid while its row is the lowest of its class.
    """

    __slots__ = (
        "_all_feasible",
        "_bar",
        "_epoch",
        "_feasible",
        "_floor",
        "_head",
        "_hooks",
        "_listed",
        "_node_classes",
        "_nodes",
        "_position",
        "_scores",
        "_scores_after",
        "_signature",
        "_static",
        "_successors",
        "_unread",
        "is_per_node",
        "known_limit",
    )

    def __init__(
        self, hooks: SignatureHooks, nodes: NodeSet, signature: PodSignature, feasible: Mask, static: Scores | None
    ) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): the results that placements cannot change."""
        self._hooks = hooks
        self._nodes = nodes
        self._signature = signature
        self._feasible = feasible
        self._all_feasible = bool(feasible.all())
        self._static = static
        request = signature.cls.fit_request
        self._bar = np.where(request > 0, request, _ANY)
        self.known_limit: KnownLimit | None = None
        #: Whether every placement must evaluate all candidates: a hook compares nodes, or reads more than amounts.
        self.is_per_node = hooks.reads_pods or hooks.reads_other_nodes
        if not self.is_per_node:
            self._node_classes: NodeClasses = nodes.classes_for(feasible, static)
            self._build()
            rows = self._node_classes.members
            rows = rows[self._scores.take(self._node_classes.ids.take(rows)) > _NEVER]
            self.is_per_node = hooks.compares_nodes(nodes.table, rows)

    def _build(self) -> None:
        """Scores all classes that have rows."""
        classes = self._node_classes
        self._epoch = classes.epoch
        self._successors = classes.successors(self._signature.cls)
        #: Score by class, float64 [size]; NaN where unknown.
        self._scores: Scores = np.full(len(classes.first), np.nan)
        #: Class to its scores with one more pod, and with further ones if they are known.
        self._scores_after: dict[int, list[float]] = {}
        self._listed: list[_Entry] = []
        self._head = 0
        self._floor = _NOTHING_LISTED
        #: Position in the log of classes.
        self._position = classes.logged
        self._evaluate((classes.first[: classes.count] < len(classes.ids)).nonzero()[0])

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _evaluate(self, numbers: npt.NDArray[np.int64]) -> None:
        """Scores classes."""
        classes = self._node_classes
        rows = classes.example.take(numbers)
        if not self._all_feasible and len(numbers):
            usable = self._feasible.take(rows)
            if not usable[usable.argmin()]:
                self._scores[numbers[~usable]] = _NEVER
                numbers, rows = numbers[usable], rows[usable]
        if len(numbers):
            allocatable, charged = classes.allocatable.take(numbers, axis=0), classes.charged.take(numbers, axis=0)
            held = None if classes.held is None else classes.held.take(numbers, axis=0)
            self._scores[numbers] = self._score(rows, allocatable, charged, held)

    def _score(self, rows: Rows, allocatable: Matrix, charged: Matrix, held: Matrix | None) -> Scores:
        """Scores of feasible rows (at least one) with these amounts, -inf without capacity: float64 [k]."""
        table, static = self._nodes.table, self._static
        fits: Mask = np.logical_and.reduce(allocatable - charged[:, :-2] >= self._bar, axis=1)
        whole = fits[fits.argmin()]  # the first that is too small, if any: faster than `all` for a few rows
        if not whole:
            scores: Scores = np.full(len(rows), _NEVER)
            if not fits[fits.argmax()]:
                return scores
            rows, allocatable, charged = rows[fits], allocatable[fits], charged[fits]
            held = None if held is None else held[fits]
        by_plugin = self._node_classes.by_plugin(held)
        view = NodeView(table, rows, allocatable=allocatable, charged=charged, states=by_plugin)
        found = self._hooks.scores(view)
        if static is not None:
            found = found + static.take(rows)
        if whole:
            return found
        scores[fits] = found
        return scores

    def _score_ahead(self, numbers: list[int], steps: int) -> list[float]:
        """Scores of the first class with one, two, ... `steps` more pods, then of each other class with one more."""
        classes, cls = self._node_classes, self._signature.cls
        repeated = numbers[:1] * (steps - 1) + numbers
        pods = np.ones((len(repeated), 1), dtype=np.int64)
        pods[:steps, 0] = _STEPS[:steps]
        charged = classes.charged.take(repeated, axis=0) + pods * cls.charge
        held = None
        if classes.held is not None:
            first = classes.held[numbers[0]]
            ahead = [first := classes.after(first, cls) for _ in range(steps)]
            held = np.array([*ahead, *(classes.after(classes.held[number], cls) for number in numbers[1:])])
        scores: list[float] = self._score(
            classes.example.take(repeated), classes.allocatable.take(repeated, axis=0), charged, held
        ).tolist()
        return scores

    # --- keeping up -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Applies the changes of others since the last call."""
        if self.is_per_node:
            return  # all candidates are evaluated anyway
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
        listed += newcomers  # a duplicate is harmless
        listed.sort()
        self._listed, self._head = listed, 0
        if len(listed) > _LONG_LIST:
            self._relist()

    def _newcomers(self, events: npt.NDArray[np.int64]) -> list[_Entry]:
        """The entries to list for changed classes; scores the unknown ones."""
        classes = self._node_classes
        scores = self._scores.take(events)
        unknown = np.isnan(scores)
        if unknown.any():
            fresh = events[unknown]
            fresh = fresh[classes.first.take(fresh) < len(classes.ids)]
            if len(fresh):
                self._evaluate(fresh)  # a duplicate is harmless
                scores = self._scores.take(events)
        floor = self._floor
        first = classes.first.take(events)
        near = (scores >= -floor[0]) & (scores > _NEVER) & (first < len(classes.ids))
        found = zip((-scores[near]).tolist(), first[near].tolist(), events[near].tolist(), strict=True)
        return [entry for entry in found if entry <= floor]

    def _few_newcomers(self, events: npt.NDArray[np.int64]) -> list[_Entry]:
        """`_newcomers` without arrays, which cost more than they save for a handful."""
        unknown: list[int] = []
        found = self._entries({*events.tolist()}, unknown)
        if unknown:
            self._evaluate(np.array(unknown, dtype=np.int64))
            found += self._entries(unknown, [])
        return found

    def _entries(self, numbers: Iterable[int], unknown: list[int]) -> list[_Entry]:
        """The entries to list among those of some classes; adds classes without a score to `unknown`."""
        rows_of, score_of, floor = self._node_classes.rows, self._scores.item, self._floor
        bar = max(-floor[0], _LOWEST)
        found = []
        for number in numbers:
            rows, score = rows_of[number], score_of(number)
            if not rows:
                continue
            if score >= bar:
                entry = (-score, rows[0], number)
                if entry <= floor:
                    found.append(entry)
            elif score != score:  # noqa: PLR0124 - NaN: unknown so far
                unknown.append(number)
        return found

    def _grow(self) -> None:
        more = len(self._node_classes.first) - len(self._scores)
        self._scores = np.concatenate([self._scores, np.full(more, np.nan)])

    def _list(self, entry: _Entry) -> None:
        """Inserts an entry, unless it sorts behind the floor or is listed already."""
        if entry > self._floor:
            return
        listed = self._listed
        place = bisect_left(listed, entry, self._head)
        if place == len(listed) or listed[place] != entry:
            listed.insert(place, entry)

    def _relist(self) -> bool:
        """Lists the best classes anew. False when no row is left."""
        classes = self._node_classes
        first = classes.first[: classes.count]
        scores = self._scores[: classes.count]
        numbers = ((scores > _NEVER) & (first < len(classes.ids))).nonzero()[0]
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
        """The rows of the next up to `count` pods, in order, each evaluated after the ones before.

        Stops early when no row is left or an alternative is exhausted. The caller must place exactly these pods and
        call `applied`; otherwise the next `sync` detects the difference.
        """
        taken: list[int] = []
        self._unread = _NOTHING_UNREAD
        classes, successors = self._node_classes, self._successors
        rows_of, score_of = classes.rows, self._scores.item
        left_of = list(alternative_limits)
        while (left := count - len(taken)) > 0:
            head, listed = self._head, self._listed
            if head >= len(listed):
                if not self._relist():
                    break
                continue
            negative, row, node_class = listed[head]
            rows = rows_of[node_class]
            if not rows or rows[0] != row:
                self._replace_head(negative, rows, row, node_class)
                continue
            after = successors.get(node_class)
            if after is None:
                after = self._successor(node_class, row)
                score_of = self._scores.item
            score = score_of(after)
            if score != score:  # noqa: PLR0124 - NaN: unknown so far
                score = self._score_after(node_class, after, left)
            if left > 1 and alternatives is None and score < -negative:
                run = rows[: self._run(rows, negative, left)]  # no row repeats before its equals: all of them at once
                taken += run
                classes.advance(run, node_class, after)
            else:
                taken.append(row)
                classes.move(row, node_class, after)
            self._head = head + 1
            if rows:
                self._list((negative, rows[0], node_class))
            if score > _NEVER and rows_of[after][0] == row:
                self._list((-score, row, after))
            if alternatives is not None and (alternative := int(alternatives[row])) >= 0:
                left_of[alternative] -= 1
                if left_of[alternative] <= 0:
                    break
        self._position = min(classes.logged, self._unread)
        return taken

    def _replace_head(self, negative: float, rows: list[int], row: int, node_class: int) -> None:
        """Passes over a class whose lowest row was taken; a lower one would be listed."""
        self._head += 1
        if rows and rows[0] > row:
            self._list((negative, rows[0], node_class))

    def _successor(self, node_class: int, row: int) -> int:
        """The class of a row of `node_class` with one more pod."""
        classes = self._node_classes
        after = classes.successor(node_class, row, self._signature.cls)
        if classes.count > len(self._scores):
            self._grow()
        return after

    def _run(self, rows: list[int], negative: float, most: int) -> int:
        """The number of rows of the head's class that precede every other listed entry, up to `most`."""
        following = self._head + 1
        beyond = self._listed[following] if following < len(self._listed) else self._floor
        return min(most, len(rows) if beyond[0] > negative else max(1, bisect_left(rows, beyond[1])))

    def applied(self) -> None:
        """The rows of the last `take` are placed now."""
        self._node_classes.mark_synced()

    def _score_after(self, node_class: int, after: int, count: int) -> float:
        """The score of a row of `node_class` with one more pod, as node class `after`; scores the next classes, too.

        NaN after the last pod: `sync` scores `after` with the classes that others change, if there is a next pod.
        """
        known = self._scores_after
        if node_class not in known:
            if count == 1:
                self._unread = self._node_classes.logged
                return _UNKNOWN
            wanted = [node_class]
            for _, _, other in self._listed[self._head + 1 : self._head + 2 * min(count, _SCORED_AHEAD)]:
                if len(wanted) == _SCORED_AHEAD:
                    break
                if other not in known and other not in wanted and self._node_classes.rows[other]:
                    wanted.append(other)
            steps = min(count, _STEPS_AHEAD)
            scores = self._score_ahead(wanted, steps)
            known[node_class] = scores[:steps]
            known.update((other, [score]) for other, score in zip(wanted[1:], scores[steps:], strict=True))
        score, *further = known.pop(node_class)
        self._scores[after] = score
        if further:
            known.setdefault(after, further)
        return score
