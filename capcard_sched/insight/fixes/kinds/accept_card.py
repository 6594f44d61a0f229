"""Other accepted cards."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import annotations_of
from capcard_sched.framework.explain.sentences import form, nearest
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.fixes.scene import notes_of
from capcard_sched.insight.fixes.situation import FITTING, MOST_CHOICES
from capcard_sched.insight.sources.changes import annotate
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS, CARD_REQUEST
from capcard_sched.model.cards import CardSyntaxError, parse_card_name
from capcard_sched.model.job import offered_amounts
from capcard_sched.model.quoting import brief, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.sources.object_view import Json
    from capcard_sched.model.job import Node
    from capcard_sched.model.task_class import TaskClass

_MOST_CARDS: Final = 3
_NUMBERS: Final = re.compile(r"\d+")


class AcceptCardFix(FixKind):
    """The pods that lack their card accept another one, or the card that was meant."""

    before = "{replaces}"
    after = "{key}"
    is_single = True
    disruption = 3
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """For the pods that lack their card; pods of the same cards change together."""
        placed = {name for pods in situation.found.pending if pods.outcome in FITTING for name in pods.names}
        short = {cards_named(task.cls.annotations): task.cls for task in situation.needed if task.name not in placed}
        for named, cls in list(short.items())[:MOST_CHOICES]:
            yield from self._others(situation, named, cls)

    def _others(self, situation: Situation, named: str, cls: TaskClass) -> Iterator[Candidate]:
        """Cards with the most free quota first; an unknown card is replaced."""
        own = situation.core.snapshot().dispatch.first("pod_cards", cls)
        if own is None or not own.names:
            return
        free: dict[str, int] = {}
        empty: dict[str, int] = {}
        for node in situation.state.nodes.by_name.values():
            for card, (_, resource) in situation.state.cards_of(node).items():
                amount = cls.requests.get(resource, 0)
                if amount and card not in own.alternatives and not node.unschedulable:
                    free[card] = free.get(card, 0) + (_free(situation, node, resource) // amount)
                    empty[card] = empty.get(card, 0) + (offered_amounts(node).get(resource, 0) // amount)
        close = [name for wrong in own.names if wrong not in own.alternatives and (name := nearest(wrong, free))]
        usable = {row.resource: row.usable or 0.0 for row in situation.limits}
        if own.alternatives:  # an unknown card is replaced even where the others are not free
            places = free if any(free.values()) else empty
            free = {card: free[card] for card, pods in places.items() if pods}
        ordered = sorted(free, key=lambda card: (card not in close, not usable.get(card), -free[card], card))
        kept = [name for name in own.names if name in own.alternatives]
        if not kept and (meant := "|".join(name for name in dict.fromkeys(close) if _is_model(name, own.names))):
            # A card of another name is not meant.
            yield (ProposedChange("AcceptCard", situation.target, meant, replaces=named),)
            return
        for card in ordered[:_MOST_CARDS]:
            yield (ProposedChange("AcceptCard", situation.target, "|".join([*kept, card]), replaces=named),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Set the cards of the templates that name `replaces`, and of the declared request."""
        templates = [template for _, template in scene.templates()]
        for template in templates:
            notes = notes_of(template)
            if cards_named(notes) == change.replaces:
                is_alias = CARD_NAME not in notes and CARD_NAME_ALIAS in notes
                annotate(template, CARD_NAME_ALIAS if is_alias else CARD_NAME, change.key)
        for holder in (scene.owner(), scene.group(), *templates):
            if holder is not None:
                _rename(holder, change.replaces, change.key)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`job/train accepts NVIDIA-H200|NVIDIA-A100 instead of NVIDIA-H100`."""
        name, before, after = scene.name, change.replaces, change.key
        templates = scene.templates()
        changed = [task for task, template in templates if cards_named(notes_of(template)) == before]
        verb = "accepts"
        if len(changed) < len(templates) and scene.workload is None:
            name, verb = (
                f"{plural(len(changed), 'pod')} of {name} ({brief(changed)})",
                form(len(changed), verb, "accept"),
            )
        elif len(changed) < len(templates):
            name = f"{name}, {form(len(changed), 'task', 'tasks')} {brief(changed)},"
        instead = "" if not before or set(before.split("|")) & set(after.split("|")) else f" instead of {before}"
        return f"{name} {verb} {after}{instead}"


def _is_model(card: str, names: Sequence[str]) -> bool:
    """Whether one of some names is that of the model of a card: `H200` of `NVIDIA-H200`, but not `H100`."""
    numbers = set(_NUMBERS.findall(card))
    return any(numbers.issuperset(found) for name in names if (found := _NUMBERS.findall(name)))


def cards_named(annotations: Mapping[str, str]) -> str:
    """The cards `A|B` that a pod or a pod template names; "" for none."""
    text = annotations.get(CARD_NAME, annotations.get(CARD_NAME_ALIAS, ""))
    try:
        return "|".join(parse_card_name(text))
    except CardSyntaxError:
        return text


def _rename(holder: Json, old: str, new: str) -> None:
    """Rename cards in a declared request."""
    try:
        declared = json.loads((annotations_of(holder) if "metadata" in holder else {}).get(CARD_REQUEST) or "{}")
    except (ValueError, RecursionError):
        return
    if isinstance(declared, dict) and old in declared and new not in declared:
        renamed = {new if key == old else key: amount for key, amount in declared.items()}
        annotate(holder, CARD_REQUEST, json.dumps(renamed))


def _free(situation: Situation, node: Node, resource: str) -> int:
    columns, table = situation.state.columns, situation.state.nodes
    if node.row < 0 or resource not in columns.names:
        return node.allocatable.get(resource, 0)
    column = columns.column(resource)
    return max(0, int(table.allocatable[node.row, column] - table.used[node.row, column]))
