"""Random histories of pods that share claims: queues are charged each claim once; undo restores every account."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.undone import place_and_undo
from tests.vectors.notation import VectorHarness
from tests.vectors.world import conf_text

_QUEUES = ("a", "b", "c", "up", "root")
_ABOVE = {"a": ("a", "up", "root"), "b": ("b", "up", "root"), "c": ("c", "root")}
#: Class of devices to their card.
_CARDS = {"h": "NVIDIA-H200", "a": "NVIDIA-A100"}
_ATTRIBUTES = {name: f"{{type: {{string: gpu}}, productName: {{string: {_CARDS[name]}}}}}" for name in _CARDS}
_DEVICES = ", ".join(f"{{name: {name}{n}, attributes: {_ATTRIBUTES[name]}}}" for name in _CARDS for n in range(9))


def _class(name: str) -> str:
    product = 'device.attributes["gpu.nvidia.com"].productName'
    expression = f"{product} == {json.dumps(_CARDS[name])}"
    return f"object {name} kind=DeviceClass spec={{selectors: [{{cel: {{expression: '{expression}'}}}}]}}"


def _quota(cards: int) -> str:
    return ",".join(f"{card}:{cards}" for card in _CARDS.values())


class _World:
    """Objects as this test writes them, beside the scheduler's."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.harness = VectorHarness(conf_text(["enqueue, allocate", ["gang", "predicates", "capacity-card"]]))
        pool = "{name: n1, generation: 1, resourceSliceCount: 1}"
        self.harness.do(
            f"node n1 cpu=90 pods=90; node n2 cpu=90 pods=90\n{_class('h')}\n{_class('a')}\n"
            f"object s kind=ResourceSlice spec={{driver: gpu.nvidia.com, nodeName: n1, pool: {pool}, "
            f"devices: [{_DEVICES}]}}\n"
            f"queue root; queue up cards={_quota(30)}; queue a,b parent=up cards={_quota(20)}\n"
            f"queue c cards={_quota(20)}\n"
            "group a/ga; group b/gb; group c/gc; group a/gd"
        )
        #: Claim to its devices; pod to its queue and claims, and whether it has a node.
        self.claims: dict[str, tuple[tuple[str, int], ...]] = {}
        self.pods: dict[str, tuple[str, tuple[str, ...], bool]] = {}
        self.made = 0

    def change(self) -> None:
        """One event: a claim, a pod that waits or runs, or the end of a pod."""
        choose, harness = self.choose, self.harness
        self.made += 1
        what = choose.random()
        if what < 0.25 or not self.claims:
            name, classes = f"r{self.made}", choose.choice(["h", "a", "ha"])
            asks = tuple([(each, choose.randint(1, 3)) for each in classes])
            harness.do(f"device_claim {name} asks={','.join(f'{each}:{gpus}' for each, gpus in asks)}")
            self.claims[name] = asks
        elif what < 0.8:
            group, name = choose.choice("abcd"), f"p{choose.randint(100, 999)}-{self.made}"
            queue = "a" if group == "d" else group
            names = tuple(choose.sample(sorted(self.claims), min(len(self.claims), choose.randint(1, 2))))
            runs = choose.random() < 0.6
            harness.do(f"pod g{group}/{name} devices={','.join(names)}" + (" @n1" if runs else ""))
            self.pods[name] = queue, names, runs
        elif self.pods:
            name = choose.choice(sorted(self.pods))
            harness.do(f"delete_pod {name}")
            del self.pods[name]

    def expected(self) -> dict[tuple[str, str], int]:
        """By queue the devices of the claims of running pods, each for the first of its pods by uid."""
        running = [task for job in self.harness.state.jobs.values() for task in job.tasks.values() if task.bound]
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for name, asks in self.claims.items():
            users = [task for task in running if name in self.pods[task.name][1]]
            if users:
                queue = self.pods[min(users, key=lambda task: task.uid).name][0]
                for one in _ABOVE[queue]:
                    for each, gpus in asks:
                        found[one, _CARDS[each]] += gpus
        return {(one, card): found[one, card] * 1000 for one in _QUEUES for card in _CARDS.values()}

    def counted(self) -> dict[tuple[str, str], int]:
        """The same as the plugin counts it."""
        queues = self.harness.plugin("capacity-card").accounts.ledger.queues
        return {(one, card): queues[one].subtree.allocated[card] for one in _QUEUES for card in _CARDS.values()}

    def sums(self) -> dict[str, Any]:
        """Everything that a placement changes."""
        ledger = self.harness.plugin("capacity-card").accounts.ledger
        queues = {
            name: [(dict(book.allocated), dict(book.releasing)) for book in (one.own, one.subtree)]
            for name, one in ledger.queues.items()
        }
        jobs = {key: (dict(one.allocated), dict(one.charges), set(one.leaving)) for key, one in ledger.jobs.items()}
        held = {key: amount for key, amount in ledger.by_service.items() if amount}
        version = self.harness.plugin("capacity-card").accounts.shared.version
        return {"queues": queues, "jobs": jobs, "held": held, "version": version}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_queues_are_charged_each_claim_once(seed: int) -> None:
    world = _World(seed)
    for _ in range(world.choose.randint(3, 25)):
        for _ in range(world.choose.randint(1, 3)):
            world.change()
        world.harness.session()
        assert world.counted() == world.expected()
        place_and_undo(world.harness, "capacity-card", world.choose, world.sums, evicts=True)
