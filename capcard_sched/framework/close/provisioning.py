"""ProvisioningRequests of gangs that have quota and lack nodes: which are created, kept, replaced and deleted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.model import reasons
from capcard_sched.model.intents import AnnotatePod, Intent, RequestCapacity, RequestedPods, WithdrawRequest
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.provisioning import (
    CONSUMED_CLASS,
    CONSUMED_REQUEST,
    DEMAND_DIGEST,
    FAILURES,
    MOST_PENDING_REQUESTS,
    MOST_POD_SETS,
    CapacityDemand,
    CapacityRequest,
    demand_of,
    newest,
    next_step,
    request_name,
)
from capcard_sched.model.quoting import plural
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

_NONE: frozenset[str] = frozenset()
_UNSCHEDULABLE = reasons.POD_UNSCHEDULABLE.code
_ORDER = reasons.POD_ORDER_PENDING.code
_PROVISIONING = reasons.POD_PROVISIONING_PENDING.code


class _Demand(NamedTuple):
    #: The pods that it was computed of, by uid.
    pods: tuple[str, ...]
    demand: CapacityDemand


class ProvisioningRequests:
    """The requests of all gangs, and the gangs whose pods an autoscaler must not count one by one. One per core.

    What it decides follows from the objects, so that a new leader continues: only requests that the watch has not
    delivered yet are kept here.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drops what was sent: writes of an earlier leader term may be lost."""
        #: Key of the job to its last request, until the watch delivers it.
        self._sent: dict[str, CapacityRequest] = {}
        #: Key of the job to the highest number of its requests.
        self._numbers: dict[str, int] = {}
        self._demands: dict[str, _Demand] = {}
        #: Uids of requests whose deletion was sent, and which the watch still has.
        self._withdrawn: set[str] = set()
        #: Uid of a pod to the request that its annotations name.
        self._annotated: dict[str, str] = {}
        #: Keys of the jobs whose pods wait for a request.
        self._covered: set[str] = set()
        #: Key of the job to the Unix seconds of the end of its wait for another request.
        self._waits: dict[str, float] = {}
        self._intents: list[Intent] = []
        #: By namespace, pending requests.
        self._pending = Counter[str]()
        #: `namespace/name` of the requests in `_sent`.
        self._names: set[str] = set()

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds of the next request without a change of the cluster; None for none."""
        return min(self._waits.values(), default=None)

    def prune(self, alive: Container[str]) -> None:
        """Drops pods that are gone. `alive`: uids."""
        self._annotated = {uid: name for uid, name in self._annotated.items() if uid in alive}

    def published(self, key: str, reason: str) -> str:
        """The reason of a pod of a job: `ProvisioningPending` for one that lacks nodes and has a request.

        While the job waits for its next request it has no turn.
        """
        is_pending = reason == _UNSCHEDULABLE or (reason == _ORDER and key in self._waits)
        return _PROVISIONING if is_pending and key in self._covered else reason

    def drain(self) -> list[Intent]:
        """The intents since the last call."""
        found, self._intents = self._intents, []
        return found

    def released(self, session: Session) -> AbstractSet[str]:
        """Keys of the jobs that claim no quota for the present: their last request failed."""
        if not session.carry_over.provisioning_class:
            return _NONE
        jobs = session.state.jobs
        refused = {
            key for key, sent in self._sent.items()
            if key in jobs and sent.state == "failed" and session.now < sent.backoff_end(session.now)
        }  # fmt: skip
        return session.state.provisioning.failed(jobs, session.now) | refused

    def update(self, session: Session, minimums: Mapping[str, tuple[str, ...]]) -> AbstractSet[str]:
        """Decides on the requests of all gangs; returns the keys of the jobs whose pods get another reason.

        `minimums`: the pods with quota that complete a job, as `QuotaClaims` finds them.
        """
        if not session.carry_over.provisioning_class or session.results.report.errors:
            return _NONE
        state, before = session.state, frozenset(self._covered)
        if (lost := state.provisioning.unavailable) is not None:
            self._covered.clear()
            self._waits.clear()
            job = state.jobs.get(f"{lost.namespace}/{lost.group}")
            if before and job is not None:
                row = reasons.PROVISIONING_UNAVAILABLE
                session.results.notice(job, row, row.render(detail=lost.message))
            return before
        self._waits.clear()
        self._withdrawn &= {one.uid for one in state.provisioning.by_name.values()}
        self._numbers = {key: number for key, number in self._numbers.items() if key in state.jobs}
        self._count(state.provisioning.by_name)
        keys = {*minimums, *state.provisioning.owners(), *self._sent, *before}
        for key in sorted(keys):
            job = state.jobs.get(key)
            if job is None or not job.uid:  # the garbage collector deletes its requests
                self._forget(key)
                self._covered.discard(key)
            elif self._decide(session, job, minimums.get(key, ())):
                self._covered.add(key)
            else:
                self._covered.discard(key)
        return before ^ self._covered

    def _count(self, known: Mapping[str, CapacityRequest]) -> None:
        """Counts the requests of each namespace that are pending: those of its gangs, delivered or not."""
        found = {f"{each.namespace}/{each.name}": each for each in self._sent.values()}
        self._names = {*found}
        found |= known
        self._pending = Counter(each.namespace for each in found.values() if each.owner and each.state == "pending")

    def _decide(self, session: Session, job: Job, minimum: tuple[str, ...]) -> bool:
        """The next step of one job; returns whether its pods wait for a request."""
        own = session.state.provisioning.of(job)
        self._numbers[job.key] = max([self._numbers.get(job.key, 0), *(each.number for each in own)])
        own = tuple(each for each in own if each.uid not in self._withdrawn)
        last = self._last(session, job, own)
        demand = self._demand(session, job, minimum)
        if demand is None:
            end = last.backoff_end(session.now) if last is not None and last.state == "failed" else 0.0
            if last is not None and session.now < end and job.pending:
                self._wait(session, job, last, end)
                return not job.is_ready()
            if job.counts[TaskStatus.BINDING]:  # it is not certain yet that the gang has its nodes
                return False
            self._withdraw(job, own)
            self._forget(job.key)
            return False
        step = next_step(last, demand.digest, session.now)
        if step.action == "new":
            if not self._may_request(session, job):
                return True
            last = self._request(session, job, demand, own, step.failures)
        elif step.action == "wait" and last is not None:
            self._wait(session, job, last, step.until)
        if last is not None and step.action != "wait":
            self._annotate(session, job, minimum, last.name)
        return True

    def _may_request(self, session: Session, job: Job) -> bool:
        """Whether the namespace of a job has fewer pending requests than it may have."""
        if self._pending.get(job.namespace, 0) < MOST_PENDING_REQUESTS:
            self._pending[job.namespace] += 1
            return True
        row = reasons.TOO_MANY_REQUESTS
        session.results.notice(job, row, row.render(namespace=job.namespace, most=MOST_PENDING_REQUESTS))
        return False

    def _wait(self, session: Session, job: Job, last: CapacityRequest, until: float) -> None:
        self._waits[job.key] = until
        if last.state == "failed":
            row, seconds = reasons.PROVISIONING_FAILED, f"{last.backoff:g}"
            text = row.render(name=last.name, detail=last.message or "without a message", seconds=seconds)
            session.results.notice(job, row, text)

    def _last(self, session: Session, job: Job, own: tuple[CapacityRequest, ...]) -> CapacityRequest | None:
        """The last request of a job: the newest that exists, or the one that was sent after it."""
        last, sent = newest(own), self._sent.get(job.key)
        if sent is None:
            return last
        if last is not None and last.number >= sent.number:
            del self._sent[job.key]
            return last
        refused = session.state.provisioning.refused.get(job.key)
        if refused is not None and refused.name == sent.name and sent.state != "failed":
            sent = msgspec.structs.replace(sent, state="failed", since=session.now, message=refused.message)
            self._sent[job.key] = sent
        return sent

    def _demand(self, session: Session, job: Job, minimum: tuple[str, ...]) -> CapacityDemand | None:
        """What the minimum of a gang lacks; None for a job that is no gang, or needs no request."""
        if not minimum or job.implicit or job.starting_pods <= 1:
            return None
        known = self._demands.get(job.key)
        if known is None or known.pods is not minimum:
            if all(session.results.outcome_of(uid) is None for uid in minimum):
                return None  # not tried yet
            tasks = [job.tasks[uid] for uid in minimum if uid in job.tasks]
            known = _Demand(minimum, demand_of(tasks, session.carry_over.provisioning_class))
            self._demands[job.key] = known
        count = len(known.demand.sets)
        if count > MOST_POD_SETS:
            row = reasons.TOO_MANY_POD_SETS
            session.results.notice(job, row, row.render(count=count, most=MOST_POD_SETS))
            return None
        return known.demand

    def _request(
        self, session: Session, job: Job, demand: CapacityDemand, own: tuple[CapacityRequest, ...], failures: int
    ) -> CapacityRequest:
        """Creates a request in place of the earlier ones. A name that another object has is left out."""
        known, group = session.state.provisioning.by_name, kube_name(job.name) or job.name
        number = self._numbers.get(job.key, 0) + 1
        while (key := f"{job.namespace}/{request_name(group, number)}") in known or key in self._names:
            number += 1
        self._names.add(key)
        name, kind = request_name(group, number), session.carry_over.provisioning_class
        self._numbers[job.key] = number
        self._withdraw(job, own)
        sets = tuple(RequestedPods(each.pod, each.size) for each in demand.sets)
        notes = {DEMAND_DIGEST: demand.digest, FAILURES: str(failures)}
        self._intents.append(RequestCapacity(job.namespace, name, job.name, job.uid, kind, sets, notes))
        row, pods = reasons.PROVISIONING_REQUESTED, plural(sum(each.count for each in sets), "pod")
        session.results.notice(job, row, row.render(name=name, pods=pods))
        sent = CapacityRequest(
            job.namespace, name, job=job.key, owner=job.uid, digest=demand.digest, number=number, failures=failures,
            pod_sets=len(sets), since=session.now, created=session.now,
        )  # fmt: skip
        self._sent[job.key] = sent
        return sent

    def _annotate(self, session: Session, job: Job, minimum: tuple[str, ...], name: str) -> None:
        notes: dict[str, str | None] = {
            CONSUMED_REQUEST: name,
            CONSUMED_CLASS: session.carry_over.provisioning_class,
        }
        for uid in minimum:
            if self._annotated.get(uid) != name and (task := job.tasks.get(uid)) is not None:
                self._annotated[uid] = name
                self._intents.append(AnnotatePod(task.namespace, task.name, uid, notes))

    def _withdraw(self, job: Job, own: tuple[CapacityRequest, ...]) -> None:
        sent = self._sent.get(job.key)
        unseen = () if sent is None or any(one.name == sent.name for one in own) else (sent,)
        for each in (*own, *unseen):
            self._withdrawn.update(filter(None, [each.uid]))
            self._intents.append(WithdrawRequest(each.namespace, each.name, each.uid, each.owner, each.pod_sets))

    def _forget(self, key: str) -> None:
        self._sent.pop(key, None)
        self._demands.pop(key, None)
