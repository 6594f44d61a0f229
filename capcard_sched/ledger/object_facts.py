"""What the ledger reads of metadata and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import LEDGER_USER, POD_QUEUE_NAME, QUEUE_NAME, SERVICE_TYPE
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import ObjectMeta, PodConditionObject

#: Phase of a pod that holds its cards no more, to the outcome of its charge.
FINISHED: Final = {"Succeeded": "Completed", "Failed": "Failed"}
_ENDED: Final = frozenset({"PodCompleted", "PodFailed"})
_SERVICES: Final = frozenset({"inference", "training"})
_EVICTED_BECAUSE: Final = "Pod is evicted, because of "


def object_key(meta: ObjectMeta) -> str:
    """`namespace/name`; `default` for an absent namespace."""
    return f"{meta.namespace or 'default'}/{meta.name}"


def created_at(meta: ObjectMeta, now: int) -> int:
    """Unix milliseconds of the creation, at most `now`; `now` without a timestamp."""
    return min(round(parse_time(meta.creation_timestamp) * 1000) or now, now)


def transition_at(condition: PodConditionObject | None) -> int | None:
    """Unix milliseconds of the transition of a condition, None without one."""
    return round(parse_time(condition.last_transition_time) * 1000) or None if condition is not None else None


def bound_at(conditions: Mapping[str, PodConditionObject], last: int, now: int) -> int | None:
    """Unix milliseconds of the binding of a pod, between two steps; None if the pod does not show it."""
    stamp = transition_at(conditions.get("PodScheduled"))
    return None if stamp is None else min(max(stamp, last), now)


def finished_at(conditions: Mapping[str, PodConditionObject], last: int, now: int) -> int | None:
    """Unix milliseconds of the end of a finished pod; None if the pod shows no end between two steps."""
    ready = conditions.get("Ready")
    if ready is None or ready.status != "False" or ready.reason not in _ENDED:
        return None
    stamp = transition_at(ready)
    return stamp if stamp is not None and last <= stamp <= now else None


def eviction_message(conditions: Mapping[str, PodConditionObject]) -> str:
    """The message of an eviction by this scheduler, "" for none."""
    target, ready = conditions.get("DisruptionTarget"), conditions.get("Ready")
    if target is None or target.status != "True" or target.reason != "PreemptionByScheduler":
        return ""
    if ready is not None and ready.reason == "Evict":
        return ready.message.removeprefix(_EVICTED_BECAUSE)
    return target.message or "preempted"


def user_of(meta: ObjectMeta) -> str:
    """The user whom an object names, "" for none."""
    return (meta.labels or {}).get(LEDGER_USER) or (meta.annotations or {}).get(LEDGER_USER, "")


def service_of(meta: ObjectMeta) -> str:
    """`inference` or `training`, else ""."""
    value = (meta.annotations or {}).get(SERVICE_TYPE, "")
    return value if value in _SERVICES else ""


def lone_pod_queue(notes: Mapping[str, str]) -> str:
    """The queue that the annotations of a pod without a PodGroup name, "" for none."""
    return notes.get(POD_QUEUE_NAME) or notes.get(QUEUE_NAME) or ""
