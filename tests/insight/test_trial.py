"""Trials: what they change, what they leave alone, and how they end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import capcard_sched.framework.eviction
from capcard_sched.framework.core import Core
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, RunningCopy, in_copy
from capcard_sched.insight.trials.preemption import PreemptionFinding, begin_trial
from capcard_sched.insight.trials.trial import advance, with_actions
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.explanation import CAUSES
from capcard_sched.model.objects import NodeObject, QueueObject
from capcard_sched.model.trials import StateDifference
from capcard_sched.testing import Harness

H200 = "NVIDIA-H200"
EVICTION = Path(capcard_sched.framework.eviction.__file__).parent
CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: predicates}, {name: capacity-card}]
"""


@pytest.fixture
def h() -> Harness:
    """`runs` holds all 8 cards of the node and of the quota; `waits` needs 8 with a higher priority."""
    return full()[0]


def full(conf: str = CONF, priority: int = 1000, **pod: Any) -> tuple[Harness, DeltaObjects]:
    """The cluster of `h`, and its objects. `pod`: fields of the spec of `waits`."""
    h = Harness(conf)
    h.gpu_node("n1")
    h.queue("q", cards={H200: 8})
    h.priority_class("urgent", priority)
    h.group("runs", queue="q", phase="Running")
    h.pod("runs", group="runs", card=H200, cards=8, node="n1", phase="Running")
    h.group("waits", queue="q", phase="Inqueue", priority_class="urgent")
    h.pod("waits", group="waits", card=H200, cards=8, priority=priority, **pod)
    seen = DeltaObjects(list(h._deltas))
    h.step()
    return h, seen


def run_trial(core: Core, now: float, changes: Sequence[Delta] = (), **how: Any) -> StateDifference:
    return in_copy(partial(advance, core, now, changes, **how), StateDifference)


def queue(cards: int) -> ObjectChanged:
    notes = {"volcano.sh/card.quota": f'{{"{H200}": {cards}}}'}
    return ObjectChanged(msgspec.convert({"metadata": {"name": "q", "annotations": notes}}, QueueObject))


def node(name: str) -> ObjectChanged:
    labels = {"nvidia.com/gpu.product": H200, "nvidia.com/gpu.memory": "143771"}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    obj = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}
    return ObjectChanged(msgspec.convert(obj, NodeObject))


def usage(found: StateDifference) -> dict[tuple[str, str], tuple[float, float]]:
    return {(row.queue, row.resource): (row.before, row.after) for row in found.usage}


def test_a_trial_without_changes_differs_in_nothing(h: Harness) -> None:
    found = run_trial(h.core, 100.0)
    assert (found.started, found.evicted, found.usage, found.settled) == ((), (), (), True)
    assert found.pending == ("default/waits",)


def test_changed_objects_start_a_job_together_and_neither_alone(h: Harness) -> None:
    assert run_trial(h.core, 100.0, [queue(16)]).started == ()
    assert run_trial(h.core, 100.0, [node("n2")]).started == ()
    found = run_trial(h.core, 100.0, [queue(16), node("n2")])
    assert (found.started, found.pending, found.evicted) == (("default/waits",), (), ())
    assert usage(found)["q", H200] == (8, 16)


def test_an_action_that_the_conf_lacks_evicts_and_starts(h: Harness) -> None:
    found = run_trial(h.core, 100.0, conf=with_actions(h.core.snapshot().conf, ("preempt",)))
    (evicted,) = found.evicted
    assert (evicted.pod, evicted.node, evicted.action, evicted.by) == (
        "default/runs",
        "n1",
        "preempt",
        "default/waits",
    )
    assert found.started == ("default/waits",)


def test_a_trial_leaves_the_state_as_it_is(h: Harness) -> None:
    before = h.last_session
    first = run_trial(h.core, 100.0, [queue(16), node("n2")])
    assert h.core.snapshot().session is before
    assert sorted(h.state.nodes.by_name) == ["n1"]
    assert h.core.snapshot().conf.actions == ("enqueue", "allocate")
    assert run_trial(h.core, 100.0, [queue(16), node("n2")]) == first, "the same input gives the same result"


def test_the_number_of_sessions_is_bounded(h: Harness) -> None:
    found = run_trial(h.core, 100.0, [queue(16), node("n2")], max_sessions=1)
    assert (found.sessions, found.settled) == (1, False)


def test_an_exception_in_the_copy_reaches_the_caller() -> None:
    def fail() -> StateDifference:
        raise ValueError("no such thing")

    with pytest.raises(ForkedCopyError, match="ValueError: no such thing"):
        in_copy(fail, StateDifference)


def test_a_copy_that_is_stopped_is_gone_and_two_copies_run_at_a_time(h: Harness) -> None:
    def sleep() -> StateDifference:
        time.sleep(600)
        raise AssertionError

    slow = RunningCopy(sleep, StateDifference)
    assert in_copy(lambda: run_trial(h.core, h.now), StateDifference).settled
    slow.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(slow.pid, 0)


def test_a_failed_trial_is_a_fact_and_no_crash(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> StateDifference:
        raise ForkedCopyError("the copy ended without a result")

    monkeypatch.setattr("capcard_sched.insight.trials.preemption.try_actions", fail)
    found = evictions(h, DeltaObjects(()))
    assert (found.result, list(found.facts)) == (
        None,
        ["The trial with preempt and reclaim failed: the copy ended without a result"],
    )


def evictions(h: Harness, objects: DeltaObjects) -> PreemptionFinding:
    trial = begin_trial(h.core, objects, h.job("waits"), 100.0)
    assert trial is not None
    return trial.finding()


EVICTING = CONF.replace("allocate", "allocate, preempt, reclaim")
NEVER: dict[str, Any] = {"preemptionPolicy": "Never"}


@pytest.mark.parametrize(
    ("pod", "origin"),
    [(NEVER, "Pod default/waits"), ({**NEVER, "priorityClassName": "urgent"}, "PriorityClass urgent")],
)
def test_a_policy_without_which_a_pod_would_preempt_is_named(pod: dict[str, Any], origin: str) -> None:
    h, objects = full(EVICTING, **pod)
    found = evictions(h, objects)
    assert found.result is not None
    assert (found.result.actions, found.result.forbidden_by, found.result.starts) == ((), (origin,), True)
    (fact,) = found.facts
    assert fact == (
        f"preemptionPolicy: Never of {origin} forbids preemption; without it, 1 pod of default/podgroup/runs would be "
        "evicted and the job starts"
    )


def test_a_policy_is_not_named_where_priority_does_not_suffice() -> None:
    h, objects = full(EVICTING, priority=0, **NEVER)
    assert evictions(h, objects) == (None, [])


def test_each_cause_for_which_a_search_keeps_a_pod_has_words() -> None:
    texts = "".join((EVICTION / name).read_text() for name in ("scope.py", "victim_index.py", "node_plans.py"))
    named = set(re.findall(r'(?:return|else|cause =|CRITICAL =) "([a-z-]+)"', texts)) - {"whole", "job", "member"}
    assert {"terminating", "not-running", "priority", "no-use", "system-critical", "same-job"} <= named <= CAUSES.keys()
