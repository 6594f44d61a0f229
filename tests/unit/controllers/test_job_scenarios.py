"""The worked scenarios of a Job's life: creation, eviction, restart, completion, scaling, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest, task


def _policies(**actions: str) -> list[Manifest]:
    return [{"event": event, "action": action} for event, action in actions.items()]


def test_a_new_job_is_pending_with_a_pending_podgroup_and_no_pod() -> None:
    bench = ClusterBench()
    created = bench.job("j", task("w", 2), minAvailable=2)
    assert bench.phase() == "Pending"
    assert bench.names("Pod") == []
    group = bench.get("PodGroup", f"j-{created['metadata']['uid']}")
    assert group["status"]["phase"] == "Pending"
    assert (group["spec"]["minMember"], group["spec"]["minTaskMember"]) == (2, {"w": 2})
    assert group["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"]


def test_pods_are_created_when_the_podgroup_is_admitted_and_the_job_runs_with_them() -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 2), minAvailable=2)
    bench.admit()
    assert bench.names("Pod") == ["j-w-0", "j-w-1"]
    notes = bench.get("Pod", "j-w-1")["metadata"]["annotations"]
    assert notes == {
        "scheduling.k8s.io/group-name": bench.names("PodGroup")[0],
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "w",
        "volcano.sh/job-name": "j",
        "volcano.sh/queue-name": "default",
        "volcano.sh/job-version": "0",
        "volcano.sh/template-uid": "j-w",
        "volcano.sh/job-retry-count": "0",
    }
    labels = bench.get("Pod", "j-w-1")["metadata"]["labels"]
    assert labels == {
        "volcano.sh/task-index": "1",
        "volcano.sh/job-name": "j",
        "volcano.sh/task-spec": "w",
        "volcano.sh/job-namespace": "default",
        "volcano.sh/queue-name": "default",
    }
    assert bench.phase() == "Pending"
    bench.bind()
    assert bench.phase() == "Running"
    assert bench.status()["taskStatusCount"] == {"w": {"phase": {"Running": 2}}}


def test_an_abort_by_eviction_takes_all_pods_and_the_podgroup_and_a_resume_starts_over() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodEvicted="AbortJob"))
    bench.evict("j-w-0")
    assert (bench.phase(), bench.live(), bench.names("PodGroup")) == ("Aborting", [], [])
    assert bench.status()["version"] == 1
    bench.wait(GRACE)
    assert (bench.phase(), bench.names("Pod"), bench.retries()) == ("Aborted", [], 0)
    bench.wait(600)
    assert bench.names("Pod") == []
    bench.command("ResumeJob")
    assert (bench.phase(), bench.retries(), bench.names("Command")) == ("Pending", 1, [])
    assert [entry["status"] for entry in bench.status()["conditions"]][-2:] == ["Restarting", "Pending"]
    assert bench.all("PodGroup")[0]["status"]["phase"] == "Pending"
    assert bench.names("Pod") == []
    bench.admit()
    assert bench.status()["version"] == 2
    assert {pod["metadata"]["annotations"]["volcano.sh/job-version"] for pod in bench.all("Pod")} == {"2"}


def test_a_restart_by_eviction_replaces_the_gang_once_and_after_new_admission() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodEvicted="RestartJob"), maxRetry=3)
    before = bench.uids()
    bench.evict("j-w-0")
    assert (bench.phase(), bench.live()) == ("Restarting", [])
    bench.wait(GRACE)
    assert (bench.phase(), bench.names("Pod")) == ("Pending", [])
    bench.admit()
    bench.bind()
    assert (bench.phase(), bench.retries()) == ("Running", 1)
    assert not set(before.values()) & set(bench.uids().values())


def test_the_last_retry_fails_the_job_and_keeps_the_pods_that_ended() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodFailed="RestartJob"), maxRetry=3)
    for retry in (1, 2):
        bench.finish("j-w-0", code=1)
        assert bench.retries() == retry
        bench.wait(GRACE)
        bench.admit()
        bench.bind()
        assert bench.phase() == "Running"
    bench.finish("j-w-0", code=1)
    bench.wait(GRACE)
    assert (bench.phase(), bench.retries()) == ("Failed", 3)
    assert bench.names("Pod") == ["j-w-0"]
    assert bench.status()["failed"] == 1, "pods that are kept count"


def test_the_third_eviction_fails_the_job() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=_policies(PodEvicted="RestartJob"), maxRetry=3)
    for _ in range(3):
        bench.evict("j-w-0")
        bench.wait(GRACE)
        bench.admit()
        bench.bind()
    assert (bench.phase(), bench.retries(), bench.names("Pod")) == ("Failed", 3, [])


def test_without_a_policy_only_the_evicted_pod_is_replaced() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 3), minAvailable=2)
    before = bench.uids()
    bench.evict("j-w-0")
    assert bench.phase() == "Running"
    bench.wait(GRACE)
    assert bench.names("Pod") == ["j-w-0", "j-w-1", "j-w-2"]
    after = bench.uids()
    assert before["j-w-0"] != after["j-w-0"]
    assert before["j-w-1"] == after["j-w-1"]
    assert bench.phase() == "Running", "one of three is pending, and two are enough"
    bench.evict("j-w-1")
    bench.wait(GRACE)
    assert bench.phase() == "Pending", "two of three are pending"
    bench.bind()
    assert (bench.phase(), bench.retries()) == ("Running", 0)


def test_a_restarted_task_is_replaced_once_and_the_podgroup_stays() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("a", 2, policies=_policies(PodEvicted="RestartTask")), task("b", 2))
    before, group = bench.uids(), bench.all("PodGroup")[0]["metadata"]["uid"]
    bench.evict("j-a-0")
    bench.wait(GRACE)
    bench.bind()
    bench.wait(GRACE)
    after = bench.uids()
    assert [name for name in before if before[name] != after[name]] == ["j-a-0", "j-a-1"]
    assert (bench.phase(), bench.retries()) == ("Running", 1)
    assert bench.all("PodGroup")[0]["metadata"]["uid"] == group


def test_the_first_policy_that_matches_decides() -> None:
    bench = ClusterBench()
    policies = [{"exitCode": 137, "action": "RestartPod"}, {"event": "PodFailed", "action": "TerminateJob"}]
    bench.running_job("j", task("w", 2), policies=policies)
    before = bench.uids()
    bench.finish("j-w-0", code=137)
    bench.wait(GRACE)
    bench.bind()
    assert (bench.phase(), bench.retries()) == ("Running", 1)
    assert [name for name in before if before[name] != bench.uids()[name]] == ["j-w-0"]
    bench.finish("j-w-1", code=1)
    assert bench.phase() == "Terminating"


def test_the_exit_code_of_any_container_but_a_sidecar_counts() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=[{"exitCode": 137, "action": "AbortJob"}])
    rows = [
        {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}},
        {"name": "helper", "restartCount": 0, "state": {"terminated": {"exitCode": 137}}},
    ]
    bench.patch("Pod", "j-w-0", {"status": {"phase": "Failed", "containerStatuses": rows}})
    assert bench.phase() == "Aborting"


def test_a_pod_that_fails_in_its_grace_period_was_evicted() -> None:
    bench = ClusterBench()
    policies = _policies(PodFailed="TerminateJob", PodEvicted="RestartJob")
    bench.running_job("j", task("w", 2), policies=policies)
    bench.evict("j-w-0")
    bench.patch("Pod", "j-w-0", {"status": {"phase": "Failed"}})
    assert (bench.phase(), bench.retries()) == ("Restarting", 1)


@pytest.mark.parametrize("runs_at, replaced", [(None, True), (6, False)])
def test_a_pod_that_pends_too_long_is_replaced(runs_at: int | None, replaced: bool) -> None:
    bench = ClusterBench()
    policies = [{"event": "PodPending", "action": "RestartPod", "timeout": "10s"}]
    bench.job("j", task("w", 1), policies=policies)
    bench.admit()
    before = bench.uids()
    bench.wait(runs_at or 9)
    assert bench.uids() == before
    if runs_at is not None:
        bench.bind()
    bench.wait(10 - (runs_at or 9))
    assert (bench.uids() != before) is replaced
    assert bench.retries() == int(replaced)


def test_a_completed_driver_completes_the_job() -> None:
    bench = ClusterBench()
    policies = _policies(TaskCompleted="CompleteJob")
    bench.running_job("j", task("driver", 1, policies=policies), task("w", 4))
    bench.finish("j-driver-0")
    assert (bench.phase(), bench.live()) == ("Completing", ["j-driver-0"])
    bench.wait(GRACE)
    assert (bench.phase(), bench.status()["succeeded"]) == ("Completed", 1)
    assert bench.status()["runningDuration"] == f"{GRACE}s"


def test_enough_successes_complete_the_job() -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 3), minSuccess=2)
    bench.finish("j-w-0")
    assert bench.phase() == "Running"
    bench.finish("j-w-1")
    assert (bench.phase(), bench.live()) == ("Completed", ["j-w-0", "j-w-1"])


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


def test_scaling_down_is_no_eviction() -> None:
    bench = ClusterBench()
    policies = _policies(PodEvicted="TerminateJob")
    bench.running_job("j", task("w", 4, minAvailable=2), minAvailable=2, policies=policies)
    bench.patch("Job", "j", {"spec": {"tasks": [task("w", 2, minAvailable=2)]}})
    assert bench.live() == ["j-w-0", "j-w-1"]
    bench.wait(GRACE)
    assert (bench.phase(), bench.names("Pod")) == ("Running", ["j-w-0", "j-w-1"])
    group = bench.all("PodGroup")[0]["spec"]
    assert (group["minMember"], group["minResources"]["cpu"]) == (2, "2")


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


def test_late_pods_of_a_job_of_the_same_name_are_no_events() -> None:
    bench = ClusterBench()
    policies = _policies(PodEvicted="TerminateJob")
    bench.running_job("j", task("w", 2), policies=policies)
    old = bench.uids()
    bench.delete("Job", "j")
    assert set(bench.uids()) == set(old), "they terminate"
    bench.job("j", task("w", 2), policies=policies)
    bench.admit()
    bench.wait(GRACE)
    bench.bind()
    assert (bench.phase(), bench.retries(), bench.names("Pod")) == ("Running", 0, ["j-w-0", "j-w-1"])
    assert not set(old.values()) & set(bench.uids().values())


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
        bench.wait(GRACE)
        bench.admit()
        bench.bind()
        assert bench.phase() == "Running"


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
        bench.wait(GRACE)
        bench.admit()
        bench.bind()
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
    scopes = {
        group["metadata"]["name"][0]: group["metadata"]["annotations"].get("volcano.sh/evict-scope")
        for group in bench.all("PodGroup")
    }
    assert scopes == {"j": "job", "k": None}
