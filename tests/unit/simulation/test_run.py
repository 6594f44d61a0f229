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
from capcard_sched.simulation.manifests import as_list, to_json
from capcard_sched.simulation.run import SimulationOptions, SimulationOutcome, simulate
from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.objects import change_of

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


def deployment(replicas: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "d"}, "annotations": annotations or {}}, "spec": pod()["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def test_a_deployment_whose_pods_end_again_and_again_is_stopped_with_a_warning() -> None:
    churn = deployment(1, {"simulation.capcard-sched.io/duration": "1s"})
    outcome = run(Scripted(bind_everything()), NODE, churn)
    assert "set the end of the run with --until" in outcome.warnings[0]
    live = [each for each in outcome.store.list("Pod") if each["status"]["phase"] != "Succeeded"]
    assert len(live) == 1


def test_a_run_of_many_replicas_is_not_taken_for_an_endless_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capcard_sched.simulation.run._ENDLESS_CHANGES", 0)
    waiting: list[Intent] = []

    def one_at_a_time(deltas: Sequence[Delta], now: float) -> Sequence[Intent]:
        waiting.extend(bind_everything()(deltas, now))
        return [waiting.pop()] if waiting else ()

    outcome = run(Scripted(one_at_a_time), NODE, deployment(70))
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


REFUSED = [
    ("no such node", Bind("default", "a", "", "elsewhere"), 'nodes "elsewhere" not found'),
    ("another pod by now", Bind("default", "a", "other-uid", "n1"), 'pods "a" not found'),
    ("no such pod", Bind("default", "b", "", "n1"), 'pods "b" not found'),
]


@pytest.mark.parametrize("intent, message", [pytest.param(*case[1:], id=case[0]) for case in REFUSED])
def test_impossible_bindings_come_back_as_refusals(intent: Bind, message: str) -> None:
    scheduler = once(intent)
    run(scheduler, NODE, pod())
    assert BindFailed("default", intent.name, intent.uid, message) in scheduler.steps[1][1]


def test_a_bound_pod_cannot_be_bound_again_nor_a_leaving_one() -> None:
    bind = Bind("default", "a", "", "n1")
    scheduler = once(bind, bind)
    run(scheduler, NODE, pod())
    assert any("already assigned to node n1" in delta.message for delta in failures(scheduler))
    scheduler = once(Evict("default", "a", "", "reclaim", "reclaim"), bind)
    run(scheduler, NODE, pod(nodeName="n1"))
    assert any("is being deleted" in delta.message for delta in failures(scheduler))


def failures(scheduler: Scripted) -> list[BindFailed]:
    return [delta for _, deltas in scheduler.steps for delta in deltas if isinstance(delta, BindFailed)]


def test_an_evicted_pod_shows_the_reason_terminates_and_is_deleted() -> None:
    evict = Evict("default", "a", "", "reclaim", "reclaim")
    halfway = run(once(evict), NODE, pod(nodeName="n1"), until=10 * SECOND)
    found = get(halfway, "Pod", "a")
    conditions = {condition["type"]: condition for condition in found["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["reason"] == "Evict"
    assert conditions["Ready"]["message"] == "Pod is evicted, because of reclaim"
    assert conditions["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    assert conditions["DisruptionTarget"]["message"] == "volcano: preempting to accommodate a higher priority pod"
    assert found["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    assert [(one.at, one.pod, one.node, one.reason) for one in halfway.evictions] == [(0, "a", "n1", "reclaim")]
    events = {(event["involvedObject"]["kind"], event["message"]) for event in halfway.store.list("Event")}
    assert events == {("Pod", "Pod is evicted, because of reclaim"), ("PodGroup", "reclaim")}

    scheduler = once(evict)
    assert list(run(scheduler, NODE, pod(nodeName="n1")).store.list("Pod")) == []
    assert [at for at, deltas in scheduler.steps for delta in deltas if change_of(delta) == "PodGone"] == [30]


def test_an_eviction_for_another_pod_emits_its_event_on_the_pod_and_not_on_its_group() -> None:
    evict = Evict("default", "a", "", "reclaim", "reclaim: cpu: 1", by="default/b", queue="q")
    events = run(once(evict), NODE, pod(nodeName="n1"), until=SECOND).store.list("Event")
    assert [event["involvedObject"]["kind"] for event in events if event["reason"] == "Evict"] == ["Pod"]


def test_an_eviction_of_a_missing_pod_fails() -> None:
    scheduler = once(Evict("default", "x", "u", "preempt", "preempt"))
    run(scheduler)
    assert EvictFailed("default", "x", "u", 'pods "x" not found') in scheduler.steps[1][1]


def test_status_intents_are_written() -> None:
    condition = PodGroupCondition("Unschedulable", "True", "session-1", "2026-01-01T00:00:00Z", "Why", "text")
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 1},
    }
    outcome = run(
        once(
            UpdatePodGroup("default", "g", "", "Inqueue", 1, 0, 2, (condition,)),
            UpdatePodGroup("default", "missing", "", "Inqueue", 1, 0, 2, ()),
            UpdateQueueStatus("default", {"cpu": "2"}),
            AnnotateQueue("default", {"x": "1", "y": None}),
            UpdatePodCondition("default", "a", "", "Unschedulable", "no room", "n1"),
        ),
        group,
        pod(annotations={"scheduling.k8s.io/group-name": "g"}),
    )
    status = get(outcome, "PodGroup", "g")["status"]
    assert (status["phase"], status["running"], status["failed"], status.get("succeeded")) == ("Inqueue", 1, 2, None)
    assert status["conditions"] == [
        {
            "type": "Unschedulable",
            "status": "True",
            "transitionID": "session-1",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Why",
            "message": "text",
        }
    ]
    queue = get(outcome, "Queue", "default")
    assert queue["status"]["allocated"] == {"cpu": "2"}
    assert queue["metadata"]["annotations"] == {"x": "1"}
    found = get(outcome, "Pod", "a")["status"]
    assert found["nominatedNodeName"] == "n1"
    assert found["conditions"][0]["message"] == "no room"


def test_resources_that_are_no_longer_held_leave_the_queue_status() -> None:
    updates = [UpdateQueueStatus("default", {"cpu": "2", "gpu": "1"}), UpdateQueueStatus("default", {"cpu": "0"})]
    outcome = run(once(*updates))
    assert get(outcome, "Queue", "default")["status"]["allocated"] == {"cpu": "0"}


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


def test_the_same_cluster_in_another_order_gives_the_same_bytes() -> None:
    documents = [NODE, *(pod(f"p-{i}") for i in range(4)), {**NODE, "metadata": {"name": "n0"}}]
    outputs = {
        to_json(as_list(run(Scripted(bind_everything()), *order).store)) for order in (documents, documents[::-1])
    }
    assert len(outputs) == 1


def test_missing_priority_classes_are_reported() -> None:
    outcome = run(
        Scripted(nothing), pod(priorityClassName="urgent"), pod("b", priorityClassName="system-node-critical")
    )
    assert outcome.warnings == ("PriorityClass urgent does not exist: its pods get priority 0",)
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
