"""Why something was not done: one record per refusal, rendered by every message, event and table."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec


class Code(IntEnum):
    """What a node check found (plugins reference §0.5). The value tells the caller what may help."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2  # evicting something could help
    UNRESOLVABLE = 3  # nothing that the scheduler may do helps
    WAIT = 4
    SKIP = 5


class Figures(msgspec.Struct, frozen=True):
    """The arithmetic of a quota refusal, in base units (cards x 1000, milli-cores, bytes)."""

    #: Resource name or card name (`A|B` for a claim).
    resource: str
    requested: int
    #: What the total would have been, the request included.
    total: int
    limit: int


class Refusal(msgspec.Struct, frozen=True):
    """One "no" and everything that is needed to explain it.

    `reason` is a row of `model.reasons`; `message` is rendered from that row when the record is made, so that the
    same text reaches the event, the condition, `explain` and the tables.
    """

    #: Hook that said no: a method name of the hooks table.
    hook: str
    #: Plugin that said no; "" for the framework itself.
    plugin: str
    reason: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    queue: str = ""
    figures: Figures | None = None
    #: For a claim on several cards: the figures of every alternative.
    alternatives: tuple[Figures, ...] = ()
    #: Texts of further events that go out beside this one, as (reason, message).
    also: tuple[tuple[str, str], ...] = ()
    #: Whether the refusal is an event of its own on its object (quota plugins), or only part of the job's text.
    event: bool = False
    #: Event type.
    type: Literal["Normal", "Warning"] = "Warning"
    #: Event source component; "" is the scheduler's own recorder.
    component: str = ""
    #: On enqueue refusals: send the same event to the job's pending pods too (R26).
    pods_too: bool = False
