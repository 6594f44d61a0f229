"""The nodes of a session by their cards, and the devices that stay free on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.plugins.fragmentation.node_value import CardGroup, NodeValues
from capcard_sched.plugins.fragmentation.request_mix import classes_of_entries, classes_of_tasks, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node
    from capcard_sched.plugins.fragmentation.request_mix import MixEntry


class StrandedDevices(NamedTuple):
    """Free devices of the nodes with one set of cards, thousandths."""

    #: Card models, joined by comma.
    card: str
    free: int
    #: The part that no kind of pods of the mix can use.
    stranded: int


class CardGroups:
    """Nodes with equal cards are one group; valid while the nodes and their registrations stay."""

    def __init__(self, session: Session) -> None:
        """O(nodes)."""
        shared = session.shared_devices
        numbers: dict[tuple[tuple[tuple[str, str], ...], int], int] = {}
        self._groups: list[CardGroup] = []
        self._names: list[str] = []
        of_row = []
        for node in session.nodes.nodes:
            offers = session.state.cards_of(node)
            idle = -1 if shared is None else shared.idle_state(node)
            key = tuple([(card, resource) for card, (_, resource) in offers.items()]), idle
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._groups):
                self._add(session, node, key[0], idle)
            self._groups[number].devices += sum([amount for amount, _ in offers.values()])
            of_row.append(number)
        if shared is not None:
            for number, count in Counter(of_row).items():
                group = self._groups[number]
                group.devices += count * sum([shared.free_part(device) for device in shared.devices(group.idle)])
        #: int64 [nodes]: number of the group.
        self.of_row: npt.NDArray[np.int64] = np.array(of_row, dtype=np.int64)

    def _add(self, session: Session, node: Node, offers: tuple[tuple[str, str], ...], idle: int) -> None:
        """Add the group of a node."""
        shared = session.shared_devices
        models: dict[str, set[str]] = {}
        for card, resource in offers:
            models.setdefault(resource, set()).add(card)
        self._groups.append(CardGroup({resource: frozenset(cards) for resource, cards in models.items()}, idle))
        names = [card for card, _ in offers]
        names += [] if shared is None else [shared.model(device) for device in shared.devices(idle)]
        self._names.append(",".join(dict.fromkeys(names)))

    def values(self, session: Session, entries: Sequence[MixEntry] = ()) -> NodeValues | None:
        """The values of nodes for the pods of the cluster, or for `entries`; None without any. O(pods)."""
        shared = session.shared_devices
        resources = sorted({resource for group in self._groups for resource in group.offers})
        classes = classes_of_entries(entries) if entries else classes_of_tasks(session.tasks_by_uid.values())
        values = NodeValues(kinds_of(classes, resources, shared), self._groups, session.resources, resources, shared)
        return values or None

    def stranded_rows(self, session: Session, values: NodeValues) -> tuple[Sequence[str], list[int], list[int]]:
        """By row of the session: card models, free devices and the part that no kind can use, thousandths."""
        view = session.all_rows()
        states = None if session.shared_devices is None else session.shared_devices.states(view)
        free, stranded = values.stranded(view.idle, states, self.of_row)
        return [self._names[number] for number in self.of_row.tolist()], free.tolist(), stranded.tolist()

    def stranded(self, session: Session, values: NodeValues) -> Iterator[StrandedDevices]:
        """The sums over all nodes with equal card models, in order of their names."""
        sums: dict[str, list[int]] = {}
        for name, free, stranded in zip(*self.stranded_rows(session, values), strict=True):
            if name:
                found = sums.setdefault(name, [0, 0])
                found[0] += free
                found[1] += stranded
        for name, (free, stranded) in sorted(sums.items()):
            yield StrandedDevices(name, free, stranded)
