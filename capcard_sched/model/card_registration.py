"""The cards of a node, as its device plugin publishes them in annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias, overload

from capcard_sched.model.quoting import shortened

HAMI_CORE: Final = "hami-core"
MIG: Final = "mig"
#: Seconds that a device plugin has to replace `Requesting_...` by a report of its own.
HANDSHAKE_SECONDS: Final = 60.0

CARD_FORM: Final = "uuid,count,memory,type,health,mode:"

_FIELDS = 6
_COUNT = re.compile(r"[0-9]{1,15}")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
#: In a uuid: they have a meaning in the annotation of a pod.
_FORBIDDEN = frozenset(";[]")
_HANDSHAKE_TIME = "%Y.%m.%d %H:%M:%S"


class RegisteredCard(NamedTuple):
    """One physical card."""

    uuid: str
    #: Most shares of it at a time.
    slots: int
    #: Memory units.
    memory: int
    type: str
    healthy: bool
    #: HAMI_CORE or MIG.
    mode: str


class Registration(NamedTuple):
    """The cards of a node in the order of the list: a card's index is its position."""

    cards: tuple[RegisteredCard, ...]
    #: One sentence per fault, with the position in the list (from 0) and the accepted form.
    problems: tuple[str, ...] = ()


def decode_registration(text: str) -> Registration:
    """Cards of a registration annotation; no card at all when the list or one of its cards has a wrong form.

    A card with an amount that is not a positive integer, or with the uuid of an earlier one, is dropped by itself.
    """
    if ":" not in text:
        return Registration((), (f'no card in "{shortened(text)}": expected {CARD_FORM} for each card',))
    found: dict[str, RegisteredCard] = {}
    problems: list[str] = []
    for position, fragment in enumerate(part for part in text.split(":") if "," in part):
        fields = fragment.split(",")
        if len(fields) < _FIELDS:
            fault = f'card {position} "{shortened(fragment)}" has {len(fields)} fields: expected {CARD_FORM}'
            return Registration((), (fault,))
        uuid, slots, memory, type, health, mode = (field.strip() for field in fields[:_FIELDS])
        fault = _fault(uuid, slots, memory, found)
        if fault:
            problems.append(f'card {position} "{shortened(fragment)}" is dropped: {fault}')
            continue
        found[uuid] = RegisteredCard(
            uuid, int(slots), int(memory), type, health in _TRUE, MIG if mode == MIG else HAMI_CORE
        )
    if not found and not problems:
        problems.append(f'no card in "{shortened(text)}": expected {CARD_FORM} for each card')
    return Registration(tuple(found.values()), tuple(problems))


class RegisteredUuids(Sequence[str]):
    """The uuids in a registration, in order. Keeps the text alone: a cluster has tens of thousands of cards."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(_uuids(self._text))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return _uuids(self._text)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegisteredUuids) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


# Computed 19 us, kept 0.04 (benchmarks/caches.py).
@lru_cache(maxsize=512)
def _uuids(text: str) -> tuple[str, ...]:
    return tuple(card.uuid for card in decode_registration(text).cards)


def _fault(uuid: str, slots: str, memory: str, found: dict[str, RegisteredCard]) -> str:
    if not uuid:
        return "its uuid is empty"
    if not _FORBIDDEN.isdisjoint(uuid):
        return "its uuid has a character that separates devices in the annotation of a pod: one of ; [ ]"
    if uuid in found:
        return "an earlier card has the same uuid"
    for field, value in (("count", slots), ("memory", memory)):
        if _COUNT.fullmatch(value) is None or int(value) == 0:
            return f'{field} is "{shortened(value)}": expected a positive integer'
    return ""


def encode_registration(cards: tuple[RegisteredCard, ...]) -> str:
    """The annotation value for some cards."""
    return "".join(
        f"{card.uuid},{card.slots},{card.memory},{card.type},{str(card.healthy).lower()},{card.mode}:" for card in cards
    )


def ignores_health(cards: tuple[RegisteredCard, ...], offered: int) -> bool:
    """Whether the health flags of a node mean nothing: all are false, and yet the kubelet offers shares.

    Device plugins before 2025 wrote false for healthy cards. `offered`: allocatable shares of the node.
    """
    return offered > 0 and bool(cards) and not any(card.healthy for card in cards)


HandshakeState: TypeAlias = Literal["alive", "requested", "overdue", "unreadable", "deleted"]


def handshake_state(text: str, now: float) -> HandshakeState:
    """The state in a handshake annotation at `now` (Unix seconds); times in it are UTC.

    `alive`: the plugin reported; `requested`: a handshake is at most HANDSHAKE_SECONDS old; `overdue`: older;
    `unreadable`: the time of the handshake is not valid; `deleted`: it was given up.
    """
    if "Requesting" in text:
        handshake = _handshake_time(text)
        if handshake is None:
            return "unreadable"
        return "overdue" if now - handshake > HANDSHAKE_SECONDS else "requested"
    return "deleted" if "Deleted" in text else "alive"


def handshake_deadline(text: str) -> float | None:
    """Unix seconds at which a request for a report becomes overdue; None when none is under way."""
    if "Requesting" not in text:
        return None
    handshake = _handshake_time(text)
    return None if handshake is None else handshake + HANDSHAKE_SECONDS


def handshake_text(state: Literal["Requesting", "Deleted"], now: float) -> str:
    """`Requesting_2025.07.22 11:59:00`, UTC."""
    return f"{state}_{datetime.fromtimestamp(now, UTC).strftime(_HANDSHAKE_TIME)}"


def _handshake_time(text: str) -> float | None:
    try:
        moment = datetime.strptime(text.partition("_")[2].strip(), _HANDSHAKE_TIME)  # noqa: DTZ007 -- UTC below
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC).timestamp()
