"""Searches for victims that failed: which change has them repeated, and on which nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import Evict
from capcard_sched.model.job import Task
from capcard_sched.model.limits import PodDisruptionBudgetObject
from capcard_sched.model.queue import Queue
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GANG = "{name: gang, enablePreemptable: false, enableReclaimable: false}"


def _conf(*plugins: str, gang: str = _GANG) -> str:
    listed = ", ".join(f"{{name: {name}}}" for name in ("predicates", *plugins))
    return (
        'actions: "enqueue, allocate, preempt, reclaim, backfill"\n'
        f"tiers: [{{plugins: [{{name: priority}}, {gang}, {listed}]}}]"
    )


def _budget(h: Harness, allowed: int) -> None:
    body = {
        "metadata": {"name": "budget", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    h.apply(ObjectChanged(msgspec.convert(body, PodDisruptionBudgetObject)))


def _victims(h: Harness, queue: str, **pod: Any) -> None:
    """A running pod on each of two nodes, which it fills."""
    for i in range(2):
        h.node(f"n{i}", cpu="4", labels={"kind": "full"})
        h.group(f"low-{i}", queue=queue)
        h.pod(f"low-{i}", group=f"low-{i}", requests={"cpu": "3"}, node=f"n{i}", **pod)


def _protected_by_a_budget(action: str = "preempt") -> Harness:
    h = Harness(_conf("pdb").replace("preempt, reclaim", action), run=True)
    _budget(h, 0)
    h.queue("other")
    _victims(h, "q" if action == "preempt" else "other", labels={"app": "web"})
    return h


def _protected_by_a_cooldown() -> Harness:
    h = Harness(_conf("cdp"), run=True)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_timestamp(h.now)}
    _victims(h, "q", labels={COOLDOWN_TIME: "2m"}, conditions=[scheduled])
    return h


def _protected_by_conformance() -> Harness:
    h = Harness(_conf("conformance"), run=True)
    _victims(h, "q", priorityClassName="system-node-critical")
    return h


def _protected_by_deserved_amounts() -> Harness:
    h = Harness(_conf("capacity"), run=True)
    h.queue("other", deserved={"cpu": "6"})
    _victims(h, "other")
    return h


def _protected_by_a_share() -> Harness:
    h = Harness(_conf("proportion"), run=True)
    h.queue("other")
    h.queue("q", weight=100)
    _victims(h, "other")
    return h


def _protected_by_a_queue() -> Harness:
    h = Harness(_conf("capacity"), run=True)
    h.queue("other", reclaimable=False)
    h.queue("q", deserved={"cpu": "6"})
    _victims(h, "other")
    return h


def _protected_by_a_refusal() -> Harness:
    """The API server refused the eviction of one of two victims a short time ago."""
    h = Harness(_conf("conformance"), run=True)
    _victims(h, "q")
    h.step()
    h.core._memory.refuse_eviction(h.task("low-0").uid, h.now + 120)
    return h


class _Case(NamedTuple):
    """A protection, and the change that ends it."""

    cluster: Callable[[], Harness]
    change: Callable[[Harness], None]
    #: The members of the gang, each of which takes the node of one victim.
    members: int = 2


def _raise_deserved(h: Harness) -> None:
    h.queue("q", deserved={"cpu": "6"})
    h.queue("other", deserved={"cpu": "1"})


def _raise_demand(h: Harness) -> None:
    """The shares of the cluster no longer cover what the queues request."""
    h.group("big", queue="late")
    h.pod("big", group="big", requests={"cpu": "50"}, nodeSelector={"kind": "none"})


def _unprotect(h: Harness) -> None:
    for i in range(2):
        h.pod(f"low-{i}", group=f"low-{i}", requests={"cpu": "3"}, node=f"n{i}")


def _pass_two_minutes(h: Harness) -> None:
    h.now += 120


_CASES = {
    "budget": _Case(_protected_by_a_budget, lambda h: _budget(h, 2)),
    "cool-down": _Case(_protected_by_a_cooldown, _pass_two_minutes),
    "conformance": _Case(_protected_by_conformance, _unprotect),
    "refused eviction": _Case(_protected_by_a_refusal, _pass_two_minutes),
    "proportion": _Case(_protected_by_a_share, _raise_demand, members=1),
    "capacity": _Case(_protected_by_deserved_amounts, _raise_deserved),
    "reclaimable": _Case(_protected_by_a_queue, lambda h: h.queue("other")),
}


def _waiting(h: Harness, members: int = 2, name: str = "g") -> Harness:
    """The cluster with a free node of another kind and a gang of high priority that waits for the full nodes."""
    h.priority_class("high", 100)
    h.step()
    if "q" not in h.state.queues:
        h.queue("q", deserved={"cpu": "1"})
    h.queue("late", deserved={"cpu": "50"}, weight=50)
    h.node("spare", cpu="50", labels={"kind": "spare"})
    h.group(name, queue="q", min_member=members, priority_class="high")
    for i in range(members):
        h.pod(f"{name}-{i}", group=name, requests={"cpu": "3"}, nodeSelector={"kind": "full"})
    for _ in range(3):
        h.step()
    assert h.core.snapshot().failed_attempts.get(f"default/{name}") is not None
    return h


def _late(h: Harness, kind: str, name: str = "late", cpu: str = "1") -> int:
    """The nodes examined for victims in the session of a new pod that fits a node of a kind."""
    h.group(name, queue="late")
    h.pod(name, group=name, requests={"cpu": cpu}, nodeSelector={"kind": kind})
    h.step()
    assert h.binds[name]
    return h.last_session.report.examined_nodes


def _evicted(h: Harness) -> set[str]:
    return {intent.name for intent in h.step().intents if isinstance(intent, Evict)}


@pytest.mark.parametrize("name", _CASES)
def test_a_search_that_failed_is_not_repeated_until_its_protection_ends(name: str) -> None:
    case = _CASES[name]
    h = _waiting(case.cluster(), case.members)
    assert _late(h, "spare") == 0, "a node changed that the gang cannot use"
    assert not h.last_session.preemption_reports
    assert not _evicted(h)
    case.change(h)
    evicted = _evicted(h)
    assert evicted <= {"low-0", "low-1"}
    assert len(evicted) == case.members


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_only_changed_nodes_are_examined_again(action: str) -> None:
    h = _waiting(_protected_by_a_budget(action))
    assert _late(h, "full") == 1, "of two nodes"
    h.settle()  # the new pod runs
    assert _late(h, "spare", "another") == 0


def test_without_the_eviction_version_of_a_plugin_every_session_searches() -> None:
    class Guarding(Plugin):
        name = "guarding"

        def preemptable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
            return VictimDecision(dict.fromkeys([candidate.uid for candidate in candidates], "guarded"))

    class Declaring(Guarding):
        name = "declaring"

        def eviction_version(self, hook: str, queue: Queue, role: str) -> int:
            return 1

    for plugin, examined in (Guarding, 2), (Declaring, 0):
        h = Harness(_conf(plugin.name).replace(", reclaim", ""), run=True, plugins=[plugin])
        _victims(h, "q")
        assert _late(_waiting(h), "spare") >= examined, plugin.name
        assert bool(h.last_session.report.examined_nodes) is bool(examined), plugin.name


def test_free_capacity_that_satisfies_no_gang_leaves_the_search_failed() -> None:
    h = _waiting(_CASES["budget"].cluster(), members=3)
    h.node("n2", cpu="4", labels={"kind": "full"})
    h.settle()
    assert h.core.snapshot().failed_attempts.get("default/g") is not None
    assert _late(h, "spare") == 0
    h.set_phase("low-0", "Succeeded")
    h.step()
    assert h.last_session.report.examined_nodes <= 2, "the nodes of the pod that ended, for each action"
    assert not h.binds.keys() & {"g-0", "g-1", "g-2"}
    _budget(h, 1)
    assert _evicted(h) == {"low-1"}


def test_free_capacity_may_change_again_and_again_below_what_a_gang_needs() -> None:
    h = Harness(_conf("pdb").replace(", reclaim", ""), run=True)
    _budget(h, 0)
    _victims(h, "q", labels={"app": "web"})
    h.node("n2", cpu="6", labels={"kind": "full", "own": "yes"})
    _waiting(h, members=3)
    assert _late(h, "full") == 1, "of two nodes; two pods of the gang fit the third"
    h.settle()
    for i in range(4):
        h.group(f"own-{i}", queue="late")
        h.pod(f"own-{i}", group=f"own-{i}", requests={"cpu": "1"}, nodeSelector={"own": "yes"})
        for _ in range(3):
            h.step()
            assert (h.last_session.report.errors, h.last_session.report.examined_nodes) == ([], 0)
        assert h.binds[f"own-{i}"] == "n2"
    _budget(h, 2)
    assert not _evicted(h), "for two of three pods"


def test_a_queue_that_uses_less_leaves_the_search_failed() -> None:
    h = Harness(_conf("pdb", "proportion").replace(", reclaim", ""), run=True)
    _budget(h, 0)
    _victims(h, "q", labels={"app": "web"})
    h.queue("q", capability={"cpu": "12"})
    h.node("n2", cpu="4", labels={"kind": "own"})
    h.group("own", queue="q")
    h.pod("own", group="own", requests={"cpu": "3"}, node="n2")
    _waiting(h)
    h.set_phase("own", "Succeeded")
    h.step()
    assert h.last_session.report.examined_nodes == 0
    assert h.last_session.report.visited_jobs == 0
    _budget(h, 2)
    assert _evicted(h) == {"low-0", "low-1"}
