"""Card annotations and card discovery on nodes.

Amounts are thousandths of a card: two cards are 2000.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.annotations import GPU_REPLICAS, MEMORY_SUFFIX
from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.resources import Amounts

#: Thousandths per card.
CARD: Final = 1000
#: Cards. Maximum of one entry: its thousandths fit 64 bits.
MAX_CARDS: Final = (2**63 - 1) // CARD
#: Bytes. Kubernetes limits all annotations of an object to this size.
MAX_TEXT: Final = 262144

NVIDIA: Final = "nvidia.com"
MPS_RESOURCE: Final = "nvidia.com/gpu.shared"
MIG_PREFIX: Final = "nvidia.com/mig-"

#: Ends of the labels that describe cards.
_CARD_LABELS: Final = (".product", MEMORY_SUFFIX, GPU_REPLICAS)
_PRODUCT = re.compile(r"((.+?)/([\w-]+))\.product", re.ASCII)
#: At most 15 digits, so that a hostile label cannot become a huge integer.
_POSITIVE = re.compile(r"0*([1-9][0-9]{0,14})")


class CardSyntaxError(ValueError):
    """A malformed card annotation. The text is the `{detail}` of the event."""


# --- annotations ----------------------------------------------------------------------------------------------------


class _NotAnInteger:
    """A JSON number that is not an integer, kept as text for the message."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Members(list[tuple[str, object]]):
    """A JSON object as its members in order, duplicates included."""


def _integer(text: str) -> object:
    # int() of thousands of digits is slow or raises; such numbers are rejected with their own message.
    return int(text) if len(text) <= 20 else _NotAnInteger(text)


_decoder = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_integer, parse_float=_NotAnInteger, parse_constant=_NotAnInteger
)


def _written(value: object) -> str:
    if isinstance(value, _NotAnInteger):
        return shortened(value.text)
    if isinstance(value, _Members):
        return "{...}" if value else "{}"
    if isinstance(value, list):
        return "[...]" if value else "[]"
    # backslashreplace: an unpaired surrogate must not make the message unencodable.
    return shortened(json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode())


def _members(text: str | None) -> _Members:
    """The members of a JSON object; none for an absent, empty or null annotation."""
    if text is None or not text.strip():
        return _Members()
    if len(text) > MAX_TEXT:
        raise CardSyntaxError(f"longer than {MAX_TEXT} characters")
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise CardSyntaxError(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}; "
            'expected an object such as {"NVIDIA-H200":8}'
        ) from None
    except RecursionError:
        raise CardSyntaxError("nested too deeply; expected a JSON object of card names and integers") from None
    if value is None:
        return _Members()
    if not isinstance(value, _Members):
        raise CardSyntaxError(f'{_written(value)} is not a JSON object such as {{"NVIDIA-H200":8}}')
    return value


def _amount(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_CARDS:
            return value * CARD
        too_large = value > MAX_CARDS
    else:
        too_large = isinstance(value, _NotAnInteger) and value.text.isdigit()
    if too_large:
        raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} is too large; at most {MAX_CARDS} cards")
    raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} is not a non-negative integer")


def _check_encodable(key: str) -> None:
    # An escape such as \ud800 gives text that no event or patch can encode.
    try:
        key.encode()
    except UnicodeEncodeError:
        raise CardSyntaxError(f"{json.dumps(shortened(key))} is not valid Unicode text") from None


def _parse(text: str | None, spelled: Callable[[str, object], str]) -> dict[str, int]:
    """Names, as spelled, to milli-cards. Raises CardSyntaxError on the first malformed member."""
    found: dict[str, int] = {}
    for key, value in _members(text):
        _check_encodable(key)
        if not key.strip():
            raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} has an empty card name")
        name = spelled(key, value)
        amount = _amount(key, value)
        if name in found:
            raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} is a duplicate key; name each card once")
        found[name] = amount
    return found


def _one_card(key: str, value: object) -> str:
    if "|" in key:
        raise CardSyntaxError(
            f"<{shortened(key)}>: {_written(value)} is set for alternatives; a quota names one card, without '|'"
        )
    return key.strip()


def parse_card_quota(text: str | None) -> dict[str, int]:
    """`volcano.sh/card.quota`: card to milli-cards, in the order of the text. Absent, empty and null give no cards.

    Raises CardSyntaxError on the first malformed member.
    """
    return _parse(text, _one_card)


def is_card_quota(text: str | None) -> bool:
    """Whether the annotation sets quotas: empty text and null count as absent, a malformed text sets all to 0."""
    return text is not None and text.strip() not in ("", "null")


def parse_card_request(text: str | None) -> dict[str, int]:
    """`volcano.sh/card.request`: card or `A|B` to milli-cards, keys normalised like `parse_card_name`, order kept.

    `A|B` and `B|A` stay two keys. Two spellings of one key are duplicates. Raises CardSyntaxError.
    """
    return _parse(text, lambda key, _: "|".join(parse_card_name(key)))


def parse_card_name(text: str | None) -> tuple[str, ...]:
    """`volcano.sh/card.name`: the alternatives, preferred first, white space dropped, repetitions collapsed.

    An absent or blank annotation has none. Raises CardSyntaxError for an empty alternative (`A||B`, `|A`, `A|`).
    """
    if text is None or not text.strip():
        return ()
    alternatives = tuple(dict.fromkeys(part.strip() for part in text.split("|")))
    if "" in alternatives:
        raise CardSyntaxError(f"invalid card name <{text}>: empty alternative")
    return alternatives


# --- nodes ----------------------------------------------------------------------------------------------------------


class CardKind(NamedTuple):
    """A whole-device model on a node, from the node's labels."""

    name: str
    prefix: str
    type: str
    #: MiB per card; None when the label is not a positive integer, which excludes MPS cards only.
    memory_mib: int | None

    @property
    def resource(self) -> str:
        """The resource that counts whole devices of this kind."""
        return f"{self.prefix}/{self.type}"


class NodeCards(NamedTuple):
    #: Card to (milli-cards, resource name), sorted by card.
    cards: dict[str, tuple[int, str]]
    #: Labels that are not positive integers, as (key, value), sorted.
    problems: tuple[tuple[str, str], ...]


def _positive(text: str) -> int | None:
    match = _POSITIVE.fullmatch(text)
    return int(match[1]) if match else None


def card_kinds(labels: Mapping[str, str]) -> tuple[CardKind, ...]:
    """The kinds of a node in sorted order of their product labels; a product without a memory label is skipped."""
    kinds = []
    for key in sorted(key for key in labels if key.endswith(".product")):
        match = _PRODUCT.fullmatch(key)
        if match is None or MIG_PREFIX in key or not labels[key]:
            continue
        memory = labels.get(match[1] + MEMORY_SUFFIX)
        if memory is not None:
            kinds.append(CardKind(labels[key], match[2], match[3], _positive(memory)))
    return tuple(kinds)


def _slice_owner(kinds: tuple[CardKind, ...], prefix: str) -> CardKind | None:
    """The kind that names the slices of a vendor: type `gpu`, else the first in sorted order."""
    own = [kind for kind in kinds if kind.prefix == prefix]
    return next((kind for kind in own if kind.type == "gpu"), own[0] if own else None)


def mps_card(name: str, memory_mib: int, replicas: int) -> str:
    """The name of an MPS share: GiB are rounded half up (80.5 gives 81)."""
    return f"{name}/mps-{(memory_mib + 512) // 1024}g*1/{replicas}"


def mig_card(name: str, profile: str) -> str:
    """The name of a MIG slice under the mixed strategy."""
    return f"{name}/mig-{profile}-mixed"


def discover_cards(labels: Mapping[str, str], allocatable: Amounts) -> NodeCards:
    """The cards of a node from its labels and its allocatable resources in base units. Never raises.

    A fraction of a device counts as a whole one. If two resources map to one card, amounts add up and the entry has the
    first resource in sorted order. Nodes of one model share the result. Cost: O(labels + resources).
    """
    return _discover(
        tuple([each for each in labels.items() if each[0].endswith(_CARD_LABELS)]),
        tuple([each for each in allocatable.items() if "/" in each[0]]),
    )


@lru_cache(maxsize=1024)
def _discover(card_labels: tuple[tuple[str, str], ...], devices: tuple[tuple[str, int], ...]) -> NodeCards:
    labels, allocatable = dict(card_labels), dict(devices)
    kinds = card_kinds(labels)
    if not kinds:
        return NodeCards({}, ())
    nvidia = _slice_owner(kinds, NVIDIA)
    replicas_text = labels.get(GPU_REPLICAS)
    replicas = _positive(replicas_text) if replicas_text is not None else None

    problems = {kind.resource + MEMORY_SUFFIX for kind in kinds if kind.memory_mib is None}
    if nvidia is not None and replicas_text is not None and replicas is None:
        problems.add(GPU_REPLICAS)

    whole = {kind.resource: kind.name for kind in kinds}
    # Also when its amount is 0: with every device unhealthy, an RDMA resource must not count as the cards.
    has_whole = any(resource in allocatable for resource in whole)
    found: dict[str, tuple[int, str]] = {}
    others: dict[str, list[str]] = {}

    def add(card: str, resource: str) -> None:
        amount = min(-(-allocatable[resource] // CARD), MAX_CARDS) * CARD
        before = found.get(card)
        found[card] = (amount, resource) if before is None else (before[0] + amount, before[1])

    for resource in sorted(resource for resource, amount in allocatable.items() if amount > 0):
        if resource == MPS_RESOURCE:
            if nvidia is not None and nvidia.memory_mib is not None and replicas is not None:
                add(mps_card(nvidia.name, nvidia.memory_mib, replicas), resource)
        elif resource.startswith(MIG_PREFIX):
            if nvidia is not None:
                add(mig_card(nvidia.name, resource[len(MIG_PREFIX) :]), resource)
        elif resource in whole:
            add(whole[resource], resource)
        elif not has_whole:
            for prefix in {kind.prefix for kind in kinds if resource.startswith(f"{kind.prefix}/")}:
                others.setdefault(prefix, []).append(resource)
    for prefix in sorted(others):
        owner = _slice_owner(kinds, prefix)
        if owner is not None and len(others[prefix]) == 1:
            add(owner.name, others[prefix][0])
    return NodeCards(
        {card: found[card] for card in sorted(found)}, tuple((key, labels[key]) for key in sorted(problems))
    )
