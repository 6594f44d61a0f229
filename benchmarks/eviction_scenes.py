"""Clusters without free cards, and preemptors: reproducible data for a seed.

| Scene | Preemptors | Possible victims |
|---|---|---|
| P1 | one pod of priority 80000 per fifty running pods, many in gangs | lower priorities of their queue: `preempt` |
| R1 | as many of inference, half of them additional replicas | training, of other queues: `reclaim` |
| T1 | inference for 30 % of all cards, in the same way | training, of other queues: `reclaim` |

Nodes are those of `workloads`. Every card runs: gangs of 1 to 32 pods with 1, 2, 4 or 8 cards each, packed node after
node, so that gangs are spread over nodes and share them; in a gang of training all are needed. Pods without cards fill
up to the requested number. In R1 and T1 training uses three quarters of the cards. One running gang in twenty is not
preemptable.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

from benchmarks.workloads import GPU, MIG, MIG_CARD, MODELS, MPS, MPS_CARD, make_nodes, make_queue, timestamp
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.objects import (
    Container,
    NodeObject,
    ObjectMeta,
    PodGroupObject,
    PodGroupSpec,
    PodGroupStatus,
    PodObject,
    PodSpec,
    PodStatus,
    PriorityClassObject,
    QueueObject,
    RawAmounts,
    ResourceRequirements,
)

SCENES = ("P1", "R1", "T1")
#: Of so many running pods one preemptor or reclaimer.
_RUNNING_PER_TAKER = 50
#: Part of all cards that the tide takes back, and part that training holds before.
_TIDE = 0.3
_TRAINING = 0.75
_CLASSES = {"pc-highest": 80_000, "pc-high": 60_000, "pc-medium": 40_000, "pc-low": 20_000}
_BUILT_IN = "scheduler.yaml"
_TIDAL = "examples/tidal/conf/scheduler.yaml"
_GANG_SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 16, 32)
_CARDS = (1, 1, 1, 1, 1, 1, 2, 2, 4, 8)


class Kind(NamedTuple):
    """Queue, class, service type and requests of the pods of one group."""

    queue: str
    #: Name of a PriorityClass, and `inference`, `training` or "".
    priority_class: str
    service: str
    #: Card name, its resource, and the number of cards; "" and 0 without cards.
    card: str = ""
    resource: str = GPU
    cards: int = 0
    preemptable: bool = True


@dataclass
class Scene:
    """The full cluster, and the objects of the preemptors."""

    name: str
    conf: str
    nodes: list[NodeObject]
    queues: list[QueueObject] = field(default_factory=list)
    groups: list[PodGroupObject] = field(default_factory=list)
    running: list[PodObject] = field(default_factory=list)
    #: New groups, and all preemptors: pods of the new groups, and additional pods of running groups.
    new_groups: list[PodGroupObject] = field(default_factory=list)
    takers: list[PodObject] = field(default_factory=list)
    kinds: dict[str, Kind] = field(default_factory=dict)

    def standing(self) -> list[Delta]:
        """The full cluster."""
        facts: list[Delta] = [
            ObjectChanged(PriorityClassObject(metadata=ObjectMeta(name=name, uid=name), value=value))
            for name, value in _CLASSES.items()
        ]
        facts += [ObjectChanged(node) for node in self.nodes]
        facts += [ObjectChanged(queue) for queue in self.queues]
        facts += [ObjectChanged(group) for group in self.groups]
        facts += [ObjectChanged(pod) for pod in self.running]
        return facts

    def arriving(self) -> list[Delta]:
        """The preemptors and their groups."""
        return [*map(ObjectChanged, self.new_groups), *map(ObjectChanged, self.takers)]

    # --- making -------------------------------------------------------------------------------------------------------

    def add_group(self, kind: Kind, minimum: int, *, comes: bool = False) -> str:
        """A group without pods as yet. Returns its name."""
        number = len(self.kinds)
        name = f"{'new' if comes else 'job'}-{number:06d}"
        notes = {"volcano.sh/service.type": kind.service} if kind.service else {}
        if not kind.preemptable:
            notes["volcano.sh/preemptable"] = "false"
        self.kinds[name] = kind
        (self.new_groups if comes else self.groups).append(
            PodGroupObject(
                metadata=ObjectMeta(
                    name=name,
                    namespace="default",
                    uid=f"group-uid-{name}",
                    creation_timestamp=timestamp(number // 50),
                    annotations=notes or None,
                ),
                spec=PodGroupSpec(min_member=minimum, queue=kind.queue, priority_class_name=kind.priority_class),
                status=PodGroupStatus(phase="Inqueue" if comes else "Running"),
            )
        )
        return name

    def pod(self, group: str, index: int, row: int | None = None) -> PodObject:
        """A pod of a group: running on a node, or pending."""
        kind = self.kinds[group]
        cpu = 8 * max(1, kind.cards) if kind.resource == GPU and kind.card else 4
        requests: RawAmounts = {"cpu": str(cpu), "memory": f"{8 * cpu}Gi"}
        limits: RawAmounts | None = None
        notes = {"scheduling.k8s.io/group-name": group}
        if kind.card:
            requests[kind.resource] = str(kind.cards)
            limits = {kind.resource: str(kind.cards)}
            notes["volcano.sh/card.name"] = kind.card
        container = Container(
            name="main",
            image="registry.example/train:1",
            resources=ResourceRequirements(requests=requests, limits=limits),
        )
        return PodObject(
            metadata=ObjectMeta(
                name=f"{group}-{index}",
                namespace="default",
                uid=f"pod-uid-{group}-{index}",
                creation_timestamp=timestamp(int(group[4:]) // 50),
                annotations=notes,
            ),
            spec=PodSpec(
                scheduler_name="capcard-sched",
                containers=(container,),
                priority=_CLASSES[kind.priority_class],
                node_name=f"node-{row:05d}" if row is not None else None,
            ),
            status=PodStatus(phase="Pending" if row is None else "Running"),
        )


def make_scene(name: str, nodes: int, pods: int, seed: int = 1) -> Scene:
    """A scene with so many nodes and running pods. Raises KeyError for an unknown name, ValueError for too few pods."""
    rng = random.Random(f"{name}/{nodes}/{pods}/{seed}")
    if name == "P1":
        text = _conf(_BUILT_IN).replace("allocate, backfill", "allocate, backfill, preempt")
        makers = {"": [f"team-{i}" for i in range(8)]}
    else:
        text = _conf(_TIDAL)
        makers = {"training": [f"train-{i}" for i in range(6)], "inference": [f"serve-{i}" for i in range(3)]}
    wanted = {"P1": 0.0, "R1": 0.0, "T1": _TIDE}[name]
    scene = Scene(name, text, make_nodes(nodes))
    held = _fill(scene, makers, pods, rng)
    _come(scene, makers, wanted, pods // _RUNNING_PER_TAKER, rng)
    asked: dict[str, dict[str, int]] = {}
    for pod in scene.takers:
        kind = scene.kinds[pod.metadata.name.rpartition("-")[0]]
        for card in kind.card.split("|"):
            mine = asked.setdefault(kind.queue, {})
            mine[card] = mine.get(card, 0) + kind.cards
    for service, queues in makers.items():
        for number, queue in enumerate(queues):
            quota = dict(held.get(queue, {}))
            # A new pod is within the quota of its queue; but every fourth queue of P1 has already all it may have.
            if service != "training" and (service or number % 4):
                for card, count in asked.get(queue, {}).items():
                    quota[card] = quota.get(card, 0) + count
            serves = service == "inference"
            scene.queues.append(make_queue(queue, quota, 80_000 if serves else 20_000, reclaimable=not serves))
    return scene


def _conf(name: str) -> str:
    return resources.files("capcard_sched.config").joinpath(name).read_text(encoding="utf-8")


class _Offer(NamedTuple):
    """One kind of card, and the rows with so many of it free: amount to rows."""

    card: str
    resource: str
    free: dict[int, deque[int]]

    def take(self, cards: int) -> int:
        """The row with the fewest left that has enough; -1 when there is none."""
        for amount in sorted(self.free):
            if amount >= cards and self.free[amount]:
                row = self.free[amount].popleft()
                if amount > cards:
                    self.free.setdefault(amount - cards, deque()).append(row)
                return row
        return -1

    def most(self) -> int:
        """The most cards that are free on one row."""
        return max((amount for amount, rows in self.free.items() if rows), default=0)


def _offers(nodes: list[NodeObject]) -> list[_Offer]:
    offers: dict[str, _Offer] = {}
    for row, node in enumerate(nodes):
        amounts = node.status.allocatable or {}
        product = (node.metadata.labels or {})[f"{GPU}.product"]
        for resource, card in ((GPU, product), (MPS, MPS_CARD), (MIG, MIG_CARD)):
            if resource in amounts:
                offer = offers.setdefault(card, _Offer(card, resource, {}))
                offer.free.setdefault(int(amounts[resource]), deque()).append(row)
    return list(offers.values())


def _fill(scene: Scene, makers: dict[str, list[str]], pods: int, rng: random.Random) -> dict[str, dict[str, int]]:
    """Running pods on every card, then pods without cards. Returns what each queue holds of each card."""
    held: dict[str, dict[str, int]] = {}
    offers = _offers(scene.nodes)
    while offers:
        offer = rng.choice(offers)
        most = offer.most()
        if not most:
            offers.remove(offer)
            continue
        cards = min(rng.choice(_CARDS), most) if offer.resource == GPU else min(4, most)
        kind = _kind(makers, _service(makers, rng), rng)._replace(
            card=offer.card, resource=offer.resource, cards=cards, preemptable=rng.random() >= 1 / 20
        )
        rows = []
        for _ in range(rng.choice(_GANG_SIZES)):
            row = offer.take(cards)
            if row < 0:
                break
            rows.append(row)
        _run(scene, kind, rows)
        mine = held.setdefault(kind.queue, {})
        mine[offer.card] = mine.get(offer.card, 0) + cards * len(rows)
    row = 0
    if len(scene.running) > pods:
        raise ValueError(f"{len(scene.running)} pods have cards: ask for more than {pods}")
    while len(scene.running) < pods:
        size = min(rng.choice(_GANG_SIZES), pods - len(scene.running))
        rows = [(row + i) % len(scene.nodes) for i in range(size)]
        row += size
        _run(scene, _kind(makers, _service(makers, rng), rng), rows)
    return held


def _service(makers: dict[str, list[str]], rng: random.Random) -> str:
    return "" if "" in makers else "training" if rng.random() < _TRAINING else "inference"


def _kind(makers: dict[str, list[str]], service: str, rng: random.Random) -> Kind:
    chosen = rng.choices(list(_CLASSES), (1, 3, 6, 10))[0]
    return Kind(rng.choice(makers[service]), "pc-highest" if service == "inference" else chosen, service)


def _run(scene: Scene, kind: Kind, rows: list[int]) -> None:
    """A gang that runs; of inference one replica is enough."""
    name = scene.add_group(kind, 1 if kind.service == "inference" else len(rows))
    scene.running += [scene.pod(name, index, row) for index, row in enumerate(rows)]


def _come(scene: Scene, makers: dict[str, list[str]], part: float, count: int, rng: random.Random) -> None:
    """Pods that need cards: so many, or, with a `part`, for that part of all whole cards."""
    services = [
        (group.metadata.name, scene.kinds[group.metadata.name])
        for group in scene.groups
        if scene.kinds[group.metadata.name].service == "inference" and scene.kinds[group.metadata.name].card
    ]
    cards = sum(8 for node in scene.nodes if GPU in (node.status.allocatable or {}))
    size = dict.fromkeys(scene.kinds, 0)
    for pod in scene.running:
        size[pod.metadata.name.rpartition("-")[0]] += 1
    asked = 0
    while asked < part * cards if part else len(scene.takers) < count:
        left = count - len(scene.takers) if not part else 8
        if services and rng.random() < 0.5:
            name, kind = rng.choice(services)
            pods = min(rng.choice((1, 2, 3, 4)), left)
            first = size[name]
            size[name] += pods
        else:
            pods = min(rng.choice((1, 1, 1, 1, 1, 1, 2, 4, 8)), left)
            kind = _want(_kind(makers, "inference" if "inference" in makers else "", rng), rng)
            name, first = scene.add_group(kind, pods, comes=True), 0
        scene.takers += [scene.pod(name, first + index) for index in range(pods)]
        asked += kind.cards * pods if kind.resource == GPU else 0


def _want(kind: Kind, rng: random.Random) -> Kind:
    """Requests of a preemptor's group: of twenty groups one for shares or slices, three for `A|B`."""
    kind = kind._replace(priority_class="pc-highest")
    which = rng.randrange(20)
    if which == 0:
        card, resource = rng.choice(((MPS_CARD, MPS), (MIG_CARD, MIG)))
        return kind._replace(card=card, resource=resource, cards=4)
    models = rng.sample(list(MODELS), 2 if which < 4 else 1)
    return kind._replace(card="|".join(models), cards=rng.choice(_CARDS))
