"""resourcequota: admission by the ResourceQuotas of a job's namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.quota.queue_sums import awaits_pods
from capcard_sched.model.limits import format_quota_amount
from capcard_sched.model.reasons import RESOURCE_QUOTA_INSUFFICIENT
from capcard_sched.model.refusal import Figures, Limiter, Refusal
from capcard_sched.model.resources import PODS
from capcard_sched.model.status import BOUND_STATUSES, COMPLETED_STATUSES, PodGroupPhase, Vote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.limits import Quota

_REQUESTS, _LIMITS = "requests.", "limits."
_COUNT = "count/pods"
_NOTHING: Mapping[str, Quota] = {}
_NO_AMOUNTS: Mapping[str, int] = {}


class ResourceQuota(Plugin):
    """Admits a job only when its `minResources` fit every ResourceQuota of its namespace.

    Names match literally: a quota on `requests.cpu` limits jobs that name `requests.cpu`, as those of the controllers
    do beside `cpu`. Scopes of quotas are ignored. The usage of a quota includes existing pods: pods without a node of
    jobs that are not admitted are subtracted, so that each job counts once, in job order; admitted jobs reserve the
    usage of their pods until these are created.
    """

    name = "resourcequota"
    reads = Reads.QUOTAS

    def setup(self) -> None:
        self._quotas: Mapping[str, Mapping[str, Quota]] = {}
        #: Reservations of admitted jobs.
        self._reserved = _Amounts()
        #: Usage of the pods of jobs that are not admitted.
        self._waiting = _Amounts()

    def open(self, session: Session) -> None:
        """Update the reservations. O(changed jobs)."""
        changed = session.changed
        self._quotas = session.snapshot.quotas
        if changed.everything:
            self._reserved, self._waiting = _Amounts(), _Amounts()
            keys: Iterable[str] = session.jobs
        else:
            keys = changed.jobs
        for key in keys:
            self._reserved.put(key, {})
            self._waiting.put(key, {})
            job = session.jobs.get(key)
            if job is None or job.min_quota is None:
                continue
            if job.phase is PodGroupPhase.INQUEUE and awaits_pods(job):
                self._reserved.put(key, _unmet(job))
            elif session.is_pending_phase(job) and job.tasks:
                self._waiting.put(key, _waiting(job))

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        quotas = self._quotas.get(job.namespace, _NOTHING)
        if job.min_quota is None or not quotas:
            return Vote.PERMIT
        need, pending = _need(job), self._reserved.of_others(job)
        waiting = self._waiting.sums(job.namespace)
        for quota in quotas.values():
            used = {name: max(0, amount - waiting.get(name, 0)) for name, amount in quota.used.items()}
            over = sorted(
                name
                for name, amount in need.items()
                if amount and name in quota.hard and used[name] + pending.get(name, 0) + amount > quota.hard[name]
            )
            if over:
                return self._refusal(job, quota, need, used, pending, over)
        return Vote.PERMIT

    def _refusal(
        self,
        job: Job,
        quota: Quota,
        need: Mapping[str, int],
        used: Mapping[str, int],
        pending: Mapping[str, int],
        over: list[str],
    ) -> Refusal:
        row = RESOURCE_QUOTA_INSUFFICIENT
        message = row.render(requested=_listed(need, over), used=_listed(used, over), limited=_listed(quota.hard, over))
        first, *further = (
            _figures(name, need[name], used[name] + reserved + need[name], quota.hard[name], reserved)
            for name in over
            for reserved in (pending.get(name, 0),)
        )
        return Refusal(
            "job_enqueueable",
            self.name,
            row.code,
            message,
            queue=job.queue,
            figures=first,
            alternatives=tuple(further),
            limiter=Limiter("ResourceQuota", quota.name),
            event=True,
            type=row.type,
        )

    def admission_version(self, job: Job) -> tuple[object, ...]:
        quotas = self._quotas.get(job.namespace, _NOTHING)
        if job.min_quota is None or not quotas:
            return ()
        return (*quotas.values(), _need(job), self._reserved.of_others(job), dict(self._waiting.sums(job.namespace)))

    def job_enqueued(self, job: Job) -> None:
        """Reserve when the job is admitted; the vote of another plugin may still reject it."""
        if job.min_quota is not None:
            self._reserved.put(job.key, _unmet(job))
            self._waiting.put(job.key, {})


class _Amounts:
    """Amounts by job, summed by namespace."""

    def __init__(self) -> None:
        self._of: dict[str, Mapping[str, int]] = {}
        self._sums: dict[str, dict[str, int]] = {}

    def put(self, key: str, amounts: Mapping[str, int]) -> None:
        namespace = key.partition("/")[0]
        sums, former = self._sums.setdefault(namespace, {}), self._of.pop(key, _NO_AMOUNTS)
        if amounts:
            self._of[key] = amounts
        for name in {**former, **amounts}:
            sums[name] = sums.get(name, 0) - former.get(name, 0) + amounts.get(name, 0)
            if not sums[name]:
                del sums[name]
        if not sums:
            del self._sums[namespace]

    def sums(self, namespace: str) -> Mapping[str, int]:
        return self._sums.get(namespace, _NO_AMOUNTS)

    def of_others(self, job: Job) -> dict[str, int]:
        own = self._of.get(job.key, _NO_AMOUNTS)
        return {name: amount - own.get(name, 0) for name, amount in self.sums(job.namespace).items()}


def _counts(job: Job) -> dict[str, int]:
    """The quota usage of the job's pods, by the names of its `minResources`."""
    assert job.min_quota is not None
    live = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
    return {name: _counted(name, len(job.tasks), live) for name in job.min_quota}


def _held(job: Job) -> Mapping[str, int]:
    """The part of `_counts` of the pods on nodes: they exist whether the job is admitted or not."""
    assert job.min_quota is not None
    held = [task for task in job.tasks.values() if task.status in BOUND_STATUSES] if job.bound else []
    return {name: _counted(name, len(held), held) for name in job.min_quota} if held else _NO_AMOUNTS


def _waiting(job: Job) -> dict[str, int]:
    """The quota usage of the pods of a job that is not admitted, without those on nodes."""
    held = _held(job)
    return {name: amount - held.get(name, 0) for name, amount in _counts(job).items()}


def _need(job: Job) -> dict[str, int]:
    """The quota usage of the job once admitted, the larger of its minimum and its pods, beyond its pods on nodes."""
    assert job.min_quota is not None
    counts, held = _counts(job) if job.tasks else _NO_AMOUNTS, _held(job)
    return {name: max(amount, counts.get(name, 0)) - held.get(name, 0) for name, amount in job.min_quota.items()}


def _unmet(job: Job) -> dict[str, int]:
    """The part of the job's minimum beyond the usage of its pods."""
    assert job.min_quota is not None
    counts = _counts(job) if job.tasks else _NO_AMOUNTS
    return {name: max(0, amount - counts.get(name, 0)) for name, amount in job.min_quota.items()}


def _counted(name: str, existing: int, live: list[Task]) -> int:
    """The usage of existing pods under one quota name: `count/pods` includes finished pods, other names do not."""
    if name == _COUNT:
        return 1000 * existing
    if name == PODS:
        return 1000 * len(live)
    if name.startswith(_LIMITS):
        resource = name.removeprefix(_LIMITS)
        return sum(task.cls.limits.get(resource, 0) for task in live)
    resource = name.removeprefix(_REQUESTS)
    return sum(task.cls.requests.get(resource, 0) for task in live)


def _figures(name: str, *amounts: int) -> Figures:
    """Requested, total, limit and reserved in base units: quotas count pods in thousandths."""
    return Figures(name, *(amount // 1000 if name == PODS else amount for amount in amounts))


def _listed(amounts: Mapping[str, int], names: list[str]) -> str:
    return ", ".join(f"{name}={format_quota_amount(name, amounts[name])}" for name in names)
