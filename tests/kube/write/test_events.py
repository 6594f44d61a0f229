"""Events as people see them, on a real API server."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from capcard_sched.model.intents import EmitEvent, Intent, ObjectRef
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of

REASON = "FailedScheduling"


def about(made: Manifest, *, uid: bool = True) -> ObjectRef:
    meta = made["metadata"]
    return ObjectRef(made["kind"], meta.get("namespace", ""), meta["name"], meta["uid"] if uid else "")


def reported(made: Manifest, message: str = "no free node", *, uid: bool = True, component: str = "") -> EmitEvent:
    return EmitEvent(about(made, uid=uid), "Warning", REASON, message, component)


async def test_an_event_has_all_that_tools_look_for(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made), reported(made, "over quota", component="volcano.capacity-card")])
        await effects.quiet()
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


async def test_kubectl_describe_shows_the_events_of_every_kind_that_gets_events(cluster: Cluster, proxy: Proxy) -> None:
    made = [
        await cluster.create(manifest)
        for manifest in (pod("p"), pod_group("g"), queue("q-of-this-test"), node("n-of-this-test"))
    ]
    async with Harness(cluster, proxy) as effects:
        # The core has no uids of queues and nodes.
        intents: list[Intent] = [reported(each, f"about {each['kind']}", uid=each["kind"] == "Pod") for each in made]
        effects.effects.submit(intents)
        await effects.quiet()
        assert effects.observer.writes == [("Event", 200)] * 4

    def describe(kind: str, name: str) -> str:
        kubectl = str(cluster.control_plane.programs / "kubectl")
        config = f"--kubeconfig={cluster.control_plane.kubeconfig}"
        command: list[str] = [kubectl, config, "describe", kind, name, "-n", cluster.namespace]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    for each in made:
        shown = await asyncio.to_thread(describe, each["kind"].lower(), each["metadata"]["name"])
        assert f"about {each['kind']}" in shown, shown


async def test_repetitions_are_counted_in_place(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made)])
        await effects.quiet()
        effects.ahead += 60.0
        effects.effects.submit([reported(made)])
        await effects.quiet()
        (found,) = await effects.events(REASON)
        assert found["count"] == 2
        assert found["firstTimestamp"] < found["lastTimestamp"]
        assert len(effects.requests("POST", "/events")) == 1
        assert len(effects.requests("PATCH", "/events")) == 1


async def test_many_events_at_once_about_one_object_are_few_writes_and_the_last_is_shown(
    cluster: Cluster, proxy: Proxy
) -> None:
    made = await cluster.create(pod("p"))
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made, f"{number} nodes are full") for number in range(200)])
        await effects.quiet()
        before = len(effects.requests("POST", "/events")) + len(effects.requests("PATCH", "/events"))
        assert before <= 25
        effects.ahead += 301.0
        await effects.until(lambda: len(effects.observer.writes) > before, "the last word")
        await effects.quiet()
        messages = {event["message"] for event in await effects.events(REASON)}
    assert "(combined from similar events): 199 nodes are full" in messages
    assert len(messages) == 11


async def test_an_event_that_expired_is_written_anew_with_its_count(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made)])
        await effects.quiet()
        (found,) = await effects.events(REASON)
        await cluster.delete("events", found["metadata"]["name"])
        effects.effects.submit([reported(made)])
        await effects.quiet()
        (found,) = await effects.events(REASON)
        assert found["count"] == 2
        assert effects.observer.writes == [("Event", 200), ("Event", 200)]


async def test_a_response_that_was_lost_does_not_make_two_events(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    proxy.lose_answer("POST", "/events")
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made)])
        await effects.quiet()
        effects.effects.submit([reported(made)])
        await effects.quiet()
        (found,) = await effects.events(REASON)
        assert found["count"] == 2


async def test_events_that_are_refused_are_given_up(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    proxy.answer("POST", "/events", 403)
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([reported(made)])
        await effects.quiet()
        assert effects.observer.writes == [("Event", 403)]
        missing = EmitEvent(ObjectRef("Queue", "", "no-such-queue"), "Normal", "Unschedulable", "x")
        effects.effects.submit([missing])
        await effects.quiet()
        assert effects.observer.writes == [("Event", 403), ("Event", 404)]


async def test_events_wait_for_bindings_and_are_all_written_by_drain(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod(f"p{index}") for index in range(30)])
    proxy.delay("POST", "/binding", 0.1, times=None)
    async with Harness(cluster, proxy, binders=4) as effects:
        effects.effects.submit([*(reported(each) for each in made), *(bind_of(each) for each in made)])
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
    async with Harness(cluster, proxy) as effects:
        effects.leads = False
        others = [ObjectRef("Pod", cluster.namespace, f"p{number}", f"u{number}") for number in range(100)]
        effects.effects.submit([EmitEvent(each, "Normal", REASON, "x") for each in others])
        effects.effects.submit([reported(made)])
        assert effects.observer.lost["Event"] >= 40
        assert effects.effects.backlog()["event"] <= 60
        effects.leads = True
        await effects.quiet()
        assert "no free node" in {event["message"] for event in await effects.events(REASON)}
