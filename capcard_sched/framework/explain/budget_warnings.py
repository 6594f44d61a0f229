"""Warnings about CardBudgets in the list of queues: spent ones, and those that nothing enforces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.card_budgets import NO_STATUS
from capcard_sched.validation.card_budgets import BUDGET_PLUGIN, NOT_ENFORCED

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot


def budget_warnings(snapshot: CoreSnapshot) -> dict[str, list[str]]:
    """By queue, in order of the names of its CardBudgets."""
    found: dict[str, list[str]] = {}
    has_plugin = BUDGET_PLUGIN in snapshot.conf.quota_plugins.names
    for name, budget in sorted(snapshot.state.card_budgets.items()):
        warnings = found.setdefault(budget.queue, [])
        if not has_plugin:
            warnings.append(f"CardBudget {name}: {NOT_ENFORCED}")
        if not budget.used:
            warnings.append(f"CardBudget {name}: {NO_STATUS}")
        for card in budget.spent:
            spent = f"spent: {card} used {budget.figures(card)} {budget.span}"
            warnings.append(f"CardBudget {name}: {spent} (whenSpent: {budget.when_spent})")
    return found
