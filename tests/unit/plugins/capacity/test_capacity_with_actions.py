"""Capacity in whole sessions: queues borrow, and give back what they borrowed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

_STEPS = 15


def _cluster(*, tree: bool) -> Harness:
    h = Harness(
        f"""
actions: "enqueue, allocate, reclaim"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}]
- plugins: [{{name: capacity, enableHierarchy: {str(tree).lower()}}}, {{name: predicates}}]
""",
        run=True,
    )
    h.node("n1", cpu="10", pods=1000)
    return h


def _singles(h: Harness, queue: str, count: int, *, node: str | None = None) -> None:
    """Jobs of one pod of one cpu."""
    for i in range(count):
        h.group(f"{queue}{i}", queue=queue)
        h.pod(f"{queue}{i}", group=f"{queue}{i}", node=node)


def _run(h: Harness) -> tuple[dict[str, int], list[str]]:
    """Steps; victims are replaced by new pods that wait. Pods with a node per queue, and victims in order."""
    victims = []
    for _ in range(_STEPS):
        result = h.step()
        assert not result.report.errors
        for intent in result.intents:
            if isinstance(intent, Evict):
                job = h.task(intent.name).job
                assert job is not None
                victims.append(intent.name)
                h.delete_pod(intent.name)
                h.pod(intent.name, group=job.name)
    placed = Counter(
        task.job.queue for task in h.state.tasks.values() if task.node is not None and task.job is not None
    )
    return dict(placed), victims


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    "lender, placed",
    [
        pytest.param({}, {"borrows": 5, "comes": 5}, id="down to deserved"),
        pytest.param({"guarantee": {"cpu": "8"}}, {"borrows": 8, "comes": 2}, id="down to the guarantee"),
        pytest.param({"reclaimable": False}, {"borrows": 10}, id="not from a queue that is not reclaimable"),
    ],
)
def test_borrowed_capacity_is_reclaimed_and_stays_reclaimed(
    tree: bool, lender: dict[str, Any], placed: dict[str, int]
) -> None:
    h = _cluster(tree=tree)
    h.queue("borrows", deserved={"cpu": "5"}, **lender)
    h.queue("comes", deserved={"cpu": "5"})
    _singles(h, "borrows", 10, node="n1")
    _singles(h, "comes", 8)
    result, victims = _run(h)
    assert result == placed
    # Each pod made room once, and none of them took it back.
    assert len(victims) == len(set(victims)) == 10 - placed["borrows"]


def test_victims_come_from_the_nearest_queue_first() -> None:
    h = _cluster(tree=True)
    h.queue("eng", deserved={"cpu": "4"})
    h.queue("a", parent="eng", deserved={"cpu": "3"})
    h.queue("b", parent="eng", deserved={"cpu": "1"})
    h.queue("far", deserved={"cpu": "1"})
    _singles(h, "b", 5, node="n1")
    _singles(h, "far", 5, node="n1")
    _singles(h, "a", 2)
    result, victims = _run(h)
    assert result == {"a": 2, "b": 3, "far": 5}
    assert {victim[0] for victim in victims} == {"b"}


def test_siblings_below_a_full_parent_take_back_from_each_other() -> None:
    h = _cluster(tree=True)
    h.queue("parent", capability={"cpu": "6"})
    for name in ("borrows", "comes"):
        h.queue(name, parent="parent", deserved={"cpu": "3"})
    h.queue("aside", deserved={"cpu": "4"})
    _singles(h, "borrows", 6, node="n1")
    _singles(h, "aside", 4, node="n1")
    _singles(h, "comes", 8)
    placed, victims = _run(h)
    assert placed == {"aside": 4, "borrows": 3, "comes": 3}
    assert len(victims) == 3
