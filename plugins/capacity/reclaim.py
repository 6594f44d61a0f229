"""The victims of a queue that reclaims."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.framework.quota.limits import Needs
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity.branch import Branch


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
        self, candidates: Iterable[tuple[Task, Branch]], needs_of: Callable[[TaskClass], Needs]
    ) -> dict[str, str]:
        """Causes of protection by uid; candidates without one are victims.

        Candidates are examined in the order given, each without the victims before it.
        """
        protected: dict[str, str] = {}
        for task, branch in candidates:
            needs = needs_of(task.cls)
            own = [one for one in branch.path if one not in self._above]
            cause = self._protection(branch, own, needs)
            if not cause and self._could_reclaim_back(branch, needs):
                cause = "deserved"
            if cause:
                protected[task.uid] = cause
                continue
            self._victims.setdefault(branch, {})[task.cls] = needs
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
