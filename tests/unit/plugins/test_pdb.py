"""The pdb plugin."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import EvictFailed, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Evict
from capcard_sched.model.job import Task
from capcard_sched.model.limits import PodDisruptionBudgetObject
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness

CONF = """
actions: "allocate"
tiers: [{plugins: [{name: pdb}]}]
"""
WEB = {"matchLabels": {"app": "web"}}


def budget(
    h: Harness, allowed: int, selector: Any = None, *, name: str = "budget", namespace: str = "default", **status: Any
) -> None:
    obj = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": WEB if selector is None else selector},
        "status": {"disruptionsAllowed": allowed, **status},
    }
    h.apply(ObjectChanged(msgspec.convert(obj, PodDisruptionBudgetObject)))


def cluster(*pods: tuple[str, dict[str, str]], conf: str = CONF, **more: Any) -> Harness:
    """Running pods by name with their labels, and the preemptor `new`."""
    h = Harness(conf, **more)
    h.queue("q")
    h.node("n")
    h.group("g")
    h.group("wants")
    for name, labels in pods:
        h.pod(name, node="n", labels=labels)
    h.pod("new", group="wants")
    return h


def two_webs() -> Harness:
    return cluster(("p1", {"app": "web"}), ("p2", {"app": "web"}))


def victims(h: Harness, *candidates: str, hook: str = "preemptable") -> list[str]:
    answer = getattr(h.plugin("pdb"), hook)(h.task("new"), [h.task(name) for name in candidates])
    assert isinstance(answer, VictimDecision)
    assert answer.victims is not None
    assert answer.protected is not None
    kept = [task.name for task in answer.victims]
    assert {h.task(name).uid for name in candidates if name not in kept} == answer.protected.keys()
    return kept


@pytest.mark.parametrize("hook", ["preemptable", "reclaimable"])
def test_13_1_as_many_go_as_are_allowed(hook: str) -> None:
    h = two_webs()
    budget(h, 1)
    h.session()
    assert victims(h, "p1", "p2", hook=hook) == ["p1"]
    assert victims(h, "p2", "p1", hook=hook) == ["p2"], "a vote costs nothing"


@pytest.mark.parametrize(
    ("selector", "labels", "kept"),
    [
        pytest.param(WEB, {"app": "web"}, False, id="selected"),
        pytest.param(WEB, {"app": "db"}, True, id="not selected"),
        pytest.param({}, {"app": "web"}, True, id="13.3 an empty selector selects nothing"),
        pytest.param(WEB, {}, True, id="13.4 a pod without labels (Better)"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"app": "x"}, False, id="expressions"
        ),
    ],
)
def test_selectors(selector: dict[str, Any], labels: dict[str, str], kept: bool) -> None:
    h = cluster(("p", labels))
    budget(h, 0, selector)
    h.session()
    assert victims(h, "p") == (["p"] if kept else [])


# --- earlier evictions ----------------------------------------------------------------------------------------------


def evicted(h: Harness) -> None:
    session = h.session()
    statement = Statement(session)
    statement.evict(h.task("p1"), "test")
    statement.commit()
    assert h.task("p1").status is TaskStatus.RELEASING


def test_a_refused_eviction_is_not_charged() -> None:
    h = two_webs()
    budget(h, 1)
    evicted(h)
    task = h.task("p1")
    h.apply(EvictFailed(task.namespace, task.name, task.uid, "no"))
    h.session()
    assert victims(h, "p2") == ["p2"]


@given(
    budgets=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=3),
    pods=st.lists(st.frozensets(st.sampled_from("abc"), max_size=3), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_no_budget_is_overdrawn_and_no_pod_is_protected_without_one(
    budgets: list[tuple[int, str]], pods: list[frozenset[str]], order: Any
) -> None:
    h = cluster(*((f"p{index}", dict.fromkeys(sorted(labels), "1")) for index, labels in enumerate(pods)))
    for index, (allowed, label) in enumerate(budgets):
        budget(h, allowed, {"matchLabels": {label: "1"}}, name=f"b{index}")
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


# --- with others ----------------------------------------------------------------------------------------------------


class EvictsAll(Plugin):
    """Names every candidate."""

    name = "evicts-all"

    def preemptable(self, task: Task, candidates: list[Task]) -> list[Task]:
        return candidates

    def victim_tasks(self, tasks: list[Task]) -> list[Task]:
        return tasks


def test_w10_it_protects_from_a_later_tier_too() -> None:
    conf = 'actions: "allocate"\ntiers: [{plugins: [{name: evicts-all}]}, {plugins: [{name: pdb}]}]'
    h = cluster(("p1", {"app": "web"}), ("p2", {}), conf=conf, plugins=[EvictsAll])
    budget(h, 0)
    session: Session = h.session()
    found = session.dispatch.victims("preemptable", h.task("new"), [h.task("p1"), h.task("p2")])
    assert [task.name for task in found] == ["p2"]


def test_it_filters_the_victims_of_shuffle_and_names_none() -> None:
    tiers = "tiers: [{plugins: [{name: pdb}%s]}]"
    for more, gone in ((", {name: evicts-all}", ["free", "p1"]), ("", [])):
        h = cluster(
            ("p1", {"app": "web"}), ("p2", {"app": "web"}), ("free", {}),
            conf=f'actions: "shuffle"\n{tiers % more}', plugins=[EvictsAll],
        )  # fmt: skip
        budget(h, 1)
        result = h.step()
        assert sorted(intent.name for intent in result.intents if isinstance(intent, Evict)) == gone


def test_only_budget_changes_that_matter_trigger_a_session() -> None:
    h = two_webs()
    budget(h, 0)
    h.settle()
    budget(h, 0)
    assert h.step().idle
    budget(h, 1)
    assert not h.step().idle
    h.settle()
    h.apply(ObjectGone("PodDisruptionBudget", "default", "budget"))
    assert not h.step().idle
    h.apply(ObjectGone("PodDisruptionBudget", "default", "budget"))
    h.settle()
    assert h.step().idle
