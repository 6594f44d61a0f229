"""Missing PodGroups: the pods that name one get a refusal after a grace period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job

#: Seconds before a missing PodGroup is reported: a pod may precede its PodGroup.
GRACE_SECONDS: Final = 5.0


class MissingGroups:
    """Missing PodGroups with the session time of their first sight, and the refusals of the overdue ones."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: One record per missing PodGroup: a refusal that stays the same record is not reported again.
        self._refusals: dict[str, Refusal] = {}
        #: Unix seconds at which the next grace period ends; None for none.
        self.next_wakeup: float | None = None

    def update(self, missing: Mapping[str, Job], now: float) -> Mapping[str, Refusal]:
        """Updates the missing PodGroups, by job key; returns the refusals of the overdue ones.

        `now` in Unix seconds. A job without schedulable pods does not count.
        """
        self._since = {
            key: min(self._since.get(key, now), now)  # a clock that was set back does not extend the grace period
            for key, job in missing.items()
            if job.pending
        }
        ends = {key: since + GRACE_SECONDS for key, since in self._since.items()}
        self.next_wakeup = min((end for end in ends.values() if end > now), default=None)
        self._refusals = {
            key: self._refusals.get(key) or refusal_of(missing[key]) for key, end in sorted(ends.items()) if end <= now
        }
        return self._refusals


def refusal_of(job: Job) -> Refusal:
    """The refusal of a job whose PodGroup does not exist."""
    row = reasons.PODGROUP_NOT_FOUND
    text = row.render(namespace=job.namespace, name=job.name)
    return Refusal("session", "", row.code, text, event=True, pods_too=True)
