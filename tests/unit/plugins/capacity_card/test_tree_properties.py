"""Card quotas of parent queues, against an independent calculation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capcard_sched.model.refusal import Refusal
from capcard_sched.testing import Harness

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
            h.group(f"r{i}", queue=f"q{leaf}", phase="Running", min_member=count)
            for pod in range(count):
                h.pod(f"r{i}-{pod}", group=f"r{i}", card=card, cards=1, node=f"n-{card}")
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
    assert isinstance(h.plugin("capacity-card").method("job_enqueueable")(h.job("g")), Refusal) != possible


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
