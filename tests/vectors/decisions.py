"""What sessions decided, in the words of an expectation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from capcard_sched.framework.core import StepResult
from capcard_sched.model.intents import (
    AnnotateNode,
    AnnotatePod,
    AnnotatePodGroup,
    AnnotateQueue,
    Bind,
    EmitEvent,
    Evict,
    ObjectRef,
    RemoveGate,
    RequestCapacity,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
    WithdrawRequest,
)
from capcard_sched.model.job import Task
from capcard_sched.model.provisioning import CONSUMED_REQUEST
from capcard_sched.model.refusal import Figures, Refusal


def listed(tasks: Iterable[Task]) -> str:
    return " ".join(task.name for task in tasks)


def refused(refusal: Refusal) -> str:
    """Reason, queue and figures of a refusal: requested, the total with it, the limit. Without figures: the text."""
    figures = [refusal.figures] if refusal.figures is not None else list(refusal.alternatives)
    found = " ".join(
        [refusal.reason, *([f"of {refusal.queue}"] if refusal.queue else []), *(_figures(one) for one in figures)]
    )
    rendered = figures and all(f"<{one.requested}>" in refusal.message for one in figures)
    return found if rendered or not refusal.message else f"{found}: {refusal.message}"


def _figures(figures: Figures) -> str:
    return f"{figures.resource} {figures.requested} {figures.total}>{figures.limit}"


def decided(results: Sequence[StepResult]) -> dict[str, Any]:
    """What sessions decided, by the keys of an expectation."""
    intents = [intent for result in results for intent in result.intents]
    binds = [intent for intent in intents if isinstance(intent, Bind)]
    victims: dict[str, list[str]] = {}
    for intent in intents:
        if isinstance(intent, Evict):
            victims.setdefault(intent.by.partition("/")[2], []).append(intent.name)
    events = [intent for intent in intents if isinstance(intent, EmitEvent)]
    pods = [intent for intent in intents if isinstance(intent, UpdatePodCondition)]
    groups = [intent for intent in intents if isinstance(intent, UpdatePodGroup)]
    return {
        "bind": pairs({bind.name: bind.node for bind in binds}),
        "evict": lines(f"{packed(sorted(found))}{f' for {by}' * bool(by)}" for by, found in sorted(victims.items())),
        "why": together(
            (intent.name, f" {intent.reason}: {intent.message}") for intent in intents if isinstance(intent, Evict)
        ),
        "nominate": pairs({pod.name: pod.nominated_node for pod in pods if pod.nominated_node is not None}),
        "phase": pairs({group.name: group.phase for group in groups}, ":"),
        "admitted": packed([group.name for group in groups if group.admitted]),
        "conditions": together(
            (group.name, f" {one.type}={one.status} {one.reason}{one.message and f': {one.message}'}")
            for group in groups
            for one in group.conditions
        ),
        "refuse": together(
            dict.fromkeys(
                (shown(about), f" {refusal.plugin}.{refusal.hook} {refused(refusal)}")
                for result in results
                for about, refusal in result.report.refusals
            )
        ),
        "status": lines(
            f"{each.name} {' '.join(f'{name}={amount}' for name, amount in each.allocated.items())}"
            for each in intents
            if isinstance(each, UpdateQueueStatus)
        ),
        "notes": together(
            (each.name, f" {key}={text}")
            for each in intents
            if isinstance(each, AnnotateNode | AnnotatePodGroup | AnnotateQueue)
            for key, text in each.annotations.items()
        ),
        "warnings": together(
            (shown(about), f" {text}") for result in results for about, text in result.report.warnings
        ),
        "locks": pairs({bind.name: bind.node_lock for bind in binds if bind.node_lock}, ":"),
        "ungate": packed(
            [each.name for each in intents if isinstance(each, RemoveGate) or (isinstance(each, Bind) and each.gate)]
        ),
        "requests": lines(
            f"create {each.name} for {' and '.join(f'{one.count} of {one.pod}' for one in each.pod_sets)}"
            if isinstance(each, RequestCapacity)
            else f"delete {each.name}"
            for each in intents
            if isinstance(each, RequestCapacity | WithdrawRequest)
        ),
        "consume": pairs(
            {each.name: each.annotations[CONSUMED_REQUEST] or "" for each in intents if isinstance(each, AnnotatePod)},
            ":",
        ),
        "events": together((shown(event.object), f" {event.reason}") for event in events),
        "texts": _texts(events),
        "reasons": pairs({pod.name: pod.reason for pod in pods}, ":"),
        "pods": together((pod.name, f" {pod.reason}: {pod.message}") for pod in pods),
        "errors": lines(
            f"{error.plugin}.{error.hook} {error.error}" for result in results for error in result.report.errors
        ),
        "annotations": _annotations(binds),
        "volumes": lines(
            f"{bind.name} {one.claim}: {one.volume or 'to be provisioned'}" for bind in binds for one in bind.volumes
        ),
        "idle": results[-1].idle,
    }


def _annotations(binds: Iterable[Bind]) -> dict[str, dict[str, str]]:
    """By key: pods and values."""
    found: dict[str, dict[str, str]] = {}
    for bind in sorted(binds, key=lambda bind: bind.name):
        for key, text in bind.annotations.items():
            found.setdefault(key, {})[bind.name] = text
    return found


def _texts(events: Iterable[EmitEvent]) -> dict[str, Any]:
    """By reason: objects and messages."""
    found: dict[str, list[tuple[str, str]]] = {}
    for event in events:
        found.setdefault(event.reason, []).append((shown(event.object), f": {event.message}"))
    return {reason: together(texts) for reason, texts in found.items()}


def shown(about: ObjectRef) -> str:
    return f"{about.kind}/{about.name}"


def pairs(found: Mapping[str, str], mark: str = "@") -> str:
    by_value: dict[str, list[str]] = {}
    for name, place in sorted(found.items()):
        by_value.setdefault(place, []).append(name)
    return " ".join(f"{packed(alike)}{mark}{place}" for place, alike in by_value.items())


def packed(found: Sequence[str]) -> str:
    """Names with ranges, as the notation reads them."""
    return _ranges(sorted(found, key=_numbered))


def _ranges(found: Iterable[str]) -> str:
    parts: list[list[str]] = []
    for name in found:
        if parts and _follows(parts[-1][-1], name):
            parts[-1].append(name)
        else:
            parts.append([name])
    return ",".join(part[0] if len(part) == 1 else f"{part[0]}..{_numbered(part[-1])[1]}" for part in parts)


def _numbered(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
    return (match.group(1), int(match.group(2))) if match else (name, -1)


def _follows(last: str, name: str) -> bool:
    (stem, number), (other, following) = _numbered(last), _numbered(name)
    return stem == other and number >= 0 and following == number + 1


def together(found: Iterable[tuple[str, str]]) -> Any:
    """Names and texts; neighbours with the same text share a line, in their order."""
    return lines(_ranges(name for name, _ in alike) + text for text, alike in groupby(found, key=itemgetter(1)))


def lines(found: Iterable[str]) -> Any:
    """One string, or a list of several."""
    several = list(found)
    return "" if not several else several[0] if len(several) == 1 else several
