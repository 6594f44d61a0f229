"""The results of a session: data for logs, metrics, `explain` and tables. The core neither logs nor counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session_deadline import QueueCut
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.refusal import Refusal


#: In place of the object, of a failure that concerns the whole session.
WHOLE_SESSION: Final = "session"
_NO_CUTS: Mapping[str, QueueCut] = {}


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
    """Decisions, refusals and figures of one session. Its methods alone change it."""

    def __init__(self, uid: str, cuts: Mapping[str, QueueCut] = _NO_CUTS) -> None:
        """`cuts`: the queues whose attempts the session deadline ended, and where; the deadline adds to it."""
        self.uid: Final = uid
        self.cuts: Final = cuts
        #: Whether the session deadline left jobs that were not tried since the last change of the cluster.
        self.unfinished = False
        self._placements: list[Placement] = []
        #: The same placements as decided; their tasks and jobs live on and change.
        self.placements: Final[Sequence[Placement]] = self._placements
        self._timings: list[Timing] = []
        #: Durations of plugins and actions, in order.
        self.timings: Final[Sequence[Timing]] = self._timings
        self._enqueued: list[str] = []
        #: Jobs that were admitted, by key.
        self.enqueued: Final[Sequence[str]] = self._enqueued
        self._evicted: list[str] = []
        #: Tasks evicted, by uid.
        self.evicted: Final[Sequence[str]] = self._evicted
        #: Evictions on statements, those undone included.
        self.evictions_tried = 0
        #: Nodes whose pods were examined as victims, once per search.
        self.examined_nodes = 0
        self._requeued: list[str] = []
        #: Jobs that were requeued to phase Pending, by key.
        self.requeued: Final[Sequence[str]] = self._requeued
        #: Visits of allocate to jobs.
        self.visited_jobs = 0
        self._refusals: list[tuple[ObjectRef, Refusal]] = []
        #: (object, refusal) in order.
        self.refusals: Final[Sequence[tuple[ObjectRef, Refusal]]] = self._refusals
        self._errors: list[HookError] = []
        #: Contained failures, in order.
        self.errors: Final[Sequence[HookError]] = self._errors
        self._warnings: list[tuple[ObjectRef, str]] = []
        #: (object, message) of new warnings about the configuration of queues, for the log.
        self.warnings: Final[Sequence[tuple[ObjectRef, str]]] = self._warnings

    @property
    def bound(self) -> list[str]:
        """Tasks bound, by uid."""
        return [task.uid for placement in self._placements for task in placement.tasks]

    @property
    def placed(self) -> list[Placed]:
        """The bound tasks with the data for latencies. Valid until the next step."""
        return [
            Placed(job.namespace, task.name, task.uid, job.name, job.queue, task.created)
            for job, tasks in ((placement.job, placement.tasks) for placement in self._placements)
            for task in tasks
        ]

    @property
    def decided(self) -> bool:
        """Whether the session changed anything that another session could build on."""
        return bool(self._placements or self._enqueued or self._evicted or self._requeued)

    # --- records ----------------------------------------------------------------------------------------------------

    def leave_unfinished(self) -> None:
        """Records that the session deadline left jobs that were not tried since the last change."""
        self.unfinished = True

    def add_placement(self, placement: Placement) -> None:
        self._placements.append(placement)

    def add_timing(self, timing: Timing) -> None:
        self._timings.append(timing)

    def add_enqueued(self, key: str) -> None:
        self._enqueued.append(key)

    def add_requeued(self, key: str) -> None:
        self._requeued.append(key)

    def add_evicted(self, uid: str) -> None:
        self._evicted.append(uid)

    def count_eviction(self) -> None:
        self.evictions_tried += 1

    def count_examined_node(self) -> None:
        """Counts a node whose pods are examined as victims."""
        self.examined_nodes += 1

    def count_visit(self) -> None:
        self.visited_jobs += 1

    def add_refusal(self, ref: ObjectRef, refusal: Refusal) -> None:
        self._refusals.append((ref, refusal))

    def withdraw_refusals(self, kept: int) -> list[tuple[ObjectRef, Refusal]]:
        """Drops and returns the refusals behind the first `kept` ones."""
        dropped = self._refusals[kept:]
        del self._refusals[kept:]
        return dropped

    def add_error(self, error: HookError) -> None:
        self._errors.append(error)

    def add_warnings(self, ref: ObjectRef, messages: Iterable[str]) -> None:
        self._warnings += [(ref, message) for message in messages]
