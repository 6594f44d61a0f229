"""Writes of controllers on an API server: preconditions, lost answers, objects that exist or are gone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Create, Delete, Patch
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.controllers.object_cache import ObjectCache
from capcard_sched.kube.controllers.write_executor import WriteExecutor, WriteFailedError
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.writes.api_writer import ApiWriter
from capcard_sched.kube.writes.leadership_gate import LeadershipLost
from capcard_sched.kube.writes.write_call import WriteOutcome, WriteResult
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import pod_group
from tests.controlplane.proxy import Proxy


class WriteBench:
    """An executor behind a proxy, and its cache."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.namespace = namespace
        self.cache = ObjectCache(time.monotonic, lambda *_: None)
        self.writer = ApiWriter(
            client, lambda _: None, Observer(), time_left=lambda: 60.0, scheduler_name="vc-controller-manager"
        )
        self.executor = WriteExecutor(self.writer, self.cache, count=lambda _: None, clock=time.time)

    def key(self, name: str = "g") -> Key:
        return Key("PodGroup", self.namespace, name)

    def group(self, name: str = "g", **metadata: Any) -> dict[str, Any]:
        made = pod_group(name, namespace=self.namespace)
        return {**made, "metadata": {**made["metadata"], **metadata}}

    def owned(self, uid: str) -> dict[str, Any]:
        return self.group(
            ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}]
        )

    async def write(self, *writes: Any) -> None:
        await self.executor.execute(writes, self.executor.gate.term)

    async def failure(self, write: Any) -> WriteOutcome | None:
        """The outcome of a write that fails."""
        try:
            await self.write(write)
        except WriteFailedError as error:
            return error.outcome
        return None

    def cached(self, name: str = "g") -> dict[str, Any] | None:
        return self.cache.get(*self.key(name))


@pytest_asyncio.fixture
async def bench(cluster: Cluster, proxy: Proxy) -> AsyncIterator[WriteBench]:
    async with Client(load_connection(str(proxy.kubeconfig_for("admin")), None, None)) as client:
        yield WriteBench(client, cluster.namespace)


async def test_a_response_is_cached_and_a_repeated_creation_of_ours_is_no_error(
    bench: WriteBench, proxy: Proxy
) -> None:
    lost = proxy.lose_answer("POST", "/podgroups")
    with pytest.raises(WriteFailedError) as failed:
        await bench.write(Create(bench.owned("u")))
    assert failed.value.outcome.result is WriteResult.AGAIN
    await lost.struck()
    assert bench.cached() is None
    await bench.write(Create(bench.owned("u")))
    assert bench.cached() is not None


@pytest.mark.parametrize("adopt, owner, accepted", [(True, "", True), (False, "", False), (True, "other", False)])
async def test_a_foreign_object_of_the_name_is_adopted_only_without_an_owner(
    bench: WriteBench, adopt: bool, owner: str, accepted: bool
) -> None:
    await bench.write(Create(bench.owned(owner) if owner else bench.group()))
    if accepted:
        await bench.write(Create(bench.owned("u"), adopt=adopt))
        return
    with pytest.raises(WriteFailedError, match="already exists") as failed:
        await bench.write(Create(bench.owned("u"), adopt=adopt))
    assert failed.value.outcome.result is WriteResult.REFUSED


async def test_a_patch_of_an_outdated_version_is_a_conflict_and_shows_the_present_one(
    bench: WriteBench, cluster: Cluster
) -> None:
    await bench.write(Create(bench.group()))
    old = (bench.cached() or {})["metadata"]["resourceVersion"]
    await cluster.patch("podgroups", "g", {"spec": {"minMember": 2}})
    with pytest.raises(WriteFailedError) as failed:
        await bench.write(Patch(bench.key(), {"spec": {"minMember": 3}}, version=old))
    assert failed.value.outcome.result is WriteResult.CONFLICT
    assert (bench.cached() or {})["spec"]["minMember"] == 2


async def test_a_deleted_object_needs_no_patch_and_no_deletion(bench: WriteBench, cluster: Cluster) -> None:
    await bench.write(Patch(bench.key(), {"spec": {"minMember": 2}}), Delete(bench.key(), "u"))
    await bench.write(Create(bench.group()))
    await bench.write(Patch(bench.key(), {"spec": {"minMember": 2}}, uid="another"), Delete(bench.key(), "another"))
    assert (await cluster.get("podgroups", "g"))["spec"]["minMember"] == 1


async def test_a_deletion_counts_at_once(bench: WriteBench, cluster: Cluster) -> None:
    await bench.write(Create(bench.group()))
    found = bench.cached() or {}
    await bench.write(Delete(bench.key(), found["metadata"]["uid"]))
    assert (bench.cached() or {})["metadata"]["deletionTimestamp"]
    assert await cluster.find("podgroups", "g") is None
    assert await bench.executor.read(bench.key()) is None


async def test_the_first_failure_stops_the_rest(bench: WriteBench, cluster: Cluster) -> None:
    wrong = bench.group("wrong")
    wrong["spec"]["minMember"] = "many"
    with pytest.raises(WriteFailedError, match="minMember") as failed:
        await bench.write(Patch(bench.key("absent"), {}), Create(wrong), Patch(bench.key(), {}), Create(bench.group()))
    assert failed.value.write == Create(wrong)
    assert failed.value.outcome.result is WriteResult.REFUSED
    assert await cluster.find("podgroups", "g") is None


async def test_a_response_decides_whether_a_pass_goes_on_is_repeated_or_counts(bench: WriteBench, proxy: Proxy) -> None:
    await bench.write(Create(bench.group()))
    create, patch = Create(bench.group("h")), Patch(bench.key(), {"metadata": {"labels": {"a": "b"}}})
    delete = Delete(bench.key(), (bench.cached() or {})["metadata"]["uid"])
    rows: list[tuple[Create | Patch | Delete, int, WriteResult | None]] = [
        (create, 404, WriteResult.AGAIN),  # the namespace may appear
        (create, 429, WriteResult.AGAIN),
        (create, 403, WriteResult.REFUSED),
        (create, 409, WriteResult.AGAIN),  # the object of the name is gone meanwhile
        (patch, 500, WriteResult.AGAIN),
        (patch, 409, WriteResult.CONFLICT),
        (patch, 422, WriteResult.REFUSED),
        (patch, 404, None),
        (delete, 503, WriteResult.AGAIN),
        (delete._replace(version="1"), 409, WriteResult.CONFLICT),
        (delete, 409, None),
        (delete, 404, None),
    ]
    for write, status, expected in rows:
        verb = {Create: "POST", Patch: "PATCH", Delete: "DELETE"}[type(write)]
        proxy.answer(verb, "/podgroups", status, retry_after=1 if status == 429 else None)
        outcome = await bench.failure(write)
        assert (outcome and outcome.result) is expected, (write, status)
        assert outcome is None or outcome.wait == (1.0 if status == 429 else 0.0)
    assert (bench.cached() or {})["metadata"]["deletionTimestamp"], "what was deleted counts as terminating"


async def test_nothing_is_written_after_a_term(bench: WriteBench, cluster: Cluster) -> None:
    term = bench.executor.gate.term
    bench.writer.reset()
    with pytest.raises(LeadershipLost):
        await bench.executor.execute([Create(bench.group())], term)
    assert await cluster.list("podgroups") == []
