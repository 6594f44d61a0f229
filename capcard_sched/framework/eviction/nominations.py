"""Capacity freed by an eviction stays nominated to the preemptor until it binds or the nomination expires.

Each session first places nominated pods again, before any other pod, until the pod is bound, is gone, does not fit any
more, or its time is up.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.session.carry_over import Nomination
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import reasons
from capcard_sched.model.job import GRACE_SECONDS
from capcard_sched.model.node_conditions import lost_word
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.carry_over import CarryOver
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.resources import Vector

#: Seconds from now within which a terminating pod ends for others to wait for its capacity, and seconds after its grace
#: period for which it is expected to end.
_SOON_SECONDS = 3600.0
_OVERDUE_SECONDS = 30.0
#: Seconds during which a pod is no candidate after its eviction was refused.
_REFUSED_SECONDS = 60.0


def nominate(
    session: Session, promises: Sequence[Placement], victims: Sequence[Task], action: str, seconds: float
) -> None:
    """Nominates the pipelined capacity of a statement beyond this session: until `seconds` after its victims' grace."""
    gone = tuple(victim.uid for victim in victims)
    expires = session.now + max((victim.grace for victim in victims), default=GRACE_SECONDS) + seconds
    for placement in promises:
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            terms = session.state.terms
            session.carry_over.nominate(Nomination(task.uid, node.name, action, session.now, expires, gone, terms))
            hold_idle_capacity(session, node.row)


def next_wakeup(carry_over: CarryOver) -> float | None:
    """Unix seconds at which the next nomination expires, or a pod becomes a candidate again."""
    moments = [nomination.expires for nomination in carry_over.nominations.values()]
    moments += carry_over.overdue_moments
    return min([*moments, *carry_over.refused_evictions.values()], default=None)


def open_nominations(session: Session) -> None:
    """Renews nominations, and excludes capacity that is released late. Runs before any action."""
    renew_nominations(session)
    exclude_late_capacity(session)


def renew_nominations(session: Session) -> None:
    """Pipelines nominated pods again, and binds those whose capacity is free."""
    carry_over = session.carry_over
    carry_over.end_refused_evictions(session.now)
    if session.changed.everything:
        _recover(session)
    if not carry_over.nominations:
        return
    jobs: dict[str, tuple[Job, list[Task]]] = {}
    for nomination in list(carry_over.nominations.values()):
        task = session.snapshot.tasks_by_uid.get(nomination.uid)
        if task is None or task.job is None or task.uid not in task.job.pending or task.job.key not in session.jobs:
            carry_over.end_nomination(nomination.uid)
        elif session.now >= nomination.expires:
            carry_over.expire(nomination.uid)
            row = reasons.RECLAIM_EXPIRED if nomination.action == "reclaim" else reasons.PREEMPT_EXPIRED
            seconds = f"{session.now - nomination.since:g}"
            session.results.notice(task, row, row.render(node=nomination.node, seconds=seconds))
            session.results.touch(task.job.key)
        else:
            _note_refusals(session, nomination)
            jobs.setdefault(task.job.key, (task.job, []))[1].append(task)
    for job, tasks in jobs.values():
        session.results.guarded(job, partial(_renew, session, tasks))


def _recover(session: Session) -> None:
    """Restores nominations after a restart from the nominated nodes of the pods."""
    known = session.carry_over.nominations
    for job in session.with_pending_tasks():
        for task in job.pending.values():
            node = session.nodes.by_name.get(task.nominated_node) if task.nominated_node else None
            if node is None or task.uid in known:
                continue
            leaving = [other.grace for other in node.tasks.values() if other.status is TaskStatus.RELEASING]
            if leaving:
                expires = session.now + max(leaving) + GRACE_SECONDS
                nomination = Nomination(task.uid, node.name, "preempt", session.now, expires, ())
                session.carry_over.nominate(nomination)


def _note_refusals(session: Session, nomination: Nomination) -> None:
    """Excludes victims that still run, whose eviction was refused, for a while.

    Not those of an earlier term: their eviction may never have been sent.
    """
    if nomination.term != session.state.terms:
        return
    for uid in nomination.victims:
        victim = session.snapshot.tasks_by_uid.get(uid)
        if victim is not None and victim.status in (TaskStatus.RUNNING, TaskStatus.BOUND) and not victim.deleting:
            session.carry_over.refuse_eviction(uid, session.now + _REFUSED_SECONDS)


def _renew(session: Session, tasks: list[Task], job: Job) -> None:
    carry_over = session.carry_over
    if session.is_pending_phase(job) or session.job_valid(job) is not None:
        return
    statement = Statement(session)
    session.results.touch(job.key)
    try:
        for task in sorted(tasks, key=session.task_key):
            if not _renew_one(session, statement, job, task):
                carry_over.expire(task.uid)
        if session.job_ready(job) and not (job.groups is not None and job.groups.is_torn()):
            promises = statement.pipelined
            statement.commit()
        elif len(statement) and session.job_pipelined(job):
            promises = statement.pipelined
            statement.keep()
        else:
            statement.discard()
            for task in tasks:
                carry_over.expire(task.uid)
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
            carry_over.end_nomination(task.uid)


def _renew_one(session: Session, statement: Statement, job: Job, task: Task) -> bool:
    """Places one pod on its nominated node: now, or once the victims are gone. False when it does not fit."""
    nomination = session.carry_over.nominations[task.uid]
    queue = session.queues[job.queue]
    node = session.nodes.by_name.get(nomination.node)
    if node is None:
        return False
    over_quota = session.dispatch.refusal("allocatable", queue, task) is not None
    if not over_quota and session.engine.fits(session.engine.signature(queue, task), node.row, future=False):
        statement.allocate(job, [task], [node])
        return True
    with session.assumptions.plan_nominations():
        if over_quota and session.dispatch.refusal("allocatable", queue, task) is not None:
            return False
        feasible = session.engine.feasible(session.engine.signature(queue, task))
    if task.cls.claims:  # devices are part of the nomination; they may be reserved for pods that are gone already
        has_place = session.engine.fits(session.engine.signature(queue, task), node.row, future=True)
    else:
        leaving = over_quota or any(other.status is TaskStatus.RELEASING for other in node.tasks.values())
        # Releasing pods may still hold ports and the like: until they are gone only resources count.
        view = session.rows(np.array([node.row], dtype=np.intp))
        has_place = leaving and view.has_capacity(task.cls.fit_request, future=True)[0] and feasible[node.row]
    if has_place:
        statement.pipeline(job, [task], [node])
    return bool(has_place)


def exclude_late_capacity(session: Session) -> None:
    """Keeps others from waiting for terminating pods that end late, if at all; after `renew_nominations`.

    Until the session closes their capacity is not being released: preemption searches victims elsewhere. Nodes with
    nominated pods are left as they are.
    """
    session.carry_over.expect_overdue(_exclude_late(session))


def _exclude_late(session: Session) -> list[float]:
    """Excludes the capacity; returns the moments, Unix seconds, at which other terminating pods are overdue."""
    table, moments = session.nodes, list[float]()
    for row in np.flatnonzero(table.releasing.any(axis=1) & ~table.pipelined.any(axis=1)).tolist():
        node = table.nodes[row]
        if lost_word(node):  # whatever ends there ends late
            part = table.releasing[row].copy()
        else:
            part = np.zeros_like(table.releasing[row])
            for task in node.tasks.values():
                if task.status is not TaskStatus.RELEASING or not task.ends:
                    continue
                if _ends_late(task, session.now):
                    part += task.cls.request
                else:
                    moments.append(task.ends + _OVERDUE_SECONDS)
        if part.any():
            table.releasing[row] -= part
            table.touch(row)
            session.once(_late_capacity).append((row, part))
    return moments


def is_late(session: Session, task: Task) -> bool:
    """Whether others do not wait for what a terminating pod holds, except its nominees."""
    if any(task.uid in each.victims for each in session.carry_over.nominations.values()):
        return False
    return (task.node is not None and bool(lost_word(task.node))) or bool(task.ends and _ends_late(task, session.now))


def _ends_late(task: Task, now: float) -> bool:
    return not now - _OVERDUE_SECONDS < task.ends <= now + _SOON_SECONDS


def hold_idle_capacity(session: Session, row: int) -> None:
    """Counts the idle part of a row's pipelined capacity as used until the session closes, for its nominee."""
    table = session.nodes
    part = np.maximum(table.pipelined[row] - table.releasing[row], 0)
    if part.any():
        table.charged[row, :-2] += part
        table.pipelined[row] -= part
        table.touch(row)
        session.once(_held_capacity).append((row, part))


def release_idle_capacity(session: Session) -> None:
    """Undoes both at the close of the session, before pipelined tasks are undone."""
    table = session.nodes
    held = session.once(_held_capacity)
    while held:
        row, part = held.pop()
        table.charged[row, :-2] -= part
        table.pipelined[row] += part
        table.touch(row)
    _return_late_capacity(session)


def _return_late_capacity(session: Session) -> None:
    table, late = session.nodes, session.once(_late_capacity)
    while late:
        row, part = late.pop()
        table.releasing[row] += part
        table.touch(row)


@contextmanager
def as_actions_saw(session: Session) -> Iterator[None]:
    """The nodes of a session that is closed as its actions saw them.

    With the capacity of nominated pods, and without that which is released late.
    """
    held: list[tuple[int, Vector]] = []
    table = session.nodes
    for nomination in session.carry_over.nominations.values():
        task, node = session.snapshot.tasks_by_uid.get(nomination.uid), session.nodes.by_name.get(nomination.node)
        if task is not None and node is not None and task.node is None:
            held.append((node.row, task.cls.request))
    for row, part in held:
        table.pipelined[row] += part
        table.touch(row)
    try:
        _exclude_late(session)
        yield
    finally:
        _return_late_capacity(session)
        for row, part in held:
            table.pipelined[row] -= part
            table.touch(row)


def _held_capacity(_: Session) -> list[tuple[int, Vector]]:
    """Idle capacity reserved in a session, as (row, int64 [resources])."""
    return []


def _late_capacity(_: Session) -> list[tuple[int, Vector]]:
    """Capacity of pods that end late, as (row, int64 [resources])."""
    return []
