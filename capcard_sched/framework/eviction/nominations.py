"""Room that was taken back, kept for whoever it was taken for (W-34, tidal reference §7.3).

A pod that was promised room by an eviction is promised it again at the beginning of each session, before anybody else
is placed, until it is bound, is gone, does not fit any more, or its time is up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.session.carry_over import Nomination
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import reasons
from capcard_sched.model.job import GRACE_SECONDS
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.carry_over import CarryOver
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task

#: An eviction that was refused is not thought of again for so long, seconds.
_REFUSED_SECONDS = 60.0


def reserve(
    session: Session, promises: Sequence[Placement], victims: Sequence[Task], action: str, seconds: float
) -> None:
    """Keep what a statement promised beyond this session: until `seconds` after its victims should be gone."""
    gone = tuple(victim.uid for victim in victims)
    expires = session.now + max((victim.grace for victim in victims), default=GRACE_SECONDS) + seconds
    for placement in promises:
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            session.carry_over.nominations[task.uid] = Nomination(
                task.uid, node.name, action, session.now, expires, gone, session.state.terms
            )
            hold_idle_capacity(session, node.row)


def next_wakeup(memory: CarryOver) -> float | None:
    """When the next promise runs out, or pods whose eviction was refused may be thought of again, Unix seconds."""
    moments = [nomination.expires for nomination in memory.nominations.values()]
    return min([*moments, *memory.refused_evictions.values()], default=None)


def renew_nominations(session: Session) -> None:
    """Promise reserved room anew: pods are bound where it is free by now. To be called before any action."""
    memory = session.carry_over
    memory.refused_evictions = {uid: until for uid, until in memory.refused_evictions.items() if until > session.now}
    if session.changed.everything:
        _recover(session)
    if not memory.nominations:
        return
    jobs: dict[str, tuple[Job, list[Task]]] = {}
    for nomination in list(memory.nominations.values()):
        task = session.tasks_by_uid.get(nomination.uid)
        if task is None or task.job is None or task.uid not in task.job.pending or task.job.key not in session.jobs:
            del memory.nominations[nomination.uid]
        elif session.now >= nomination.expires:
            memory.expire(nomination.uid)
            row = reasons.RECLAIM_EXPIRED if nomination.action == "reclaim" else reasons.PREEMPT_EXPIRED
            seconds = f"{session.now - nomination.since:g}"
            session.notice(task, row, row.render(node=nomination.node, seconds=seconds))
            session.touched_jobs.add(task.job.key)
        else:
            _note_refusals(session, nomination)
            jobs.setdefault(task.job.key, (task.job, []))[1].append(task)
    for job, tasks in jobs.values():
        try:
            _renew(session, job, tasks)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            session.record_hook_error(job, error)


def _recover(session: Session) -> None:
    """After a start nothing is remembered but the nominations that pods carry."""
    known = session.carry_over.nominations
    for job in session.with_pending_tasks():
        for task in job.pending.values():
            node = session.nodes.by_name.get(task.nominated_node) if task.nominated_node else None
            if node is None or task.uid in known:
                continue
            leaving = [other.grace for other in node.tasks.values() if other.status is TaskStatus.RELEASING]
            if leaving:
                expires = session.now + max(leaving) + GRACE_SECONDS
                known[task.uid] = Nomination(task.uid, node.name, "preempt", session.now, expires, ())


def _note_refusals(session: Session, nomination: Nomination) -> None:
    """Victims that run on were refused: they are left alone for a while.

    Not those of an earlier term: nobody may ever have asked for their eviction (W-33).
    """
    if nomination.term != session.state.terms:
        return
    for uid in nomination.victims:
        victim = session.tasks_by_uid.get(uid)
        if victim is not None and victim.status in (TaskStatus.RUNNING, TaskStatus.BOUND) and not victim.deleting:
            session.carry_over.refused_evictions.setdefault(uid, session.now + _REFUSED_SECONDS)


def _renew(session: Session, job: Job, tasks: list[Task]) -> None:
    memory = session.carry_over
    if session.is_pending_phase(job) or session.job_valid(job) is not None:
        return
    statement = Statement(session)
    session.touched_jobs.add(job.key)
    try:
        for task in sorted(tasks, key=session.task_key):
            if not _renew_one(session, statement, job, task):
                memory.expire(task.uid)
        if session.job_ready(job):
            promises = statement.pipelined
            statement.commit()
        elif len(statement) and session.job_pipelined(job):
            promises = statement.pipelined
            statement.keep()
        else:
            statement.discard()
            for task in tasks:
                memory.expire(task.uid)
            return
    except Exception:
        statement.discard()
        raise
    waiting = {task.uid for placement in promises for task in placement.tasks}
    for placement in promises:
        for node in placement.nodes:
            hold_idle_capacity(session, node.row)
    for task in tasks:
        if task.uid not in waiting and task.status is TaskStatus.BINDING:
            memory.nominations.pop(task.uid, None)


def _renew_one(session: Session, statement: Statement, job: Job, task: Task) -> bool:
    """Place one pod where it was promised room: now, or once the victims are gone. False when it does not fit."""
    nomination = session.carry_over.nominations[task.uid]
    queue = session.queues[job.queue]
    node = session.nodes.by_name.get(nomination.node)
    if node is None or session.dispatch.refusal("allocatable", queue, task) is not None:
        return False
    signature = session.engine.signature(queue, task)
    if session.engine.fits(signature, node.row, future=False):
        statement.allocate(job, [task], [node])
        return True
    leaving = any(other.status is TaskStatus.RELEASING for other in node.tasks.values())
    # What leaves may still hold ports and the like: while it does, only its room is counted.
    if leaving and _has_capacity(session, task, node.row) and bool(session.engine.feasible(signature)[node.row]):
        statement.pipeline(job, [task], [node])
        return True
    return False


def _has_capacity(session: Session, task: Task, row: int) -> bool:
    table, request = session.nodes, task.cls.request
    future = table.allocatable[row] - table.used[row] + table.releasing[row] - table.pipelined[row]
    return bool(((future >= request) | (request == 0)).all())


def hold_idle_capacity(session: Session, row: int) -> None:
    """Count the idle part of what is promised on a row as used, until the session closes: nobody else may have it."""
    table = session.nodes
    part = np.maximum(table.pipelined[row] - table.releasing[row], 0)
    if part.any():
        table.charged[row, :-2] += part
        table.pipelined[row] -= part
        table.touch(row)
        session.held_capacity.append((row, part))


def release_idle_capacity(session: Session) -> None:
    """Undo `hold_idle_capacity`: before promises are undone at the close of the session."""
    table = session.nodes
    for row, part in reversed(session.held_capacity):
        table.charged[row, :-2] -= part
        table.pipelined[row] += part
        table.touch(row)
    session.held_capacity.clear()
