"""The queues that must exist: made at the beginning of a term, however long it takes."""

from __future__ import annotations

import asyncio

import pytest

from capcard_sched.kube import queues
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.queues import ensure_queues
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import queue
from tests.controlplane.proxy import Proxy

QUEUES = "/queues$"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_FIRST_PAUSE", 0.05)


class Failures:
    """Reports, and whether a retry is still useful."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []
        self.expected = True

    def __call__(self, name: str, why: str) -> None:
        self.reported.append((name, why))


async def ensured(proxy: Proxy, failures: Failures) -> None:
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a")))) as client:
        await ensure_queues(client, "default", failures, lambda: failures.expected)


async def test_missing_queues_are_created_and_existing_ones_stay(cluster: Cluster, proxy: Proxy) -> None:
    await cluster.create(queue("default", weight=7))
    failures = Failures()
    await ensured(proxy, failures)
    specs = {found["metadata"]["name"]: found["spec"] for found in await cluster.list("queues")}
    assert specs["default"]["weight"] == 7
    assert specs["root"]["reclaimable"] is False
    assert failures.reported == []


async def test_a_refusal_is_reported_once_and_at_once_and_retried(cluster: Cluster, proxy: Proxy) -> None:
    refusal = proxy.answer("POST", QUEUES, 403, message="no right", times=None)
    failures = Failures()
    making = asyncio.create_task(ensured(proxy, failures))
    await refusal.struck(8)
    assert sorted(failures.reported) == [("default", "no right"), ("root", "no right")]
    refusal.lift()
    await making
    assert {found["metadata"]["name"] for found in await cluster.list("queues")} == {"default", "root"}


async def test_one_that_cannot_be_made_does_not_hold_the_other_up(cluster: Cluster, proxy: Proxy) -> None:
    proxy.reset("POST", QUEUES, nth=1, times=1)
    failures = Failures()
    await ensured(proxy, failures)
    assert len(failures.reported) == 1
    assert len(await cluster.list("queues")) == 2


async def test_a_former_leader_stops_retrying(cluster: Cluster, proxy: Proxy) -> None:
    refusal = proxy.answer("POST", QUEUES, 403, times=None)
    failures = Failures()
    making = asyncio.create_task(ensured(proxy, failures))
    await refusal.struck(2)
    failures.expected = False
    async with asyncio.timeout(5):
        await making
    assert await cluster.list("queues") == []
