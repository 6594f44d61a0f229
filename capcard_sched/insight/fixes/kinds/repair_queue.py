"""Misspelt annotations and quotas of queues."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import QUEUE, annotations_of
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import annotate
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.yaml_reader import YamlError, read_document
from capcard_sched.validation.checks import Spelling

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.sources.object_view import Json


_WORDS: Final = re.compile(r"[a-z0-9]+")
_DIGITS: Final = re.compile(r"\d+")
_LOOK_ALIKES: Final = str.maketrans("oil", "011")
#: Ratio of two names of which one letter is missing, doubled or transposed.
_CLOSE: Final = 0.9


#: What may follow the number of a quota: a unit, the word for cards, and zeros behind the point.
_WITHOUT_UNIT: Final = re.compile(r"(?<=\d)(\.0+)?( ?([KMG]i?|cards?|gpus?|x))?$", re.IGNORECASE)
_FRACTION: Final = re.compile(r"(\d+)\.\d+")


class RepairQueueFix(FixKind):
    """A misspelt annotation or card of a queue is renamed, and its amounts become numbers: `"8"` becomes 8."""

    disruption = 1

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The queue, and its ancestors."""
        for queue in situation.queues:
            found = situation.view.get(QUEUE, "", queue.name)
            if found is not None and repaired_quota(found, situation.scene.cards) is not None:
                yield (ProposedChange("RepairQueue", (QUEUE, "", queue.name)),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        repair(scene.edit(*change.target), scene)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`queue q: key NVIDIA-H2OO of the quota becomes NVIDIA-H200`."""
        queue = scene.view.get(*change.target) or {}
        renamed = Spelling().misspelt(annotations_of(queue))
        texts = [f"annotation {wrong} becomes {right}" for wrong, right in renamed.items()]
        before, after = _quota(queue), repaired_quota(queue, scene.cards) or {}
        if before is None:
            texts.append(f"{CARD_QUOTA} becomes a JSON object")
        for card, amount in (before or {}).items():
            meant = _meant(card, before or {}, scene.cards)
            if meant != card:
                texts.append(f"card {card} of the quota becomes {meant}")
            if meant not in after:
                texts.append(f"the quota {json.dumps(amount)} of {card}, which is no number of cards, is removed")
            elif amount != after[meant] or isinstance(amount, float):
                texts.append(f"the quota {json.dumps(amount)} of {meant} becomes {after[meant]}")
        if not texts:  # the names and amounts are right
            texts.append(f"{CARD_QUOTA} becomes a JSON object")
        return f"queue {change.target[2]}: {', '.join(texts)}"


def repair(queue: Json, scene: Scene) -> None:
    """Rename misspelt annotations, and write the quota correctly."""
    quota = repaired_quota(queue, scene.cards)
    for wrong, right in Spelling().misspelt(annotations_of(queue)).items():
        value = annotations_of(queue)[wrong]
        annotate(queue, wrong, None)
        if right not in annotations_of(queue):
            annotate(queue, right, value)
    if quota is not None:
        annotate(queue, CARD_QUOTA, json.dumps(quota))


def repaired_quota(queue: Json, cards: Collection[str]) -> dict[str, int] | None:
    """The quota that is meant; None for one that is written correctly, or that is absent."""
    notes = annotations_of(queue)
    if CARD_QUOTA not in notes and CARD_QUOTA not in Spelling().misspelt(notes).values():
        return None
    found = _quota(queue)
    repaired: dict[str, int] = {}
    for card, amount in (found or {}).items():
        number = None if isinstance(amount, bool) else whole_number(_whole(str(amount).strip()))
        if number is not None and (number or not _FRACTION.fullmatch(str(amount).strip())):
            repaired[_meant(card, found or {}, cards)] = number
    try:
        is_correct = json.dumps(json.loads(notes.get(CARD_QUOTA) or "null")) == json.dumps(repaired)
    except (ValueError, RecursionError):
        is_correct = False
    return None if is_correct else repaired


def _whole(amount: str) -> str:
    """An amount without its unit; the cards that `8.5` covers."""
    fraction = _FRACTION.fullmatch(amount)
    return fraction[1] if fraction is not None else _WITHOUT_UNIT.sub("", amount)


def _quota(queue: Json) -> dict[str, object] | None:
    """The quota as it is written, under whichever key; None for a text that is no map."""
    notes = annotations_of(queue)
    wrong = next((key for key, meant in Spelling().misspelt(notes).items() if meant == CARD_QUOTA), CARD_QUOTA)
    try:
        found = read_document(notes.get(CARD_QUOTA, notes.get(wrong, ""))).value
        if isinstance(found, str):  # encoded twice
            found = read_document(found).value
    except YamlError:
        return None
    return {str(card).strip(): amount for card, amount in found.items()} if isinstance(found, dict) else None


def _meant(card: str, written: Collection[str], cards: Collection[str]) -> str:
    """The card that nodes provide and that a key misspells, unless it has a quota of its own."""
    found = [] if card in cards else [other for other in cards if other not in written and _is_misspelt(card, other)]
    return found[0] if len(found) == 1 else card


def _is_misspelt(key: str, card: str) -> bool:
    """Whether two names differ in punctuation, case, look-alikes, single letters, or a missing vendor only.

    Names of other models are as similar: `NVIDIA-H100`, `NVIDIA-GeForce-RTX-4090-D`.
    """
    words, others = (_WORDS.findall(name.casefold()) for name in (key, card))
    one, other = "".join(words), "".join(others)
    if one.translate(_LOOK_ALIKES) == other.translate(_LOOK_ALIKES) or words == others[1:]:
        return True
    same_numbers = _DIGITS.findall(one) == _DIGITS.findall(other) and len(words) == len(others)
    return same_numbers and difflib.SequenceMatcher(None, one, other).ratio() >= _CLOSE
