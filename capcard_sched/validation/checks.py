"""Validation of annotations, pod templates and nodes.

Pure functions over text and plain values, shared by `validate` and admission. The scheduler itself tolerates everything
that is an error here; these checks report it before a job waits.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS, MIG_PREFIX, MPS_RESOURCE, WHOLE_NVIDIA
from capcard_sched.model.cards import (
    CARD,
    CardSyntaxError,
    discover_cards,
    parse_card_name,
    parse_card_quota,
    parse_card_request,
)
from capcard_sched.model.quoting import escaped, plural
from capcard_sched.model.reasons import INVALID_CARD_LABEL
from capcard_sched.model.resources import similar_resource
from capcard_sched.validation.budget import checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.resources import Amounts

Severity: TypeAlias = Literal["error", "warning", "note"]

QUOTA_FORM: Final = 'a JSON object of card names and whole numbers, such as {"NVIDIA-H200": 8}'
REQUEST_FORM: Final = 'a JSON object of cards, or alternatives joined by |, and whole numbers, such as {"A|B": 2}'
NAME_FORM: Final = "a card name, or alternatives joined by |, such as NVIDIA-A100-80GB|NVIDIA-H100-80GB"
SLICE_FORM: Final = (
    "<card>/mps-<GiB>g*1/<shares> with at least 2 shares, <card>/mig-<profile>-mixed, <card>/vfio or <card>/shared"
)

#: How `capacity-card` charges pods without a card name: its argument `unnamedCards`; "off" without the plugin, "" where
#: the scheduler-conf is unknown.
UnnamedCards: TypeAlias = Literal["ignore", "infer", "deny", "off", ""]
_UNNAMED: Final[dict[UnnamedCards, str]] = {
    "ignore": "no card quota is charged for it",
    "deny": "unnamedCards: deny refuses it",
    "": "the argument unnamedCards of capacity-card decides about its charge",
}

#: Characters. Longer keys are not compared: the comparison takes quadratic time.
_LONG_KEY = 100
#: Unknown keys of one object that are compared with the supported ones; each comparison takes about a millisecond.
_MOST_COMPARED: Final = 16
#: Findings of one severity that are kept of one object.
MOST_FINDINGS: Final = 64
#: Errors of one object after which its checks end.
MOST_ERRORS: Final = 1000
#: Names that a message lists.
MOST_NAMES: Final = 10
#: Resource names that a pod may request.
MOST_RESOURCES: Final = 64
_MPS = re.compile(r"[^/]+/mps-[0-9]+g\*1/([0-9]{1,6})")
_MIG = re.compile(r"[^/]+/mig-(.+)-mixed")
#: Devices of ResourceSlices: a virtual function, and a device or part of one that several pods share.
_DEVICE = re.compile(r"[^/]+(/vfio|(/vfio|/mig-[^/]+-mixed)?/shared)")
#: The name of an extended resource: the card of devices without a product label.
_RESOURCE = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. error: cannot work; warning: probably unintended; note: information."""

    severity: Severity
    #: Path inside the object: `metadata.annotations["volcano.sh/card.quota"]`.
    field: str
    message: str
    #: The accepted form, "" when the message contains it.
    accepted: str = ""

    def __post_init__(self) -> None:
        """Escapes the texts: they quote objects."""
        checkpoint()
        for name in ("field", "message", "accepted"):
            text = getattr(self, name)
            if text != (shown := escaped(text)):
                msgspec.structs.force_setattr(self, name, shown)


def capped(findings: Iterable[Finding]) -> list[Finding]:
    """The first MOST_FINDINGS of each severity, in order, then one finding per severity with the number of others.

    The error number MOST_ERRORS ends the iteration: lazy checks of a rejected object go no further.
    """
    kept: list[Finding] = []
    counts: Counter[Severity] = Counter()
    for finding in findings:
        counts[finding.severity] += 1
        if counts[finding.severity] <= MOST_FINDINGS:
            kept.append(finding)
        if counts["error"] == MOST_ERRORS:
            break
    further = [(severity, count - MOST_FINDINGS) for severity, count in counts.items() if count > MOST_FINDINGS]
    least = "at least " if counts["error"] == MOST_ERRORS else ""
    return kept + [Finding(severity, "", f"{least}{plural(count, 'further finding')}") for severity, count in further]


def listed(names: Collection[str]) -> str:
    """The first MOST_NAMES names in alphabetical order, and the number of others."""
    first = ", ".join(heapq.nsmallest(MOST_NAMES, names))
    return first if len(names) <= MOST_NAMES else f"{first} and {len(names) - MOST_NAMES} more"


def annotation_field(key: str, at: str = "metadata") -> str:
    """The path of an annotation below `at`."""
    return f'{at}.annotations["{key}"]'


# --- annotations ----------------------------------------------------------------------------------------------------


class Spelling:
    """Compares the unsupported keys of one object with the supported ones: each key once, _MOST_COMPARED at most."""

    def __init__(self) -> None:
        self._known = keys.known_keys()
        self._compared: dict[str, str] = {}

    def misspelt(self, annotations: Iterable[str]) -> dict[str, str]:
        """Unsupported keys under our prefixes to the supported key that they resemble, in order."""
        found = {}
        for key in sorted(annotations):
            if key not in self._known and key.lower().startswith(keys.OWN_PREFIXES) and len(key) < _LONG_KEY:
                meant = self._meant(key)
                if meant:
                    found[key] = meant
        return found

    def check(self, annotations: Iterable[str], *, at: str = "metadata") -> list[Finding]:
        """Unsupported keys under our prefixes that resemble a supported one."""
        return [
            Finding("warning", annotation_field(key, at), f'unknown annotation; did you mean "{meant}"?')
            for key, meant in self.misspelt(annotations).items()
        ]

    def _meant(self, key: str) -> str:
        found = self._compared.get(key, "")
        if not found and key not in self._compared and len(self._compared) < _MOST_COMPARED:
            close = difflib.get_close_matches(key.lower(), self._known, n=1, cutoff=0.85)
            found = self._compared[key] = close[0] if close else ""
        return found


def check_spelling(annotations: Iterable[str]) -> list[Finding]:
    """Unsupported keys under our prefixes, of an object without templates, that resemble a supported one."""
    return Spelling().check(annotations)


def check_card_quota(text: str, consequence: str = "all card quotas of the queue are 0") -> list[Finding]:
    """Check `volcano.sh/card.quota` of a queue. `consequence`: that of a malformed one."""
    field = annotation_field(keys.CARD_QUOTA)
    try:
        quota = parse_card_quota(text)
    except CardSyntaxError as error:
        return [Finding("error", field, f"{error}; {consequence}", QUOTA_FORM)]
    return [finding for card in quota for finding in check_card_word(card, field)]


def check_card_request(text: str, *, severity: Severity = "error") -> list[Finding]:
    """Check `volcano.sh/card.request` of a workload or PodGroup; `severity` applies to a malformed one."""
    field = annotation_field(keys.CARD_REQUEST)
    try:
        request = parse_card_request(text)
    except CardSyntaxError as error:
        return [Finding(severity, field, str(error), REQUEST_FORM)]
    raw = msgspec.json.decode(text) if text.strip() else None
    repeated = [key for key in raw or () if len(set(key.split("|"))) < len(key.split("|"))]
    findings = [Finding(severity, field, f"<{key}> names a card twice", REQUEST_FORM) for key in repeated]
    return findings + [
        finding for key in request for card in key.split("|") for finding in check_card_word(card, field)
    ]


def check_card_word(card: str, field: str) -> list[Finding]:
    """Check one card name: no white space, slices in the form that nodes provide, else a model or a resource name."""
    if any(character.isspace() for character in card):
        return [Finding("warning", field, f"card <{card}> contains white space: no node provides such a card")]
    match = _MPS.fullmatch(card)
    slice_ = (match is not None and int(match[1]) >= 2) or _MIG.fullmatch(card) is not None
    slice_ = slice_ or _DEVICE.fullmatch(card) is not None
    if "/" not in card or slice_ or _RESOURCE.fullmatch(card):
        return []
    return [Finding("warning", field, f"no node can provide card <{card}>", SLICE_FORM)]


def check_choice(
    key: str, value: str, choices: tuple[str, ...], *, severity: Severity = "error", at: str = "metadata"
) -> list[Finding]:
    """Check an annotation with a closed set of values."""
    if value in choices:
        return []
    accepted = " or ".join(f'"{choice}"' for choice in choices)
    return [Finding(severity, annotation_field(key, at), f'"{value}" is not accepted', accepted)]


# --- pods -----------------------------------------------------------------------------------------------------------


def is_card_resource(resource: str, known: Collection[str] = ()) -> bool:
    """Whether `resource` counts cards: devices of a vendor always, others when a node provides them (`known`)."""
    return DEFAULT_CARD_LABELS.is_device(resource) or resource in known


def card_resource(card: str) -> str | None:
    """The resource that counts a slice or a card without a model; None for a whole card, named without its vendor."""
    if _MPS.fullmatch(card):
        return MPS_RESOURCE
    match = _MIG.fullmatch(card)
    if match:
        return MIG_PREFIX + match[1]
    return card if _RESOURCE.fullmatch(card) else None


def check_card_name(
    annotations: Mapping[str, str],
    requests: Amounts,
    *,
    known: Collection[str] = (),
    at: str = "metadata",
    unnamed: UnnamedCards = "",
    has_claims: bool = False,
) -> list[Finding]:
    """Check `volcano.sh/card.name` of a pod (template) against the requests of its containers, in base units.

    `unnamed`: how the scheduler-conf charges a pod without one; `has_claims`: its ResourceClaims may be for the card.
    """
    text = annotations.get(keys.CARD_NAME, annotations.get(keys.CARD_NAME_ALIAS, ""))
    key = keys.CARD_NAME if keys.CARD_NAME in annotations or not text else keys.CARD_NAME_ALIAS
    field = annotation_field(key, at)
    named = sorted(name for name in requests if is_card_resource(name, known))
    requested = [name for name in named if requests[name] > 0]
    try:
        cards = parse_card_name(text)
    except CardSyntaxError as error:
        return [Finding("error", field, str(error), NAME_FORM)]
    if not cards:
        if not requested or unnamed not in _UNNAMED:
            return []
        message = f"the pod requests <{', '.join(requested)}> without {keys.CARD_NAME}; {_UNNAMED[unnamed]}"
        return [Finding("warning", field, message, NAME_FORM)]
    findings = [finding for card in cards for finding in check_card_word(card, field)]
    if len(cards) < len(text.split("|")):
        findings.append(Finding("warning", field, f"<{text}> names a card twice", NAME_FORM))
    if key == keys.CARD_NAME_ALIAS:
        findings.append(Finding("warning", field, f"an old spelling, read as {keys.CARD_NAME}", keys.CARD_NAME))
    if has_claims and not named:
        return findings
    # A request of 0 cards is one: the pod is charged nothing and fits.
    return findings + _match_resources(cards, requested or named, field, requests)


def _match_resources(
    cards: tuple[str, ...], requested: list[str], field: str, requests: Collection[str]
) -> list[Finding]:
    resources = set(requested)
    wanted = {card: card_resource(card) for card in cards}
    kinds = sorted({resource or "a whole card" for resource in wanted.values()})
    if len(kinds) > 1:
        message = f"cards <{'|'.join(cards)}> use different resources <{', '.join(kinds)}>, which is not supported"
        return [Finding("error", field, message, "alternatives that are counted by one resource")]
    if not requested:
        message = f"no container requests a resource of card <{'|'.join(cards)}>: the pod cannot be scheduled"
        device = wanted[cards[0]] or WHOLE_NVIDIA
        if other := similar_resource(device, requests):
            message += f"; the pod requests {other}, did you mean {device}?"
        return [Finding("warning", field, message, f"a limit such as {device}: 1")]
    for card, resource in wanted.items():
        fits = resource in resources if resource else any(not is_slice(name) for name in requested)
        if not fits:
            message = f"card <{card}> is counted by {resource or WHOLE_NVIDIA}, the pod requests {', '.join(requested)}"
            return [Finding("error", field, message, f"a limit of {resource or WHOLE_NVIDIA}")]
    if len(requested) > 1:
        message = f"the pod requests several card resources <{', '.join(requested)}>; a card name covers one of them"
        return [Finding("warning", field, message)]
    return []


def is_slice(resource: str) -> bool:
    return resource == MPS_RESOURCE or resource.startswith(MIG_PREFIX)


# --- nodes ----------------------------------------------------------------------------------------------------------


def check_node(
    labels: Mapping[str, str], allocatable: Amounts, card_labels: CardLabels = DEFAULT_CARD_LABELS
) -> list[Finding]:
    """Check the labels of card discovery, and find devices whose model no label names."""
    found = discover_cards(labels, allocatable, card_labels)
    findings = [
        Finding(
            "warning",
            f'metadata.labels["{key}"]',
            INVALID_CARD_LABEL.render(key=key, value=value),
            "a whole number above 0",
        )
        for key, value in found.problems
    ]
    for card, (amount, resource) in found.cards.items():
        if card == resource:
            message = f"{amount // CARD} x {resource}: {card_labels.unlabelled(resource, labels)}"
            findings.append(
                Finding("warning", f'status.allocatable["{resource}"]', message, card_labels.needed(resource, labels))
            )
    return findings
