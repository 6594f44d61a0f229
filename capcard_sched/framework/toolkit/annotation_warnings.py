"""Reports annotations that a plugin cannot parse: one InvalidAnnotation event per job and problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import INVALID_ANNOTATION
from capcard_sched.model.report_once import ReportOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.reasons import Reason


def invalid_annotation(key: str, detail: str, accepted: str) -> str:
    """The message: the annotation, what is wrong with it and its effect, the accepted form."""
    return INVALID_ANNOTATION.render(key=key, detail=detail, accepted=accepted)


class AnnotationWarnings:
    """Emits the events of one plugin and deduplicates them. A problem that disappears and returns is emitted again."""

    def __init__(self, reason: Reason = INVALID_ANNOTATION) -> None:
        """`reason`: of the events."""
        self._reason = reason
        #: Messages by job key.
        self._emitted: ReportOnce[str, str] = ReportOnce()

    def prune(self, session: Session) -> None:
        """Forget jobs that no longer exist."""
        self._emitted.keep(session.jobs)

    def report_job(self, session: Session, job: Job, messages: Iterable[str]) -> None:
        """Emit on the PodGroup those of the job's current `messages` that were not emitted yet."""
        for message in self._emitted.update(job.key, sorted(set(messages))):
            session.results.notice(job, self._reason, message)

    def report_pods(self, session: Session, problem: Callable[[Task], str]) -> None:
        """Check the pods of all jobs that changed; `problem` returns a pod's message, "" for none. O(their pods).

        Most pods of a job share a template: of the pods with the same message only the first by name gets the event.
        """
        self.prune(session)
        for key in session.jobs if session.changed.everything else sorted(session.changed.jobs):
            job = session.jobs.get(key)
            if job is None:
                continue
            first: dict[str, Task] = {}
            for task in job.tasks.values():
                message = problem(task)
                if message and (message not in first or task.name < first[message].name):
                    first[message] = task
            for message in self._emitted.update(job.key, sorted(first)):
                session.results.notice(first[message], self._reason, message)
