"""Lists and watches against a real API server: everything arrives, nothing twice, whatever happens on the way."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.decode import KindDecoder, ReadAhead, pages
from capcard_sched.kube.informers import Informers, list_all
from capcard_sched.kube.kinds import KINDS, WatchedKind, chosen_kinds
from capcard_sched.model import deltas
from capcard_sched.model.objects import ConfigMapObject, NamespaceObject, NodeObject, ObjectMeta, PodObject
from tests import objects
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import gang, node, pod, queue
from tests.controlplane.proxy import Proxy, failure
from tests.kube.read.mirror import PODS_AND_NODES, QUICK, Ears, Mirror, watching


async def change_everything(cluster: Cluster, round: int) -> None:
    """Something added, something changed, something gone, and something gone and back under the same name."""
    await cluster.create(node(f"late-{round}"))
    await cluster.create(pod(f"late-{round}"))
    await cluster.patch("nodes", "n0", {"metadata": {"labels": {"round": str(round)}}})
    await cluster.delete("pods", f"p{round}")
    await cluster.delete("pods", "again")
    await cluster.create(pod("again"))


async def relisted(feed: Informers) -> None:
    async with asyncio.timeout(20):
        await feed.relist()


async def furnish(cluster: Cluster) -> None:
    await cluster.create_all([node(f"n{index}") for index in range(4)])
    await cluster.create_all([*(pod(f"p{index}") for index in range(8)), pod("again")])


# --- the ordinary way -------------------------------------------------------------------------------------------------


async def test_existing_objects_come_first_and_then_every_change(cluster: Cluster) -> None:
    await furnish(cluster)
    async with watching(cluster) as (feed, mirror, ears):
        assert feed.synced
        assert len(mirror.deltas) == 13  # 4 nodes, 9 pods, each once
        assert await mirror.agrees_with(cluster)
        await change_everything(cluster, 1)
        await cluster.bind("p0", "n1")
        await until(lambda: mirror.agrees_with(cluster), "the changes")
        assert feed.stale_for() == 0.0
        assert ears.watch_events("pods") == ["listed"]


async def test_an_empty_cluster_is_listed_too(cluster: Cluster) -> None:
    async with watching(cluster, kinds=KINDS) as (feed, mirror, ears):
        assert feed.synced
        assert {objects.change_of(delta) for delta in mirror.deltas} <= {
            "NamespaceChanged",
            "PriorityClassChanged",  # the server's own
        }
        assert [event for _, event, _ in ears.watches] == ["listed"] * len(KINDS)


OBJECTS = """
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 7}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {cpu: "9"}}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b}, spec: {minAvailable: 1, selector: {}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: v}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, csi: {driver: d.example.com, volumeHandle: h}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: s}, provisioner: d.example.com}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n}
spec: {drivers: [{name: d.example.com, nodeID: n, allocatable: {count: 4}}]}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: leaf}
spec: {tier: 1, members: [{type: Node, selector: {exactMatch: {name: n}}}]}
---
apiVersion: nodeinfo.volcano.sh/v1alpha1
kind: Numatopology
metadata: {name: n}
spec: {cpuDetail: {"0": {}, "1": {core: 1}}, numares: {cpu: {allocatable: 0-1}}}
---
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: d.example.com}, spec: {}}
---
{apiVersion: storage.k8s.io/v1, kind: CSIStorageCapacity, metadata: {name: room}, storageClassName: s, capacity: 5Gi}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: a}
spec: {attacher: d.example.com, nodeName: n, source: {persistentVolumeName: v}}
"""


async def test_every_kind_arrives_as_its_delta(cluster: Cluster) -> None:
    made = [node("n"), queue("q", weight=3), *gang("g", 2, queue="q"), *yaml.safe_load_all(OBJECTS)]
    async with watching(cluster, kinds=KINDS) as (_, mirror, _):
        before = len(mirror.deltas)
        await cluster.create_all(made)

        def names() -> set[str]:
            return {objects.change_of(delta) for delta in mirror.deltas[before:]}

        expected = {f"{kind.name}Changed" for kind in KINDS} - {"NamespaceChanged"}
        await until(lambda: names() >= expected, "a delta of every kind")
        found: dict[str, Any] = {objects.change_of(delta): delta for delta in mirror.deltas[before:]}
        namespaces = [
            delta.object.metadata.name
            for delta in mirror.deltas
            if isinstance(delta, deltas.ObjectChanged) and isinstance(delta.object, NamespaceObject)
        ]
    high, claim = (found[f"{kind}Changed"].object for kind in ("PriorityClass", "PersistentVolumeClaim"))
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


async def test_objects_of_any_size_come_whole(cluster: Cluster) -> None:
    async with watching(cluster, kinds=[CONFIG_MAP]) as (_, mirror, _):
        await cluster.create(config("large", **{"8": "x" * 900_000}))
        await until(lambda: objects.namespace("large", {"8": "900000"}) in mirror.deltas, "the large object")


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
    cluster: Cluster, proxy: Proxy, nth: int
) -> None:
    await furnish(cluster)
    async with watching(proxy) as (_, mirror, ears):
        cut = proxy.cut("pods", nth=nth)
        before = len(mirror.deltas)
        for index in range(8):
            await cluster.create(pod(f"new-{index}"))
        await cut.struck()
        await until(lambda: mirror.agrees_with(cluster), "all pods")
        assert len(mirror.deltas) == before + 8
        assert ears.watch_events("pods") == ["listed", "cut", "restarted"]


async def test_a_list_that_breaks_off_begins_again_and_emits_nothing_twice_and_no_deletion(
    cluster: Cluster, proxy: Proxy
) -> None:
    await furnish(cluster)
    cut = proxy.reset("GET", "pods", nth=2, times=3)
    async with watching(proxy) as (feed, mirror, ears):
        await cut.struck(3)
        assert await mirror.agrees_with(cluster)
        assert len(mirror.deltas) == 13
        assert set(ears.watch_events("pods")) == {"unreachable", "listed"}
        cut = proxy.reset("GET", "pods", nth=2, times=3)
        relisting = asyncio.create_task(feed.relist())
        await cut.struck(3)
        await relisting
        assert await mirror.agrees_with(cluster)
        assert len(mirror.deltas) == 13


async def test_an_expired_version_inside_the_stream_relists_and_emits_the_difference(
    cluster: Cluster, proxy: Proxy
) -> None:
    await furnish(cluster)
    async with watching(proxy) as (_, mirror, ears):
        before = len(mirror.deltas)
        pause = proxy.pause("pods")
        await cluster.delete("pods", "p1")
        await cluster.create(pod("late"))
        await cluster.delete("pods", "again")
        await cluster.create(pod("again"))
        assert await proxy.inject("pods", {"type": "ERROR", "object": failure(410, "too old resource version")}) == 1
        await until(lambda: "expired" in ears.watch_events("pods"), "the end of the stream")
        pause.resume()
        proxy.mend()
        await until(lambda: mirror.agrees_with(cluster), "the difference")
        reported = [objects.change_of(delta) for delta in mirror.deltas[before:]]
        assert sorted(reported) == ["PodChanged", "PodChanged", "PodGone"]
        await until(lambda: proxy.watching("pods") == 1, "the new watch")
        seen = len(ears.watch_events("pods"))
        proxy.answer("WATCH", "pods", 410)
        proxy.reset_streams("pods")
        await change_everything(cluster, 2)
        await until(lambda: mirror.agrees_with(cluster), "the changes")
        assert ears.watch_events("pods")[seen : seen + 3] == ["cut", "expired", "listed"], "as a response, too"


@pytest.mark.campaign
async def test_a_server_that_dies_and_comes_back_is_followed_again(cluster: Cluster) -> None:
    await furnish(cluster)
    async with watching(cluster) as (feed, mirror, ears):
        await asyncio.to_thread(cluster.control_plane.kill_apiserver)
        await until(lambda: "unreachable" in ears.watch_events("pods"), "the informer to notice")
        assert feed.stale_for() > 0
        assert feed.synced  # cached objects stay
        await asyncio.to_thread(cluster.control_plane.start_apiserver)
        await change_everything(cluster, 1)
        await until(lambda: mirror.agrees_with(cluster), "the changes")
        await until(lambda: feed.stale_for() == 0.0, "open watches")


async def test_a_silent_stream_is_resumed_and_silence_after_silence_doubts_the_version(
    cluster: Cluster, proxy: Proxy
) -> None:
    await furnish(cluster)
    settings = msgspec.structs.replace(QUICK, silence=0.3)
    async with watching(proxy, settings=settings) as (_, mirror, ears):
        proxy.pause("pods")
        await change_everything(cluster, 1)
        await until(lambda: mirror.agrees_with(cluster), "what only a list can show while watches are silent")
        assert ears.watch_events("pods")[:4] == ["listed", "stalled", "restarted", "stalled"]


async def test_a_line_that_is_no_event_is_reported_and_the_stream_resumed(cluster: Cluster, proxy: Proxy) -> None:
    await furnish(cluster)
    async with watching(proxy) as (_, mirror, ears):
        await proxy.inject("pods", {"type": 7})
        await proxy.inject("nodes", {"type": "NOVELTY", "object": {"metadata": {"name": "n9"}}})
        await until(
            lambda: ears.watch_events("pods", "undecodable", "restarted") == ["undecodable", "restarted"], "both"
        )
        await change_everything(cluster, 1)
        await until(lambda: mirror.agrees_with(cluster), "the changes")
        assert ears.watch_events("nodes") == ["listed", "unexpected"]


async def test_the_informer_honours_retry_after(cluster: Cluster, proxy: Proxy) -> None:
    proxy.answer("GET", "pods", 429, retry_after=1)
    started = asyncio.get_running_loop().time()
    async with watching(proxy) as (_, _, ears):
        assert asyncio.get_running_loop().time() - started >= 1.0
        assert ears.watch_events("pods")[:2] == ["refused", "listed"]


async def test_expired_continue_tokens_restart_the_list_at_once(cluster: Cluster, proxy: Proxy) -> None:
    await furnish(cluster)
    proxy.answer("GET", "pods", 410, nth=2)
    async with watching(proxy) as (_, mirror, ears):
        assert await mirror.agrees_with(cluster)
        assert ears.watch_events("pods")[:2] == ["expired", "listed"]
        pages = [exchange for exchange in proxy.exchanges if exchange.path == "/api/v1/pods"]
        assert [exchange.status for exchange in pages] == [200, 410, 200]


async def test_the_next_page_is_requested_before_a_page_is_taken_in(cluster: Cluster, proxy: Proxy) -> None:
    await furnish(cluster)
    (kind,) = (kind for kind in PODS_AND_NODES if kind.name == "Pod")
    async with (
        Client(load_connection(str(proxy.kubeconfig_for("admin")))) as client,
        aclosing(pages(client, kind.path, KindDecoder(kind), size=3)) as found,
    ):
        first = await anext(found)
        await until(lambda: [one.status for one in proxy.exchanges] == [200, 200], "the second page")
        rest = [page async for page in found]
    assert [len(page.items) for page in (first, *rest)] == [3, 3, 3]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_after_any_mixture_of_troubles_everything_is_known(cluster: Cluster, proxy: Proxy, seed: int) -> None:
    rng = random.Random(seed)
    await furnish(cluster)
    async with watching(proxy) as (feed, mirror, _):

        async def relist() -> None:
            await relisted(feed)

        async def expire() -> None:
            await proxy.inject("pods|nodes", {"type": "ERROR", "object": failure(410, "too old")})

        async def garble() -> None:
            await proxy.inject("pods|nodes", {"type": "ADDED", "object": []})

        async def cut() -> None:
            proxy.cut("pods|nodes", nth=rng.randint(1, 3))

        async def reset() -> None:
            proxy.reset_streams("pods|nodes")

        async def refuse() -> None:
            proxy.answer("WATCH", "pods|nodes", rng.choice([410, 429, 500, 503]))

        async def lose() -> None:
            proxy.reset(rng.choice(["GET", "WATCH"]), "pods|nodes")

        alive = {f"p{index}" for index in range(8)}
        for step in range(40):
            if rng.random() < 0.5 and alive:
                name = rng.choice(sorted(alive))
                alive.discard(name)
                await cluster.delete("pods", name)
            if rng.random() < 0.7:
                alive.add(f"p{100 + step % 12}-{step}")
                await cluster.create(pod(f"p{100 + step % 12}-{step}"))
            await cluster.patch("nodes", f"n{step % 4}", {"metadata": {"labels": {"step": str(step)}}})
            await rng.choice([relist, expire, garble, cut, reset, refuse, lose])()
        proxy.mend()
        await until(lambda: mirror.agrees_with(cluster), "everything", within=30)
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
    def absent(*, required: bool) -> WatchedKind[Any]:
        path = "/apis/scheduling.volcano.sh/v1beta1/nothings"
        return replace(CONFIG_MAP, name="Nothing", path=path, required=required, explained=True)

    async with watching(cluster, kinds=[absent(required=False)]) as (feed, _, ears):
        assert feed.synced
        assert ears.watch_events("nothings")[0] == "missing"
        assert feed.pending() == {"nothings": False}
        await relisted(feed)
    async with watching(cluster, kinds=[absent(required=True)], synced=False) as (feed, _, ears):
        await until(lambda: ears.watch_events("nothings").count("missing") >= 2, "a second attempt")
        assert not feed.synced


async def test_a_forbidden_kind_is_reported_and_listed_when_it_is_granted(cluster: Cluster) -> None:
    await furnish(cluster)
    kinds = [kind for kind in KINDS if kind.name in {"Pod", "PriorityClass"}]
    connection = load_connection(str(cluster.control_plane.kubeconfig_for("somebody")))
    async with watching(cluster, kinds=kinds, connection=connection, synced=False) as (feed, mirror, ears):
        await until(
            lambda: "forbidden" in ears.watch_events("pods") and "forbidden" in ears.watch_events("priorityclasses"),
            "no",
        )
        assert not feed.synced  # for want of pods; PriorityClasses one can do without
        assert feed.pending() == {"pods": True, "priorityclasses": False}
        assert feed.stale_for() > 0
        await cluster.apply(GRANT)
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
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_an_unreadable_object_does_not_stop_others(cluster: Cluster) -> None:
    async with watching(cluster, kinds=[CONFIG_MAP]) as (_, mirror, ears):
        for made in (config("good", **{"1": "a"}), config("bad", word="a"), config("fine", **{"2": "b"})):
            await cluster.create(made)
        await until(lambda: objects.namespace("fine", {"2": "1"}) in mirror.deltas, "the last of them")
    problem = f"ConfigMap {cluster.namespace}/bad: data, a key: Expected `int`, got `str`"
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


async def test_a_relist_emits_nothing_when_nothing_has_changed(cluster: Cluster) -> None:
    await furnish(cluster)
    async with watching(cluster) as (feed, mirror, ears):
        for _ in range(3):
            await relisted(feed)
        assert len(mirror.deltas) == 13
        assert ears.watch_events("pods", "listed") == ["listed"] * 4


async def test_a_relist_emits_every_object_of_kinds_that_the_scheduler_writes(cluster: Cluster) -> None:
    """Its intended writes there are in its state, and may never have been sent."""
    await cluster.create_all([node("n"), queue("q"), *gang("g", 2, queue="q")])
    async with watching(cluster, kinds=KINDS) as (feed, mirror, _):
        before = len(mirror.deltas)
        await relisted(feed)
        again = [objects.change_of(delta) for delta in mirror.deltas[before:]]
        assert sorted(again) == ["PodGroupChanged", "QueueChanged"]
        await cluster.delete("queues", "q")
        await until(lambda: objects.change_of(mirror.deltas[-1]) == "QueueGone", "its end")


async def test_concurrent_requests_for_a_relist_succeed(cluster: Cluster, proxy: Proxy) -> None:
    await furnish(cluster)
    async with watching(proxy) as (feed, mirror, _):
        proxy.pause("pods|nodes")
        await change_everything(cluster, 2)
        await asyncio.gather(*(relisted(feed) for _ in range(3)))
        assert await mirror.agrees_with(cluster), "with changes that the watch has not delivered"
        proxy.mend()
        given_up = asyncio.create_task(feed.relist())
        await asyncio.sleep(0)
        given_up.cancel()
        await change_everything(cluster, 1)
        await until(lambda: mirror.agrees_with(cluster), "the changes")


async def test_a_relist_requested_during_the_first_list_is_awaited(cluster: Cluster, proxy: Proxy) -> None:
    await furnish(cluster)
    slow = proxy.delay("GET", "pods", 1.0)
    async with watching(proxy, synced=False) as (feed, mirror, _):
        await slow.struck()
        await relisted(feed)
        assert feed.synced
        assert await mirror.agrees_with(cluster)


async def test_everything_can_be_listed_once_and_forbidden_optional_kinds_are_left_out(cluster: Cluster) -> None:
    await furnish(cluster)
    mirror, ears = Mirror(), Ears()
    async with Client(load_connection(str(cluster.control_plane.kubeconfig))) as client:
        mirror.deliver(await list_all(client, KINDS, ears))
    assert await mirror.agrees_with(cluster)
    assert ears.watches == []
    await cluster.apply(GRANT)
    async with Client(load_connection(str(cluster.control_plane.kubeconfig_for("somebody")))) as client:
        found = await list_all(client, [kind for kind in KINDS if kind.name in {"Pod", "PriorityClass"}], ears)
        assert len(found) == 9
        assert ears.watches[0][:2] == ("priorityclasses", "forbidden")
        with pytest.raises(ApiError, match='cannot list resource "nodes"'):
            await list_all(client, PODS_AND_NODES)


async def test_lists_that_are_read_ahead_are_those_of_each_kind(cluster: Cluster) -> None:
    await furnish(cluster)
    async with (
        Client(load_connection(str(cluster.control_plane.kubeconfig))) as client,
        ReadAhead(client, KINDS) as lists,
    ):
        for number, kind in enumerate(KINDS):
            ahead = [item async for page in lists.pages(number) for item in page.items]
            assert ahead == [
                item
                async for page in pages(client, kind.path, KindDecoder(kind), field_selector=kind.field_selector)
                for item in page.items
            ]


async def test_a_list_that_is_read_ahead_fails_alone_unless_the_api_server_is_unreachable(cluster: Cluster) -> None:
    await furnish(cluster)
    await cluster.apply(GRANT)
    connection = load_connection(str(cluster.control_plane.kubeconfig_for("somebody")))
    async with Client(connection) as client, ReadAhead(client, PODS_AND_NODES) as lists:
        failed = []
        for number, kind in enumerate(PODS_AND_NODES):
            try:
                assert [page async for page in lists.pages(number)]
            except ApiError:
                failed.append(kind.name)
        assert failed == ["Node"]
    unreachable = msgspec.structs.replace(connection, server="https://127.0.0.1:1")
    async with Client(unreachable) as client, ReadAhead(client, KINDS) as lists:
        for number in range(len(KINDS)):
            with pytest.raises(Unreachable):
                await anext(lists.pages(number))


GRANT = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: read-pods}
rules: [{apiGroups: [""], resources: [pods], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: read-pods}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: read-pods}
subjects: [{kind: User, name: somebody, apiGroup: rbac.authorization.k8s.io}]
"""
