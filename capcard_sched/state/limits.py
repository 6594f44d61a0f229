"""ResourceQuotas and PodDisruptionBudgets by namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from capcard_sched.model.limits import (
    Budget,
    PodDisruptionBudgetObject,
    Quota,
    ResourceQuotaObject,
    budget_facts,
    quota_facts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.deltas import ObjectGone
    from capcard_sched.state.changes import Changes

_T = TypeVar("_T", Quota, Budget)


class LimitTable:
    """Applies ResourceQuota and PodDisruptionBudget deltas. Records are replaced, never changed in place."""

    def __init__(self, changes: Changes) -> None:
        #: Namespace to name to quota; a namespace without any is absent.
        self.quotas: dict[str, dict[str, Quota]] = {}
        #: Namespace to name to budget; a namespace without any is absent.
        self.budgets: dict[str, dict[str, Budget]] = {}
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            ResourceQuotaObject: lambda quota: self._put_quota(quota_facts(quota)),
            "ResourceQuota": self._drop_quota,
            PodDisruptionBudgetObject: lambda budget: self._put_budget(budget_facts(budget)),
            "PodDisruptionBudget": self._drop_budget,
        }

    def _put_quota(self, quota: Quota) -> None:
        if _put(self.quotas, quota):
            self._changes.quotas.add(quota.namespace)

    def _drop_quota(self, gone: ObjectGone) -> None:
        if _drop(self.quotas, gone.namespace, gone.name):
            self._changes.quotas.add(gone.namespace)

    def _put_budget(self, budget: Budget) -> None:
        if _put(self.budgets, budget):
            self._changes.budgets.add(budget.namespace)

    def _drop_budget(self, gone: ObjectGone) -> None:
        if _drop(self.budgets, gone.namespace, gone.name):
            self._changes.budgets.add(gone.namespace)


def _put(table: dict[str, dict[str, _T]], record: _T) -> bool:
    """Add a record and return whether it differs from the former one. Records of a namespace are in order of name."""
    there = table.get(record.namespace, {})
    if there.get(record.name) == record:
        return False
    table[record.namespace] = dict(sorted({**there, record.name: record}.items()))
    return True


def _drop(table: dict[str, dict[str, _T]], namespace: str, name: str) -> bool:
    there = table.get(namespace, {})
    if there.pop(name, None) is None:
        return False
    if not there:
        del table[namespace]
    return True
