"""fairshare: orders the jobs of a queue by the recent usage of their namespaces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from capcard_sched.framework.api.arguments import listed_names
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.quota.queue_sums import unplaced_minimum
from capcard_sched.framework.session.carry_over import UsageRecord
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.reasons import FAIR_SHARE_USED
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import ALLOCATED_STATUSES, Vote
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue

_QUEUES, _RESOURCE = "fairshare.targetQueues", "fairshare.resourceKey"
#: Key of the ConfigMap with the state, and the labels of the ConfigMap.
STATE_KEY: Final = "state.json"
LABELS: Final = {"app": "volcano-scheduler", "component": "fairshare"}
#: Usage below it is forgotten.
_LEAST: Final = 0.01
#: Namespaces whose usage differs by at most this much are equal.
_EQUAL: Final = 1.0
#: Seconds between sessions above which a pod is charged from its creation on at the earliest.
_LONG_GAP: Final = 600.0

#: As `UsageRecord.usage`.
Usage: TypeAlias = dict[str, dict[str, float]]


class FairshareArguments(msgspec.Struct, frozen=True):
    """Which queues, by which resource, and how long usage counts."""

    #: Comma-separated queues whose jobs are ordered; empty: all.
    queues: str = msgspec.field(name=_QUEUES, default="")
    #: The resource whose usage counts.
    resource: str = msgspec.field(name=_RESOURCE, default="nvidia.com/gpu")
    #: The same for one of the listed queues.
    resources: dict[str, str] = msgspec.field(name=f"{_RESOURCE}.<queue>", default_factory=dict)
    #: Minutes after which usage counts half.
    half_life: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="fairshare.halfLifeMinutes", default=240.0)
    #: Whether a namespace with its fair share of a queue gets no further job admitted that requests the resource.
    gate: bool = msgspec.field(name="fairshare.enableEnqueueGate", default=False)
    #: Whether the usage is kept in a ConfigMap, which a restarted scheduler reads.
    persists: bool = msgspec.field(name="fairshare.persistState", default=False)
    #: Namespace of the ConfigMap.
    state_namespace: str = msgspec.field(name="fairshare.stateNamespace", default="volcano-system")
    #: Name of the ConfigMap.
    state_name: str = msgspec.field(name="fairshare.stateConfigMap", default="fairshare-usage-state")
    #: Least seconds between two writes of the ConfigMap.
    flush_interval: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(
        name="fairshare.flushIntervalSeconds", default=30.0
    )


class Fairshare(Plugin):
    """Orders the jobs of a queue by the usage of their namespaces: the least first, then the least that runs.

    Usage is an amount of a resource times seconds; it halves in `halfLifeMinutes`. The plugin orders jobs that earlier
    plugins leave equal: list it behind priority, and before drf.
    """

    name = "fairshare"
    Arguments = FairshareArguments
    arguments: FairshareArguments

    def setup(self) -> None:
        self._targets = frozenset(listed_names(self.arguments.queues))
        self._session: Session
        #: Rank of a namespace by usage, by queue.
        self._ranks: dict[str, dict[str, int]] = {}
        #: Allocated base units by queue and namespace, live.
        self._running: dict[str, Counter[str]] = {}
        #: Fair shares in base units by queue and namespace; empty without the gate.
        self._shares: dict[str, dict[str, int]] = {}

    @property
    def config_maps(self) -> frozenset[tuple[str, str]]:
        given = self.arguments
        return frozenset({(given.state_namespace, given.state_name)}) if given.persists else frozenset()

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> FairshareArguments:
        """Reads `fairshare.resourceKey.<queue>` of the listed queues too; others are ignored with a warning."""
        prefix = f"{_RESOURCE}."
        given = [key for key in raw if key.startswith(prefix)]
        arguments = problems.decode(FairshareArguments, raw, handled=given)
        names, found = listed_names(arguments.queues), {}
        for key in given:
            queue = key.removeprefix(prefix)
            if queue not in names:
                problems.warning(key, f"the queue is not listed in {_QUEUES}; its resource is ignored")
            elif resource := problems.read(raw, key, str, ""):
                found[queue] = resource
        return msgspec.structs.replace(arguments, resources=found)

    def open(self, session: Session) -> None:
        """Decay the usage, and charge what runs since the last session. O(jobs)."""
        self._session = session
        known = session.carry_over.usage_record
        if known is None or known.term != session.state.terms:
            known = self._restored(session, known)
        elapsed = max(0.0, session.now - known.at)
        factor = 2.0 ** (-elapsed / (60.0 * self.arguments.half_life))
        usage: Usage = {}
        self._running, self._ranks, self._shares = {}, {}, {}
        for name, queue in session.queues.items():
            if not self._counts(name):
                continue
            own = {one: amount * factor for one, amount in known.usage.get(name, {}).items()}
            own = {one: amount for one, amount in own.items() if amount >= _LEAST}
            running = self._running[name] = self._running_of(queue)
            charges = {one: amount * elapsed for one, amount in running.items()}
            for namespace, charge in (self._since_creation(queue, elapsed) if elapsed > _LONG_GAP else charges).items():
                if charge:
                    own[namespace] = own.get(namespace, 0.0) + charge
            if own:
                usage[name] = own
            self._ranks[name] = _ranked(own)
            if self.arguments.gate:
                self._shares[name] = self._shares_of(queue)
        session.carry_over.keep_usage(UsageRecord(session.now, usage, session.state.terms, known.written))

    def close(self, session: Session) -> None:
        """Write the state, once the interval has passed."""
        known, given = session.carry_over.usage_record, self.arguments
        if known is None or not given.persists or session.now - known.written < given.flush_interval:
            return
        document = {"lastCycle": format_timestamp(known.at), "queues": known.usage}
        content = {STATE_KEY: msgspec.json.encode(document, order="deterministic").decode()}
        session.results.write_config_map(given.state_namespace, given.state_name, content, LABELS)
        session.carry_over.keep_usage(known._replace(written=session.now))

    def job_order(self, job: Job) -> tuple[int, int, int]:
        ranks = self._ranks.get(job.queue)
        if ranks is None:
            return 0, 0, 0
        # A namespace without usage has the rank of the lowest: 0.
        return 1, ranks.get(job.namespace, 0), self._running[job.queue][job.namespace]

    def on_allocate(self, placement: Placement) -> None:
        self._move(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._move(placement, -1)

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        shares = self._shares.get(job.queue)
        resource = self._resource(job.queue)
        if shares is None or not self._asks(job, resource):
            return Vote.ABSTAIN
        running, share = self._running[job.queue][job.namespace], shares.get(job.namespace, 0)
        if running < share:
            return Vote.ABSTAIN
        message = FAIR_SHARE_USED.render(
            namespace=job.namespace,
            queue=job.queue,
            running=format_amount(resource, running),
            share=format_amount(resource, share),
            resource=resource,
        )
        return Refusal("job_enqueueable", self.name, FAIR_SHARE_USED.code, message, queue=job.queue, event=True)

    def admission_version(self, job: Job) -> tuple[object, ...]:
        shares = self._shares.get(job.queue)
        if shares is None:
            return ()
        running = self._running[job.queue][job.namespace]
        return running, shares.get(job.namespace, 0), self._asks(job, self._resource(job.queue))

    def _restored(self, session: Session, known: UsageRecord | None) -> UsageRecord:
        """The record at the begin of a term: the newer one of memory and the ConfigMap."""
        given, term = self.arguments, session.state.terms
        found = UsageRecord(session.now, {}, term, session.now) if known is None else known._replace(term=term)
        if not given.persists:
            return found
        data = session.snapshot.config_maps.get(f"{given.state_namespace}/{given.state_name}") or {}
        at, usage = _decoded(data.get(STATE_KEY, ""))
        return found if known is not None and known.at >= at else found._replace(at=at or found.at, usage=usage)

    def _counts(self, queue: str) -> bool:
        return not self._targets or queue in self._targets

    def _resource(self, queue: str) -> str:
        return self.arguments.resources.get(queue, self.arguments.resource)

    def _running_of(self, queue: Queue) -> Counter[str]:
        found: Counter[str] = Counter()
        column = self._session.resources.find(self._resource(queue.name))
        for job in queue.jobs.values():
            if column is not None and column < len(job.allocated):
                found[job.namespace] += job.allocated.item(column)
        return found

    def _since_creation(self, queue: Queue, elapsed: float) -> dict[str, float]:
        """Base units x seconds of the allocated pods, each at most since its creation."""
        found: dict[str, float] = {}
        resource, now = self._resource(queue.name), self._session.now
        for job in queue.jobs.values():
            for task in job.tasks.values():
                amount = task.cls.requests.get(resource, 0) if task.status in ALLOCATED_STATUSES else 0
                if amount:
                    seconds = max(0.0, min(elapsed, now - task.created))
                    found[job.namespace] = found.get(job.namespace, 0.0) + amount * seconds
        return found

    def _move(self, placement: Placement, sign: int) -> None:
        job = placement.job
        running = self._running.get(job.queue)
        if running is not None:
            amount = placement.cls.requests.get(self._resource(job.queue), 0)
            running[job.namespace] += sign * amount * len(placement.tasks)

    def _asks(self, job: Job, resource: str) -> bool:
        return self._demand(job, resource) > 0

    def _demand(self, job: Job, resource: str) -> int:
        """The amount that a job still needs: of its pending pods, or of the minimum that is not placed."""
        pending = sum(task.cls.requests.get(resource, 0) for task in job.pending.values())
        return max(pending, unplaced_minimum(job, self._session.resources).get(resource, 0))

    def _shares_of(self, queue: Queue) -> dict[str, int]:
        """Max-min shares of the queue's amount over the demand of its namespaces."""
        resource = self._resource(queue.name)
        demand = Counter(self._running[queue.name])
        for job in queue.jobs.values():
            demand[job.namespace] += self._demand(job, resource)
        column = self._session.resources.find(resource)
        total = (queue.capability or {}).get(resource)
        if total is None:
            amounts = self._session.resources.fit(self._session.snapshot.total)
            total = amounts.item(column) if column is not None else 0
        return max_min(total, {one: amount for one, amount in demand.items() if amount > 0})


def max_min(total: int, demand: Mapping[str, int]) -> dict[str, int]:
    """The max-min fair shares of a total: no share exceeds its demand, and the rest is divided evenly."""
    shares: dict[str, int] = {}
    left = total
    for rank, (name, wanted) in enumerate(sorted(demand.items(), key=lambda row: (row[1], row[0]))):
        shares[name] = min(wanted, max(0, left) // (len(demand) - rank))
        left -= shares[name]
    return shares


def _ranked(usage: Mapping[str, float]) -> dict[str, int]:
    """Ranks from 0 on, for no usage; namespaces that differ by at most `_EQUAL` from the lowest of a rank share it."""
    ranks, rank, lowest = {}, 0, 0.0
    for name, amount in sorted(usage.items(), key=lambda row: (row[1], row[0])):
        if amount - lowest > _EQUAL:
            rank, lowest = rank + 1, amount
        ranks[name] = rank
    return ranks


def _decoded(text: str) -> tuple[float, Usage]:
    """Time and usage of a state document; 0.0 and none for an absent or malformed one."""
    try:
        document: Any = msgspec.json.decode(text) if text else {}
        usage = msgspec.convert(document.get("queues") or {}, Usage)
        return parse_time(document.get("lastCycle")), _finite(usage)
    except (msgspec.DecodeError, msgspec.ValidationError, AttributeError, TypeError, ValueError):
        return 0.0, {}


def _finite(usage: Usage) -> Usage:
    return {queue: {one: amount for one, amount in own.items() if amount > 0} for queue, own in usage.items()}
