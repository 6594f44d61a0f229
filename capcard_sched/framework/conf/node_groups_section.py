"""The scheduler-conf's `nodeGroups`: nodes that an autoscaler adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.framework.api.problems import shown
from capcard_sched.model.autoscaled_groups import AutoscaledGroup
from capcard_sched.model.cards import discover_cards
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.objects import Taint
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.resources import PODS

if TYPE_CHECKING:
    from capcard_sched.framework.api.problems import ConfProblems, Path
    from capcard_sched.model.card_labels import CardLabels

KEYS: Final = ("name", "card", "resources", "labels", "taints", "maxSize")
ENTRY_FORM: Final = "a map such as {name: h200, card: NVIDIA-H200, resources: {cpu: 64, nvidia.com/gpu: 8}}"
_RESOURCES_FORM: Final = "a map of resources to quantities such as {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8}"
_SIZE_FORM: Final = "a whole number from 1 on; absent for any number of nodes"
_TAINT_FORM: Final = "a list of {key, value, effect}"
#: Pods of a node that states no number: the default of the kubelet.
_PODS: Final = 110


def read_node_group(
    path: Path, entry: dict[str, Any], name: str, card_labels: CardLabels, problems: ConfProblems
) -> AutoscaledGroup | None:
    """One entry; None with an error recorded."""
    before = len(problems.found)
    resources = _resources(path, entry.get("resources"), problems)
    labels = entry.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        problems.error((*path, "labels"), f"expected labels, got {shown(labels)}", accepted="a map of texts to texts")
    size = entry.get("maxSize")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        problems.error((*path, "maxSize"), f"expected a number of nodes, got {shown(size)}", accepted=_SIZE_FORM)
    taints: tuple[Taint, ...] = ()
    try:
        taints = msgspec.convert(entry.get("taints") or (), tuple[Taint, ...])
    except msgspec.ValidationError as error:
        problems.error((*path, "taints"), str(field_problem(error, entry["taints"])), accepted=_TAINT_FORM)
    card = entry.get("card")
    if card is not None and not (isinstance(card, str) and card.strip()):
        problems.error((*path, "card"), f"expected a card, got {shown(card)}", accepted="the model of the cards")
    devices = sorted(name for name in resources if "/" in name)
    if isinstance(card, str) and len(devices) != 1 and len(problems.found) == before:
        message = f"the resource of card {card} is not clear: resources names {', '.join(devices) or 'no device'}"
        problems.error((*path, "resources"), message, accepted=_RESOURCES_FORM)
    if len(problems.found) > before:
        return None
    cards = dict(discover_cards(labels, resources, card_labels).cards)
    if isinstance(card, str):
        cards = {card.strip(): (resources[devices[0]], devices[0])}
    return AutoscaledGroup(name, resources, cards, labels, taints, size)


def _resources(path: Path, raw: object, problems: ConfProblems) -> dict[str, int]:
    """Allocatable amounts of one node in base units."""
    at = (*path, "resources")
    if not isinstance(raw, dict) or not raw:
        problems.error(at, f"expected resources, got {shown(raw)}", accepted=_RESOURCES_FORM)
        return {}
    found = {PODS: _PODS}
    for name, value in raw.items():
        try:
            amount = base_amount(str(name), str(value) if isinstance(value, int | float) else value)
        except QuantityError as error:
            problems.error((*at, str(name)), str(error), accepted=_RESOURCES_FORM)
            continue
        if amount is None or amount < 0:
            problems.error((*at, str(name)), f"{shown(value)} is no amount", accepted=_RESOURCES_FORM)
        else:
            found[str(name)] = amount
    return found
