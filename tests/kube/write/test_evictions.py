"""Evictions on a real API server: conditions, events, the deletion itself, and every way it can go wrong."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from capcard_sched.model.deltas import EvictFailed, ObjectGone
from capcard_sched.model.intents import Evict
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import Manifest, gang, node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, condition, evict_of, ids

DELETE = "/pods/p$"


async def running(cluster: Cluster, name: str = "p", **rest: object) -> Manifest:
    """A pod on a node, which its kubelet would keep for a while when it is deleted."""
    made = await cluster.create(pod(name, grace=60, **rest))  # type: ignore[arg-type]
    await cluster.bind(name, "n1")
    path = await cluster.path("pods", name)

    async def shown() -> bool:
        try:
            cached = await cluster.request("GET", path, params={"resourceVersion": "0"})
        except RequestError:
            return False
        return bool(cached["spec"].get("nodeName"))

    # A deletion begins with what the API server has cached, and ends a pod at once that stands on no node there.
    await cluster.wait_until(shown, "the API server's cache to contain the binding")
    return made


async def test_an_evicted_pod_shows_the_reason_and_terminates_with_its_own_grace_period(
    cluster: Cluster, effects: Harness
) -> None:
    await cluster.create(node("n1"))
    group, member = gang("g", 1, grace=60)
    group = await cluster.create(group)
    made = await cluster.create(member)
    await cluster.bind("g-0", "n1")
    effects.submit(evict_of(made, "reclaim"))
    assert effects.effects.backlog()["evict"] == 1
    await effects.quiet()
    assert effects.observer.evictions == [("evicted", "g-0", 200)]
    assert effects.deltas == []
    found = await cluster.get("pods", "g-0")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 60
    message = "Pod is evicted, because of reclaim"
    ready, target = condition(found, "Ready"), condition(found, "DisruptionTarget")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "Evict", message)
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
    assert target["message"] == "capcard-sched: preempting to accommodate a higher priority pod"
    assert ready["lastTransitionTime"]
    assert condition(found, "PodScheduled")["status"] == "True", "other conditions stay"
    events = {event["involvedObject"]["kind"]: event for event in await effects.events("Evict")}
    assert (events["Pod"]["type"], events["Pod"]["message"]) == ("Warning", message)
    assert (events["PodGroup"]["type"], events["PodGroup"]["message"]) == ("Normal", "reclaim")
    assert events["PodGroup"]["involvedObject"]["uid"] == group["metadata"]["uid"]


async def test_an_eviction_for_another_pod_emits_its_event_on_the_pod_and_not_on_its_group(
    cluster: Cluster, effects: Harness
) -> None:
    """The framework emits the event of the PodGroup, once for all victims of one preemptor."""
    await cluster.create(node("n1"))
    group, *members = gang("g", 2, grace=60)
    await cluster.create(group)
    made = await cluster.create_all(members)
    await asyncio.gather(cluster.bind("g-0", "n1"), cluster.bind("g-1", "n1"))
    await effects.write(*together(*made))
    assert sorted(event["involvedObject"]["name"] for event in await effects.events("Evict")) == ["g-0", "g-1"]


async def test_a_pod_that_is_leaving_already_is_not_deleted_twice(cluster: Cluster, effects: Harness) -> None:
    made = await running(cluster)
    await cluster.delete("pods", "p", grace=45)
    await effects.write(evict_of(made))
    assert effects.observer.evictions == [("evicted", "p", 200)]
    assert effects.requests("DELETE", "/pods/p") == []
    assert (await cluster.get("pods", "p"))["metadata"]["deletionGracePeriodSeconds"] == 45


@pytest.mark.parametrize(
    ("verb", "how", "times"),
    [
        *(("DELETE", how, 2) for how in ("reset", 429, 500, 503)),
        ("DELETE", "lost", 1),
        ("POST", 429, 2),
        ("POST", 429, 0),
        ("PATCH", 403, None),
    ],
)
async def test_an_eviction_goes_on_over_faults_by_deletion_or_by_the_eviction_api(
    cluster: Cluster, proxy: Proxy, verb: str, how: int | str, times: int | None
) -> None:
    made = await running(cluster)
    proxy.harm(verb, {"DELETE": DELETE, "POST": "/eviction$", "PATCH": "/pods/p/status"}[verb], how, times=times)
    async with Harness(cluster, proxy, use_eviction_api=verb == "POST") as effects:
        await effects.write(evict_of(made))
    assert (effects.observer.evictions, effects.deltas) == ([("evicted", "p", 200)], [])
    assert len(effects.requests("PATCH", "/pods/p/status")) == 1, "what was done is not done again"
    assert bool(effects.requests("POST", "/eviction")) is not bool(effects.requests("DELETE", "/pods/p"))
    assert len(await effects.events("Evict")) == 1
    found = await cluster.get("pods", "p")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 60
    assert condition(found, "DisruptionTarget").get("reason") == (None if verb == "PATCH" else "PreemptionByScheduler")
    assert (("PodCondition", 403) in effects.observer.writes) is (verb == "PATCH")


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_refused_deletion_gives_the_task_back_and_a_repeated_one_later(
    cluster: Cluster, proxy: Proxy, status: int, effects: Harness
) -> None:
    made = await running(cluster)
    proxy.answer("DELETE", DELETE, status, message="not this one", times=2)
    loop = asyncio.get_running_loop()
    started = loop.time()
    effects.submit(evict_of(made))
    await effects.until(lambda: effects.deltas, "the refusal")
    assert loop.time() - started < 1.0
    failed = EvictFailed(*ids(made), "not this one")
    assert effects.deltas == [failed]
    effects.submit(evict_of(made))
    await effects.until(lambda: len(effects.observer.evictions) == 2, "the second refusal")
    again = loop.time()
    await effects.until(lambda: len(effects.deltas) == 2, "its delivery")
    assert loop.time() - again > 0.8
    assert effects.deltas[1] == failed
    assert effects.observer.evictions == [("failed", "p", status)] * 2
    assert await effects.events("Evict") == [], "an eviction that did not happen has no event"
    assert condition(await cluster.get("pods", "p"), "DisruptionTarget")["status"] == "True"
    await effects.write(evict_of(made))
    assert "deletionTimestamp" in (await cluster.get("pods", "p"))["metadata"], "with the conditions of before"


async def test_server_errors_for_ever_end_as_a_refusal(cluster: Cluster, proxy: Proxy, effects: Harness) -> None:
    made = await running(cluster)
    proxy.answer("DELETE", DELETE, 500, message="no", times=None)
    effects.submit(evict_of(made))
    await effects.until(lambda: effects.deltas, "the refusal", within=60)
    assert isinstance(effects.deltas[0], EvictFailed)
    assert len(effects.requests("DELETE", "/pods/p")) == 5


@pytest.mark.parametrize("api", [False, True])
@pytest.mark.parametrize("successor", [False, True])
async def test_a_successor_of_the_same_name_is_neither_marked_nor_deleted(
    cluster: Cluster, proxy: Proxy, api: bool, successor: bool
) -> None:
    made = await running(cluster)
    await cluster.delete("pods", "p")
    if successor:
        await running(cluster)
    async with Harness(cluster, proxy, use_eviction_api=api, timeout=30.0) as effects:
        effects.submit(evict_of(made))
        # The eviction API retries a conflict for ten seconds before it returns it.
        await effects.until(lambda: effects.deltas, "the outcome", within=60)
        assert effects.deltas == [ObjectGone("Pod", *ids(made))]
        await effects.quiet()
    if successor:
        found = await cluster.get("pods", "p")
        assert "deletionTimestamp" not in found["metadata"]
        assert condition(found, "DisruptionTarget") == {}


async def guarded(cluster: Cluster, name: str = "p") -> Manifest:
    """A running pod that a budget protects."""
    made = await running(cluster, name, labels={"app": "guarded"})
    spec = {"selector": {"matchLabels": {"app": "guarded"}}, "minAvailable": 1}
    guard = await cluster.create(plain("PodDisruptionBudget", "all", "policy/v1", spec=spec))
    # Without its controller a budget allows nothing; the server sends Retry-After until the controller has seen it.
    guard["status"] = {
        "observedGeneration": guard["metadata"]["generation"],
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    await cluster.update(guard, subresource="status")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.patch("pods", name, {"status": ready}, subresource="status", strategy="strategic-merge")
    return made


async def test_a_pod_that_its_disruption_budget_protects_is_left_as_it_was(cluster: Cluster, proxy: Proxy) -> None:
    made = await guarded(cluster)
    async with Harness(cluster, proxy, use_eviction_api=True) as effects:
        effects.submit(evict_of(made))
        await effects.until(lambda: effects.deltas, "the refusal")
        (failed,) = effects.deltas
        assert isinstance(failed, EvictFailed)
        assert "disruption budget" in failed.message
        assert effects.observer.evictions == [("failed", "p", 429)]
        assert effects.requests("PATCH", "/pods/p/status") == []
    assert "deletionTimestamp" not in (await cluster.get("pods", "p"))["metadata"]


def together(*pods: Manifest, by: str = "x/taker") -> list[Evict]:
    """Evictions for one pod."""
    return [msgspec.structs.replace(evict_of(each), by=by, queue="q") for each in pods]


async def test_by_the_eviction_api_all_victims_of_one_pod_are_dry_run_first(cluster: Cluster, proxy: Proxy) -> None:
    p, q, r = [await running(cluster, name) for name in "pqr"]
    proxy.answer("POST", "/pods/q/eviction", 503, times=2)
    async with Harness(cluster, proxy, use_eviction_api=True) as effects:
        await effects.write(*together(p, q), *together(r, by="x/other"))
        assert sorted(effects.observer.evictions) == [("evicted", name, 200) for name in "pqr"]
        assert effects.deltas == []
        posts = effects.requests("POST", "/eviction")
    requested = [each.path[len("/api/v1/namespaces/") :].split("/")[2] for each in posts]
    assert sorted(requested) == ["p", "p", "q", "q", "q", "q", "r"], "a dry run, then the eviction; r is evicted alone"
    last_question = [index for index, name in enumerate(requested) if name == "q"][2]
    assert [index for index, name in enumerate(requested) if name == "p"][1] > last_question


async def test_no_victim_of_a_pod_is_evicted_when_one_of_them_is_protected(cluster: Cluster, proxy: Proxy) -> None:
    made = [await running(cluster, "p"), await guarded(cluster, "q"), await running(cluster, "r")]
    other = await running(cluster, "s")
    async with Harness(cluster, proxy, use_eviction_api=True) as effects:
        await effects.write(*together(*made), *together(other, by="x/other"))
        await effects.until(lambda: len(effects.deltas) == 3, "the refusals")
        assert sorted(effects.observer.evictions) == [
            ("evicted", "s", 200),
            *[("failed", name, 429) for name in "pqr"],
        ]
        output = {delta.name: delta.message for delta in effects.deltas if isinstance(delta, EvictFailed)}
    assert output["q"].startswith("Cannot evict pod as it would violate the pod's disruption budget")
    message = f"cannot evict {cluster.namespace}/q, a victim of the same preemptor: {output['q']}"
    assert output["p"] == output["r"] == message
    for name in "pqr":
        found = await cluster.get("pods", name)
        assert "deletionTimestamp" not in found["metadata"]
        assert condition(found, "DisruptionTarget") == {}


async def test_a_victim_that_is_gone_does_not_block_the_other_evictions(cluster: Cluster, proxy: Proxy) -> None:
    p, q = [await running(cluster, name) for name in "pq"]
    await cluster.delete("pods", "q")
    async with Harness(cluster, proxy, use_eviction_api=True, timeout=30.0) as effects:
        await effects.write(*together(p, q), within=60)
        assert effects.observer.evictions == [("evicted", "p", 200)]
        assert effects.deltas == [ObjectGone("Pod", *ids(q))]


async def test_without_the_lease_an_eviction_stops_between_its_two_writes(
    cluster: Cluster, proxy: Proxy, effects: Harness
) -> None:
    made = await running(cluster)
    slow = proxy.delay("PATCH", "/pods/p/status", 0.3)
    effects.submit(evict_of(made))
    await slow.struck()
    effects.leads = False
    await effects.until(lambda: effects.requests("PATCH", "/pods/p/status"), "the first write")
    await asyncio.sleep(0.3)
    assert effects.requests("DELETE", "/pods/p") == []
    effects.reset()
    effects.leads = True
    await asyncio.sleep(0.3)
    assert effects.requests("DELETE", "/pods/p") == []
    assert "deletionTimestamp" not in (await cluster.get("pods", "p"))["metadata"]
