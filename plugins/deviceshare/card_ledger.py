"""The pods on the cards of one node, and the states of the cards that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from capcard_sched.model.pod_devices import Device
from capcard_sched.plugins.deviceshare.device_choice import ChosenShare
from capcard_sched.plugins.deviceshare.shared_card import Booking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.plugins.deviceshare.shared_card import SharedCard

    Cards: TypeAlias = tuple[SharedCard, ...]
    Shares: TypeAlias = tuple[ChosenShare, ...]


class BookedDevices(NamedTuple):
    """What the devices in a pod's annotation are on the cards of its node."""

    shares: Shares
    #: uuids that the node does not have.
    unknown: tuple[str, ...]
    #: Slices that are booked as plain amounts: the card cannot have them beside its other pods.
    without_slice: tuple[str, ...]
    #: One sentence for each part of the annotation that does not count as it is written.
    problems: tuple[str, ...] = ()


class LeastShares(NamedTuple):
    """The shared devices that one container requests: their number, on different cards, and the least of each."""

    container: int
    number: int
    #: Memory units and cores on a card with this memory.
    on: Callable[[int], tuple[int, int]]


def raised(found: BookedDevices, cards: Cards, wanted: Iterable[LeastShares], key: str) -> BookedDevices:
    """The devices of an annotation, each with at least what the pod requests.

    Devices that the annotation leaves out are counted on the cards of `cards` with the least memory in use. `key`: of
    the annotation, for the problem of one that has no other.
    """
    shares, problems = [*found.shares], []
    absent = len(found.unknown)  # a card that is not registered now may still run its pods
    for container, number, on in wanted:
        own = [place for place, share in enumerate(shares) if share.container == container]
        for place in own:
            share = shares[place]
            memory, cores = on(cards[share.card].model.memory)
            booking = share.booking
            least = booking._replace(memory=max(booking.memory, memory), cores=max(booking.cores, cores))
            if least != booking:
                shares[place] = share._replace(memory=max(share.memory, memory), booking=least)
                problems.append(f"{key} names less than container {container} asks for: the request counts")
        named = {shares[place].card for place in own}
        uses = {index: card.use for index, card in enumerate(cards) if index not in named}
        others = sorted(uses, key=lambda index: (uses[index].memory, uses[index].number, index))
        missing = max(0, number - len(own) - absent)
        for index in others[:missing]:
            memory, cores = on(cards[index].model.memory)
            shares.append(ChosenShare(container, index, memory, Booking(memory, cores)))
        if missing:
            text = f"{key} names {len(own)} of {number} devices of container {container}"
            problems.append(f"{text}: the others count on the emptiest cards")
    return found._replace(shares=tuple(shares), problems=found.problems or tuple(problems[:1]))


class CardLedger:
    """Bookings by pod. Every operation is idempotent: a pod is booked once, whatever is repeated.

    Two views follow from the bookings: `cards`, with every pod, and `future`, without those that leave. A pod that
    waits for others to leave is booked in both, so that no other pod takes what it waits for.
    """

    __slots__ = ("_future", "_leaving", "cards", "held", "idle", "uuids")

    def __init__(self, uuids: Sequence[str], idle: Cards) -> None:
        """`uuids` and `idle`: the cards of the node in order, and their states without any pod."""
        self.uuids = uuids
        self.idle = idle
        #: With every pod.
        self.cards = idle
        #: By pod uid.
        self.held: dict[str, Shares] = {}
        #: Uids of pods on their way out; a dict, because an empty set takes three times its memory on every node.
        self._leaving: dict[str, None] = {}
        self._future: Cards | None = None

    @property
    def future(self) -> Cards:
        """The cards without the pods that leave."""
        if not self._leaving:
            return self.cards
        if self._future is None:
            cards = self.cards
            for uid in sorted(self._leaving):
                cards = without_shares(cards, self.held[uid])
            self._future = cards
        return self._future

    def book(self, uid: str, shares: Shares) -> None:
        """A pod holds these shares."""
        if self.held.get(uid) != shares:
            self.release(uid)
            self.held[uid] = shares
            self.cards = with_shares(self.cards, shares)
            self._future = None

    def release(self, uid: str) -> None:
        """A pod holds nothing any more; one that held nothing changes nothing."""
        shares = self.held.pop(uid, None)
        if shares is not None:
            self.cards = without_shares(self.cards, shares)
            self._leaving.pop(uid, None)
            self._future = None

    def is_leaving(self, uid: str) -> bool:
        """Whether a pod is being released."""
        return uid in self._leaving

    def set_leaving(self, uid: str, *, leaving: bool) -> None:
        """Whether a pod that holds shares is on its way out."""
        if leaving != (uid in self._leaving) and uid in self.held:
            if leaving:
                self._leaving[uid] = None
            else:
                del self._leaving[uid]
            self._future = None

    def shares_of(self, containers: Iterable[Iterable[Device]]) -> BookedDevices:
        """The devices of an annotation as shares on the cards; devices of other nodes are unknown."""
        now = list(self.cards)
        index_of = {uuid: index for index, uuid in enumerate(self.uuids)}
        shares: list[ChosenShare] = []
        unknown, without_slice = [], []
        for container, devices in enumerate(containers):
            for device in devices:
                index = index_of.get(device.uuid)
                if index is None:
                    unknown.append(device.uuid)
                    continue
                booking = now[index].booking_at(device.memory, device.cores, device.group, device.position)
                if device.group and not booking.group:
                    without_slice.append(device.id)
                now[index] = now[index].plus(booking)
                shares.append(ChosenShare(container, index, device.memory, booking))
        return BookedDevices(tuple(shares), tuple(unknown), tuple(without_slice))

    def devices_of(self, shares: Shares, containers: int) -> list[list[Device]]:
        """Shares as they are written on the pod, by container."""
        devices: list[list[Device]] = [[] for _ in range(containers)]
        for share in shares:
            booking = share.booking
            devices[share.container].append(
                Device(self.uuids[share.card], share.memory, booking.cores, booking.group, booking.position)
            )
        return devices


def with_shares(cards: Cards, shares: Shares) -> Cards:
    """The cards with these shares taken."""
    now = list(cards)
    for share in shares:
        now[share.card] = now[share.card].plus(share.booking)
    return tuple(now)


def without_shares(cards: Cards, shares: Shares) -> Cards:
    """The cards with these shares given back."""
    now = list(cards)
    for share in shares:
        now[share.card] = now[share.card].minus(share.booking)
    return tuple(now)
