"""Takes back evictions of a statement that none of its pods needs.

The victims of each pod are minimal when it is placed; those of a later pod can make some of them unnecessary. Units are
left out on trial, the last one first. The pods are then placed anew: on their node, else on one with capacity.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.framework.session.statement import EvictionOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.eviction.victim_index import VictimUnit
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.statement import Statement
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass


#: Operations: statements with fewer evict a minimal set already.
LEAST_OPERATIONS: Final = 4
#: Operations that the trials of one statement repeat: pods with many victims keep those that are left.
_MOST_OPERATIONS: Final = 2_000


class Reprieve:
    """The trials of one statement, which holds evictions and pipelined pods of one job."""

    def __init__(
        self,
        session: Session,
        scope: WithinQueue,
        statement: Statement,
        queue: Queue,
        job: Job,
        text: Callable[[Task, Task, Node], str] | None,
    ) -> None:
        """`queue`, `job`: of the preemptors.

        `text` of an eviction for a pod that takes the place of another one on a node; None in trials.
        """
        self._session, self._scope, self._statement, self._text = session, scope, statement, text
        self._queue, self._job = queue, job
        #: Whether some node has capacity for a pod of a class, and the classes of the pods on a node, for now.
        self._has_space: dict[TaskClass, bool] = {}
        self._classes: dict[Node, Counter[TaskClass]] | None = None
        self._spare: Vector | None = None

    def run(self, units: Sequence[VictimUnit]) -> None:
        """Takes back what the pods do not need. `units`: in the order in which they left."""
        statement, kept = self._statement, list(units)
        if len(kept) < 2 or len(statement.placements) < 2:
            return  # the victims of one pod are minimal
        operations, planned = 0, {one.tasks[0].key: one.nodes[0] for one in statement.placements}
        for unit in reversed(units):
            if operations + len(statement) > _MOST_OPERATIONS or self._session.deadline.is_exhausted(self._queue.name):
                break
            if not self._may_stay(unit):
                continue
            others = [one for one in kept if one is not unit]
            if any(_includes(one, unit) for one in others):
                continue
            before = statement.operations
            operations += len(before)
            if self._place_without(unit, others):
                kept = others
                self._has_space.clear()
                self._classes = None
            else:
                statement.rollback(0)
                self._repeat(before)
        if len(kept) < len(units):
            self._name_takers(planned)

    def _name_takers(self, planned: Mapping[str, Node]) -> None:
        """Has the evictions for pods that moved name those that take their place. `planned`: the nodes before."""
        statement, text = self._statement, self._text
        operations, placed = statement.operations, {one.tasks[0].key: one for one in statement.placements}
        causes: dict[str, list[Node]] = {}
        for each in operations:
            if isinstance(each, EvictionOperation):
                causes.setdefault(each.cause[0], [planned[each.cause[0]]]).append(each.node)
        moved = {by: nodes for by, nodes in causes.items() if placed[by].nodes[0] is not planned[by]}
        if text is None or not moved:
            return
        takers: dict[str, tuple[str, str]] = {}
        for by, nodes in moved.items():
            found = (one for node in nodes for one in placed.values() if one.nodes[0] is node)
            taker = next(found, placed[by])
            takers[by] = taker.tasks[0].key, text(taker.tasks[0], placed[by].tasks[0], taker.nodes[0])
        statement.rollback(0)
        for one in operations:
            if isinstance(one, EvictionOperation) and one.cause[0] in takers:
                by, message = takers[one.cause[0]]
                statement.evict(one.task, one.reason, message, by=by, queue=one.cause[1])
            else:
                self._repeat([one])

    def _may_stay(self, unit: VictimUnit) -> bool:
        """Whether the amounts allow the victims to stay: their nodes have them to spare, or pods there can move."""
        table = self._session.nodes
        held: dict[Node, Vector] = {}
        for task in unit.tasks:
            assert task.node is not None
            held[task.node] = held[task.node] + task.cls.request if task.node in held else task.cls.request
        crowded = {
            node for node, amounts in held.items() if ((table.future_idle(node.row) < amounts) & (amounts > 0)).any()
        }
        if not crowded:
            return True
        if self._classes is None:
            self._classes, self._spare = {}, None
            for one in self._statement.placements:
                self._classes.setdefault(one.nodes[0], Counter())[one.tasks[0].cls] += 1
        classes = {cls for counts in self._classes.values() for cls in counts}
        if len(classes) == 1 and not (cls := next(iter(classes))).claims:
            return self._can_move(cls, held)
        return any(self._is_placeable(cls) for node in crowded for cls in self._classes.get(node, ()))

    def _can_move(self, cls: TaskClass, held: Mapping[Node, Vector]) -> bool:
        """Whether other nodes have capacity for the pods, all of one class, for which these amounts leave none."""
        assert self._classes is not None
        table, wanted = self._session.nodes, cls.fit_request > 0
        request, spare = cls.fit_request[wanted], self._spare_of(cls)
        lost, free = 0, int(spare.sum())
        for node, amounts in held.items():
            here = self._classes.get(node, Counter())[cls]
            left = table.future_idle(node.row)[wanted] + here * request - amounts[wanted]
            fitting = max(0, int((left // request).min()))
            lost += max(0, here - fitting)
            free -= int(spare[node.row]) - min(int(spare[node.row]), max(0, fitting - here))
        return lost <= free

    def _spare_of(self, cls: TaskClass) -> Vector:
        """The pods of a class that each node has capacity for beside those that are placed: int64 [nodes].

        Pods of different subgroups may have different HyperNodes: a node counts where it is one of some pod.
        """
        if self._spare is None:
            engine, table = self._session.engine, self._session.nodes
            tasks = [one.tasks[0] for one in self._statement.placements]
            signatures = dict.fromkeys(engine.signature(self._queue, task) for task in tasks)
            rows = np.concatenate([engine.candidates(each, future=True) for each in signatures])
            wanted = cls.fit_request > 0
            self._spare = np.zeros(len(table), dtype=np.int64)
            self._spare[rows] = (table.future_idle(rows)[:, wanted] // cls.fit_request[wanted]).min(axis=1)
        return self._spare

    def _is_placeable(self, cls: TaskClass) -> bool:
        """Whether some node has capacity for a further pod of a class."""
        if cls not in self._has_space:
            table = self._session.nodes
            idle = table.future_idle(np.arange(len(table)))
            self._has_space[cls] = bool((idle >= cls.fit_request).all(axis=1).any())
        return self._has_space[cls]

    def _place_without(self, unit: VictimUnit, others: Sequence[VictimUnit]) -> bool:
        """Takes back a unit, and places the pods anew after all evictions. Whether all pods have a node."""
        session, statement = self._session, self._statement
        placements = statement.take_back({task.uid for task in unit.tasks})
        victims = [one.tasks[0] for one in others]
        for placement in placements:
            task, node = placement.tasks[0], placement.nodes[0]
            row = self._row_for(task, node.row)
            if row < 0:
                return False
            found = session.nodes.nodes[row]
            statement.pipeline(self._job, [task], [found])
            if found is not node and self._scope.is_preempted_back(session, statement, self._job, task, found, victims):
                return False
        return True

    def _row_for(self, task: Task, row: int) -> int:
        """The row of a pod's node if it still fits, else the best one with capacity; -1 for none."""
        session, queue = self._session, self._queue
        signature = session.engine.signature(queue, task)
        if session.dispatch.refusal("allocatable", queue, task) is not None:
            return -1
        if session.engine.fits(signature, row, future=True):
            return row
        return session.engine.choose(signature, session.engine.candidates(signature, future=True), future=True)

    def _repeat(self, operations: Sequence[Placement | EvictionOperation]) -> None:
        for one in operations:
            if isinstance(one, EvictionOperation):
                by, queue = one.cause
                self._statement.evict(one.task, one.reason, one.message, by=by, queue=queue)
            else:
                self._statement.pipeline(one.job, one.tasks, one.nodes)


def _includes(unit: VictimUnit, part: VictimUnit) -> bool:
    """Whether pods of one unit cannot stay when the other leaves: of its job, or of its subgroup."""
    job = unit.job
    if job is not part.job:
        return False
    if unit.whole or job.groups is None:
        return unit.whole
    group = job.groups.of(unit.tasks[0])
    return group is not None and len(unit.tasks) > 1 and all(job.groups.of(task) == group for task in part.tasks)
