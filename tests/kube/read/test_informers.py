"""Lists and watches against a real API server: everything arrives, nothing twice, whatever happens on the way."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.kinds import KINDS, WatchedKind, chosen_kinds
from capcard_sched.model import deltas
from capcard_sched.model.card_budgets import CARD_BUDGET
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE
from capcard_sched.model.objects import ConfigMapObject, NamespaceObject, NodeObject, ObjectMeta, PodObject
from tests import objects
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import gang, node, plain, pod, queue
from tests.controlplane.proxy import Proxy, failure
from tests.kube.read.mirror import GRANT, QUICK, watching


async def change_everything(cluster: Cluster, round: int) -> None:
    """Something added, something changed, something gone, and something gone and back under the same name."""
    await cluster.create(node(f"late-{round}"))
    await cluster.create(pod(f"late-{round}"))
    await cluster.patch("nodes", "n0", {"metadata": {"labels": {"round": str(round)}}})
    await cluster.delete("pods", f"p{round}")
    await cluster.delete("pods", "again")
    await cluster.create(pod("again"))


# --- the ordinary way -------------------------------------------------------------------------------------------------


async def test_existing_objects_come_first_and_then_every_change(furnished: Cluster) -> None:
    async with watching(furnished) as (feed, mirror, ears):
        assert feed.synced
        assert len(mirror.deltas) == 13  # 4 nodes, 9 pods, each once
        assert await mirror.agrees_with(furnished)
        await change_everything(furnished, 1)
        await furnished.bind("p0", "n1")
        await until(lambda: mirror.agrees_with(furnished), "the changes")
        assert feed.stale_for() == 0.0
        assert ears.watch_events("pods") == ["listed"]


#: apiVersion, kind, name, and all else.
OBJECTS = """
- [scheduling.k8s.io/v1, PriorityClass, high, {value: 7}]
- [scheduling.volcano.sh/v1beta1, NamespaceQueue, local, {spec: {parent: cluster/q}}]
- [capcard-sched.io/v1alpha1, CardBudget, b,
   {spec: {queue: q, period: month, cards: {NVIDIA-H200: 5000h}, whenSpent: stop}}]
- [v1, ResourceQuota, q, {spec: {hard: {cpu: "9"}}}]
- [policy/v1, PodDisruptionBudget, b, {spec: {minAvailable: 1, selector: {}}}]
- [v1, PersistentVolumeClaim, c, {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
- [v1, PersistentVolume, v, {spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /v}}}]
- [storage.k8s.io/v1, StorageClass, s, {provisioner: d.example.com}]
- [storage.k8s.io/v1, CSINode, n, {spec: {drivers: [{name: d.example.com, nodeID: n, allocatable: {count: 4}}]}}]
- [topology.volcano.sh/v1alpha1, HyperNode, leaf,
   {spec: {tier: 1, members: [{type: Node, selector: {exactMatch: {name: n}}}]}}]
- [nodeinfo.volcano.sh/v1alpha1, Numatopology, n,
   {spec: {cpuDetail: {"0": {}, "1": {core: 1}}, numares: {cpu: {allocatable: 0-1}}}}]
- [storage.k8s.io/v1, CSIDriver, d.example.com, {spec: {}}]
- [storage.k8s.io/v1, CSIStorageCapacity, room, {storageClassName: s, capacity: 5Gi}]
- [resource.k8s.io/v1, DeviceClass, gpu.example.com, {spec: {}}]
- [resource.k8s.io/v1, ResourceSlice, n-gpu,
   {spec: {driver: gpu.example.com, nodeName: n, pool: {name: n, generation: 1, resourceSliceCount: 1},
           devices: [{name: g}]}}]
- [resource.k8s.io/v1, DeviceTaintRule, t, {spec: {deviceSelector: {pool: n}, taint: {key: k, effect: NoSchedule}}}]
- [resource.k8s.io/v1, ResourceClaimTemplate, gpu,
   {spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.com}}]}}}}]
- [resource.k8s.io/v1, ResourceClaim, gpu,
   {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.com}}]}}}]
- [storage.k8s.io/v1, VolumeAttachment, a,
   {spec: {attacher: d.example.com, nodeName: n, source: {persistentVolumeName: v}}}]
"""


async def test_every_kind_is_listed_when_there_is_none_and_arrives_as_its_delta(cluster: Cluster) -> None:
    made = [node("n"), queue("q", weight=3), *gang("g", 2, queue="q")]
    for version, kind, name, rest in yaml.safe_load(OBJECTS):
        made.append(plain(kind, name, version, **rest))
    async with watching(cluster, kinds=KINDS) as (feed, mirror, ears):
        assert feed.synced
        listed = {objects.change_of(delta) for delta in mirror.deltas}
        assert listed <= {"NamespaceChanged", "PriorityClassChanged"}, "the server's own"
        with_crd = {CARD_BUDGET, NAMESPACE_QUEUE}
        served = [kind for kind in KINDS if kind.expected or kind.name in with_crd]
        assert [event for _, event, _ in ears.watches if event != "absent"] == ["listed"] * len(served)
        before = len(mirror.deltas)
        await cluster.create_all(made)

        def found() -> dict[str, Any]:
            return {objects.change_of(delta): delta for delta in mirror.deltas[before:]}

        expected = {f"{kind.name}Changed" for kind in served} - {"NamespaceChanged"}
        await until(lambda: set(found()) >= expected, "a delta of every kind")
        high, claim = (found()[f"{kind}Changed"].object for kind in ("PriorityClass", "PersistentVolumeClaim"))
        namespaces = [
            delta.object.metadata.name
            for delta in mirror.deltas
            if isinstance(delta, deltas.ObjectChanged) and isinstance(delta.object, NamespaceObject)
        ]
    assert (high.metadata.name, high.value) == ("high", 7)
    assert claim.spec.resources is not None
    assert claim.spec.resources.requests == {"storage": "1Gi"}
    assert cluster.namespace in namespaces


async def test_changes_in_quick_succession_are_delivered_as_one_batch(cluster: Cluster) -> None:
    await cluster.create_all([node(f"n{index}") for index in range(40)])
    async with watching(cluster) as (_, mirror, _):
        before = len(mirror.batches)
        await asyncio.gather(
            *(cluster.patch("nodes", f"n{index}", {"metadata": {"labels": {"a": "b"}}}) for index in range(40))
        )
        await until(lambda: mirror.agrees_with(cluster), "the labels")
        assert sum(map(len, mirror.batches[before:])) == 40
        assert len(mirror.batches) - before <= 20


async def test_only_the_named_config_map_is_watched(cluster: Cluster) -> None:
    await cluster.create_all([config(name, key="1") for name in ("devices", "other")])
    chosen = chosen_kinds(config_maps=[(cluster.namespace, "devices")])
    async with watching(cluster, kinds=[kind for kind in chosen if kind.name == "ConfigMap"]) as (_, mirror, _):
        for name in ("other", "devices"):
            await cluster.patch("configmaps", name, {"data": {"key": "2"}})
        await cluster.delete("configmaps", "devices")
        await until(lambda: len(mirror.deltas) > 2, "the deletion")
    seen = [each.object for each in mirror.deltas if isinstance(each, deltas.ObjectChanged)]
    assert [each.data for each in seen if isinstance(each, ConfigMapObject)] == [{"key": "1"}, {"key": "2"}]
    assert mirror.deltas[2] == deltas.ObjectGone("ConfigMap", cluster.namespace, "devices", seen[0].metadata.uid)


# --- faults on the way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3, 5])
async def test_a_stream_cut_in_the_middle_of_an_object_is_resumed_without_loss(
    furnished: Cluster, proxy: Proxy, nth: int
) -> None:
    async with watching(proxy) as (_, mirror, ears):
        cut = proxy.cut("pods", nth=nth)
        before = len(mirror.deltas)
        for index in range(8):
            await furnished.create(pod(f"new-{index}"))
        await cut.struck()
        await until(lambda: mirror.agrees_with(furnished), "all pods")
        assert len(mirror.deltas) == before + 8
        assert ears.watch_events("pods") == ["listed", "cut", "restarted"]


async def test_a_list_that_breaks_off_begins_again_and_emits_nothing_twice_and_no_deletion(
    furnished: Cluster, proxy: Proxy
) -> None:
    cut = proxy.reset("GET", "pods", nth=2, times=6)
    async with watching(proxy) as (feed, mirror, ears):
        await cut.struck(6)
        assert await mirror.agrees_with(furnished)
        assert len(mirror.deltas) == 13
        assert set(ears.watch_events("pods")) == {"unreachable", "listed"}
        cut = proxy.reset("GET", "pods", nth=2, times=6)
        relisting = asyncio.create_task(feed.relist())
        await cut.struck(6)
        await relisting
        assert await mirror.agrees_with(furnished)
        assert len(mirror.deltas) == 13


async def test_an_expired_version_inside_the_stream_relists_and_emits_the_difference(
    furnished: Cluster, proxy: Proxy
) -> None:
    async with watching(proxy) as (_, mirror, ears):
        before = len(mirror.deltas)
        pause = proxy.pause("pods")
        await furnished.delete("pods", "p1")
        await furnished.create(pod("late"))
        await furnished.delete("pods", "again")
        await furnished.create(pod("again"))
        assert await proxy.inject("pods", {"type": "ERROR", "object": failure(410, "too old resource version")}) == 1
        await until(lambda: "expired" in ears.watch_events("pods"), "the end of the stream")
        pause.resume()
        proxy.mend()
        await until(lambda: mirror.agrees_with(furnished), "the difference")
        reported = [objects.change_of(delta) for delta in mirror.deltas[before:]]
        assert sorted(reported) == ["PodChanged", "PodChanged", "PodGone"]
        await until(lambda: proxy.watching("pods") == 1, "the new watch")
        seen = len(ears.watch_events("pods"))
        proxy.answer("WATCH", "pods", 410)
        proxy.reset_streams("pods")
        await change_everything(furnished, 2)
        await until(lambda: mirror.agrees_with(furnished), "the changes")
        assert ears.watch_events("pods")[seen : seen + 3] == ["cut", "expired", "listed"], "as a response, too"


@pytest.mark.campaign
async def test_a_server_that_dies_and_comes_back_is_followed_again(furnished: Cluster) -> None:
    async with watching(furnished) as (feed, mirror, ears):
        await asyncio.to_thread(furnished.control_plane.kill_apiserver)
        await until(lambda: "unreachable" in ears.watch_events("pods"), "the informer to notice")
        assert feed.stale_for() > 0
        assert feed.synced  # cached objects stay
        await asyncio.to_thread(furnished.control_plane.start_apiserver)
        await change_everything(furnished, 1)
        await until(lambda: mirror.agrees_with(furnished), "the changes")
        await until(lambda: feed.stale_for() == 0.0, "open watches")


async def test_a_silent_stream_is_resumed_and_silence_after_silence_doubts_the_version(
    furnished: Cluster, proxy: Proxy
) -> None:
    settings = msgspec.structs.replace(QUICK, silence=0.3)
    async with watching(proxy, settings=settings) as (_, mirror, ears):
        proxy.pause("pods")
        await change_everything(furnished, 1)
        await until(lambda: mirror.agrees_with(furnished), "what only a list can show while watches are silent")
        assert ears.watch_events("pods")[:4] == ["listed", "stalled", "restarted", "stalled"]


async def test_a_line_that_is_no_event_is_reported_and_the_stream_resumed(furnished: Cluster, proxy: Proxy) -> None:
    async with watching(proxy) as (_, mirror, ears):
        await proxy.inject("pods", {"type": 7})
        await proxy.inject("nodes", {"type": "NOVELTY", "object": {"metadata": {"name": "n9"}}})
        expected = ["undecodable", "restarted"]
        await until(lambda: ears.watch_events("pods", *expected) == expected, "both")
        await change_everything(furnished, 1)
        await until(lambda: mirror.agrees_with(furnished), "the changes")
        assert ears.watch_events("nodes") == ["listed", "unexpected"]


@pytest.mark.parametrize(
    ("status", "nth", "events", "statuses"),
    [(429, 1, ["refused", "listed"], [429, 200, 200]), (410, 2, ["expired", "listed"], [200, 410, 200])],
    ids=["a refusal delays the list by its Retry-After", "an expired continue token restarts it in one page at once"],
)
async def test_a_list_that_is_refused_begins_again(
    furnished: Cluster, proxy: Proxy, status: int, nth: int, events: list[str], statuses: list[int]
) -> None:
    proxy.answer("GET", "pods", status, retry_after=1 if status == 429 else None, nth=nth)
    started = asyncio.get_running_loop().time()
    async with watching(proxy) as (_, mirror, ears):
        assert asyncio.get_running_loop().time() - started >= (1.0 if status == 429 else 0.0)
        assert await mirror.agrees_with(furnished)
        assert ears.watch_events("pods")[:2] == events
        assert [one.status for one in proxy.exchanges if one.path == "/api/v1/pods"] == statuses


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_after_any_mixture_of_troubles_everything_is_known(furnished: Cluster, proxy: Proxy, seed: int) -> None:
    rng = random.Random(seed)
    async with watching(proxy) as (feed, mirror, _):
        faults: list[Callable[[], Any]] = [
            feed.relist,
            lambda: proxy.inject("pods|nodes", {"type": "ERROR", "object": failure(410, "too old")}),
            lambda: proxy.inject("pods|nodes", {"type": "ADDED", "object": []}),
            lambda: proxy.cut("pods|nodes", nth=rng.randint(1, 3)),
            lambda: proxy.reset_streams("pods|nodes"),
            lambda: proxy.answer("WATCH", "pods|nodes", rng.choice([410, 429, 500, 503])),
            lambda: proxy.reset(rng.choice(["GET", "WATCH"]), "pods|nodes"),
        ]
        alive = {f"p{index}" for index in range(8)}
        for step in range(40):
            if rng.random() < 0.5 and alive:
                name = rng.choice(sorted(alive))
                alive.discard(name)
                await furnished.delete("pods", name)
            if rng.random() < 0.7:
                alive.add(f"p{100 + step % 12}-{step}")
                await furnished.create(pod(f"p{100 + step % 12}-{step}"))
            await furnished.patch("nodes", f"n{step % 4}", {"metadata": {"labels": {"step": str(step)}}})
            happening = rng.choice(faults)()
            if inspect.isawaitable(happening):
                await happening
        proxy.mend()
        await until(lambda: mirror.agrees_with(furnished), "everything", within=60)
        reported: dict[tuple[str, str], Any] = {}
        for delta in mirror.deltas:
            match delta:
                case deltas.ObjectChanged(PodObject() as seen):
                    key = ("pod", seen.metadata.uid)
                    now: tuple[Any, ...] = (seen.metadata.deletion_timestamp, seen.spec, seen.status.phase)
                case deltas.ObjectChanged(NodeObject() as seen):
                    key, now = ("node", seen.metadata.name), (seen.metadata.labels,)
                case _:
                    continue
            assert reported.get(key) != now, "no duplicate delta"
            reported[key] = now


# --- kinds that are not there, or not for us --------------------------------------------------------------------------


async def test_a_missing_kind_is_reported_and_blocks_only_if_it_is_required(cluster: Cluster) -> None:
    path = "/apis/scheduling.volcano.sh/v1beta1/nothings"
    absent = replace(CONFIG_MAP, name="Nothing", path=path, required=False, explained=True)
    async with watching(cluster, kinds=[absent]) as (feed, _, ears):
        assert feed.synced
        assert ears.watch_events("nothings")[0] == "missing"
        assert feed.pending() == {"nothings": False}
        await feed.relist()
    async with watching(cluster, kinds=[replace(absent, required=True)], synced=False) as (feed, _, ears):
        await until(lambda: ears.watch_events("nothings").count("missing") >= 2, "a second attempt")
        assert not feed.synced


async def test_a_forbidden_kind_is_reported_and_listed_when_it_is_granted(furnished: Cluster) -> None:
    kinds = [kind for kind in KINDS if kind.name in {"Pod", "PriorityClass"}]
    connection = load_connection(str(furnished.control_plane.kubeconfig_for("somebody")))
    async with watching(furnished, kinds=kinds, connection=connection, synced=False) as (feed, mirror, ears):
        for kind in ("pods", "priorityclasses"):
            await until(lambda: "forbidden" in ears.watch_events(kind), "no")  # noqa: B023 - at once
        assert not feed.synced  # for want of pods; PriorityClasses one can do without
        assert feed.pending() == {"pods": True, "priorityclasses": False}
        assert feed.stale_for() > 0
        await furnished.allow("somebody", GRANT, everywhere=True)
        async with asyncio.timeout(20):
            await feed.wait_synced()
        assert len(mirror.pods) == 9
        assert set(ears.watch_events("priorityclasses")) == {"forbidden"}


# --- objects that cannot be read --------------------------------------------------------------------------------------


class Config(msgspec.Struct, frozen=True):
    """A ConfigMap that may hold but keys that are numbers: the API server would take any."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[int, str] | None = None


CONFIG_MAP: WatchedKind[Any] = WatchedKind(
    Config,
    name="ConfigMap",
    path="/api/v1/configmaps",
    changed=lambda obj: objects.namespace(
        obj.metadata.name, {str(key): str(len(value)) for key, value in (obj.data or {}).items()}
    ),
    explained=False,
)


def config(name: str, **data: str) -> dict[str, Any]:
    return plain("ConfigMap", name, data=data)


async def test_objects_of_any_size_arrive_whole_and_an_unreadable_one_does_not_stop_others(cluster: Cluster) -> None:
    async with watching(cluster, kinds=[CONFIG_MAP]) as (_, mirror, ears):
        for made in (config("good", **{"1": "a"}), config("bad", word="a"), config("large", **{"8": "x" * 900_000})):
            await cluster.create(made)
        await until(lambda: objects.namespace("large", {"8": "900000"}) in mirror.deltas, "the last of them")
    problem = f"ConfigMap {cluster.namespace}/bad: data: a key: expected an integer"
    assert [detail for detail in ears.undecodable() if "/bad" in detail] == [problem]

    async with watching(cluster, kinds=[CONFIG_MAP]) as (_, mirror, ears):
        assert objects.namespace("good", {"1": "1"}) in mirror.deltas
        assert [detail for detail in ears.undecodable() if "/bad" in detail] == [problem]
        await cluster.patch("configmaps", "bad", {"data": {"word": None, "3": "abc"}})
        await until(lambda: objects.namespace("bad", {"3": "3"}) in mirror.deltas, "the corrected one")
        await cluster.patch("configmaps", "good", {"data": {"word": "x"}})
        await until(lambda: any("/good" in detail for detail in ears.undecodable()), "the undecodable one")
        assert deltas.ObjectGone("Namespace", "", "good") not in mirror.deltas, "it keeps its last known facts"
        count = len(mirror.deltas)
        await cluster.delete("configmaps", "good")
        await cluster.delete("configmaps", "bad")
        await until(lambda: len(mirror.deltas) >= count + 2, "both deletions")


# --- listing again, and once ------------------------------------------------------------------------------------------


async def test_a_relist_emits_only_the_objects_of_kinds_that_the_scheduler_writes(furnished: Cluster) -> None:
    """Its intended writes there are in its state, and may never have been sent."""
    await furnished.create_all([queue("q"), *gang("g", 2, queue="q")])
    async with watching(furnished, kinds=KINDS) as (feed, mirror, ears):
        for _ in range(2):
            before = len(mirror.deltas)
            await feed.relist()
            again = [objects.change_of(delta) for delta in mirror.deltas[before:]]
            assert sorted(again) == ["PodGroupChanged", "QueueChanged"]
        assert ears.watch_events("pods", "listed") == ["listed"] * 3
        await furnished.delete("queues", "q")
        await until(lambda: objects.change_of(mirror.deltas[-1]) == "QueueGone", "its end")


async def test_concurrent_requests_for_a_relist_succeed(furnished: Cluster, proxy: Proxy) -> None:
    async with watching(proxy) as (feed, mirror, _):
        proxy.pause("pods|nodes")
        await change_everything(furnished, 2)
        await asyncio.gather(*(feed.relist() for _ in range(3)))
        assert await mirror.agrees_with(furnished), "with changes that the watch has not delivered"
        proxy.mend()
        given_up = asyncio.create_task(feed.relist())
        await asyncio.sleep(0)
        given_up.cancel()
        await change_everything(furnished, 1)
        await until(lambda: mirror.agrees_with(furnished), "the changes")


async def test_a_relist_requested_during_the_first_list_is_awaited(furnished: Cluster, proxy: Proxy) -> None:
    slow = proxy.delay("GET", "pods", 1.0)
    async with watching(proxy, synced=False) as (feed, mirror, _):
        await slow.struck()
        await feed.relist()
        assert feed.synced
        assert await mirror.agrees_with(furnished)
