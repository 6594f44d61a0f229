"""The cdp plugin."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.reflector import DeltaStore
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.cooldown import Cooldown
from capcard_sched.model.objects import PodObject
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.testing import EPOCH, Harness
from tests.evictions import evicted, leave, terminate

NOW = EPOCH + 7200.0
MINUTE = 60


def conf(actions: str = "allocate", *others: str, arguments: dict[str, Any] | None = None) -> str:
    plugins: list[dict[str, Any]] = [{"name": name} for name in ("priority", "gang", *others)]
    plugins[1]["enablePreemptable"] = plugins[1]["enableJobStarving"] = False
    plugins.append({"name": "cdp", "arguments": arguments or {}})
    return json.dumps({"actions": actions, "tiers": [{"plugins": plugins}]})


def since(**ago: float) -> list[dict[str, str]]:
    """Conditions that have been True for so many seconds."""
    return [
        {"type": name, "status": "True", "lastTransitionTime": format_timestamp(NOW - seconds)}
        for name, seconds in ago.items()
    ]


def cluster(**arguments: Any) -> Harness:
    h = Harness(conf(arguments=arguments))
    h.now = NOW - 1  # a session is a second later
    h.queue("q")
    h.node("n")
    h.group("g")
    h.group("wants")
    h.pod("new", group="wants")
    return h


def victims(h: Harness, *names: str, hook: str = "preemptable") -> list[str]:
    h.session()
    answer = getattr(h.plugin("cdp"), hook)(h.task("new"), [h.task(name) for name in names])
    assert isinstance(answer, VictimDecision)
    assert answer.victims is not None
    assert answer.protected is not None
    kept = [task.name for task in answer.victims]
    assert {h.task(name).uid: "cool-down" for name in names if name not in kept} == answer.protected
    return kept


TEN = {COOLDOWN_TIME: "10m"}


@pytest.mark.parametrize("hook", ["preemptable", "reclaimable"])
@pytest.mark.parametrize("place", ["labels", "annotations"])
@pytest.mark.parametrize(
    ("ago", "phase", "kept"),
    [
        pytest.param(5 * MINUTE, "Running", False, id="18.1 scheduled five minutes ago"),
        pytest.param(10 * MINUTE + 1, "Running", True, id="18.2 the cool-down is over"),
        pytest.param(10 * MINUTE, "Running", True, id="it ends to the second"),
        pytest.param(MINUTE, "Pending", True, id="18.3 a pod that does not run"),
    ],
)
def test_a_running_pod_is_left_alone_for_a_while(ago: float, phase: str, kept: bool, place: str, hook: str) -> None:
    h = cluster()
    notes: dict[str, Any] = {place: TEN}
    h.pod("p", node="n", phase=phase, conditions=since(PodScheduled=ago), **notes)
    assert victims(h, "p", hook=hook) == (["p"] if kept else [])


def test_18_4_the_label_wins_over_the_annotation() -> None:
    h = cluster()
    h.pod("p", node="n", labels={COOLDOWN_TIME: "5m"}, annotations={COOLDOWN_TIME: "1h"},
          conditions=since(PodScheduled=10 * MINUTE))  # fmt: skip
    assert victims(h, "p") == ["p"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="no cool-down"),
        pytest.param({"annotations": {COOLDOWN_TIME: "0"}}, id="none"),
        pytest.param({"annotations": {COOLDOWN_TIME: "10 minutes"}}, id="unreadable"),
        pytest.param({"labels": {COOLDOWN_TIME: "soon"}, "annotations": TEN}, id="an unreadable label wins too"),
        pytest.param({"annotations": TEN, "conditions": []}, id="never scheduled"),
        pytest.param({"annotations": TEN, "conditions": [{"type": "PodScheduled", "status": "True"}]}, id="no time"),
        pytest.param({"annotations": TEN, "conditions": [{"type": "PodScheduled", "status": "False",
                      "lastTransitionTime": format_timestamp(NOW)}]}, id="the condition is not True"),
    ],
)  # fmt: skip
def test_others_are_not_protected(more: dict[str, Any]) -> None:
    h = cluster()
    h.pod("p", node="n", **({"conditions": since(PodScheduled=1)} | more))
    assert victims(h, "p") == ["p"]


@pytest.mark.parametrize(
    ("start", "ago", "kept"),
    [
        pytest.param("PodScheduled", {"PodScheduled": 660, "Ready": 60}, True, id="from scheduling by default"),
        pytest.param("Ready", {"PodScheduled": 660, "ContainersReady": 660, "Ready": 60}, False, id="from Ready"),
        pytest.param("ContainersReady", {"PodScheduled": 660, "ContainersReady": 60}, False, id="from ContainersReady"),
        pytest.param("ContainersReady", {"PodScheduled": 60, "ContainersReady": 660, "Ready": 1}, True, id="not Ready"),
        pytest.param("Ready", {"PodScheduled": 60}, False, id="not ready yet: from scheduling"),
        pytest.param("Ready", {"PodScheduled": 660}, True, id="never ready is not for ever"),
    ],
)
def test_better_the_time_may_count_from_readiness(start: str, ago: dict[str, float], kept: bool) -> None:
    h = cluster(**{"cdp.start": start})
    h.pod("p", node="n", annotations=TEN, conditions=since(**ago))
    assert victims(h, "p") == (["p"] if kept else [])


def test_w10_a_cool_down_is_not_outvoted_by_another_tier() -> None:
    """The first tier decides in favour of eviction; the protection holds all the same."""
    tiers = [{"plugins": [{"name": "conformance"}]}, {"plugins": [{"name": "cdp"}]}]
    h = Harness(json.dumps({"actions": "allocate", "tiers": tiers}))
    h.now = NOW - 1
    h.queue("q")
    h.node("n")
    h.group("g")
    h.pod("fresh", node="n", annotations=TEN, conditions=since(PodScheduled=1))
    h.pod("old", node="n", annotations=TEN, conditions=since(PodScheduled=3600))
    h.pod("new")
    session = h.session()
    judgement = session.dispatch.judge("preemptable", h.task("new"), [h.task("fresh"), h.task("old")])
    assert [task.name for task in judgement.victims] == ["old"]
    assert judgement.kept == {h.task("fresh").uid: "cool-down"}


# --- in the course of time --------------------------------------------------------------------------------------------


def test_the_pod_goes_when_its_time_is_over_though_nothing_else_happens() -> None:
    h = Harness(conf("enqueue, allocate, preempt", "predicates"), run=True)
    h.now = NOW
    h.priority_class("high", 100)
    h.queue("q")
    h.node("n", cpu="4")
    h.group("low", phase="Running")
    h.pod(
        "low", group="low", node="n", requests={"cpu": "3"}, annotations=TEN, conditions=since(PodScheduled=5 * MINUTE)
    )
    h.group("high", priority_class="high")
    h.pod("high", group="high", requests={"cpu": "3"})
    result = h.step()
    assert evicted(result) == []
    assert "cool-down" in h.last_session.preemption_reports["default/high"]["preempt"].text
    while not result.idle:
        result = h.step()
        assert evicted(result) == []
    assert result.next_wakeup == NOW + 5 * MINUTE
    assert h.step(result.next_wakeup - 1).idle
    result = h.step(result.next_wakeup)
    assert evicted(result) == ["low"]
    terminate(h, result)
    h.step()
    leave(h, "low")
    h.settle()
    assert h.binds == {"high": "n"}


def test_a_protection_without_preemptors_triggers_no_session() -> None:
    h = cluster()
    h.pod("p", node="n", annotations=TEN, conditions=since(PodScheduled=1))
    h.settle()
    assert h.step().next_wakeup is None


# --- facts ------------------------------------------------------------------------------------------------------------


def pod(conditions: list[dict[str, str]], **meta: Any) -> PodObject:
    body = {
        "metadata": {"name": "p", "namespace": "d", **meta},
        "status": {"phase": "Running", "conditions": conditions},
    }
    return msgspec.json.decode(json.dumps(body), type=PodObject)


def delta_count(*versions: PodObject) -> int:
    """Number of versions of a pod that the scheduler receives."""
    kind = next(kind for kind in KINDS if kind.name == "Pod")
    known: DeltaStore[PodObject] = DeltaStore(kind, Observer())
    out: list[Any] = []
    for version in versions:
        known.changed(version, out)
    return len(out)


def test_conditions_are_kept_only_for_pods_with_a_cool_down() -> None:
    before, after = since(PodScheduled=60), since(PodScheduled=60, Ready=1)
    assert delta_count(pod(before, annotations=TEN), pod(after, annotations=TEN)) == 2
    assert delta_count(pod(before, labels=TEN), pod(after, labels=TEN), pod(after, labels=TEN)) == 2
    assert delta_count(pod(before), pod(after)) == 1


def test_the_cool_down_is_kept_with_the_task() -> None:
    h = cluster()
    h.pod("p", node="n", annotations=TEN, conditions=since(PodScheduled=60))
    h.pod("other", node="n", conditions=since(PodScheduled=60))
    h.session()
    assert h.task("other").cooldown is None
    assert h.task("p").cooldown == Cooldown("10m", False, NOW - 60, 0.0, 0.0)
    h.pod("p", node="n", annotations=TEN, conditions=since(PodScheduled=60, ContainersReady=30, Ready=20))
    h.session()
    assert h.task("p").cooldown == Cooldown("10m", False, NOW - 60, NOW - 30, NOW - 20)
    h.pod("p", node="n")
    h.session()
    assert h.task("p").cooldown is None


@given(
    text=st.sampled_from(["10m", "0", "1h", "x", "-5m"]),
    scheduled=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    ready=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    start=st.sampled_from(["PodScheduled", "ContainersReady", "Ready"]),
)
def test_a_cool_down_ends_its_length_after_its_start(text: str, scheduled: float, ready: float, start: Any) -> None:
    found = Cooldown(text, False, scheduled, ready, ready)
    length = {"10m": 600, "1h": 3600}.get(text, 0)
    begun = scheduled if start == "PodScheduled" or not ready else ready
    assert found.until(start) == (begun + length if begun else 0.0)


# --- times that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["label", "annotation"])
@pytest.mark.parametrize("text", ["10", "ten-minutes", "-5m", ""])
def test_an_invalid_time_is_reported_once(text: str, place: str) -> None:
    h = cluster()
    notes: dict[str, Any] = {f"{place}s": {COOLDOWN_TIME: text}}
    for name in ("b", "a"):
        h.pod(name, node="n", **notes)
    h.pod("fine", node="n", annotations=TEN)
    h.settle()
    h.set_phase("b", "Running")
    h.group("g", min_member=2)
    h.settle()
    (event,) = [event for event in h.all_events if event.reason == "InvalidAnnotation"]
    assert (event.object.kind, event.object.name, event.type) == ("Pod", "a", "Warning")
    assert event.message.startswith(f"Invalid annotation {COOLDOWN_TIME}: '{text}' is ")
    assert f"({place}); the pod is not protected" in event.message
    assert event.message.endswith("accepted: a duration such as 600s, 10m or 1h30m")
