"""Buckets of task topology against a plain evaluation of Volcano's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.annotations import TASK_TOPOLOGY_AFFINITY, TASK_TOPOLOGY_ANTI_AFFINITY
from capcard_sched.model.job import Task
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.task_topology import size_of
from tests.unit.plugins.task_topology.world import World, notes, snapshot

ROLES = ["a", "b", "c", "d"]
groups = st.lists(st.lists(st.sampled_from(ROLES[:3]), min_size=1, max_size=3, unique=True), max_size=3)
topologies = st.builds(
    lambda affinity, anti, order: notes(
        ";".join(map(",".join, affinity)), ";".join(map(",".join, anti)), ",".join(order)
    ),
    groups, groups, st.lists(st.sampled_from(ROLES), max_size=3, unique=True),
)  # fmt: skip
#: Role, cpu, memory in GiB, and the node it runs on.
pods = st.lists(
    st.tuples(st.sampled_from(ROLES), st.integers(0, 3), st.integers(0, 3), st.sampled_from([None, None, "n0", "n1"])),
    max_size=12,
)
NODES = [(0, 0), (2, 3), (5, 4), (9, 20)]


def random_world(topology: dict[str, str], members: Sequence[tuple[str, int, int, str | None]]) -> World:
    w = World({})
    # A pod of every role, so that every name is a task's; role d is in no rule.
    w.h.group("g", annotations=topology, min_member=0)
    for role in ROLES:
        w.h.pod(f"gated-{role}", role=role, schedulingGates=[{"name": "never"}])
    for index, (cpu, memory) in enumerate(NODES):
        w.h.node(f"n{index}", cpu=str(cpu), memory=f"{memory}Gi")
    for index, (role, cpu, memory, node) in enumerate(members):
        w.h.pod(f"{role}-{index}", role=role, requests={"cpu": str(cpu), "memory": f"{memory}Gi"}, node=node)
    w.open()
    return w


def plainly_built(w: World) -> list[list[str]]:
    """The buckets by Volcano's rules: every task is compared with every bucket."""
    relations, job = w.job.relations, w.h.job("g")
    named = [task for task in job.tasks.values() if task.role in relations.roles]
    placed = [task for task in named if task.node is not None]
    waiting = [task for task in named if task.uid in job.pending]
    buckets: list[list[Task]] = []
    for task in sorted(placed, key=lambda task: (*relations.order(task.role), task.name)):
        mine = [bucket for bucket in buckets if bucket[0].node is task.node]
        if not mine:
            mine = [[]]
            buckets += mine
        mine[0].append(task)
    for task in sorted(waiting, key=lambda task: (*relations.order(task.role), task.name)):
        best: tuple[int, int, int] | None = None
        for index, bucket in enumerate(buckets):
            net = relations.net(task.role, Counter(one.role for one in bucket).items())
            size = sum(size_of(one.cls) for one in bucket if one.node is None)
            candidate = (-net, size, index)
            best = candidate if best is None else min(best, candidate)
        if best is None or best[0] > 0:
            buckets.append([task])
        else:
            buckets[best[2]].append(task)
    return [sorted(task.name for task in bucket) for bucket in buckets]


@given(topology=topologies, members=pods)
def test_buckets_partition_the_tasks_with_a_topology(
    topology: dict[str, str], members: list[tuple[str, int, int, str | None]]
) -> None:
    w = random_world(topology, members)
    grouped = {key for key in (TASK_TOPOLOGY_AFFINITY, TASK_TOPOLOGY_ANTI_AFFINITY) if topology[key]}
    assert ("default/g" in w.plugin._jobs) == bool(grouped and w.h.job("g").pending)
    if "default/g" not in w.plugin._jobs:
        return
    buckets = w.buckets()
    named = [task.name for task in w.h.job("g").tasks.values() if task.role in w.job.relations.roles and not task.gated]
    assert sorted(name for bucket in buckets for name in bucket) == sorted(named)
    assert all(buckets)
    assert buckets == plainly_built(w)
    assert w.job.most == max(map(len, buckets), default=0)


def plain_score(w: World, task: Task, row: int, placed: Iterable[tuple[str, int]]) -> int:
    """Volcano's rule for one node: other tasks are dropped one by one until the rest fits."""
    table, bucket = w.session.nodes, w.job.of[task.uid]
    free = table.allocatable[row] - table.used[row] + table.releasing[row]
    requested = np.flatnonzero(sum(one.cls.request for one in bucket.members))
    if (task.cls.request[requested] > free[requested]).any():
        return 0
    here = [one for one in w.h.job("g").tasks.values() if one.node is not None and one.node.row == row]
    score = sum(1 for one in here if w.job.of.get(one.uid) is bucket)
    score -= sum(1 for role, at in placed if at == row and role in w.job.relations.apart.get(task.role, ()))
    rest = [one for one in bucket.members if one.status is TaskStatus.PENDING]
    score += len(rest)
    others = sorted((one for one in rest if one is not task), key=lambda one: (-size_of(one.cls), one.name))
    total = sum((one.cls.request for one in others), task.cls.request)
    while (total[requested] > free[requested]).any():
        total = total - others.pop(0).cls.request
        score -= 1
    return score


@given(topology=topologies, members=pods, data=st.data())
def test_undoing_restores_exactly_and_scores_equal_the_plain_formula(
    topology: dict[str, str], members: list[tuple[str, int, int, str | None]], data: st.DataObject
) -> None:
    w = random_world(topology, members)
    if "default/g" not in w.plugin._jobs:
        return
    job, session = w.h.job("g"), w.session
    statement = Statement(session)
    history: list[tuple[int, Any]] = []
    placed: list[tuple[str, int]] = []
    for _ in range(data.draw(st.integers(0, 8))):
        pending = sorted(job.pending.values(), key=lambda task: task.name)
        running = sorted(
            (task for task in job.tasks.values() if task.status is TaskStatus.RUNNING), key=lambda task: task.name
        )
        step = data.draw(st.sampled_from(["place", "pipeline", "evict", "back"]))
        if step == "back" and history:
            length, state = history.pop()
            statement.rollback(length)
            del placed[state[1] :]
            assert snapshot(w.job) == state[0]
            continue
        mark = (len(statement), (snapshot(w.job), len(placed)))
        if step == "evict" and running:
            statement.evict(data.draw(st.sampled_from(running)), "test")
        elif step in ("place", "pipeline") and pending:
            task = data.draw(st.sampled_from(pending))
            node = data.draw(st.sampled_from(session.nodes.nodes))
            (statement.allocate if step == "place" else statement.pipeline)(job, [task], [node])
            placed.append((task.role, node.row))
        else:
            continue
        history.append(mark)
    for task in job.pending.values():
        if task.uid in w.job.of:
            found = w.job.scores(task, session.all_rows()).tolist()
            # An evicted task is on its node still, and no longer in the bucket.
            gone = [one for one in statement.evicted if w.job.of.get(one.uid) is w.job.of[task.uid]]
            plain = [plain_score(w, task, row, placed) for row in range(len(NODES))]
            for one in gone:
                assert one.node is not None
                if plain[one.node.row] or found[one.node.row]:
                    plain[one.node.row] -= 1
            assert found == plain
    first = history[0][1][0] if history else snapshot(w.job)
    statement.discard()
    assert snapshot(w.job) == first
