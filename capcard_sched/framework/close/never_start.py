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
        if job is None:
            continue
        try:
            found = session.exceeded_limit(job)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            session.record_hook_error(job, error)
            continue
        if found is not None:
            message = found.text(job.queue)
            session.notice(job, row, message)
            session.set_condition(job, row.code, row.code, message)
