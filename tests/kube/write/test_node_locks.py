"""Locks of nodes on a real API server: one pod after the other, and never against another holder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from capcard_sched.kube.node_locks import NodeLockedError, NodeLocks
from capcard_sched.model.annotations import BIND_PHASE
from capcard_sched.model.intents import AnnotateNode, Bind
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of

LOCK = "hamivgpu"


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return datetime.now(UTC).timestamp() + self.ahead

    def monotonic(self) -> float:
        return self.now()


def _locks(clock: Clock) -> NodeLocks:
    return NodeLocks(clock.now, clock.monotonic)


async def _pod(cluster: Cluster, name: str, *, phase: str = "") -> Bind:
    made = await cluster.create(pod(name, annotations={BIND_PHASE: phase} if phase else {}))
    return _locked(made)


def _locked(made: Manifest) -> Bind:
    return msgspec.structs.replace(bind_of(made), node_lock=LOCK)


async def _lock_of(cluster: Cluster) -> Any:
    found = await cluster.get("nodes", "n1", namespace="")
    return (found["metadata"].get("annotations") or {}).get(LOCK)


async def _set_lock(cluster: Cluster, value: str | None) -> None:
    await cluster.patch("nodes", "n1", {"metadata": {"annotations": {LOCK: value}}}, namespace="")


def _text(age: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_free_node_is_locked_with_the_time(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    async with Harness(cluster, proxy) as effects:
        await _locks(Clock()).acquire(effects.client, await _pod(cluster, "p"))

    taken = datetime.fromisoformat(await _lock_of(cluster))
    assert abs((datetime.now(UTC) - taken).total_seconds()) < 30


@pytest.mark.parametrize("value", ["yesterday", "", "2020-01-01T00:00:00Z"])
async def test_a_lock_that_is_no_time_or_too_old_is_free(cluster: Cluster, proxy: Proxy, value: str) -> None:
    await cluster.create(node("n1"))
    await _set_lock(cluster, value)
    async with Harness(cluster, proxy) as effects:
        await _locks(Clock()).acquire(effects.client, await _pod(cluster, "p"))

    assert await _lock_of(cluster) not in (value, None)


async def test_a_lock_of_another_client_is_waited_for_and_given_up_after_five_minutes(
    cluster: Cluster, proxy: Proxy
) -> None:
    await cluster.create(node("n1"))
    clock = Clock()
    locks = _locks(clock)
    async with Harness(cluster, proxy) as effects:
        await _set_lock(cluster, _text(-60))
        bind = await _pod(cluster, "p")
        pauses = []
        for _ in range(7):
            with pytest.raises(NodeLockedError) as error:
                await locks.acquire(effects.client, bind)
            assert error.value.status == 429
            pauses.append(error.value.retry_after)
        await _set_lock(cluster, _text(-400))
        clock.ahead = 301
        with pytest.raises(NodeLockedError, match=r"node n1 locked for 30[12] s hamivgpu by another client") as error:
            await locks.acquire(effects.client, bind)

    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert error.value.status == 422


async def test_pods_of_a_node_take_the_lock_in_the_order_of_their_bindings(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    locks = _locks(Clock())
    async with Harness(cluster, proxy) as effects:
        first, second, third = [await _pod(cluster, name, phase="allocating") for name in ("a", "b", "c")]
        await locks.acquire(effects.client, first)
        for bind in (second, third, third):
            with pytest.raises(NodeLockedError):
                await locks.acquire(effects.client, bind)
        await cluster.patch("pods", "a", {"metadata": {"annotations": {BIND_PHASE: "success"}}})
        with pytest.raises(NodeLockedError, match="an earlier binding"):
            await locks.acquire(effects.client, third)
        await locks.acquire(effects.client, second)
        with pytest.raises(NodeLockedError, match=r"by pod .*/b"):
            await locks.acquire(effects.client, third)
        await cluster.delete("pods", "b")
        await locks.acquire(effects.client, third)


async def test_a_lock_that_is_released_for_another_pod_still_keeps_the_order(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    clock = Clock()
    locks = _locks(clock)
    async with Harness(cluster, proxy) as effects:
        first, second = [await _pod(cluster, name, phase="allocating") for name in ("a", "b")]
        await locks.acquire(effects.client, first)
        await locks.acquire(effects.client, first)  # a pod with two kinds of devices does not meet its own lock
        await _set_lock(cluster, None)  # the device plugin served some other pod
        with pytest.raises(NodeLockedError, match=r"by pod .*/a"):
            await locks.acquire(effects.client, second)
        clock.ahead = 301
        await locks.acquire(effects.client, second)


async def test_a_pod_whose_binding_is_under_way_holds_its_lock(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    clock = Clock()
    locks = _locks(clock)
    async with Harness(cluster, proxy) as effects:
        first, second = [await _pod(cluster, name) for name in ("a", "b")]
        await locks.acquire(effects.client, first)
        with pytest.raises(NodeLockedError, match=r"by pod .*/a"):
            await locks.acquire(effects.client, second)
        clock.ahead = 31  # the binding failed
        await locks.acquire(effects.client, second)


@pytest.mark.parametrize("taken_over", [False, True])
async def test_the_lock_of_a_pod_that_ends_unserved_is_released_unless_another_client_holds_it(
    cluster: Cluster, proxy: Proxy, *, taken_over: bool
) -> None:
    await cluster.create(node("n1"))
    locks = _locks(Clock())
    async with Harness(cluster, proxy) as effects:
        await locks.acquire(effects.client, await _pod(cluster, "p", phase="allocating"))
        other = _text(-9)
        if taken_over:
            await _set_lock(cluster, other)
        await cluster.delete("pods", "p")
        await locks.released()

    assert await _lock_of(cluster) == (other if taken_over else None)


async def test_a_lock_of_an_earlier_run_is_held_by_the_oldest_pod_that_still_waits(
    cluster: Cluster, proxy: Proxy
) -> None:
    await cluster.create(node("n1"))
    await _set_lock(cluster, _text(10))
    async with Harness(cluster, proxy) as effects:
        await cluster.create(pod("old", nodeName="n1", annotations={BIND_PHASE: "allocating"}))
        bind = await _pod(cluster, "p")
        with pytest.raises(NodeLockedError, match=r"by pod .*/old"):
            await _locks(Clock()).acquire(effects.client, bind)
        await cluster.patch("pods", "old", {"metadata": {"annotations": {BIND_PHASE: "failed"}}})
        await _locks(Clock()).acquire(effects.client, bind)


async def test_a_binding_waits_for_its_lock_and_is_then_written(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    locks = NodeLocks()
    async with Harness(cluster, proxy, pre_bind=locks.acquire) as effects:
        first, second = [await _pod(cluster, name, phase="allocating") for name in ("a", "b")]
        effects.effects.submit([first, second])
        await effects.until(lambda: ("bound", "a", 201) in effects.observer.bindings, "the first binding")
        assert ("bound", "b", 201) not in effects.observer.bindings
        await cluster.patch("pods", "a", {"metadata": {"annotations": {BIND_PHASE: "success"}}})
        await effects.until(lambda: ("bound", "b", 201) in effects.observer.bindings, "the second binding", 40)


async def test_annotations_are_merged_into_a_node(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(node("n1"))
    await _set_lock(cluster, "kept")
    async with Harness(cluster, proxy) as effects:
        effects.effects.submit([AnnotateNode("n1", {"a": "1"}), AnnotateNode("n1", {"b": "2"})])
        await effects.quiet()
        effects.effects.submit([AnnotateNode("n1", {"a": None}), AnnotateNode("gone", {"a": "1"})])
        await effects.quiet()

    found = (await cluster.get("nodes", "n1", namespace=""))["metadata"]["annotations"]
    assert (found.get("a"), found["b"], found[LOCK]) == (None, "2", "kept")
