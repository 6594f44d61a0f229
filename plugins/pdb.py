"""Protects pods from eviction by their PodDisruptionBudgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.api.plugin import Plugin, Reads, VictimDecision
from capcard_sched.model.selectors import matches_labels
from capcard_sched.model.status import SESSION_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.limits import Budget
    from capcard_sched.model.queue import Queue

#: The cause of a protection in reports.
CAUSE = "disruption-budget"

_MOST_LABEL_SETS = 4096
_NOTHING: Mapping[str, Budget] = {}


class _Charge(NamedTuple):
    """An eviction by this scheduler that the status of the budget may not show yet."""

    uid: str
    #: The budget at the time of the eviction.
    budget: Budget


class Pdb(Plugin):
    """Protects pods whose PodDisruptionBudgets allow no further disruption.

    An eviction is charged to its budgets until their status changes or the pod is gone, so that an allowed disruption
    is used once. As in Volcano, a budget with an empty selector selects no pod.
    """

    name = "pdb"
    victims_by_usage = False
    reads = Reads.BUDGETS

    def setup(self) -> None:
        self._budgets: Mapping[str, Mapping[str, Budget]] = {}
        #: The number of sessions in which budgets had changed.
        self._changes = 0
        #: Namespace and budget name to the pods charged to it, by uid.
        self._charges: dict[tuple[str, str], dict[str, _Charge]] = {}
        #: Namespace and identity of a label set to that set and the names of the budgets that select such a pod.
        self._selected: dict[tuple[str, int], tuple[Mapping[str, str], tuple[str, ...]]] = {}

    def open(self, session: Session) -> None:
        """Read the budgets and drop the charges that their status includes by now. O(pods charged)."""
        self._budgets = session.snapshot.budgets
        self._changes += bool(session.changed.everything or session.changed.budgets)
        if session.changed.everything or session.changed.budgets or len(self._selected) > _MOST_LABEL_SETS:
            self._selected.clear()
        tasks = session.snapshot.tasks_by_uid
        for key, charges in list(self._charges.items()):
            budget = self._budgets.get(key[0], _NOTHING).get(key[1])
            for uid, charge in list(charges.items()):
                task = tasks.get(uid)
                if task is None or task.status is not TaskStatus.RELEASING or charge.budget is not budget:
                    del charges[uid]
            if not charges:
                del self._charges[key]

    def _budgets_of(self, task: Task) -> list[Budget]:
        """The budgets that a disruption of the pod is charged to, without those that allowed it already."""
        there = self._budgets.get(task.namespace)
        if not there or not task.labels:
            return []
        key = (task.namespace, id(task.labels))  # equal sets are one object, kept alive here
        found = self._selected.get(key)
        if found is None:
            names = tuple(budget.name for budget in there.values() if _selects(budget, task.labels))
            found = self._selected[key] = (task.labels, names)
        return [there[name] for name in found[1] if task.name not in there[name].disrupted]

    def _admitted(self, candidates: Sequence[Task]) -> list[Task]:
        """The candidates that may be evicted together, in order; only an admitted candidate is charged."""
        left: dict[tuple[str, str], int] = {}
        admitted = []
        for task in candidates:
            budgets = self._budgets_of(task)
            for budget in budgets:
                key = (budget.namespace, budget.name)
                if key not in left:
                    left[key] = budget.allowed - len(self._charges.get(key, ()))
            if all(left[budget.namespace, budget.name] > 0 for budget in budgets):
                admitted.append(task)
                for budget in budgets:
                    left[budget.namespace, budget.name] -= 1
        return admitted

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Protects in every tier, so that no other plugin can override a budget."""
        admitted = self._admitted(candidates)
        kept = {each.uid for each in admitted}
        return VictimDecision({each.uid: CAUSE for each in candidates if each.uid not in kept}, admitted)

    reclaimable = preemptable

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[object, ...]:
        """All budgets and the pods charged to them: a budget selects pods of any queue."""
        return self._changes, *((key, *sorted(charges)) for key, charges in sorted(self._charges.items()) if charges)

    def victim_filter(self, tasks: Sequence[Task]) -> list[Task]:
        """Filters the victims of other plugins. A `victim_tasks` hook would name every pod without a budget."""
        return self._admitted(tasks)

    def on_deallocate(self, placement: Placement) -> None:
        """Charge evictions. A pod that was placed in this session is unplaced, not evicted."""
        for task in placement.tasks:
            if task.status not in SESSION_STATUSES:
                for budget in self._budgets_of(task):
                    charges = self._charges.setdefault((budget.namespace, budget.name), {})
                    charges[task.uid] = _Charge(task.uid, budget)

    def on_allocate(self, placement: Placement) -> None:
        for task in placement.tasks:
            if self._charges and task.status not in SESSION_STATUSES:
                for budget in self._budgets_of(task):
                    self._charges.get((budget.namespace, budget.name), {}).pop(task.uid, None)


def _selects(budget: Budget, labels: Mapping[str, str]) -> bool:
    selector = budget.selector
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    return matches_labels(selector, labels)
