"""Cards that pods do not share with others of the same rule: `deviceshare.GPUExclusiveRules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.card_registration import HAMI_CORE
from capcard_sched.plugins.deviceshare.shared_card import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Task
    from capcard_sched.plugins.deviceshare.card_ledger import CardLedger


class ExclusiveCards:
    """Rules that select pods by labels; of the pods that one rule selects, no two share a card.

    Pods that no rule selects share cards with all pods. Slices of MIG are apart by themselves.
    """

    def __init__(self, rules: Sequence[Mapping[str, str]]) -> None:
        self._rules = [(number, rule.items()) for number, rule in enumerate(rules) if rule]

    def rules_of(self, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Numbers of the rules that select a pod: those all of whose labels it has."""
        return tuple([number for number, rule in self._rules if rule <= labels.items()]) if self._rules else ()

    def closed(
        self, rules: tuple[int, ...], ledger: CardLedger, tasks: Mapping[str, Task], *, future: bool
    ) -> dict[int, Cause]:
        """The cards of a node with a pod that one of some rules selects. `future`: without pods that are released."""
        found: dict[int, Cause] = {}
        for uid, shares in ledger.held.items():
            task = tasks.get(uid)
            if task is None or (future and ledger.is_leaving(uid)) or not {*rules} & {*self.rules_of(task.labels)}:
                continue
            for share in shares:
                if ledger.cards[share.card].model.mode == HAMI_CORE:
                    found[share.card] = Cause.RULE
        return found
