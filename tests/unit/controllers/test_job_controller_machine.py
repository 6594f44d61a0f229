"""A model of the Job controller: every Job runs or ends, whatever happens to its pods.

A history is arbitrary: commands, policies, ends of pods; the controller ends before any write, and loses, repeats and
delays changes. Then faults stop, the scheduler admits and binds gangs, and programs succeed. The Job must end: a user
resumes it where a policy has aborted it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from capcard_sched.controllers.jobs.phases import FINISHED
from capcard_sched.validation.job_stages import check_stages
from capcard_sched.validation.job_structure import check_job_structure
from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest, task
from tests.unit.controllers.test_job_controller_histories import Faults, FaultyRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENTS = ("PodFailed", "PodEvicted", "PodPending", "TaskCompleted", "TaskFailed", "Unknown", "*")
_ACTIONS = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPartition", "RestartPod", "TerminateJob", "CompleteJob"),
    "ResumeJob",
)
_COMMANDS = ("AbortJob", "ResumeJob", "RestartJob", "CompleteJob", "TerminateJob", "SyncJob")
_NAMES = ("a", "b", "c")
#: Replicas to which a task is scaled.
_MOST_REPLICAS = 4
_PODS = st.sampled_from([f"j-{name}-{index}" for name in _NAMES for index in range(3)])
#: Seconds of a round of the environment: terminating pods are gone, and delayed actions are due.
_ROUND = 90
#: Rounds within which a Job ends: each restart takes a few.
_ROUNDS = 60


@st.composite
def _policies(draw: st.DrawFn) -> list[Manifest]:
    found: list[Manifest] = []
    for event in draw(st.lists(st.sampled_from(_EVENTS), unique=True, max_size=2)):
        if event == "*" and found:
            continue
        policy: Manifest = {"event": event, "action": draw(st.sampled_from(_ACTIONS))}
        if event == "PodPending" or draw(st.booleans()):
            policy["timeout"] = draw(st.sampled_from(["5s", "60s"]))
        found.append(policy)
        if event == "*":
            break
    if not found and draw(st.booleans()):
        found.append({"exitCode": 1, "action": draw(st.sampled_from(_ACTIONS))})
    return found


@st.composite
def _specs(draw: st.DrawFn) -> Manifest:
    """The spec of a Job that admission and `validate` accept."""
    tasks, has_policies = [], draw(st.booleans())
    for index, name in enumerate(_NAMES[: draw(st.integers(1, 3))]):
        replicas = draw(st.integers(1, 3))
        fields: Manifest = {
            "minAvailable": draw(st.integers(0, replicas)),
            "policies": draw(_policies()) if has_policies else [],
        }
        if index and draw(st.booleans()):
            before = draw(st.lists(st.sampled_from(_NAMES[:index]), unique=True, min_size=1))
            fields["dependsOn"] = {"name": before, "iteration": draw(st.sampled_from(["any", "all"]))}
        if replicas == 2 and draw(st.booleans()):
            fields["partitionPolicy"] = {"totalPartitions": 2, "partitionSize": 1}
        if draw(st.booleans()):
            fields["maxRetry"] = draw(st.sampled_from([-1, 1]))
        tasks.append(task(name, replicas, **fields))
    total = sum(each["replicas"] for each in tasks)
    spec: Manifest = {
        "tasks": tasks,
        "minAvailable": draw(st.integers(1, total)),
        "maxRetry": draw(st.integers(1, 3)),
        "policies": draw(_policies()) if has_policies else [],
        "queue": "default",
        "schedulerName": "volcano",
    }
    if draw(st.booleans()):
        spec["minSuccess"] = draw(st.integers(1, total))
    findings = [*check_job_structure({"metadata": {"name": "j"}, "spec": spec}), *check_stages(spec)]
    assume(not findings)
    return spec


class JobMachine(RuleBasedStateMachine):
    """One Job with everything that can happen to it."""

    @initialize(spec=_specs(), suspends=st.booleans())
    def start(self, spec: Manifest, suspends: bool) -> None:
        """`suspends`: at the end, the user suspends and resumes the Job first."""
        self._suspends = suspends
        self._bench = ClusterBench()
        self._faults = Faults()
        self._runner = FaultyRunner(self._bench, self._faults)
        self._commands = 0
        self._bench.create("Job", "j", spec=spec)

    # --- the environment ---

    @rule(action=st.sampled_from(_COMMANDS))
    def command(self, action: str) -> None:
        self._commands += 1
        self._bench.command(action, name=f"c{self._commands}")

    @rule(seconds=st.sampled_from([1, GRACE, 10, _ROUND]))
    def wait(self, seconds: int) -> None:
        self._bench.wait(seconds)

    @rule(most=st.integers(0, 9))
    def schedule(self, most: int) -> None:
        """The scheduler admits the PodGroup and binds whole gangs; the API server sees one binding after the other."""
        self._bench.admit()
        for name in list(self._bindable())[:most]:
            if self._bench.find("Pod", name) is not None:  # the binding before may have ended the Job
                self._bench.patch("Pod", name, {"spec": {"nodeName": "n1"}})

    @rule(pod=_PODS, code=st.sampled_from([0, 1, 2]))
    def finish(self, pod: str, code: int) -> None:
        found = self._bench.find("Pod", pod)
        if found is not None and found["status"].get("phase") == "Running":
            self._bench.finish(pod, code)

    @rule(pod=_PODS)
    def evict(self, pod: str) -> None:
        if self._bench.find("Pod", pod) is not None:
            self._bench.evict(pod)

    @rule(pod=_PODS)
    def remove(self, pod: str) -> None:
        """A node that is gone takes its pods away at once."""
        if self._bench.find("Pod", pod) is not None:
            self._bench.store.remove("Pod", "default", pod)
            self._bench.cluster.settle()

    @rule(pod=_PODS)
    def fail_without_container(self, pod: str) -> None:
        """A kubelet rejects or evicts a pod; its status has no containers."""
        found = self._bench.find("Pod", pod)
        if (
            found is not None
            and found["spec"].get("nodeName")
            and found["status"].get("phase") in ("Pending", "Running")
        ):
            self._bench.patch("Pod", pod, {"status": {"phase": "Failed", "reason": "Evicted"}})

    @rule(pod=_PODS)
    def restart_container(self, pod: str) -> None:
        found = self._bench.find("Pod", pod)
        if found is not None and found["status"].get("phase") == "Running":
            rows = [{"name": "main", "ready": True, "restartCount": 1, "state": {"running": {}}}]
            self._bench.patch("Pod", pod, {"status": {"containerStatuses": rows}})

    @rule(phase=st.sampled_from(["Unknown", "Running", "Pending"]))
    def change_group(self, phase: str) -> None:
        for name in self._bench.names("PodGroup"):
            self._bench.patch("PodGroup", name, {"status": {"phase": phase}})

    @rule()
    def delete_group(self) -> None:
        for name in self._bench.names("PodGroup"):
            self._bench.delete("PodGroup", name)

    @rule(index=st.integers(0, 2), replicas=st.integers(1, _MOST_REPLICAS))
    def scale(self, index: int, replicas: int) -> None:
        spec = self._bench.get("Job", "j")["spec"]
        tasks = [dict(each) for each in spec["tasks"]]
        changed = tasks[index % len(tasks)]
        if "partitionPolicy" in changed:
            return
        changed.update(replicas=replicas, minAvailable=min(changed["minAvailable"], replicas))
        body = {**spec, "tasks": tasks}
        if not [*check_job_structure({"metadata": {"name": "j"}, "spec": body}), *check_stages(body)]:
            self._bench.patch("Job", "j", {"spec": {"tasks": tasks}})

    @precondition(lambda self: self._bench.find("Pod", "j-a-0") is None)
    @rule()
    def take_the_name_of_a_pod(self) -> None:
        self._bench.create("Pod", "j-a-0", spec={"containers": [{"name": "main"}]})

    # --- faults ---

    @rule(writes=st.integers(0, 5))
    def end_the_controller(self, writes: int) -> None:
        """It ends before the write of this number from now on, and is started again."""
        self._runner._left = writes

    @rule(distance=st.integers(1, 4), kind=st.sampled_from(["lost", "repeated", "held"]))
    def disturb(self, distance: int, kind: str) -> None:
        """A change is lost or arrives twice, or a write of progress is held back."""
        seen = self._runner._progress if kind == "held" else self._runner._seen
        getattr(self._faults, kind).add(seen + distance)

    @rule()
    def list_again(self) -> None:
        self._list_again()

    def _list_again(self) -> None:
        self._runner.resync()
        self._bench.cluster.settle()

    # --- properties ---

    @invariant()
    def pods_do_not_exceed_replicas(self) -> None:
        live = (pod for pod in self._owned() if not pod["metadata"].get("deletionTimestamp"))
        tasks = Counter(pod["metadata"]["annotations"]["volcano.sh/task-spec"] for pod in live)
        assert all(count <= _MOST_REPLICAS for count in tasks.values()), tasks

    def teardown(self) -> None:
        """The environment cooperates."""
        if not hasattr(self, "_bench"):
            return
        bench = self._bench
        for kind in ("lost", "repeated", "held"):
            getattr(self._faults, kind).clear()
        self._runner._left = -1
        if not [pod for pod in self._owned() if pod["metadata"]["name"] == "j-a-0"] and bench.find("Pod", "j-a-0"):
            self._list_again()
            bench.delete("Pod", "j-a-0")
            bench.wait(_ROUND)
        else:
            self._list_again()
        resumes = 0
        if self._suspends:
            bench.command("AbortJob", name="suspend")
        for _ in range(_ROUNDS):
            bench.wait(_ROUND)
            self.schedule(99)
            for pod in self._owned():
                self.finish(pod["metadata"]["name"], 0)
            phase = bench.phase()
            if phase == "Aborted" and resumes < 3:
                resumes += 1
                bench.command("ResumeJob", name=f"resume{resumes}")
            elif phase in (*FINISHED, "Aborted"):
                break
        bench.wait(_ROUND)
        phase, status = bench.phase(), bench.status()
        pods = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in self._owned()}
        if resumes and not self._policies():
            # All pods succeed from then on, and a resume is no retry.
            restarts = bench.retries() - int(status["controlledResources"]["resumes"])
            assert phase == "Completed" or restarts >= bench.get("Job", "j")["spec"]["maxRetry"], (phase, status)
        assert phase in FINISHED or (phase == "Aborted" and self._aborts()), (phase, status, pods)
        assert set(pods.values()) <= {"Succeeded", "Failed"}, (phase, pods)
        assert not bench.names("PodGroup"), phase
        assert not bench.names("Command")

    def _aborts(self) -> bool:
        return any(policy["action"] == "AbortJob" for policy in self._policies())

    def _policies(self) -> list[Manifest]:
        spec = self._bench.get("Job", "j")["spec"]
        return [policy for part in (spec, *spec["tasks"]) for policy in part["policies"]]

    def _owned(self) -> list[Manifest]:
        return list(self._bench.store.owned(self._bench.get("Job", "j"), "Pod"))

    def _bindable(self) -> Iterator[str]:
        """The pods that the plugin `gang` lets a scheduler bind."""
        groups = [group for group in self._bench.all("PodGroup") if not group["metadata"].get("deletionTimestamp")]
        pods = [pod for pod in self._owned() if not pod["metadata"].get("deletionTimestamp")]
        if not groups or groups[0]["status"].get("phase") in (None, "", "Pending"):
            return
        wanted: Any = groups[0]["spec"]
        valid = [pod for pod in pods if pod["status"].get("phase") != "Failed"]
        roles = dict.fromkeys(wanted["minTaskMember"], 0)
        for pod in valid:
            roles[pod["metadata"]["annotations"]["volcano.sh/task-spec"]] += 1
        if len(valid) < wanted["minMember"]:
            return
        minimums = wanted["minTaskMember"]
        if wanted["minMember"] >= sum(minimums.values()) and any(
            roles[name] < least for name, least in minimums.items()
        ):
            return
        yield from (pod["metadata"]["name"] for pod in valid if not pod["spec"].get("nodeName"))


def _settings(steps: int, times: int) -> settings:
    return settings(settings(), stateful_step_count=steps, max_examples=times * settings().max_examples)


def test_every_job_runs_or_ends() -> None:
    run_state_machine_as_test(JobMachine, settings=_settings(12, 3))


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_every_job_runs_or_ends_after_long_histories() -> None:
    run_state_machine_as_test(JobMachine, settings=_settings(25, 25))
