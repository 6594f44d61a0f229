"""Whom a queue may take room back from (plugins reference §7.2 and §28; core reference W-09, W-10, W-34)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity.branch import Branch
    from capcard_sched.plugins.capacity.limits import Needs


class ReclaimPolicy:
    """One question of one reclaimer; counts down what victims would leave behind."""

    def __init__(self, reclaimer: Branch, needs: Needs, *, level: int) -> None:
        """`level`: how many branches above a victim's queue must be above what they deserve too."""
        self._needs = needs
        self._columns = frozenset(column for _, column, _ in needs)
        self._level = level
        self._above = frozenset(reclaimer.chain())
        #: The innermost branch above the reclaimer that has no room: only what runs below it can make room.
        self._within = next((branch for branch in reclaimer.path[1:] if not self._has_room(branch)), None)
        #: What victims so far would free, by branch and column.
        self._freed: dict[tuple[Branch, int], int] = {}
        #: What one victim of each class asks for, by queue.
        self._taken: dict[Branch, dict[TaskClass, Needs]] = {}

    def _has_room(self, branch: Branch) -> bool:
        return all(
            branch.held.item(column) + amount <= branch.real_capability.item(column)
            for _, column, amount in self._needs
        )

    def protections(
        self, candidates: Iterable[tuple[Task, Branch]], needs_of: Callable[[TaskClass], Needs]
    ) -> dict[str, str]:
        """What protects candidates, by uid; those that are not in it may go.

        They are weighed in the order given, each with the ones before it gone.
        """
        protected: dict[str, str] = {}
        for task, branch in candidates:
            needs = needs_of(task.cls)
            own = [one for one in branch.path if one not in self._above]
            cause = self._protection(branch, own, needs)
            if not cause and self._could_come_back(branch, needs):
                cause = "deserved"
            if cause:
                protected[task.uid] = cause
                continue
            self._taken.setdefault(branch, {})[task.cls] = needs
            for one in own:
                for _, column, amount in needs:
                    self._freed[one, column] = self._freed.get((one, column), 0) + amount
        return protected

    def _protection(self, branch: Branch, own: Sequence[Branch], needs: Needs) -> str:
        """`own`: the victim's queue and the branches above it that are not above the reclaimer too."""
        if branch.fault or not own:
            return "hierarchy"
        if self._within is not None and self._within not in branch.path:
            return "capability"  # of a queue above the reclaimer: room must be made below it
        shared = [column for _, column, _ in needs if column in self._columns]
        if not shared:
            return "other-resources"
        if not all(self._is_above(one, shared, needs) for one in own[: self._level + 1]):
            return "deserved"
        return "guarantee" if any(self._invades(one, needs) for one in own) else ""

    def _invades(self, branch: Branch, needs: Needs) -> bool:
        """Whether the branch would be left with less than it is guaranteed of something that the victim holds."""
        floor = branch.guarantee
        return any(
            floor.item(column) and self._left(branch, column) - amount < floor.item(column)
            for _, column, amount in needs
        )

    def _is_above(self, branch: Branch, shared: Sequence[int], needs: Needs) -> bool:
        """Whether the branch holds more than it deserves of something that both sides ask for.

        So a victim's queue may never take the same pod back: with it, it would again be above what it deserves. A pod
        that asks for nothing of what its queue deserves is there on sufferance.
        """
        if not any(column in branch.named for _, column, _ in needs):
            return True
        return any(
            column in branch.named and self._left(branch, column) > branch.deserved.item(column) for column in shared
        )

    def _could_come_back(self, branch: Branch, needs: Needs) -> bool:
        """Whether, with one more victim gone, the queue would be entitled to an earlier one again (W-34)."""
        going = {column: amount for _, column, amount in needs}
        for back in self._taken.get(branch, {}).values():
            named = [(column, amount) for _, column, amount in back if column in branch.named]
            if named and all(
                self._left(branch, column) - going.get(column, 0) + amount <= branch.deserved.item(column)
                for column, amount in named
            ):
                return True
        return False

    def _left(self, branch: Branch, column: int) -> int:
        return branch.allocated.item(column) - self._freed.get((branch, column), 0)
