"""Locks of nodes during bindings, on a real API server: schedulers beside each other see each other's pods."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from capcard_sched.kube.binding_locks import BindingLockedError, BindingLocks, DevicesTakenError
from capcard_sched.kube.client import Unreachable
from capcard_sched.model.annotations import BINDING_LOCK, VGPU_IDS
from capcard_sched.model.intents import Bind
from tests.controlplane.manifests import node, pod
from tests.kube.write.harness import Harness, bind_of

LOCK = "hamivgpu"
DEVICES = {VGPU_IDS: "GPU-0,NVIDIA,1,0:"}


class Bench:
    """Two schedulers on node n1, on clocks that may be ahead."""

    def __init__(self, effects: Harness) -> None:
        self.cluster, self.client = effects.cluster, effects.client
        self.ahead = 0.0
        self.one, self.other = (BindingLocks(self.now, self.now) for _ in range(2))

    def now(self) -> float:
        return datetime.now(UTC).timestamp() + self.ahead

    async def bind(self, name: str, *seen: str, node_lock: str = "") -> Bind:
        made = await self.cluster.create(pod(name))
        known = tuple([(await self.cluster.get("pods", other))["metadata"]["uid"] for other in seen])
        return msgspec.structs.replace(bind_of(made), binding_lock=LOCK, node_pods=known, node_lock=node_lock)

    async def notes(self) -> dict[str, Any]:
        found = (await self.cluster.get("nodes", "n1"))["metadata"].get("annotations") or {}
        return {key: found[key] for key in (LOCK, BINDING_LOCK) if key in found}

    async def set(self, **notes: str | None) -> None:
        await self.cluster.patch("nodes", "n1", {"metadata": {"annotations": notes}})

    async def running(self, name: str, **fields: Any) -> None:
        await self.cluster.create(pod(name, nodeName="n1", annotations=DEVICES, **fields))


@pytest.fixture
async def bench(effects: Harness) -> Bench:
    await effects.cluster.create(node("n1"))
    return Bench(effects)


def _text(age: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_lock_excludes_other_schedulers_until_the_binding_ends(bench: Bench) -> None:
    first, second = await bench.bind("a"), await bench.bind("b")
    async with bench.one.held(bench.client, first):
        assert (await bench.notes()).keys() == {LOCK, BINDING_LOCK}
        with pytest.raises(BindingLockedError) as error:
            await bench.other.held(bench.client, second).__aenter__()
        assert error.value.is_temporary
    await bench.one.released()
    assert await bench.notes() == {}
    async with bench.other.held(bench.client, second):
        pass


async def test_bindings_of_one_scheduler_share_a_lock(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bench.one.held(bench.client, await bench.bind("a")))
        held = await bench.notes()
        await stack.enter_async_context(bench.one.held(bench.client, await bench.bind("b")))
        assert await bench.notes() == held
        bench.ahead = 6  # the others get their turn
        with pytest.raises(BindingLockedError):
            await bench.one.held(bench.client, await bench.bind("c")).__aenter__()


async def test_a_pod_that_the_decision_did_not_count_refuses_the_binding(bench: Bench) -> None:
    await bench.running("theirs")
    with pytest.raises(DevicesTakenError, match=r"pod .*/theirs got devices of node n1") as error:
        await bench.one.held(bench.client, await bench.bind("a")).__aenter__()
    assert not error.value.is_temporary
    async with bench.one.held(bench.client, await bench.bind("b", "theirs")):
        await bench.running("ours")
    await bench.one.released()
    assert await bench.notes() == {}


async def test_pods_without_devices_and_pods_that_ended_do_not_count(bench: Bench) -> None:
    await bench.running("ended")
    await bench.cluster.patch("pods", "ended", {"status": {"phase": "Succeeded"}}, subresource="status")
    await bench.cluster.create(pod("plain", nodeName="n1"))
    async with bench.one.held(bench.client, await bench.bind("a")):
        pass


@pytest.mark.parametrize(
    "lock, own, is_held",
    [
        (60, None, True),
        (400, None, False),
        (None, 10, True),
        (None, 40, False),
        (40, 40, False),  # of a scheduler that was killed: both are of the same lock
        (200, 40, True),
    ],
)
async def test_a_lock_is_void_after_its_time(bench: Bench, lock: int | None, own: int | None, is_held: bool) -> None:
    notes = {LOCK: _text(lock)} if lock is not None else {}
    if own is not None:
        notes[BINDING_LOCK] = f"{_text(own)} another"
    await bench.set(**notes)
    bind = await bench.bind("a")
    if is_held:
        with pytest.raises(BindingLockedError):
            await bench.one.held(bench.client, bind).__aenter__()
        assert await bench.notes() == notes
    else:
        async with bench.one.held(bench.client, bind):
            assert (await bench.notes()).keys() == {LOCK, BINDING_LOCK}


async def test_the_lock_of_a_device_plugin_that_the_pod_holds_already_stays(bench: Bench) -> None:
    held = {LOCK: _text(1)}
    await bench.set(**held)
    async with bench.one.held(bench.client, await bench.bind("a", node_lock=LOCK)):
        assert (await bench.notes())[LOCK] == held[LOCK]
    await bench.one.released()
    assert await bench.notes() == held


async def test_a_device_plugin_that_releases_its_annotation_does_not_end_the_lock(bench: Bench) -> None:
    async with bench.one.held(bench.client, await bench.bind("a")):
        await bench.set(**{LOCK: None})
        with pytest.raises(BindingLockedError):
            await bench.other.held(bench.client, await bench.bind("b")).__aenter__()
    await bench.one.released()
    assert await bench.notes() == {}


async def test_a_binding_without_an_outcome_keeps_the_lock_for_a_while(bench: Bench) -> None:
    bind = await bench.bind("a")
    with pytest.raises(Unreachable):
        async with bench.one.held(bench.client, bind):
            raise Unreachable("no response", sent=True)
    await asyncio.sleep(0.2)
    assert (await bench.notes()).keys() == {LOCK, BINDING_LOCK}
    async with bench.one.held(bench.client, bind):  # its next attempt shares it
        pass
    await bench.one.released()
    assert await bench.notes() == {}
