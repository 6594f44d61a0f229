"""Random histories of pods with claims: what queues hold by DeviceClass follows from the objects; undo restores it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.undone import place_and_undo
from tests.vectors.notation import VectorHarness
from tests.vectors.world import conf_text

_CONF = {"capacity": {"enableHierarchy": True, "arguments": {"capacity.DRAConsumableCapacityEnable": True}}}
_ABOVE = {"a": ("a", "up", "root"), "b": ("b", "up", "root"), "c": ("c", "root")}
_KEYS = ("deviceclass/gpu", "memory.deviceclass/gpu", "deviceclass/nic")
_DEVICES = ", ".join(f"{{name: g{number}, allowMultipleAllocations: true}}" for number in range(9))


class _World:
    """Objects as this test writes them, beside the scheduler's."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.harness = VectorHarness(conf_text(["enqueue, allocate", ["gang", "predicates", _CONF]]))
        keys = ",".join(f"{key}:{amount}" for key, amount in zip(_KEYS, (9, 40, 5), strict=True))
        pool = "{name: n1, generation: 1, resourceSliceCount: 1}"
        self.harness.do(
            "node n1 cpu=90 pods=90; node n2 cpu=90 pods=90\n"
            "object gpu kind=DeviceClass spec={}; object nic kind=DeviceClass spec={}\n"
            f"object s kind=ResourceSlice spec={{driver: d, nodeName: n1, pool: {pool}, devices: [{_DEVICES}]}}\n"
            f"queue root; queue up capability={keys}; queue a,b parent=up; queue c capability=deviceclass/gpu:3\n"
            "group a/ga; group b/gb; group c/gc"
        )
        #: Claim to its amounts; pod to its queue, claims and whether it has a node.
        self.claims: dict[str, tuple[int, int, int]] = {}
        self.pods: dict[str, tuple[str, tuple[str, ...], bool]] = {}
        self.made = 0

    def change(self) -> None:
        """One event: a claim, a pod that waits or runs, or the end of a pod."""
        choose, harness = self.choose, self.harness
        self.made += 1
        what = choose.random()
        if what < 0.35 or not self.claims:
            name, gpus, memory, nics = (
                f"r{self.made}",
                choose.randint(1, 3),
                choose.choice([0, 0, 2, 5]),
                choose.randint(0, 2),
            )
            asks = f"gpu:{gpus}" + (f",nic:{nics}" if nics else "")
            harness.do(f"device_claim {name} asks={asks}" + (f" capacity=memory:{memory}" if memory else ""))
            self.claims[name] = gpus, memory * gpus, nics  # no key for the capacity of the requests for nics
        elif what < 0.8:
            queue, name = choose.choice("abc"), f"p{self.made}"
            names = tuple(choose.sample(sorted(self.claims), min(len(self.claims), choose.randint(1, 2))))
            runs = choose.random() < 0.6
            harness.do(f"pod g{queue}/{name} devices={','.join(names)}" + (" @n1" if runs else ""))
            self.pods[name] = queue, names, runs
        elif self.pods:
            name = choose.choice(sorted(self.pods))
            harness.do(f"delete_pod {name}")
            del self.pods[name]

    def expected(self) -> dict[str, list[int]]:
        """By queue the amounts of the claims of running pods, each once."""
        held: defaultdict[str, set[str]] = defaultdict(set)
        for queue, names, runs in self.pods.values():
            for one in _ABOVE[queue] if runs else ():
                held[one] |= set(names)
        return {
            one: [sum(self.claims[name][part] for name in held[one]) for part in range(3)]
            for one in ("a", "b", "c", "up", "root")
        }

    def counted(self) -> dict[str, list[int]]:
        """The same as the plugin counts it."""
        plugin, queues = self.harness.plugin("capacity"), self.harness.state.queues
        found = {one: plugin.claimed_amounts(queues[one]) for one in ("a", "b", "c", "up", "root")}
        return {
            one: [amounts.get(key, 0) // (1 if "." in key else 1000) for key in _KEYS] for one, amounts in found.items()
        }

    def sums(self) -> dict[str, Any]:
        """Everything that a placement changes."""
        branches = self.harness.plugin("capacity")._tree.branches
        return {
            name: (
                *(vector.tobytes() for vector in (one.allocated, one.held, one.releasing, one.own, one.kept)),
                {key: (tuple(held.pods), held.amounts) for key, held in one.claims.items()},
                frozenset(one.common),
            )
            for name, one in branches.items()
        }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_queues_hold_each_claim_once(seed: int) -> None:
    world = _World(seed)
    for _ in range(world.choose.randint(3, 25)):
        for _ in range(world.choose.randint(1, 3)):
            world.change()
        world.harness.session()
        assert world.counted() == world.expected()
        place_and_undo(world.harness, "capacity", world.choose, world.sums, evicts=False)
