"""Free cards, and the stranded ones: those that no pod of the mix of requests can use where they are.

What pods of the mix request decides: cpu and memory beside a card, its model, and the size of a block of whole cards.
Taints, cordons and affinities do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.fragmentation.card_groups import CardGroups
from capcard_sched.framework.fragmentation.request_mix import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.fragmentation.kind_table import Flags, KindTable
    from capcard_sched.framework.fragmentation.request_mix import MixEntry
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.task_class import TaskClass

    Integers = npt.NDArray[np.int64]

#: Why devices are stranded; "" of those that some pod can use.
CAUSES: Final = ("", "cpu", "memory", "cpu and memory", "size", "model")


class FreeCards(NamedTuple):
    """The free cards of one model, on one node or on several; thousandths of a card."""

    #: "" for several nodes.
    node: str
    card: str
    #: The resource that counts whole cards; "" for cards that pods share, and for several nodes.
    resource: str
    free: int
    #: Cause to the amount that is stranded by it: too little free cpu, memory or both beside the cards, a block
    #: smaller than any request, and a model that no pod of the mix accepts.
    causes: Mapping[str, int]

    @property
    def stranded(self) -> int:
        """The free cards that no pod of the mix can use."""
        return sum(self.causes.values())


class _Devices(NamedTuple):
    """Free whole devices of one resource of a node, or one shared device. Arrays have one entry each: [d]."""

    rows: Integers
    #: Card and resource.
    names: list[tuple[str, str]]
    #: Thousandths.
    amounts: Integers
    #: Kinds of the same resource, and those of them that fit: bool [d, kinds].
    alike: Flags
    fits: Flags


def mix_of(conf: Conf) -> Sequence[MixEntry]:
    """The argument `mix` of the plugin fragmentation; () for the pods of the cluster."""
    option = conf.option("fragmentation")
    return () if option is None else getattr(option.arguments, "mix", ())


def free_cards(
    session: Session, entries: Sequence[MixEntry], groups: CardGroups | None = None
) -> list[FreeCards] | None:
    """Free cards by node and card, in order of rows and names; None without any pod that requests cards.

    `entries`: see `mix_of`; `groups`: those of the nodes of the session, if known. O(nodes + pods).
    """
    groups = CardGroups(session) if groups is None else groups
    table = groups.kinds(session, entries)
    if not table.kinds:
        return None
    found: dict[tuple[int, tuple[str, str]], list[int]] = {}
    for devices in (_whole(session, groups, table), _shared(session, table)):
        causes = _causes(session, groups, table, devices)
        amounts = zip(devices.rows.tolist(), devices.names, devices.amounts.tolist(), causes.tolist(), strict=True)
        for row, name, amount, cause in amounts:
            found.setdefault((row, name), [0] * len(CAUSES))[cause] += amount
    names = session.nodes.names
    return [_of_sums(names[row], name, sums) for (row, name), sums in sorted(found.items())]


def sum_by_card(cards: Iterable[FreeCards]) -> list[FreeCards]:
    """The sums over nodes, whole and shared, in order of cards."""
    found: dict[str, list[int]] = {}
    for each in cards:
        sums = found.setdefault(each.card, [0] * len(CAUSES))
        sums[0] += each.free - each.stranded
        for cause, amount in each.causes.items():
            sums[CAUSES.index(cause)] += amount
    return [_of_sums("", (card, ""), sums) for card, sums in sorted(found.items())]


def accepted_by(session: Session, cls: TaskClass, resources: Collection[str]) -> Callable[[FreeCards], bool]:
    """Whether free cards are of a model that pods of a class accept. `resources`: those that count whole cards."""
    shared, nodes = session.snapshot.shared_devices, session.nodes.by_name
    kind = kind_of(cls, resources, shared)

    def accepted(cards: FreeCards) -> bool:
        if kind is None:
            return False
        if kind.shared is None or shared is None:
            return cards.resource == kind.resource and (not kind.cards or cards.card in kind.cards)
        return not cards.resource and shared.state_after(kind.shared, shared.idle_state(nodes[cards.node])) >= 0

    return accepted


def _of_sums(node: str, name: tuple[str, str], sums: Sequence[int]) -> FreeCards:
    causes = {cause: amount for cause, amount in zip(CAUSES[1:], sums[1:], strict=True) if amount}
    return FreeCards(node, *name, sum(sums), causes)


def _whole(session: Session, groups: CardGroups, table: KindTable) -> _Devices:
    """The whole devices of all nodes, each resource of a node as one."""
    free = session.all_rows().idle.take(table.devices, axis=1)
    rows, places = np.nonzero(free > 0)
    amounts = free[rows, places]
    offers = [groups.groups[number].offers for number in groups.of_row.tolist()]
    pairs = [(row, groups.resources[place]) for row, place in zip(rows.tolist(), places.tolist(), strict=True)]
    is_card = np.array([resource in offers[row] for row, resource in pairs], dtype=bool)
    names = [(",".join(sorted(offers[row][resource])), resource) for row, resource in pairs if resource in offers[row]]
    rows, places, amounts = rows[is_card], places[is_card], amounts[is_card]
    alike = ~table.is_shared & (places[:, None] == table.places)
    return _Devices(rows, names, amounts, alike, alike & (amounts[:, None] >= table.amounts))


def _shared(session: Session, table: KindTable) -> _Devices:
    """The shared devices of all nodes."""
    shared = session.snapshot.shared_devices
    states = [] if shared is None else shared.states(session.all_rows()).tolist()
    rows: list[int] = []
    names: list[tuple[str, str]] = []
    amounts: list[int] = []
    fits: list[Flags] = []
    for row, state in enumerate(states):
        devices = shared.devices(state) if shared is not None else ()
        known = [table.of_device(device) for device in devices]
        if known:
            own = np.stack([fitting for _, fitting in known])
            fits.append(own & (own.sum(axis=0) >= table.numbers))
        rows += [row] * len(known)
        names += [(shared.model(device), "") for device in devices] if shared is not None else []
        amounts += [part for part, _ in known]
    none: Flags = np.zeros((0, len(table.kinds)), dtype=bool)
    fitting = np.concatenate(fits) if fits else none
    alike = np.broadcast_to(table.is_shared, fitting.shape)
    return _Devices(np.array(rows, dtype=np.int64), names, np.array(amounts, dtype=np.int64), alike, fitting)


def _causes(session: Session, groups: CardGroups, table: KindTable, devices: _Devices) -> Integers:
    """Indexes in CAUSES: int64 [d]."""
    free = session.all_rows().idle
    accepted = table.accepts.take(groups.of_row.take(devices.rows), axis=0)
    fits = devices.fits & accepted
    has_cpu, has_memory = (
        enough.take(devices.rows, axis=0) for enough in (table.fit_cpu(free), table.fit_memory(free))
    )
    conditions = (
        fits & has_cpu & has_memory,  # no cause
        fits & has_memory,
        fits & has_cpu,
        fits,
        devices.alike & accepted,
    )
    found: Integers = np.select(
        [condition.any(axis=1) for condition in conditions], range(len(conditions)), default=len(conditions)
    )
    return found
