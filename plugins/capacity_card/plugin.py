"""The capacity-card plugin.

Sums by queue and bounds on further pods come from `framework/quota`. Inputs: `card_inventory` (of nodes), `cards` (of
pods), `minimum` (request of a job), `quota` (limits and accounts of a queue). Usage: `charge`, `ledger`. Hooks by
subject: `selection`, `admission_check` with `multi_card_admission`, `allocation_check`, `reclaim`, `reports`, and here
the accounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.devices.device_card import NVIDIA_DRIVER
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.plugins.capacity_card.accounts import CardAccounts
from capcard_sched.plugins.capacity_card.admission_check import AdmissionCheck
from capcard_sched.plugins.capacity_card.allocation_check import AllocationCheck
from capcard_sched.plugins.capacity_card.arguments import NAME, CapacityCardArguments
from capcard_sched.plugins.capacity_card.reclaim import CardReclaim
from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals
from capcard_sched.plugins.capacity_card.reports import CardReports
from capcard_sched.plugins.capacity_card.selection import CardSelection
from capcard_sched.validation.names import check_qualified, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.card_devices import CardDevice
    from capcard_sched.model.queue import Queue


class CapacityCard(Plugin):
    """Limits queues and subtrees by card model at enqueue, allocate and preempt, and reclaims cards from training jobs.

    Keeps the accounts of jobs and queues, which its parts read.
    """

    name = NAME
    Arguments = CapacityCardArguments
    arguments: CapacityCardArguments
    Parts = CardSelection, AdmissionCheck, AllocationCheck, CardReclaim, CardReports

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> CapacityCardArguments:
        """An entry of `cardLabels` that names no resource or no label is an error: its quotas would not apply."""
        arguments = problems.decode(CapacityCardArguments, raw)
        for resource, labels in arguments.card_labels.items():
            names = [labels] if isinstance(labels, str) else labels
            wrong = [name for name in names if any(check_qualified(name, ""))]
            if "/" not in resource or any(check_qualified(resource, "")):
                problem = f"{shown(resource)} is not an extended resource"
                problems.error("cardLabels", problem, accepted="names such as amd.com/gpu")
            elif wrong or not names:
                problem = f"{shown(wrong[0])} is not a label key" if wrong else "no label is given"
                problems.error("cardLabels", f"{resource}: {problem}", accepted="keys such as amd.com/gpu.product-name")
        drivers = [each.driver for each in arguments.card_devices]
        for each in arguments.card_devices:
            if (text := _card_device_problem(each, drivers)) is not None:
                problems.error("cardDevices", text, accepted="[{driver: gpu.example.com, name: [model], suffix: half}]")
        return arguments

    def setup(self) -> None:
        self.accounts = CardAccounts(self.arguments)
        self._ledger, self._demands = self.accounts.ledger, self.accounts.demands
        self._refusals = QuotaRefusals()
        selection = CardSelection(self.accounts)
        self._admission = AdmissionCheck(self.accounts, self._refusals)
        self._allocation = AllocationCheck(self.accounts, selection, self._refusals)
        self.reports = CardReports(self.accounts)
        reclaim = CardReclaim(self.accounts, selection)
        self.parts = selection, self._admission, self._allocation, reclaim, self.reports

    def open(self, session: Session) -> None:
        self._refusals.open(session)
        self._admission.follow(session)
        self._allocation.follow(session)
        queues, jobs = self.accounts.refresh(session)
        self.reports.report_invalid(session, queues, jobs)

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        """Higher `spec.priority` first, then the lower share; equal keys leave the order to the next plugin."""
        account = self._ledger.queues.get(queue.name)
        return -queue.priority, account.share if account is not None else 0.0

    def on_allocate(self, placement: Placement) -> None:
        self._ledger.charge(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._ledger.discharge(placement)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        """The card of a pod at its binding, unless `card.name` names one; after a restart its node precedes."""
        demand = self._demands.of(placement.cls)
        if len(demand.names) < 2 and not (demand.inferred or demand.by_claims):
            return None
        charges, found = self._ledger.charges_of(placement.job), {}
        for task in placement.tasks:
            charge = charges.get(task.uid)
            if charge is not None and charge.card:
                cards = [card for card, _ in charge.cards] or ([] if demand.by_claims else [charge.card])
                if cards:  # devices of claims may be no cards
                    found[task.uid] = {CARD_ASSIGNED: ",".join(cards)}
        return found


def _card_device_problem(each: CardDevice, drivers: Sequence[str]) -> str | None:
    """Why an entry of `cardDevices` names no card; None for a correct one."""
    if any(check_qualified(f"{each.driver}/device", "")):
        return f"{shown(each.driver)} is not the name of a driver"
    if each.driver == NVIDIA_DRIVER:
        return f"{each.driver}: the cards of this driver follow from its attributes type, productName and profile"
    if drivers.count(each.driver) > 1:
        return f"{each.driver} is listed twice"
    if not each.name or not all(each.name):
        return f"{each.driver}: no attribute is given as name"
    if any(mark in each.suffix for mark in "|, "):
        return f"{each.driver}: {shown(each.suffix)} cannot be part of a card"
    return None
