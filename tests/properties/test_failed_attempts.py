"""Sessions that skip standing failures write what sessions write that attempt every waiting job."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

from capcard_sched.model.annotations import COOLDOWN_TIME, QUEUE_NAMESPACES, SERVICE_TYPE
from capcard_sched.model.card_budgets import CardBudgetObject
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import Bind, Evict, UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.testing import Harness
from tests.properties.test_scheduling import _CONFS, _Event, _events, _Gang, _gangs, _Node, _Pod, _Run, _World, _worlds


class _Turn(NamedTuple):
    """The events before a step, and the seconds since the last one."""

    events: list[_Event]
    seconds: int
    #: An edit of one queue, or None.
    queue: _QueueEdit | None
    #: An edit of one node, or None.
    node: _NodeEdit | None = None
    #: A new gang of high priority, or None.
    gang: _Gang | None = None
    #: The disruptions that the budget of some pods allows from now on, or None for no change.
    budget: int | None = None


class _QueueEdit(NamedTuple):
    name: str
    cards: dict[str, int]
    cpu: int
    state: str
    #: The namespaces it accepts; None accepts all.
    namespaces: str | None
    weight: int
    #: CPUs it deserves.
    deserved: int
    reclaimable: bool


class _NodeEdit(NamedTuple):
    number: int
    cpu: int
    cards: int
    #: `spec.unschedulable`.
    cordoned: bool


_turns = st.lists(
    st.builds(
        _Turn,
        events=st.lists(_events, max_size=2),
        seconds=st.sampled_from([1, 1, 40, 150, 299, 300, 301]),
        queue=st.none()
        | st.builds(
            _QueueEdit,
            name=st.sampled_from(["q", "r", "s"]),
            cards=st.fixed_dictionaries({"A": st.integers(0, 5), "B": st.integers(0, 5)}),
            cpu=st.sampled_from([1000, 1000, 3]),
            state=st.sampled_from(["Open", "Open", "Closed"]),
            namespaces=st.sampled_from([None, None, "default", "another"]),
            weight=st.sampled_from([1, 1, 9]),
            deserved=st.integers(0, 9),
            reclaimable=st.sampled_from([True, True, False]),
        ),
        node=st.none()
        | st.builds(
            _NodeEdit,
            number=st.integers(0, 4),
            cpu=st.integers(0, 8),
            cards=st.integers(0, 4),
            cordoned=st.booleans(),
        ),
        gang=st.none() | st.builds(lambda gang: gang._replace(priority="high"), _gangs),
        budget=st.none() | st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)

#: Pods on nodes of one size, that gangs of high priority may evict as far as budgets and cool-downs permit.
_low = st.builds(
    lambda queue, minimum, cpu, count: _Gang(queue, minimum, (_Pod(cpu, ""),) * count, ""),
    st.sampled_from(["q", "r"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
)
_full_worlds = st.builds(
    _World,
    nodes=st.lists(st.just(_Node(4, "A", 0, 110)), min_size=2, max_size=3),
    quotas=st.just({"q": {"A": 9, "B": 9}, "r": {"A": 9, "B": 9}}),
    gangs=st.lists(_low, min_size=3, max_size=6),
    later=st.lists(_low, min_size=2, max_size=2),
    events=st.just([]),
)
_full_turns = st.lists(
    st.builds(
        _Turn,
        events=st.lists(
            st.builds(_Event, st.sampled_from(["finish", "delete pod", "add gang", "foreign"]), st.integers(0, 30)),
            max_size=1,
        ),
        seconds=st.sampled_from([1, 1, 1, 100, 240]),
        queue=st.none()
        | st.builds(
            _QueueEdit,
            name=st.sampled_from(["q", "r"]),
            cards=st.just({"A": 9, "B": 9}),
            cpu=st.sampled_from([1000, 1000, 6]),
            state=st.just("Open"),
            namespaces=st.none(),
            weight=st.sampled_from([1, 9]),
            deserved=st.integers(0, 9),
            reclaimable=st.booleans(),
        ),
        gang=st.none()
        | st.builds(
            lambda cpu, count, extra: _Gang("q", count, (_Pod(cpu, ""),) * (count + extra), "high"),
            st.integers(2, 4),
            st.integers(1, 3),
            st.integers(0, 1),
        ),
        node=st.none(),
        budget=st.none() | st.integers(0, 2),
    ),
    min_size=2,
    max_size=8,
)


#: Gangs that lose pods while a limit refuses them.
_refused_turns = st.lists(
    st.builds(
        _Turn,
        events=st.lists(
            st.builds(_Event, st.sampled_from(["delete pod", "delete pod", "finish", "add gang"]), st.integers(0, 30)),
            max_size=3,
        ),
        seconds=st.sampled_from([1, 40, 150]),
        queue=st.none(),
        budget=st.none() | st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)


def _evicting(*tiers: str) -> str:
    listed = ", ".join(f"{{plugins: [{tier}]}}" for tier in tiers)
    return f'actions: "enqueue, allocate, preempt, reclaim, backfill"\ntiers: [{listed}]'


#: With preemption and reclaim, by plugins that protect jobs and by plugins that read the books of other queues.
_PREEMPTING = (
    _evicting(
        "{name: priority}, {name: gang}, {name: conformance}, {name: predicates}, {name: capacity-card}, "
        "{name: nodeorder}"
    ),
    _evicting(
        "{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}",
        "{name: drf, enablePreemptable: false}, {name: predicates}, {name: capacity-card}, {name: nodeorder}",
    ),
    _evicting("{name: priority}, {name: gang}", "{name: predicates}, {name: proportion}, {name: nodeorder}"),
    _evicting("{name: gang, enablePreemptable: false, enableReclaimable: false}, {name: priority}, {name: capacity}"),
)
#: With possible victims that are protected for the time being: by budgets, cool-downs, deserved amounts, other tiers.
_PROTECTING = (
    _evicting(
        "{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}, {name: pdb}, {name: cdp}, "
        "{name: predicates}, {name: capacity-card}, {name: nodeorder}"
    ),
    _evicting(
        "{name: priority}, {name: gang, enablePreemptable: false, enableReclaimable: false}, {name: pdb}, "
        "{name: predicates}, {name: proportion}, {name: nodeorder}",
    ),
    _evicting(
        "{name: priority}, {name: gang, enablePreemptable: false, enableReclaimable: false}",
        "{name: conformance}, {name: cdp}, {name: predicates}, {name: capacity, enableHierarchy: true}",
    ),
    _evicting(
        "{name: priority}, {name: gang}",
        "{name: drf}, {name: pdb}, {name: predicates}, {name: proportion}, {name: nodeorder}",
    ),
)
#: With scores of nodes that depend on the pods of their HyperNodes.
_PACKING = tuple(
    _evicting(
        "{name: priority}, {name: gang, enableReclaimable: false}, {name: conformance}",
        f"{{name: predicates}}, {{name: {quotas}}}, {{name: network-topology-aware}}, {{name: nodeorder}}",
    )
    for quotas in ("capacity-card", "capacity")
)
#: With votes on admission that depend on time, on the tree of queues, and reservations that are returned.
_ADMITTING = tuple(
    f'actions: "enqueue, allocate, backfill"\n'
    f"tiers: [{{plugins: [{{name: priority}}, {{name: gang}}, {{name: predicates}}, {plugins}]}}]\n"
    "configurations: [{name: enqueue, arguments: {inqueueTimeoutSeconds: 100}}]"
    for plugins in (
        "{name: sla, arguments: {sla-waiting-time: 3m}}, {name: capacity-card}",
        "{name: capacity}, {name: overcommit}",
        "{name: proportion}, {name: overcommit}",
    )
)


#: With votes on admission that depend on objects of other kinds, and as few others as possible.
_LIMITING = tuple(
    f'actions: "enqueue, allocate, backfill"\n'
    f"tiers: [{{plugins: [{{name: priority}}, {{name: gang}}, {{name: predicates}}, {plugins}]}}]"
    for plugins in (
        "{name: budget}",
        "{name: resourcequota}, {name: overcommit}",
        (
            "{name: fairshare, arguments: {fairshare.resourceKey: cpu, fairshare.enableEnqueueGate: true}}, "
            "{name: proportion}"
        ),
    )
)


class _Typed(_Run):
    """Jobs of queue `r` are training, those of priority `high` in queue `q` are inference."""

    def __init__(self, conf: str, world: _World) -> None:
        #: Names of the pods that were evicted and are gone by the next turn.
        self.evicted: list[str] = []
        super().__init__(conf, world)

    def add_node(self, node: _Node) -> None:
        """Two nodes are a HyperNode."""
        super().add_node(node)
        number = (len(self.nodes) - 1) // 2
        self.h.hyper_node(f"h{number}", 1, nodes=sorted(self.nodes)[2 * number :])

    def add_gang(self, gang: _Gang, **pod_fields: Any) -> None:
        """Of three gangs one has a budget, and one a cool-down that starts with the creation of its pods.

        Each second one has `minResources`.
        """
        labels = ({"app": "web"}, {COOLDOWN_TIME: "4m"}, {})[len(self.gangs) % 3]
        super().add_gang(gang, labels=labels)
        kind = "training" if gang.queue == "r" else "inference" if gang.priority else ""
        number = len(self.gangs) - 1
        self.h.group(
            f"g{number}",
            queue=gang.queue,
            min_member=gang.minimum,
            min_resources={"cpu": str(2 * gang.minimum)} if number % 2 else None,
            phase="Pending",
            priority_class=gang.priority,
            annotations={SERVICE_TYPE: kind} if kind else {},
        )


def _set_budget(h: Harness, allowed: int) -> None:
    body = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    h.apply(ObjectChanged(msgspec.convert(body, PodDisruptionBudgetObject)))


def _set_limits(h: Harness, allowed: int) -> None:
    """No card is spent, or A, or both; the quota of the namespace is small to large."""
    spent = ("", "A", "AB")[2 - allowed]
    budget = {
        "metadata": {"name": "month"},
        "spec": {"queue": "q", "period": "month", "cards": {"A": "1h", "B": "1h"}, "whenSpent": "stop"},
        "status": {
            "periodStart": "2026-01-01T00:00:00Z",
            "periodEnd": "2026-02-01T00:00:00Z",
            "used": {card: "1.00h" if card in spent else "0.50h" for card in "AB"},
            "remaining": {card: "0.00h" if card in spent else "0.50h" for card in "AB"},
        },
    }
    h.apply(ObjectChanged(msgspec.convert(budget, CardBudgetObject)))
    quota = {
        "metadata": {"name": "quota", "namespace": "default"},
        "spec": {"hard": {"requests.cpu": str(6 * allowed)}},
        "status": {"hard": {"requests.cpu": str(6 * allowed)}, "used": {}},
    }
    h.apply(ObjectChanged(msgspec.convert(quota, ResourceQuotaObject)))


def _start_cooldowns(run: _Typed) -> None:
    """The kubelet reports that pods with a cool-down are scheduled."""
    for name in sorted(run.pods.keys() & run.h.binds.keys()):
        task = run.h.task(name)
        if task.cooldown is not None and not task.cooldown.scheduled and not task.deleting:
            condition = {
                "type": "PodScheduled",
                "status": "True",
                "lastTransitionTime": format_timestamp(run.h.now),
            }
            run.h.set_phase(name, "Running", conditions=[condition])


def _attempt_everything(h: Harness) -> None:
    h.core.snapshot().failed_attempts.add = lambda *_: None  # type: ignore[method-assign]
    h.core.snapshot().failed_attempts.add_refused = lambda *_: None  # type: ignore[method-assign]
    h.core.snapshot().failed_attempts.is_hopeless = lambda *_: False  # type: ignore[method-assign]


def _turn(run: _Typed, turn: _Turn) -> tuple[list[list[Any]], list[dict[str, str]], list[str]]:
    """The decisions and phases of each step, and everything written until the changes of the turn are worked off.

    A failure whose cause changes within a session, by a placement before the job's turn, is written one session later,
    and so is a phase that follows from a placement; figures are refreshed at the time of the next attempt.
    """
    for name in run.evicted:
        if run.pods.pop(name, None) is not None:
            run.h.delete_pod(name)
    run.evicted.clear()
    for event in turn.events:
        run.happen(event)
    if turn.gang is not None:
        run.add_gang(turn.gang)
    if turn.budget is not None:
        _set_budget(run.h, turn.budget)
        _set_limits(run.h, turn.budget)
    _start_cooldowns(run)
    if (edit := turn.queue) is not None:
        notes = {} if edit.namespaces is None else {QUEUE_NAMESPACES: edit.namespaces}
        limits = {"cpu": str(edit.cpu), "memory": "1000Gi"}
        run.h.queue(
            edit.name,
            cards=edit.cards,
            capability=limits,
            state=edit.state,
            annotations=notes,
            weight=edit.weight,
            deserved={"cpu": str(edit.deserved)},
            reclaimable=edit.reclaimable,
        )
    if (change := turn.node) is not None:
        name = sorted(run.nodes)[change.number % len(run.nodes)]
        run.nodes[name] = node = run.nodes[name]._replace(cpu=change.cpu, cards=change.cards)
        run.h.gpu_node(
            name, card=node.card, count=node.cards, cpu=str(node.cpu), memory="64Gi", unschedulable=change.cordoned
        )
    decisions: list[list[Any]] = []
    written: set[str] = set()
    # Of a pod condition the last one: its reason follows the quotas at once, its message a new attempt.
    conditions: dict[str, str] = {}
    phases: list[dict[str, str]] = []
    for seconds in (turn.seconds, 1, 1):
        result = run.h.step(run.h.now + seconds)
        assert not result.report.errors
        decisions.append([intent for intent in result.intents if isinstance(intent, (Bind, Evict))])
        run.evicted += [intent.name for intent in result.intents if isinstance(intent, Evict)]
        written |= {_content(intent) for intent in result.intents if not isinstance(intent, UpdatePodCondition)}
        conditions |= {one.uid: _content(one) for one in result.intents if isinstance(one, UpdatePodCondition)}
        phases.append({key: job.phase.value for key, job in run.h.state.jobs.items()})
    return decisions, phases, sorted([*written, *conditions.values()])


def _content(intent: Any) -> str:
    """An intent without the number and the time of its session."""
    if isinstance(intent, UpdatePodGroup):
        conditions = tuple(
            msgspec.structs.replace(condition, transition_id="", last_transition_time="")
            for condition in intent.conditions
        )
        intent = msgspec.structs.replace(intent, conditions=conditions)
    return repr(intent)


@pytest.mark.parametrize(
    "conf",
    [*(_CONFS[name] for name in ("cards", "plain", "spread", "shares")), *_PREEMPTING, *_PROTECTING, *_ADMITTING],
)
@given(world=_worlds, turns=_turns)
@settings(max_examples=settings().max_examples // 2)
def test_skipped_jobs_change_no_decision_event_condition_or_phase(conf: str, world: _World, turns: list[_Turn]) -> None:
    if conf in (*_PREEMPTING, *_PROTECTING):  # few nodes, full of pods that gangs of later turns may evict
        world = world._replace(nodes=world.nodes[:2], gangs=[gang._replace(priority="") for gang in world.gangs])
    skipping, full = _Typed(conf, world), _Typed(conf, world)
    _attempt_everything(full.h)
    for turn in (_Turn([], 1, None), *turns, _Turn([], 1, None)):
        assert _turn(skipping, turn) == _turn(full, turn)


@pytest.mark.parametrize("conf", [*_ADMITTING, *_LIMITING])
@given(world=_worlds, turns=_turns | _refused_turns)
@example(
    world=_World(
        nodes=[_Node(4, "A", 4, 110)],
        quotas={"q": {"A": 4, "B": 4}, "r": {"A": 4, "B": 4}},
        gangs=[_Gang("q", 1, (_Pod(1, "A"), _Pod(1, "")), "")],
        later=[],
        events=[],
    ),
    turns=[_Turn([_Event("delete pod", 0)], 1, None)],
)
@settings(max_examples=settings().max_examples // 2)
def test_refusals_that_stand_change_no_decision_or_phase(conf: str, world: _World, turns: list[_Turn]) -> None:
    kept, full = _Typed(conf, world), _Typed(conf, world)
    _attempt_everything(full.h)
    full.h.core._memory.keep_admission = lambda *_: None  # type: ignore[method-assign]
    for turn in (_Turn([], 1, None, budget=0), *turns, _Turn([], 1, None)):
        assert _turn(kept, turn)[:2] == _turn(full, turn)[:2]


@pytest.mark.parametrize("conf", _PACKING)
@given(world=_worlds, turns=_turns)
@settings(max_examples=settings().max_examples // 2)
def test_jobs_skipped_beside_scores_that_compare_nodes_change_no_decision_or_phase(
    conf: str, world: _World, turns: list[_Turn]
) -> None:
    skipping, full = _Typed(conf, world), _Typed(conf, world)
    _attempt_everything(full.h)
    for turn in (_Turn([], 1, None), *turns, _Turn([], 1, None)):
        assert _turn(skipping, turn)[:2] == _turn(full, turn)[:2]


@pytest.mark.parametrize("conf", [_PREEMPTING[1], *_PROTECTING])
@given(world=_full_worlds, turns=_full_turns)
@settings(max_examples=settings().max_examples // 2)
def test_failed_searches_that_stand_change_no_decision_or_phase(conf: str, world: _World, turns: list[_Turn]) -> None:
    skipping, full = _Typed(conf, world), _Typed(conf, world)
    _attempt_everything(full.h)
    for turn in (_Turn([], 1, None, budget=0), *turns, _Turn([], 1, None)):
        assert _turn(skipping, turn)[:2] == _turn(full, turn)[:2]
