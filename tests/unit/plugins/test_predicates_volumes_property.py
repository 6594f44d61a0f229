"""Volumes under random placements and undo: assumptions equal the placements, and no volume is assigned twice.

The checks here are written from the objects as users write them; they share nothing with the plugin.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.intents import Bind
from capcard_sched.testing import Harness
from capcard_sched.testing.storage import labelled, on_nodes

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
"""
NODES = [f"n{index}" for index in range(4)]
LIMIT = 2


class World:
    """A small cluster with every sort of claim, and what is known of it in plain words."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.h = h = Harness(CONF)
        h.queue("q")
        self.zone: dict[str, str] = {}
        self.limit: dict[str, int] = {}
        for name in NODES:
            self.zone[name] = pick.choice("ab")
            h.node(name, labels={"zone": self.zone[name]})
            if pick.random() < 0.8:
                self.limit[name] = pick.randint(0, LIMIT + 1)
                h.csi_node(name, csi_test=self.limit[name])
        h.storage_class("local", provisioner="kubernetes.io/no-provisioner")
        h.storage_class("disk", topologies=[("zone", "a")] if pick.random() < 0.3 else [])
        #: Volume name to nodes, size, driver.
        self.volumes: dict[str, tuple[set[str], int, str]] = {}
        for index in range(pick.randint(0, 6)):
            where, reach = pick.choice([(None, set(NODES)), *((on_nodes(node), {node}) for node in NODES),
                                        *((labelled("zone", zone), {name for name in NODES if self.zone[name] == zone})
                                          for zone in "ab")])  # fmt: skip
            size, driver = pick.randint(1, 3), pick.choice(["", "csi.test"])
            self.volumes[f"pv{index}"] = (reach, size, driver)
            h.volume(f"pv{index}", storage_class=pick.choice(["local", "disk"]), size=f"{size}Gi",
                     affinity=where, driver=driver, modes=["ReadWriteOnce", "ReadWriteMany"])  # fmt: skip
        #: Claim name to size.
        self.claims: dict[str, int] = {}
        self.shared: set[str] = set()
        for index in range(5):
            name = f"c{index}"
            self.claims[name] = pick.randint(1, 3)
            mode = pick.choice(["ReadWriteOnce", "ReadWriteMany"])
            if mode == "ReadWriteMany":
                self.shared.add(name)
            h.claim(name, storage_class=pick.choice(["local", "disk"]), size=f"{self.claims[name]}Gi", modes=[mode])
        #: Pod name to claims.
        self.pods: dict[str, list[str]] = {}
        for index in range(5):
            self.pods[f"p{index}"] = pick.sample(sorted(self.claims), pick.randint(0, 2))
            h.group(f"g{index}")
            h.pod(f"p{index}", group=f"g{index}", **claims_of(self.pods[f"p{index}"]))


def claims_of(names: list[str]) -> dict[str, Any]:
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}


def check_bindings(world: World, binds: list[tuple[str, str, dict[str, str]]]) -> None:
    """(pod, node, claim to volume) of all placements: assigned once, in reach, large enough, within limits."""
    volume_of: dict[str, str] = {}
    owner: dict[str, str] = {}
    attached: dict[str, set[str]] = {}
    for _, node, given_ in binds:
        for claim, volume in given_.items():
            assert volume_of.setdefault(claim, volume) == volume, f"{claim} has two volumes"
            if volume:
                reach, size, driver = world.volumes[volume]
                assert owner.setdefault(volume, claim) == claim, f"{volume} is given twice"
                assert node in reach
                assert size >= world.claims[claim]
            else:
                driver = "csi.test"
            if driver:
                attached.setdefault(node, set()).add(volume or f"to be made for {claim}")
    for node, volumes in attached.items():
        assert len(volumes) <= world.limit.get(node, len(volumes))
    made_on: dict[str, set[str]] = {}
    for _, node, given_ in binds:
        for claim, volume in given_.items():
            if not volume and claim not in world.shared:
                made_on.setdefault(claim, set()).add(node)
    assert all(len(nodes) == 1 for nodes in made_on.values())


def standing(world: World, session: Session, plugin: Any) -> list[tuple[str, str, dict[str, str]]]:
    """The volumes of the pods on nodes, by the plugin's `bind_volumes`."""
    found = []
    for pod, claims in world.pods.items():
        task = world.h.task(pod)
        if task.node is not None and claims:
            bindings = {name: decision.volume for name, decision in _decisions(plugin, claims).items()}
            assert set(bindings) == set(claims)
            found.append((pod, task.node.name, bindings))
    return found


def _decisions(plugin: Any, claims: list[str]) -> dict[str, Any]:
    decided = plugin._volumes.decisions()
    return {name: decided[f"default/{name}"] for name in claims if f"default/{name}" in decided}


def recounted(world: World, binds: list[tuple[str, str, dict[str, str]]]) -> dict[str, dict[str, int]]:
    volumes: dict[str, set[str]] = {}
    for _, node, given_ in binds:
        for claim, volume in given_.items():
            if not volume or world.volumes[volume][2]:
                volumes.setdefault(node, set()).add(volume or f"to be made for {claim}")
    return {node: {"csi.test": len(names)} for node, names in volumes.items()}


@settings(max_examples=2 * settings().max_examples)
@given(seed=st.integers(0, 2**32), script=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=14))
def test_assumed_volumes_equal_the_placements_after_any_undo(seed: int, script: list[tuple[int, bool]]) -> None:
    world = World(seed)
    h = world.h
    session = h.session()
    plugin = h.plugin("predicates")
    statements: list[tuple[str, Statement]] = []
    for number, undo in script:
        pod = f"p{number}"
        placed = {name for name, _ in statements}
        if undo and statements:
            statements.pop(number % len(statements))[1].discard()
        elif pod not in placed:
            task = h.task(pod)
            pod_signature = session.engine.signature(session.queues["q"], task)
            row = session.engine.choose(pod_signature, session.engine.candidates(pod_signature, future=False))
            if row >= 0:
                statement = Statement(session)
                statement.allocate(h.job(f"g{number}"), [task], [session.nodes.nodes[row]])
                statements.append((pod, statement))
            else:  # each node alone gives the same result
                for node in session.nodes.nodes:
                    assert not session.engine.fits(pod_signature, node.row, future=False)
        binds = standing(world, session, plugin)
        check_bindings(world, binds)
        held = {claim for _, _, given_ in binds for claim in given_}
        assert {key.removeprefix("default/") for key in plugin._volumes.decisions()} == held
        assert plugin._volumes.attached.snapshot() == (recounted(world, binds) if world.limit else {})


@settings(max_examples=2 * settings().max_examples)
@given(seed=st.integers(0, 2**32), fails=st.sets(st.integers(0, 4)))
def test_bindings_of_many_sessions_never_contradict_each_other(seed: int, fails: set[int]) -> None:
    world = World(seed)
    h = world.h
    bound: dict[str, Bind] = {}
    refused = set(fails)
    for step in range(5):
        result = h.core.step(h._deltas, h.now + step)
        h._deltas = []
        for intent in result.intents:
            if isinstance(intent, Bind):
                bound[intent.name] = intent
        binds = [(bind.name, bind.node, {each.claim: each.volume for each in bind.volumes}) for bind in bound.values()]
        check_bindings(world, binds)
        assert set(h.state.volumes.assumed) == {f"default/{claim}" for _, _, given_ in binds for claim in given_}
        for name in sorted(bound):
            number = int(name[1:])
            if number in refused and name in bound:  # once each
                refused.discard(number)
                bind = bound.pop(name)
                h.apply(BindFailed("default", bind.name, bind.uid, "refused", retry_after=60.0))
                break
    counts = Counter(bind.name for bind in bound.values())
    assert not counts or max(counts.values()) == 1
