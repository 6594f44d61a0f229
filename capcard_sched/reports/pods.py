"""Reads pods as JSON, of which any field may be missing."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TypeAlias

from capcard_sched.model.quantity import QuantityError, amounts
from capcard_sched.model.timestamps import parse_time

JsonObject: TypeAlias = dict[str, Any]
_FINISHED: Final = ("Succeeded", "Failed")
_ORIGIN: Final = "Origin reason is "


def _status(obj: JsonObject) -> JsonObject:
    return obj.get("status") or {}


def moment_of(stamp: str | None) -> float | None:
    """Unix seconds of a timestamp; None for none or a malformed one."""
    return parse_time(stamp) or None


def amounts_of(raw: Any) -> dict[str, int]:
    """Base units by resource; empty when any quantity is malformed."""
    try:
        return amounts(raw)
    except QuantityError:
        return {}


def pod_requests(pod: JsonObject) -> dict[str, int]:
    """Sum over containers, or the largest init container where that is more."""
    spec = pod.get("spec") or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(amounts_of((container.get("resources") or {}).get("requests")))
    for container in spec.get("initContainers") or ():
        for name, amount in amounts_of((container.get("resources") or {}).get("requests")).items():
            total[name] = max(total[name], amount)
    return total


def is_charged(pod: JsonObject) -> bool:
    """Charged to its queue: bound and not finished, whatever its grace period."""
    return bool((pod.get("spec") or {}).get("nodeName")) and _status(pod).get("phase") not in _FINISHED


def scheduled_at(pod: JsonObject) -> float | None:
    """When the pod was bound; None for an unbound or terminating pod."""
    if not (pod.get("spec") or {}).get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return None
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return moment_of(condition.get("lastTransitionTime"))
    return moment_of(pod["metadata"].get("creationTimestamp"))


def is_pending(pod: JsonObject) -> bool:
    """Not bound and not finished."""
    return not (pod.get("spec") or {}).get("nodeName") and _status(pod).get("phase") in (None, "Pending")


def pod_reason(pod: JsonObject) -> str:
    """Why a pending pod is not scheduled; "" for other pods."""
    if not is_pending(pod):
        return ""
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == "Schedulable":
                return ""
            return origin_of(condition.get("message") or condition.get("reason") or "")
    return ""


def origin_of(message: str) -> str:
    """The cause inside a job's message: the part after `Origin reason is <task>: `."""
    _, found, cause = message.partition(_ORIGIN)
    return cause.partition(": ")[2] if found else message
