"""Skipped jobs by what their failure reads of the books of their queue.

A failure ends with another allocation version of its queue. One for want of nodes stands, too, while the quotas admit
more pods than there is free capacity for: equal jobs have that checked once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


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
    """The groups of skipped jobs, by queue."""

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
