"""The results of a session: data for logs, metrics, `explain` and tables. The core neither logs nor counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session_deadline import QueueCut
    from capcard_sched.model.intents import ObjectRef


class TaskOutcome(msgspec.Struct, frozen=True):
    """The result of the last attempt to place a task, when it was not bound."""

    kind: Literal["refused", "unfit", "schedulable", "pipelined"]
    #: Refusal or fit text; empty for "schedulable" and "pipelined".
    message: str
    #: The node of the attempt ("schedulable", "pipelined"), else "".
    node: str = ""
    refusal: Refusal | None = None
    #: The capacity stays nominated beyond the session; the pod shows it in `status.nominatedNodeName`.
    nominated: bool = False


class HookError(msgspec.Struct, frozen=True):
    """A contained failure of a plugin or of the framework."""

    plugin: str
    hook: str
    error: str
    object: str
    #: An external service failed or refused (`framework.api.plugin.OutsideError`).
    outside: bool = False


class Timing(NamedTuple):
    """The duration of a part of a session, by the timer of the core."""

    kind: Literal["action", "plugin"]
    name: str
    #: For plugins, with Volcano's labels; "" for actions.
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
        "cuts",
        "enqueued",
        "errors",
        "evicted",
        "evictions_tried",
        "examined_nodes",
        "placements",
        "refusals",
        "requeued",
        "timings",
        "uid",
        "unfinished",
        "visited_jobs",
        "warnings",
    )

    def __init__(self, uid: str) -> None:
        self.uid = uid
        #: Queues whose attempts the session deadline ended, and where.
        self.cuts: dict[str, QueueCut] = {}
        #: Whether the session deadline left jobs that were not tried since the last change of the cluster.
        self.unfinished = False
        #: Tasks bound, by uid.
        self.bound: list[str] = []
        #: The same placements as decided; their tasks and jobs live on and change.
        self.placements: list[Placement] = []
        self.timings: list[Timing] = []
        self.enqueued: list[str] = []
        self.evicted: list[str] = []
        #: Evictions on statements, those undone included.
        self.evictions_tried = 0
        #: Nodes whose pods were examined as victims, once per search.
        self.examined_nodes = 0
        #: Jobs that were requeued to phase Pending.
        self.requeued: list[str] = []
        self.visited_jobs = 0
        #: (object, refusal) in order.
        self.refusals: list[tuple[ObjectRef, Refusal]] = []
        self.errors: list[HookError] = []
        #: (object, message) of new warnings about the configuration of queues, for the log.
        self.warnings: list[tuple[ObjectRef, str]] = []

    @property
    def placed(self) -> list[Placed]:
        """The bound tasks with the data for latencies. Valid until the next step."""
        return [
            Placed(job.namespace, task.name, task.uid, job.name, job.queue, task.created)
            for job, tasks in ((placement.job, placement.tasks) for placement in self.placements)
            for task in tasks
        ]

    @property
    def decided(self) -> bool:
        """Whether the session changed anything that another session could build on."""
        return bool(self.bound or self.enqueued or self.evicted or self.requeued)
