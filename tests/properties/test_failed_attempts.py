"""Sessions that skip standing failures write what sessions write that attempt every waiting job."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from capcard_sched.model.intents import Bind, Evict, UpdatePodGroup
from capcard_sched.testing import Harness
from tests.properties.test_scheduling import _CONFS, _Event, _events, _Run, _World, _worlds


class _Turn(NamedTuple):
    """The events before a step, and the seconds since the last one."""

    events: list[_Event]
    seconds: int
    #: New quota of one queue, or None.
    quota: tuple[str, int, int] | None


_turns = st.lists(
    st.builds(
        _Turn,
        events=st.lists(_events, max_size=2),
        seconds=st.sampled_from([1, 1, 40, 150, 299, 300, 301]),
        quota=st.none() | st.tuples(st.sampled_from(["q", "r"]), st.integers(0, 5), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=8,
)
_PREEMPTING = (
    'actions: "enqueue, allocate, preempt, reclaim, backfill"\n'
    "tiers: [{plugins: [{name: priority}, {name: gang}, {name: conformance}, {name: predicates}, "
    "{name: capacity-card}, {name: nodeorder}]}]"
)


def _attempt_everything(h: Harness) -> None:
    h.core.failed_attempts.add = lambda *_: None  # type: ignore[method-assign]


def _turn(run: _Run, turn: _Turn) -> tuple[list[list[Any]], dict[str, str], list[str]]:
    """The decisions of each step, the phases, and everything written until the changes of the turn are worked off.

    A failure whose cause changes within a session, by a placement before the job's turn, is written one session later.
    """
    for event in turn.events:
        run.happen(event)
    if turn.quota is not None:
        name, a, b = turn.quota
        run.h.queue(name, cards={"A": a, "B": b}, capability={"cpu": "1000", "memory": "1000Gi"})
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


@pytest.mark.parametrize("conf", [*(_CONFS[name] for name in ("cards", "plain", "spread", "shares")), _PREEMPTING])
@given(world=_worlds, turns=_turns)
@settings(max_examples=40)
def test_skipped_jobs_change_no_decision_event_condition_or_phase(conf: str, world: _World, turns: list[_Turn]) -> None:
    skipping, full = _Run(conf, world), _Run(conf, world)
    _attempt_everything(full.h)
    for turn in (_Turn([], 1, None), *turns, _Turn([], 1, None)):
        assert _turn(skipping, turn) == _turn(full, turn)
