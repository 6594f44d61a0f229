"""The cases of `*.yaml` beside this file, and rules of the Job controller that need more than the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Observe
from tests.unit.controllers.bench import GRACE, SCHEDULER, ClusterBench, Manifest, task
from tests.unit.controllers.script import Script, cases

_RESTART = [{"event": "PodEvicted", "action": "RestartJob"}]
_KEY = Key("Job", "default", "j")


@pytest.mark.parametrize("text", cases(Path(__file__).parent))
def test_controllers(text: str) -> None:
    Script().play(text)


def _controller(**more: Any) -> JobController:
    return JobController(SCHEDULER, lambda: KeyPair("private", "public"), **more)


def test_a_pass_over_an_unchanged_job_reads_its_pods_once() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 4), task("d", 1))
    view, read = bench.store, Counter[str]()

    class CountingView:
        group_phases, targeting = view.group_phases, view.targeting

        def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
            read[kind] += 1
            return view.get(kind, namespace, name)

        def owned(self, owner: Manifest, kind: str) -> Sequence[Manifest]:
            found = view.owned(owner, kind)
            read[kind] += len(found)
            return found

    assert _controller().reconcile(CountingView(), _KEY, bench.cluster.clock.unix).writes == []
    assert read == {"Job": 1, "PodGroup": 1, "Pod": 5}


def test_a_job_gets_the_claim_it_describes() -> None:
    bench = ClusterBench()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bench.running_job("j", task("w", 1), volumes=[{"mountPath": "/data", "volumeClaim": claim}])
    (name,) = bench.names("PersistentVolumeClaim")
    assert (name[:6], len(name)) == ("j-pvc-", 18)
    job = bench.get("Job", "j")
    assert job["spec"]["volumes"][0]["volumeClaimName"] == name
    assert job["status"]["controlledResources"] == {f"volume-pvc-{name}": name}
    assert bench.get("Pod", "j-w-0")["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": name}


# --- restarts that do not count -------------------------------------------------------------------------------------


def _preempted(bench: ClusterBench) -> None:
    """The condition that the scheduler writes on j-w-0."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    bench.patch("Pod", "j-w-0", {"status": {"conditions": [target]}})


def _restart(bench: ClusterBench, *, preempted: bool) -> None:
    bench.store.delete("Pod", "default", "j-w-0")
    if preempted:
        _preempted(bench)
    bench.cluster.settle()
    bench.wait(GRACE)
    bench.run_again()


def test_evictions_by_the_scheduler_count() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_RESTART, maxRetry=2)
    for _ in range(2):
        _restart(bench, preempted=True)
    assert (bench.phase(), bench.retries()) == ("Failed", 2)


def test_evictions_by_the_scheduler_do_not_count_if_so_configured_and_those_by_others_do() -> None:
    bench = ClusterBench()
    bench.job_runner()._controller = _controller(count_preemptions=False)
    bench.running_job("j", task("w", 2), policies=_RESTART, maxRetry=2)
    for _ in range(5):
        _restart(bench, preempted=True)
    _restart(bench, preempted=False)
    assert (bench.phase(), bench.retries()) == ("Running", 6)
    _restart(bench, preempted=False)
    assert (bench.phase(), bench.retries()) == ("Failed", 7)


def test_an_eviction_waits_for_its_condition() -> None:
    bench = ClusterBench()
    bench.job_runner()._controller = _controller(count_preemptions=False)
    bench.running_job("j", task("w", 2), policies=_RESTART, maxRetry=2)
    bench.evict("j-w-0")
    assert bench.phase() == "Running", "the condition may follow"
    _preempted(bench)
    assert bench.phase() == "Restarting"
    assert bench.status()["controlledResources"]["uncounted-restarts"] == "1"


def test_the_time_to_the_first_pods_is_observed_once_per_pod() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 3))
    runner = bench.job_runner()

    def observed() -> list[Observe]:
        found = runner._controller.reconcile(bench.store, _KEY, 1e9).writes
        return [write for write in found if isinstance(write, Observe)]

    (group,) = bench.names("PodGroup")
    bench.store.patch("PodGroup", "default", group, {"status": {"phase": "Inqueue"}})
    (first,) = observed()
    assert (first.metric.rpartition("_")[2], first.times) == ("milliseconds", 3)
    assert first.since > 0
    bench.cluster.settle()
    bench.bind()
    bench.evict("j-w-0")
    assert observed() == []
