"""Checks of CardBudgets against the queues and cards of the input, and against the scheduler-conf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.decode_errors import field_path
from capcard_sched.validation.checks import Finding, listed
from capcard_sched.validation.inventory import as_map, check_queue, meant, value_at

if TYPE_CHECKING:
    from capcard_sched.validation.hint_checks import QuotaPlugins
    from capcard_sched.validation.inventory import Inventory, Json

#: The plugin that reads CardBudgets.
BUDGET_PLUGIN: Final = "budget"
NOT_ENFORCED: Final = f"not enforced: the scheduler-conf has no plugin {BUDGET_PLUGIN}"


def check_card_budget(obj: Json, inventory: Inventory, plugins: QuotaPlugins) -> list[Finding]:
    """Warnings about a budget without effect: of an unknown queue or card, or under a conf without the plugin."""
    found: list[Finding] = []
    queue = value_at(obj, "spec", "queue")
    if isinstance(queue, str):
        found += check_queue(queue, "spec.queue", inventory)
    for card in as_map(value_at(obj, "spec", "cards")):
        if inventory.cards and card not in inventory.cards:
            message = f"no node in the input provides card {card}{meant(card, inventory.cards)}"
            found.append(Finding("warning", field_path(("spec", "cards", card)), message, listed(inventory.cards)))
    if BUDGET_PLUGIN not in plugins.names:
        found.append(Finding("warning", "spec.whenSpent", NOT_ENFORCED, f"the plugin {BUDGET_PLUGIN}"))
    return found
