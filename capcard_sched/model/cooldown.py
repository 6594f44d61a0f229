"""Pods that are left alone for a while after their start (plugins reference §18)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.timestamps import DurationError, parse_duration, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.objects import PodConditionObject

#: The conditions of a pod from which the time may be counted.
Start: TypeAlias = Literal["PodScheduled", "ContainersReady", "Ready"]

COOLDOWN_FORM: Final = "a duration such as 600s, 10m or 1h30m"


class Cooldown(NamedTuple):
    """What a pod says about its cool-down. Times are Unix seconds, 0.0 while the condition is not True."""

    #: As written.
    text: str
    #: Whether it is a label; else it is an annotation.
    is_label: bool
    scheduled: float
    containers_ready: float
    ready: float

    @property
    def seconds(self) -> float:
        """How long it lasts; 0.0 when that cannot be read."""
        return _seconds(self.text)[0]

    @property
    def problem(self) -> str:
        """What is wrong with the duration, "" for nothing."""
        return _seconds(self.text)[1]

    def until(self, start: Start) -> float:
        """When it is over. While the chosen condition is not True it counts from PodScheduled; 0.0 without that."""
        begun = self.scheduled
        if start != "PodScheduled":
            begun = (self.ready if start == "Ready" else self.containers_ready) or begun
        return begun + self.seconds if begun else 0.0


def cooldown_of(
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None,
    conditions: Iterable[PodConditionObject] | None,
) -> Cooldown | None:
    """What a pod's label, else its annotation `volcano.sh/cooldown-time` says; None without either."""
    is_label = labels is not None and COOLDOWN_TIME in labels
    text = labels[COOLDOWN_TIME] if is_label and labels else (annotations or {}).get(COOLDOWN_TIME)
    if text is None:
        return None
    since = {each.type: parse_time(each.last_transition_time) for each in conditions or () if each.status == "True"}
    return Cooldown(
        text, is_label, since.get("PodScheduled", 0.0), since.get("ContainersReady", 0.0), since.get("Ready", 0.0)
    )


@lru_cache(maxsize=256)
def _seconds(text: str) -> tuple[float, str]:
    """The duration and what is wrong with it."""
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        return 0.0, str(error)
    return (0.0, f"'{text}' is below 0") if seconds < 0 else (seconds, "")
