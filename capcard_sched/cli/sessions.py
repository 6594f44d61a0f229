"""The session of a reading verb over a loaded cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.cli.exit_codes import FailureWatch
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.headlines import HeadlineReader
    from capcard_sched.insight.object_view import ObjectView


def full_session(core: Core, watched: FailureWatch, now: float, *, read_only: bool) -> None:
    """One session that attempts every job, so that all figures are of one state; with `read_only` it attempts none.

    `now` in Unix seconds.
    """
    core.pause_actions(paused=read_only)
    if not read_only:
        core.keep_silent()
    core.resync()
    watched.step((), now)


def begin_headlines(
    core: Core, objects: ObjectView, watched: FailureWatch, now: float, unreadable: Sequence[str] = ()
) -> HeadlineReader:
    """Begin to diagnose waiting jobs, in a copy of the process with the session that `explain` runs."""
    from capcard_sched.insight.headlines import HeadlineReader

    if core.snapshot().conf.option("extender") is not None:
        unreadable = (*unreadable, "responses of the extender")  # a list sends it nothing

    def session(at: float) -> None:
        full_session(core, watched, at, read_only=False)

    return HeadlineReader(core, objects, session, now, unreadable=unreadable)


def first_session(
    core: Core,
    objects: ObjectView,
    watched: FailureWatch,
    now: float,
    unreadable: Sequence[str] = (),
    *,
    read_only: bool,
    headlines: bool,
) -> HeadlineReader | None:
    """The session of a loaded cluster, as `full_session`; with `headlines`, the diagnoses begin before it."""
    reader = begin_headlines(core, objects, watched, now, unreadable) if headlines else None
    full_session(core, watched, now, read_only=read_only)
    return reader
