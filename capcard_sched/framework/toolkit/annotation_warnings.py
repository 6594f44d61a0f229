"""Warnings about annotations of jobs and pods that a plugin cannot parse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import INVALID_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.reasons import Reason


def annotation_warnings(key: str, detail: str, accepted: str) -> str:
    """The message: the annotation, its problem and the value used instead, the accepted form."""
    return INVALID_ANNOTATION.render(key=key, detail=detail, accepted=accepted)


class AnnotationWarnings:
    """The warnings of one plugin per job, each reported once. A problem that disappeared is reported again."""

    def __init__(self, reason: Reason = INVALID_ANNOTATION) -> None:
        self._reason = reason
        #: Key of a job to its reported messages.
        self._reported: dict[str, set[str]] = {}

    def keep(self, session: Session) -> None:
        """Drops jobs that are gone."""
        jobs = session.jobs
        if len(self._reported) and any(key not in jobs for key in self._reported):
            self._reported = {key: reported for key, reported in self._reported.items() if key in jobs}

    def report_job(self, session: Session, job: Job, messages: Iterable[str]) -> None:
        """Emits one event on the PodGroup for each new message; `messages`: all its current problems."""
        for message in self._news(job, set(messages)):
            session.notice(job, self._reason, message)

    def report_pods(self, session: Session, problem: Callable[[Task], str]) -> None:
        """Checks the pods of all changed jobs; `problem` returns a pod's message, "" for none. O(their pods).

        The pods of a job mostly share a template: of those with the same problem the first by name gets the event.
        """
        self.keep(session)
        for key in session.jobs if session.changed.everything else sorted(session.changed.jobs):
            job = session.jobs.get(key)
            if job is None:
                continue
            first: dict[str, Task] = {}
            for task in job.tasks.values():
                message = problem(task)
                if message and (message not in first or task.name < first[message].name):
                    first[message] = task
            for message in self._news(job, set(first)):
                session.notice(first[message], self._reason, message)

    def _news(self, job: Job, messages: set[str]) -> list[str]:
        news = sorted(messages - self._reported.get(job.key, set()))
        if messages:
            self._reported[job.key] = messages
        else:
            self._reported.pop(job.key, None)
        return news
