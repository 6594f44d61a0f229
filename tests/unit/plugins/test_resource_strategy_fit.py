"""The resource-strategy-fit plugin."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import Diagnosis, NodeView, PodSignature
from capcard_sched.model.annotations import RESOURCE_STRATEGY_SCORING_TYPE, RESOURCE_STRATEGY_WEIGHT
from capcard_sched.model.refusal import Code
from capcard_sched.model.strategies import LEAST_ALLOCATED, MOST_ALLOCATED
from capcard_sched.plugins.resource_strategy_fit import (
    Choice,
    ResourceStrategyFit,
    ResourceStrategyFitArguments,
)
from capcard_sched.testing import Harness

GPU, FPGA, NPU = "nvidia.com/gpu", "example.com/fpga", "huawei.com/npu"
PACK_CARDS = {GPU: {"type": MOST_ALLOCATED, "weight": 2}, "cpu": {"type": LEAST_ALLOCATED, "weight": 1}}


def conf(**arguments: Any) -> str:
    plugin = {"name": "resource-strategy-fit", "arguments": arguments}
    return json.dumps({"actions": "allocate", "tiers": [{"plugins": [{"name": "predicates"}, plugin]}]})


def notes(strategy: str | None, weights: object = None) -> dict[str, str]:
    found = {} if strategy is None else {RESOURCE_STRATEGY_SCORING_TYPE: strategy}
    if weights is not None:
        found[RESOURCE_STRATEGY_WEIGHT] = weights if isinstance(weights, str) else json.dumps(weights)
    return found


def scores(h: Harness, pod: str = "p", hook: str = "score_utilization") -> list[float] | None:
    session = h.session()
    found = getattr(h.plugin("resource-strategy-fit"), hook)(PodSignature(h.task(pod).cls, {}, 0), session.all_rows())
    return None if found is None else [round(score, 2) for score in found.tolist()]


# --- strategies -------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    id: str
    arguments: dict[str, Any]
    request: dict[str, Any]
    node: dict[str, Any]
    used: dict[str, Any]
    score: float | None
    notes: dict[str, str] = {}


BIG = {"cpu": "8", "resources": {GPU: 8}}
WANTS, HOLDS = {"cpu": "2", GPU: 2}, {"cpu": "2", GPU: 4}
CASES = [
    Case("23.1 cards packed, cpu spread", {"resources": PACK_CARDS}, WANTS, BIG, HOLDS, 666.67),
    Case("23.2 cpu and memory are spread by default", {}, {"cpu": "1", "memory": "4Gi"},
         {"cpu": "4", "memory": "16Gi"}, {}, 750),
    Case("the weight is a factor", {"resources": PACK_CARDS, "resourceStrategyFitWeight": 1}, WANTS, BIG, HOLDS, 66.67),
    Case("a weight of 0 turns the part off", {"resourceStrategyFitWeight": 0}, WANTS, BIG, HOLDS, None),
    Case("a resource beyond the node makes the whole 0", {"resources": PACK_CARDS}, {"cpu": "7", GPU: 2}, BIG, HOLDS,
         0),
    Case("one the node has none of adds nothing, its weight counts", {"resources": PACK_CARDS}, WANTS, {"cpu": "8"},
         {"cpu": "2"}, 166.67),
    Case("no requested resource counts", {"resources": {GPU: {}}}, {"cpu": "1"}, BIG, {}, None),
    Case("an empty entry is LeastAllocated of weight 1", {"resources": {"cpu": None}}, {"cpu": "2"}, BIG, {}, 750),
    Case("a pod's own strategy takes the place of the conf's", {"resources": PACK_CARDS}, WANTS, BIG, HOLDS, 500,
         notes(MOST_ALLOCATED, {"cpu": 1})),
    Case("of its own weights only requested resources count", {}, WANTS, BIG, HOLDS, 625,
         notes(MOST_ALLOCATED, {"cpu": 1, GPU: 1, "memory": 7})),
    Case("its own weights have no name prefixes", {}, WANTS, BIG, HOLDS, None,
         notes(MOST_ALLOCATED, {"nvidia.com/*": 1})),
    Case("without own weights nothing counts", {}, WANTS, BIG, HOLDS, None, notes(MOST_ALLOCATED)),
    Case("own weights that are no JSON count for nothing", {}, WANTS, BIG, HOLDS, None, notes(MOST_ALLOCATED, "cpu=1")),
    Case("an own strategy that does not exist counts for nothing", {}, WANTS, BIG, HOLDS, None,
         notes("Fullest", {"cpu": 1})),
    Case("own weights without a strategy are not read", {}, {"cpu": "2"}, BIG, {}, 750, notes(None, "{")),
    Case("own weights of 0 count for nothing", {}, WANTS, BIG, HOLDS, None, notes(LEAST_ALLOCATED, {"cpu": 0})),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_score(case: Case) -> None:
    h = Harness(conf(**case.arguments))
    h.node("n", **case.node)
    if case.used:
        h.pod("used", node="n", requests=case.used)
    h.pod("p", requests=case.request, annotations=case.notes)
    assert scores(h) == (None if case.score is None else [case.score])


@pytest.mark.parametrize(
    ("keys", "points"),
    [
        pytest.param({"nvidia.com/*": 1, "nvidia.com/gpu*": 3}, 750, id="23.5 the longest beginning of the name wins"),
        pytest.param({"nvidia.com/gpu*": 3, "nvidia.com/*": 1}, 750, id="23.5 in any order"),
        pytest.param({"nvidia.com/*": 1, "nvidia.com/gpu-a": 2}, 667, id="the name itself wins over its beginnings"),
        pytest.param({"nvidia.com/gpu-b*": 3}, None, id="another beginning does not count"),
    ],
)
def test_beginnings_of_names(keys: dict[str, int], points: float | None) -> None:
    """Cpu of weight 1 scores 0 here: the score shows the weight of the card."""
    resources = {name: {"type": MOST_ALLOCATED, "weight": weight} for name, weight in keys.items()}
    h = Harness(conf(resources=resources | {"cpu": {"type": LEAST_ALLOCATED}}, resourceStrategyFitWeight=10))
    h.node("n", cpu="1", resources={"nvidia.com/gpu-a": 1})
    h.pod("p", requests={"cpu": "1", "nvidia.com/gpu-a": 1})
    found = scores(h)
    assert found is not None
    assert round(found[0]) == (points or 0)


# --- scarce resources -------------------------------------------------------------------------------------------------

SCARCE = {"enable": True, "resources": f"{GPU}, {FPGA},{NPU}", "weight": 10}


def offers(*names: str) -> dict[str, Any]:
    return {"resources": dict.fromkeys(names, 8)}


@pytest.mark.parametrize(
    ("arguments", "node", "request_", "points"),
    [
        pytest.param(SCARCE, offers(), {"cpu": "1"}, 1000, id="23.3 none of three"),
        pytest.param(SCARCE, offers(GPU), {"cpu": "1"}, 666.67, id="23.3 one of three"),
        pytest.param(SCARCE, offers(GPU, FPGA, NPU), {"cpu": "1"}, 0, id="23.3 all three"),
        pytest.param(SCARCE, offers(GPU, FPGA, NPU), {"cpu": "1", GPU: 1}, 0, id="also for pods that request one"),
        pytest.param(SCARCE, offers(FPGA), {GPU: 1}, 0, id="not where a requested one is missing"),
        pytest.param(SCARCE | {"resourceWeight": {GPU: 2}}, offers(GPU), {"cpu": "1"}, 500, id="weights"),
        pytest.param(SCARCE | {"resourceWeight": {GPU: -2}}, offers(GPU), {"cpu": "1"}, 666.67, id="negative weight"),
        pytest.param(SCARCE | {"resourceWeight": {GPU: 0}}, offers(GPU), {"cpu": "1"}, 1000, id="weight 0"),
        pytest.param(SCARCE | {"weight": 0}, offers(), {"cpu": "1"}, None, id="the weight is 0 unless given"),
        pytest.param(SCARCE | {"weight": -1}, offers(), {"cpu": "1"}, None, id="negative is off"),
        pytest.param(SCARCE | {"enable": False}, offers(), {"cpu": "1"}, None, id="not enabled"),
        pytest.param(SCARCE | {"resources": ""}, offers(), {"cpu": "1"}, None, id="nothing listed"),
    ],
)
def test_scarce_resources(
    arguments: dict[str, Any], node: dict[str, Any], request_: dict[str, Any], points: float | None
) -> None:
    h = Harness(conf(sra=arguments))
    h.node("n", **node)
    h.pod("p", requests=request_)
    assert scores(h, hook="score_scarcity") == (None if points is None else [points])


# --- the remainder for cards ------------------------------------------------------------------------------------------


def leaves(**factors: float) -> dict[str, Any]:
    proportions = {f"{GPU}.{part}": factor for part, factor in factors.items()}
    return {"enable": True, "resources": GPU, "resourceProportion": proportions}


def refusals(h: Harness, pod: str = "p") -> dict[str, int]:
    session = h.session()
    rows = session.all_rows()
    verdict = Diagnosis(len(rows))
    h.plugin("resource-strategy-fit").filter_proportional(PodSignature(h.task(pod).cls, {}, 0), rows, verdict)
    assert all(code in (0, Code.UNRESOLVABLE) for code in verdict.codes)
    return verdict.reasons


FAILED = {f"proportional of resource {GPU} check failed": 1}


@pytest.mark.parametrize(
    ("arguments", "request_", "memory", "expected"),
    [
        pytest.param(leaves(cpu=4, memory=1), {"cpu": "2"}, "1Ti", FAILED, id="23.4 2000m of 33000m is too much"),
        pytest.param(leaves(cpu=4, memory=1), {"cpu": "1"}, "1Ti", {}, id="23.4 1000m passes"),
        pytest.param(leaves(cpu=4, memory=1), {"cpu": "33", GPU: 1}, "1Ti", {}, id="pods with cards pass"),
        pytest.param(leaves(cpu=4, memory=2), {"cpu": "1", "memory": "1"}, "16G", FAILED, id="memory: GB per card"),
        pytest.param(leaves(cpu=4, memory=2), {"cpu": "1"}, "16G", {}, id="memory to the byte"),
        pytest.param(leaves(memory=1), {"cpu": "26"}, "1Ti", FAILED, id="one core per card by default"),
        pytest.param(leaves(memory=1), {"cpu": "25"}, "1Ti", {}, id="and no more than one"),
        pytest.param(leaves(cpu=-4, memory=0), {"cpu": "25"}, "1Ti", {}, id="below 0 counts as 1"),
        pytest.param(leaves(cpu=0.1, memory=0), {"cpu": "32200m"}, "1Ti", {}, id="0.1 is a tenth, exactly"),
        pytest.param(leaves(cpu=0.1, memory=0), {"cpu": "32201m"}, "1Ti", FAILED, id="and not a milli-core less"),
        pytest.param(leaves(cpu=4) | {"enable": False}, {"cpu": "33"}, "1Ti", {}, id="not enabled"),
    ],
)
def test_cards_keep_their_share(
    arguments: dict[str, Any], request_: dict[str, Any], memory: str, expected: dict[str, int]
) -> None:
    h = Harness(conf(proportional=arguments))
    h.node("n", cpu="33", memory=memory, resources={GPU: 8})
    h.pod("p", requests=request_)
    assert refusals(h) == expected


def test_cards_in_use_want_nothing_left() -> None:
    h = Harness(conf(proportional=leaves(cpu=4, memory=0)))
    h.node("n", cpu="33", resources={GPU: 8})
    h.pod("cards", node="n", requests={"cpu": "1", GPU: 8})
    h.pod("p", requests={"cpu": "32"})
    assert refusals(h) == {}


# --- annotations that cannot be read ----------------------------------------------------------------------------------

WEIGHTS = 'a JSON object of resource names and whole numbers from 0 on, such as {"cpu": 1, "nvidia.com/gpu": 2}'
REPORTED_KEYS = [
    (notes(MOST_ALLOCATED, {"cpu": 1.5}), RESOURCE_STRATEGY_WEIGHT, "got float", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": -1}), RESOURCE_STRATEGY_WEIGHT, ">= 0", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": True}), RESOURCE_STRATEGY_WEIGHT, "got bool", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": 10**30}), RESOURCE_STRATEGY_WEIGHT, "<= 2147483647", WEIGHTS),
    (notes(MOST_ALLOCATED, "[1]"), RESOURCE_STRATEGY_WEIGHT, "got array", WEIGHTS),
    (notes(MOST_ALLOCATED, "{"), RESOURCE_STRATEGY_WEIGHT, "truncated", WEIGHTS),
    (notes(MOST_ALLOCATED, "{}" * 2), RESOURCE_STRATEGY_WEIGHT, "malformed", WEIGHTS),
    (notes(MOST_ALLOCATED), RESOURCE_STRATEGY_WEIGHT, "it is required", WEIGHTS),
    (notes(MOST_ALLOCATED, "[" * 50_000), RESOURCE_STRATEGY_WEIGHT, "", WEIGHTS),
    (notes("m" * 50_000, {"cpu": 1}), RESOURCE_STRATEGY_SCORING_TYPE, 'mm..." is not accepted',
     "LeastAllocated or MostAllocated"),
    (notes("mostAllocated", {"cpu": 1}), RESOURCE_STRATEGY_SCORING_TYPE, '"mostAllocated" is not accepted',
     "LeastAllocated or MostAllocated"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotations", "key", "detail", "accepted"), REPORTED_KEYS, ids=[str(place) for place in range(len(REPORTED_KEYS))]
)
def test_invalid_annotations_are_reported_once(
    annotations: dict[str, str], key: str, detail: str, accepted: str
) -> None:
    h = Harness(conf())
    h.queue("q")
    h.group("g")
    h.node("n")
    for name in ("p1", "p0"):
        h.pod(name, annotations=annotations)
    h.pod("fine", annotations=notes(MOST_ALLOCATED, {"cpu": 1}))
    h.settle()
    (event,) = [event for event in h.all_events if event.reason == "InvalidAnnotation"]
    assert (event.object.kind, event.object.name, event.type) == ("Pod", "p0", "Warning")
    assert event.message.startswith(f"Invalid annotation {key}: ")
    assert detail in event.message
    assert len(event.message) < 600
    assert event.message.endswith(f"the plugin does not score the pod; accepted: {accepted}")
    assert h.binds.keys() == {"p0", "p1", "fine"}, "nothing else is lost"
    h.pod("p2", annotations=annotations)
    h.settle()
    assert len([event for event in h.all_events if event.reason == "InvalidAnnotation"]) == 1


# --- the plain formula ------------------------------------------------------------------------------------------------

NAMES = ["cpu", "memory", GPU, FPGA]
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12), max_size=4)
choices = st.builds(Choice, st.sampled_from([MOST_ALLOCATED, LEAST_ALLOCATED]), st.integers(1, 5))
patterns = st.sampled_from([*NAMES, "nvidia.com/*", "n*", "example.com/f*", "m*"])


def formula(
    configured: dict[str, Choice], weight: int, request: dict[str, int], used: dict[str, int], node: dict[str, int]
) -> Fraction:
    """Volcano's formula for one node, exactly."""
    total, points = 0, Fraction(0)
    for name, requested in request.items():
        fitting = [key for key in configured if key.endswith("*") and name.startswith(key[:-1])]
        key = name if name in configured else max(fitting, key=len, default=None)
        if not requested or key is None:
            continue
        choice, offered, taken = configured[key], node.get(name, 0), requested + used.get(name, 0)
        total += choice.weight
        if not offered:
            continue
        if taken > offered:
            return Fraction(0)
        rest = taken if choice.type == MOST_ALLOCATED else offered - taken
        points += Fraction(rest, offered) * choice.weight
    return points / total * 100 * weight if total else Fraction(0)


@given(
    configured=st.dictionaries(patterns, choices, max_size=4),
    weight=st.integers(0, 20),
    request=amounts,
    nodes=st.lists(st.tuples(amounts, amounts), min_size=1, max_size=6),
)
def test_vector_scores_equal_the_plain_formula(
    configured: dict[str, Choice], weight: int, request: dict[str, int], nodes: list[tuple[dict[str, int], ...]]
) -> None:
    h = Harness(conf())
    h.pod("p", requests={name: str(amount) for name, amount in request.items()})
    for index, (offered, used) in enumerate(nodes):
        extra = {name: amount for name, amount in offered.items() if "/" in name}
        h.node(f"n{index}", cpu=str(offered.get("cpu", 0)), memory=str(offered.get("memory", 0)), resources=extra)
        h.pod(f"u{index}", node=f"n{index}", requests={name: str(amount) for name, amount in used.items()})
    session = h.session()
    arguments = ResourceStrategyFitArguments(weight, dict(configured))
    plugin = ResourceStrategyFit(arguments)
    plugin.open(session)
    rows = session.all_rows()
    found = plugin.score_utilization(PodSignature(h.task("p").cls, {}, 0), rows)
    rules = configured or {"cpu": Choice(), "memory": Choice()}
    plain = [float(formula(rules, weight, request, used, offered)) for offered, used in nodes]
    assert ([0.0] * len(nodes) if found is None else found.tolist()) == pytest.approx(plain, rel=1e-12, abs=1e-9)
    if found is not None:  # one row at a time gives the same bits
        single = [
            plugin.score_utilization(PodSignature(h.task("p").cls, {}, 0), NodeView(session.nodes, np.array([row])))
            for row in range(len(nodes))
        ]
        assert [float(score[0]) for score in single if score is not None] == found.tolist()
