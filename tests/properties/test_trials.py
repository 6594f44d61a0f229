"""The trial for one job equals the trial that attempts every job to the end, on random clusters."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import event, given, settings

from capcard_sched.framework.conf.scheduler_conf import Conf
from capcard_sched.framework.core import Core
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.forked_copy import in_copy
from capcard_sched.insight.trials.preemption import EVICTING_ACTIONS, begin_trial
from capcard_sched.insight.trials.trial import advance, with_actions
from capcard_sched.model.job import Job
from capcard_sched.model.trials import PreemptionTrial, StateDifference
from tests.properties.test_failed_attempts import _PREEMPTING, _Turn, _turn, _turns, _Typed
from tests.properties.test_scheduling import _Gang, _gangs, _World, _worlds

_SESSIONS = 8


class _Trials(msgspec.Struct):
    """The results by key of the job."""

    by_job: dict[str, PreemptionTrial]


def _load_again(core: Core, now: float) -> list[Job]:
    """As after `load_cluster`: new plugins, and one session over everything. The last two jobs that wait."""
    core.reconfigure(core.snapshot().conf)
    core.step([], now)
    jobs = core.snapshot().state.jobs.values()
    return [job for job in jobs if job.pending and job.ready_tasks < max(1, job.min_available)][-2:]


def _all_unrestricted(core: Core, now: float) -> _Trials:
    return _Trials({job.key: _unrestricted(core, job, now) for job in _load_again(core, now)})


def _with_new_plugins(core: Core, now: float, conf: Conf, only: str = "") -> StateDifference:
    def run() -> StateDifference:
        vars(core)["try_actions"] = lambda conf, only: core.reconfigure(conf)
        return advance(core, now, max_sessions=_SESSIONS, conf=conf, only=only)

    return in_copy(run, StateDifference)


def _of_a_fix(core: Core, now: float, conf: Conf) -> StateDifference:
    """As trials of fixes do it: the plugins continue, and searches for victims leave out what nothing reads."""
    core.keep_silent(searches=True)
    return advance(core, now, max_sessions=_SESSIONS, conf=conf)


def _unrestricted(core: Core, job: Job, now: float) -> PreemptionTrial:
    """The result by sessions that go on for all jobs, with new plugins."""
    conf = with_actions(core.snapshot().conf, EVICTING_ACTIONS)
    alone, together = _with_new_plugins(core, now, conf, job.key), _with_new_plugins(core, now, conf)
    found = together if {job.key} & {*alone.started, *together.started} else alone
    starts = job.key in found.started and bool(found.evicted)
    result = PreemptionTrial(
        actions=EVICTING_ACTIONS, starts=starts, evicted=found.evicted, searches=found.searches.get(job.key, ())
    )
    return _of_own_evictions(result, job)


def _of_own_evictions(result: PreemptionTrial, job: Job) -> PreemptionTrial:
    """Without evictions for other jobs: a trial that ends with its job has fewer of them."""
    own = {job.key, *(task.key for task in job.tasks.values())}
    return msgspec.structs.replace(result, evicted=tuple(one for one in result.evicted if one.by in own))


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
    wanted = in_copy(partial(_all_unrestricted, core, now), _Trials).by_job
    _load_again(core, now)
    evicting = with_actions(core.snapshot().conf, EVICTING_ACTIONS)
    everything = in_copy(partial(_of_a_fix, core, now, evicting), StateDifference)
    assert msgspec.structs.replace(everything, searches={}) == msgspec.structs.replace(
        _with_new_plugins(core, now, evicting), searches={}
    )
    event(f"{min(len(everything.evicted), 3)} evictions or more")
    core.keep_silent()  # as for an answer: its sessions make no texts
    for job in _load_again(core, now):
        trial = begin_trial(core, DeltaObjects(()), job, now)
        assert trial is not None
        found = trial.finding()
        assert found.result is not None
        assert _of_own_evictions(found.result, job) == wanted[job.key], job.key
        event("starts" if found.result.starts else "does not start")
