"""Jobs refused at admission that sessions skip, in groups whose votes have the same inputs.

Votes on unchanged jobs of one queue and namespace change together: one job of a group, the sample, has its admission
version compared for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.model.job import Job

    #: The inputs of the votes on a job, compared by equality; None when they are not known.
    AdmissionVersion = tuple[object, ...]


class _RefusedGroup(NamedTuple):
    sample: Job
    version: AdmissionVersion
    keys: set[str]


class RefusedAdmissions:
    """The groups of skipped jobs, by queue and namespace."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], list[_RefusedGroup]] = {}
        self._of_job: dict[str, tuple[tuple[str, str], _RefusedGroup]] = {}
        #: The groups that were found current since the last check.
        self._current: dict[tuple[str, str], _RefusedGroup] = {}

    @property
    def queues(self) -> set[str]:
        """The queues of all skipped jobs. O(queues and namespaces)."""
        return {queue for queue, _ in self._groups}

    def add(self, job: Job, version: AdmissionVersion, version_of: Callable[[Job], AdmissionVersion | None]) -> None:
        """Adds a job whose `version` is current to the last group of its queue and namespace, if that is current too.

        `version_of`: the current version of a job.
        """
        place = job.queue, job.namespace
        group = self._current.get(place)
        if group is None:
            groups = self._groups.setdefault(place, [])
            if not groups or version_of(groups[-1].sample) != groups[-1].version:
                groups.append(_RefusedGroup(job, version, set()))
            group = self._current[place] = groups[-1]
        group.keys.add(job.key)
        self._of_job[job.key] = place, group

    def discard(self, key: str) -> None:
        """Removes a job. A group that loses its sample is outdated."""
        found = self._of_job.pop(key, None)
        if found is None:
            return
        place, group = found
        group.keys.discard(key)
        if not group.keys:
            self._current.pop(place, None)
            groups = self._groups[place]
            groups[:] = [other for other in groups if other is not group]
            if not groups:
                del self._groups[place]

    def outdated(self, version_of: Callable[[Job], AdmissionVersion | None]) -> Iterator[str]:
        """The keys of the jobs whose votes may differ now, sorted by group."""
        self._current.clear()
        for place in sorted(self._groups):
            for group in self._groups.get(place, ()):
                if group.sample.key not in group.keys or version_of(group.sample) != group.version:
                    yield from sorted(group.keys)
