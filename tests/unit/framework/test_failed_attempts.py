"""Waiting jobs that sessions skip; tests/vectors/framework-failed-attempts.yaml lists what ends the skipping."""

from __future__ import annotations

from typing import ClassVar

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: capacity-card}, {name: nodeorder}]}]
"""
_LIMITING = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: limiting}]}]"


def _waiting() -> VectorHarness:
    """A node without a free card, and a job of one pod that waits for one."""
    h = VectorHarness(_CONF, run=True)
    h.do("queue q cards=A:2 capability=cpu:100,memory:100Gi; gpu_node n 1*A; group busy; pod busy/busy 1*A @n")
    h.do("group g; pod g 1*A")
    h.settle()
    return h


def test_one_job_of_a_class_is_checked_against_a_changed_quota() -> None:
    class Limiting(Plugin):
        """Counts its calls, and admits every pod."""

        name = "limiting"
        calls: ClassVar[int] = 0
        version: ClassVar[int] = 0

        def allocatable(self, queue: Queue, task: Task) -> None:
            Limiting.calls += 1

        def allocation_version(self, queue: Queue) -> int:
            return Limiting.version

    h = VectorHarness(_LIMITING, run=True, plugins=[Limiting])
    h.do("queue q; node n cpu=1; group g0,g1,g2,g3")
    for i in range(4):
        h.do(f"pod g{i}/p{i} cpu={2 + i % 2}")
    h.settle()
    assert len(h.core.snapshot().failed_attempts) == 4
    Limiting.calls, Limiting.version = 0, 1
    h.node("another", cpu="1")
    h.step()

    assert Limiting.calls == 2, "once per class"
    assert h.last_session.results.report.visited_jobs == 0


def test_without_the_allocation_version_of_a_limit_every_job_is_attempted() -> None:
    class Limiting(Plugin):
        name = "limiting"

        def overused(self, queue: Queue) -> bool:
            return not queue.name

    h = VectorHarness(_LIMITING, run=True, plugins=[Limiting])
    h.do("queue q; node n cpu=1; group g; pod p cpu=2")
    h.settle_for(2)

    assert len(h.core.snapshot().failed_attempts) == 0


def test_another_scheduler_conf_has_every_job_attempted() -> None:
    h = _waiting()
    h.core.reconfigure(h.core.snapshot().conf)

    assert len(h.core.snapshot().failed_attempts) == 0
    h.step()
    assert len(h.core.snapshot().failed_attempts) == 1


def test_a_skipped_job_is_explained_by_its_last_attempt_and_its_last_vote() -> None:
    h = _waiting()
    h.do("group big min=3 Pending; pod big/big0..2 1*A")
    h.settle()
    h.do("node late cpu=1")
    h.step()
    [found] = diagnose_job(h.core.snapshot(), h.job("g")).pending
    assert (found.message, found.outcome) == ("0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu.", "unfit")
    assert [refusal.reason for refusal in h.last_session.results.refusals_of(h.job("big"))] == [
        "InsufficientScalarQuota"
    ]
