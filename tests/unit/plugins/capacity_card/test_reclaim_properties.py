"""Invariants of every tide: protected pods stay, gangs are whole or gone, and evictions come to an end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.intents import Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness
from tests.evictions import evicted

H200 = "NVIDIA-H200"
SERVICE = "volcano.sh/service.type"
CONF = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang, enableReclaimable: false}, {name: conformance, enableReclaimable: false}]
- plugins: [{name: predicates}, {name: capacity-card, arguments: ARGUMENTS}, {name: nodeorder}]
"""

_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.BINDING)


class Running(msgspec.Struct, frozen=True):
    """A job that runs when the tide comes in: its pods one by one on nodes, as far as they fit."""

    service: str
    pods: int
    cards: int
    spare: int
    priority: int
    queue: str
    preemptable: bool | None


class Waiting(msgspec.Struct, frozen=True):
    service: str
    pods: int
    cards: int
    minimum: int
    priority: int


_PRIORITIES = st.sampled_from([20000, 40000, 60000, 80000])
_RUNNING = st.builds(
    Running,
    service=st.sampled_from(["training", "training", "training", "inference", ""]),
    pods=st.integers(1, 3),
    cards=st.integers(1, 4),
    spare=st.integers(0, 2),
    priority=_PRIORITIES,
    queue=st.sampled_from(["qt", "qt", "kept", "qj"]),
    preemptable=st.sampled_from([None, None, True, False]),
)
_WAITING = st.builds(
    Waiting,
    service=st.sampled_from(["inference", "inference", "training", ""]),
    pods=st.integers(1, 3),
    cards=st.integers(1, 8),
    minimum=st.integers(1, 3),
    priority=_PRIORITIES,
)
_ARGUMENTS = st.fixed_dictionaries(
    {
        "strictServiceType": st.booleans(),
        "reclaimRequiresHigherPriority": st.booleans(),
        "reclaimElastic": st.booleans(),
    }
)


def tide(arguments: dict[str, Any], quota: int) -> Harness:
    """Queue qi, which takes within its quota, qt and kept, which train, and qj, which serves."""
    h = Harness(CONF.replace("ARGUMENTS", json.dumps({"cardUnlimitedCpuMemory": True, **arguments})))
    for value in (20000, 40000, 60000, 80000):
        h.priority_class(f"pc-{value}", value)
    h.queue("qi", cards={H200: quota, "H100": quota}, priority=80000, reclaimable=False)
    h.queue("qj", cards={H200: 16}, priority=80000, reclaimable=True)
    h.queue("qt", cards={H200: 16, "H100": 16}, priority=20000, reclaimable=True)
    h.queue("kept", cards={H200: 16}, priority=20000, reclaimable=False)
    return h


def build(arguments: dict[str, Any], quota: int, running: list[Running], waiting: list[Waiting]) -> Harness:
    h = tide(arguments, quota)
    room = {"n1": 8, "n2": 8}
    for name in room:
        h.gpu_node(name)
    for number, job in enumerate(running):
        nodes = []
        for _ in range(job.pods):
            node = next((name for name, free in room.items() if free >= job.cards), None)
            if node is not None:
                room[node] -= job.cards
                nodes.append(node)
        if not nodes:
            continue
        notes = {SERVICE: job.service} if job.service else {}
        h.group(
            f"g{number}",
            queue=job.queue,
            phase="Running",
            min_member=max(1, len(nodes) - job.spare),
            annotations=notes,
            priority_class=f"pc-{job.priority}",
        )
        preemptable_annotation = (
            {} if job.preemptable is None else {"volcano.sh/preemptable": str(job.preemptable).lower()}
        )
        for index, node in enumerate(nodes):
            h.pod(
                f"g{number}-w-{index}", group=f"g{number}", card=H200, cards=job.cards, priority=job.priority,
                annotations=preemptable_annotation, node=node,
            )  # fmt: skip
    for number, wait in enumerate(waiting):
        h.group(
            f"r{number}",
            queue="qi",
            min_member=min(wait.minimum, wait.pods),
            annotations={SERVICE: wait.service} if wait.service else {},
            priority_class=f"pc-{wait.priority}",
        )
        for index in range(wait.pods):
            name = f"r{number}-w-{index}"
            h.pod(name, group=f"r{number}", card=H200, cards=wait.cards, priority=wait.priority)
    return h


@given(_ARGUMENTS, st.integers(0, 16), st.lists(_RUNNING, max_size=6), st.lists(_WAITING, min_size=1, max_size=3))
def test_every_eviction_of_the_tide_is_allowed(
    arguments: dict[str, Any], quota: int, running: list[Running], waiting: list[Waiting]
) -> None:
    h = build(arguments, quota, running, waiting)
    taken_for: dict[str, list[str]] = {}
    quiet = 0
    for _ in range(12):
        result = h.step()
        evictions = [intent for intent in result.intents if isinstance(intent, Evict)]
        for eviction in evictions:
            victim = h.task(eviction.name)
            reclaimer = h.task(eviction.by.partition("/")[2])
            assert victim.job is not None
            assert reclaimer.job is not None
            assert victim.job.annotations.get(SERVICE) == "training"
            assert victim.preemptable is not False
            assert h.state.queues[victim.job.queue].reclaimable
            taker = reclaimer.job.annotations.get(SERVICE)
            assert taker == "inference" or (taker is None and not arguments["strictServiceType"])
            if arguments["reclaimRequiresHigherPriority"]:
                assert reclaimer.priority > victim.priority
            taken_for.setdefault(reclaimer.job.name, []).append(victim.name)
        for key in {h.task(eviction.name).job.key for eviction in evictions}:  # type: ignore[union-attr]
            job = h.state.jobs[key]
            left = sum(1 for task in job.tasks.values() if task.status in _LIVE)
            assert left == 0 or left >= job.min_available, "whole or gone"
        account = h.plugin("capacity-card").accounts.ledger.queues["qi"]
        assert account.own.allocated.cards.get(H200, 0) <= account.quota.limit(H200)
        for eviction in evictions:
            h.delete_pod(eviction.name)
        quiet = 0 if result.report.decided else quiet + 1
        if quiet == 3:
            break
    else:
        raise AssertionError("it does not come to rest")
    for name, taken in taken_for.items():
        bound = [pod for pod in h.binds if pod.startswith(f"{name}-w-")]
        assert bound, f"{taken} left for {name}, which got nothing"


@pytest.mark.parametrize(("wanted", "victim"), [(f"{H200}|H100", "g-0"), (f"H100|{H200}", "g-1")])
def test_all_else_being_equal_the_earlier_alternative_decides(wanted: str, victim: str) -> None:
    """Before the name of the node."""
    h = tide({}, 16)
    h.group("g", queue="qt", phase="Running", annotations={SERVICE: "training"})
    h.group("r", queue="qi", annotations={SERVICE: "inference"})
    for number, card in enumerate((H200, "H100")):
        h.gpu_node(f"n{number}", card=card)
        h._births[f"default-g-{number}-uid"] = 1
        h.pod(f"g-{number}", group="g", card=card, cards=8, node=f"n{number}")
    h.pod("r", group="r", card=wanted, cards=4)
    assert evicted(h.step()) == [victim]
