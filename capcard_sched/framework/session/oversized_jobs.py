"""Marks the jobs that no set of nodes holds: they reserve nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.autoscaled_groups import AutoscaledGroup
    from capcard_sched.model.job import Job
    from capcard_sched.model.refusal import ExceededLimit


def mark_oversized(session: Session) -> None:
    """Updates `Job.node_limit`; plugins correct their reservations. Call it after the hook `open`.

    O(pods of the changed jobs); of all jobs, and O(nodes), where a node changed.
    """
    places, jobs, changed = session.carry_over.node_places, session.jobs, session.changed
    places.begin_session(session.snapshot)
    places.moved.clear()
    for key in changed.jobs - jobs.keys():
        places.forget(key)
    limit_of = partial(_limit_of, session, session.carry_over.node_groups)
    touched = changed.jobs | places.jobs_of(changed)
    for key in sorted(jobs if places.is_changed or changed.everything else touched & jobs.keys()):
        job = jobs[key]
        if job.node_limit is None and places.holds(job):
            continue
        limit, before = session.results.guarded(job, limit_of), job.node_limit
        job.node_limit = limit
        if limit != before:
            places.moved.add(key)
        if (limit is None) is not (before is None):
            session.dispatch.notify("reservation_changed", job)


def _limit_of(session: Session, groups: tuple[AutoscaledGroup, ...], job: Job) -> ExceededLimit | None:
    carry_over = session.carry_over
    if job.is_ready():
        carry_over.node_places.forget(job.key)
        return None
    if not groups and carry_over.expects_nodes:
        return None
    return carry_over.node_places.shortage(session.snapshot, session.dispatch, job, groups)
