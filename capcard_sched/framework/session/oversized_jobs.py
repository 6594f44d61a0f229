"""Marks the jobs that no set of nodes holds: they reserve nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job


def mark_oversized(session: Session) -> None:
    """Updates `Job.is_oversized`; plugins correct their reservations. Call it after the hook `open`.

    O(pods of the changed jobs); of all jobs, and O(nodes), where a node changed.
    """
    places, jobs, changed = session.carry_over.node_places, session.jobs, session.changed
    places.begin_session(session.snapshot)
    for key in sorted(jobs if places.is_changed or changed.everything else changed.jobs & jobs.keys()):
        job = jobs[key]
        is_oversized = bool(session.results.guarded(job, lambda job: _is_oversized(session, job)))
        if job.is_oversized != is_oversized:
            job.is_oversized = is_oversized
            session.dispatch.notify("reservation_changed", job)


def _is_oversized(session: Session, job: Job) -> bool:
    if session.carry_over.expects_nodes or not job.pending or job.is_ready():
        return False
    return session.carry_over.node_places.shortage(session.snapshot, session.dispatch, job) is not None
