"""The accounts that the parts of the plugin share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.plugins.capacity_card.card_inventory import CardInventory
from capcard_sched.plugins.capacity_card.cards import CardDemands
from capcard_sched.plugins.capacity_card.ledger import Ledger
from capcard_sched.plugins.capacity_card.minimum import Minimum
from capcard_sched.plugins.capacity_card.shared_claims import SharedClaims

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments


class CardAccounts:
    """Cards of nodes, cards of pods, minimum of jobs, and the ledger of queues and jobs."""

    def __init__(self, arguments: CapacityCardArguments) -> None:
        self.arguments = arguments
        self.inventory = CardInventory()
        self.demands = CardDemands(arguments, self.inventory)
        self.shared = SharedClaims(self.demands)
        self.minimum = Minimum(arguments, self.inventory, self.shared)
        self.ledger = Ledger(arguments, self.inventory, self.shared, self.minimum)
        #: The number of sessions in which cards got other resource names.
        self.renames = 0

    def refresh(self, session: Session) -> tuple[Iterable[Queue], Iterable[Job]]:
        """Applies the changes of a session; returns the queues and jobs that were rebuilt."""
        self.demands.open(session)
        renamed = self.inventory.refresh(session, self.ledger.held_cards())
        self.renames += bool(renamed)
        # A change of everything includes a new accounting of shared devices.
        if renamed or session.changed.everything:
            self.demands.forget()
        else:
            self.demands.prune(session)
        claimed = self.demands.refresh_claims(session)
        claimed |= self.demands.forget_postponed(session)
        return self.ledger.refresh(session, renamed, claimed)
