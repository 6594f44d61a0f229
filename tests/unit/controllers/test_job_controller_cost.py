"""The cost of a pass over a Job is linear in its tasks and pods: counted in executed lines, not in time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Create
from capcard_sched.model.intents import EmitEvent
from capcard_sched.simulation.clock import VirtualClock
from capcard_sched.simulation.store import Store
from tests.lines import executed_lines
from tests.unit.controllers.bench import API, SCHEDULER, Manifest, task

_KEY = Key("Job", "default", "j")


def _chain(size: int) -> Manifest:
    tasks = [task(f"t{number}", 1, minAvailable=0) for number in range(size)]
    for number in range(1, size):
        tasks[number]["dependsOn"] = {"name": [f"t{number - 1}"]}
    return {"minAvailable": 1, "tasks": tasks}


#: Case to the spec of a Job of a size.
SPECS: dict[str, Callable[[int], Manifest]] = {
    "tasks": lambda size: {"tasks": [task(f"t{number}", 1) for number in range(size)]},
    "replicas": lambda size: {"tasks": [task("w", size)]},
    "replicas with a plugin": lambda size: {"tasks": [task("w", size)], "plugins": {"svc": []}},
    "tasks that depend on each other": _chain,
    "tasks of which each depends on many": lambda size: {
        "minAvailable": 1,
        "tasks": [task(f"t{number}", 1, minAvailable=0, dependsOn={"name": ["t0"] * 20}) for number in range(size)],
    },
    "a task that depends on many": lambda size: {
        "minAvailable": 1,
        "tasks": [task("w", 2, minAvailable=0, dependsOn={"name": [f"x{number}" for number in range(size)]})],
    },
    "tasks with partitions": lambda size: {
        "tasks": [
            task(f"t{number}", 2, partitionPolicy={"totalPartitions": 2, "partitionSize": 1, "minPartitions": 1})
            for number in range(size)
        ],
    },
    "partitions": lambda size: {
        "tasks": [task("w", size, partitionPolicy={"totalPartitions": size, "partitionSize": 1})],
    },
    "policies": lambda size: {
        "policies": [{"exitCode": 1 + number, "action": "RestartTask"} for number in range(size)],
        "tasks": [task("w", 2)],
    },
    "events of a policy": lambda size: {
        "policies": [{"events": ["PodEvicted"] * size, "action": "RestartTask"}],
        "tasks": [task("w", 2)],
    },
    "policies and replicas": lambda size: {
        "policies": [{"exitCode": 1 + number, "action": "RestartTask"} for number in range(size)],
        "tasks": [task("w", size)],
    },
    "volumes": lambda size: {
        "volumes": [{"mountPath": f"/{number}", "volumeClaimName": f"c{number}"} for number in range(size)],
        "tasks": [task("w", 2)],
    },
    "arguments of a plugin": lambda size: {
        "plugins": {"mpi": [f"--master=t{number}" for number in range(size)]},
        "tasks": [task("w", 2)],
    },
    "names of plugins": lambda size: {
        "plugins": {f"plugin-{number}": [] for number in range(size)},
        "tasks": [task("w", 2)],
    },
    "tasks with policies": lambda size: {
        "policies": [{"event": "PodEvicted", "action": "RestartTask", "timeout": "1h"}],
        "tasks": [task(f"t{number}", 1) for number in range(size)],
    },
}
#: Pods of a Job: none, all run, all failed, or all terminate.
STATES: dict[str, Manifest] = {
    "without pods": {},
    "that runs": {"status": {"phase": "Running"}},
    "that failed": {"status": {"phase": "Failed"}},
    "that terminates": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:10Z"}, "status": {"phase": "Running"}},
}


def _made(spec: Manifest) -> tuple[list[Manifest], list[str]]:
    """The pods that one pass over an admitted Job creates, and the reasons of its warnings."""
    store = Store(VirtualClock())
    store.create("Job", {"apiVersion": API["Job"], "kind": "Job", "metadata": {"name": "j"}, "spec": spec})
    controller = JobController(SCHEDULER, lambda: KeyPair("private", "public"))
    for write in controller.reconcile(store, _KEY, 1e9).writes:
        if isinstance(write, Create) and write.object["kind"] == "PodGroup":
            store.create("PodGroup", {**write.object, "status": {"phase": "Inqueue"}})
    writes = controller.reconcile(store, _KEY, 1e9).writes
    pods = [each.object for each in writes if isinstance(each, Create) and each.object["kind"] == "Pod"]
    return pods, [each.reason for each in writes if isinstance(each, EmitEvent) and each.type == "Warning"]


def test_the_pods_of_one_pass_are_bounded_in_bytes() -> None:
    """Each of them has two variables per task."""
    pods, _ = _made({"plugins": {"svc": []}, "tasks": [task(f"t{number}", 1) for number in range(600)]})
    sizes = [len(msgspec.json.encode(pod)) for pod in pods]
    assert 0 < len(pods) < 500
    assert 16 << 20 <= sum(sizes) <= (16 << 20) + max(sizes)


def test_a_pod_that_fits_into_no_object_is_not_made() -> None:
    """The containers of one task times the variables of the others."""
    large = task("large", 1)
    large["template"]["spec"]["containers"] *= 200
    pods, warnings = _made(
        {"plugins": {"svc": []}, "tasks": [large, *(task(f"t{number}", 1) for number in range(100))]}
    )
    assert [pod["metadata"]["name"] for pod in pods] == [f"j-t{number}-0" for number in range(100)]
    assert warnings == ["FailedCreate"]


def _cost(spec: Manifest, state: str) -> int:
    store = Store(VirtualClock())
    store.create("Job", {"apiVersion": API["Job"], "kind": "Job", "metadata": {"name": "j"}, "spec": spec})
    controller = JobController(SCHEDULER, lambda: KeyPair("private", "public"))
    for _ in range(3):
        for write in controller.reconcile(store, _KEY, 1e9).writes:
            made: Manifest = write.object if isinstance(write, Create) else {"kind": ""}
            if made["kind"] == "PodGroup":
                store.create("PodGroup", {**made, "status": {"phase": "Inqueue"}})
            elif made["kind"] == "Pod" and STATES[state]:
                changes = {**STATES[state], "metadata": {**made["metadata"], **STATES[state].get("metadata", {})}}
                store.create("Pod", {**made, **changes})
    return executed_lines(lambda: controller.reconcile(store, _KEY, 1e9))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("case", SPECS)
def test_a_pass_is_linear_in_the_size_of_the_job(case: str, state: str) -> None:
    small, large = (_cost(SPECS[case](size), state) for size in (50, 200))
    assert large < 6 * small, (small, large)
