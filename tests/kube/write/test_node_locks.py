"""Locks of nodes on a real API server: one pod after the other, and never against another holder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from capcard_sched.kube.node_locks import NodeLockedError, NodeLocks
from capcard_sched.model.annotations import BIND_PHASE
from capcard_sched.model.intents import AnnotateNode, Bind
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of

LOCK = "hamivgpu"


class LockBench:
    """Locks of node n1, on a clock that may be ahead."""

    def __init__(self, effects: Harness) -> None:
        self.cluster, self.client = effects.cluster, effects.client
        self.ahead = 0.0
        self.locks = self.restarted()

    def restarted(self) -> NodeLocks:
        return NodeLocks(self.now, self.now)

    def now(self) -> float:
        return datetime.now(UTC).timestamp() + self.ahead

    async def pod(self, name: str, phase: str = "allocating") -> Bind:
        made = await self.cluster.create(pod(name, annotations={BIND_PHASE: phase} if phase else {}))
        return msgspec.structs.replace(bind_of(made), node_lock=LOCK)

    async def phase(self, name: str, phase: str) -> None:
        await self.cluster.patch("pods", name, {"metadata": {"annotations": {BIND_PHASE: phase}}})

    async def acquire(self, bind: Bind) -> None:
        await self.locks.acquire(self.client, bind)

    async def refused(self, bind: Bind, match: str | None = None) -> NodeLockedError:
        with pytest.raises(NodeLockedError, match=match) as error:
            await self.acquire(bind)
        return error.value

    async def value(self) -> Any:
        found = await self.cluster.get("nodes", "n1")
        return (found["metadata"].get("annotations") or {}).get(LOCK)

    async def set(self, value: str | None) -> None:
        await self.cluster.patch("nodes", "n1", {"metadata": {"annotations": {LOCK: value}}})


@pytest.fixture
async def bench(effects: Harness) -> LockBench:
    await effects.cluster.create(node("n1"))
    return LockBench(effects)


def _text(age: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("value", [None, "yesterday", "", "2020-01-01T00:00:00Z"])
async def test_a_node_without_a_lock_of_the_last_five_minutes_is_locked_with_the_time(
    bench: LockBench, value: str | None
) -> None:
    if value is not None:
        await bench.set(value)
    await bench.acquire(await bench.pod("p"))
    taken = datetime.fromisoformat(await bench.value())
    assert abs((datetime.now(UTC) - taken).total_seconds()) < 30


async def test_a_lock_of_another_client_is_waited_for_and_given_up_after_five_minutes(bench: LockBench) -> None:
    await bench.set(_text(-60))
    bind = await bench.pod("p", "")
    refusals = [await bench.refused(bind) for _ in range(7)]
    assert {each.status for each in refusals} == {429}
    assert [each.retry_after for each in refusals] == [1, 2, 4, 8, 16, 30, 30]
    await bench.set(_text(-400))
    bench.ahead = 301
    assert (await bench.refused(bind, r"node n1 locked for 30[12] s hamivgpu by another client")).status == 422


async def test_pods_of_a_node_take_the_lock_in_the_order_of_their_bindings(bench: LockBench) -> None:
    first, second, third = [await bench.pod(name) for name in ("a", "b", "c")]
    await bench.acquire(first)
    for bind in (second, third, third):
        await bench.refused(bind)
    await bench.phase("a", "success")
    await bench.refused(third, "an earlier binding")
    await bench.acquire(second)
    await bench.refused(third, r"by pod .*/b")
    await bench.cluster.delete("pods", "b")
    await bench.acquire(third)


async def test_a_lock_that_is_released_for_another_pod_still_keeps_the_order(bench: LockBench) -> None:
    first, second = [await bench.pod(name) for name in ("a", "b")]
    await bench.acquire(first)
    await bench.acquire(first)  # a pod with two kinds of devices does not meet its own lock
    await bench.set(None)  # the device plugin served some other pod
    await bench.refused(second, r"by pod .*/a")
    bench.ahead = 301
    await bench.acquire(second)


async def test_a_pod_whose_binding_is_under_way_holds_its_lock(bench: LockBench) -> None:
    first, second = [await bench.pod(name, "") for name in ("a", "b")]
    await bench.acquire(first)
    await bench.refused(second, r"by pod .*/a")
    bench.ahead = 31  # the binding failed
    await bench.acquire(second)


@pytest.mark.parametrize("taken_over", [False, True])
async def test_the_lock_of_a_pod_that_ends_unserved_is_released_unless_another_client_holds_it(
    bench: LockBench, *, taken_over: bool
) -> None:
    await bench.acquire(await bench.pod("p"))
    other = _text(-9)
    if taken_over:
        await bench.set(other)
    await bench.cluster.delete("pods", "p")
    await bench.locks.released()
    assert await bench.value() == (other if taken_over else None)


async def test_a_lock_of_an_earlier_run_is_held_by_the_oldest_pod_that_still_waits(bench: LockBench) -> None:
    await bench.set(_text(10))
    await bench.cluster.create(pod("old", nodeName="n1", annotations={BIND_PHASE: "allocating"}))
    bind = await bench.pod("p", "")
    await bench.refused(bind, r"by pod .*/old")
    await bench.phase("old", "failed")
    bench.locks = bench.restarted()
    await bench.acquire(bind)


async def test_a_binding_waits_for_its_lock_and_is_then_written(
    cluster: Cluster, proxy: Proxy, bench: LockBench
) -> None:
    async with Harness(cluster, proxy, pre_bind=NodeLocks().acquire) as effects:
        effects.submit(await bench.pod("a"), await bench.pod("b"))
        await effects.until(lambda: ("bound", "a", 201) in effects.observer.bindings, "the first binding")
        assert ("bound", "b", 201) not in effects.observer.bindings
        await bench.phase("a", "success")
        await effects.until(lambda: ("bound", "b", 201) in effects.observer.bindings, "the second binding", 40)


async def test_annotations_are_merged_into_a_node(bench: LockBench, effects: Harness) -> None:
    await bench.set("kept")
    await effects.write(AnnotateNode("n1", {"a": "1"}), AnnotateNode("n1", {"b": "2"}))
    await effects.write(AnnotateNode("n1", {"a": None}), AnnotateNode("gone", {"a": "1"}))
    found = (await bench.cluster.get("nodes", "n1"))["metadata"]["annotations"]
    assert (found.get("a"), found["b"], found[LOCK]) == (None, "2", "kept")
