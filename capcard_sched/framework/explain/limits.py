"""Limits of a queue and its ancestors with the workloads that use them; quotas and usage of all queues."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.eviction.nominations import as_actions_saw
from capcard_sched.framework.explain.capacity import holders
from capcard_sched.framework.explain.rejections import rejection_of
from capcard_sched.framework.explain.stranded import StrandedReader
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import CardQuota, CardSyntaxError, is_card_quota, parse_card_quota
from capcard_sched.model.device_quota import device_quota_key
from capcard_sched.model.diagnosis import LimitUse, PodRefusal, QuotaCheck
from capcard_sched.model.quantity import in_units
from capcard_sched.model.queue import ROOT, ancestors, subtree
from capcard_sched.model.resources import CPU, MEMORY, VGPU_RESOURCES
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Sample
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.explain.capacity import CapacityReader
    from capcard_sched.framework.explain.rejections import PodRejection
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.cards import QuotaGroup
    from capcard_sched.model.diagnosis import HolderUse
    from capcard_sched.model.explanation import JobCards
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Figures, Refusal

#: The plugin that enforces card quotas.
_CARD_PLUGIN: Final = "capacity-card"
#: Prefix of their metrics per queue and card.
_CARD_FIGURES: Final = "queue_card_"
#: Metrics of quota plugins with the charged amount of a resource.
_CHARGED: Final = {"queue_allocated_milli_cpu": CPU, "queue_allocated_memory_bytes": MEMORY}
#: Metrics with the largest amount that a queue can hold.
_REAL: Final = {"queue_real_capacity_milli_cpu": CPU, "queue_real_capacity_memory_bytes": MEMORY}


def share_totals(snapshot: CoreSnapshot) -> dict[str, float]:
    """Registered amounts of shared devices by resource, in whole units."""
    session, columns = snapshot.session, snapshot.state.columns
    if session is None:
        return {}
    total = columns.fit(session.snapshot.total)
    return {name: total.item(columns.column(name)) / 1000 for name in sorted(snapshot.state.shares)}


def quota_samples(snapshot: CoreSnapshot, *names: str) -> Iterator[Sample]:
    """The metrics of the plugins with quotas, of these names alone if any; others publish some about every job."""
    quota_plugins = {plugin.name for plugin in snapshot.dispatch.plugins if plugin.implements("allocatable")}
    quota_plugins &= set(names) or quota_plugins
    for name, call in snapshot.dispatch.entries("metrics"):
        if name in quota_plugins:
            yield from call()


def card_figures(samples: Iterable[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """Queue to card to figures (capacity, allocated, ...), from the metrics of the quota plugin."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for one in samples:
        if one.name.startswith(_CARD_FIGURES) and "queue_name" in one.labels:
            figures = found.setdefault(one.labels["queue_name"], {}).setdefault(one.labels["card"], {})
            figures[one.name.removeprefix(_CARD_FIGURES)] = one.value
    return found


class LimitReader:
    """Limits and usage of one state."""

    def __init__(self, snapshot: CoreSnapshot, capacity: CapacityReader) -> None:
        self._snapshot = snapshot
        #: The capacity of the same state.
        self.capacity = capacity
        #: The stranded cards of the same state.
        self.stranded = StrandedReader(snapshot)
        self._queues = snapshot.state.queues
        self._shares = share_totals(snapshot)
        #: Shares of devices that the capability of a queue limits, with and without a plugin that registers them.
        self._limited = self._shares.keys() or VGPU_RESOURCES
        self._jobs: dict[str, JobCards | None] = {}
        #: Job key to what queues reserve for it, besides cards.
        self._reserved: dict[str, Mapping[str, int]] = {}
        self._names: dict[str, str] = {}
        #: By queue and resource or field: a list of jobs has many diagnoses of one state.
        self._usages: dict[tuple[str, str], tuple[float, tuple[HolderUse, ...]]] = {}
        self._amounts: dict[tuple[str, str], dict[str, list[tuple[str, str, float]]]] = {}
        self._charged: dict[tuple[str, str], float] = {}
        #: Queue and resource to what the queue can hold beside the guarantees of others and within its ancestors.
        self._real: dict[tuple[str, str], float] = {}
        #: By signature of a pod the filters that reject the nodes, in the last session of this state.
        self._rejections: dict[PodSignature, PodRejection] = {}
        for sample in quota_samples(snapshot, _CARD_PLUGIN):
            if sample.name in _CHARGED:
                self._charged[sample.labels["queue_name"], _CHARGED[sample.name]] = sample.value
        for sample in quota_samples(snapshot, "capacity"):
            if sample.name in _REAL:
                resource = _REAL[sample.name]
                self._real[sample.labels["queue_name"], resource] = in_units(resource, int(sample.value))

    def rejection_of(self, session: Session, task: Task) -> PodRejection:
        """The rejection of a pod, shared by pods with its signature. In a queue of the session."""
        assert task.job is not None
        signature = session.engine.signature(session.queues[task.job.queue], task)
        if signature not in self._rejections:
            with as_actions_saw(session):
                self._rejections[signature] = rejection_of(session, session.engine, task)
        return self._rejections[signature]

    def cards_of(self, job: Job) -> JobCards | None:
        """The amounts of a job in the accounts of its queue; None without card quotas."""
        if job.key not in self._jobs:
            self._jobs[job.key] = self._snapshot.dispatch.first("job_cards", job)
        return self._jobs[job.key]

    def _name_of(self, job: Job) -> str:
        if job.key not in self._names:
            self._names[job.key] = display_name(job)
        return self._names[job.key]

    def chain(self, name: str) -> list[Queue]:
        """The queue and its ancestors, nearest first; a missing or repeated parent ends the list."""
        queue = self._queues.get(name)
        return [] if queue is None else [queue, *ancestors(queue, self._queues)]

    def quota(self, queue: Queue | None) -> CardQuota:
        """The card quota in thousandths; none of a malformed annotation, and none that no plugin enforces."""
        is_enforced = _CARD_PLUGIN in self._snapshot.conf.quota_plugins.names
        try:
            return (
                CardQuota() if queue is None or not is_enforced else parse_card_quota(queue.annotations.get(CARD_QUOTA))
            )
        except CardSyntaxError:
            return CardQuota()

    def quota_problem(self, queue: Queue | None) -> str:
        """Why the card quota is malformed, "" for a valid one."""
        try:
            parse_card_quota(None if queue is None else queue.annotations.get(CARD_QUOTA))
        except CardSyntaxError as error:
            return str(error)
        return ""

    def limits(self, name: str, requested: Mapping[str, tuple[int, int]]) -> tuple[LimitUse, ...]:
        """The limits of a queue, then those of its ancestors.

        `requested`: card, `A|B` or resource to (amount of one pod, amount of all pending pods), in base units.
        """
        rows: list[LimitUse] = []
        wanted = {card for key in requested for card in key.split("|")}
        chain, is_enforced = self.chain(name), _CARD_PLUGIN in self._snapshot.conf.quota_plugins.names
        for depth, queue in enumerate(chain):
            quota = self.quota(queue)
            shares = {name: limit for name, limit in (queue.capability or {}).items() if name in self._limited}
            has_cards = is_enforced and (not depth or is_card_quota(queue.annotations.get(CARD_QUOTA)))
            groups = {group.key: group for group in quota.groups}
            limited = {**quota, **shares, **{group.key: group.limit for group in quota.groups}}
            if not depth or self._snapshot.conf.quota_plugins.is_tree:
                rows += self._resource_rows(queue, requested, is_own=not depth)
            if not has_cards and not shares:
                continue
            held, reserved = self._sums(queue, "held"), self._sums(queue, "reserved")
            cards = {*limited, *held, *reserved, *(card for card in wanted if card in self.capacity.cards)}
            rows += [
                self._card_row(queue, card, limited, held, reserved, requested, groups.get(card))
                for card in sorted(cards)
                if (not depth or not wanted or not wanted.isdisjoint(groups[card].cards if card in groups else (card,)))
                and (card in limited or (has_cards and card not in self._limited))
            ]
        return tuple(
            self._with_usable(
                sorted(
                    rows, key=lambda row: ([one.name for one in chain].index(row.queue), row.resource in (CPU, MEMORY))
                )
            )
        )

    def _with_usable(self, rows: list[LimitUse]) -> Iterable[LimitUse]:
        """The rows; those of the queue itself with what its ancestors leave."""
        for row in rows:
            frees = [
                other.free
                for other in rows
                if other.free is not None
                and (other.resource == row.resource or row.resource in other.resource.split("|"))
            ]
            real = self._real.get((row.queue, row.resource))
            frees += [] if real is None else [max(0.0, real - row.used)]
            own = row.queue == rows[0].queue
            yield msgspec.structs.replace(
                row, usable=min(frees, default=None) if own and row.free is not None else row.free
            )

    def _card_row(
        self,
        queue: Queue,
        card: str,
        quota: Mapping[str, int],
        held: Mapping[str, list[tuple[str, str, float]]],
        reserved: Mapping[str, list[tuple[str, str, float]]],
        requested: Mapping[str, tuple[int, int]],
        group: QuotaGroup | None,
    ) -> LimitUse:
        users, waiting = held.get(card, []), reserved.get(card, [])
        if group is not None:
            users, waiting = _of_group(held, group), _of_group(reserved, group)
        used = sum(amount for *_, amount in users)
        several = "|" in card and group is None
        limit = None if several or (card not in quota and self._is_unlimited(queue)) else quota.get(card, 0) / 1000
        names = {card} if group is None else group.cards
        per_pod, total = next(
            (amounts for key, amounts in requested.items() if not names.isdisjoint((key, *key.split("|")))), (0, 0)
        )
        return LimitUse(
            queue=queue.name,
            resource=card,
            quota=limit,
            used=used,
            reserved=sum(amount for *_, amount in waiting),
            free=None if limit is None else max(0.0, limit - used),
            usable=None,
            over=0.0 if limit is None else max(0.0, used - limit),
            cluster_total=None if several else sum(map(self._cluster_total, card.split("|"))),
            requested_per_pod=per_pod / 1000,
            requested=total / 1000,
            users=holders(users),
            reservations=holders(waiting),
        )

    def _is_unlimited(self, queue: Queue) -> bool:
        """Whether the queue has no card quota, and queues without one have no limit."""
        return self._snapshot.conf.quota_plugins.unlimited_cards and not is_card_quota(
            queue.annotations.get(CARD_QUOTA)
        )

    def _cluster_total(self, card: str) -> float:
        if card in self._shares:
            return self._shares[card]
        return sum(offer.total for offer in self.capacity.nodes_with(card)) / 1000

    def _jobs_of(self, queue: Queue) -> list[Job]:
        """The jobs that the limits of a queue cover: those below it, too, in a tree."""
        is_tree = self._snapshot.conf.quota_plugins.is_tree
        if queue.name == ROOT:  # capacity counts all queues against a root of its own, without a tree, too
            return [job for one in self._queues.values() for job in one.jobs.values()]
        return [job for one in (subtree(queue, self._queues) if is_tree else (queue,)) for job in one.jobs.values()]

    def used(self, queue: Queue, resource: str) -> float:
        """The usage of a resource that a limit of the queue counts, terminating pods included."""
        columns = self._snapshot.state.columns
        column = columns.find(resource)
        if column is None:
            return 0.0
        if device_quota_key(resource) is not None:
            claimed = self._snapshot.dispatch.first("claimed_amounts", queue) or {}
            return in_units(resource, claimed.get(resource, 0))
        used = self._charged.get((queue.name, resource))
        if used is None:
            fit, jobs = columns.fit, self._jobs_of(queue)
            used = sum(int(fit(job.allocated)[column] + fit(job.releasing)[column]) for job in jobs)
        return in_units(resource, int(used))

    def usable(self, name: str, resource: str) -> float | None:
        """What a queue can use more of a resource within its ancestors and beside guarantees; None without a limit.

        As of `limits`. O(jobs below the queue and its ancestors).
        """
        frees = []
        for queue in self.chain(name)[: None if self._snapshot.conf.quota_plugins.is_tree else 1]:
            limit, used = (queue.capability or {}).get(resource), self.used(queue, resource)
            frees += [] if limit is None else [in_units(resource, limit) - used]
            real = self._real.get((queue.name, resource))
            frees += [] if real is None or limit is None else [real - used]
        return max(0.0, min(frees)) if frees else None

    def _resource_rows(
        self, queue: Queue, requested: Mapping[str, tuple[int, int]], *, is_own: bool
    ) -> Iterable[LimitUse]:
        """Rows of the resources that the capability names; of an ancestor, those that are requested."""
        for resource, limit in sorted((queue.capability or {}).items()):
            if resource in (CPU, MEMORY) and (is_own or resource in requested or not requested):
                per_pod, total = requested.get(resource, (0, 0))
                yield self.resource_row(queue, resource, limit, per_pod, total)

    def resource_row(self, queue: Queue, resource: str, limit: int, per_pod: int, total: int) -> LimitUse:
        """The usage of a limit, all in base units. `per_pod` and `total`: what the job requests."""
        quota = in_units(resource, limit)
        used, users = self._usage(queue, resource)
        waiting = self._reservations(queue, resource)
        return LimitUse(
            queue=queue.name,
            resource=resource,
            quota=quota,
            used=used,
            reserved=sum(amount for *_, amount in waiting),
            free=max(0.0, quota - used),
            usable=None,
            over=max(0.0, used - quota),
            cluster_total=None,
            requested_per_pod=in_units(resource, per_pod),
            requested=in_units(resource, total),
            users=users,
            reservations=holders(waiting),
        )

    def _reservations(self, queue: Queue, resource: str) -> list[tuple[str, str, float]]:
        """Name, queue and amount of the jobs for which the queue reserves a resource."""
        if self._snapshot.session is None:
            return []
        found = []
        for job in self._jobs_of(queue):
            if job.key not in self._reserved:
                self._reserved[job.key] = self._snapshot.dispatch.first("reserved_amounts", job) or {}
            if amount := self._reserved[job.key].get(resource, 0):
                found.append((self._name_of(job), job.queue, in_units(resource, amount)))
        return found

    def _usage(self, queue: Queue, resource: str) -> tuple[float, tuple[HolderUse, ...]]:
        """As `used`, and the jobs with the largest allocated amounts."""
        found = self._usages.get((queue.name, resource))
        if found is None:
            has_column = self._snapshot.state.columns.find(resource) is not None
            users = [
                (self._name_of(job), job.queue, in_units(resource, self._allocated_to(job, resource)))
                for job in (self._jobs_of(queue) if has_column else ())
            ]
            found = self._usages[queue.name, resource] = self.used(queue, resource), holders(users)
        return found

    def _allocated_to(self, job: Job, resource: str) -> int:
        """What a job has of a resource with a column, in base units."""
        if device_quota_key(resource) is not None:
            return int((self._snapshot.dispatch.first("claimed_amounts", job) or {}).get(resource, 0))
        columns = self._snapshot.state.columns
        return int(columns.fit(job.allocated)[columns.column(resource)])

    def _sums(self, queue: Queue, field: str) -> dict[str, list[tuple[str, str, float]]]:
        """Card to the amounts of each job of a queue and those below it, in cards."""
        found = self._amounts.get((queue.name, field))
        if found is not None:
            return found
        found = self._amounts[queue.name, field] = {}
        for job in (job for one in subtree(queue, self._queues) for job in one.jobs.values()):
            cards = self.cards_of(job)
            amounts: Mapping[str, int] = self._shares_of(job, field) if cards is None else getattr(cards, field)
            for card, amount in amounts.items():
                if amount:
                    found.setdefault(card, []).append((self._name_of(job), job.queue, amount / 1000))
        return found

    def _shares_of(self, job: Job, field: str) -> dict[str, int]:
        """Amounts of shared devices of a job without card accounts."""
        columns = self._snapshot.state.columns
        if field != "held":
            return {}
        held = columns.fit(job.allocated) + columns.fit(job.releasing)
        return {name: held.item(columns.column(name)) for name in self._shares}


def _of_group(amounts: Mapping[str, list[tuple[str, str, float]]], group: QuotaGroup) -> list[tuple[str, str, float]]:
    """The amounts of each job that only cards of a group meet."""
    found: Counter[tuple[str, str]] = Counter()
    for key, users in amounts.items():
        for job, queue, amount in users if group.cards.issuperset(key.split("|")) else ():
            found[job, queue] += amount  # type: ignore[assignment]
    return [(job, queue, float(amount)) for (job, queue), amount in found.items()]


def shown_refusal(refusal: Refusal) -> PodRefusal:
    """A refusal with its figures."""
    rows: list[Figures] = list(refusal.alternatives)
    if refusal.figures is not None and refusal.figures not in rows:
        rows.insert(0, refusal.figures)
    return PodRefusal(
        plugin=refusal.plugin,
        hook=refusal.hook,
        reason=refusal.reason,
        message=refusal.message,
        object=_object_of(refusal),
        checks=tuple(
            QuotaCheck(
                resource=row.resource,
                requested=in_units(row.resource, row.requested),
                total=in_units(row.resource, row.total),
                limit=in_units(row.resource, row.limit),
                reserved=in_units(row.resource, row.reserved),
            )
            for row in rows
        ),
    )


def _object_of(refusal: Refusal) -> str:
    if refusal.limiter is not None:
        return f"{refusal.limiter.kind} {refusal.limiter.name}".strip()
    return f"Queue {refusal.queue}" if refusal.queue else ""
