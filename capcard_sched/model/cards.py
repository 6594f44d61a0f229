"""Card annotations and card discovery on nodes.

Amounts are thousandths of a card: two cards are 2000.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.annotations import CARD_QUOTA, GPU_REPLICAS, MEMORY_SUFFIX
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS, MIG_PREFIX, MPS_RESOURCE, NVIDIA, first_value
from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.resources import Amounts

#: Thousandths per card.
CARD: Final = 1000
#: Cards. Maximum of one entry: its thousandths fit 64 bits.
MAX_CARDS: Final = (2**63 - 1) // CARD
#: Bytes. Kubernetes limits all annotations of an object to this size.
MAX_TEXT: Final = 262144

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
    raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} is not a whole number")


def _check_encodable(key: str) -> None:
    # An escape such as \ud800 gives text that no event or patch can encode.
    try:
        key.encode()
    except UnicodeEncodeError:
        raise CardSyntaxError(f'"{shortened(key)}" is not valid Unicode text') from None


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


class QuotaGroup(NamedTuple):
    """The limit of a quota on the sum of several cards."""

    #: `A|B`, in alphabetical order.
    key: str
    cards: frozenset[str]
    #: Thousandths.
    limit: int


class CardQuota(dict[str, int]):
    """Thousandths by card, at most those of each group with the card; a card of a group need not be listed."""

    def __init__(self, amounts: Mapping[str, int] = {}, groups: Iterable[QuotaGroup] = ()) -> None:
        super().__init__(amounts)
        #: Nested or disjoint, smaller ones first.
        self.groups = tuple(groups)
        for group in self.groups:
            for card in sorted(group.cards):
                self[card] = min(self.get(card, group.limit), group.limit)


def _quota_key(key: str, value: object) -> str:
    """A card; or several, each once, in alphabetical order."""
    if "|" not in key:
        return key.strip()
    cards = [part.strip() for part in key.split("|")]
    if "" in cards or len(set(cards)) < len(cards):
        problem = "an empty card name" if "" in cards else "a card twice"
        raise CardSyntaxError(f"<{shortened(key)}>: {_written(value)} has {problem}")
    return "|".join(sorted(cards))


def parse_card_quota(text: str | None) -> CardQuota:
    """`volcano.sh/card.quota`: card to milli-cards, in the order of the text; `A|B` limits a sum.

    Absent, empty and null give no cards. Raises CardSyntaxError on the first malformed member, and for groups of cards
    that overlap.
    """
    found = _parse(text, _quota_key)
    groups = [QuotaGroup(key, frozenset(key.split("|")), amount) for key, amount in found.items() if "|" in key]
    if not groups:
        return CardQuota(found)
    groups.sort(key=lambda group: (len(group.cards), group.key))
    for index, group in enumerate(groups):
        for other in groups[index + 1 :]:
            if group.cards & other.cards and not group.cards <= other.cards:
                names = f"<{shortened(group.key)}> and <{shortened(other.key)}>"
                raise CardSyntaxError(f"{names} overlap: one of them must have all cards of the other")
    return CardQuota({card: amount for card, amount in found.items() if "|" not in card}, groups)


def is_card_quota(text: str | None) -> bool:
    """Whether the annotation sets quotas: empty text and null count as absent, a malformed text sets all to 0."""
    return text is not None and text.strip() not in ("", "null")


def no_card_quota(queue: str) -> str:
    """The text about a queue without the annotation: its quota of every card is 0."""
    return f"queue {queue} has no card quota (annotation {CARD_QUOTA})"


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


def card_kinds(labels: Mapping[str, str], card_labels: CardLabels = DEFAULT_CARD_LABELS) -> tuple[CardKind, ...]:
    """The kinds of a node in sorted order of their resources.

    `cardLabels` precedes the product label of a resource; a product label without a memory label is skipped.
    """
    kinds: dict[str, CardKind] = {}
    for key in sorted(key for key in labels if key.endswith(".product")):
        match = _PRODUCT.fullmatch(key)
        if match is None or MIG_PREFIX in key or not labels[key]:
            continue
        memory = labels.get(match[1] + MEMORY_SUFFIX)
        if memory is not None:
            kinds[match[1]] = CardKind(labels[key], match[2], match[3], _positive(memory))
    for resource, names in card_labels.given.items():
        product = first_value(names, labels)
        if product:
            prefix, _, type_ = resource.rpartition("/")
            kinds[resource] = CardKind(product, prefix, type_, _positive(labels.get(resource + MEMORY_SUFFIX, "")))
    return tuple([kinds[resource] for resource in sorted(kinds)])


def _slice_owner(kinds: tuple[CardKind, ...], prefix: str) -> CardKind | None:
    """The kind that names the slices of a vendor: type `gpu`, else the first in sorted order."""
    own = [kind for kind in kinds if kind.prefix == prefix]
    return next((kind for kind in own if kind.type == "gpu"), own[0] if own else None)


def _slice(resource: str, owner: CardKind | None, replicas: int | None) -> str:
    """The card of a slice of NVIDIA; "" where a label for its name is missing."""
    if owner is None:
        return ""
    if resource != MPS_RESOURCE:
        return mig_card(owner.name, resource[len(MIG_PREFIX) :])
    return mps_card(owner.name, owner.memory_mib, replicas) if owner.memory_mib and replicas else ""


def mps_card(name: str, memory_mib: int, replicas: int) -> str:
    """The name of an MPS share: GiB are rounded half up (80.5 gives 81)."""
    return f"{name}/mps-{(memory_mib + 512) // 1024}g*1/{replicas}"


def mig_card(name: str, profile: str) -> str:
    """The name of a MIG slice under the mixed strategy."""
    return f"{name}/mig-{profile}-mixed"


def discover_cards(
    labels: Mapping[str, str], allocatable: Amounts, card_labels: CardLabels = DEFAULT_CARD_LABELS
) -> NodeCards:
    """The cards of a node from its labels and its allocatable resources in base units, by the rule of `card_labels`.

    Never raises. A fraction of a device counts as a whole one. If two resources map to one card, amounts add up and the
    entry has the first resource in sorted order. Nodes of one model share the result. Cost: O(labels + resources).
    """
    named = card_labels.keys
    return _discover(
        tuple([each for each in labels.items() if each[0].endswith(_CARD_LABELS) or each[0] in named]),
        tuple([each for each in allocatable.items() if "/" in each[0]]),
        card_labels,
    )


def _label_problems(labels: Mapping[str, str], kinds: Iterable[CardKind], *, has_replicas: bool) -> set[str]:
    """The labels of a node that name no amount. `has_replicas`: that of the replicas does, or no card has any."""
    found = {key for kind in kinds if kind.memory_mib is None and (key := kind.resource + MEMORY_SUFFIX) in labels}
    return found if has_replicas or GPU_REPLICAS not in labels else {*found, GPU_REPLICAS}


# Computed 7.7 us, kept 0.1 (benchmarks/caches.py).
@lru_cache(maxsize=1024)
def _discover(
    labels_of_cards: tuple[tuple[str, str], ...], devices: tuple[tuple[str, int], ...], card_labels: CardLabels
) -> NodeCards:
    labels, allocatable = dict(labels_of_cards), dict(devices)
    kinds = card_kinds(labels, card_labels)
    nvidia = _slice_owner(kinds, NVIDIA)
    replicas = _positive(labels[GPU_REPLICAS]) if GPU_REPLICAS in labels else None

    problems = _label_problems(labels, kinds, has_replicas=nvidia is None or replicas is not None)
    whole = {kind.resource: kind.name for kind in kinds}
    # Also when its amount is 0: with every device unhealthy, an RDMA resource must not count as the cards.
    has_whole = any(resource in allocatable for resource in whole)
    found: dict[str, tuple[int, str]] = {}
    others: dict[str, list[str]] = {}
    named: set[str] = set()

    def add(card: str, resource: str) -> None:
        amount = min(-(-allocatable[resource] // CARD), MAX_CARDS) * CARD
        before = found.get(card)
        found[card] = (amount, resource) if before is None else (before[0] + amount, before[1])
        named.add(resource)

    for resource in sorted([resource for resource, amount in allocatable.items() if amount > 0]):
        if resource in whole:
            add(whole[resource], resource)
        elif resource == MPS_RESOURCE or resource.startswith(MIG_PREFIX):
            if share := _slice(resource, nvidia, replicas):
                add(share, resource)
        elif not has_whole:
            for prefix in {kind.prefix for kind in kinds if resource.startswith(f"{kind.prefix}/")}:
                others.setdefault(prefix, []).append(resource)
    for prefix, resources in sorted(others.items()):
        if len(resources) == 1 and (owner := _slice_owner(kinds, prefix)) is not None:
            add(owner.name, resources[0])
    for resource in card_labels.devices(allocatable.keys() - named):
        if allocatable[resource] > 0:
            add(card_labels.model(resource, labels) or resource, resource)
    return NodeCards(
        {card: found[card] for card in sorted(found)}, tuple((key, labels[key]) for key in sorted(problems))
    )
