"""Whether evictions would start a job: a trial with the evicting actions that the scheduler-conf does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.insight.forked_copy import ForkedCopyError
from capcard_sched.insight.trial import try_actions, with_actions
from capcard_sched.model.trials import PreemptionTrial

if TYPE_CHECKING:
    from collections.abc import Sequence

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
}


class PreemptionFinding(NamedTuple):
    """The trial as data and as sentences; no data when it failed."""

    result: PreemptionTrial | None
    facts: Sequence[str]


def preemption_trial(core: Core, job: Job, now: float) -> PreemptionFinding | None:
    """The result for a pending job; None when the scheduler-conf has both actions: sessions try them already.

    None with an extender, too: sessions of a trial would call its webhook.
    """
    missing = tuple(action for action in EVICTING_ACTIONS if action not in core.snapshot().conf.actions)
    if not missing or core.snapshot().conf.option("extender") is not None:
        return None
    conf = with_actions(core.snapshot().conf, missing)
    try:
        # Other jobs compete for the victims. Alone, the job finds at least as many, at the cost of one search.
        found = try_actions(core, now, conf, job.key, max_sessions=_SESSIONS, alone=True)
        if job.key in found.started:
            found = try_actions(core, now, conf, job.key, max_sessions=_SESSIONS, alone=False)
    except ForkedCopyError as error:
        return PreemptionFinding(None, [f"The trial with {' and '.join(missing)} failed: {error}"])
    own = {task.key for task in job.tasks.values()}
    evicted = tuple(one for one in found.evicted if one.by in own or one.by == job.key)
    starts = job.key in found.started and bool(evicted)
    searches = found.searches.get(job.key, ())
    result = PreemptionTrial(actions=missing, starts=starts, evicted=evicted, searches=searches)
    return PreemptionFinding(result, _sentences(result))


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
        pods = f"{len(found.evicted)} pod{'' if len(found.evicted) == 1 else 's'}"
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
        causes.append(f"not enough on {search.not_enough} node{'' if search.not_enough == 1 else 's'}")
    return f"{search.action} finds no victims ({', '.join(causes)})"
