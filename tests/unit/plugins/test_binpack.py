"""The binpack plugin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.plugins.binpack import Binpack
from capcard_sched.testing import Harness

_GPU = "nvidia.com/gpu"
_CONF = """
actions: "allocate"
tiers:
- plugins:
  - name: binpack
    arguments: {binpack.cpu: 3, binpack.resources: nvidia.com/gpu, binpack.resources.nvidia.com/gpu: 7}
"""


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30
    ),
    st.integers(1, 7),
    st.integers(0, 7),
)
def test_a_few_rows_score_bit_for_bit_like_many(nodes: list[tuple[int, int, int, int]], cpu: int, gpu: int) -> None:
    h = Harness(_CONF)
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
