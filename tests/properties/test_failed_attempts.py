"""Sessions that skip standing failures write what sessions write that attempt every waiting job."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from capcard_sched.model.annotations import QUEUE_NAMESPACES
from capcard_sched.model.intents import Bind, Evict, UpdatePodGroup
from capcard_sched.testing import Harness
from tests.properties.test_scheduling import _CONFS, _Event, _events, _Run, _World, _worlds


class _Turn(NamedTuple):
    """The events before a step, and the seconds since the last one."""

    events: list[_Event]
    seconds: int
    #: An edit of one queue, or None.
    queue: _QueueEdit | None
    #: An edit of one node, or None.
    node: _NodeEdit | None = None


class _QueueEdit(NamedTuple):
    name: str
    cards: dict[str, int]
    cpu: int
    state: str
    #: The namespaces it accepts; None accepts all.
    namespaces: str | None


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
            name=st.sampled_from(["q", "r"]),
            cards=st.fixed_dictionaries({"A": st.integers(0, 5), "B": st.integers(0, 5)}),
            cpu=st.sampled_from([1000, 1000, 3]),
            state=st.sampled_from(["Open", "Open", "Closed"]),
            namespaces=st.sampled_from([None, None, "default", "another"]),
        ),
        node=st.none()
        | st.builds(
            _NodeEdit,
            number=st.integers(0, 4),
            cpu=st.integers(0, 8),
            cards=st.integers(0, 4),
            cordoned=st.booleans(),
        ),
    ),
    min_size=1,
    max_size=8,
)
_PREEMPTING = (
    'actions: "enqueue, allocate, preempt, reclaim, backfill"\n'
    "tiers: [{plugins: [{name: priority}, {name: gang}, {name: conformance}, {name: predicates}, "
    "{name: capacity-card}, {name: nodeorder}]}]"
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


def _attempt_everything(h: Harness) -> None:
    h.core.failed_attempts.add = lambda *_: None  # type: ignore[method-assign]
    h.core.failed_attempts.add_refused = lambda *_: None  # type: ignore[method-assign]


def _turn(run: _Run, turn: _Turn) -> tuple[list[list[Any]], dict[str, str], list[str]]:
    """The decisions of each step, the phases, and everything written until the changes of the turn are worked off.

    A failure whose cause changes within a session, by a placement before the job's turn, is written one session later.
    """
    for event in turn.events:
        run.happen(event)
    if (edit := turn.queue) is not None:
        notes = {} if edit.namespaces is None else {QUEUE_NAMESPACES: edit.namespaces}
        limits = {"cpu": str(edit.cpu), "memory": "1000Gi"}
        run.h.queue(edit.name, cards=edit.cards, capability=limits, state=edit.state, annotations=notes)
    if (change := turn.node) is not None:
        name = sorted(run.nodes)[change.number % len(run.nodes)]
        run.nodes[name] = node = run.nodes[name]._replace(cpu=change.cpu, cards=change.cards)
        run.h.gpu_node(
            name, card=node.card, count=node.cards, cpu=str(node.cpu), memory="64Gi", unschedulable=change.cordoned
        )
    decisions: list[list[Any]] = []
    written: set[str] = set()
    for seconds in (turn.seconds, 1, 1):
        result = run.h.step(run.h.now + seconds)
        assert not result.report.errors
        decisions.append([intent for intent in result.intents if isinstance(intent, (Bind, Evict))])
        written |= {_content(intent) for intent in result.intents}
    phases = {key: job.phase.value for key, job in run.h.state.jobs.items()}
    return decisions, phases, sorted(written)


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
    "conf", [*(_CONFS[name] for name in ("cards", "plain", "spread", "shares")), _PREEMPTING, *_ADMITTING]
)
@given(world=_worlds, turns=_turns)
@settings(max_examples=40)
def test_skipped_jobs_change_no_decision_event_condition_or_phase(conf: str, world: _World, turns: list[_Turn]) -> None:
    skipping, full = _Run(conf, world), _Run(conf, world)
    _attempt_everything(full.h)
    for turn in (_Turn([], 1, None), *turns, _Turn([], 1, None)):
        assert _turn(skipping, turn) == _turn(full, turn)
