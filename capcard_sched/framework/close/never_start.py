"""Jobs that can never start: event and condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import CAN_NEVER_START

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session


def report_never_starting(session: Session) -> None:
    """Event and condition of each touched job whose minimum exceeds a limit of its queue or of an ancestor."""
    row = CAN_NEVER_START
    for key in sorted(session.touched_jobs):
        job = session.jobs.get(key)
        found = None if job is None else session.guarded(job, session.exceeded_limit)
        if job is not None and found is not None:
            message = found.text(job.queue)
            session.notice(job, row, message)
            session.set_condition(job, row.code, row.code, message)
