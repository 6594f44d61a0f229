"""Cost of the terms between groups, and their limit."""

from __future__ import annotations

from typing import Any, Final

import pytest

from capcard_sched.framework.session import namespace_work
from capcard_sched.testing import Harness
from tests.lines import executed_lines

_CONF: Final = """
actions: "allocate"
tiers: [{plugins: [{name: gang}, {name: predicates}, {name: group-topology-affinity}]}]
"""


def _terms(count: int, labels: int = 1, first: int = 0) -> dict[str, Any]:
    """Terms that select every group, each by another selector."""
    selectors = [
        [{"key": f"k{index}-{each}", "operator": "DoesNotExist"} for each in range(labels)]
        for index in range(first, first + count)
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


class _HostileNamespace:
    """Groups with 16 terms each, all of them different, that no rack admits; a rack holds 20 groups of others."""

    def __init__(self, groups: int, *, equal: bool = False) -> None:
        self.h, self.groups = Harness(_CONF), groups
        self.h.queue("q")
        for rack in "ab":
            self.h.node(f"n{rack}", cpu="1000", pods=1000)
            self.h.hyper_node(rack, 1, nodes=[f"n{rack}"])
        for index in range(20):
            self.h.group(f"peer{index}")
            self.h.pod(f"p{index}", group=f"peer{index}", node=f"n{'ab'[index % 2]}")
        self.h.step()
        for index in range(groups):
            self.h.group(f"bad{index}", namespace="bad", apart=_terms(16, first=0 if equal else 16 * index))
            self.h.pod(f"bad{index}", namespace="bad", group=f"bad{index}", requests={"cpu": "1"})

    def add_healthy(self, name: str) -> None:
        self.h.group(name)
        self.h.pod(name, group=name)

    def waits(self) -> list[str]:
        return [self.h.pod_message(f"bad{index}") for index in range(self.groups)]


@pytest.fixture
def _comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound in place of that of the product, to which the sizes are small."""
    monkeypatch.setattr(namespace_work, "MOST_COMPARISONS", 2_000)


@pytest.mark.usefixtures("_comparisons")
def test_a_namespace_has_a_bound_of_comparisons_in_a_session() -> None:
    """What groups without terms of their own cost is that of any waiting group."""

    def cost(groups: int) -> int:
        hostile = _HostileNamespace(groups)
        hostile.add_healthy("healthy")
        lines = executed_lines(hostile.h.step)
        assert "healthy" in hostile.h.binds, "another namespace of the queue is not held up"
        held = [text for text in hostile.waits() if "reached the bound of comparisons" in text]
        assert len(held) >= groups - 6
        hostile.h.settle(groups)
        assert all("holds a group of another namespace" in text for text in hostile.waits()), "each has its turn"
        hostile.add_healthy("later")
        again = executed_lines(hostile.h.step)
        assert "later" in hostile.h.binds
        return max(lines, again)

    few, many = cost(10), cost(40)
    one = executed_lines(_HostileNamespace(1).h.step)  # 16 terms and 20 groups
    assert many - few < 10 * one, (few, many, one)


@pytest.mark.usefixtures("_comparisons")
def test_groups_with_equal_selectors_share_the_comparisons() -> None:
    hostile = _HostileNamespace(20, equal=True)
    hostile.h.step()
    assert all("holds a group of another namespace" in text for text in hostile.waits())


@pytest.mark.usefixtures("_comparisons")
def test_a_selector_of_a_label_is_compared_with_the_groups_that_have_it() -> None:
    """300 groups with pods, and 100 that keep away from one of them each."""
    h = Harness(_CONF)
    h.queue("q")
    for rack in "ab":
        h.node(f"n{rack}", cpu="1000", pods=1000)
        h.hyper_node(rack, 1, nodes=[f"n{rack}"])
    for index in range(300):
        h.group(f"peer{index}", labels={"app": f"app{index}"})
        h.pod(f"p{index}", group=f"peer{index}", node="na")
    h.step()
    for index in range(100):
        term = {"podGroupSelector": {"matchLabels": {"app": f"app{index}"}}, "topologyTier": 1}
        h.group(f"g{index}", apart={"required": [term]})
        h.pod(f"own{index}", group=f"g{index}", requests={"cpu": "1"})
    h.step()
    assert {h.binds[f"own{index}"] for index in range(100)} == {"nb"}


def test_reasons_name_a_few_of_many_hyper_nodes() -> None:
    h = Harness(_CONF)
    h.queue("q")
    for rack in range(40):
        h.node(f"n{rack}", cpu="10" if rack else "1", pods=100)
        h.hyper_node(f"r{rack}", 1, nodes=[f"n{rack}"])
        if rack:
            h.group(f"peer{rack}")
            h.pod(f"p{rack}", group=f"peer{rack}", node=f"n{rack}")
    h.group("g", apart=_terms(64))
    h.pod("own", group="g", requests={"cpu": "2"})
    h.step()
    text = h.pod_message("own")
    assert text.count(" holds default/peer") == 8, text
    assert "31 node(s) were in further HyperNodes that hold other groups" in text
    h.group("last")
    h.pod("last", group="last", node="n0")
    h.step()
    text = h.pod_message("own")
    assert text.count(" holds default/") == 8, text
    assert "; 32 more HyperNodes" in text
