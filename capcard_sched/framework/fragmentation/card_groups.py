"""The nodes of a session by their cards, and the devices that stay free on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.fragmentation.kind_table import CardGroup, KindTable
from capcard_sched.framework.fragmentation.node_value import NodeValues
from capcard_sched.framework.fragmentation.request_mix import (
    classes_of_entries,
    classes_of_tasks,
    kinds_of,
    largest_gang,
    smallest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.fragmentation.request_mix import MixEntry, RequestKind
    from capcard_sched.framework.session.session import Session


class CardGroups:
    """Nodes with equal cards are one group; valid while the nodes and their registrations stay."""

    def __init__(self, session: Session) -> None:
        """O(nodes)."""
        shared = session.snapshot.shared_devices
        numbers: dict[tuple[tuple[tuple[str, str], ...], int], int] = {}
        #: By number.
        self.groups: list[CardGroup] = []
        of_row = []
        for node in session.nodes.nodes:
            offers = session.state.cards_of(node)
            idle = -1 if shared is None else shared.idle_state(node)
            key = tuple([(card, resource) for card, (_, resource) in offers.items()]), idle
            number = numbers.setdefault(key, len(numbers))
            if number == len(self.groups):
                self.groups.append(CardGroup(_models(key[0]), idle))
            self.groups[number].devices += sum([amount for amount, _ in offers.values()])
            of_row.append(number)
        if shared is not None:
            for number, count in Counter(of_row).items():
                group = self.groups[number]
                group.devices += count * sum([shared.free_part(device) for device in shared.devices(group.idle)])
        #: int64 [nodes]: number of the group.
        self.of_row: npt.NDArray[np.int64] = np.array(of_row, dtype=np.int64)
        #: The resources that count whole devices, in order of name.
        self.resources: list[str] = sorted({resource for group in self.groups for resource in group.offers})
        #: See `NodeValues.amounts`, of the values that were made last.
        self._amounts: Mapping[RequestKind, int] = {}

    def values(self, session: Session, entries: Sequence[MixEntry] = ()) -> NodeValues | None:
        """The values of nodes for the pods of the cluster, or for `entries`; None without any. O(pods)."""
        shared, resources = session.snapshot.shared_devices, self.resources
        gang = largest_gang(session.jobs.values(), resources, shared)
        kinds = _kinds(self, session, entries)
        values = NodeValues(kinds, self.groups, session.resources, resources, shared, gang, self._amounts)
        self._amounts = values.amounts
        return values or None

    def kinds(self, session: Session, entries: Sequence[MixEntry] = ()) -> KindTable:
        """The smallest kinds of the pods of the cluster, or of `entries`. O(pods)."""
        kinds = smallest(_kinds(self, session, entries))
        return KindTable(kinds, self.groups, session.resources, self.resources, session.snapshot.shared_devices)


def _models(offers: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Resource to card models. `offers`: (card, resource)."""
    models: dict[str, set[str]] = {}
    for card, resource in offers:
        models.setdefault(resource, set()).add(card)
    return {resource: frozenset(cards) for resource, cards in models.items()}


def _kinds(groups: CardGroups, session: Session, entries: Sequence[MixEntry]) -> Counter[RequestKind]:
    classes = classes_of_entries(entries) if entries else classes_of_tasks(session.snapshot.tasks_by_uid.values())
    return kinds_of(classes, groups.resources, session.snapshot.shared_devices)
