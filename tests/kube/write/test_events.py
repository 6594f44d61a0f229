"""Events as people see them, on a real API server."""

from __future__ import annotations

import pytest

from capcard_sched.model.intents import EmitEvent, ObjectRef
from tests.controlplane.cluster import ALL, Cluster
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of, ids

REASON = "FailedScheduling"


def reported(made: Manifest, message: str = "no free node", *, uid: bool = True, component: str = "") -> EmitEvent:
    namespace, name, own = ids(made)
    return EmitEvent(
        ObjectRef(made["kind"], namespace, name, own if uid else ""), "Warning", REASON, message, component
    )


async def test_an_event_has_all_that_tools_look_for(cluster: Cluster, effects: Harness) -> None:
    made = await cluster.create(pod("p"))
    await effects.write(reported(made), reported(made, "over quota", component="volcano.capacity-card"))
    assert effects.observer.writes == [("Event", 200), ("Event", 200)]
    events = {event["message"]: event for event in await effects.events(REASON)}
    found = events["no free node"]
    assert found["metadata"]["name"].startswith("p.")
    assert found["involvedObject"] == {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": cluster.namespace,
        "name": "p",
        "uid": made["metadata"]["uid"],
    }
    assert (found["type"], found["count"]) == ("Warning", 1)
    assert found["source"]["component"] == found["reportingComponent"] == "capcard-sched"
    assert found["firstTimestamp"] == found["lastTimestamp"]
    assert events["over quota"]["source"]["component"] == "volcano.capacity-card"


async def test_events_are_about_objects_of_which_the_core_has_no_uid_too(cluster: Cluster, effects: Harness) -> None:
    """`kubectl describe` finds events by uid, those of nodes by name."""
    made = await cluster.create_all([pod_group("g"), queue("q-of-this-test"), node("n-of-this-test")])
    await effects.write(*(reported(each, uid=each["kind"] == "PodGroup") for each in made))
    uids = {event["involvedObject"]["uid"] for event in await effects.events(REASON, ALL)}
    assert uids == {made[0]["metadata"]["uid"], made[1]["metadata"]["uid"], "n-of-this-test"}


@pytest.mark.parametrize("between", ["a minute", "it expired", "its response was lost"])
async def test_a_repetition_is_counted_in_one_event(
    cluster: Cluster, proxy: Proxy, effects: Harness, between: str
) -> None:
    made = await cluster.create(pod("p"))
    if between == "its response was lost":
        proxy.lose_answer("POST", "/events")
    await effects.write(reported(made))
    (first,) = await effects.events(REASON)
    if between == "it expired":
        await cluster.delete("events", first["metadata"]["name"])
    effects.ahead += 60.0
    await effects.write(reported(made))
    (found,) = await effects.events(REASON)
    assert found["count"] == 2
    assert (found["metadata"]["name"] != first["metadata"]["name"]) is (between == "it expired")
    assert found["firstTimestamp"] < found["lastTimestamp"]
    if between != "its response was lost":
        assert effects.observer.writes == [("Event", 200), ("Event", 200)]
    if between == "a minute":
        assert [len(effects.requests(verb, "/events")) for verb in ("POST", "PATCH")] == [1, 1]


async def test_many_events_at_once_about_one_object_are_few_writes_and_the_last_is_shown(
    cluster: Cluster, effects: Harness
) -> None:
    made = await cluster.create(pod("p"))
    await effects.write(*(reported(made, f"{number} nodes are full") for number in range(200)))
    before = len(effects.requests("POST", "/events")) + len(effects.requests("PATCH", "/events"))
    assert before <= 25
    effects.ahead += 301.0
    await effects.until(lambda: len(effects.observer.writes) > before, "the last word")
    await effects.quiet()
    messages = {event["message"] for event in await effects.events(REASON)}
    assert "(combined from similar events): 199 nodes are full" in messages
    assert len(messages) == 11


async def test_events_that_are_refused_are_given_up(cluster: Cluster, proxy: Proxy, effects: Harness) -> None:
    made = await cluster.create(pod("p"))
    proxy.answer("POST", "/events", 403)
    await effects.write(reported(made))
    assert effects.observer.writes == [("Event", 403)]
    missing = EmitEvent(ObjectRef("Queue", "", "no-such-queue"), "Normal", "Unschedulable", "x")
    await effects.write(missing)
    assert effects.observer.writes == [("Event", 403), ("Event", 404)]


async def test_events_wait_for_bindings_and_are_all_written_by_drain(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod(f"p{index}") for index in range(30)])
    proxy.delay("POST", "/binding", 0.1, times=None)
    async with Harness(cluster, proxy, binders=4) as effects:
        effects.submit(*(reported(each) for each in made), *(bind_of(each) for each in made))
        left = await effects.effects.drain(8.0)
        assert not any(left.values())
        order = ["events" if "/events" in each.path else "binding" for each in proxy.exchanges]
        assert order.index("events") >= 25, "at least until most connections of the bindings are idle"
        assert len(await effects.events(REASON)) == 30


async def test_of_too_many_events_the_oldest_are_dropped_and_counted(
    cluster: Cluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capcard_sched.kube.writes.api_writer.MAX_EVENTS", 50)
    made = await cluster.create(pod("p"))
    others = [ObjectRef("Pod", cluster.namespace, f"p{number}", f"u{number}") for number in range(100)]
    async with Harness(cluster, proxy) as effects:
        effects.leads = False
        effects.submit(*(EmitEvent(each, "Normal", REASON, "x") for each in others), reported(made))
        assert effects.observer.lost["Event"] >= 40
        assert effects.effects.backlog()["event"] <= 60
        effects.leads = True
        await effects.quiet()
    assert "no free node" in {event["message"] for event in await effects.events(REASON)}
