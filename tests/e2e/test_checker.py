"""The checker finds what is planted, and nothing where nothing is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import Audited
from tests.controlplane.manifests import gang, gpu_node, node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import Replay, ViolationError, amounts, bound_too_often, prove, request_of
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import Change, History, Moment

_KINDS = {"Node": "nodes", "Pod": "pods", "PodGroup": "podgroups", "Queue": "queues"}
_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}


class Story:
    """A history that was never played: each line is one moment."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._live: dict[tuple[str, str], Manifest] = {}
        self._numbers = itertools.count(1)

    def now(self, *items: Manifest) -> None:
        """These objects are as given from now on, all at once."""
        changes = []
        for item in items:
            kind = _KINDS[item["kind"]]
            meta = item["metadata"]
            before = self._live.get((kind, meta["name"]))
            uid = before["metadata"]["uid"] if before is not None else f"uid-{next(self._numbers)}"
            namespace = {"namespace": "ns"} if kind in {"pods", "podgroups"} else {}
            after = {**item, "metadata": {**meta, **namespace, "uid": uid}}
            self._live[kind, meta["name"]] = after
            changes.append(Change(kind, before, after))
        self._add(changes)

    def gone(self, name: str, kind: str = "pods") -> None:
        """An object is deleted."""
        self._add([Change(kind, self._live.pop((kind, name)), None)])

    def replayed(self, **settings: Any) -> Replay:
        """Findings of the checker."""
        replay = Replay(**settings)
        for moment in self.moments:
            replay.take_in(moment)
        return replay

    def _add(self, changes: Iterable[Change]) -> None:
        number = len(self.moments) + 1
        self.moments.append(Moment(number, float(number), tuple(changes)))


def on(where: str, item: Manifest, **status: Any) -> Manifest:
    """A pod on a node."""
    return {**item, "spec": {**item["spec"], "nodeName": where}, "status": status}


def being_deleted(item: Manifest) -> Manifest:
    return {**item, "metadata": {**item["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def _card_pod(name: str, cards: str = "A10", **rest: Any) -> Manifest:
    return pod(name, cards=cards, queue="q", requests=_CARD, **rest)


def _cpu(story: Story) -> None:
    story.now(node("n", cpu=2))
    story.now(on("n", pod("a", requests={"cpu": "1500m"})))
    story.now(on("n", pod("b", requests={"cpu": "501m"})))


def _memory_of_an_init_step(story: Story) -> None:
    story.now(node("n", memory="1Gi"))
    step = {"name": "s", "image": "i", "resources": {"requests": {"memory": "1025Mi"}}}
    story.now(on("n", pod("a", initContainers=[step])))


def _pods(story: Story) -> None:
    story.now(node("n", pods=1))
    story.now(on("n", pod("a", requests={})))
    story.now(on("n", pod("b", requests={})))


def _devices_of_a_pod_that_is_still_there(story: Story) -> None:
    story.now(node("n", devices={"example.com/fpga": 1}))
    story.now(on("n", pod("a", requests={"example.com/fpga": 1})))
    story.now(being_deleted(on("n", pod("a", requests={"example.com/fpga": 1}))))
    story.now(on("n", pod("b", requests={"example.com/fpga": 1})))


def _an_unknown_device(story: Story) -> None:
    story.now(node("n"))
    story.now(on("n", pod("a", requests={"example.com/fpga": 1})))


def _an_unknown_node(story: Story) -> None:
    story.now(on("n", pod("a")))


def _only_for_a_moment(story: Story) -> None:
    _pods(story)
    story.gone("a")


def _after_a_gap(story: Story) -> None:
    story.now(node("n", pods=1))
    story.now(on("n", pod("a", requests={})), on("n", pod("b", requests={})))


def _quota(story: Story) -> None:
    story.now(gpu_node("n", "A10", 8), queue("q", cards={"A10": 1}))
    story.now(on("n", _card_pod("a")))
    story.now(on("n", _card_pod("b")))


def _quota_of_a_group(story: Story) -> None:
    story.now(gpu_node("n", "A10", 8), queue("q", cards={"A10": 1}), pod_group("g", queue="q"))
    story.now(on("n", pod("a", group="g", cards="A10", requests={"nvidia.com/gpu": 2})))


def _no_quota(story: Story) -> None:
    story.now(gpu_node("n", "A10", 8), queue("q"))
    story.now(on("n", _card_pod("a")))


def _quota_of_the_card_it_landed_on(story: Story) -> None:
    story.now(gpu_node("n", "B20", 8), queue("q", cards={"A10": 8}))
    story.now(on("n", _card_pod("a", "A10|B20")))


def _quota_of_a_slice(story: Story) -> None:
    slices = {"nvidia.com/mig-1g.5gb": 7, "nvidia.com/gpu.shared": 8}
    labels = {"nvidia.com/gpu.replicas": "4"}
    story.now(gpu_node("n", "A10", 1, devices=slices, labels=labels), queue("q", cards={"A10": 9}))
    mig = pod("a", cards="A10/mig-1g.5gb-mixed", queue="q", requests={"nvidia.com/mig-1g.5gb": 1})
    story.now(on("n", mig))
    mps = pod("b", cards="A10/mps-24g*1/4", queue="q", requests={"nvidia.com/gpu.shared": 2})
    story.now(on("n", mps))


def _another_card(story: Story) -> None:
    story.now(gpu_node("n", "B20", 8), queue("q", cards={"A10": 8, "B20": 8}))
    story.now(on("n", _card_pod("a")))


@pytest.mark.parametrize(
    "plant, found",
    [
        (_cpu, ["revision 3: node n holds 2.001 of 2 cpu: ns/a, ns/b"]),
        (_memory_of_an_init_step, ["revision 2: node n holds 1.07479e+09 of 1.07374e+09 memory: ns/a"]),
        (_pods, ["revision 3: node n holds 2 of 1 pods: ns/a, ns/b"]),
        (_devices_of_a_pod_that_is_still_there, ["revision 4: node n holds 2 of 1 example.com/fpga: ns/a, ns/b"]),
        (_an_unknown_device, ["revision 2: node n holds 1 of 0 example.com/fpga: ns/a"]),
        (_an_unknown_node, ["revision 1: a pod was bound to node n, which is not there"]),
        (_only_for_a_moment, ["revision 3: node n holds 2 of 1 pods: ns/a, ns/b"]),
        (_after_a_gap, ["revision 2: node n holds 2 of 1 pods: ns/a, ns/b"]),
        (_quota, ["revision 3: queue q holds 2 of 1 cards A10"]),
        (_quota_of_a_group, ["revision 2: queue q holds 2 of 1 cards A10"]),
        (_no_quota, ["revision 2: queue q holds 1 of 0 cards A10"]),
        (_quota_of_the_card_it_landed_on, ["revision 2: queue q holds 1 of 0 cards B20"]),
        (
            _quota_of_a_slice,
            [
                "revision 2: queue q holds 1 of 0 cards A10/mig-1g.5gb-mixed",
                "revision 3: queue q holds 1 of 0 cards A10/mig-1g.5gb-mixed",
                "revision 3: queue q holds 2 of 0 cards A10/mps-24g*1/4",
            ],
        ),
        (_another_card, ["revision 2: pod ns/a is on node n, which lacks its card"]),
    ],
    ids=lambda value: getattr(value, "__name__", "").strip("_"),
)
def test_planted_violations_are_found(plant: Callable[[Story], None], found: list[str]) -> None:
    story = Story()
    plant(story)
    assert story.replayed().violations == found


def test_a_correct_history_has_no_violation() -> None:
    story = Story()
    story.now(gpu_node("n", "A10", 2, cpu=2, pods=2), queue("q", cards={"A10": 2}))
    story.now(on("n", _card_pod("a")), on("n", _card_pod("b")))
    story.now(on("n", _card_pod("a"), phase="Succeeded"))
    story.now(on("n", _card_pod("c")))
    story.gone("b")
    story.now(on("n", _card_pod("d")))
    story.now(gpu_node("n", "A10", 1, cpu=1), queue("q", cards={}))  # less than what is there already
    replay = story.replayed()
    assert replay.violations == []
    assert replay.bound == 4


def test_a_pod_that_goes_has_left_its_quota_and_not_its_node() -> None:
    story = Story()
    story.now(gpu_node("n", "A10", 2), queue("q", cards={"A10": 1}))
    story.now(on("n", _card_pod("a")))
    story.now(being_deleted(on("n", _card_pod("a"))))
    story.now(on("n", _card_pod("b")))
    assert story.replayed().violations == []


def test_quotas_are_checked_only_when_enabled() -> None:
    story = Story()
    _quota(story)
    assert story.replayed(quotas=False).violations == []


def test_a_gang_that_never_was_complete_is_found_at_the_end() -> None:
    story = Story()
    group, first, second, third = gang("g", 3)
    story.now(node("n"))
    story.now(group, first, second, third)
    story.now(on("n", first))
    story.now(on("n", second))
    replay = story.replayed()
    assert replay.violations == []
    assert replay.incomplete() == ["gang ns/g has 2 members bound and never had its 3"]
    assert replay.longest_incomplete == 1.0
    story.now(on("n", third))
    story.gone("g-1")  # a gang that ran may lose members
    assert story.replayed().incomplete() == []
    assert story.replayed().longest_incomplete == 2.0


def test_a_gang_that_takes_the_name_of_a_complete_one_starts_anew() -> None:
    story = Story()
    group, *members = gang("g", 2)
    story.now(node("n"), group, *members)
    story.now(*(on("n", member) for member in members))
    for name in ("g-0", "g-1"):
        story.gone(name)
    story.gone("g", "podgroups")
    story.now(group, *members)
    story.now(on("n", members[0]))
    assert story.replayed().incomplete() == ["gang ns/g has 1 members bound and never had its 2"]


def test_pods_that_are_bound_twice_are_found() -> None:
    story = Story()
    story.now(node("n"), node("m"))
    story.now(pod("a"), pod("b"), pod("c"), pod("again"))
    story.now(on("n", pod("a")), on("n", pod("b")), on("n", pod("c")), on("n", pod("again")))
    story.now(on("m", pod("a")))
    story.now(pod("b"))
    story.gone("again")
    story.now(on("n", pod("again")))

    def bindings(name: str, *codes: int, namespace: str = "ns") -> list[Audited]:
        return [Audited("u", "create", "", "pods", "binding", namespace, name, code) for code in codes]

    audit = [
        *bindings("a", 201, 409),
        *bindings("c", 201, 201),
        *bindings("again", 201, 201),
        *bindings("elsewhere", 201, namespace="other"),
    ]
    assert bound_too_often(story.moments, audit) == [
        "pod ns/a went from node n to m",
        "pod ns/b went from node n to none",
        "pod ns/c: 2 bindings were accepted for 1 pods of that name",
    ]


def test_requests_are_those_of_kubernetes() -> None:
    def container(**requested: str) -> dict[str, Any]:
        return {"name": "c", "image": "i", "resources": {"requests": requested}}

    one = pod("p", overhead={"cpu": "10m"})
    one["spec"]["containers"] = [container(cpu="1"), {"name": "d", "image": "i", "resources": {"limits": {"x/y": "3"}}}]
    one["spec"]["initContainers"] = [
        {**container(cpu="200m"), "restartPolicy": "Always"},
        container(cpu="1100m", memory="1Ki"),
    ]
    assert request_of(one) == {"cpu": 1310, "memory": 1024 * 1000, "x/y": 3000}
    assert amounts({"a": "1e3", "b": "1.5Gi", "c": 2, "d": "1n"}) == {
        "a": 1_000_000,
        "b": 1536 * 2**20 * 1000,
        "c": 2000,
        "d": 1,
    }


# --- on a real API server ---------------------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.asyncio
async def test_the_history_of_a_real_cluster_contains_every_change(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.create_all([gpu_node("n", "A10", 8, pods=4), queue("q", cards={"A10": 1})])
    group, *members = gang("g", 3, queue="q", cards="A10", requests=_CARD)
    async with History(cluster.control_plane) as history:
        await cluster.create_all([group, *members])
        await cluster.bind("g-0", "n")
        assert (await prove(history, cluster.control_plane, gangs=False)).bound == 1
        with pytest.raises(ViolationError, match=r"gang .*/g has 1 members bound and never had its 3"):
            await prove(history, cluster.control_plane)
        await cluster.bind("g-1", "n")
        with pytest.raises(ViolationError, match=r"queue q holds 2 of 1 cards A10"):
            await prove(history, cluster.control_plane, gangs=False)
        assert (await prove(history, cluster.control_plane, gangs=False, quotas=False)).gaps == 0
        # Changes while the history's watches are broken off and forgotten.
        await cluster.create_all([pod(f"more-{index}") for index in range(3)])
        await asyncio.to_thread(cluster.control_plane.compact)
        await asyncio.to_thread(cluster.control_plane.restart_apiserver)
        for index in range(3):
            await cluster.bind(f"more-{index}", "n")
        with pytest.raises(ViolationError, match=r"node n holds 5 of 4 pods"):
            await prove(history, cluster.control_plane, gangs=False, quotas=False)
        assert history.gaps > 0


@pytest.mark.campaign
@pytest.mark.asyncio
async def test_a_cache_that_differs_is_a_violation(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    async with History(cluster.control_plane) as history:
        await cluster.create_all([node("n"), pod("foreign", scheduler="somebody-else")])
        async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
            await daemon.logged("caches synced", within=30)
            await prove(history, cluster.control_plane, daemon)
            pause = proxy.pause("/pods$")
            await cluster.bind("foreign", "n")
            with pytest.raises(ViolationError, match=r"daemon: cache differs: Pod .*/foreign"):
                await prove(history, cluster.control_plane, daemon)
            pause.resume()
            await prove(history, cluster.control_plane, daemon)
