"""Objects of the scenes by which other schedulers publish their figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from benchmarks.e2e import objects
from benchmarks.e2e.claim_writes import DRIVER
from benchmarks.e2e.objects import Document, Gang
from benchmarks.e2e.watcher import Mark
from capcard_sched.model import annotations as keys

SCHEDULING: Final = "scheduling.volcano.sh/v1beta1"
_NATIVE: Final = "scheduling.k8s.io/v1beta1"
_GPU: Final = "nvidia.com/gpu"
_CARD: Final = next(iter(objects.MODELS))
#: Node label of the rack, a topology domain.
RACK: Final = "topology.kubernetes.io/rack"
#: Nodes of a rack.
_RACK_NODES: Final = 100
_RESOURCE: Final = "resource.k8s.io/v1"
#: Devices of a node in C1.
_CLAIMED_DEVICES: Final = 16
_TIERS: Final = """
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
- plugins:
  - {name: predicates}
  - {name: capacity-card, arguments: {overCommitFactor: 2, cardUnlimitedCpuMemory: true}}
  - {name: network-topology-aware}
  - {name: nodeorder}
  - {name: binpack}
"""
CONF: Final = f'actions: "enqueue, allocate, backfill, reclaim"\ntiers:{_TIERS}'


class SceneLoad(NamedTuple):
    """What a scene creates, and how it ends."""

    #: Before the scheduler starts.
    before: list[Document]
    #: While it runs; a gang without pods is its PodGroup alone.
    gangs: list[Gang]
    #: Objects that reach the mark.
    reached: int
    mark: Mark = "bound"
    #: Gangs per second; 0: all at once.
    rate: float = 0.0
    #: Everything exists before the scheduler starts, and time counts from its start.
    from_start: bool = False
    #: A scheduler ran before, and has written the statuses of what was there.
    is_restart: bool = False
    #: Pods that become Running before the scheduler starts: only these are victims.
    running: tuple[str, ...] = ()
    #: DeviceClasses and ResourceSlices; each pod then has a claim of its name.
    devices: tuple[Document, ...] = ()


class PeerScene(NamedTuple):
    """One row of the table. `load` takes a factor of the size."""

    name: str
    title: str
    nodes: int
    #: The figure that the peer publishes.
    published: str
    goal: str
    load: Callable[[float], SceneLoad]
    #: Whether kube-scheduler of the same release runs the scene in the same run.
    with_kube_scheduler: bool = False


def scene_nodes(count: int) -> Iterator[Document]:
    """Nodes of one card model, in racks."""
    for number, node in enumerate(objects.nodes(count)):
        labels = node["metadata"]["labels"]
        labels |= {RACK: rack_name(number), f"{_GPU}.product": _CARD, f"{_GPU}.memory": str(objects.MODELS[_CARD])}
        yield node


def rack_name(node: int) -> str:
    return f"rack-{node // _RACK_NODES:03d}"


def hyper_nodes(nodes: int) -> list[Document]:
    """A HyperNode of tier 1 for each rack."""
    racks = sorted({rack_name(number) for number in range(nodes)})
    return [
        {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": rack},
            "spec": {
                "tier": 1,
                "members": [{"type": "Node", "selector": {"labelMatch": {"matchLabels": {RACK: rack}}}}],
            },
        }
        for rack in racks
    ]


def _queue(name: str, cards: int, priority: int = 0) -> Document:
    metadata = {"name": name, "annotations": {keys.CARD_QUOTA: json.dumps({_CARD: cards})}}
    spec = {"weight": 1, "reclaimable": not priority, "priority": priority}
    return {"apiVersion": SCHEDULING, "kind": "Queue", "metadata": metadata, "spec": spec}


def _gang(name: str, members: int, cards: int = 0, *, queue: str = "q", service: str = "", **spec: Any) -> Gang:
    """A gang of pods; each requests a cpu and this number of cards."""
    requests = {"cpu": "1", "memory": "1Gi", **({_GPU: str(cards)} if cards else {})}
    metadata = {"name": name, "namespace": objects.NAMESPACE}
    notes = ({keys.CARD_NAME: _CARD} if cards else {}) | ({keys.SERVICE_TYPE: service} if service else {})
    if cards:
        spec["minResources"] = {key: str(members * int(requests[key])) for key in (_GPU, "cpu")}
    group = {
        "apiVersion": SCHEDULING,
        "kind": "PodGroup",
        "metadata": {**metadata, "annotations": notes},
        "spec": {"queue": queue, "minMember": members, **spec},
    }
    container = {"name": "main", "image": "registry.example/ml/trainer:2026.1"}
    container["resources"] = {"requests": requests, "limits": requests}  # type: ignore[assignment]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{member}",
                "namespace": objects.NAMESPACE,
                "annotations": {keys.GROUP_NAME: name, **notes},
            },
            "spec": {"schedulerName": "capcard-sched", "restartPolicy": "Never", "containers": [container]},
        }
        for member in range(members)
    ]
    return Gang(group, pods)


def native(gang: Gang) -> Gang:
    """The same gang for kube-scheduler: a PodGroup of scheduling.k8s.io, or none for a gang of one pod."""
    name, spec = gang.group["metadata"]["name"], gang.group["spec"]
    policy: Document = {"schedulingPolicy": {"gang": {"minCount": spec["minMember"]}}}
    if "networkTopology" in spec:
        policy["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    metadata = {"name": name, "namespace": objects.NAMESPACE}
    group = {"apiVersion": _NATIVE, "kind": "PodGroup", "metadata": metadata, "spec": policy}
    is_gang = len(gang.pods) > 1
    member = {"schedulerName": "default-scheduler"} | ({"schedulingGroup": {"podGroupName": name}} if is_gang else {})
    pods = [
        {**pod, "metadata": {**metadata, "name": pod["metadata"]["name"]}, "spec": {**pod["spec"], **member}}
        for pod in gang.pods
    ]
    return Gang(group if is_gang else {}, pods)


def _bound(gang: Gang, nodes: Iterator[int]) -> list[Document]:
    """The objects of a gang on these nodes."""
    for pod in gang.pods:
        pod["spec"] = {**pod["spec"], "nodeName": f"node-{next(nodes):05d}"}
    return [gang.group, *gang.pods]


def _racks(factor: float) -> SceneLoad:
    spec: Document = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    gangs = [_gang(f"t-{number:05d}", 4, **spec) for number in range(round(1_500 * factor))]
    return SceneLoad([_queue("q", 0)], gangs, 4 * len(gangs))


def _large_gangs(factor: float) -> SceneLoad:
    size = round(1_000 * factor)
    return SceneLoad([_queue("q", 0)], [_gang(f"g-{number}", size) for number in range(6)], 6 * size)


def _many_jobs(factor: float) -> SceneLoad:
    count = round(4_000 * factor)
    return SceneLoad([_queue("q", count)], [_gang(f"j-{number:05d}", 1, 1) for number in range(count)], count)


def _one_job(factor: float) -> SceneLoad:
    count = round(512 * factor)
    return SceneLoad([_queue("q", count)], [_gang("j", count, 1)], count)


def _reclaimed(factor: float) -> SceneLoad:
    """Inference reclaims all cards from training."""
    nodes = round(500 * factor)
    cards = nodes * objects.CARDS_PER_NODE
    places = iter([number for number in range(nodes) for _ in range(objects.CARDS_PER_NODE)])
    holders = [
        _bound(_gang(f"v-{number:05d}", 1, 1, queue="training", service="training"), places) for number in range(cards)
    ]
    claims = [_gang(f"c-{number:05d}", 1, objects.CARDS_PER_NODE, service="inference") for number in range(nodes)]
    before = [
        _queue("q", cards, 80_000),
        _queue("training", cards),
        *(document for each in holders for document in each),
    ]
    running = tuple(document["metadata"]["name"] for document in before if document["kind"] == "Pod")
    return SceneLoad(before, claims, cards, "evicted", running=running)


def _beside_blocked(factor: float) -> SceneLoad:
    blocked = [_gang(f"b-{number:05d}", 4, 1, queue="blocked") for number in range(round(5_000 * factor))]
    offered = [_gang(f"o-{number:05d}", 1, 1) for number in range(round(3_000 * factor))]
    documents = [document for gang in blocked for document in (gang.group, *gang.pods)]
    return SceneLoad([_queue("q", len(offered)), _queue("blocked", 3), *documents], offered, len(offered), rate=100.0)


def _workloads(queues: int, count: int) -> Callable[[float], SceneLoad]:
    def load(factor: float) -> SceneLoad:
        number_of_queues, total = max(1, round(queues * factor)), round(count * factor)
        names = [f"q-{number:04d}" for number in range(number_of_queues)]
        gangs = [_gang(f"w-{number:05d}", 1, 1, queue=names[number % len(names)]) for number in range(total)]
        made = [Gang(gang.group, []) for gang in gangs]
        return SceneLoad([_queue(name, -(-total // len(names))) for name in names], made, total, "admitted")

    return load


def _restarted(factor: float) -> SceneLoad:
    nodes, count = round(5_000 * factor), round(140_000 * factor)
    places = iter([number % nodes for number in range(count)])
    before = [_queue("q", 8)]
    before += (doc for number in range(count // 8) for doc in _bound(_gang(f"r-{number:05d}", 8), places))
    return SceneLoad(before, [_gang("last", 8, 1)], 8, from_start=True, is_restart=True)


def _claimed(factor: float) -> SceneLoad:
    """Pods with one claim each, for most of the devices."""
    nodes, count = max(1, round(500 * factor)), round(5_000 * factor)
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    meta = {"name": DRIVER}
    devices: list[Document] = [
        {"apiVersion": _RESOURCE, "kind": "DeviceClass", "metadata": meta, "spec": {"selectors": [selector]}}
    ]
    for number in range(nodes):
        name = f"node-{number:05d}"
        made = [
            {"name": f"gpu-{index}", "attributes": {"uuid": {"string": f"GPU-{number}-{index}"}}}
            for index in range(_CLAIMED_DEVICES)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": made}
        devices.append({"apiVersion": _RESOURCE, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
    gangs = [_gang(f"d-{number:05d}", 1) for number in range(count)]
    for gang in gangs:
        for pod in gang.pods:
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": pod["metadata"]["name"]}]
            container = {**pod["spec"]["containers"][0]}
            container["resources"] = {**container["resources"], "claims": [{"name": "gpu"}]}
            pod["spec"]["containers"] = [container]
    return SceneLoad([_queue("q", 0)], gangs, count, devices=tuple(devices))


_HALF: Final = "2 x kube-scheduler, or 0.8 x raw"
SCENES: Final = {
    scene.name: scene
    for scene in (
        PeerScene(
            "K1", "1,500 gangs of 4, each in one rack of 50", 5_000, "kube-scheduler 526 to 574 pods/s", _HALF, _racks,
            True,
        ),
        PeerScene("K2", "6 gangs of 1,000", 5_000, "kube-scheduler 625 pods/s", _HALF, _large_gangs, True),
        PeerScene("C1", "5,000 pods with a ResourceClaim each", 500, "", _HALF, _claimed, True),
        PeerScene("J1", "4,000 jobs of one GPU at once", 500, "KAI 397 s", "10 s", _many_jobs, True),
        PeerScene("J2", "one job of 512 pods", 500, "KAI 49 s", "2 s", _one_job, True),
        PeerScene("R1", "4,000 GPUs reclaimed by 500 pods", 500, "KAI 85 s until the last eviction", "5 s", _reclaimed),
        PeerScene(
            "B1", "jobs at 100/s beside 5,000 blocked jobs of 4 pods", 500, "Volcano 72 jobs/s", "100/s, p99 1 s",
            _beside_blocked,
        ),
        PeerScene(
            "Q1", "15,000 workloads in 30 queues", 500, "Kueue 43 admissions/s", "500/s", _workloads(30, 15_000)
        ),
        PeerScene(
            "Q2", "50,000 workloads in 1,000 queues", 500, "Kueue 42 admissions/s", "500/s", _workloads(1_000, 50_000)
        ),
        PeerScene(
            "S1", "restart with 140,000 bound pods, then one gang", 5_000, "Volcano 497 s", "12 s", _restarted
        ),
    )
}  # fmt: skip
