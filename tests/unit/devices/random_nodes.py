"""A few nodes with the pools of random scenes, some of them equal, whose devices change."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np

from capcard_sched.devices.allocator import Allocator, NodeError
from capcard_sched.devices.claims import AllocationError, ClaimPlan, alternative_score, claim_facts
from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.model.device_objects import Allocation, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.job import Node
from capcard_sched.model.refusal import Code
from tests.properties.random_devices import Json, Scene
from tests.unit.devices.pools import Pools, decode, holding

NODES: Final = 4
MOVES: Final = 12


class _Table:
    """The part of a node table that the columns read."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.generation = 0

    def __len__(self) -> int:
        return len(self.nodes)


class RandomNodes:
    """Nodes whose pools are those of a random scene, under names of their own; `step` changes something."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # two nodes of each scene: equal ones share a search
        scenes = [Scene(seed + number // 2) for number in range(NODES)]
        self.written = [self._moved(each, number) for number in range(NODES) for each in scenes[number].slices]
        self.pools = Pools(self.written, scenes[0].classes)
        self.claims = [claim_facts(decode(each, ResourceClaimObject)) for each in scenes[0].claims]
        self.table: Any = _Table([Node(f"n{number}", labels={"zone": "a"}) for number in range(NODES)])
        self._held: list[Allocation | None] = []
        self._number_rows()

    @staticmethod
    def _moved(each: Json, number: int) -> Json:
        """A slice of N1 for another node; devices in a pool of several nodes stay in that pool."""
        spec = each["spec"]
        if spec.get("nodeName") != "N1":
            return each
        pool = {**spec["pool"], "name": f"{spec['pool']['name']}-{number}"}
        spec = {**spec, "pool": pool, "nodeName": f"n{number}"}
        if spec.get("devices"):  # each with an attribute of its own, which no claim reads
            own = {"uuid": {"string": f"{number}"}}
            spec["devices"] = [
                {**each, "attributes": {**(each.get("attributes") or {}), **own}} for each in spec["devices"]
            ]
        return {"metadata": {"name": f"{each['metadata']['name']}-{number}"}, "spec": spec}

    def _number_rows(self) -> None:
        for row, node in enumerate(self.table.nodes):
            node.row = row

    def plans(self) -> list[ClaimPlan]:
        """The plans of the claims."""
        return [self.pools.inventory.plans.of(each) for each in self.claims]

    def allocator(self, node: Node) -> Allocator:
        """A search on one node."""
        return Allocator(self.pools.inventory, self.pools.ledger, node.name, node.labels)

    def search(self, node: Node) -> NodeError | AllocationError | int:
        """Why the node has no devices for the claims, or the preference for those that it has."""
        try:
            found = self.allocator(node).allocate(self.plans())
        except (NodeError, AllocationError) as error:
            return error
        return sum(alternative_score(claim.spec, each) for claim, each in zip(self.claims, found, strict=True))

    def fresh(self) -> Diagnosis:
        """The result of one search per node."""
        result = Diagnosis(NODES)
        found = [self.search(node) for node in self.table.nodes]
        for each in found:
            if isinstance(each, AllocationError):
                result.reject_all(Code.UNRESOLVABLE, str(each))
                return result
        for text in dict.fromkeys(str(each) for each in found if isinstance(each, NodeError)):
            result.reject(np.array([str(each) == text for each in found]), Code.UNSCHEDULABLE, text)
        return result

    def step(self) -> None:
        r = self._random
        move = r.choice(["use", "use", "use", "free", "slice", "nodes"])
        if move == "use":
            places = [(each, device) for each in self.written for device in each["spec"].get("devices", ())]
            each, device = r.choice(places)
            held = {"driver": "d", "pool": each["spec"]["pool"]["name"], "device": device["name"]}
            self._held.append(claim_facts(decode(holding(0, held), ResourceClaimObject)).allocation)
            self.pools.ledger.use(self._held[-1], +1)
        elif move == "free" and self._held:
            self.pools.ledger.use(self._held.pop(r.randrange(len(self._held))), -1)
        elif move == "slice":
            each = r.choice(self.written)
            devices = [{**device, "taints": None} for device in each["spec"].get("devices", ())]
            changed = {**each, "spec": {**each["spec"], "devices": devices}}
            self.pools.inventory.apply_slice(decode(changed, ResourceSliceObject))
        elif move == "nodes":
            r.shuffle(self.table.nodes)
            self._number_rows()
            self.table.generation += 1
