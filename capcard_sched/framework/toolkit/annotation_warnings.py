"""Annotations of jobs and pods that a plugin cannot read: who is told of them, and that once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import INVALID_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task


def annotation_warnings(key: str, detail: str, accepted: str) -> str:
    """The message: which annotation, what is wrong with it and what is done instead, what it may be."""
    return INVALID_ANNOTATION.render(key=key, detail=detail, accepted=accepted)


class AnnotationWarnings:
    """What each job, and each job's pods, were told by one plugin. A problem that went away may be told again."""

    def __init__(self) -> None:
        #: Key of a job to the messages told.
        self._told: dict[str, set[str]] = {}

    def keep(self, session: Session) -> None:
        """Forget jobs that are gone."""
        jobs = session.jobs
        if len(self._told) and any(key not in jobs for key in self._told):
            self._told = {key: told for key, told in self._told.items() if key in jobs}

    def report_job(self, session: Session, job: Job, messages: Iterable[str]) -> None:
        """An event on the PodGroup for each of the messages, all that are wrong with it now, that it was not told."""
        for message in self._news(job, set(messages)):
            session.notice(job, INVALID_ANNOTATION, message)

    def report_pods(self, session: Session, problem: Callable[[Task], str]) -> None:
        """Look at the pods of all jobs that changed; `problem` gives a pod's message, "" for none. O(their pods).

        The pods of a job mostly come from one template: of those with the same problem the first by name is told.
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
                session.notice(first[message], INVALID_ANNOTATION, message)

    def _news(self, job: Job, messages: set[str]) -> list[str]:
        news = sorted(messages - self._told.get(job.key, set()))
        if messages:
            self._told[job.key] = messages
        else:
            self._told.pop(job.key, None)
        return news
