"""Refusals as data: messages, events and tables render the same record."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from capcard_sched.model.reasons import without_numbers


class Code(IntEnum):
    """Result code of a filter."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2  # preemption may help
    UNRESOLVABLE = 3  # preemption cannot help
    WAIT = 4
    SKIP = 5


class Figures(msgspec.Struct, frozen=True):
    """The arithmetic of a quota refusal, in base units (cards x 1000, milli-cores, bytes)."""

    #: Resource name or card name (`A|B` for a claim).
    resource: str
    requested: int
    #: The total including the request.
    total: int
    limit: int


class Refusal(msgspec.Struct, frozen=True):
    """One refusal and its explanation.

    `reason` is a row of `model.reasons`; `message` is rendered from that row when the record is created, so that event,
    condition, `explain` and tables have the same text.
    """

    #: Hook that refused: a method name of the hooks table.
    hook: str
    #: Plugin that refused; "" for the framework itself.
    plugin: str
    reason: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    queue: str = ""
    figures: Figures | None = None
    #: For a claim on several cards: the figures of every alternative.
    alternatives: tuple[Figures, ...] = ()
    #: Further events to emit with this one, as (reason, message).
    also: tuple[tuple[str, str], ...] = ()
    #: Whether the refusal is an event of its own on its object (quota plugins), or only part of the job's text.
    event: bool = False
    #: Event type.
    type: Literal["Normal", "Warning"] = "Warning"
    #: Event source component; "" is the scheduler's own recorder.
    component: str = ""
    #: On enqueue refusals: emit the same event on the job's pending pods, too.
    pods_too: bool = False

    @property
    def kind(self) -> tuple[str, str, str]:
        """Hook, plugin, and the words of the refusal without its figures."""
        return self.hook, self.plugin, f"{self.reason} {without_numbers(self.message)}"

    def is_like(self, other: Refusal) -> bool:
        """Whether the refusals differ in totals only: what is requested and the limits are the same."""
        return self.kind == other.kind and self._bounds() == other._bounds()

    def _bounds(self) -> list[tuple[str, int, int]]:
        figures = (self.figures, *self.alternatives) if self.figures is not None else self.alternatives
        return [(each.resource, each.requested, each.limit) for each in figures]
