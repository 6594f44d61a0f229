"""ProvisioningRequests by name and by the PodGroup that owns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model.deltas import CapacityRequestRefused
from capcard_sched.model.provisioning import (
    PROVISIONING_REQUEST,
    CapacityRequest,
    ProvisioningRequestObject,
    capacity_request,
    newest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from capcard_sched.model.deltas import ObjectGone
    from capcard_sched.model.job import Job
    from capcard_sched.state.changes import Changes

#: Refusals of jobs that are gone, beyond twice the number of the others, at most.
_SPARE = 1024


class ProvisioningTable:
    """Applies ProvisioningRequest deltas. A request is one of a job only if the uid of its owner is the PodGroup's."""

    def __init__(self, changes: Changes, jobs: Container[str]) -> None:
        """`jobs`: keys of the jobs that exist."""
        self._changes, self._jobs = changes, jobs
        #: By `namespace/name`.
        self.by_name: dict[str, CapacityRequest] = {}
        self._of_job: dict[str, dict[str, CapacityRequest]] = {}
        #: The last creation that was refused, by key of the job.
        self.refused: dict[str, CapacityRequestRefused] = {}
        self._most_refused = _SPARE
        #: The refusal that shows that no request can be created; None for none in this leader term.
        self.unavailable: CapacityRequestRefused | None = None
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            ProvisioningRequestObject: self._put,
            PROVISIONING_REQUEST: lambda gone: self._drop(self._key_of(gone)),
            CapacityRequestRefused: self._refuse,
        }

    def of(self, job: Job) -> tuple[CapacityRequest, ...]:
        """The requests that the PodGroup of a job owns."""
        return tuple(one for one in self._of_job.get(job.key, {}).values() if job.uid and one.owner == job.uid)

    def owners(self) -> Iterable[str]:
        """Keys of the jobs that some request names, whether it is theirs or not."""
        return self._of_job

    def in_backoff(self, job: Job, now: float) -> bool:
        """Whether the last request of a job failed, and its backoff has not ended. `now`: Unix seconds."""
        last = newest(self.of(job))
        return last is not None and last.state == "failed" and now < last.backoff_end(now)

    def failed(self, jobs: Mapping[str, Job], now: float) -> set[str]:
        """Keys of the jobs of which `in_backoff` is true. O(jobs with requests)."""
        return {key for key in self._of_job if key in jobs and self.in_backoff(jobs[key], now)}

    def end_term(self) -> None:
        """Forget what the API server refused to an earlier leader."""
        self.refused.clear()
        self.unavailable = None

    @staticmethod
    def _key_of(gone: ObjectGone) -> str:
        return f"{gone.namespace}/{gone.name}"

    def _put(self, obj: ProvisioningRequestObject) -> None:
        found = capacity_request(obj)
        key = f"{found.namespace}/{found.name}"
        if self.by_name.get(key) == found:
            return
        self._drop(key)
        self.by_name[key] = found
        if found.job:
            self._of_job.setdefault(found.job, {})[found.name] = found
            self._changes.jobs.add(found.job)

    def _drop(self, key: str) -> None:
        found = self.by_name.pop(key, None)
        if found is None or not found.job:
            return
        there = self._of_job[found.job]
        del there[found.name]
        if not there:
            del self._of_job[found.job]
        self._changes.jobs.add(found.job)

    def _refuse(self, delta: CapacityRequestRefused) -> None:
        key = f"{delta.namespace}/{delta.group}"
        if len(self.refused) >= self._most_refused:
            self.refused = {job: one for job, one in self.refused.items() if job in self._jobs}
            self._most_refused = 2 * len(self.refused) + _SPARE
        self.refused[key] = delta
        if delta.is_unavailable and self.unavailable is None:
            self.unavailable = delta
        self._changes.jobs.add(key)
