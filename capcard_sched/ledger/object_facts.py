"""What the ledger reads of metadata and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import LEDGER_USER, SERVICE_TYPE
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import ObjectMeta, PodConditionObject

_SERVICES: Final = frozenset({"inference", "training"})
_EVICTED_BECAUSE: Final = "Pod is evicted, because of "


def object_key(meta: ObjectMeta) -> str:
    """`namespace/name`."""
    return f"{meta.namespace or 'default'}/{meta.name}"


def created_at(meta: ObjectMeta, now: int) -> int:
    """Unix milliseconds of the creation, at most `now`."""
    return min(round(parse_time(meta.creation_timestamp) * 1000) or now, now)


def transition_at(condition: PodConditionObject | None) -> int | None:
    """Unix milliseconds of the transition of a condition, None without one."""
    return round(parse_time(condition.last_transition_time) * 1000) or None if condition is not None else None


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
