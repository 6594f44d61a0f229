"""Skipped jobs in groups whose failures read the same: the books of their queue, or the votes on their admission.

A failure ends with another allocation version of its queue. One for want of nodes remains valid while the quotas admit
more pods than there is free capacity for: equal jobs have that checked once for all of them. Votes on unchanged jobs of
one queue and namespace change together: one job of a group, the sample, has its admission version compared for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from capcard_sched.model.job import Job

    #: The inputs of the votes on a job, compared by equality; None when they are not known.
    AdmissionVersion = tuple[object, ...]


class AllocationVersion(NamedTuple):
    """What the attempts of unchanged jobs read of their queue, compared by equality."""

    queue: str
    #: Its rule on the jobs that it accepts.
    rule: Hashable
    #: The books of all plugins.
    books: Hashable


class CapacityShortage(NamedTuple):
    """A failure for want of nodes alone, of a job with pods of one class."""

    cls: Hashable
    #: Pods that the job needs, of which the quotas admitted all, > 0.
    needed: int


class _AlikeJobs:
    """Jobs whose failures read the same."""

    __slots__ = ("keys", "version")

    def __init__(self, version: AllocationVersion) -> None:
        self.version = version
        self.keys: dict[str, None] = {}


class QueueBooks:
    """The groups of skipped jobs, by queue.

    B5 at 200 nodes and 400 gangs, one pod that ends: 7.5 ms; 11.5 where each change of a version ends its failures.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[Hashable, _AlikeJobs]] = {}
        self._of_job: dict[str, tuple[str, Hashable]] = {}

    def add(self, key: str, version: AllocationVersion, shortage: CapacityShortage | None) -> None:
        """Adds a job whose attempt failed at a version, for want of nodes alone or for another reason."""
        place: Hashable = version if shortage is None else shortage
        self._queues.setdefault(version.queue, {}).setdefault(place, _AlikeJobs(version)).keys[key] = None
        self._of_job[key] = version.queue, place

    def is_short_of_nodes(self, key: str, version: Hashable) -> bool:
        """Whether the quotas at a version admit more pods of a job than there is free capacity for."""
        queue, place = self._of_job.get(key, ("", None))
        return isinstance(place, CapacityShortage) and self._queues[queue][place].version == version

    def discard(self, key: str) -> None:
        """Removes a job."""
        queue, place = self._of_job.pop(key)
        groups = self._queues[queue]
        del groups[place].keys[key]
        if not groups[place].keys:
            del groups[place]
            if not groups:
                del self._queues[queue]

    def outdated(
        self,
        version_of: Callable[[str], AllocationVersion | None],
        admits: Callable[[str, CapacityShortage], bool],
    ) -> Iterator[str]:
        """The keys of the jobs whose attempt may have another result now. May raise HookFailed.

        `version_of`: the current version of a queue; `admits`: whether the quotas still admit the pods of a job (key).
        """
        for queue in sorted(self._queues):
            version = version_of(queue)
            for place, group in list(self._queues[queue].items()):
                if version == group.version:
                    continue
                may_stand = version is not None and version.rule == group.version.rule
                if may_stand and isinstance(place, CapacityShortage) and admits(next(iter(group.keys)), place):
                    assert version is not None
                    group.version = version
                else:
                    yield from list(group.keys)


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
