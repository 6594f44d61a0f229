"""Restarts of one partition of a task, and restarts that do not count towards `maxRetry`."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Observe
from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest, task

PREEMPTED: Manifest = {
    "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
}


def _partitioned(name: str, total: int, size: int, **fields: object) -> Manifest:
    policy = {"totalPartitions": total, "partitionSize": size}
    return task(name, total * size, partitionPolicy=policy, **fields)


def _replaced(bench: ClusterBench, before: dict[str, str]) -> list[str]:
    after = bench.uids()
    return sorted(name for name in before if before[name] != after.get(name))


def test_pods_carry_their_partition_as_a_label() -> None:
    bench = ClusterBench()
    bench.running_job("j", _partitioned("w", 2, 2), task("d", 1))
    partitions = {
        pod["metadata"]["name"]: pod["metadata"]["labels"].get("volcano.sh/partition-id") for pod in bench.all("Pod")
    }
    assert partitions == {"j-d-0": None, "j-w-0": "0", "j-w-1": "0", "j-w-2": "1", "j-w-3": "1"}


@pytest.mark.parametrize("event", ["PodEvicted", "PodFailed"])
def test_one_partition_is_replaced_once_and_everything_else_stays(event: str) -> None:
    bench = ClusterBench()
    policies = [{"event": event, "action": "RestartPartition"}]
    bench.running_job("j", _partitioned("w", 2, 2, policies=policies), task("d", 1), maxRetry=3)
    before, group = bench.uids(), bench.all("PodGroup")[0]["metadata"]["uid"]
    if event == "PodEvicted":
        bench.evict("j-w-3")
    else:
        bench.finish("j-w-3", code=1)
    bench.wait(GRACE)
    bench.bind()
    bench.wait(GRACE)
    assert _replaced(bench, before) == ["j-w-2", "j-w-3"]
    assert (bench.phase(), bench.retries()) == ("Running", 1)
    assert bench.all("PodGroup")[0]["metadata"]["uid"] == group


def test_a_task_without_partitions_is_one_partition() -> None:
    bench = ClusterBench()
    policies = [{"event": "PodEvicted", "action": "RestartPartition"}]
    bench.running_job("j", task("a", 2, policies=policies), task("b", 2), maxRetry=3)
    before = bench.uids()
    bench.evict("j-a-0")
    bench.wait(GRACE)
    bench.bind()
    assert _replaced(bench, before) == ["j-a-0", "j-a-1"]


def test_two_partitions_are_restarted_independently() -> None:
    bench = ClusterBench()
    policies = [{"event": "PodEvicted", "action": "RestartPartition"}]
    bench.running_job("j", _partitioned("w", 3, 1, policies=policies), maxRetry=5)
    before = bench.uids()
    for pod in ("j-w-0", "j-w-2"):
        bench.evict(pod)
        bench.wait(GRACE)
        bench.bind()
        bench.wait(GRACE)
    assert _replaced(bench, before) == ["j-w-0", "j-w-2"]
    assert (bench.phase(), bench.retries()) == ("Running", 2)


# --- restarts that do not count -------------------------------------------------------------------------------------


def _uncounting(bench: ClusterBench) -> None:
    """The job controller does not count evictions by the scheduler."""
    bench.job_runner()._controller = JobController(
        "ours", lambda: KeyPair("private", "public"), count_preemptions=False
    )


def _restart(bench: ClusterBench, *, preempted: bool) -> None:
    if preempted:
        bench.store.delete("Pod", "default", "j-w-0")
        bench.patch("Pod", "j-w-0", PREEMPTED)
    else:
        bench.evict("j-w-0")
    bench.wait(2 * GRACE)
    bench.admit()
    bench.bind()


@pytest.mark.parametrize("counting", [True, False])
def test_evictions_by_the_scheduler_count_unless_configured_otherwise(counting: bool) -> None:
    bench = ClusterBench()
    if not counting:
        _uncounting(bench)
    bench.running_job("j", task("w", 2), policies=[{"event": "PodEvicted", "action": "RestartJob"}], maxRetry=2)
    for _ in range(2 if counting else 5):
        _restart(bench, preempted=True)
    if counting:
        assert (bench.phase(), bench.retries()) == ("Failed", 2)
        return
    assert (bench.phase(), bench.retries()) == ("Running", 5)
    _restart(bench, preempted=False)
    assert bench.phase() == "Running"
    _restart(bench, preempted=False)
    assert (bench.phase(), bench.retries()) == ("Failed", 7), "deletions by others count"


def test_an_eviction_waits_for_its_condition() -> None:
    bench = ClusterBench()
    _uncounting(bench)
    bench.running_job("j", task("w", 2), policies=[{"event": "PodEvicted", "action": "RestartJob"}], maxRetry=2)
    bench.evict("j-w-0")
    assert bench.phase() == "Running", "the condition may follow"
    bench.patch("Pod", "j-w-0", PREEMPTED)
    assert bench.phase() == "Restarting"
    assert bench.status()["controlledResources"]["uncounted-restarts"] == "1"


# --- the latency of creation ----------------------------------------------------------------------------------------


def test_the_time_to_the_first_pods_is_observed_once_per_pod() -> None:
    bench = ClusterBench()
    created = bench.job("j", task("w", 3))
    runner = bench.job_runner()
    group = bench.names("PodGroup")[0]
    bench.store.patch("PodGroup", "default", group, {"status": {"phase": "Inqueue"}})
    key = Key("Job", "default", "j")
    observed = [
        write for write in runner._controller.reconcile(runner._view, key, 1e9).writes if isinstance(write, Observe)
    ]
    assert [(each.metric.rpartition("_")[2], each.times) for each in observed] == [("milliseconds", 3)]
    assert observed[0].since > 0
    assert created["metadata"]["creationTimestamp"]
    bench.cluster.settle()
    bench.bind()
    bench.evict("j-w-0")
    again = runner._controller.reconcile(runner._view, key, 1e9).writes
    assert not [write for write in again if isinstance(write, Observe)]
