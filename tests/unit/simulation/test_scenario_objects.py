"""Objects that come with what only a cluster gives (uids, owners, events), and what patches make of objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import default_conf
from capcard_sched.framework.core import Core
from capcard_sched.simulation.manifests import as_list, to_json
from capcard_sched.simulation.run import DEFAULT_SCHEDULERS, SimulationOptions, SimulationOutcome, simulate
from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario

REGISTRY = Registry.load()
DURATION = "simulation.capcard-sched.io/duration"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8"}}}
TEMPLATE = {
    "spec": {"schedulerName": "volcano", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
}
JOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}}


class Input:
    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> str:
        return self._text


def run(*documents: dict[str, Any]) -> SimulationOutcome:
    text = "\n".join(map(json.dumps, documents))
    scenario = load_scenario(["-"], stdin=Input(text), existing_queues=("root", "default"))
    core = Core(default_conf(REGISTRY), REGISTRY, scheduler_names=DEFAULT_SCHEDULERS, default_queue="default")
    return simulate(scenario, core, SimulationOptions())


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, **TEMPLATE}


def patch(seconds: int, target: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "metadata": {"name": target["metadata"]["name"]},
    }
    metadata = {**body["metadata"], **fields.pop("metadata", {})}
    operation = {"at": f"{seconds}s", "patch": {**body, "metadata": metadata, **fields}}
    return {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [operation]},
    }


def get(outcome: SimulationOutcome, kind: str, name: str) -> dict[str, Any]:
    return next(obj for obj in outcome.store.list(kind) if obj["metadata"]["name"] == name)


def test_the_end_of_one_run_is_a_start_of_another() -> None:
    first = as_list(run(NODE, pod("a"), {**JOB, "spec": {"tasks": [{"replicas": 2, "template": TEMPLATE}]}}).store)
    again = as_list(run(json.loads(to_json(first)), pod("b")).store)
    nodes = {obj["metadata"]["name"]: obj["spec"].get("nodeName") for obj in again["items"] if obj["kind"] == "Pod"}
    assert nodes == {"a": "n1", "b": "n1", "j-default0-0": "n1", "j-default0-1": "n1"}
    uids = [obj["metadata"]["uid"] for obj in again["items"]]
    assert len(uids) == len(set(uids))


def test_two_objects_cannot_have_one_uid() -> None:
    with pytest.raises(InputError, match=r'document 3: Pod b: metadata.uid: the string "u" is that of Pod default/a'):
        run(NODE, pod("a", uid="u"), pod("b", uid="u"))


def test_an_owner_that_is_not_named_is_none() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "gone", "controller": True}
    outcome = run(NODE, pod("a", ownerReferences=[owner]))
    assert get(outcome, "Pod", "a")["status"]["phase"] == "Running"


def test_fields_that_a_patch_leaves_out_are_defaulted_as_at_creation() -> None:
    task = {"name": "w", "template": TEMPLATE}
    outcome = run(
        NODE,
        {**JOB, "spec": {"tasks": [task], "minAvailable": 1, "queue": "q"}},
        patch(5, JOB, spec={"tasks": [{**task, "replicas": 3}], "queue": None}),
    )
    found = get(outcome, "Job", "j")["spec"]
    assert (found["tasks"][0]["minAvailable"], found["minAvailable"], found["queue"]) == (3, 1, "default")


@pytest.mark.parametrize(
    "before, after, ended",
    [
        pytest.param(None, "5s", "00:05", id="the new duration ends it"),
        pytest.param(None, "1s", "00:03", id="the new duration is over"),
        pytest.param("10s", "50s", "00:50", id="the new duration is longer"),
        pytest.param("10s", "4s", "00:04", id="the new duration is shorter"),
        pytest.param("10s", None, "", id="without a duration it runs for ever"),
    ],
)
def test_a_duration_counts_from_the_start_whenever_it_is_written(
    before: str | None, after: str | None, ended: str
) -> None:
    known = pod("a", annotations={DURATION: before} if before else {})
    outcome = run(NODE, known, patch(3, known, metadata={"annotations": {DURATION: after}}))
    state = get(outcome, "Pod", "a")["status"]
    assert state["phase"] == ("Succeeded" if ended else "Running")
    terminated = state["containerStatuses"][0]["state"].get("terminated", {})
    assert terminated.get("finishedAt", "")[14:19] == ended


def test_a_command_that_was_obeyed_may_be_given_again_under_its_name() -> None:
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}}

    def command(seconds: int, action: str) -> dict[str, Any]:
        target = {"apiVersion": queue["apiVersion"], "kind": "Queue", "name": "q"}
        body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": {"name": "do"}}
        return {"at": f"{seconds}s", "create": {**body, "action": action, "target": target}}

    timeline = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [command(1, "CloseQueue"), command(2, "OpenQueue"), command(3, "CloseQueue")]},
    }
    assert get(run(NODE, queue, timeline), "Queue", "q")["status"]["state"] == "Closed"
