"""Random histories of a Job, with a controller that ends between any two writes and misses or repeats watch events.

After faults stop and the cluster has settled, it is as if there had been none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Increment, Observe, Patch
from capcard_sched.model.intents import EmitEvent
from capcard_sched.simulation.workloads.controller_runner import ControllerRunner
from tests.unit.controllers.bench import GRACE, SCHEDULER, ClusterBench, Manifest, task

if TYPE_CHECKING:
    from capcard_sched.controllers.view import Write
    from capcard_sched.simulation.store import Change

KEY = Key("Job", "default", "j")
MOST_RETRIES = 3


class _EndedError(Exception):
    """The controller ends here."""


@dataclass
class Faults:
    """The writes before which the controller ends, counted from the last end; changes that are not seen, and twice.

    `held` are the writes of progress that the pace of the loop leaves to a later pass.
    """

    ends: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)


def _controller() -> JobController:
    return JobController(SCHEDULER, lambda: KeyPair("private", "public"))


class FaultyRunner(ControllerRunner):
    """A controller that ends, and is started again at the next settling."""

    def __init__(self, bench: ClusterBench, faults: Faults) -> None:
        self._faults = faults
        self._left = faults.ends.pop(0) if faults.ends else -1
        self._seen = self._progress = 0
        present = bench.job_runner()
        super().__init__(bench.store, bench.cluster.recorder, _controller())
        bench.cluster._controllers = tuple(self if each is present else each for each in bench.cluster._controllers)
        bench.store._observers = [
            self.observe if getattr(each, "__self__", None) is present else each for each in bench.store._observers
        ]

    def observe(self, change: Change) -> None:
        """A lost change is made good by the list of the next start, or by the next change."""
        self._seen += 1
        if self._seen in self._faults.lost:
            return
        super().observe(change)
        if self._seen in self._faults.repeated:
            super().observe(change)

    def reconcile(self) -> bool:
        """A new process lists everything first."""
        try:
            return super().reconcile()
        except _EndedError:
            self._left = self._faults.ends.pop(0) if self._faults.ends else -1
            self._controller = _controller()
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self._queue.clear()
            self._queue[KEY] = None
            return True

    def resync(self) -> None:
        """As after a new list."""
        self._queue[KEY] = None

    def _write(self, write: Write) -> str:
        if isinstance(write, Patch) and write.lazy:
            self._progress += 1
            if self._progress in self._faults.held:
                return ""
        if not isinstance(write, EmitEvent | Increment | Observe):
            if self._left == 0:
                raise _EndedError
            self._left -= 1
        return super()._write(write)


_TASKS = ("a", "b")
_REPLICAS = 2
OPERATIONS = st.one_of(
    st.tuples(st.just("evict"), st.sampled_from(["j-a-0", "j-a-1", "j-b-0"])),
    st.tuples(st.just("fail"), st.sampled_from(["j-a-1", "j-b-1"])),
    st.tuples(st.just("succeed"), st.sampled_from(["j-a-0", "j-b-0"])),
    st.tuples(st.just("command"), st.sampled_from(["AbortJob", "ResumeJob", "RestartJob", "TerminateJob"])),
    st.tuples(st.just("scale"), st.sampled_from(["1", "2", "3"])),
    st.tuples(st.just("wait"), st.just("")),
)
POLICIES = st.fixed_dictionaries(
    {
        "PodEvicted": st.sampled_from(
            [None, "AbortJob", "RestartJob", "RestartTask", "RestartPartition", "RestartPod"]
        ),
        "PodFailed": st.sampled_from([None, "RestartTask", "RestartPartition", "RestartPod", "TerminateJob"]),
    }
)
FAULTS = st.builds(
    Faults,
    ends=st.lists(st.integers(0, 6), max_size=8),
    repeated=st.sets(st.integers(1, 60), max_size=6),
    held=st.sets(st.integers(1, 40), max_size=20),
)


def _check(bench: ClusterBench) -> None:
    """At no time is a pod double or beyond the replicas, and none outlives the Job's end."""
    job = bench.find("Job", "j")
    assert job is not None
    owned = bench.store.owned(job, "Pod")
    replicas = {each["name"]: each["replicas"] for each in job["spec"]["tasks"]}
    for name, most in replicas.items():
        live = [
            pod
            for pod in owned
            if pod["metadata"]["annotations"]["volcano.sh/task-spec"] == name
            and not pod["metadata"].get("deletionTimestamp")
        ]
        assert len(live) <= most
    assert job["status"].get("retryCount", 0) <= MOST_RETRIES


def _play(policies: dict[str, str | None], operations: list[tuple[str, str]], faults: Faults) -> Manifest:
    """The end of a history: what a user sees of it, without times and uids."""
    bench = ClusterBench()
    runner = FaultyRunner(bench, faults)
    rules = [{"event": event, "action": action} for event, action in policies.items() if action]
    halves = {"totalPartitions": 2, "partitionSize": 1}
    tasks = [task(name, _REPLICAS, minAvailable=1, partitionPolicy=halves) for name in _TASKS]
    bench.job("j", *tasks, minAvailable=2, policies=rules, maxRetry=MOST_RETRIES)
    for number, (verb, argument) in enumerate(operations):
        _advance(bench, runner)
        _check(bench)
        pod = bench.find("Pod", argument) if verb in ("evict", "fail", "succeed") else None
        running = pod is not None and pod["status"].get("phase") == "Running"
        if verb == "evict" and running:
            bench.evict(argument)
        elif verb == "fail" and running:
            bench.finish(argument, code=1)
        elif verb == "succeed" and running:
            bench.finish(argument)
        elif verb == "command":
            bench.command(argument, name=f"c{number}")
        elif verb == "scale":
            scaled = [task("a", int(argument), minAvailable=1, partitionPolicy=halves), tasks[1]]
            bench.patch("Job", "j", {"spec": {"tasks": scaled}})
        _check(bench)
    faults.ends.clear()
    faults.lost.clear()
    faults.held.clear()
    runner.resync()
    bench.cluster.settle()
    _advance(bench, runner)
    _check(bench)
    status = bench.status()
    pods = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in bench.all("Pod")}
    return {
        "phase": status["state"]["phase"],
        "retries": status.get("retryCount", 0),
        "counts": {key: status.get(key, 0) for key in ("pending", "running", "succeeded", "failed", "terminating")},
        "pods": pods,
        "groups": len(bench.all("PodGroup")),
        "commands": bench.names("Command"),
    }


def _advance(bench: ClusterBench, runner: FaultyRunner) -> None:
    """The scheduler and the kubelets do all they can, and the watches are listed anew."""
    for _ in range(4):
        bench.wait(GRACE)
        runner.resync()
        bench.cluster.settle()
        bench.admit()
        bench.bind()


@given(policies=POLICIES, operations=st.lists(OPERATIONS, max_size=6), faults=FAULTS)
def test_a_history_with_faults_ends_as_one_without(
    policies: dict[str, str | None], operations: list[tuple[str, str]], faults: Faults
) -> None:
    expected = _play(policies, operations, Faults())
    assert _play(policies, operations, faults) == expected


@settings(max_examples=settings().max_examples // 2)
@given(
    policies=POLICIES,
    operations=st.lists(OPERATIONS, max_size=5),
    lost=st.sets(st.integers(1, 80), max_size=10),
)
def test_lost_watch_events_are_made_good_by_the_next_list(
    policies: dict[str, str | None], operations: list[tuple[str, str]], lost: set[int]
) -> None:
    assert _play(policies, operations, Faults(lost=lost)) == _play(policies, operations, Faults())
