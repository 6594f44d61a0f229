"""Admission by the ResourceQuotas of a job's namespace (plugins reference §12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.plugin import Plugin
from capcard_sched.model.limits import format_quota_amount
from capcard_sched.model.reasons import RESOURCE_QUOTA_INSUFFICIENT
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import COMPLETED_STATUSES, PodGroupPhase, Vote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from capcard_sched.framework.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.limits import Quota
    from capcard_sched.model.task import Task

_REQUESTS, _LIMITS = "requests.", "limits."
_COUNT = "count/pods"
_NOTHING: Mapping[str, Quota] = {}


class ResourceQuota(Plugin):
    """Admits a job only when every ResourceQuota of its namespace has room for its `minResources`.

    Names are taken literally: a quota on `requests.cpu` concerns jobs that name `requests.cpu`, as those of the
    controllers do beside `cpu`. Scopes of quotas are not looked at. Pods that exist are in the quota's usage already
    and are not asked for twice; admitted jobs keep what their pods will use until they are created.
    """

    name = "resourcequota"
    wakes_on = frozenset({"quotas"})

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._quotas: Mapping[str, Mapping[str, Quota]] = {}
        #: Namespace to job key to what an admitted job still has coming to it.
        self._promised: dict[str, dict[str, Mapping[str, int]]] = {}

    def open(self, session: Session) -> None:
        """Take stock of what is promised. O(jobs that changed)."""
        changed = session.changed
        self._quotas = session.quotas
        if changed.everything:
            self._promised.clear()
            keys: Iterable[str] = session.jobs
        else:
            keys = changed.jobs
        for key in keys:
            namespace = key.partition("/")[0]
            promised = self._promised.get(namespace)
            if promised is not None:
                promised.pop(key, None)
            job = session.jobs.get(key)
            if job is not None and job.phase is PodGroupPhase.INQUEUE:
                self._promise(job)

    def _promise(self, job: Job) -> None:
        if job.min_quota is not None:
            self._promised.setdefault(job.namespace, {})[job.key] = _unmet(job)

    def _pending(self, job: Job) -> dict[str, int]:
        """The sum of what other admitted jobs of the namespace have coming to them."""
        total: dict[str, int] = {}
        for key, amounts in self._promised.get(job.namespace, {}).items():
            if key != job.key:
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + amount
        return total

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        quotas = self._quotas.get(job.namespace, _NOTHING)
        if job.min_quota is None or not quotas:
            return Vote.PERMIT
        need, pending = _unmet(job), self._pending(job)
        for quota in quotas.values():
            over = sorted(
                name
                for name, amount in need.items()
                if amount and name in quota.hard and quota.used[name] + pending.get(name, 0) + amount > quota.hard[name]
            )
            if over:
                return self._refusal(job, quota, need, pending, over)
        return Vote.PERMIT

    def _refusal(
        self, job: Job, quota: Quota, need: Mapping[str, int], pending: Mapping[str, int], over: list[str]
    ) -> Refusal:
        row, first = RESOURCE_QUOTA_INSUFFICIENT, over[0]
        message = row.render(
            requested=_listed(need, over), used=_listed(quota.used, over), limited=_listed(quota.hard, over)
        )
        total = quota.used[first] + pending.get(first, 0) + need[first]
        return Refusal(
            "job_enqueueable",
            self.name,
            row.code,
            message,
            queue=job.queue,
            figures=Figures(first, need[first], total, quota.hard[first]),
            event=True,
            type=row.type,
        )

    def enqueue_token(self, job: Job) -> tuple[object, ...]:
        quotas = self._quotas.get(job.namespace, _NOTHING)
        if job.min_quota is None or not quotas:
            return ()
        return (*quotas.values(), _unmet(job), self._pending(job))

    def job_enqueued(self, job: Job) -> None:
        """Promised when the job really is admitted, not by the vote (plugins reference §28, enqueue)."""
        self._promise(job)


def _unmet(job: Job) -> dict[str, int]:
    """What the job's minimum asks for beyond what its pods count as, under the names it uses."""
    assert job.min_quota is not None
    live = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
    if not job.tasks:
        return dict(job.min_quota)
    return {name: max(0, amount - _counted(name, job, live)) for name, amount in job.min_quota.items()}


def _counted(name: str, job: Job, live: list[Task]) -> int:
    """What existing pods are charged under a quota's name: objects ended ones too, everything else only live ones."""
    if name == _COUNT:
        return 1000 * len(job.tasks)
    if name == "pods":
        return 1000 * len(live)
    if name.startswith(_LIMITS):
        resource = name.removeprefix(_LIMITS)
        return sum(task.cls.limits.get(resource, 0) for task in live)
    resource = name.removeprefix(_REQUESTS)
    return sum(task.cls.requests.get(resource, 0) for task in live)


def _listed(amounts: Mapping[str, int], names: list[str]) -> str:
    return ", ".join(f"{name}={format_quota_amount(name, amounts[name])}" for name in names)
