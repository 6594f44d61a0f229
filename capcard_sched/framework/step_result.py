"""The result of one step of the core, and what can be read between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.backlog.failed_attempts import FailedAttempts
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.session.report import SessionReport
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.intents import Intent
    from capcard_sched.state.cluster import ClusterState


class StepResult(NamedTuple):
    """The result of one step."""

    intents: list[Intent]
    report: SessionReport
    #: True when no session ran.
    idle: bool
    #: Unix seconds of the next session without a change of the cluster; None for none.
    next_wakeup: float | None = None
    #: True when that session only retries admitted jobs without progress (`inqueueTimeoutSeconds`).
    only_retries: bool = False


class CoreSnapshot(NamedTuple):
    """What can be read between two steps. Valid until the next step or `reconfigure`; readers change nothing."""

    state: ClusterState
    conf: Conf
    #: The plugins and their hooks.
    dispatch: Dispatch
    #: The waiting jobs that sessions skip.
    failed_attempts: FailedAttempts
    #: The last session with its refusals and outcomes, None before the first.
    session: Session | None
    #: Queue to the codes of the event reasons of its present warnings.
    queue_warnings: Mapping[str, tuple[str, ...]]
