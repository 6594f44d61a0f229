"""budget: card-hours per period of a queue, by the statuses of CardBudgets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from capcard_sched.devices.claims import AllocationError
from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.toolkit.device_cards import DeviceCards
from capcard_sched.model.card_budgets import spent_card
from capcard_sched.model.queue import ancestors
from capcard_sched.model.reasons import CARD_BUDGET_SPENT
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.model.status import Vote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.card_budgets import CardBudget, SpentCard
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue

#: The value of `whenSpent` to the end of the event on the queue.
_EFFECTS: Final = {
    "warn": "; jobs are scheduled as before (whenSpent: warn)",
    "demote": "; other queues are scheduled first (whenSpent: demote)",
    "stop": "; further jobs that may get this card are not admitted (whenSpent: stop)",
}
#: The end of the refusal of a job that is judged without its pods.
_LACKS_PODS: Final = "; pods of its minimum do not exist yet and may request any card"


class CardBudgets(Plugin):
    """Applies spent CardBudgets of a queue and of the queues above it, as `whenSpent` of the CardBudget defines.

    `warn` emits an event on the Queue. `demote` orders the queue after queues without a spent budget: an earlier tier
    decides first. `stop` refuses to admit jobs that may get a spent card. Pods of admitted jobs are not concerned.

    Figures are those of `status`, which `capcard-sched web --ledger` writes: without it no budget is ever spent.
    """

    name = "budget"
    reads = Reads.CARD_BUDGETS

    def setup(self) -> None:
        #: Queue to the spent budgets of itself and its ancestors, in order of name; queues without any are absent.
        self._spent: dict[str, list[CardBudget]] = {}
        self._devices = DeviceCards()
        #: By key of a job, what the session found.
        self._refusals: dict[str, Refusal | None] = {}
        #: Spent cards by name of the budget.
        self._reported: ReportOnce[str, tuple[str, str, str]] = ReportOnce()

    def open(self, session: Session) -> None:
        """Collect the spent budgets, and report new ones. O(queues) with a spent budget."""
        self._session = session
        self._refusals.clear()
        spent = [budget for _, budget in sorted(session.snapshot.card_budgets.items()) if budget.spent]
        self._spent = {}
        if spent:
            of_queue: dict[str, list[CardBudget]] = {}
            for budget in spent:
                of_queue.setdefault(budget.queue, []).append(budget)
            for name, queue in session.queues.items():
                found = [
                    budget
                    for one in (queue, *ancestors(queue, session.queues))
                    for budget in of_queue.get(one.name, ())
                ]
                if found:
                    self._spent[name] = found
        self._report(session, {budget.name: budget for budget in spent})

    def _report(self, session: Session, spent: Mapping[str, CardBudget]) -> None:
        self._reported.keep(spent)
        for name, budget in spent.items():
            queue = session.queues.get(budget.queue)
            reports = [(budget.queue, budget.when_spent, card) for card in budget.spent] if queue is not None else []
            for _, _, card in self._reported.update(name, reports):
                assert queue is not None
                message = _message(budget, card, _EFFECTS[budget.when_spent])
                session.results.notice(queue, CARD_BUDGET_SPENT, message)

    def queue_order(self, queue: Queue) -> bool:
        return any(budget.when_spent == "demote" for budget in self._spent.get(queue.name, ()))

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        return self._refusal(job) or Vote.ABSTAIN

    def admission_version(self, job: Job) -> tuple[object, ...]:
        found = [budget for budget in self._spent.get(job.queue, ()) if budget.when_spent == "stop"]
        # The refusal follows from the pods of the job too.
        return (*found, self._session.snapshot.devices.version, self._refusal(job)) if found else ()

    def _refusal(self, job: Job) -> Refusal | None:
        """Computed once in a session: the close of a session evaluates no selectors."""
        if job.key not in self._refusals:
            self._refusals[job.key] = self._judge(job)
        return self._refusals[job.key]

    def _judge(self, job: Job) -> Refusal | None:
        """Raises EvaluationsPostponedError: the session postpones the job."""
        for budget in self._spent.get(job.queue, ()):
            if budget.when_spent != "stop":
                continue
            try:
                card = self._spent_card(job, budget)
            except AllocationError as error:  # the cards of its claims are not known
                return Refusal("job_enqueueable", self.name, "Unschedulable", str(error), queue=job.queue)
            if card is not None:
                message = _message(budget, card.name, _LACKS_PODS if card.by_missing_pods else "")
                reason = CARD_BUDGET_SPENT.code
                return Refusal("job_enqueueable", self.name, reason, message, queue=job.queue, event=True)
        return None

    def _spent_card(self, job: Job, budget: CardBudget) -> SpentCard | None:
        session = self._session
        lacks_pods = not job.tasks or (session.dispatch.has("job_ready") and len(job.tasks) < job.starting_pods)
        claimable = partial(self._devices.claimable, session)
        return spent_card(job, budget.spent, self._is_card, claimable, lacks_pods=lacks_pods)

    def _is_card(self, resource: str) -> bool:
        """Whether the ledger charges a resource as cards: devices, and shares of devices."""
        state = self._session.state
        return state.card_labels.is_device(resource) or resource in state.shares


def _message(budget: CardBudget, card: str, effect: str = "") -> str:
    return CARD_BUDGET_SPENT.render(
        budget=budget.name,
        queue=budget.queue,
        card=card,
        figures=budget.figures(card),
        span=budget.span,
        effect=effect,
    )
