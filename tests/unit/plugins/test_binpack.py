"""The binpack plugin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.plugins.binpack import Binpack
from capcard_sched.testing import Harness


def _conf(arguments: str = "") -> str:
    return f"""
actions: "allocate"
tiers: [{{plugins: [{{name: binpack, arguments: {{{arguments}}}}}]}}]
"""


class Case(NamedTuple):
    id: str
    arguments: str
    request: dict[str, Any]
    node: dict[str, Any]
    used: dict[str, Any]
    score: float | None


_GPU = "nvidia.com/gpu"
CASES = [
    Case("9.1 two resources of equal weight", "", {"cpu": "1", "memory": "2Gi"}, {"cpu": "4", "memory": "16Gi"},
         {"cpu": "1", "memory": "2Gi"}, 37.5),
    Case("9.2 weights, a card and a factor",
         "binpack.weight: 10, binpack.cpu: 5, binpack.memory: 1, "
         "binpack.resources: 'nvidia.com/gpu, example.com/foo', binpack.resources.nvidia.com/gpu: 2",
         {"cpu": "1", "memory": "2Gi", _GPU: 1}, {"cpu": "8", "memory": "32Gi", "resources": {_GPU: 8}},
         {"cpu": "3", "memory": "6Gi", _GPU: 5}, 531.25),
    Case("9.3 a resource the node has none of counts as empty",
         "binpack.resources: nvidia.com/gpu, binpack.resources.nvidia.com/gpu: 2",
         {"cpu": "1", _GPU: 1}, {"cpu": "4"}, {"cpu": "1"}, 50 / 3),
    Case("9.4 a request that does not fit scores nothing", "", {"cpu": "4"}, {"cpu": "4"}, {"cpu": "1"}, 0),
    Case("9.5 no requested resource has a weight", "", {_GPU: 1}, {"resources": {_GPU: 8}}, {}, None),
    Case("a negative factor spreads", "binpack.weight: -1", {"cpu": "1"}, {"cpu": "4"}, {"cpu": "1"}, -50),
    Case("a factor of 0 scores nothing", "binpack.weight: 0", {"cpu": "1"}, {"cpu": "4"}, {}, None),
    Case("a resource of weight 0 is left out", "binpack.memory: 0", {"cpu": "1", "memory": "2Gi"}, {"cpu": "4"},
         {"cpu": "1", "memory": "1Gi"}, 50),
    Case("a negative weight counts as 1", "binpack.cpu: -3", {"cpu": "1", "memory": "2Gi"},
         {"cpu": "4", "memory": "16Gi"}, {"cpu": "1", "memory": "2Gi"}, 37.5),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_score(case: Case) -> None:
    h = Harness(_conf(case.arguments))
    h.node("n1", **case.node)
    if case.used:
        h.pod("used", node="n1", requests=case.used)
    h.pod("p", requests=case.request)
    session = h.session()
    scores = h.plugin("binpack").score_fullness(PodSignature(h.task("p").cls, {}, 0), session.all_rows())
    assert (None if scores is None else scores.tolist()) == (
        None if case.score is None else [pytest.approx(case.score)]
    )


def test_leaving_pods_still_fill_their_node() -> None:
    h = Harness(_conf())
    h.node("n1", cpu="4")
    h.pod("leaving", node="n1", requests={"cpu": "1"})
    h.pod("p", requests={"cpu": "1"})
    h.session()
    h.terminate("leaving")
    session = h.session()
    scores = h.plugin("binpack").score_fullness(PodSignature(h.task("p").cls, {}, 0), session.all_rows())
    assert scores.tolist() == [50]


def test_a_changed_node_is_scored_by_its_current_allocatable() -> None:
    h = Harness(_conf())
    h.node("n1", cpu="4")
    h.pod("p", requests={"cpu": "1"})
    session = h.session()
    signature = PodSignature(h.task("p").cls, {}, 0)
    assert h.plugin("binpack").score_fullness(signature, session.all_rows()).tolist() == [25]
    h.node("n1", cpu="8")
    session = h.session()
    assert h.plugin("binpack").score_fullness(signature, session.all_rows()).tolist() == [12.5]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30
    ),
    st.integers(1, 7),
    st.integers(0, 7),
)
def test_a_few_rows_score_bit_for_bit_like_many(nodes: list[tuple[int, int, int, int]], cpu: int, gpu: int) -> None:
    h = Harness(_conf("binpack.cpu: 3, binpack.resources: nvidia.com/gpu, binpack.resources.nvidia.com/gpu: 7"))
    for i, (cpus, gpus, _, _) in enumerate(nodes):
        h.node(f"n{i:02d}", cpu=str(cpus), resources={_GPU: gpus})
    h.pod("p", requests={"cpu": str(cpu), _GPU: gpu})
    session = h.session()
    signature = PodSignature(h.task("p").cls, {}, 0)
    used = np.zeros_like(session.nodes.used)
    used[:, 0] = [1000 * cpus for _, _, cpus, _ in nodes]
    used[:, session.resources.column(_GPU)] = [1000 * gpus for _, _, _, gpus in nodes]
    rows = np.resize(np.arange(len(nodes)), 32)
    plugin: Binpack = h.plugin("binpack")
    many = plugin.score_fullness(signature, NodeView(session.nodes, rows, used=used[rows]))
    assert many is not None
    for row in range(len(nodes)):
        alone = plugin.score_fullness(signature, NodeView(session.nodes, np.array([row]), used=used[[row]]))
        assert alone is not None
        assert alone.tobytes() == many[row : row + 1].tobytes()
