"""What a session did: data for logs, metrics, `explain` and tables. The core neither logs nor counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from capcard_sched.model.intents import ObjectRef


class Outcome(msgspec.Struct, frozen=True):
    """How the last attempt to place a task ended, when it did not end in a binding."""

    kind: Literal["refused", "unfit", "schedulable", "pipelined"]
    #: Refusal or fit text; empty for "schedulable" and "pipelined".
    message: str
    #: The node it could have had ("schedulable", "pipelined"), else "".
    node: str = ""
    refusal: Refusal | None = None


class HookError(msgspec.Struct, frozen=True):
    """A contained failure of a plugin or of the framework."""

    plugin: str
    hook: str
    error: str
    object: str


class SessionReport:
    """Decisions, refusals and figures of one session."""

    __slots__ = ("bound", "enqueued", "errors", "evicted", "refusals", "sent_back", "uid", "visited_jobs")

    def __init__(self, uid: str) -> None:
        self.uid = uid
        #: Tasks bound, by uid.
        self.bound: list[str] = []
        self.enqueued: list[str] = []
        self.evicted: list[str] = []
        #: Jobs that went back to phase Pending.
        self.sent_back: list[str] = []
        self.visited_jobs = 0
        #: (object, refusal) in the order they were given.
        self.refusals: list[tuple[ObjectRef, Refusal]] = []
        self.errors: list[HookError] = []

    @property
    def decided(self) -> bool:
        """Whether the session changed anything that another session could build on."""
        return bool(self.bound or self.enqueued or self.evicted or self.sent_back)
