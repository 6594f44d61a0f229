"""Random histories of pods that share claims: queues are charged each claim once; undo restores every account."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.undone import place_and_undo
from tests.vectors.notation import VectorHarness
from tests.vectors.world import conf_text

_ABOVE = {"a": ("a", "up", "root"), "b": ("b", "up", "root"), "c": ("c", "root")}
_CARD = "NVIDIA-H200"
_ATTRIBUTES = "attributes: {type: {string: gpu}, productName: {string: NVIDIA H200}}"
_DEVICES = ", ".join(f"{{name: g{number}, {_ATTRIBUTES}}}" for number in range(9))


class _World:
    """Objects as this test writes them, beside the scheduler's."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.harness = VectorHarness(conf_text(["enqueue, allocate", ["gang", "predicates", "capacity-card"]]))
        pool = "{name: n1, generation: 1, resourceSliceCount: 1}"
        self.harness.do(
            "node n1 cpu=90 pods=90; node n2 cpu=90 pods=90; object gpu kind=DeviceClass spec={}\n"
            f"object s kind=ResourceSlice spec={{driver: gpu.nvidia.com, nodeName: n1, pool: {pool}, "
            f"devices: [{_DEVICES}]}}\n"
            f"queue root; queue up cards={_CARD}:30; queue a,b parent=up cards={_CARD}:20; queue c cards={_CARD}:20\n"
            "group a/ga; group b/gb; group c/gc; group a/gd"
        )
        #: Claim to its devices; pod to its queue and claims, and whether it has a node.
        self.claims: dict[str, int] = {}
        self.pods: dict[str, tuple[str, tuple[str, ...], bool]] = {}
        self.made = 0

    def change(self) -> None:
        """One event: a claim, a pod that waits or runs, or the end of a pod."""
        choose, harness = self.choose, self.harness
        self.made += 1
        what = choose.random()
        if what < 0.25 or not self.claims:
            name, gpus = f"r{self.made}", choose.randint(1, 3)
            harness.do(f"device_claim {name} asks=gpu:{gpus}")
            self.claims[name] = gpus
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

    def expected(self) -> dict[str, int]:
        """By queue the devices of the claims of running pods, each for the first of its pods by uid."""
        running = [task for job in self.harness.state.jobs.values() for task in job.tasks.values() if task.bound]
        found: defaultdict[str, int] = defaultdict(int)
        for name, gpus in self.claims.items():
            users = [task for task in running if name in self.pods[task.name][1]]
            if users:
                queue = self.pods[min(users, key=lambda task: task.uid).name][0]
                for one in _ABOVE[queue]:
                    found[one] += gpus
        return {one: found[one] * 1000 for one in ("a", "b", "c", "up", "root")}

    def counted(self) -> dict[str, int]:
        """The same as the plugin counts it."""
        queues = self.harness.plugin("capacity-card").accounts.ledger.queues
        return {one: queues[one].subtree.allocated[_CARD] for one in ("a", "b", "c", "up", "root")}

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
