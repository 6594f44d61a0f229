"""Rules of a Job's life beyond the scenarios of `tests/scenarios/controllers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.objects import Key
from capcard_sched.simulation.workloads.controller_runner import StoreView
from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest, task


def _policies(**actions: str) -> list[Manifest]:
    return [{"event": event, "action": action} for event, action in actions.items()]


def test_the_last_retry_fails_the_job_and_keeps_the_pods_that_ended() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodFailed="RestartJob"), maxRetry=3)
    for retry in (1, 2):
        bench.finish("j-w-0", code=1)
        assert bench.retries() == retry
        bench.run_again()
        assert bench.phase() == "Running"
    bench.finish("j-w-0", code=1)
    bench.wait(GRACE)
    assert (bench.phase(), bench.retries()) == ("Failed", 3)
    assert bench.names("Pod") == ["j-w-0"]
    assert bench.status()["failed"] == 1, "pods that are kept count"


def test_the_exit_code_of_any_container_but_a_sidecar_counts() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=[{"exitCode": 137, "action": "AbortJob"}])
    rows = [
        {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}},
        {"name": "helper", "restartCount": 0, "state": {"terminated": {"exitCode": 137}}},
    ]
    bench.patch("Pod", "j-w-0", {"status": {"phase": "Failed", "containerStatuses": rows}})
    assert bench.phase() == "Aborting"


def test_a_pass_over_an_unchanged_job_reads_its_pods_once() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 4), task("d", 1))
    view, read = StoreView(bench.store), Counter[str]()

    class CountingView:
        group_phases, targeting = view.group_phases, view.targeting

        def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
            read[kind] += 1
            return view.get(kind, namespace, name)

        def owned(self, uid: str, kind: str) -> Sequence[Manifest]:
            found = view.owned(uid, kind)
            read[kind] += len(found)
            return found

    controller = JobController("ours", lambda: KeyPair("private", "public"))
    assert controller.reconcile(CountingView(), Key("Job", "default", "j"), bench.cluster.clock.unix).writes == []
    assert read == {"Job": 1, "PodGroup": 1, "Pod": 5}


def test_a_completed_driver_completes_the_job() -> None:
    bench = ClusterBench()
    policies = _policies(TaskCompleted="CompleteJob")
    bench.running_job("j", task("driver", 1, policies=policies), task("w", 4))
    bench.finish("j-driver-0")
    assert (bench.phase(), bench.live()) == ("Completing", ["j-driver-0"])
    bench.wait(GRACE)
    assert (bench.phase(), bench.status()["succeeded"]) == ("Completed", 1)
    assert bench.status()["runningDuration"] == f"{GRACE}s"


@pytest.mark.parametrize("ended", [False, True])
def test_a_task_waits_for_those_it_depends_on(ended: bool) -> None:
    bench = ClusterBench()
    bench.job("j", task("a", 1), task("b", 2, dependsOn={"name": ["a"]}), minAvailable=1)
    bench.admit()
    assert bench.names("Pod") == ["j-a-0"]
    bench.bind()
    if ended:  # it may be over before it was seen to be ready
        bench.finish("j-a-0")
    assert bench.names("Pod") == ["j-a-0", "j-b-0", "j-b-1"]


def test_one_of_several_predecessors_may_be_enough() -> None:
    bench = ClusterBench()
    dependent = task("c", 1, dependsOn={"name": ["a", "b"], "iteration": "any"})
    unready = {"status": {"containerStatuses": [{"name": "main", "ready": False, "restartCount": 0}]}}
    bench.job("j", task("a", 1), task("b", 1, dependsOn={"name": ["a"]}), dependent, minAvailable=1)
    bench.admit()
    bench.bind()
    assert bench.names("Pod") == ["j-a-0", "j-b-0", "j-c-0"]
    other = ClusterBench()
    other.job("j", task("a", 1), dependent, minAvailable=1)
    other.admit()
    other.patch("Pod", "j-a-0", {**unready, "spec": {"nodeName": ""}})
    other.patch("Pod", "j-a-0", {"status": {"phase": "Running", **unready["status"]}})
    assert other.names("Pod") == ["j-a-0"], "running is not ready"


def test_scaling_up_while_surplus_pods_terminate_is_no_eviction() -> None:
    bench = ClusterBench()
    policies = _policies(PodEvicted="TerminateJob")
    bench.running_job("j", task("w", 4, minAvailable=2), minAvailable=2, policies=policies)
    bench.patch("Job", "j", {"spec": {"tasks": [task("w", 2, minAvailable=2)]}})
    bench.patch("Job", "j", {"spec": {"tasks": [task("w", 4, minAvailable=2)]}})
    bench.wait(GRACE)
    bench.bind()
    assert (bench.phase(), bench.names("Pod")) == ("Running", ["j-w-0", "j-w-1", "j-w-2", "j-w-3"])


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 1), ttlSecondsAfterFinished=60)
    bench.running_job("kept", task("w", 1), ttlSecondsAfterFinished=60)
    bench.finish("j-w-0")
    bench.finish("kept-w-0")
    bench.wait(59)
    bench.patch("Job", "kept", {"spec": {"ttlSecondsAfterFinished": 600}})
    bench.wait(1)
    assert bench.names("Job") == ["kept"]
    assert bench.names("Pod") == ["kept-w-0"]


@pytest.mark.parametrize(
    "action, phase, last", [("AbortJob", "Aborting", "Aborted"), ("TerminateJob", "Terminating", "Terminated")]
)
def test_a_command_applies_while_the_job_restarts(action: str, phase: str, last: str) -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2))
    bench.command("RestartJob", name="restart")
    assert bench.phase() == "Restarting"
    bench.command(action)
    assert bench.phase() == phase
    bench.wait(GRACE)
    assert (bench.phase(), bench.names("Pod"), bench.names("Command")) == (last, [], [])


def test_a_command_for_a_job_that_does_not_exist_is_deleted() -> None:
    bench = ClusterBench()
    bench.command("AbortJob", target="nobody")
    assert bench.names("Command") == []


def test_a_command_for_an_earlier_job_of_the_same_name_changes_nothing() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2))
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "earlier"}
    bench.create_quietly("Command", "c", action="AbortJob", target=target)
    assert (bench.phase(), bench.names("Command")) == ("Running", [])


def test_the_podgroup_becoming_unknown_is_an_event_in_every_version() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(Unknown="RestartJob"))
    for retry in (1, 2):
        bench.patch("PodGroup", bench.names("PodGroup")[0], {"status": {"phase": "Unknown"}})
        assert (bench.phase(), bench.retries()) == ("Restarting", retry)
        bench.run_again()
        assert bench.phase() == "Running"


#: Action to the phase after the pods are gone, and the restarts that it counts.
_OUTCOMES = {
    "AbortJob": ("Aborted", 0),
    "TerminateJob": ("Terminated", 0),
    "CompleteJob": ("Completed", 0),
    "RestartJob": ("Pending", 1),
    "RestartTask": ("Pending", 1),
    "RestartPartition": ("Pending", 1),
    "RestartPod": ("Pending", 1),
}


@pytest.mark.parametrize("restarted", [False, True], ids=["", "controllers restart meanwhile"])
@pytest.mark.parametrize("event", ["PodPending", "*"])
@pytest.mark.parametrize("action", _OUTCOMES)
def test_a_pod_that_pends_too_long_has_the_outcome_of_its_policy(action: str, event: str, restarted: bool) -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 1), policies=[{"event": event, "action": action, "timeout": "10s"}])
    bench.admit()
    before = bench.uids()
    bench.wait(6)
    if restarted:
        bench.restart_controllers()
    bench.wait(3)
    assert (bench.uids(), bench.retries()) == (before, 0)
    bench.wait(2)
    phase, retries = _OUTCOMES[action]
    assert (bench.phase(), bench.retries()) == (phase, retries)
    bench.admit()
    assert [*bench.uids()] == (["j-w-0"] if retries else [])
    assert not {*before.values()} & {*bench.uids().values()}


def test_a_pending_pod_is_left_alone_by_a_policy_without_a_timeout() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 1), policies=_policies(PodPending="AbortJob"))
    bench.admit()
    bench.wait(600)
    assert (bench.phase(), bench.live()) == ("Pending", ["j-w-0"])


@pytest.mark.parametrize("event", ["Unknown", "*"])
@pytest.mark.parametrize("action", _OUTCOMES)
def test_an_unknown_podgroup_has_the_outcome_of_its_policy(action: str, event: str) -> None:
    """It is about no pod: actions about one have no effect."""
    bench = ClusterBench()
    bench.running_job("j", task("w", 1), policies=[{"event": event, "action": action}])
    bench.patch("PodGroup", bench.names("PodGroup")[0], {"status": {"phase": "Unknown"}})
    bench.wait(GRACE)
    phase, retries = _OUTCOMES[action]
    targeted = action in {"RestartTask", "RestartPartition", "RestartPod"}
    assert (bench.phase(), bench.retries()) == (("Running", 0) if targeted else (phase, retries))


@pytest.mark.parametrize("restarted", [False, True], ids=["", "controllers restart meanwhile"])
def test_a_delayed_action_on_an_eviction_outlives_the_pod(restarted: bool) -> None:
    bench = ClusterBench()
    policies = [{"event": "PodEvicted", "action": "AbortJob", "timeout": "20s"}]
    bench.running_job("j", task("w", 2), policies=policies)
    bench.evict("j-w-0")
    bench.wait(10)
    if restarted:
        bench.restart_controllers()
    bench.wait(9)
    assert bench.phase() != "Aborted"
    bench.wait(2 + GRACE)
    assert bench.phase() == "Aborted"


def test_pods_that_vanish_unseen_were_evicted() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodEvicted="AbortJob"))
    bench.store.remove("Pod", "default", "j-w-1")
    bench.cluster.settle()
    assert bench.phase() == "Aborting"


def test_the_phases_of_a_job_are_listed_once_each() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), maxRetry=9)
    for number in range(3):
        bench.command("RestartJob", name=f"c{number}")
        bench.run_again()
    assert [entry["status"] for entry in bench.status()["conditions"]] == ["Restarting", "Pending", "Running"]


def test_a_job_waits_for_the_claim_it_names() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 1), volumes=[{"mountPath": "/data", "volumeClaimName": "data"}])
    assert bench.names("PodGroup") == []
    assert bench.messages("Job", "PVCError") == ["PersistentVolumeClaim data not found"]
    bench.create("PersistentVolumeClaim", "data", spec={})
    bench.admit()
    pod = bench.get("Pod", "j-w-0")["spec"]
    assert pod["volumes"] == [{"name": "data-volume", "persistentVolumeClaim": {"claimName": "data"}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "data-volume", "mountPath": "/data"}]


def test_a_job_gets_the_claim_it_describes() -> None:
    bench = ClusterBench()
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bench.running_job("j", task("w", 1), volumes=[{"mountPath": "/data", "volumeClaim": claim}])
    (name,) = bench.names("PersistentVolumeClaim")
    assert name.startswith("j-pvc-")
    assert len(name) == len("j-pvc-") + 12
    job = bench.get("Job", "j")
    assert job["spec"]["volumes"][0]["volumeClaimName"] == name
    assert job["status"]["controlledResources"] == {f"volume-pvc-{name}": name}
    assert bench.get("Pod", "j-w-0")["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": name}


def test_a_wrong_plugin_is_reported_and_creates_no_pod() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 1), plugins={"nope": []})
    bench.job("k", task("w", 1), plugins={"pytorch": ["--port=0"]})
    bench.admit()
    (first,) = bench.messages("Job", "PluginError")[:1]
    assert first == ("unknown plugin 'nope': accepted: env, svc, ssh, pytorch, mpi, tensorflow, ray, hcclrank")
    assert [name for name in bench.names("Pod") if name.startswith("j-")] == []


def test_a_gang_is_one_unit_of_eviction_when_an_eviction_ends_it() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 2), policies=_policies(PodEvicted="AbortJob"))
    bench.job("k", task("w", 2), policies=_policies(PodFailed="AbortJob"))
    kept = {"annotations": {"volcano.sh/evict-scope": "elastic"}}
    bench.job("u", task("w", 2), metadata=kept, policies=_policies(PodEvicted="RestartJob"))
    scopes = {
        group["metadata"]["name"][0]: group["metadata"]["annotations"].get("volcano.sh/evict-scope")
        for group in bench.all("PodGroup")
    }
    assert scopes == {"j": "job", "k": None, "u": "elastic"}
