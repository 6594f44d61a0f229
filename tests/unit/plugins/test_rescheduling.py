"""The rescheduling plugin."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.core import StepResult
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.intents import Evict
from capcard_sched.model.usage import NodeUsage
from capcard_sched.plugins.rescheduling import (
    Bounds,
    Params,
    budget,
    node_loads,
    sides,
)
from capcard_sched.testing import Harness

Load: TypeAlias = tuple[float | None, float | None]
CONF = """
actions: shuffle
tiers:
- plugins:
  - name: rescheduling
    arguments:
      strategies:
      - {name: lowNodeUtilization, params: {thresholds: {cpu: 30, memory: 30}, targetThresholds: {cpu: 60, memory: 60}}}
"""
PARAMS = Params(Bounds(30, 30), Bounds(60, 60))


def cluster(**loads: Load) -> Harness:
    """Nodes of 10 cores and 100 GiB with these loads."""
    h = Harness(CONF)
    h.queue("q")
    h.group("g")
    for name in loads:
        h.node(name, cpu="10", memory="100Gi")
    h.apply(NodeUsageChanged({name: NodeUsage(cpu, memory) for name, (cpu, memory) in loads.items()}))
    return h


def evicted(result: StepResult) -> list[str]:
    return [intent.name for intent in result.intents if isinstance(intent, Evict)]


def sides_of(h: Harness) -> tuple[list[str], list[str]]:
    found = sides(_loads(h), PARAMS)
    return [each.node.name for each in found.low], [each.node.name for each in found.high]


def _loads(h: Harness) -> Any:
    session = h.session()
    return node_loads(session.nodes.nodes, session.snapshot.usage, session.now)


def test_21_1_low_and_high_nodes() -> None:
    assert sides_of(cluster(n1=(20, 20), n2=(80, 50), n3=(40, 40))) == (["n1"], ["n2"])


def test_21_2_the_budget_is_the_distance_of_low_nodes_to_their_target() -> None:
    low = sides(_loads(cluster(n1=(20, 20), n2=(80, 50))), PARAMS).low
    assert budget(low, PARAMS.targets) == (4_000, 40 * 2**30)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param(
            {"a": (30, 0), "b": (90, 90)}, ([], []), id="at the threshold is not below: no underutilized node"
        ),
        pytest.param({"a": (0, 0), "b": (60, 60)}, (["a"], []), id="at the target is not above: no overutilized node"),
        pytest.param({"a": (0, 0), "b": (10, 61)}, (["a"], ["b"]), id="one resource above is enough"),
        pytest.param({"a": (0, 0), "b": (61, 70), "c": (90, 50)}, (["a"], ["c", "b"]), id="the most loaded first"),
        pytest.param({"a": (0, 0), "c": (70, 70), "b": (70, 70)}, (["a"], ["b", "c"]), id="equal ones by name"),
        pytest.param({"a": (0, 0), "b": (90, None)}, (["a"], []), id="half a measurement is none"),
    ],
)
def test_underutilized_and_overutilized_nodes(loads: dict[str, Load], expected: tuple[list[str], list[str]]) -> None:
    assert sides_of(cluster(**loads)) == expected


def test_a_cordoned_node_takes_no_pods_but_may_lose_some() -> None:
    h = cluster(a=(10, 10), b=(0, 0), c=(90, 90))
    h.node("b", cpu="10", memory="100Gi", unschedulable=True)
    h.node("c", cpu="10", memory="100Gi", unschedulable=True)
    assert sides_of(h) == (["a"], ["c"])


@given(
    loads=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=6),
    cores=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_never_more_than_the_low_nodes_can_take_and_one_pod(loads: list[tuple[int, int]], cores: list[int]) -> None:
    h = cluster(**{f"n{index}": load for index, load in enumerate(loads)})
    largest = max(cores) * 100
    for index in range(len(loads)):
        for number, tenths in enumerate(cores):
            h.pod(f"n{index}-{number}", node=f"n{index}", requests={"cpu": f"{tenths}00m"})
    found = sides(_loads(h), PARAMS)
    room = budget(found.low, PARAMS.targets)
    gone = evicted(h.step())
    taken = sum(h.task(name).cls.requests["cpu"] for name in gone)
    assert taken <= max(0, room[0]) + (largest if gone else 0)
    givers = {each.node.name for each in found.high}
    assert {name.partition("-")[0] for name in gone} <= givers


def test_better_pods_are_identified_by_uid() -> None:
    h = cluster(n1=(20, 20), n2=(80, 50), n3=(45, 45))
    h.group("g", namespace="other")
    h.pod("same", node="n3", namespace="other", requests={"cpu": "1"})
    h.pod("same", node="n2", requests={"cpu": "1"})
    (victim,) = [intent for intent in h.step().intents if isinstance(intent, Evict)]
    assert (victim.namespace, victim.name) == ("default", "same")
