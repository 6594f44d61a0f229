"""Jobs that can never start: condition, and one event for each cause on the PodGroup, its Job and its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.session.results import reference
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.reasons import CAN_NEVER_START
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.model.workload import is_of_vcjob, workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

#: Labels of the pods of a Job of Kubernetes with its uid, the newer first.
_JOB_UID: Final = ("batch.kubernetes.io/controller-uid", "controller-uid")


class NeverStarting:
    """The jobs that were reported. One per core."""

    def __init__(self) -> None:
        #: Key of the job to the last events of its pods: the text, and the uid of the pod.
        self._reported: ReportOnce[str, tuple[str, str]] = ReportOnce()

    def clear(self) -> None:
        """Drops all events: those of an earlier leader term may be lost."""
        self._reported.keep(())

    def report(self, session: Session) -> list[Job]:
        """Events and condition of each job whose minimum exceeds a limit of its queue, of an ancestor or of the nodes.

        Touched jobs are checked, those with another limit, and every waiting job once the nodes changed. Returns those
        with the condition that are not touched. The events repeat only with another text; a pod that is created later
        has its own.
        """
        row, jobs, places = CAN_NEVER_START, session.jobs, session.carry_over.node_places
        keys, others = session.results.touched_jobs | places.moved, []
        if places.is_changed:
            keys |= {key for key, job in jobs.items() if job.pending and not job.is_ready()}
        for key in sorted(keys):
            job = jobs.get(key)
            if job is None:
                self._reported.forget(key)
                continue
            found = None if job.is_ready() else session.results.guarded(job, session.exceeded_limit)
            known = [condition for condition in job.conditions if condition.type == row.code]
            if found is not None:
                message = found.text(job.queue)
                is_known = any((one.status, one.message) == ("True", message) for one in known)
                self._emit(session, job, message, is_known=is_known and not session.changed.everything)
                session.results.set_condition(job, row.code, row.code, message)
            else:
                self._reported.forget(key)
            if key not in session.results.touched_jobs and (found is not None or known):
                others.append(job)
        return others

    def _emit(self, session: Session, job: Job, message: str, *, is_known: bool) -> None:
        """`is_known`: the PodGroup has the condition with this text. O(pods of the job)."""
        if not is_known:
            for ref in (None if job.implicit else reference(job), workload_reference(job)):
                if ref is not None:
                    session.results.notice_about(ref, CAN_NEVER_START, message)
        for _, uid in self._reported.update(job.key, [(message, uid) for uid in job.pending]):
            session.results.notice(job.pending[uid], CAN_NEVER_START, message)


def workload_reference(job: Job) -> ObjectRef | None:
    """The Job of a job, of Volcano or of Kubernetes; None for another workload, and where its uid is not known."""
    kind, _, name = workload_of(job).partition("/")
    if kind != "job":
        return None
    if is_of_vcjob(job):
        uid = job.name.removeprefix(f"{name}-")
        return ObjectRef("Job", job.namespace, name, uid) if uid != job.name else None
    labels = next(iter(job.tasks.values())).labels
    found = next((labels[key] for key in _JOB_UID if labels.get(key)), "")
    return ObjectRef("Job.batch/v1", job.namespace, name, found) if found else None
