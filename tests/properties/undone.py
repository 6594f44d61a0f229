"""Placements and evictions that are undone: a plugin's books are then as before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from capcard_sched.framework.api.plugin import Placement
from capcard_sched.model.status import ALLOCATED, BOUND, PIPELINED, RUNNING, TaskStatus
from tests.vectors.notation import VectorHarness


def place_and_undo(
    harness: VectorHarness, name: str, choose: random.Random, sums: Callable[[], Any], *, evicts: bool
) -> None:
    """Places waiting pods, allocated or nominated, in any order, and undoes it in reverse.

    `name`: the plugin. `sums`: everything that a placement changes. `evicts`: running pods are evicted in between.
    """
    session, plugin = harness.session(), harness.plugin(name)
    before = sums()
    done: list[tuple[Placement, TaskStatus | None]] = []
    tasks = [task for job in session.jobs.values() for task in job.tasks.values()]
    choose.shuffle(tasks)
    for task in tasks:
        assert task.job is not None
        if task.status in (BOUND, RUNNING) and evicts:
            assert task.node is not None
            placement = Placement(task.job, task.cls, [task], [task.node])
            plugin.on_deallocate(placement)
            done.append((placement, session.state.release(task)))
        elif task.status is TaskStatus.PENDING:
            node = session.nodes.by_name[choose.choice(["n1", "n2"])]
            placement = Placement(task.job, task.cls, [task], [node])
            session.state.place(task.job, placement.tasks, placement.nodes, choose.choice([ALLOCATED, PIPELINED]))
            plugin.on_allocate(placement)
            done.append((placement, None))
    if done and not evicts:
        assert sums() != before
    for placement, status in reversed(done):
        if status is not None:
            session.state.unrelease(placement.tasks[0], status)
            plugin.on_allocate(placement)
            continue
        plugin.on_deallocate(placement)
        session.state.unplace(placement.job, placement.tasks)
    assert sums() == before
