"""The pdb plugin: what `tests/vectors/pdb.yaml` does not show."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import EvictFailed, ObjectChanged
from capcard_sched.model.limits import PodDisruptionBudgetObject
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness


def budget(h: Harness, name: str, allowed: int, label: str) -> None:
    """As many disruptions of the pods with this label."""
    obj = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {label: "1"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    h.apply(ObjectChanged(msgspec.convert(obj, PodDisruptionBudgetObject)))


def cluster(*pods: frozenset[str]) -> Harness:
    """Running pods p0, p1, ... with these labels, and the preemptor `new`."""
    h = Harness("actions: allocate\ntiers: [{plugins: [{name: pdb}]}]\n")
    h.queue("q")
    h.node("n")
    h.group("g")
    h.group("wants")
    for index, labels in enumerate(pods):
        h.pod(f"p{index}", node="n", labels=dict.fromkeys(sorted(labels), "1"))
    h.pod("new", group="wants")
    return h


def victims(h: Harness, *candidates: str) -> list[str]:
    answer = h.plugin("pdb").preemptable(h.task("new"), [h.task(name) for name in candidates])
    assert isinstance(answer, VictimDecision)
    assert answer.victims is not None
    assert answer.protected is not None
    kept = [task.name for task in answer.victims]
    assert {h.task(name).uid for name in candidates if name not in kept} == answer.protected.keys()
    return kept


def test_a_refused_eviction_is_not_charged() -> None:
    h = cluster(frozenset("a"), frozenset("a"))
    budget(h, "b", 1, "a")
    statement, task = Statement(h.session()), h.task("p0")
    statement.evict(task, "test")
    statement.commit()
    assert task.status is TaskStatus.RELEASING
    h.apply(EvictFailed(task.namespace, task.name, task.uid, "no"))
    h.session()
    assert victims(h, "p1") == ["p1"]


@given(
    budgets=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=3),
    pods=st.lists(st.frozensets(st.sampled_from("abc"), max_size=3), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_no_budget_is_overdrawn_and_no_pod_is_protected_without_one(
    budgets: list[tuple[int, str]], pods: list[frozenset[str]], order: Any
) -> None:
    h = cluster(*pods)
    for index, (allowed, label) in enumerate(budgets):
        budget(h, f"b{index}", allowed, label)
    session = h.session()
    left = [allowed for allowed, _ in budgets]
    names = [f"p{index}" for index in range(len(pods))]
    order.shuffle(names)
    statement = Statement(session)
    for cut in range(0, len(names), 2):
        chosen = names[cut : cut + 2]
        gone = victims(h, *chosen)
        for name in chosen:
            matching = [i for i, (_, label) in enumerate(budgets) if label in pods[int(name[1:])]]
            free = all(left[i] > 0 for i in matching)
            assert (name in gone) is free
            if free:
                for i in matching:
                    left[i] -= 1
        for name in gone:
            statement.evict(h.task(name), "test")
    statement.discard()
