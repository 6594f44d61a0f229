"""PodGroups that pods name and nobody has seen: such pods are told after a while (W-28)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job

#: A pod may be made a moment before its PodGroup: for so many seconds nobody is told off.
GRACE_SECONDS: Final = 5.0


class MissingGroups:
    """Since when each is missing, by the time of the sessions, and what its pods are told when that is too long."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: One record each as long as it is missing: a refusal that stays the same record is no news.
        self._refusals: dict[str, Refusal] = {}
        #: When the next of them has been missing for too long, Unix seconds; None when none is to come.
        self.next_wakeup: float | None = None

    def look(self, missing: Mapping[str, Job], now: float) -> Mapping[str, Refusal]:
        """Take in what is missing now, by job key; returns the refusals of those whose pods have waited too long.

        `now` in Unix seconds. A job none of whose pods is ready to be placed does not count.
        """
        self._since = {
            key: min(self._since.get(key, now), now)  # a clock that was set back makes nobody wait longer
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
    """Why the pods of a job wait whose PodGroup nobody has seen."""
    row = reasons.PODGROUP_NOT_FOUND
    text = row.render(namespace=job.namespace, name=job.name)
    return Refusal("session", "", row.code, text, event=True, pods_too=True)
