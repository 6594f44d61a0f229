"""Cost of the terms between groups, and their limit."""

from __future__ import annotations

from typing import Any, Final

import pytest

from capcard_sched.testing import Harness
from tests.lines import executed_lines

_CONF: Final = """
actions: "allocate"
tiers: [{plugins: [{name: gang}, {name: predicates}, {name: group-topology-affinity}]}]
"""


def _terms(count: int, labels: int = 1) -> dict[str, Any]:
    """Terms that select every group, each by another selector."""
    selectors = [
        [{"key": f"k{index}-{each}", "operator": "DoesNotExist"} for each in range(labels)] for index in range(count)
    ]
    return {
        "required": [
            {"podGroupSelector": {"matchExpressions": each}, "namespaceSelector": {}, "topologyTier": 1}
            for each in selectors
        ]
    }


def _cluster(peers: int) -> Harness:
    """Groups with a running pod each in rack a, and the free rack b."""
    h = Harness(_CONF)
    h.queue("q")
    for rack in "ab":
        h.node(f"n{rack}", cpu="1000", pods=1000)
        h.hyper_node(rack, 1, nodes=[f"n{rack}"])
    for index in range(peers):
        h.group(f"peer{index}")
        h.pod(f"p{index}", group=f"peer{index}", node="na")
    h.step()
    return h


def test_pods_of_a_group_do_not_count_the_pods_of_others_one_by_one() -> None:
    def cost(pods: int, peers: int) -> int:
        h = _cluster(peers)
        h.group("g", min_member=pods, apart=_terms(16))
        for index in range(pods):  # of different requests: each is a decision of its own
            h.pod(f"own{index}", group="g", requests={"cpu": f"{index + 1}m"})
        lines = executed_lines(h.step)
        assert {h.binds[f"own{index}"] for index in range(pods)} == {"nb"}
        return lines

    few, many = (cost(pods, 160) - cost(pods, 40) for pods in (4, 12))
    assert many < 1.5 * few, (few, many)


@pytest.mark.parametrize(
    ("apart", "text"),
    [
        (_terms(65), "65 terms, the limit is 64"),
        (_terms(33, labels=32), "1056 labels and values in its selectors, the limit is 1024"),
    ],
)
def test_a_group_beyond_the_limits_of_terms_waits(apart: dict[str, Any], text: str) -> None:
    h = _cluster(peers=1)
    h.group("g", apart=apart)
    h.pod("own", group="g")
    h.step()
    assert "own" not in h.binds
    assert text in h.pod_message("own")
    h.group("g", apart=_terms(32, labels=32))
    h.settle()
    assert h.binds["own"] == "nb"
