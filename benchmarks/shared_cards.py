"""Pods that share GPUs: one session places them all, beside a plain loop over nodes and cards.

| Scene | Pods | Cards |
|---|---|---|
| V1 | gangs of 50 of 12 templates, one share each | 8 L40S a node, 10 slots each |
| V2 | gangs of 8 that also want compute | the same |
| V3 | gangs of 50 that get slices | 8 A100-80GB a node, cut by MIG |
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import tracemalloc
from typing import Final, NamedTuple

import msgspec

from benchmarks.measure import SceneRun, core_with, one_more_pod, run_session, session_medians
from benchmarks.workloads import START, make_queue, timestamp
from capcard_sched.framework.core import Core
from capcard_sched.gc import settle_memory
from capcard_sched.model.annotations import NODE_VGPU_REGISTER
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject
from capcard_sched.plugins.deviceshare.geometry import DEFAULT_GEOMETRIES, geometry_of

#: Scene to members of a gang.
SHARED: Final = {"V1": 50, "V2": 8, "V3": 50}
#: Pods per node: ten, so that cards of ten slots are neither empty nor full.
PODS_PER_NODE: Final = 10
#: Pods that the plain loop places: seconds, not hours.
PLAIN_PODS: Final = 64

_CONF: Final = """
actions: allocate
tiers:
  - plugins: [{name: priority}, {name: gang}]
  - plugins:
    - name: predicates
    - name: deviceshare
      arguments:
        deviceshare.VGPUEnable: true
        deviceshare.SchedulePolicy: binpack
        deviceshare.ScheduleWeight: 10
"""
#: Pods whose sessions are measured one by one.
_MORE_PODS: Final = 15
_CARDS, _SLOTS, _WEIGHT = 8, 10, 10
_L40S, _A100 = ("NVIDIA-NVIDIA L40S", 49140, "hami-core"), ("NVIDIA-NVIDIA A100-SXM4-80GB", 81920, "mig")
#: MiB of the templates, and percent of compute in V2.
_MEMORY: Final = tuple(1024 * size for size in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32))
_CORES: Final = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 100)


class Sharing(SceneRun, frozen=True, kw_only=True):
    """Figures of one scene at one size."""

    #: Bytes that the plugin keeps of the cards, before any pod.
    card_bytes: int


class _Wish(NamedTuple):
    memory: int
    cores: int


def measure_sharing(name: str, size: str, nodes: int, repeats: int) -> Sharing:
    """Place `PODS_PER_NODE` pods a node, `repeats` times from scratch. Raises RuntimeError when a hook fails."""
    pods = nodes * PODS_PER_NODE // SHARED[name] * SHARED[name]
    sessions, changes = [], []
    for _ in range(repeats):
        core = scene_core(name, nodes)
        for delta in coming(name, pods):
            core.apply(delta)
        settle_memory()
        sessions.append(run_session(core))
        news = (coming(name, 1, pods + number * SHARED[name], alone=True) for number in range(_MORE_PODS))
        changes.append(one_more_pod(core, name, news, START + 300))
    plain, agreed = _plain(name, nodes, {bind.name: bind.node for bind in sessions[0].binds})
    return Sharing(
        scene=name,
        size=size,
        nodes=nodes,
        pods=pods,
        card_bytes=_card_bytes(name, nodes),
        plain_seconds_per_pod=plain,
        agreed=agreed,
        change_cpu_seconds=statistics.median(changes),
        **session_medians(sessions),
    )


def scene_core(scene: str, nodes: int) -> Core:
    """A core that has run a session over the nodes of a scene."""
    core = core_with(_CONF, f"scheduler-conf of {scene}")
    core.step(_present(scene, nodes), START + 100)
    return core


def _present(scene: str, count: int) -> list[Delta]:
    type, memory, mode = _A100 if scene == "V3" else _L40S
    found: list[Delta] = [ObjectChanged(make_queue("q", {}))]
    for number in range(count):
        name = f"node-{number:05d}"
        cards = "".join(f"GPU-{number:05d}-{card},{_SLOTS},{memory},{type},true,{mode}:" for card in range(_CARDS))
        allocatable = {"cpu": "192", "memory": "2Ti", "pods": "500", "volcano.sh/vgpu-number": _CARDS * _SLOTS}
        obj = {
            "metadata": {"name": name, "annotations": {NODE_VGPU_REGISTER: cards}},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }
        found.append(ObjectChanged(msgspec.convert(obj, NodeObject)))
    return found


def _wish(scene: str, number: int) -> _Wish:
    """What a pod wants, by its number: templates take turns, gang by gang."""
    template = number // SHARED[scene] % len(_MEMORY)
    return _Wish(_MEMORY[template], _CORES[template] if scene == "V2" else 0)


def coming(scene: str, pods: int, first: int = 0, *, alone: bool = False) -> list[Delta]:
    """A number of pods of a scene in groups, all admitted; `alone`: each group has one member."""
    found: list[Delta] = []
    size = SHARED[scene]
    for number in range(first, first + pods):
        group = number // size
        name = f"job-{group:06d}"
        meta = {"namespace": "default", "creationTimestamp": timestamp(group // 50)}
        if number % size == 0:
            obj = {
                "metadata": {**meta, "name": name, "uid": f"group-uid-{group}"},
                "spec": {"minMember": 1 if alone else size, "queue": "q"},
                "status": {"phase": "Inqueue"},
            }
            found.append(ObjectChanged(msgspec.convert(obj, PodGroupObject)))
        wish = _wish(scene, number)
        limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": wish.memory}
        if wish.cores:
            limits["volcano.sh/vgpu-cores"] = wish.cores
        pod = {
            "metadata": {
                **meta,
                "name": f"{name}-w-{number % size}",
                "uid": f"pod-uid-{number}",
                "annotations": {"scheduling.k8s.io/group-name": name},
            },
            "spec": {
                "schedulerName": "capcard-sched",
                "containers": [{"name": "main", "resources": {"limits": limits}}],
            },
            "status": {"phase": "Pending"},
        }
        found.append(ObjectChanged(msgspec.convert(pod, PodObject)))
    return found


def _card_bytes(scene: str, nodes: int) -> int:
    """Bytes that the plugin keeps for the cards of these nodes."""
    core = core_with(_CONF, f"scheduler-conf of {scene}")
    for delta in _present(scene, nodes):
        core.apply(delta)
    gc.collect()
    tracemalloc.start()
    try:
        core.open_session(START + 100)
        gc.collect()
        modules = [tracemalloc.Filter(True, "*deviceshare*"), tracemalloc.Filter(True, "*card_registration*")]
        return sum(each.size for each in tracemalloc.take_snapshot().filter_traces(modules).statistics("filename"))
    finally:
        tracemalloc.stop()


# --- the plain loop --------------------------------------------------------------------------------------------------


class _PlainCard:
    """One card: counters, and for MIG the group in use with its free slices."""

    __slots__ = ("cores", "group", "memory", "number", "taken")

    def __init__(self) -> None:
        self.number = self.memory = self.cores = 0
        self.group = ""
        self.taken: set[int] = set()


def _plain(scene: str, nodes: int, bound: dict[str, str]) -> tuple[float, int]:
    """CPU seconds per pod of a loop over all nodes and cards, and how many pods it puts where the engine does."""
    cluster = [[_PlainCard() for _ in range(_CARDS)] for _ in range(nodes)]
    agreed, began = 0, time.process_time()
    for number in range(PLAIN_PODS):
        wish = _wish(scene, number)
        best, chosen = -1.0, -1
        for row, cards in enumerate(cluster):
            score = _try(scene, cards, wish, commit=False)
            if score > best:
                best, chosen = score, row
        _try(scene, cluster[chosen], wish, commit=True)
        size = SHARED[scene]
        name = f"job-{number // size:06d}-w-{number % size}"
        agreed += bound.get(name) == f"node-{chosen:05d}"
    return (time.process_time() - began) / PLAIN_PODS, agreed


def _try(scene: str, cards: list[_PlainCard], wish: _Wish, *, commit: bool) -> float:
    """The score of a node for one share, -1.0 when no card has it."""
    total = (_A100 if scene == "V3" else _L40S)[1]
    for index in sorted(range(_CARDS), key=lambda at: (-min(cards[at].memory, total), -at)):
        card = cards[index]
        if card.number >= _SLOTS or total - min(card.memory, total) < wish.memory:
            continue
        if (
            card.cores + wish.cores > 100
            or (wish.cores == 100 and card.number)
            or (not wish.cores and card.cores == 100)
        ):
            continue
        amount, group, position = wish.memory, "", -1
        if scene == "V3":
            slice = _plain_slice(card, wish.memory)
            if slice is None:
                continue
            group, position, amount = slice
        if commit:
            card.number, card.memory, card.cores = card.number + 1, card.memory + amount, card.cores + wish.cores
            card.group = group
            card.taken.add(position)
        return float(math.floor(100 * min(card.memory + (0 if commit else amount), total) / total + 0.5) * _WEIGHT)
    return -1.0


def _plain_slice(card: _PlainCard, wanted: int) -> tuple[str, int, int] | None:
    geometry = geometry_of(_A100[0], DEFAULT_GEOMETRIES)
    assert geometry is not None
    for group in geometry.groups:
        if card.group in ("", group.name):
            offers = []
            position = 0
            for kind in group.slices:
                offers += [(kind.memory, position + slot) for slot in range(kind.count)]
                position += kind.count
            free = [(memory, at) for memory, at in offers if memory >= wanted and at not in card.taken]
            if free:
                memory, at = min(free)
                return group.name, at, memory
    return None
