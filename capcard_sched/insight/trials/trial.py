"""Trials: hypothetical changes on a copy of the state, sessions until nothing happens, and the difference.

A trial is a forked copy of the core (`forked_copy`), so it starts from exactly the state that a diagnosis shows, and
costs its sessions only. In it bound pods stay assumed and evicted pods end at once; no controller replaces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.framework.explain.queue_uses import card_uses
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.intents import Evict
from capcard_sched.model.quantity import in_units
from capcard_sched.model.resources import PODS
from capcard_sched.model.trials import ChangedUsage, EvictedInTrial, StateDifference
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core
    from capcard_sched.framework.step_result import StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.explanation import VictimsConsidered
    from capcard_sched.model.intents import Intent

#: Sessions of one trial.
MAX_SESSIONS: Final = 64
#: Seconds of virtual time between two sessions.
PERIOD: Final = 1.0
#: Sessions without a decision after which nothing more happens.
_QUIET_SESSIONS: Final = 2


class _JobState(NamedTuple):
    placed: int
    ready: bool
    pending: bool


class StateFigures(NamedTuple):
    """The part of a state that a difference compares."""

    jobs: dict[str, _JobState]
    #: (queue, card or resource) to the amount in use.
    usage: dict[tuple[str, str], float]


def try_actions(
    core: Core, now: float, conf: Conf, key: str, changes: Sequence[Delta], *, max_sessions: int, alone: bool
) -> StateDifference:
    """What other actions and `changes` do for one job, by key, from `now` (Unix seconds) on. `conf`: the same plugins.

    On the core itself, for one of a copy. Ends once the pods of the job are placed: of other jobs and of usage the
    difference has no part that is complete. `alone`: sessions attempt no other job.
    """
    core.try_actions(conf, key, only=key if alone else "")
    return advance(core, now, changes, max_sessions=max_sessions, target=key)


def with_actions(conf: Conf, actions: Sequence[str]) -> Conf:
    """The same scheduler-conf with further actions, last."""
    more = tuple(name for name in actions if name not in conf.actions)
    return msgspec.structs.replace(conf, actions=(*conf.actions, *more))


def advance(
    core: Core,
    now: float,
    changes: Sequence[Delta] = (),
    *,
    conf: Conf | None = None,
    max_sessions: int = MAX_SESSIONS,
    only: str = "",
    target: str = "",
    react: Callable[[Core, Sequence[Intent]], Sequence[Delta]] = lambda *_: (),
) -> StateDifference:
    """The difference that `changes` and another scheduler-conf make, from `now` (Unix seconds) on.

    On the core itself, for one of a copy. `only`: the key of the one job that sessions attempt; "" for all. `target`:
    the key of the job whose placement ends the trial, and the only one in the difference; "" for none. `react`: further
    deltas after each session with these intents, in place of controllers and kubelets.
    """
    before = figures_of(core, target)
    if conf is not None and conf.tiers == core.snapshot().conf.tiers:
        core.try_actions(conf, only=only)  # its plugins continue
    elif conf is not None:
        core.reconfigure(conf)
    if only:
        core.attempt_only(only)
    deltas, sessions, quiet = list(changes), 0, 0
    evicted: list[EvictedInTrial] = []
    searches: Mapping[str, Mapping[str, VictimsConsidered]] = {}
    while sessions < max_sessions and quiet < _QUIET_SESSIONS:
        result = step_alone(core, deltas, now)
        evictions = [intent for intent in result.intents if isinstance(intent, Evict)]
        evicted += [_evicted(core, eviction) for eviction in evictions]
        if not sessions and (session := core.snapshot().session) is not None:
            searches = session.results.preemption_reports
        deltas = [ObjectGone("Pod", eviction.namespace, eviction.name, eviction.uid) for eviction in evictions]
        deltas += react(core, result.intents)
        quiet = 0 if deltas or result.report.decided else quiet + 1
        sessions, now = sessions + 1, now + PERIOD
        if target and (job := core.snapshot().state.jobs.get(target)) is not None and job.tasks and not job.pending:
            break
    after = figures_of(core, target)
    return StateDifference(
        started=tuple(sorted(key for key, job in after.jobs.items() if _starts(before.jobs.get(key), job))),
        pending=tuple(sorted(key for key, job in after.jobs.items() if job.pending and not job.ready)),
        evicted=tuple(evicted),
        usage=changed_usage(before, after),
        sessions=sessions,
        settled=quiet >= _QUIET_SESSIONS,
        searches={key: tuple(found[action] for action in sorted(found)) for key, found in sorted(searches.items())},
    )


def step_alone(core: Core, deltas: Sequence[Delta], now: float) -> StepResult:
    """A step of the core without controllers: the ResourceClaims of pods that are gone are released."""
    state = core.snapshot().state
    for delta in deltas if state.claims.claims else ():
        if isinstance(delta, ObjectGone) and delta.kind == "Pod":
            state.release_claims(delta.uid)
    return core.step(deltas, now)


def changed_usage(before: StateFigures, after: StateFigures) -> tuple[ChangedUsage, ...]:
    """Cards and resources of which queues use another amount."""
    old, new = before.usage, after.usage
    return tuple(
        ChangedUsage(queue=queue, resource=resource, before=old.get((queue, resource), 0.0), after=amount)
        for queue, resource in sorted(old.keys() | new.keys())
        if (amount := new.get((queue, resource), 0.0)) != old.get((queue, resource), 0.0)
    )


def _starts(before: _JobState | None, after: _JobState) -> bool:
    """Whether a job is ready with more pods than before."""
    return after.ready and after.placed > (before.placed if before is not None else 0)


def _evicted(core: Core, eviction: Evict) -> EvictedInTrial:
    task = core.snapshot().state.tasks.get(eviction.uid)
    workload = display_name(task.job) if task is not None and task.job is not None else ""
    return EvictedInTrial(
        pod=f"{eviction.namespace}/{eviction.name}",
        workload=workload or f"{eviction.namespace}/pod/{eviction.name}",
        node=eviction.node,
        action=eviction.reason,
        by=eviction.by,
    )


def figures_of(core: Core, target: str = "") -> StateFigures:
    """The figures of the present state; of the job `target` alone, by key, where it is given."""
    state = core.snapshot().state
    jobs = {
        key: _JobState(job.ready_tasks, job.is_ready(), bool(job.pending) or job.ready_tasks < job.min_available)
        for key in ([target] if target else state.jobs)
        if (job := state.jobs.get(key)) is not None
    }
    usage: dict[tuple[str, str], float] = {}
    if target:
        return StateFigures(jobs, usage)
    for name, queue in state.queues.items():
        claimed = core.snapshot().dispatch.first("claimed_amounts", queue) or {}
        for resource, amount in {**state.columns.amounts(queue.allocated), **claimed}.items():
            if resource != PODS:
                usage[name, resource] = in_units(resource, amount)
    resources = {
        card: resource
        for node in state.nodes.by_name.values()
        for card, (_, resource) in state.cards_of(node).items()
        if card != resource
    }
    for name, uses in card_uses(core.snapshot()).items():
        for use in uses:
            usage[name, use.card] = use.allocated
            device = name, resources.get(use.card, "")
            if device in usage:  # what no card counts is left
                usage[device] = max(0.0, usage[device] - use.allocated)
    return StateFigures(jobs, usage)
