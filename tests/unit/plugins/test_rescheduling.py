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
    ReschedulingArguments,
    budget,
    node_loads,
    sides,
)
from capcard_sched.testing import EPOCH, Harness

MINUTE = 60.0
Load: TypeAlias = tuple[float | None, float | None]
USUAL = "thresholds: {cpu: 30, memory: 30}, targetThresholds: {cpu: 60, memory: 60}"
PARAMS = Params(Bounds(30, 30), Bounds(60, 60))


def conf(params: str = USUAL, more: str = "", *, plugins: str = "", actions: str = "shuffle") -> str:
    strategies = f"strategies: [{{name: lowNodeUtilization, params: {{{params}}}}}]"
    return (
        f'actions: "{actions}"\n'
        f"tiers: [{{plugins: [{{name: rescheduling, arguments: {{{strategies}{more}}}}}{plugins}]}}]\n"
    )


def measured(h: Harness, at: float | None = None, **loads: Load) -> None:
    h.apply(NodeUsageChanged({name: NodeUsage(cpu, memory, at) for name, (cpu, memory) in loads.items()}))


def cluster(text: str = "", /, **loads: Load) -> Harness:
    """Nodes of 10 cores and 100 GiB with these loads."""
    h = Harness(text or conf())
    h.queue("q")
    h.group("g")
    for name in loads:
        h.node(name, cpu="10", memory="100Gi")
    measured(h, None, **loads)
    return h


def pods(h: Harness, node: str, count: int, **more: Any) -> None:
    given = {"requests": {"cpu": "1", "memory": "1Gi"}, **more}
    for index in range(count):
        h.pod(f"{node}-{index}", node=node, **given)


def evicted(result: StepResult) -> list[str]:
    return [intent.name for intent in result.intents if isinstance(intent, Evict)]


def sides_of(h: Harness, params: Params = PARAMS) -> tuple[list[str], list[str]]:
    found = sides(_loads(h), params)
    return [each.node.name for each in found.low], [each.node.name for each in found.high]


def _loads(h: Harness) -> Any:
    session = h.session()
    return node_loads(session.nodes.nodes, session.usage, session.now)


# --- the vectors ------------------------------------------------------------------------------------------------------


def test_21_1_low_and_high_nodes() -> None:
    assert sides_of(cluster(n1=(20, 20), n2=(80, 50), n3=(40, 40))) == (["n1"], ["n2"])


def test_21_2_the_budget_is_the_distance_of_low_nodes_to_their_target() -> None:
    low = sides(_loads(cluster(n1=(20, 20), n2=(80, 50))), PARAMS).low
    assert budget(low, PARAMS.targets) == (4_000, 40 * 2**30)


# --- sides ------------------------------------------------------------------------------------------------------------


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


# --- victims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"annotations": {"volcano.sh/preemptable": "false"}}, id="not preemptable"),
        pytest.param({"namespace": "kube-system"}, id="of the system"),
        pytest.param({"priorityClassName": "system-node-critical"}, id="critical"),
        pytest.param({"group": None, "scheduler": "other"}, id="of another scheduler"),
    ],
)
def test_pods_that_may_not_go_are_passed_over_and_cost_no_budget(more: dict[str, Any]) -> None:
    h = cluster(n1=(20, 20), n2=(80, 50))
    h.group("g", namespace="kube-system")
    for index in range(4):
        h.pod(f"stays{index}", node="n2", requests={"cpu": "1"}, **more)
    pods(h, "n2", 4)
    gone = evicted(h.step())
    assert len(gone) == 3
    assert all(name.startswith("n2-") for name in gone)


# --- when -------------------------------------------------------------------------------------------------------------


def test_nodes_are_looked_at_once_per_interval() -> None:
    h = cluster(conf(more=", interval: 2m"), n1=(20, 20), n2=(80, 50))
    h.step()
    measured(h, n1=(20, 20), n2=(80, 50))
    pods(h, "n2", 3)
    result = h.step(EPOCH + 60.0)
    assert (evicted(result), result.next_wakeup) == ([], EPOCH + 121.0)
    assert len(evicted(h.step(EPOCH + 121.0))) == 3


def test_a_node_gives_once_per_measurement() -> None:
    h = cluster(n1=(20, 20), n2=(80, 50))
    pods(h, "n2", 8)
    assert len(evicted(h.step(EPOCH + 10.0))) == 3
    for minutes in (6, 12, 18):
        assert evicted(h.step(EPOCH + minutes * MINUTE)) == [], "nothing is known of what came of it"
    measured(h, n2=(70, 40))
    assert len(evicted(h.step(EPOCH + 24 * MINUTE))) == 2


def test_better_the_default_period_is_the_one_that_is_measured() -> None:
    """Volcano's default of 5m reads averages that do not exist, so that it never evicts."""
    assert ReschedulingArguments().period == "10m"
    h = cluster(conf(more=", metricsPeriod: 5m"), n1=(20, 20), n2=(80, 50))
    pods(h, "n2", 4)
    assert len(evicted(h.step())) == 3


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


# --- arguments --------------------------------------------------------------------------------------------------------


def test_21_4_there_are_no_victims_when_all_nodes_are_below_the_thresholds() -> None:
    h = cluster(n1=(20, 20), n2=(29, 29))
    pods(h, "n2", 3)
    assert evicted(h.step()) == []
    assert sides_of(h) == (["n1", "n2"], [])


def test_better_pods_are_identified_by_uid() -> None:
    h = cluster(n1=(20, 20), n2=(80, 50), n3=(45, 45))
    h.group("g", namespace="other")
    h.pod("same", node="n3", namespace="other", requests={"cpu": "1"})
    h.pod("same", node="n2", requests={"cpu": "1"})
    (victim,) = [intent for intent in h.step().intents if isinstance(intent, Evict)]
    assert (victim.namespace, victim.name) == ("default", "same")
