"""Free cards that no pod of the mix of requests can use, of one state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.explain.capacity import exclusion
from capcard_sched.framework.fragmentation.free_cards import accepted_by, free_cards, mix_of, sum_by_card
from capcard_sched.model.diagnosis import StrandedCards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.fragmentation.free_cards import FreeCards
    from capcard_sched.model.diagnosis import PendingPods
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass


class StrandedReader:
    """Free and stranded cards of one state, counted once, when they are first read: O(nodes + pods)."""

    def __init__(self, snapshot: CoreSnapshot) -> None:
        self._snapshot = snapshot
        self._cards: list[FreeCards] | None = None
        self._is_read = False
        self._by_class: dict[TaskClass, tuple[StrandedCards, ...]] = {}

    @property
    def cards(self) -> list[FreeCards] | None:
        """By node and card, those with any free; None without a session, and without pods that request cards."""
        session = self._snapshot.session
        if not self._is_read and session is not None:
            self._cards = free_cards(session, mix_of(self._snapshot.conf))
        self._is_read = True
        return self._cards

    def by_card(self) -> dict[str, StrandedCards] | None:
        """The sums over all nodes; None as of `cards`."""
        return None if self.cards is None else {each.card: _shown(each) for each in sum_by_card(self.cards)}

    def of_nodes(self) -> Mapping[tuple[str, str], float] | None:
        """Node and card to its stranded cards; None as of `cards`. A node has no entry of a card without a free one."""
        if self.cards is None:
            return None
        found: dict[tuple[str, str], float] = {}
        for each in self.cards:
            for card in each.card.split(","):  # several models of one resource
                found[each.node, card] = found.get((each.node, card), 0.0) + each.stranded / 1000
        return found

    def of_pods(self, tasks: Iterable[Task], pending: Iterable[PendingPods]) -> tuple[StrandedCards, ...]:
        """The free cards that pods without a fitting node accept, on nodes that they tolerate, where some are stranded.

        `tasks`: the pending tasks of a job; `pending`: their outcomes.
        """
        unfit = {name for pods in pending if pods.outcome == "unfit" for name in pods.names}
        classes = dict.fromkeys(task.cls for task in tasks if task.name in unfit)
        return tuple({row.card: row for cls in classes for row in self._of_class(cls)}.values())

    def _of_class(self, cls: TaskClass) -> tuple[StrandedCards, ...]:
        session = self._snapshot.session
        if session is None or not self.cards:
            return ()
        if cls not in self._by_class:
            resources = {each.resource for each in self.cards} - {""}
            nodes, accepted = session.nodes.by_name, accepted_by(session, cls, resources)
            found = [each for each in self.cards if accepted(each) and not exclusion(nodes[each.node], cls)]
            self._by_class[cls] = tuple(_shown(each) for each in sum_by_card(found) if each.stranded)
        return self._by_class[cls]


def _shown(cards: FreeCards) -> StrandedCards:
    causes = {cause: amount / 1000 for cause, amount in cards.causes.items()}
    return StrandedCards(card=cards.card, free=cards.free / 1000, stranded=cards.stranded / 1000, causes=causes)
