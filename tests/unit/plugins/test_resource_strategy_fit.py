"""The resource-strategy-fit plugin."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.model.annotations import RESOURCE_STRATEGY_SCORING_TYPE, RESOURCE_STRATEGY_WEIGHT
from capcard_sched.model.strategies import LEAST_ALLOCATED, MOST_ALLOCATED
from capcard_sched.plugins.resource_strategy_fit import (
    Choice,
    ResourceStrategyFit,
    ResourceStrategyFitArguments,
)
from capcard_sched.testing import Harness

GPU, FPGA, NPU = "nvidia.com/gpu", "example.com/fpga", "huawei.com/npu"


def conf(**arguments: Any) -> str:
    plugin = {"name": "resource-strategy-fit", "arguments": arguments}
    return json.dumps({"actions": "allocate", "tiers": [{"plugins": [{"name": "predicates"}, plugin]}]})


def notes(strategy: str | None, weights: object = None) -> dict[str, str]:
    found = {} if strategy is None else {RESOURCE_STRATEGY_SCORING_TYPE: strategy}
    if weights is not None:
        found[RESOURCE_STRATEGY_WEIGHT] = weights if isinstance(weights, str) else json.dumps(weights)
    return found


WEIGHTS = 'a JSON object of resource names and whole numbers from 0 on, such as {"cpu": 1, "nvidia.com/gpu": 2}'
REPORTED_KEYS = [
    (notes(MOST_ALLOCATED, {"cpu": 1.5}), RESOURCE_STRATEGY_WEIGHT, "got the number 1.5", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": -1}), RESOURCE_STRATEGY_WEIGHT, "at least 0, got the number -1", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": True}), RESOURCE_STRATEGY_WEIGHT, "got true", WEIGHTS),
    (notes(MOST_ALLOCATED, {"cpu": 10**30}), RESOURCE_STRATEGY_WEIGHT, "at most 2147483647", WEIGHTS),
    (notes(MOST_ALLOCATED, "[1]"), RESOURCE_STRATEGY_WEIGHT, "got a list", WEIGHTS),
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
