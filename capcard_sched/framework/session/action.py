"""The base class of all actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from capcard_sched.framework.api.plugin import NoArguments, Reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.carry_over import CarryOver
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue


class Action:
    """One algorithm over a session: enqueue, allocate, … An action holds no policy; it calls the session's hooks.

    An instance lives as long as its scheduler-conf, so that arguments always start from their defaults.
    """

    #: The name in `actions:` of the scheduler-conf.
    name: ClassVar[str] = ""
    #: Arguments as a frozen struct, read from `configurations:`; as `Plugin.Arguments`.
    Arguments: ClassVar[type[msgspec.Struct]] = NoArguments

    #: As `Plugin.reads`.
    reads: ClassVar[Reads] = Reads(0)

    def __init__(self, arguments: Any = None) -> None:
        self.arguments = self.Arguments() if arguments is None else arguments
        #: Unix seconds at which the action has something to do without a change of the cluster; None for never.
        self.next_wakeup: float | None = None

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        """Decodes the action's arguments; see `Plugin.parse_arguments`."""
        return problems.decode(cls.Arguments, raw)

    def complete(self, session: Session, queue: Queue, job: Job) -> None:
        """Places the pending pods that a half gang needs, before any action runs. By default nothing."""

    def progress(self) -> Any:
        """What `resume` gives to the same action of a copy of the core; None for an action that keeps nothing."""
        return None

    def resume(self, progress: Any) -> None:
        """Continues with the progress of the same action of another core."""

    def execute(self, session: Session) -> None:
        """Runs once in `session`. An exception ends this action only."""
        raise NotImplementedError(f"action {self.name!r} does not define execute()")


class PlacingArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the actions that place pods and evict none."""

    #: Accepted for compatibility: refusals are cached per class here, there is nothing to switch off.
    predicate_error_cache: bool = msgspec.field(name="predicateErrorCacheEnable", default=True)


class SessionProgress(NamedTuple):
    """What sessions keep besides the state: nominations, refused evictions and the order of attempts."""

    memory: CarryOver
    #: `Action.progress` by name of the action.
    actions: Mapping[str, Any]

    def resume(self, actions: Iterable[Action]) -> CarryOver:
        """Gives the actions of another core their progress. Returns a copy of the rest."""
        for action in actions:
            if (known := self.actions.get(action.name)) is not None:
                action.resume(known)
        return self.memory.successor()
