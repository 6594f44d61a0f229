"""Statuses, conditions and annotations on a real API server: only what is meant is written, and the latest of it."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
import yaml

from capcard_sched.model.annotations import CARD_ALLOCATED, CARD_QUOTA, JOB_ALLOCATED_HYPERNODE, QUEUE_ALLOCATION_GATE
from capcard_sched.model.intents import (
    AnnotatePodGroup,
    AnnotateQueue,
    RemoveGate,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
    WriteConfigMap,
)
from capcard_sched.model.objects import PodGroupCondition
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, pod, pod_group, queue
from tests.controlplane.preparation import CRDS
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of, condition, ids

WAITING = PodGroupCondition("Unschedulable", "True", "s1", "2026-01-01T00:00:00Z", "NotEnoughResources", "2/2 pending")


def group_status(made: Manifest, phase: str, running: int = 0) -> UpdatePodGroup:
    return UpdatePodGroup(*ids(made), phase, running, 0, 0, (WAITING,))


def pod_condition(
    made: Manifest, message: str, nominated: str = "", reason: str = "Unschedulable"
) -> UpdatePodCondition:
    return UpdatePodCondition(*ids(made), reason, message, nominated)


async def test_a_group_gets_its_status_and_nothing_else_is_touched(cluster: Cluster, effects: Harness) -> None:
    made = await cluster.create(pod_group("g", members=2, annotations={"volcano.sh/card.request": "{}"}))
    await cluster.patch("podgroups", "g", {"spec": {"minMember": 3}})  # written by another client after we read it
    await effects.write(group_status(made, "Running", running=2))
    assert effects.observer.writes == [("PodGroup", 200)]
    found = await cluster.get("podgroups", "g")
    assert found["spec"]["minMember"] == 3
    assert found["metadata"]["annotations"] == {"volcano.sh/card.request": "{}"}
    shown = {field.encode_name: getattr(WAITING, field.name) for field in msgspec.structs.fields(WAITING)}
    assert found["status"] == {"phase": "Running", "running": 2, "conditions": [shown]}
    await effects.write(group_status(made, "Pending"))
    assert "running" not in (await cluster.get("podgroups", "g"))["status"], "no count of zero"


async def test_a_status_subresource_of_the_group_is_used(cluster: Cluster, effects: Harness) -> None:
    made = await cluster.create(pod_group("g"))
    file = CRDS / "scheduling.volcano.sh_podgroups.yaml"
    definition = yaml.safe_load(file.read_text("utf-8"))
    definition["spec"]["versions"][0]["subresources"] = {"status": {}}
    await effects.write(group_status(made, "Running"))  # the phase alone does not show that a later status is ignored
    await cluster.apply(definition)
    try:

        async def has_it() -> bool:
            resources = (await cluster.request("GET", "/apis/scheduling.volcano.sh/v1beta1"))["resources"]
            return "podgroups/status" in [resource["name"] for resource in resources]

        await cluster.wait_until(has_it, "the subresource")
        running = itertools.count(1)

        async def written() -> bool:
            # Discovery was read before; the response to a later write shows that it no longer holds. The API server
            # may still accept a status in the object for a while.
            effects.ahead += 60.0
            count = next(running)
            await effects.write(group_status(made, "Running", running=count))
            found = (await cluster.get("podgroups", "g"))["status"].get("running")
            return bool(found == count and effects.requests("PATCH", "/podgroups/g/status"))

        await cluster.wait_until(written, "the status by the subresource")
    finally:
        await cluster.apply(file)

        async def is_gone() -> bool:
            return not await has_it()

        await cluster.wait_until(is_gone, "the subresource to go")


@pytest.mark.parametrize("status", [409, 500])
async def test_a_gate_whose_removal_fails_is_removed_by_the_next_attempt(
    cluster: Cluster, proxy: Proxy, effects: Harness, status: int
) -> None:
    gates = [{"name": QUEUE_ALLOCATION_GATE}, {"name": "example.com/x"}]
    made = await cluster.create(pod("p", schedulingGates=gates))
    proxy.answer("PATCH", "/pods/p$", status)
    await effects.write(RemoveGate(*ids(made)))
    assert (await cluster.get("pods", "p"))["spec"]["schedulingGates"] == [{"name": "example.com/x"}]
    assert len(effects.requests("PATCH", "/pods/p")) == 2
    assert await effects.events("GateNotRemoved") == []


async def test_a_gate_without_the_right_to_remove_it_is_one_event(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create(pod("p", schedulingGates=[{"name": QUEUE_ALLOCATION_GATE}]))
    forbidden = proxy.answer("PATCH", "/pods/p$", 403, times=None)
    effects.submit(RemoveGate(*ids(made)))
    await forbidden.struck()
    effects.ahead += 600.0
    await forbidden.struck(2)

    async def reported() -> bool:
        return len(await effects.events("GateNotRemoved")) == 1

    await cluster.wait_until(reported, "one event")
    assert (await cluster.get("pods", "p"))["spec"]["schedulingGates"] == [{"name": QUEUE_ALLOCATION_GATE}]


@pytest.mark.parametrize("successor", [False, True])
async def test_writes_for_a_deleted_object_are_given_up_at_once_and_do_not_reach_its_successor(
    cluster: Cluster, effects: Harness, successor: bool
) -> None:
    manifests = [pod_group("g"), pod("p")]
    group, old = await cluster.create_all(manifests)
    await cluster.delete("podgroups", "g")
    await cluster.delete("pods", "p")
    if successor:
        await cluster.create_all(manifests)
    gone = (UpdateQueueStatus("q", {"cpu": "1"}), AnnotateQueue("q", {"a": "b"}))
    await effects.write(group_status(group, "Running", running=2), pod_condition(old, "no free node", "n1"), *gone)
    codes = dict(effects.observer.writes)
    assert len(effects.observer.writes) == len(codes) == 4
    assert codes["QueueAnnotations"] == codes["QueueStatus"] == 404
    assert {codes["PodCondition"], codes["PodGroup"]} == ({422} if successor else {404})
    assert len(effects.requests("PATCH", "/podgroups/g")) == 1
    if successor:
        assert "running" not in (await cluster.get("podgroups", "g")).get("status", {})
        assert condition(await cluster.get("pods", "p"), "PodScheduled") == {}


async def test_a_queue_shows_exactly_its_current_allocation(cluster: Cluster, effects: Harness) -> None:
    await cluster.create(queue("q", annotations={CARD_QUOTA: '{"A100": 8}'}, weight=3))
    await cluster.patch("queues", "q", {"status": {"state": "Open"}}, subresource="status")
    allocated = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    await effects.write(UpdateQueueStatus("q", allocated), AnnotateQueue("q", {CARD_ALLOCATED: '{"A100": 2}'}))
    found = await cluster.get("queues", "q")
    assert found["status"] == {"state": "Open", "allocated": allocated}
    assert found["metadata"]["annotations"] == {CARD_QUOTA: '{"A100": 8}', CARD_ALLOCATED: '{"A100": 2}'}
    assert found["spec"]["weight"] == 3
    idle = {"cpu": "0", "memory": "0"}
    await effects.write(UpdateQueueStatus("q", idle), AnnotateQueue("q", {CARD_ALLOCATED: None}))
    found = await cluster.get("queues", "q")
    assert found["status"] == {"state": "Open", "allocated": idle}
    assert found["metadata"]["annotations"] == {CARD_QUOTA: '{"A100": 8}'}


async def test_annotations_of_a_group_accumulate_and_never_reach_a_namesake(cluster: Cluster, effects: Harness) -> None:
    made = await cluster.create(pod_group("g"))
    await effects.write(
        group_status(made, "Running", running=2),
        AnnotatePodGroup(*ids(made), {JOB_ALLOCATED_HYPERNODE: "s0", "a": "b"}),
        AnnotatePodGroup(*ids(made), {JOB_ALLOCATED_HYPERNODE: "s1"}),
    )
    found = await cluster.get("podgroups", "g")
    assert found["metadata"]["annotations"] == {JOB_ALLOCATED_HYPERNODE: "s1", "a": "b"}
    assert found["status"]["running"] == 2
    await effects.write(AnnotatePodGroup(*ids(made), {JOB_ALLOCATED_HYPERNODE: None}))
    await effects.write(AnnotatePodGroup(cluster.namespace, "g", "another-uid", {"a": "c"}))
    await effects.write(AnnotatePodGroup(cluster.namespace, "gone", "u", {"a": "c"}))
    assert effects.observer.writes[-2:] == [("PodGroupAnnotations", 422), ("PodGroupAnnotations", 404)]
    assert (await cluster.get("podgroups", "g"))["metadata"]["annotations"] == {"a": "b"}


async def test_a_status_is_written_before_discovery_lists_the_kind(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    """Right after the CRDs were applied it lists nothing."""
    await cluster.create(queue("q"))
    proxy.answer("GET", "scheduling.volcano.sh/v1beta1$", 200)
    await effects.write(UpdateQueueStatus("q", {"cpu": "4"}))
    assert (await cluster.get("queues", "q"))["status"]["allocated"] == {"cpu": "4"}


async def test_a_condition_keeps_its_time_while_its_status_stays_and_leaves_others_alone(
    cluster: Cluster, effects: Harness
) -> None:
    made = await cluster.create(pod("p"))
    other = {"type": "example.com/other", "status": "True"}
    await cluster.patch("pods", "p", {"status": {"conditions": [other]}}, subresource="status")
    await effects.write(pod_condition(made, "0/3 nodes are available"))
    first = await cluster.get("pods", "p")
    await asyncio.sleep(1.1)
    await effects.write(pod_condition(made, "0/4 nodes are available", "n7"))
    found = await cluster.get("pods", "p")
    shown = condition(found, "PodScheduled")
    assert (shown["status"], shown["reason"], shown["message"]) == ("False", "Unschedulable", "0/4 nodes are available")
    assert shown["lastTransitionTime"] == condition(first, "PodScheduled")["lastTransitionTime"]
    assert found["status"]["nominatedNodeName"] == "n7"
    assert "nominatedNodeName" not in first["status"]
    assert condition(found, "example.com/other")["status"] == "True"


async def test_of_many_values_for_one_object_the_last_is_written_and_few_before_it(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create(pod_group("g"))
    slow = proxy.delay("PATCH", "/podgroups/g", 0.3)
    effects.submit(group_status(made, "Inqueue", running=0))
    await slow.struck()
    for running in range(1, 50):
        effects.submit(group_status(made, "Running", running=running))
        effects.submit(AnnotateQueue("q", {f"k{running % 3}": str(running)}))
    assert effects.effects.backlog()["status"] == 3, "one in flight, one waiting, and the queue"
    await effects.quiet()
    assert len(effects.requests("PATCH", "/podgroups/g")) == 2
    annotated = effects.requests("PATCH", "/queues/q")
    assert b'"k0":"48"' in annotated[-1].body
    assert len(annotated) <= 3
    assert (await cluster.get("podgroups", "g"))["status"]["running"] == 49


@pytest.mark.parametrize("fault", [429, 500, 503, 409, "reset", "lost"])
async def test_a_status_is_written_in_the_end_and_never_an_older_one_last(
    cluster: Cluster, proxy: Proxy, effects: Harness, fault: int | str
) -> None:
    made = await cluster.create(pod_group("g"))
    struck = proxy.harm("PATCH", "/podgroups/g$", fault, times=2)
    effects.submit(group_status(made, "Running", running=1))
    await struck.struck()
    await effects.write(group_status(made, "Running", running=2))
    assert effects.observer.writes[-1] == ("PodGroup", 200)
    assert (await cluster.get("podgroups", "g"))["status"]["running"] == 2


async def test_a_status_that_may_not_be_written_now_waits_and_does_not_hold_up_others(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create_all([pod_group("g"), pod_group("h")])
    proxy.answer("PATCH", "/podgroups/g$", 403, times=1)
    await effects.write(*(group_status(each, "Running", running=1) for each in made))
    assert effects.observer.writes == [("PodGroup", 403), ("PodGroup", 200), ("PodGroup", 200)]
    assert await effects.effects.drain(1.0) == {"bind": 0, "evict": 0, "status": 0, "event": 0}


async def test_statuses_wait_for_bindings_but_not_for_ever_and_admissions_do_not_wait(
    cluster: Cluster, proxy: Proxy
) -> None:
    groups = await cluster.create_all([pod_group(name) for name in ("g", "h")])
    made = await cluster.create_all([pod(f"p{index}") for index in range(80)])
    proxy.delay("POST", "/binding", 0.25, times=None)
    async with Harness(cluster, proxy, binders=2) as effects:
        admission = msgspec.structs.replace(group_status(groups[0], "Inqueue"), admitted=True)
        effects.submit(*map(bind_of, made), group_status(groups[1], "Running", running=2), admission)
        await asyncio.sleep(1.5)
        assert [each.path.rpartition("/")[2] for each in effects.requests("PATCH", "/podgroups")] == ["g"]
        assert (await cluster.get("podgroups", "g"))["status"]["phase"] == "Inqueue"
        await effects.until(lambda: effects.requests("PATCH", "/podgroups/h"), "the status")
        assert len(effects.requests("POST", "/binding")) < 80, "while bindings were still waiting"


@pytest.mark.parametrize("away", ["reset", 503])
async def test_after_a_long_outage_a_status_is_written_within_seconds(
    cluster: Cluster, proxy: Proxy, effects: Harness, away: int | str
) -> None:
    made = await cluster.create(pod_group("g"))
    fault = proxy.harm("PATCH", "/podgroups/g", away, times=None)
    effects.submit(group_status(made, "Running"))
    for attempt in range(1, 9):
        effects.ahead += 400
        await effects.until(lambda: len(effects.observer.writes) == attempt, "an attempt")  # noqa: B023 - at once
    fault.lift()
    effects.ahead += 10
    await effects.until(lambda: effects.observer.writes[-1] == ("PodGroup", 200), "the status", within=5)
    assert (await cluster.get("podgroups", "g"))["status"]["phase"] == "Running"


async def test_a_condition_with_a_new_message_is_rate_limited_and_one_with_a_new_reason_is_written_at_once(
    cluster: Cluster, effects: Harness
) -> None:
    """One more node must not rewrite the condition of every pending pod."""
    made = await cluster.create(pod("p"))

    async def message() -> str:
        return str(condition(await cluster.get("pods", "p"), "PodScheduled")["message"])

    await effects.write(pod_condition(made, "0/1 nodes"))
    for nodes in range(2, 8):
        effects.submit(pod_condition(made, f"0/{nodes} nodes"))
        await asyncio.sleep(0.01)
    assert await message() == "0/1 nodes"
    effects.ahead += 30.0
    await effects.quiet()
    assert await message() == "0/7 nodes", "what is written in the end is what is so"
    effects.submit(pod_condition(made, "0/8 nodes"))
    await asyncio.sleep(0.1)
    effects.submit(pod_condition(made, "0/8 nodes: no volume", reason="QuotaPending"))
    await effects.quiet(within=1.5)
    assert await message() == "0/8 nodes: no volume"
    assert effects.observer.writes == [("PodCondition", 200)] * 3


async def test_a_config_map_is_created_and_keeps_the_keys_of_others(cluster: Cluster, effects: Harness) -> None:
    path, labels = "/api/v1/namespaces/default/configmaps/state", {"app": "volcano-scheduler"}
    await effects.write(WriteConfigMap("default", "state", {"state.json": "{}"}, labels))
    merge = {"data": {"other": "x"}}
    await cluster.request("PATCH", path, body=merge, content_type="application/merge-patch+json")
    await effects.write(WriteConfigMap("default", "state", {"state.json": "[]"}, labels))
    found = await cluster.request("GET", path)
    assert (found["data"], found["metadata"]["labels"]) == ({"state.json": "[]", "other": "x"}, labels)


async def test_a_namespace_queue_gets_its_status(cluster: Cluster, effects: Harness) -> None:
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/namespacequeues"
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "NamespaceQueue",
        "metadata": {"name": "t"},
        "spec": {},
    }
    await cluster.request("POST", path, body=body)
    await effects.write(UpdateQueueStatus("default/t", {"cpu": "2"}), AnnotateQueue("default/t", {"a": "b"}))
    found = await cluster.request("GET", f"{path}/t")
    assert (found["status"]["allocated"], found["metadata"]["annotations"]) == ({"cpu": "2"}, {"a": "b"})
