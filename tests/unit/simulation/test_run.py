"""The loop: when sessions happen, what intents do, when a run ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from capcard_sched.model.deltas import BindFailed, Delta, EvictFailed, ObjectChanged
from capcard_sched.model.intents import (
    AnnotateQueue,
    Bind,
    EmitEvent,
    Evict,
    Intent,
    ObjectRef,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
)
from capcard_sched.model.objects import PodGroupCondition, PodObject
from capcard_sched.simulation.run import SimulationOptions, SimulationOutcome, simulate
from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.objects import change_of
from tests.scenarios.notation import manifests
from tests.scenarios.test_scenarios import fits

SECOND = 1_000_000
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": 4}}}
REF = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


class Result(NamedTuple):
    intents: Sequence[Intent]
    idle: bool
    next_wakeup: float | None = None
    only_retries: bool = False


class Scripted:
    """Answers each step by `answer(deltas, now)`; keeps the seconds and deltas of all steps."""

    def __init__(self, answer: Callable[[Sequence[Delta], float], Sequence[Intent]]) -> None:
        self._answer = answer
        self.steps: list[tuple[float, list[Delta]]] = []

    def step(self, deltas: Sequence[Delta], now: float) -> Result:
        self.steps.append((now - 1_767_225_600, list(deltas)))
        intents = self._answer(deltas, now)
        return Result(intents, idle=not deltas and not intents)


def _pods(deltas: Sequence[Delta]) -> list[PodObject]:
    changed = [delta.object for delta in deltas if isinstance(delta, ObjectChanged)]
    return [obj for obj in changed if isinstance(obj, PodObject)]


def bind_everything(node: str = "n1") -> Callable[[Sequence[Delta], float], Sequence[Intent]]:
    def answer(deltas: Sequence[Delta], _: float) -> list[Intent]:
        return [
            Bind(pod.metadata.namespace or "", pod.metadata.name, pod.metadata.uid, node, {"card": "A"})
            for pod in _pods(deltas)
            if not pod.spec.node_name
        ]

    return answer


def pod(name: str = "a", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": "volcano", "containers": [{"name": "c"}], **spec},
    }


def timeline(*operations: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": list(operations)},
    }


class Input:
    def __init__(self, *documents: dict[str, Any]) -> None:
        self._documents = documents

    def read(self) -> str:
        return "\n".join(map(json.dumps, self._documents))


def run(scheduler: Scripted, *documents: dict[str, Any], **options: Any) -> SimulationOutcome:
    scenario = load_scenario(["-"], stdin=Input(*documents))
    return simulate(scenario, scheduler, SimulationOptions(**options))


def get(outcome: SimulationOutcome, kind: str, name: str) -> dict[str, Any]:
    return next(obj for obj in outcome.store.list(kind) if obj["metadata"]["name"] == name)


def nothing(_deltas: Sequence[Delta], _now: float) -> Sequence[Intent]:
    return ()


def once(*intents: Intent) -> Scripted:
    left = [list(intents)]
    return Scripted(lambda _deltas, _now: left.pop() if left else ())


def test_a_bound_pod_runs_within_the_second_and_ends_after_its_duration() -> None:
    scheduler = Scripted(bind_everything())
    outcome = run(scheduler, NODE, pod(annotations={"simulation.capcard-sched.io/duration": "90m"}))
    found = get(outcome, "Pod", "a")
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"]["card"] == "A"
    assert found["status"]["startTime"] == "2026-01-01T00:00:00Z"
    assert found["status"]["phase"] == "Succeeded"
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] == "2026-01-01T01:30:00Z"
    assert outcome.end == 5402 * SECOND
    # The first session binds; the echo, then a quiet one; the end at 5400 s, then two quiet ones.
    assert [at for at, _ in scheduler.steps] == [0, 1, 2, 5400, 5401, 5402]


def test_sessions_stay_on_multiples_of_the_period() -> None:
    scheduler = Scripted(nothing)
    run(scheduler, timeline({"at": "12.3s", "create": NODE}), schedule_period=5 * SECOND)
    assert [at for at, _ in scheduler.steps] == [0, 5, 15, 20, 25]


def test_an_operation_is_seen_by_the_session_of_its_time_in_order_of_the_timeline() -> None:
    scheduler = Scripted(nothing)
    created = timeline({"at": "7s", "delete": REF}, {"at": "5s", "create": pod()}, {"at": "7s", "create": pod()})
    run(scheduler, created)
    seen = [(at, change_of(delta)) for at, deltas in scheduler.steps for delta in deltas]
    expected = [(5, "PodChanged"), (7, "PodGone"), (7, "PodChanged")]
    assert [one for one in seen if one[1] in {"PodChanged", "PodGone"}] == expected


def test_until_ends_the_run_and_includes_its_own_moment() -> None:
    scheduler = Scripted(nothing)
    late = timeline({"at": "10s", "create": NODE}, {"at": "11s", "create": pod()})
    outcome = run(scheduler, late, until=10 * SECOND)
    assert [at for at, _ in scheduler.steps][-1] == 10
    assert list(outcome.store.list("Pod")) == []
    assert len(list(outcome.store.list("Node"))) == 1
    assert outcome.end == 10 * SECOND


def test_changes_between_the_last_session_and_the_end_are_part_of_the_run() -> None:
    outcome = run(Scripted(nothing), timeline({"at": "10.4s", "create": NODE}), until=10_500_000)
    assert len(list(outcome.store.list("Node"))) == 1


def test_a_restless_cluster_is_stopped_with_a_warning() -> None:
    def flip(_deltas: Sequence[Delta], now: float) -> Sequence[Intent]:
        return [AnnotateQueue("default", {"at": str(now)})]

    outcome = run(Scripted(flip))
    assert outcome.sessions == 2_002
    assert "set the end of the run with --until" in outcome.warnings[0]


def test_a_deployment_whose_pods_end_again_and_again_is_stopped_with_a_warning() -> None:
    outcome = run(Scripted(bind_everything()), NODE, *manifests("deployment d*1 runs=1s"))
    assert "set the end of the run with --until" in outcome.warnings[0]
    live = [each for each in outcome.store.list("Pod") if each["status"]["phase"] != "Succeeded"]
    assert len(live) == 1


def test_a_run_of_many_replicas_is_not_taken_for_an_endless_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capcard_sched.simulation.run._ENDLESS_CHANGES", 0)
    waiting: list[Intent] = []

    def one_at_a_time(deltas: Sequence[Delta], now: float) -> Sequence[Intent]:
        waiting.extend(bind_everything()(deltas, now))
        return [waiting.pop()] if waiting else ()

    outcome = run(Scripted(one_at_a_time), NODE, *manifests("deployment d*70"))
    assert outcome.warnings == ()
    assert outcome.sessions > 70
    assert all(each["spec"]["nodeName"] == "n1" for each in outcome.store.list("Pod"))


def test_a_scheduler_that_depends_on_time_is_stepped_every_period_for_an_hour() -> None:
    scheduler = Scripted(nothing)
    patient = scheduler.step
    scheduler.step = lambda deltas, now: patient(deltas, now)._replace(idle=False)  # type: ignore[method-assign]
    run(scheduler, timeline({"at": "30s", "create": NODE}))
    assert [at for at, _ in scheduler.steps][:31] == list(range(31))


def test_deltas_hold_the_last_version_once() -> None:
    scheduler = Scripted(nothing)
    run(scheduler, NODE, pod(nodeName="n1"))
    pods = _pods(scheduler.steps[0][1])
    assert len(pods) == 1
    assert pods[0].status.phase == "Running"
    assert pods[0].metadata.annotations == {"scheduling.k8s.io/group-name": f"podgroup-{pods[0].metadata.uid}"}


BIND, EVICT = Bind("default", "a", "", "n1"), Evict("default", "a", "", "reclaim", "reclaim")
#: Fields of the pod `a`, intents of one session, and the failure that comes back.
REFUSED: dict[str, tuple[dict[str, Any], list[Intent], Delta]] = {
    "no such node": ({}, [Bind("default", "a", "", "elsewhere")],
                     BindFailed("default", "a", "", 'nodes "elsewhere" not found')),
    "another pod by now": ({}, [Bind("default", "a", "other-uid", "n1")],
                           BindFailed("default", "a", "other-uid", 'pods "a" not found')),
    "no such pod": ({}, [Bind("default", "b", "", "n1")], BindFailed("default", "b", "", 'pods "b" not found')),
    "a bound pod": ({}, [BIND, BIND], BindFailed("default", "a", "", "pod a is already assigned to node n1")),
    "a leaving pod": ({"nodeName": "n1"}, [EVICT, BIND],
                      BindFailed("default", "a", "", "pod a is being deleted, cannot be assigned to a host")),
    "no pod to evict": ({}, [Evict("default", "x", "u", "preempt", "preempt")],
                        EvictFailed("default", "x", "u", 'pods "x" not found')),
}  # fmt: skip


@pytest.mark.parametrize("spec, intents, failure", REFUSED.values(), ids=REFUSED)
def test_impossible_intents_come_back_as_failures(spec: dict[str, Any], intents: list[Intent], failure: Delta) -> None:
    scheduler = once(*intents)
    run(scheduler, NODE, pod(**spec))
    assert failure in [delta for _, deltas in scheduler.steps for delta in deltas]


def test_an_evicted_pod_shows_the_reason_terminates_and_is_deleted() -> None:
    halfway = run(once(EVICT), NODE, pod(nodeName="n1"), until=10 * SECOND)
    text = "Pod is evicted, because of reclaim"
    target = {
        "type": "DisruptionTarget",
        "reason": "PreemptionByScheduler",
        "message": "volcano: preempting to accommodate a higher priority pod",
    }
    ready = {"type": "Ready", "status": "False", "reason": "Evict", "message": text}
    wanted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z"}, "status": {"conditions": [ready, target]}}
    assert fits(wanted, get(halfway, "Pod", "a"))
    assert [(one.at, one.pod, one.node, one.reason) for one in halfway.evictions] == [(0, "a", "n1", "reclaim")]
    events = {(event["involvedObject"]["kind"], event["message"]) for event in halfway.store.list("Event")}
    assert events == {("Pod", text), ("PodGroup", "reclaim")}

    scheduler = once(EVICT)
    assert list(run(scheduler, NODE, pod(nodeName="n1")).store.list("Pod")) == []
    assert [at for at, deltas in scheduler.steps for delta in deltas if change_of(delta) == "PodGone"] == [30]


def _node(status: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": status}]
    return {**NODE, "status": {"allocatable": {"cpu": 4}, "conditions": conditions}}


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_pods_of_a_node_that_is_not_ready_do_not_change_until_it_is_ready(status: str) -> None:
    held = {"simulation.capcard-sched.io/duration": "5s"}
    going = pod("going", nodeName="n1")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    running = {"status": {"phase": "Running"}}
    pods = [pod(nodeName="n1"), {**pod("ends", held, nodeName="n1"), **running}, {**going, **running}]
    lost = run(once(), _node(status), *pods, until=100 * SECOND)
    found = {one["metadata"]["name"]: one["status"].get("phase") for one in lost.store.list("Pod")}
    assert found == {"a": "Pending", "ends": "Running", "going": "Running"}
    repair = timeline({"at": "50s", "patch": _node("True")})
    back = run(once(), _node(status), *pods, repair, until=100 * SECOND)
    found = {one["metadata"]["name"]: one["status"].get("phase") for one in back.store.list("Pod")}
    assert found == {"a": "Running", "ends": "Succeeded"}


def test_an_eviction_for_another_pod_emits_its_event_on_the_pod_and_not_on_its_group() -> None:
    evict = Evict("default", "a", "", "reclaim", "reclaim: cpu: 1", by="default/b", queue="q")
    events = run(once(evict), NODE, pod(nodeName="n1"), until=SECOND).store.list("Event")
    assert [event["involvedObject"]["kind"] for event in events if event["reason"] == "Evict"] == ["Pod"]


def test_status_intents_are_written() -> None:
    condition = PodGroupCondition("Unschedulable", "True", "session-1", "2026-01-01T00:00:00Z", "Why", "text")
    outcome = run(
        once(
            UpdatePodGroup("default", "g", "", "Inqueue", 1, 0, 2, (condition,)),
            UpdatePodGroup("default", "missing", "", "Inqueue", 1, 0, 2, ()),
            UpdateQueueStatus("default", {"cpu": "2", "gpu": "1"}),
            UpdateQueueStatus("default", {"cpu": "2"}),
            AnnotateQueue("default", {"x": "1", "y": None}),
            UpdatePodCondition("default", "a", "", "Unschedulable", "no room", "n1"),
        ),
        *manifests("group g min=1"),
        pod(annotations={"scheduling.k8s.io/group-name": "g"}),
    )
    written = {
        "type": "Unschedulable",
        "status": "True",
        "transitionID": "session-1",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Why",
        "message": "text",
    }
    status = get(outcome, "PodGroup", "g")["status"]
    assert fits({"phase": "Inqueue", "running": 1, "failed": 2, "succeeded": None}, status)
    assert status["conditions"] == [written]
    queue = get(outcome, "Queue", "default")
    assert queue["status"]["allocated"] == {"cpu": "2"}, "without resources that are no longer held"
    assert queue["metadata"]["annotations"] == {"x": "1"}
    assert fits({"nominatedNodeName": "n1", "conditions": [{"message": "no room"}]}, get(outcome, "Pod", "a")["status"])


def test_equal_events_are_counted_and_different_ones_kept_apart() -> None:
    about = ObjectRef("PodGroup", "ns", "g", "u")
    first = EmitEvent(about, "Warning", "Why", "text")
    others = [
        EmitEvent(about, "Warning", "Why", "text", "volcano.capacity-card"),
        EmitEvent(about, "Warning", "Why", "other text"),
        EmitEvent(ObjectRef("Queue", "", "q"), "Normal", "Why", "text"),
    ]
    sent = {0: [first, *others], 1: [first], 60: [first]}
    scheduler = Scripted(lambda _deltas, now: sent.get(int(now) - 1_767_225_600, []))
    outcome = run(scheduler, timeline({"at": "60s", "create": NODE}), until=120 * SECOND)
    events = {event["metadata"]["name"]: event for event in outcome.store.list("Event")}
    assert len(events) == 4
    counted = events["g.0000000000000001"]
    assert counted["count"] == 3
    assert (counted["firstTimestamp"], counted["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
    assert counted["involvedObject"] == {
        "kind": "PodGroup",
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "namespace": "ns",
        "name": "g",
        "uid": "u",
    }
    assert events["g.0000000000000002"]["source"] == {"component": "volcano.capacity-card"}
    assert events["q.0000000000000004"]["metadata"]["namespace"] == "default"


def test_creating_an_object_that_a_controller_made_is_named() -> None:
    with pytest.raises(InputError, match="create Pod default/a: the object already exists at 2s"):
        run(Scripted(nothing), pod(), timeline({"at": "2s", "create": pod()}))


def test_deleting_a_missing_object_is_only_a_warning() -> None:
    outcome = run(
        once(Evict("default", "a", "", "preempt", "preempt")),
        NODE,
        pod(annotations={"simulation.capcard-sched.io/grace": "0s"}, nodeName="n1"),
        timeline({"at": "5s", "delete": REF}),
    )
    assert outcome.warnings == (
        "-: document 3: Scenario: spec.operations[0].delete: delete Pod default/a: the object is already deleted at 5s",
    )


def test_missing_priority_classes_are_reported() -> None:
    outcome = run(
        Scripted(nothing), pod(priorityClassName="urgent"), pod("b", priorityClassName="system-node-critical")
    )
    assert outcome.warnings == ("PriorityClass urgent does not exist: pods get priority 0; an API server rejects them",)
    assert get(outcome, "Pod", "b")["spec"]["priority"] == 2_000_001_000


def test_the_global_default_class_gives_pods_their_priority() -> None:
    default = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "usual"},
        "value": 7,
        "globalDefault": True,
        "preemptionPolicy": "Never",
    }
    spec = get(run(Scripted(nothing), default, pod()), "Pod", "a")["spec"]
    assert (spec["priority"], spec["priorityClassName"], spec["preemptionPolicy"]) == (7, "usual", "Never")


def test_a_deleted_namespace_takes_everything_in_it_along() -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    inside = pod()
    inside["metadata"]["namespace"] = "team"
    outcome = run(Scripted(nothing), namespace, inside, pod("b"), timeline({"at": "1s", "delete": namespace}))
    assert [one["metadata"]["name"] for one in outcome.store.list("Pod")] == ["b"]
    assert len(list(outcome.store.list("PodGroup"))) == 1


def test_a_scheduler_that_is_always_due_and_never_does_anything_comes_to_an_end() -> None:
    class Restless(Scripted):
        def step(self, deltas: Sequence[Delta], now: float) -> Result:
            return super().step(deltas, now)._replace(next_wakeup=now // 3600 * 3600 + 3600)

    sent = []

    def with_new_text(_: Sequence[Delta], now: float) -> list[Intent]:
        """Emits every hour another text about a pod that waits as before."""
        text = f"no room in hour {now // 3600}"
        if text in sent:
            return []
        sent.append(text)
        return [UpdatePodCondition("default", "a", "", "Unschedulable", text)]

    for answer in (nothing, with_new_text):
        scheduler = Restless(answer)
        outcome = run(scheduler, NODE, pod())
        hours = {seconds // 3600 for seconds, _ in scheduler.steps if seconds >= 3600}
        assert 10 < len(hours) < 40
        assert outcome.warnings == ()
