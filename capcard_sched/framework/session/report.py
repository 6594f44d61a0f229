"""What a session did: data for logs, metrics, `explain` and tables. The core neither logs nor counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.model.intents import ObjectRef


class TaskOutcome(msgspec.Struct, frozen=True):
    """How the last attempt to place a task ended, when it did not end in a binding."""

    kind: Literal["refused", "unfit", "schedulable", "pipelined"]
    #: Refusal or fit text; empty for "schedulable" and "pipelined".
    message: str
    #: The node it could have had ("schedulable", "pipelined"), else "".
    node: str = ""
    refusal: Refusal | None = None
    #: The room is kept for the task beyond the session, so that its pod may say so (`status.nominatedNodeName`).
    nominated: bool = False


class HookError(msgspec.Struct, frozen=True):
    """A contained failure of a plugin or of the framework."""

    plugin: str
    hook: str
    error: str
    object: str
    #: Somebody else failed or refused (`framework.api.plugin.OutsideError`).
    outside: bool = False


class Timing(NamedTuple):
    """How long a part of a session took, by the timer the core was given."""

    kind: Literal["action", "plugin"]
    name: str
    #: For plugins, as the reference labels it; "" for actions.
    phase: Literal["", "OnSessionOpen", "OnSessionClose"]
    seconds: float


class Placed(NamedTuple):
    """A task bound in a session. Times are Unix seconds."""

    namespace: str
    name: str
    uid: str
    #: Name of the PodGroup, and its queue.
    job: str
    queue: str
    created: float


class SessionReport:
    """Decisions, refusals and figures of one session."""

    __slots__ = (
        "bound",
        "enqueued",
        "errors",
        "evicted",
        "placements",
        "refusals",
        "requeued",
        "timings",
        "uid",
        "visited_jobs",
    )

    def __init__(self, uid: str) -> None:
        self.uid = uid
        #: Tasks bound, by uid.
        self.bound: list[str] = []
        #: The same as they were decided; tasks and jobs in them live on and change.
        self.placements: list[Placement] = []
        self.timings: list[Timing] = []
        self.enqueued: list[str] = []
        self.evicted: list[str] = []
        #: Jobs that went back to phase Pending.
        self.requeued: list[str] = []
        self.visited_jobs = 0
        #: (object, refusal) in the order they were given.
        self.refusals: list[tuple[ObjectRef, Refusal]] = []
        self.errors: list[HookError] = []

    @property
    def placed(self) -> list[Placed]:
        """Tasks bound, with what latencies are counted from. To be read before the next step."""
        return [
            Placed(job.namespace, task.name, task.uid, job.name, job.queue, task.created)
            for job, tasks in ((placement.job, placement.tasks) for placement in self.placements)
            for task in tasks
        ]

    @property
    def decided(self) -> bool:
        """Whether the session changed anything that another session could build on."""
        return bool(self.bound or self.enqueued or self.evicted or self.requeued)
