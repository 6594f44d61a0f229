"""Cooldown: a protection period after the start of a pod during which it is not evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.text_cache import text_cache
from capcard_sched.model.timestamps import DurationError, parse_duration, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.objects import PodConditionObject

#: Pod conditions from which the cooldown may count.
Start: TypeAlias = Literal["PodScheduled", "ContainersReady", "Ready"]

COOLDOWN_FORM: Final = "a duration such as 600s, 10m or 1h30m"


class Cooldown(NamedTuple):
    """The cooldown of a pod. Times are Unix seconds, 0.0 while the condition is not True."""

    #: As written.
    text: str
    #: Whether it is a label; else it is an annotation.
    is_label: bool
    scheduled: float
    containers_ready: float
    ready: float

    @property
    def seconds(self) -> float:
        """Its duration; 0.0 when the text is invalid."""
        return _seconds(self.text)[0]

    @property
    def problem(self) -> str:
        """The problem of the text, "" for none."""
        return _seconds(self.text)[1]

    def until(self, start: Start) -> float:
        """Unix seconds of its end, counted from `start`, else PodScheduled; 0.0 while neither condition is True."""
        begun = self.scheduled
        if start != "PodScheduled":
            begun = (self.ready if start == "Ready" else self.containers_ready) or begun
        return begun + self.seconds if begun else 0.0


def cooldown_of(
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None,
    conditions: Iterable[PodConditionObject] | None,
) -> Cooldown | None:
    """The cooldown from the label, else the annotation `volcano.sh/cooldown-time`; None without both."""
    is_label = labels is not None and COOLDOWN_TIME in labels
    text = labels[COOLDOWN_TIME] if is_label and labels else (annotations or {}).get(COOLDOWN_TIME)
    if text is None:
        return None
    since = {each.type: parse_time(each.last_transition_time) for each in conditions or () if each.status == "True"}
    return Cooldown(
        text, is_label, since.get("PodScheduled", 0.0), since.get("ContainersReady", 0.0), since.get("Ready", 0.0)
    )


# Computed 6.2 us, kept 0.5 (benchmarks/caches.py).
@text_cache(256)
def _seconds(text: str) -> tuple[float, str]:
    """The duration and its problem."""
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        return 0.0, str(error)
    return (0.0, f"'{text}' is below 0") if seconds < 0 else (seconds, "")
