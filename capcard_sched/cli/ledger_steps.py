"""Records the steps of a simulation in a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.ledger.usage_ledger import UsageLedger
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent, ObjectRef
    from capcard_sched.model.refusal import Refusal


class LedgerSteps:
    """A recorder of steps (`exit_codes.StepRecorder`) that writes to a started ledger."""

    def __init__(self, ledger: UsageLedger) -> None:
        self.ledger = ledger

    def record(
        self,
        deltas: Sequence[Delta],
        now: float,
        intents: Sequence[Intent],
        refusals: Iterable[tuple[ObjectRef, Refusal]] = (),  # noqa: ARG002 - of the protocol
    ) -> None:
        """Record one step. Raises LedgerError."""
        self.ledger.feed(now, deltas, intents)
