"""Waiting jobs that sessions skip: which change has them attempted again."""

from __future__ import annotations

from typing import ClassVar

import pytest

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.intents import Evict, UpdatePodCondition
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.testing import Harness

_PLUGINS = "{name: priority}, {name: gang}, {name: predicates}, {name: capacity-card}, {name: nodeorder}"
_CONF = f'actions: "enqueue, allocate, backfill"\ntiers: [{{plugins: [{_PLUGINS}]}}]'


def _cluster(conf: str = _CONF, quota: int = 8) -> Harness:
    """Two nodes with two cards, each in use by a running pod, and a waiting gang of two pods with two cards."""
    h = Harness(conf, run=True)
    h.queue("q", cards={"A": quota}, capability={"cpu": "100", "memory": "100Gi"})
    h.queue("other", cards={"A": 100}, capability={"cpu": "100", "memory": "100Gi"})
    for i in range(2):
        h.gpu_node(f"n{i}", card="A", count=2, cpu="8")
        h.group(f"busy-{i}", queue="other", min_member=1)
        h.pod(f"busy-{i}", group=f"busy-{i}", requests={"cpu": "1"}, card="A", cards=2)
    h.step()
    h.group("g", queue="q", min_member=2)
    for i in range(2):
        h.pod(f"g-{i}", group="g", requests={"cpu": "1"}, card="A", cards=2)
    h.step()
    h.step()
    assert h.job("g").phase is PodGroupPhase.INQUEUE
    assert len(h.core.snapshot().failed_attempts) == 1
    return h


def _attempted(h: Harness) -> bool:
    """Whether the next session attempts the gang."""
    before = h.core.snapshot().failed_attempts.get("default/g")
    h.step()
    return h.core.snapshot().failed_attempts.get("default/g") is not before


def test_a_pod_that_takes_capacity_elsewhere_is_no_reason_for_another_attempt() -> None:
    h = _cluster()
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})

    assert not _attempted(h)
    assert h.binds["late"]


def test_capacity_counts_once_it_suffices_for_the_whole_gang() -> None:
    h = _cluster()
    h.set_phase("busy-0", "Succeeded")
    assert not _attempted(h), "one of two nodes is free"
    h.set_phase("busy-1", "Succeeded")
    h.step()

    assert {"g-0", "g-1"} <= h.binds.keys()


@pytest.mark.parametrize(("quota", "expected"), [(9, False), (4, False), (3, True), (1, True), (0, True)])
def test_a_quota_that_changes_counts_once_it_admits_less_than_the_gang(quota: int, expected: bool) -> None:
    h = _cluster()
    h.queue("other", cards={"A": 50}, capability={"cpu": "100", "memory": "100Gi"})
    assert not _attempted(h)
    h.queue("q", cards={"A": quota}, capability={"cpu": "100", "memory": "100Gi"})
    assert _attempted(h) is expected


@pytest.mark.parametrize(("free", "bound"), [(1, set()), (2, {"g-0", "g-1"})])
def test_a_gang_without_nodes_starts_with_capacity_after_its_quota_changed(free: int, bound: set[str]) -> None:
    h = _cluster()
    h.queue("q", cards={"A": 5}, capability={"cpu": "100", "memory": "100Gi"})
    assert not _attempted(h)
    for i in range(free):
        h.set_phase(f"busy-{i}", "Succeeded")
    h.step()

    assert h.binds.keys() & {"g-0", "g-1"} == bound


def test_a_quota_that_admits_more_has_a_gang_attempted_that_it_refused() -> None:
    h = _cluster()
    h.queue("q", cards={"A": 2}, capability={"cpu": "100", "memory": "100Gi"})
    h.set_phase("busy-0", "Succeeded")
    h.set_phase("busy-1", "Succeeded")
    h.step()
    assert "insufficient <A> quota" in h.pod_message("g-1")
    h.queue("q", cards={"A": 4}, capability={"cpu": "100", "memory": "100Gi"})
    h.step()
    h.step()

    assert {"g-0", "g-1"} <= h.binds.keys()


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

    h = Harness("actions: allocate\ntiers: [{plugins: [{name: gang}, {name: limiting}]}]", run=True, plugins=[Limiting])
    h.queue("q")
    h.node("n", cpu="1")
    for cpu in ("2", "3"):
        for i in range(4):
            h.group(f"g{cpu}-{i}", queue="q", min_member=1)
            h.pod(f"g{cpu}-{i}", group=f"g{cpu}-{i}", requests={"cpu": cpu})
    h.settle()
    assert len(h.core.snapshot().failed_attempts) == 8
    Limiting.calls, Limiting.version = 0, 1
    h.node("another", cpu="1")
    h.step()

    assert Limiting.calls == 2, "once per class"
    assert h.last_session.report.visited_jobs == 0


def test_a_changed_job_is_attempted() -> None:
    h = _cluster()
    h.pod("g-2", group="g", requests={"cpu": "1"}, card="A", cards=2)

    assert _attempted(h)


def test_a_node_whose_labels_change_counts_only_when_it_becomes_feasible() -> None:
    h = _cluster()
    h.gpu_node("n0", card="A", count=2, cpu="8", labels={"new": "label"})
    assert not _attempted(h)
    for i in range(2, 4):
        h.gpu_node(f"n{i}", card="A", count=2, cpu="8")
    h.step()

    assert {"g-0", "g-1"} <= h.binds.keys()


@pytest.mark.parametrize(("seconds", "expected"), [(290, False), (301, True)])
def test_a_failure_is_refreshed_after_five_minutes(seconds: int, expected: bool) -> None:
    h = _cluster()
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})
    h.now += seconds

    assert _attempted(h) is expected


def test_another_scheduler_conf_has_every_job_attempted() -> None:
    h = _cluster()
    h.core.reconfigure(h.core.snapshot().conf)

    assert len(h.core.snapshot().failed_attempts) == 0
    h.step()
    assert len(h.core.snapshot().failed_attempts) == 1


def test_a_skipped_job_is_explained_by_its_last_attempt() -> None:
    h = _cluster()
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})
    h.step()

    explanation = diagnose_job(h.core.snapshot(), h.job("g"))
    assert explanation.pending[0].message == "0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu."
    assert [item.outcome for item in explanation.pending] == ["unfit"]


def test_without_the_allocation_version_of_a_limit_every_job_is_attempted() -> None:
    class Limiting(Plugin):
        name = "limiting"

        def overused(self, queue: Queue) -> bool:
            return not queue.name

    conf = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: limiting}]}]"
    h = Harness(conf, run=True, plugins=[Limiting])
    h.queue("q")
    h.node("n", cpu="1")
    h.group("g", queue="q", min_member=1)
    h.pod("p", group="g", requests={"cpu": "2"})
    h.step()
    h.step()

    assert len(h.core.snapshot().failed_attempts) == 0


def _refused(gangs: int = 3) -> Harness:
    """A queue of 4 cards with 3 in use, and gangs of 2 that are refused at admission."""
    h = Harness(_CONF, run=True)
    h.queue("q", cards={"A": 4}, capability={"cpu": "100", "memory": "100Gi"})
    h.queue("other", cards={"A": 100}, capability={"cpu": "100", "memory": "100Gi"})
    h.gpu_node("n", card="A", count=8, cpu="80")
    for i in range(3):
        h.group(f"busy-{i}", queue="q", min_member=1)
        h.pod(f"busy-{i}", group=f"busy-{i}", requests={"cpu": "1"}, card="A", cards=1)
    h.step()
    for i in range(gangs):
        h.group(f"g{i}", queue="q", min_member=2, phase="Pending")
        for member in range(2):
            h.pod(f"g{i}-{member}", group=f"g{i}", requests={"cpu": "1"}, card="A", cards=1)
    for _ in range(3):
        h.step()
    assert {h.phases[f"g{i}"] for i in range(gangs)} == {"Pending"}
    assert len(h.core.snapshot().failed_attempts) == gangs
    return h


def _visited(h: Harness) -> bool:
    """Whether the next session votes on the admission of g0 again."""
    h.step()
    return "default/g0" in h.last_session.refused_jobs


def test_a_job_of_another_queue_is_no_reason_for_another_vote() -> None:
    h = _refused()
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})

    assert not _visited(h)
    assert h.binds["late"]


def test_usage_of_the_queue_has_its_refused_jobs_voted_on() -> None:
    h = _refused()
    h.set_phase("busy-0", "Succeeded")
    h.step()

    assert h.phases["g0"] == "Inqueue"
    assert [h.phases[f"g{i}"] for i in (1, 2)] == ["Pending", "Pending"]


def test_a_refusal_whose_figures_change_is_written_again_after_five_minutes() -> None:
    h = _refused()
    text = h.pod_message("g0-0")
    assert "total would be <5000>" in text
    h.group("more", queue="q", min_member=1)
    h.pod("more", group="more", requests={"cpu": "1"}, card="A", cards=1)
    assert _visited(h), "the usage of the queue changed"
    assert h.pod_message("g0-0") == text
    h.now += 300
    h.set_phase("busy-0", "Running")
    h.node("another", cpu="1")
    h.step()
    assert "total would be <6000>" in h.pod_message("g0-0")


def test_a_refused_job_is_explained_by_its_last_vote() -> None:
    h = _refused()
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})
    h.step()
    assert [refusal.reason for refusal in h.last_session.refusals_of(h.job("g0"))] == ["InsufficientScalarQuota"]


def test_a_queue_that_no_longer_accepts_the_namespace_has_its_waiting_jobs_attempted() -> None:
    h = _cluster()
    limits = {"cpu": "100", "memory": "100Gi"}
    h.queue("q", cards={"A": 8}, capability=limits, annotations={"capcard-sched.io/namespaces": "another"})

    assert _attempted(h)
    assert "does not accept jobs of namespace" in h.pod_message("g-0")


# --- evictions --------------------------------------------------------------------------------------------------------

_EVICTING = (
    'actions: "enqueue, allocate, preempt, reclaim, backfill"\n'
    "tiers: [{plugins: [{name: priority}, {name: gang, enablePreemptable: false, enableReclaimable: false}, "
    "{name: predicates}, {name: capacity-card}, {name: nodeorder}]}]"
)


def _searching() -> Harness:
    """Two full nodes of another queue, and a waiting gang of two pods of high priority without possible victims."""
    h = Harness(_EVICTING, run=True)
    h.priority_class("high", 100)
    limits = {"cpu": "100", "memory": "100Gi"}
    for queue in ("q", "other"):
        h.queue(queue, cards={"A": 100}, capability=limits)
    for i in range(2):
        h.gpu_node(f"n{i}", card="A", count=2, cpu="8")
        h.group(f"busy-{i}", queue="other", min_member=1)
        h.pod(f"busy-{i}", group=f"busy-{i}", requests={"cpu": "1"}, card="A", cards=2)
    h.step()
    h.group("g", queue="q", min_member=2, priority_class="high")
    for i in range(2):
        h.pod(f"g-{i}", group="g", requests={"cpu": "1"}, card="A", cards=2)
    h.step()
    h.step()
    assert len(h.core.snapshot().failed_attempts) == 1
    return h


def _searched(h: Harness) -> set[str]:
    """The actions that search victims for the gang in the next session, which another pod causes."""
    h.group("late", queue="other", min_member=1)
    h.pod("late", group="late", requests={"cpu": "1"})
    h.step()
    assert h.binds["late"]
    assert h.core.snapshot().session is not None
    return set(h.last_session.preemption_reports.get("default/g", ()))


def _lower(h: Harness, *names: str, queue: str = "q", service: str = "") -> None:
    """Running pods in place of those that fill the nodes."""
    for i, name in enumerate(names):
        h.delete_pod(f"busy-{i}")
        h.group(name, queue=queue, min_member=1, annotations={"volcano.sh/service.type": service} if service else {})
        h.pod(name, group=name, requests={"cpu": "1"}, card="A", cards=2, node=f"n{i}", phase="Running")


def test_a_job_without_possible_victims_searches_none() -> None:
    assert _searched(_searching()) == set()


def test_too_few_possible_victims_cause_no_search() -> None:
    h = _searching()
    _lower(h, "low-0")
    h.step()
    assert "default/g" in {job.key for job in h.core.snapshot().failed_attempts}
    assert _searched(h) == set()


def test_possible_victims_that_suffice_are_evicted() -> None:
    h = _searching()
    _lower(h, "low-0", "low-1")
    result = h.step()

    assert {intent.name for intent in result.intents if isinstance(intent, Evict)} == {"low-0", "low-1"}


def test_a_pod_that_becomes_a_possible_victim_is_evicted() -> None:
    h = _searching()
    h.priority_class("higher", 200)
    for i in range(2):
        h.delete_pod(f"busy-{i}")
        h.group(f"high-{i}", queue="q", min_member=1, priority_class="higher")
        h.pod(f"high-{i}", group=f"high-{i}", requests={"cpu": "1"}, card="A", cards=2, node=f"n{i}", phase="Running")
    h.step()
    assert _searched(h) == set()
    h.priority_class("higher", 1)
    result = h.step()

    assert {intent.name for intent in result.intents if isinstance(intent, Evict)} == {"high-0", "high-1"}


def test_training_of_another_queue_is_a_possible_victim_of_reclaim() -> None:
    h = _searching()
    h.group("g", queue="q", min_member=2, priority_class="high", annotations={"volcano.sh/service.type": "inference"})
    h.step()
    assert _searched(h) == set()
    _lower(h, "train-0", "train-1", queue="other", service="training")
    result = h.step()

    assert {intent.name for intent in result.intents if isinstance(intent, Evict)} == {"train-0", "train-1"}


def test_a_skipped_job_uses_capacity_evicted_for_another_job_in_the_same_session() -> None:
    """The eviction of a whole gang frees a node that the first job does not need."""
    h = Harness(_EVICTING.replace(", reclaim", ""), run=True)
    h.priority_class("high", 100)
    h.queue("q", cards={"A": 100}, capability={"cpu": "100", "memory": "100Gi"})
    for i in range(2):
        h.gpu_node(f"n{i}", card="A", count=2, cpu="8")
    h.group("low", queue="q", min_member=2)
    for i in range(2):
        h.pod(f"low-{i}", group="low", requests={"cpu": "1"}, card="A", cards=2)
    h.step()
    h.group("behind", queue="q", min_member=1, priority_class="")
    h.pod("behind", group="behind", requests={"cpu": "1"}, card="A", cards=2)
    h.settle()
    assert "default/behind" in {job.key for job in h.core.snapshot().failed_attempts}
    h.group("first", queue="q", min_member=1, priority_class="high")
    h.pod("first", group="first", requests={"cpu": "1"}, card="A", cards=2)
    result = h.step()

    assert {intent.name for intent in result.intents if isinstance(intent, Evict)} == {"low-0", "low-1"}
    assert h.core.snapshot().session is not None
    assert {h.last_session.outcomes[h.task(name).uid].kind for name in ("first", "behind")} == {"pipelined"}


def test_a_skipped_job_whose_pod_is_preempted_reclaims_in_the_same_session() -> None:
    h = Harness(_EVICTING, run=True)
    h.priority_class("high", 100)
    limits = {"cpu": "100", "memory": "100Gi"}
    h.queue("q", cards={"A": 100}, capability=limits)
    h.queue("other", cards={"A": 100}, capability=limits)
    for i, queue in enumerate(("q", "other")):
        h.gpu_node(f"n{i}", card="A", count=2, cpu="8")
        h.group(f"busy-{i}", queue=queue, min_member=1)
        h.pod(f"busy-{i}", group=f"busy-{i}", requests={"cpu": "1"}, card="A", cards=2, node=f"n{i}", phase="Running")
    h.pod("more", group="busy-0", requests={"cpu": "1"}, card="A", cards=2)
    h.settle()
    assert "default/busy-0" in {job.key for job in h.core.snapshot().failed_attempts}, "its minimum runs"
    h.group("first", queue="q", min_member=1, priority_class="high")
    h.pod("first", group="first", requests={"cpu": "1"}, card="A", cards=2)
    result = h.step()

    assert {intent.name for intent in result.intents if isinstance(intent, Evict)} == {"busy-0"}
    assert set(h.last_session.preemption_reports["default/busy-0"]) == {"reclaim"}


def test_a_skipped_job_that_gets_a_nomination_has_it_written_in_the_same_session() -> None:
    h = _searching()
    h.pod("g-2", group="g", requests={"cpu": "1"}, card="A", cards=2)
    h.settle()
    assert "default/g" in {job.key for job in h.core.snapshot().failed_attempts}
    _lower(h, "low-0", "low-1")
    result = h.step()

    written = {intent.name: intent for intent in result.intents if isinstance(intent, UpdatePodCondition)}
    assert {name: intent.nominated_node for name, intent in written.items()} == {"g-0": "n1", "g-1": "n0"}
    assert h.last_session.outcomes[h.task("g-2").uid].kind == "unfit", "as in its last attempt"
