"""Filters and scores nodes by measured load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_PODS, NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Plugin, Reads, Sample
from capcard_sched.model.refusal import Code
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN
from capcard_sched.model.status import SESSION_STATUSES
from capcard_sched.model.usage import STALE_SECONDS
from capcard_sched.plugins.usage.arguments import UsageArguments, parse
from capcard_sched.plugins.usage.estimates import Estimates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue

CPU_EXCEEDS = "the CPU load of the node exceeds the upper limit."
MEMORY_EXCEEDS = "the memory load of the node exceeds the upper limit."

_FULL = 100.0


class Usage(Plugin):
    """Filters nodes whose measured load is above a threshold, and prefers nodes with little load.

    The source in the scheduler-conf's `metrics` provides the load as an average over ten minutes; a measurement older
    than five minutes is ignored. An estimate is added for pods placed since then, so that a burst spreads. The
    estimates are lost with a new scheduler-conf and with a new leader.
    """

    name = "usage"
    Arguments = UsageArguments
    arguments: UsageArguments
    reads = Reads.USAGE

    def setup(self) -> None:
        given = self.arguments
        self._weights = given.cpu_weight, given.memory_weight
        self._scores_anything = given.weight > 0 and sum(self._weights) > 0
        self._estimates = Estimates(given.estimator) if given.estimator.enable and self._scores_anything else None
        self._session: Session
        self._generation = -1
        self._stale_nodes = 0
        #: Unix seconds when the oldest valid measurement expires.
        self._fresh_until: float | None = None
        #: Changes whenever the result for a class changes for another reason than a placement; None without any load.
        self._version: int | None = None
        self._versions = 0
        #: Measured percent, NaN where it is unknown: float64 [nodes].
        self._cpu: Scores = np.zeros(0)
        self._memory: Scores = np.zeros(0)
        self._cpu_over: Mask = np.zeros(0, dtype=bool)
        self._memory_over: Mask = np.zeros(0, dtype=bool)
        #: Score, and weighted load with estimates in percent: float64 [nodes].
        self._scores: Scores = np.zeros(0)
        self._load: Scores = np.zeros(0)

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> UsageArguments:
        return parse(raw, problems)

    def open(self, session: Session) -> None:
        """Apply the changes. O(nodes) when measurements or nodes changed, or one expired; else O(changed jobs)."""
        self._session = session
        changed, table = session.changed, session.nodes
        overdue = self._fresh_until is not None and session.now >= self._fresh_until
        anew = bool(changed.everything or changed.usage or overdue or table.generation != self._generation)
        if anew:
            self._generation = table.generation
            self._measure(session)
        if self._estimates is not None:
            anew = self._estimates.open(session, anew=anew)
        if anew:
            rows = np.arange(len(table), dtype=np.intp)
            self._load, self._scores = self._evaluate(rows)

    def _measure(self, session: Session) -> None:
        table, now = session.nodes, session.now
        cpu, memory = np.full(len(table), np.nan), np.full(len(table), np.nan)
        self._stale_nodes = 0
        measured: list[float] = []
        fresh = False
        for name, load in session.snapshot.usage.items():
            node = table.by_name.get(name)
            if node is None:
                continue
            if not load.is_fresh(now):
                self._stale_nodes += 1
                continue
            fresh = True
            if load.at is not None:
                measured.append(load.at)
            cpu[node.row] = np.nan if load.cpu is None else load.cpu
            memory[node.row] = np.nan if load.memory is None else load.memory
        self._fresh_until = min(measured) + STALE_SECONDS if measured else None
        cpu_over, memory_over = cpu > self.arguments.thresholds.cpu, memory > self.arguments.thresholds.mem
        same = np.array_equal(cpu_over, self._cpu_over) and np.array_equal(memory_over, self._memory_over)
        if self._scores_anything and self._estimates is None:
            same &= np.array_equal(cpu, self._cpu, equal_nan=True)
            same &= np.array_equal(memory, self._memory, equal_nan=True)
        if fresh and not (same and self._version is not None):
            self._versions += 1
        self._version = self._versions if fresh else None
        self._cpu, self._memory, self._cpu_over, self._memory_over = cpu, memory, cpu_over, memory_over

    def _evaluate(self, rows: Rows) -> tuple[Scores, Scores]:
        """Weighted load of some rows in percent (NaN where unknown), and their scores: float64 [k] each."""
        load = np.zeros(len(rows))
        if not self._scores_anything:
            return load, load
        estimated = np.zeros((len(rows), 2))
        if self._estimates is not None:
            estimated = self._estimates.percent(self._session.nodes.allocatable.take(rows, axis=0), rows)
        total = sum(self._weights)
        free = np.zeros(len(rows))
        for weight, measured, column in zip(
            self._weights, (self._cpu, self._memory), (CPU_COLUMN, MEMORY_COLUMN), strict=True
        ):
            if weight:
                free += weight * (_FULL - np.minimum(measured.take(rows) + estimated[:, column], _FULL))
        load = _FULL - free / total
        return load, np.where(np.isnan(free), 0.0, free / total * self.arguments.weight)

    def next_wakeup(self) -> float | None:
        """When the oldest measurement expires, if a pod is pending."""
        return self._session.if_pods_wait(self._fresh_until)

    def metrics(self) -> Iterable[Sample]:
        known = ~(np.isnan(self._cpu) & np.isnan(self._memory))
        over = self._cpu_over | self._memory_over
        for state, count in (
            ("measured", np.count_nonzero(known)),
            ("over_threshold", np.count_nonzero(over)),
            ("stale", self._stale_nodes),
        ):
            yield Sample("usage_nodes", {"state": state}, float(count))

    def signature(self, queue: Queue, task: Task) -> int | None:
        """The version of the measurements; None without any."""
        return self._version

    def _is_measured(self, signature: PodSignature) -> bool:
        return signature.context(self.name) is not None

    def _has_static_scores(self, signature: PodSignature) -> bool:
        """Whether the score follows from the measurements alone, and the signature has their version."""
        return self._is_measured(signature) and self._scores_anything and self._estimates is None

    def _has_changing_scores(self, signature: PodSignature) -> bool:
        return self._version is not None and self._scores_anything and not self._has_static_scores(signature)

    @filter(reads=NODE_SPEC, when=_is_measured)
    def filter_overloaded(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes above a threshold. Unresolvable, because an eviction lowers the average only after minutes."""
        result.reject(rows.take(self._cpu_over), Code.UNRESOLVABLE, CPU_EXCEEDS)
        result.reject(rows.take(self._memory_over), Code.UNRESOLVABLE, MEMORY_EXCEEDS)

    @score(reads=NODE_SPEC, when=_has_static_scores)
    def score_measured(self, signature: PodSignature, rows: NodeView) -> Scores:
        """0 to 100 x `usage.weight`: the weighted free part of the node; 0 where the load is unknown."""
        return rows.take(self._scores)

    @score(reads=NODE_PODS, when=_has_changing_scores)
    def score_estimated(self, signature: PodSignature, rows: NodeView) -> Scores:
        """As `score_measured`, with the estimates of placed pods."""
        return rows.take(self._scores)

    def on_allocate(self, placement: Placement) -> None:
        """Add the estimates of placed pods. A pod whose eviction is undone still has its estimate."""
        estimates, now = self._estimates, self._session.now
        if estimates is None:
            return
        threshold = self.arguments.estimator.risk_threshold * _FULL
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status in SESSION_STATUSES:
                estimates.add(task, node, now, risky=bool(self._load[node.row] >= threshold))
                self._refresh(node.row)

    def on_deallocate(self, placement: Placement) -> None:
        """Remove the estimates of pods placed in this session. An evicted pod uses its node until it is gone."""
        if self._estimates is None:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status in SESSION_STATUSES:
                self._estimates.remove(task, node)
                self._refresh(node.row)

    def _refresh(self, row: int) -> None:
        if self._version is not None:
            load, scores = self._evaluate(np.array([row], dtype=np.intp))
            self._load[row], self._scores[row] = load[0], scores[0]
