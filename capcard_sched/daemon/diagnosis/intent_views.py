"""Views of intents for comparison: binds and evictions by pod, and surplus intents by object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.intents import Bind, EmitEvent, Evict, Intent

if TYPE_CHECKING:
    from collections.abc import Sequence


def bindings(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    """Uid of each bound pod to (object, node and card)."""
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", _place(intent))
        for intent in intents
        if isinstance(intent, Bind)
    }


def _place(bind: Bind) -> str:
    card = bind.annotations.get(CARD_ASSIGNED)
    return f"{bind.node} ({card})" if card else bind.node


def evictions(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    """Uid of each evicted pod to (object, reason)."""
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", intent.reason)
        for intent in intents
        if isinstance(intent, Evict)
    }


def surplus(ones: Sequence[Intent], others: Sequence[Intent]) -> dict[str, list[str]]:
    """Intents that occur more often in `ones` than in `others`: object to their texts."""
    left: dict[bytes, int] = {}
    for intent in others:
        encoded = msgspec.json.encode(intent)
        left[encoded] = left.get(encoded, 0) + 1
    found: dict[str, list[str]] = {}
    for intent in ones:
        encoded = msgspec.json.encode(intent)
        if left.get(encoded, 0):
            left[encoded] -= 1
        else:
            found.setdefault(_subject(intent), []).append(encoded.decode())
    return found


def _subject(intent: Intent) -> str:
    if isinstance(intent, EmitEvent):
        ref = intent.object
        return f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}"
    kinds = {
        "UpdatePodGroup": "PodGroup", "AnnotatePodGroup": "PodGroup",
        "UpdatePodCondition": "Pod", "Bind": "Pod", "Evict": "Pod",
    }  # fmt: skip
    kind = kinds.get(type(intent).__name__, "Queue")
    namespace = getattr(intent, "namespace", "")
    return f"{kind} {namespace}/{intent.name}" if namespace else f"{kind} {intent.name}"
