"""Memory of the core: after a history of jobs that are gone, it is as large as after half of it."""

from __future__ import annotations

import gc
import random
import types
from collections import Counter

from capcard_sched.framework.session.session import Session
from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
- plugins:
  - name: predicates
  - {name: capacity-card, arguments: {unnamedCards: infer, cardUnlimitedCpuMemory: true}}
  - name: nodeorder
  - name: binpack
"""
#: Objects that code consists of.
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType)
_LIVE_JOBS = 8
#: Number of sessions, and seconds between them, after which what is kept of earlier ones has expired.
_SESSIONS = 260
_SECONDS = 60.0


def census(root: object) -> Counter[str]:
    """Number of objects reachable from one, by type."""
    gc.collect()
    seen: set[int] = set()
    found: Counter[str] = Counter()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, _CODE):
            seen.add(id(item))
            found[type(item).__name__] += 1
            waiting.extend(gc.get_referents(item))
    return found


class Churn:
    """Random jobs with new names; the oldest terminate, some after their PodGroup."""

    def __init__(self) -> None:
        self.h = Harness(CONF, run=True)
        self._rng = random.Random(3)
        self._jobs: list[tuple[str, int]] = []
        self._made = 0
        for name in ("n1", "n2"):
            self.h.gpu_node(name, card="A", count=8)
        for name in ("a", "b"):
            self.h.queue(name, cards={"A": 9}, capability={"cpu": "100", "memory": "100Gi"})
        for value in (1, 9):
            self.h.priority_class(f"p{value}", value)

    def run(self, jobs: int) -> None:
        """Create this number of jobs; all are gone at the end."""
        for _ in range(jobs):
            self._create()
            self.h.step()
            while len(self._jobs) > _LIVE_JOBS:
                self._end(*self._jobs.pop(0))
        while self._jobs:
            self._end(*self._jobs.pop(0))
        for _ in range(_SESSIONS):  # records of events and refusals expire
            self.h.node("spare", labels={"at": str(self.h.now)})
            self.h.step(self.h.now + _SECONDS)

    def _create(self) -> None:
        self._made += 1
        rng, name = self._rng, f"job-{self._made}"
        size = rng.choice((1, 2, 4))
        self.h.group(name, queue=rng.choice("ab"), min_member=size, priority_class=rng.choice(("p1", "p9")))
        for index in range(size):
            card = rng.choice(("A", "A", "", "missing", "||"))
            self.h.pod(f"{name}-{index}", group=name, card=card, cards=rng.choice((1, 2)))
        self._jobs.append((name, size))

    def _end(self, name: str, size: int) -> None:
        pods = [f"{name}-{index}" for index in range(size)]
        group_first = self._rng.random() < 0.5
        if group_first:
            self.h.delete_group(name)
        for pod in pods:
            self.h.terminate(pod)
        self.h.step()
        for pod in pods:
            self.h.delete_pod(pod)
        if not group_first:
            self.h.delete_group(name)


def test_jobs_that_are_gone_leave_nothing_in_the_core() -> None:
    churn = Churn()
    churn.run(40)
    before = census(churn.h.core)
    churn.run(40)
    after = census(churn.h.core)
    assert churn.h.binds, "jobs ran"
    assert not churn.h.state.tasks
    assert after.total() <= before.total() + 150, (after - before).most_common(8)


def test_sessions_that_are_over_need_no_garbage_collection() -> None:
    def sessions() -> int:
        return sum(type(each) is Session for each in gc.get_objects())

    churn = Churn()
    churn.run(20)
    gc.collect()
    before, binds = sessions(), len(churn.h.binds)
    gc.disable()
    try:
        churn.run(20)
        assert sessions() <= before
    finally:
        gc.enable()
    assert len(churn.h.binds) > binds, "jobs ran"
