"""Whether evictions would start a job: a trial with the evicting actions that the scheduler-conf does not have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import POD
from capcard_sched.insight.sources.changes import Edits, set_spec
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, RunningCopy, in_copy
from capcard_sched.insight.trials.trial import try_actions, with_actions
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.trials import PreemptionTrial, StateDifference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import ObjectView
    from capcard_sched.model.explanation import VictimsConsidered
    from capcard_sched.model.job import Job, Task

#: Actions that evict pods for others: first within a queue, then across queues.
EVICTING_ACTIONS: Final = ("preempt", "reclaim")
#: The sentence about evictions that do not start the job.
VAIN: Final = "Evicting others would not help"
#: Action to the pods among which it finds victims, and the cause that protects all others.
_WHERE: Final = {"preempt": ("this queue has", "other-queue"), "reclaim": ("other queues have", "same-queue")}
#: The cause of pods of other schedulers, which are in no queue.
_NO_QUEUE: Final = "no-job"
#: Sessions of the trial: evictions, and the placement after them.
_SESSIONS: Final = 8
#: Jobs times nodes of the cluster, up to which all jobs are tried where the one alone finds no victims.
_MOST_TOGETHER: Final = 1000


class PreemptionFinding(NamedTuple):
    """The trial as data and as sentences; no data when it failed."""

    result: PreemptionTrial | None
    facts: Sequence[str]


class EvictionTrial:
    """The trial for a pending job, in a copy of the process. Ends with `finding` or `stop`.

    Where the missing actions do not help a job with pods that never preempt, a second trial lifts their policy.
    """

    def __init__(
        self, core: Core, objects: ObjectView, job: Job, now: float, missing: Sequence[str], never: Sequence[Task]
    ) -> None:
        self._job, self._missing, self._never = job, tuple(missing), never
        conf = with_actions(core.snapshot().conf, self._missing)
        self._try = partial(_try_evictions, core, objects, now, conf, job)
        self._copy = self._begin(lifted=not missing)

    def _begin(self, *, lifted: bool) -> RunningCopy[StateDifference]:
        return RunningCopy(partial(self._try, lifted=lifted), StateDifference)

    def finding(self) -> PreemptionFinding:
        """Wait for the result."""
        try:
            found = self._result()
            if not found.starts and self._missing and self._never:
                self._copy = self._begin(lifted=True)
                lifted = self._result()
                found = self._forbidden(lifted) if lifted.starts else found
            elif not self._missing:
                if not found.starts:
                    return PreemptionFinding(None, [])
                found = self._forbidden(found)
        except ForkedCopyError as error:
            actions = " and ".join(self._missing or EVICTING_ACTIONS)
            return PreemptionFinding(None, [f"The trial with {actions} failed: {error}"])
        return PreemptionFinding(found, _sentences(found))

    def _result(self) -> PreemptionTrial:
        job, found = self._job, self._copy.result()
        own = {task.key for task in job.tasks.values()}
        evicted = tuple(one for one in found.evicted if one.by in own or one.by == job.key) or found.evicted
        starts = job.key in found.started and bool(evicted)
        searches = found.searches.get(job.key, ())
        return PreemptionTrial(actions=self._missing, starts=starts, evicted=evicted, searches=searches)

    def _forbidden(self, found: PreemptionTrial) -> PreemptionTrial:
        """The API server copies the policy of a PriorityClass to its pods."""
        origins = [
            f"PriorityClass {name}" if (name := task.cls.priority_class_name) else f"Pod {task.key}"
            for task in self._never
        ]
        return msgspec.structs.replace(found, forbidden_by=tuple(dict.fromkeys(origins)))

    def stop(self) -> None:
        self._copy.stop()


def begin_trial(core: Core, objects: ObjectView, job: Job, now: float) -> EvictionTrial | None:
    """Begin the trial of a pending job; None if sessions try all of it: both actions, for pods that may preempt.

    None with an extender, too: sessions of a trial would call its webhook.
    """
    missing = tuple(action for action in EVICTING_ACTIONS if action not in core.snapshot().conf.actions)
    never = [task for task in job.pending.values() if not task.may_preempt]
    if not (missing or never) or core.snapshot().conf.option("extender") is not None:
        return None
    return EvictionTrial(core, objects, job, now, missing, never)


def _try_evictions(
    core: Core, objects: ObjectView, now: float, conf: Conf, job: Job, *, lifted: bool
) -> StateDifference:
    """Other jobs compete for the victims. Alone, a job finds at least as many, at the cost of one search.

    Where it finds none, evictions for other jobs may free what it lacks: a few jobs are tried together.
    `lifted`: without `preemptionPolicy: Never` of the pods.
    """
    edits = Edits(objects)
    if lifted:
        for task in job.pending.values():
            set_spec(edits.edit(POD, job.namespace, task.name), "preemptionPolicy", None)
    attempt = partial(try_actions, core, now, conf, job.key, edits.deltas(), max_sessions=_SESSIONS)
    found = in_copy(partial(attempt, alone=True), StateDifference)
    state = core.snapshot().state
    is_small = len(state.jobs) * len(state.nodes) <= _MOST_TOGETHER
    if job.key not in found.started and not is_small:
        return found
    together = attempt(alone=False)
    return together if {job.key} & {*found.started, *together.started} else found


def _sentences(found: PreemptionTrial) -> list[str]:
    if found.starts:
        needed = sorted({one.action for one in found.evicted} & set(found.actions))
        actions, verb = " and ".join(needed), "is" if len(needed) == 1 else "are"
        shown = brief(list(dict.fromkeys(one.workload for one in found.evicted)))
        pods = f"{plural(len(found.evicted), 'pod')}"
        causes = [f"{actions} {verb} not in `actions` of the scheduler-conf"] if actions else []
        if found.forbidden_by:
            causes.append(f"preemptionPolicy: Never of {brief(found.forbidden_by)} forbids preemption")
        change = "with both changed" if len(causes) > 1 else "with it" if needed else "without it"
        return [f"{', and '.join(causes)}; {change}, {pods} of {shown} would be evicted and the job starts"]
    protected = [_search(search) for search in found.searches if search.kept or search.not_enough]
    verb = "is" if len(found.actions) == 1 else "are"
    absent = f"({' and '.join(found.actions)} {verb} not in `actions` of the scheduler-conf)"
    return [f"{VAIN}{': ' if protected else ''}{'; '.join(protected)} {absent}"]


def _search(search: VictimsConsidered) -> str:
    """`this queue has no pod of lower priority`, `other queues have 1 pod protected by deserved`.

    The pods of other queues are no victims of preempt, whatever they are, and those of the queue none of reclaim.
    """
    whose, others = _WHERE.get(search.action, (search.action, ""))
    return f"{whose} {', '.join(search.causes(others, _NO_QUEUE)) or 'no pods on the candidate nodes'}"
