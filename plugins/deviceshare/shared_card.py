"""States of cards: what a card offers and what its pods hold of it, interned.

Equal cards with equal use are one `SharedCard`, so that the result of a request is computed once for all of them,
and the cards of a node are a tuple that compares and hashes by identity.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from capcard_sched.model.card_registration import HAMI_CORE, MIG
from capcard_sched.plugins.deviceshare.geometry import find_slice

if TYPE_CHECKING:
    from capcard_sched.plugins.deviceshare.geometry import Geometry, Slice
    from capcard_sched.plugins.deviceshare.vgpu_request import Share

#: Percent: all compute of a card.
ALL_CORES: Final = 100


class Cause(Enum):
    """Why a card, or a node, does not take a request. In the order in which they are checked."""

    REQUEST = "request"
    MODE = "sharing mode"
    CARDS = "gpu cards"
    UNHEALTHY = "unhealthy"
    SLOTS = "slots"
    MEMORY = "memory"
    CORES = "cores"
    EXCLUSIVE = "exclusive"
    TYPE = "type"
    GROUP = "podgroup policy"
    RULE = "exclusive rule"
    SLICE = "mig slice"


class CardModel(NamedTuple):
    """What a card offers; equal models are alike to every request that names no uuid."""

    #: Most shares at a time.
    slots: int
    #: Units.
    memory: int
    type: str
    healthy: bool = True
    mode: str = HAMI_CORE
    #: How it can be cut, in mode MIG.
    geometry: Geometry | None = None
    #: MiB of a unit.
    factor: int = 1


class CardUsage(NamedTuple):
    """What the pods on a card hold of it together."""

    #: How many shares.
    number: int = 0
    #: Units of all shares; of slices their whole memory. May exceed the card's.
    memory: int = 0
    #: Percent of all shares.
    cores: int = 0
    #: Geometry group and position of each slice, ascending. More than one group, or one position twice, is only met
    #: while a pod waits for another one to leave.
    slices: tuple[tuple[str, int], ...] = ()


class Booking(NamedTuple):
    """What one share takes of its card."""

    #: Units.
    memory: int
    #: Percent.
    cores: int
    group: str = ""
    position: int = -1


class Taken(NamedTuple):
    """A share that a card would give."""

    #: Requested units.
    memory: int
    booking: Booking
    #: The card afterwards.
    after: SharedCard


class SharedCard:
    """One state of a card. Made by `CardStates` alone; compared by identity."""

    __slots__ = ("__weakref__", "_results", "_states", "is_overbooked", "model", "use", "used_memory")

    def __init__(self, states: CardStates, model: CardModel, use: CardUsage) -> None:
        self.model = model
        self.use = use
        #: Units in use; slices of a group may add up to more than the card has.
        self.used_memory = min(use.memory, model.memory) if model.mode == MIG else use.memory
        #: Whether its pods hold more than it has: it shrank, or another scheduler placed some of them.
        self.is_overbooked = use.number > model.slots or self.used_memory > model.memory or use.cores > ALL_CORES
        self._states = states
        self._results: dict[Share, Taken | Cause] = {}

    @property
    def shown_use(self) -> str:
        """The amounts in use, for messages."""
        model, use = self.model, self.use
        memory = f"{self.used_memory:,} of {model.memory:,} memory"
        return f"{use.number:,} of {model.slots:,} slots, {memory}, {use.cores} of {ALL_CORES} cores"

    def __repr__(self) -> str:
        return f"SharedCard({self.model.type}, {self.use})"

    def try_take(self, share: Share) -> Taken | Cause:
        """The share the card would give, or the first condition it does not meet."""
        result = self._results.get(share)
        if result is None:
            result = self._results[share] = self._take(share)
            self._states.results += 1
        return result

    def drop_results(self) -> None:
        """Forget what the card would give: it is worked out again."""
        self._results.clear()

    def _take(self, share: Share) -> Taken | Cause:
        model, use = self.model, self.use
        if not model.healthy:
            return Cause.UNHEALTHY
        if use.number >= model.slots:
            return Cause.SLOTS
        need = share.memory_on(model.memory)
        if need > model.memory - self.used_memory:
            return Cause.MEMORY
        if use.cores + share.cores > ALL_CORES:
            return Cause.CORES
        if share.cores == ALL_CORES and use.number:
            return Cause.EXCLUSIVE
        if not share.cores and use.cores == ALL_CORES:
            return Cause.CORES
        if not share.accepts(model.type):
            return Cause.TYPE
        booking = Booking(need, share.cores)
        if model.mode == MIG:
            found = self.find_slice(need, whole=share.is_whole)
            if found is None:
                return Cause.SLICE
            booking = Booking(found.memory // model.factor, share.cores, found.group, found.position)
        return Taken(need, booking, self.plus(booking))

    def find_slice(self, need: int, *, whole: bool = False) -> Slice | None:
        """The slice for the requested units."""
        geometry, groups = self.model.geometry, self._groups
        if geometry is None or len(groups) > 1:
            return None
        taken = [position for _, position in self.use.slices]
        return find_slice(geometry, need * self.model.factor, group=next(iter(groups), ""), taken=taken, whole=whole)

    @property
    def _groups(self) -> set[str]:
        return {group for group, _ in self.use.slices}

    def booking_at(self, memory: int, cores: int, group: str, position: int) -> Booking:
        """What a share that another scheduler run gave takes: its slice where the card can have it, else the amount.

        `memory`: requested units; `group`: "" for a share without a slice.
        """
        geometry = self.model.geometry
        if not group or geometry is None or self._groups - {group}:
            return Booking(memory, cores)
        known = geometry.group(group)
        size = None if known is None else known.memory_at(position)
        if size is None or (group, position) in self.use.slices:
            return Booking(memory, cores)
        return Booking(size // self.model.factor, cores, group, position)

    def plus(self, booking: Booking) -> SharedCard:
        """The card with one share more."""
        number, memory, cores, slices = self.use
        if booking.group:
            slices = tuple(sorted((*slices, (booking.group, booking.position))))
        return self._states.card(
            self.model, CardUsage(number + 1, memory + booking.memory, cores + booking.cores, slices)
        )

    def minus(self, booking: Booking) -> SharedCard:
        """The card without one share of these amounts."""
        number, memory, cores, slices = self.use
        if booking.group:
            index = slices.index((booking.group, booking.position))
            slices = slices[:index] + slices[index + 1 :]
        return self._states.card(
            self.model, CardUsage(number - 1, memory - booking.memory, cores - booking.cores, slices)
        )


class CardStates:
    """The states of cards, each once. One that neither a node nor a result holds is gone."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[CardModel, CardUsage], SharedCard] = WeakValueDictionary()
        #: How many results the cards keep.
        self.results = 0

    def __len__(self) -> int:
        return len(self._known)

    def card(self, model: CardModel, use: CardUsage = CardUsage()) -> SharedCard:  # noqa: B008 -- immutable
        """The state of a card."""
        found = self._known.get((model, use))
        if found is None:
            found = self._known[model, use] = SharedCard(self, model, use)
        return found

    def drop_results(self) -> None:
        """Drop what all cards would give."""
        for card in list(self._known.values()):
            card.drop_results()
        self.results = 0
