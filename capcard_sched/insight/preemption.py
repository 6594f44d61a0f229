"""Whether evictions would start a job: a trial with the evicting actions that the scheduler-conf does not have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.insight.forked_copy import ForkedCopyError, RunningCopy, in_copy
from capcard_sched.insight.trial import try_actions, with_actions
from capcard_sched.model.quoting import plural
from capcard_sched.model.trials import PreemptionTrial, StateDifference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core
    from capcard_sched.model.explanation import VictimsConsidered
    from capcard_sched.model.job import Job
    from capcard_sched.model.trials import EvictedInTrial

#: Actions that evict pods for others: first within a queue, then across queues.
EVICTING_ACTIONS: Final = ("preempt", "reclaim")
#: Sessions of the trial: evictions, and the placement after them.
_SESSIONS: Final = 8
_MOST_NAMES: Final = 4
#: Why a pod is no victim, as the search counts it, to words.
_CAUSES: Final = {
    "not-preemptable": "not preemptable",
    "other-queue": "of other queues",
    "priority": "of no lower priority",
    "same-queue": "of the same queue",
    "service-type": "protected by service type",
    "no-job": "of pods without a job",
    "queue-not-reclaimable": "of queues with reclaimable: false",
}


class PreemptionFinding(NamedTuple):
    """The trial as data and as sentences; no data when it failed."""

    result: PreemptionTrial | None
    facts: Sequence[str]


class EvictionTrial:
    """The trial for a pending job, in a copy of the process. Ends with `finding` or `stop`."""

    def __init__(self, core: Core, job: Job, now: float, missing: Sequence[str]) -> None:
        self._job, self._missing = job, tuple(missing)
        conf = with_actions(core.snapshot().conf, self._missing)
        self._copy = RunningCopy(partial(_try_evictions, core, now, conf, job.key), StateDifference)

    def finding(self) -> PreemptionFinding:
        """Wait for the result."""
        job, missing = self._job, self._missing
        try:
            found = self._copy.result()
        except ForkedCopyError as error:
            return PreemptionFinding(None, [f"The trial with {' and '.join(missing)} failed: {error}"])
        own = {task.key for task in job.tasks.values()}
        evicted = tuple(one for one in found.evicted if one.by in own or one.by == job.key)
        starts = job.key in found.started and bool(evicted)
        searches = found.searches.get(job.key, ())
        result = PreemptionTrial(actions=missing, starts=starts, evicted=evicted, searches=searches)
        return PreemptionFinding(result, _sentences(result))

    def stop(self) -> None:
        """End the trial without its result."""
        self._copy.stop()


def begin_trial(core: Core, job: Job, now: float) -> EvictionTrial | None:
    """Begin the trial of a pending job; None when the scheduler-conf has both actions: sessions try them already.

    None with an extender, too: sessions of a trial would call its webhook.
    """
    missing = tuple(action for action in EVICTING_ACTIONS if action not in core.snapshot().conf.actions)
    if not missing or core.snapshot().conf.option("extender") is not None:
        return None
    return EvictionTrial(core, job, now, missing)


def preemption_trial(core: Core, job: Job, now: float) -> PreemptionFinding | None:
    """The result for a pending job; None where there is no trial."""
    trial = begin_trial(core, job, now)
    return None if trial is None else trial.finding()


def _try_evictions(core: Core, now: float, conf: Conf, key: str) -> StateDifference:
    """Other jobs compete for the victims. Alone, a job finds at least as many, at the cost of one search."""
    attempt = partial(try_actions, core, now, conf, key, max_sessions=_SESSIONS)
    found = in_copy(partial(attempt, alone=True), StateDifference)
    return attempt(alone=False) if key in found.started else found


def _sentences(found: PreemptionTrial) -> list[str]:
    if found.starts:
        by_action: dict[str, list[EvictedInTrial]] = {}
        for one in found.evicted:
            by_action.setdefault(one.action, []).append(one)
        actions = " and ".join(sorted(by_action))
        verb = "is" if len(by_action) == 1 else "are"
        workloads = list(dict.fromkeys(one.workload for one in found.evicted))
        shown = ", ".join(workloads[:_MOST_NAMES])
        more = f" and {len(workloads) - _MOST_NAMES} more" if len(workloads) > _MOST_NAMES else ""
        pods = f"{plural(len(found.evicted), 'pod')}"
        text = f"{actions} {verb} not in `actions` of the scheduler-conf"
        return [f"{text}; with it, {pods} of {shown}{more} would be evicted and the job starts"]
    actions = " and ".join(found.actions)
    verb = "is" if len(found.actions) == 1 else "are"
    text = f"{actions} {verb} not in `actions` of the scheduler-conf and would not help"
    protected = "; ".join(_search(search) for search in found.searches if search.kept or search.not_enough)
    return [f"{text}: {protected}" if protected else text]


def _search(search: VictimsConsidered) -> str:
    causes = [f"{count} {_CAUSES.get(cause, f'protected by {cause}')}" for cause, count in search.kept]
    if search.not_enough:
        causes.append(f"not enough on {plural(search.not_enough, 'node')}")
    return f"{search.action} finds no victims ({', '.join(causes)})"
