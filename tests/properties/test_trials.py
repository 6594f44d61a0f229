"""The trial for one job equals the trial that attempts every job to the end, on random clusters."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import event, given, settings

from capcard_sched.framework.core import Core
from capcard_sched.insight.preemption import EVICTING_ACTIONS, preemption_trial
from capcard_sched.insight.trial import run_trial, with_actions
from capcard_sched.model.job import Job
from capcard_sched.model.trials import PreemptionTrial
from tests.properties.test_failed_attempts import _PREEMPTING, _Turn, _turn, _turns, _Typed
from tests.properties.test_scheduling import _Gang, _gangs, _World, _worlds

_SESSIONS = 8


def _unrestricted(core: Core, job: Job, now: float) -> PreemptionTrial:
    """The result by sessions that go on for all jobs, with new plugins."""
    conf = with_actions(core.snapshot().conf, EVICTING_ACTIONS)
    found = run_trial(core, now, conf=conf, max_sessions=_SESSIONS, only=job.key)
    if job.key in found.started:
        found = run_trial(core, now, conf=conf, max_sessions=_SESSIONS)
    own = {job.key, *(task.key for task in job.tasks.values())}
    evicted = tuple(one for one in found.evicted if one.by in own)
    starts = job.key in found.started and bool(evicted)
    searches = found.searches.get(job.key, ())
    return PreemptionTrial(actions=EVICTING_ACTIONS, starts=starts, evicted=evicted, searches=searches)


@pytest.mark.parametrize("conf", _PREEMPTING)
@given(world=_worlds, turns=_turns, late=st.lists(_gangs, min_size=2, max_size=4))
@settings(max_examples=settings().max_examples // 6)
def test_a_trial_that_ends_with_its_job_has_the_result_of_one_for_all_jobs(
    conf: str, world: _World, turns: list[_Turn], late: list[_Gang]
) -> None:
    gangs = [gang._replace(priority="", minimum=min(gang.minimum, 1)) for gang in world.gangs]
    quotas = {queue: dict.fromkeys(cards, 8) for queue, cards in world.quotas.items()}
    world = world._replace(nodes=world.nodes[:2], gangs=gangs, quotas=quotas)
    run = _Typed(conf.replace("allocate, preempt, reclaim, backfill", "allocate, backfill"), world)
    for turn in (_Turn([], 1, None), *turns[:2]):
        _turn(run, turn)
    for gang in late:
        run.add_gang(gang._replace(priority="high"))
    run.h.step()
    core, now = run.h.core, run.h.now + 1
    core.reconfigure(core.snapshot().conf)  # as after `load_cluster`: new plugins, and one session over everything
    core.step([], now)
    waiting = [
        job
        for job in core.snapshot().state.jobs.values()
        if job.pending and job.ready_tasks < max(1, job.min_available)
    ]
    for job in waiting[-2:]:  # the last ones arrived late
        found = preemption_trial(core, job, now)
        assert found is not None
        assert found.result == _unrestricted(core, job, now), job.key
        assert found.result is not None
        event("starts" if found.result.starts else "does not start")
