"""Cluster autoscalers add nodes for the pods that more nodes help, and for no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.vectors.notation import VectorHarness

#: Scenes per case; ten cases of each scheduler-conf.
_SCENES = 25
_CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, %s]
"""
_CONFS = {
    "cards": _CONF % "{name: capacity-card}",
    "cards and overcommit": _CONF % "{name: capacity-card}, {name: overcommit}",
}


@dataclass
class _Scene:
    """A cluster with few nodes, queues with quotas, and waiting gangs."""

    dice: random.Random
    conf: str
    h: VectorHarness = field(init=False)
    pods: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.h, dice = VectorHarness(self.conf), self.dice
        self.nodes(range(dice.randint(2, 4)), lambda: dice.choice((2, 4)))
        for queue in "qr":
            quota = {card: dice.randint(0, 8) for card in "AB" if dice.random() < 0.8}
            capability = {"cpu": str(dice.randint(2, 12))} if dice.random() < 0.3 else None
            self.h.queue(queue, cards=quota, capability=capability)
        for number in range(dice.randint(1, 7)):
            size = dice.randint(1, 6)
            group, minimum = f"g{number}", dice.randint(1, size + (dice.random() < 0.1))
            policies = self.policies() if dice.random() < 0.3 else []
            self.h.group(group, queue=dice.choice("qr"), min_member=minimum, phase="Pending", policies=policies)
            shapes = [(dice.choice("AB"), dice.randint(1, 4)) for _ in range(dice.choice((1, 1, 2)))]
            for index in range(size):
                card, cards = shapes[index * len(shapes) // size]
                name = f"{group}-w-{index}"
                labels = {"part": str(index // 2), "role": "ab"[index // 4]}
                self.h.pod(name, group=group, card=card, cards=cards, cpu="1", labels=labels)
                self.pods.append(name)

    def policies(self) -> list[dict[str, object]]:
        """Subgroups of up to three pods, of which some have too few."""
        dice = self.dice
        first: dict[str, object] = {
            "name": "a",
            "matchLabelKeys": ["part"],
            "labelSelector": {"matchLabels": {"role": "a"}},
        }
        second: dict[str, object] = {"name": "b", "labelSelector": {"matchLabels": {"role": "b"}}}
        return [
            {**policy, "subGroupSize": dice.randint(1, 2), "minSubGroups": dice.randint(0, 1)}
            for policy in (first, second)
        ]

    def nodes(self, numbers: range, count: Callable[[], int]) -> None:
        for number in numbers:
            self.h.gpu_node(f"n{number}", card="AB"[number % 2], count=count(), cpu="64", memory="512Gi")

    def seen_by_cluster_autoscaler(self) -> set[str]:
        """Its filter of unschedulable pods: no node, no deletion, PodScheduled=False with reason Unschedulable."""
        return {name for name in self.pods if name not in self.h.binds and self.reason(name) == "Unschedulable"}

    def seen_by_karpenter(self) -> set[str]:
        """Its filter of provisionable pods: in addition no nominated node."""
        return {name for name in self.seen_by_cluster_autoscaler() if not self.h.reasons[name][1]}

    def reason(self, name: str) -> str:
        return self.h.reasons.get(name, ("", ""))[0]

    def helped(self) -> set[str]:
        """The pods that the next session binds once nodes for all of them exist."""
        before = set(self.h.binds)
        self.nodes(range(100, 200), lambda: 8)
        self.h.step()
        return self.h.binds.keys() - before


@pytest.mark.parametrize("case", range(10))
@pytest.mark.parametrize("conf", _CONFS)
def test_an_autoscaler_sees_the_pods_that_more_nodes_help(conf: str, case: int) -> None:
    for number in range(_SCENES):
        scene = _Scene(random.Random(f"{conf} {case} {number}"), _CONFS[conf])
        scene.h.settle_for(12)
        seen, by_karpenter = scene.seen_by_cluster_autoscaler(), scene.seen_by_karpenter()
        assert all(scene.reason(name) for name in scene.pods if name not in scene.h.binds), "a reason for each pod"
        assert seen == by_karpenter == scene.helped(), f"scene {number}"
