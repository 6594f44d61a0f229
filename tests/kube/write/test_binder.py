"""The effect of every response to a binding, on a real API server behind a proxy that injects faults."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.paths import object_path
from capcard_sched.model.annotations import BOUND_QUEUE, CARD_ASSIGNED, FENCE, QUEUE_ALLOCATION_GATE
from capcard_sched.model.deltas import BindFailed, BindRetry, ObjectGone
from capcard_sched.model.intents import Bind, ClaimBinding, UpdatePodCondition
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of, condition, ids

POST = ("POST", "/pods/p/binding")
GET = ("GET", "/pods/p$")
BOUND = ("bound", "p", 201)
#: Verb, path, name and number (None: for good) of a fault.
Faults = list[tuple[str, str, int | str, int | None]]


async def test_a_binding_carries_node_annotations_queue_and_fence_and_leaves_labels_alone(
    cluster: Cluster, proxy: Proxy
) -> None:
    await cluster.create(node("n1"))
    made = await cluster.create(pod("p", labels={"app": "x"}, annotations={"kept": "yes", BOUND_QUEUE: "forged"}))
    async with Harness(cluster, proxy, fence=lambda: "me/3") as effects:
        await effects.write(msgspec.structs.replace(bind_of(made, **{CARD_ASSIGNED: "A100"}), queue="q"))
    assert (effects.observer.bindings, effects.deltas) == ([BOUND], [])
    found = await cluster.get("pods", "p")
    assert found["spec"]["nodeName"] == "n1"
    expected = {"kept": "yes", CARD_ASSIGNED: "A100", FENCE: "me/3", BOUND_QUEUE: "q"}
    assert found["metadata"]["annotations"] == expected
    assert found["metadata"]["labels"] == {"app": "x"}
    assert condition(found, "PodScheduled")["status"] == "True"


async def test_many_bindings_go_on_several_connections_each_once(cluster: Cluster, effects: Harness) -> None:
    await cluster.create(node("n1"))
    made = await cluster.create_all([pod(f"p{index}") for index in range(60)])
    effects.submit(*(bind_of(each) for each in made))
    assert effects.effects.backlog()["bind"] == 60
    await effects.quiet()
    assert len(effects.requests("POST", "/binding")) == len(effects.observer.bindings) == 60
    assert len(await cluster.bound()) == 60


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_refusal_reaches_core_and_pod_and_the_pod_backs_off_while_others_continue(
    cluster: Cluster, proxy: Proxy, effects: Harness, status: int
) -> None:
    made = await cluster.create_all([pod("p"), pod("other")])
    proxy.answer(*POST, status, message="quota of the day is used", times=None)
    effects.submit(bind_of(made[0]), bind_of(made[1]))
    failed = await effects.refusal()
    uid = made[0]["metadata"]["uid"]
    assert (failed.name, failed.uid, failed.message) == ("p", uid, "quota of the day is used")
    assert 0.7 <= failed.retry_after <= 1.0
    await effects.until(lambda: len(effects.deltas) == 2, "the end of the wait")
    assert effects.deltas[1] == BindRetry(cluster.namespace, "p", uid)
    await effects.quiet()
    assert sorted(effects.observer.bindings) == [("bound", "other", 201), ("failed", "p", status)]

    # The second refusal waits longer, and the same text is reported once.
    effects.submit(bind_of(made[0]))
    await effects.until(lambda: len(effects.deltas) == 3, "the second refusal")
    again = effects.deltas[2]
    assert isinstance(again, BindFailed)
    assert 1.5 <= again.retry_after <= 2.0
    await effects.quiet()
    text = "failed to bind to node n1: quota of the day is used"
    reported = condition(await cluster.get("pods", "p"), "PodScheduled")
    assert (reported["status"], reported["reason"], reported["message"]) == ("False", "SchedulerError", text)
    (event,) = await effects.events("FailedScheduling")
    assert (event["message"], event["type"], event["count"]) == (text, "Warning", 1)
    assert await cluster.bound() == {"other": "n1"}


async def test_a_pod_that_is_bound_after_refusals_begins_anew(cluster: Cluster, proxy: Proxy, effects: Harness) -> None:
    made = await cluster.create(pod("p"))
    proxy.answer(*POST, 403)
    effects.submit(bind_of(made))
    await effects.until(lambda: len(effects.deltas) == 2, "refusal and retry")
    await effects.write(bind_of(made))
    assert effects.observer.bindings == [("failed", "p", 403), BOUND]
    assert len(effects.deltas) == 2
    assert condition(await cluster.get("pods", "p"), "PodScheduled")["status"] == "True"


@pytest.mark.parametrize(
    ("faults", "posts", "gets"),
    [
        *(pytest.param([(*POST, how, 1)], 1, 1, id=f"done, then {how}") for how in ("lost", "done 504", "done 500")),
        *(pytest.param([(*POST, how, 2)], 3, None, id=f"{how}") for how in ("reset", 401, 408, 429, 500, 503)),
        pytest.param([(*POST, "lost", 1), (*GET, 503, 3)], 1, 4, id="lost, and the pod cannot be read"),
        pytest.param([], 1, None, id="bound already"),
    ],
)
async def test_without_a_definite_response_the_same_binding_is_sent_again_unless_the_pod_shows_it(
    cluster: Cluster, proxy: Proxy, effects: Harness, faults: Faults, posts: int, gets: int | None
) -> None:
    made = await cluster.create(pod("p"))
    if not faults:
        await cluster.bind("p", "n1")
    for verb, path, how, times in faults:
        proxy.harm(verb, path, how, times=times)
    await effects.write(bind_of(made))
    sent = effects.requests("POST", "/pods/p/binding")
    assert len(sent) == posts
    assert len({each.body for each in sent}) == 1
    assert gets in (None, len(effects.requests("GET", "/pods/p")))
    assert (effects.observer.bindings, effects.deltas) == ([BOUND], [])
    assert await cluster.bound() == {"p": "n1"}


async def test_a_request_without_a_response_in_time_is_verified(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    proxy.delay(*POST, 30.0, after=True)
    async with Harness(cluster, proxy, timeout=0.5) as effects:
        await effects.write(bind_of(made))
    assert effects.observer.bindings == [BOUND]
    assert len(effects.requests("GET", "/pods/p")) == 1
    assert effects.requests(*POST) == [], "the only one was cut off, and done"


async def test_retry_after_is_honoured_and_others_are_not_held_up(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create_all([pod("p"), pod("other")])
    proxy.answer(*POST, 429, retry_after=2)
    loop = asyncio.get_running_loop()
    started = loop.time()
    effects.submit(bind_of(made[0]), bind_of(made[1]))
    await effects.until(lambda: effects.observer.bindings, "the other binding")
    assert effects.observer.bindings == [("bound", "other", 201)]
    assert loop.time() - started < 1.5
    await effects.quiet()
    assert loop.time() - started >= 2.0
    assert set(await cluster.bound()) == {"p", "other"}


@pytest.mark.parametrize(
    ("state", "faults", "messages", "posts", "bound"),
    [
        pytest.param("bound", [], ["pod p is already assigned to node n2"], 1, "n2", id="bound elsewhere"),
        pytest.param("deleting", [], ["deleted"], 1, "", id="being deleted"),
        pytest.param("gated", [], ["schedulingGates"], 1, "", id="gated"),
        pytest.param("", [(*POST, 409, None)], ["by the test's will"], 6, "", id="conflicts on a free pod"),
        pytest.param(
            "",
            [(*POST, "lost", 1), (*GET, 403, None)],
            ['already assigned to node "n1"', "failed to read the pod: by the test's will"],
            2,
            "n1",
            id="no right to read pods",
        ),
    ],
)
async def test_a_pod_that_cannot_be_bound_is_released_with_the_reason_and_no_event_where_it_is_bound(
    cluster: Cluster,
    proxy: Proxy,
    effects: Harness,
    state: str,
    faults: Faults,
    messages: list[str],
    posts: int,
    bound: str,
) -> None:
    gates: dict[str, Any] = {"schedulingGates": [{"name": "example.com/wait"}]} if state == "gated" else {}
    manifest = pod("p", grace=60, **gates)
    manifest["metadata"]["finalizers"] = ["example.com/keep"]
    made = await cluster.create(manifest)
    if state == "deleting":
        await cluster.delete("pods", "p", grace=60)
    elif state == "bound":
        await cluster.bind("p", "n2")
    for verb, path, how, times in faults:
        proxy.harm(verb, path, how, times=times)
    effects.submit(bind_of(made))
    failed = await effects.refusal()
    assert all(message in failed.message for message in messages), failed.message
    assert failed.retry_after > 0
    assert len(effects.requests("POST", "/pods/p/binding")) == posts
    await effects.quiet()
    assert {what for what, *_ in effects.observer.bindings} == {"failed"}
    assert await cluster.bound() == ({"p": bound} if bound else {})
    if bound:
        assert condition(await cluster.get("pods", "p"), "PodScheduled")["status"] == "True"
        assert await effects.events("FailedScheduling") == []


@pytest.mark.parametrize("status", [0, 500, 403])
async def test_the_queue_allocation_gate_is_removed_before_the_pod_is_bound(
    cluster: Cluster, proxy: Proxy, effects: Harness, status: int
) -> None:
    gates = [{"name": QUEUE_ALLOCATION_GATE}]
    made = await cluster.create(pod("p", schedulingGates=gates))
    bind = msgspec.structs.replace(bind_of(made), gate=QUEUE_ALLOCATION_GATE)
    effects.leads = False
    effects.submit(bind)
    effects.reset()
    assert (await cluster.get("pods", "p"))["spec"]["schedulingGates"] == gates, "the term ended before the patch"
    effects.leads = True
    if status:
        proxy.answer("PATCH", "/pods/p$", status, times=None if status == 403 else 1)
    effects.submit(bind)
    if status == 403:
        assert (await effects.refusal()).retry_after > 0
        await effects.quiet()
        assert (await cluster.get("pods", "p"))["spec"]["schedulingGates"] == gates
        assert len(await effects.events("GateNotRemoved")) == 1
        assert not effects.requests("POST", "/pods/p/binding")
    else:
        await effects.quiet()
        assert effects.observer.bindings == [BOUND]
        assert await cluster.bound() == {"p": "n1"}


@pytest.mark.parametrize("successor", [False, True])
async def test_a_deleted_or_replaced_pod_is_reported_as_gone(
    cluster: Cluster, effects: Harness, successor: bool
) -> None:
    made = await cluster.create(pod("p"))
    await cluster.delete("pods", "p")
    if successor:
        await cluster.create(pod("p"))
    await effects.write(bind_of(made))
    assert effects.deltas == [ObjectGone("Pod", *ids(made))]
    assert await cluster.bound() == {}, "a successor of the same name is not bound"


async def test_a_binding_that_does_not_get_through_is_reported_on_the_pod_and_ends_as_scheduled(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create(pod("p"))
    fault = proxy.answer(*POST, 500, message="failed calling webhook", times=None)
    effects.submit(bind_of(made))
    await fault.struck(5)

    async def reported() -> bool:
        found = condition(await cluster.get("pods", "p"), "PodScheduled")
        return found.get("message") == "failed to bind to node n1: failed calling webhook"

    await cluster.wait_until(reported, "the condition")
    assert effects.observer.bindings == [("failed", "p", 500)]
    assert effects.deltas == [], "the core gets no delta while the outcome is open"
    fault.lift()
    await effects.quiet()
    assert effects.observer.bindings[-1] == BOUND
    assert len(await effects.events("FailedScheduling")) == 1
    assert condition(await cluster.get("pods", "p"), "PodScheduled")["status"] == "True"


async def test_a_late_condition_never_marks_a_bound_pod_as_unscheduled(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create_all([pod("p"), pod("q")])
    slow = proxy.delay("PATCH", "/pods/p/status", 0.5)
    effects.submit(*(UpdatePodCondition(*ids(each), "Unschedulable", "no free node") for each in made))
    await slow.struck()  # the condition of p is on its way; both are bound now
    await effects.write(*(bind_of(each) for each in made))
    assert {each.path.split("/")[-2] for each in effects.requests("POST", "/binding")} == {"p", "q"}
    for name in ("p", "q"):
        assert condition(await cluster.get("pods", name), "PodScheduled")["status"] == "True"


# --- leadership -----------------------------------------------------------------------------------------------------


async def test_an_unknown_outcome_is_not_pursued_after_the_lease_is_lost(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create(pod("p"))
    fault = proxy.reset(*POST, times=None)
    effects.submit(bind_of(made))
    await fault.struck(2)
    effects.leads = False
    effects.reset()
    fault.lift()
    await asyncio.sleep(0.6)
    before = len(effects.requests(*POST))
    effects.leads = True
    await asyncio.sleep(0.6)
    assert len(effects.requests(*POST)) == before
    assert effects.deltas == []
    assert await cluster.bound() == {}


# --- the end --------------------------------------------------------------------------------------------------------


async def test_drain_waits_for_outcomes_and_returns_as_soon_as_all_is_written(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await cluster.create_all([pod(f"p{index}") for index in range(10)])
    proxy.delay("POST", "/p3/binding", 0.4, after=True)
    loop = asyncio.get_running_loop()
    effects.submit(*(bind_of(each) for each in made))
    started = loop.time()
    left = await effects.effects.drain(5.0)
    assert 0.3 < loop.time() - started < 3.0
    assert not any(left.values())
    assert len(effects.observer.bindings) == 10


async def test_drain_begins_nothing_at_its_deadline_and_reports_unsent_writes(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod(f"p{index}") for index in range(30)])
    proxy.delay("POST", "/binding", 0.3, times=None)
    async with Harness(cluster, proxy, binders=2) as effects:
        effects.submit(*(bind_of(each) for each in made))
        left = await effects.effects.drain(2.0)
        sent = len(proxy.exchanges)
        assert left["bind"] == 30 - sent
        assert 0 < sent < 30
        await asyncio.sleep(0.5)
        assert len(proxy.exchanges) == sent, "nothing was under way when drain returned"
    assert len(await cluster.bound()) == sent


@pytest.mark.campaign
async def test_drain_pursues_a_binding_that_may_have_been_committed(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod("p"), pod("never")])
    proxy.lose_answer(*POST)
    unread = proxy.answer("GET", "/pods/p$", 503, times=None)
    async with Harness(cluster, proxy, binders=1) as effects:
        effects.submit(bind_of(made[0]))
        await unread.struck(3)
        draining = asyncio.create_task(effects.effects.drain(3.0))
        await asyncio.sleep(2.5)
        effects.submit(bind_of(made[1]))
        assert not draining.done()
        unread.lift()
        left = await draining
        assert effects.observer.bindings == [("failed", "p", 503), ("bound", "p", 201)]
        assert left["bind"] == 1
    assert await cluster.bound() == {"p": "n1"}


# --- volumes --------------------------------------------------------------------------------------------------------


async def test_volumes_are_bound_before_the_pod_and_block_no_other_pod(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod("p"), pod("other")])
    settled = asyncio.Event()
    requested: list[str] = []

    async def settle(client: Client, bind: Bind) -> None:
        requested.append(bind.name)
        await settled.wait()

    async with Harness(cluster, proxy, binders=1, pre_bind=settle) as effects:
        with_claim = _with_claim(bind_of(made[0]))
        effects.submit(with_claim, bind_of(made[1]))
        await effects.until(lambda: effects.observer.bindings, "the pod without volumes")
        assert await cluster.bound() == {"other": "n1"}
        assert requested == ["p"]
        settled.set()
        await effects.quiet()
    assert set(await cluster.bound()) == {"p", "other"}


async def test_volumes_that_cannot_be_settled_are_a_refusal_and_shortages_are_tried_again(
    cluster: Cluster, proxy: Proxy
) -> None:
    made = await cluster.create(pod("p"))
    responses = iter([ApiError(503, "ServiceUnavailable", "later"), ApiError(403, "Forbidden", "not your claim")])

    async def settle(client: Client, bind: Bind) -> None:
        for error in responses:
            raise error
        msgspec.json.decode(b"7", type=str)

    async with Harness(cluster, proxy, pre_bind=settle) as effects:
        effects.submit(_with_claim(bind_of(made)))
        assert (await effects.refusal()).message == "not your claim"
        await effects.quiet()
        reported = condition(await cluster.get("pods", "p"), "PodScheduled")
        assert reported["message"] == "execute preBind for pod p failed: not your claim, resync the task"
        effects.deltas.clear()
        effects.submit(_with_claim(bind_of(made)))
        assert "cannot be decoded" in (await effects.refusal()).message
        assert effects.requests(*POST) == []


async def test_settling_volumes_ends_with_the_lease(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create(pod("p"))
    ended = asyncio.Event()

    async def settle(client: Client, bind: Bind) -> None:
        try:
            while True:
                await client.request("GET", object_path("Pod", bind.namespace, bind.name))
                await asyncio.sleep(0.05)
        finally:
            ended.set()

    async with Harness(cluster, proxy, pre_bind=settle) as effects:
        effects.submit(_with_claim(bind_of(made)))
        await effects.until(lambda: len(effects.requests("GET", "/pods/p")) > 2, "some looks")
        effects.reset()
        async with asyncio.timeout(5.0):
            await ended.wait()
        await asyncio.sleep(0.2)
        assert effects.requests(*POST) == []
        assert effects.deltas == []


def _with_claim(bind: Bind) -> Bind:
    return Bind(bind.namespace, bind.name, bind.uid, bind.node, volumes=(ClaimBinding("c", "v"),))
