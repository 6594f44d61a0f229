"""Card quotas of parent queues: they limit the sum of the queues below them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capcard_sched.model.refusal import Refusal
from capcard_sched.testing import Harness
from tests.evictions import evicted

REQUEST = "volcano.sh/card.request"
EVICTING = """
actions: "enqueue, allocate, preempt, reclaim"
tiers:
- plugins:
  - {name: priority}
  - {name: gang, enableReclaimable: false, enablePreemptable: false}
- plugins:
  - {name: predicates}
  - {name: capacity-card}
"""


def tree(h: Harness, quotas: dict[str, dict[str, int] | None], parents: dict[str, str]) -> None:
    """Queues with card quotas (None: no annotation) on a cluster with more cards than any quota."""
    for card in sorted({card for quota in quotas.values() for card in quota or ()}):
        h.gpu_node(f"n-{card}", card=card, count=64, cpu="1000", memory="4Ti")
    for name, quota in quotas.items():
        h.queue(name, cards=quota, parent=parents.get(name))


def run(h: Harness, name: str, queue: str, card: str, pods: int, *, held: int = 0, **group: Any) -> None:
    """A job of single-card pods; `held` of them run."""
    h.group(name, queue=queue, **{"phase": "Running" if held else "Pending", "min_member": 1, **group})
    for i in range(pods):
        h.pod(f"{name}-{i}", group=name, card=card, cards=1, node=f"n-{card}" if i < held else None)


def message(h: Harness, group: str) -> str:
    found = h.plugin("capacity-card").job_enqueueable(h.job(group))
    return found.message if isinstance(found, Refusal) else ""


def insufficient(queue: str, card: str, requested: int, total: int, limit: int) -> str:
    return (
        f"Queue {queue} has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
        f"but capability is <{limit}>"
    )


@pytest.mark.parametrize(
    ("parent", "refused"),
    [
        (None, ""),
        ({"B": 4}, insufficient("<llm> (ancestor of <a>)", "A", 2000, 2000, 0)),
        ({}, insufficient("<llm> (ancestor of <a>)", "A", 2000, 2000, 0)),
        ("", ""),
        ("null", ""),
        ("{", insufficient("<llm> (ancestor of <a>)", "A", 2000, 2000, 0)),
    ],
    ids=["no annotation", "another card", "no card", "empty text", "null", "malformed"],
)
def test_an_absent_quota_limits_nothing_and_an_unlisted_card_is_0(
    harness: Callable[..., Harness], parent: dict[str, int] | str | None, refused: str
) -> None:
    h = harness()
    h.queue("llm", cards=parent)
    tree(h, {"a": {"A": 8}}, {"a": "llm"})
    h.group("g", queue="a", phase="Pending", annotations={REQUEST: '{"A": 2}'})
    h.session()
    assert message(h, "g") == refused


def test_alternatives_are_closed_by_an_ancestor(harness: Callable[..., Harness]) -> None:
    h = harness()
    tree(h, {"llm": {"A": 1, "B": 2}, "a": {"A": 8, "B": 8}}, {"a": "llm"})
    run(h, "g", "a", "A|B", 5)
    h.settle()
    cards = sorted(notes["volcano.sh/card.assigned"] for notes in h.bind_annotations.values())
    assert cards == ["A", "B", "B"]
    waiting = next(name for name in (f"g-{i}" for i in range(5)) if name not in h.binds)
    assert h.pod_message(waiting) == insufficient("<llm> (ancestor of <a>)", "A|B", 1000, 3000, 2000)


def test_a_change_of_parent_or_of_its_quota_is_seen_by_the_next_session(harness: Callable[..., Harness]) -> None:
    h = harness(run=True)
    tree(h, {"llm": {"A": 2}, "free": None, "a": {"A": 8}}, {"a": "llm"})
    run(h, "g", "a", "A", 8)
    h.settle()
    assert len(h.binds) == 2
    h.queue("llm", cards={"A": 3})
    h.settle()
    assert len(h.binds) == 3
    h.queue("a", cards={"A": 8}, parent="free")
    h.settle()
    assert len(h.binds) == 8
    accounts = h.plugin("capacity-card").ledger.queues
    assert accounts["llm"].subtree.allocated.cards == {}
    assert accounts["free"].subtree.allocated.cards == {"A": 8000}


# --- preempt and reclaim ----------------------------------------------------------------------------------------------


def evicting(quotas: dict[str, dict[str, int] | None], parents: dict[str, str]) -> Harness:
    h = Harness(EVICTING, run=True)
    h.priority_class("low", 10)
    h.priority_class("high", 80)
    tree(h, quotas, parents)
    return h


def tide(card: str, quotas: dict[str, dict[str, int] | None], *, node: int = 64) -> Harness:
    """Training of a sibling and of another tree beside an inference pod that is admitted."""
    h = evicting(quotas, {"train": "llm", "serve": "llm"})
    for name in ("A", "B"):
        h.gpu_node(f"n-{name}", card=name, count=node, cpu="1000", memory="4Ti")
    training = {"volcano.sh/service.type": "training"}
    run(h, "other", "other", "A", 2, held=2, annotations=training)
    run(h, "train", "train", "A", 2, held=2, annotations=training)
    h.queue("serve", cards=quotas["serve"], parent="llm", reclaimable=False, priority=100)
    h.group("serve", queue="serve", annotations={"volcano.sh/service.type": "inference"})
    h.pod("serve", group="serve", card=card, cards=1)
    return h


@pytest.mark.parametrize("card", ["A", "A|B", "B|A"])
def test_reclaim_takes_from_a_sibling_when_the_common_parent_is_full(card: str) -> None:
    h = tide(card, {"llm": {"A": 2}, "train": {"A": 2}, "serve": {"A": 2}, "other": {"A": 2}})
    victims = evicted(h.step())
    assert len(victims) == 1
    assert victims[0].startswith("train-")


def test_reclaim_takes_from_anywhere_while_the_parent_has_quota_left() -> None:
    h = tide("A", {"llm": {"A": 3}, "train": {"A": 2}, "serve": {"A": 2}, "other": {"A": 2}}, node=4)
    assert len(evicted(h.step())) == 1


def test_reclaim_never_exceeds_the_own_quota() -> None:
    h = tide("A", {"llm": {"A": 2}, "train": {"A": 2}, "serve": {"B": 2}, "other": {"A": 2}})
    assert evicted(h.step()) == []


# --- against an independent calculation -------------------------------------------------------------------------------

CARDS = "AB"
Quota = dict[str, int] | None
quotas = st.none() | st.dictionaries(st.sampled_from(CARDS), st.integers(0, 4))
keys = st.sampled_from(["A", "B", "A|B", "B|A"])


class World:
    """Queues, jobs and their usage, in the test's own model."""

    def __init__(self, data: st.DataObject, h: Harness) -> None:
        self.h = h
        count = data.draw(st.integers(2, 6))
        self.parent = {i: data.draw(st.integers(0, i - 1)) if i else -1 for i in range(count)}
        self.leaves = [i for i in range(count) if i not in self.parent.values()]
        self.quota: dict[int, Quota] = {i: data.draw(quotas) for i in range(count)}
        for card in CARDS:
            h.gpu_node(f"n-{card}", card=card, count=64, cpu="1000", memory="4Ti")
        for i in range(count):
            h.queue(f"q{i}", cards=self.quota[i], parent=f"q{self.parent[i]}" if i else None, priority=i)
        #: Job name to leaf, key, cards and minimum.
        self.jobs: dict[str, tuple[int, str, int, int]] = {}

    def chain(self, leaf: int) -> Iterator[int]:
        while leaf >= 0:
            yield leaf
            leaf = self.parent[leaf]

    def levels(self, leaf: int) -> Iterator[tuple[dict[str, int], set[int]]]:
        """The quotas that apply to a leaf, each with the leaves it sums up."""
        for level in self.chain(leaf):
            quota = self.quota[level]
            if level == leaf or quota is not None:
                yield quota or {}, {one for one in self.leaves if level in self.chain(one)}

    def held(self) -> dict[tuple[int, str], int]:
        """Cards on nodes by leaf and card."""
        found: dict[tuple[int, str], int] = {}
        for task in self.h.state.tasks.values():
            if task.node is not None and task.job is not None:
                key = int(task.job.queue[1:]), task.node.name[2:]
                found[key] = found.get(key, 0) + 1
        return found


def fits(quota: dict[str, int], used: dict[str, int], claims: list[str]) -> bool:
    """Whether cards can be chosen for all claims, by trying every choice."""
    return any(
        all(used.get(card, 0) + choice.count(card) <= quota.get(card, 0) for card in set(choice))
        for choice in product(*(claim.split("|") for claim in claims))
    )


@given(data=st.data())
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_admission_equals_a_trial_of_all_choices_at_every_level(
    harness: Callable[..., Harness], data: st.DataObject
) -> None:
    h = harness()
    world = World(data, h)
    used: dict[tuple[int, str], int] = {}
    claims: list[tuple[int, str]] = []
    for i in range(data.draw(st.integers(0, 5))):
        leaf, key, count = data.draw(st.sampled_from(world.leaves)), data.draw(keys), data.draw(st.integers(1, 3))
        if data.draw(st.booleans()):  # runs, and needs all its pods
            card = key.split("|")[0]
            run(h, f"r{i}", f"q{leaf}", card, count, held=count, min_member=count)
            used[leaf, card] = used.get((leaf, card), 0) + count
        else:
            need = {key: count}
            h.group(f"r{i}", queue=f"q{leaf}", phase="Inqueue", annotations={REQUEST: json.dumps(need)})
            alive = all(fits(quota, {}, [key] * count) for quota, _ in world.levels(leaf))
            claims += [(leaf, key)] * (count if alive else 0)  # a job that can never start reserves nothing
    leaf, key, count = data.draw(st.sampled_from(world.leaves)), data.draw(keys), data.draw(st.integers(1, 3))
    h.group("g", queue=f"q{leaf}", phase="Pending", annotations={REQUEST: json.dumps({key: count})})
    h.session()
    possible = True
    for quota, below in world.levels(leaf):
        capped = {card: sum(used.get((one, card), 0) for one in below) for card in CARDS}
        mine = [key] * count
        others = [claim for one, claim in claims if one in below]
        touched = set(key.split("|")).union(*(one.split("|") for one in others if "|" in one))
        if any(capped[card] > quota.get(card, 0) for card in touched):
            return  # a level above its quota has rules of its own
        if not fits(quota, capped, others):
            return
        possible = possible and fits(quota, capped, mine + others)
    assert (message(h, "g") == "") == possible


@given(data=st.data())
@settings(max_examples=settings().max_examples // 3)
def test_no_action_exceeds_a_quota_and_pending_jobs_have_none_left(data: st.DataObject) -> None:
    h = Harness(EVICTING, run=True)
    h.priority_class("low", 10)
    h.priority_class("high", 80)
    world = World(data, h)
    for i in range(data.draw(st.integers(1, 6))):
        leaf, key, count = data.draw(st.sampled_from(world.leaves)), data.draw(keys), data.draw(st.integers(1, 4))
        service = data.draw(st.sampled_from(["inference", "training", "training"]))
        minimum = data.draw(st.sampled_from([1, count]))
        grade, value = data.draw(st.sampled_from([("low", 10), ("high", 80)]))
        h.group(f"j{i}", queue=f"q{leaf}", phase="Pending", min_member=minimum, priority_class=grade,
                annotations={"volcano.sh/service.type": service})  # fmt: skip
        for pod in range(count):
            h.pod(f"j{i}-{pod}", group=f"j{i}", card=key, cards=1, priority=value)
        h.step()
    h.settle()
    held = world.held()
    for leaf in world.leaves:
        for quota, below in world.levels(leaf):
            for card in CARDS:
                total = sum(held.get((one, card), 0) for one in below)
                assert total <= quota.get(card, 0) or total == 0
    if any(task.status.name == "RELEASING" for task in h.state.tasks.values()):
        return  # quota is free when the pods are gone
    for job in h.state.jobs.values():
        if job.pending and job.min_available == 1 and job.phase in ("Inqueue", "Running"):
            task, leaf = next(iter(job.pending.values())), int(job.queue[1:])
            for card in task.cls.annotations["volcano.sh/card.name"].split("|"):
                assert any(
                    sum(held.get((one, card), 0) for one in below) >= quota.get(card, 0)
                    for quota, below in world.levels(leaf)
                ), f"{task.name} could have {card}"
