"""The search for fixes.

The diagnosis yields candidates. The cheapest is applied to a copy, and sessions run until nothing happens. When the job
does not start, the diagnosis of the copy yields further changes, which are tried together with the first ones. When it
starts, parts are left out and amounts made smaller as long as it still starts: a fix has no part that can be missing.
Where all this finds none, the candidates are tried in pairs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.explain.never import without_never
from capcard_sched.insight.fixes.candidates import candidates
from capcard_sched.insight.fixes.description import describe_fix
from capcard_sched.insight.fixes.execution import RefusedError, cluster_view
from capcard_sched.insight.fixes.kinds import KINDS
from capcard_sched.insight.fixes.scene import known_owner
from capcard_sched.insight.fixes.trial import FixSubject, FixTrial, FixTrialRun
from capcard_sched.insight.sources.changes import UnknownObjectError
from capcard_sched.insight.sources.job_pods import vcjobs_without_pods
from capcard_sched.insight.trials.change import ProposedChange
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, RunningCopy, cpu_seconds, in_copy
from capcard_sched.model.trials import FixSearch, StartablePods, SuggestedFix
from capcard_sched.model.unsupported import needed_instead
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.insight.trials.change import Candidate
    from capcard_sched.model.diagnosis import JobDiagnosis
    from capcard_sched.model.job import Job

    #: Steps, disruption, number, changes, and the candidates of the state that they were made for.
    _Row = tuple[int, int, int, Candidate, frozenset[Candidate]]

#: Bounds of one search: trials, CPU seconds, fixes, and steps from a diagnosis to a set of changes.
MAX_TRIALS: Final = 80
MAX_SECONDS: Final = 5.0
_MOST_FIXES: Final = 6
_MOST_STEPS: Final = 4
#: Stages that need no fix, and stages of jobs that sessions do not attempt.
_DONE: Final = frozenset({"Scheduled", "Schedulable", "Finished", "Degraded", "Terminating"})
_NOT_ATTEMPTED: Final = {
    "Gated": "scheduling gates of its pods have to be removed first",
    "NoPods": "its pods do not exist",
    "Suspended": "it is suspended",
}


def suggest_fixes(
    core: Core,
    view: ObjectView,
    job: Job,
    found: JobDiagnosis,
    now: float,
    *,
    pod: str = "",
    vcjob: Json | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> FixSearch | None:
    """The fixes of a pending job; None for one that needs none.

    `found`: the diagnosis of the same state. The state stays as it is. `progress` is called before each trial, with the
    number of trials that ended and the largest number. Cost: at most `MAX_TRIALS` trials, and about
    `MAX_SECONDS` of CPU time.
    """
    if found.stage in _DONE:
        return None
    if found.stage in {"NotProcessed", "Unsupported", *_NOT_ATTEMPTED}:
        return without_search(found)
    if core.snapshot().conf.option("extender") is not None:
        return without_search(found, "trials would call the webhook of the extender")
    pods = len(job.pending) if job.is_ready() and job.tasks else 0
    subject = FixSubject(job.key, pod, known_owner(view, job, vcjob), pods, job.starting_pods, len(job.tasks))
    finder = _FixFinder(core, view, subject, found, now, progress)
    try:
        return finder.find()
    finally:
        finder.stop()


def without_search(found: JobDiagnosis, reason: str = "") -> FixSearch | None:
    """The result where no trial is possible, by default for the reason of the stage; None if no fix is needed."""
    if found.stage in _DONE:
        return None
    reason = _NOT_ATTEMPTED.get(found.stage, reason)
    if found.stage == "Unsupported":
        reason = f"its pods need {needed_instead((found.summary, *found.facts))}"
    elif found.stage == "NotProcessed" and found.refusals:
        reason = "its PodGroup has to be created first, or its pods have to name another one"
    elif found.stage == "NotProcessed":
        is_foreign = " scheduled by " in found.summary
        reason = "another scheduler is responsible" if is_foreign else "no controller has processed it"
    return FixSearch(goal="the job starts", fixes=(), trials=0, reason=reason)


class _FixFinder:
    """One search. Trials are kept, so that no set of changes is tried twice."""

    def __init__(
        self,
        core: Core,
        view: ObjectView,
        subject: FixSubject,
        found: JobDiagnosis,
        now: float,
        progress: Callable[[int, int], None],
    ) -> None:
        self._core, self._view, self._subject, self._found, self._now = core, view, subject, found, now
        self._progress, self._cluster = progress, cluster_view(view)
        self._job = core.snapshot().state.jobs[subject.key]
        self._vcjobs = vcjobs_without_pods(core, view, subject.key)
        self._known: dict[frozenset[ProposedChange], FixTrial | None] = {}
        #: Trials without the job, of changes with which it starts.
        self._without_it: dict[frozenset[ProposedChange], RunningCopy[FixTrial]] = {}
        #: Trials that were begun ahead of their turn; with further actions, those of the job alone.
        self._begun: dict[frozenset[ProposedChange], tuple[FixTrialRun, RunningCopy[FixTrial]]] = {}
        self._until = cpu_seconds() + MAX_SECONDS
        self._bound = ""

    def find(self) -> FixSearch:
        """Try candidates, the cheapest first."""
        core, found = self._core, self._found
        trial = found.preemption
        helps = trial is not None and trial.starts and not trial.forbidden_by
        may_evict = tuple(dict.fromkeys(one.action for one in trial.evicted)) if trial and helps else ()
        numbers = itertools.count()
        first = candidates(core, self._view, self._job, self._subject.owner, found, may_evict=may_evict)
        #: Changes in the order of their trials, with the candidates of the state that they were made for.
        frontier: list[_Row] = [(1, _disruption(one), next(numbers), one, frozenset(first)) for one in first]
        heapify(frontier)
        #: Sets that are tried when the frontier yields no fix: their parts were tried alone, and changed no diagnosis.
        merged = [_merge(one, other) for one, other in itertools.combinations(first, 2)]
        pairs: list[_Row] = [
            (2, _disruption(both), next(numbers), both, frozenset(first)) for both in merged if both is not None
        ]
        heapify(pairs)
        self._look_ahead(frontier, [])
        base = self._try((), is_last=True)
        fixes: list[tuple[Candidate, bool]] = []
        while (rows := frontier or (pairs if not fixes else [])) and not self._bound:
            steps, _, _, candidate, known = heappop(rows)
            if _contains_any(candidate, fixes):
                continue
            if not any(KINDS[change.kind].is_of_conf for change in candidate):  # those take both cores
                self._look_ahead(rows, fixes)
            tried = self._try(candidate)
            if tried is None:
                continue
            further = self._accept(candidate, fixes) if tried.starts else tried.further
            if len(fixes) == _MOST_FIXES:
                break
            if further and steps < _MOST_STEPS:
                rest = pairs if known.issuperset(further) else frontier
                for both in self._larger(candidate, further):
                    heappush(rest, (steps + 1, _disruption(both), next(numbers), both, frozenset(further)))
        suggested = [self._suggestion(changes, proven, base) for changes, proven in fixes]
        suggested.sort(key=_rank)
        reach = None if fixes else self._reach()
        return FixSearch(
            goal=self._subject.goal, fixes=tuple(suggested), trials=len(self._known) - 1, bound=self._bound, reach=reach
        )

    def _accept(self, candidate: Candidate, fixes: list[tuple[Candidate, bool]]) -> Sequence[Candidate]:
        """Add the smallest part of a candidate with which the job starts; returns further changes that it needs."""
        smallest, proven = self._smallest(candidate)
        # Other pods of the same workload make no other fix.
        if _contains_any(smallest, fixes) or any(_shape(smallest) == _shape(fix) for fix, _ in fixes):
            return ()
        vain = self._in_vain(smallest)
        if vain is None:
            fixes.append((smallest, proven))
        return vain.further if vain is not None else ()

    def _larger(self, candidate: Candidate, further: Iterable[Candidate]) -> Iterator[Candidate]:
        """The sets of changes that were not tried, of a candidate and one that its trial found."""
        for more in further:
            both = _merge(candidate, more)
            if both is not None and frozenset(both) not in self._known and self._ends_placed(more):
                yield both

    def _reach(self) -> StartablePods | None:
        """The pods that start if the gang may be smaller: now, and with all other jobs ended."""
        job, subject = self._job, self._subject
        smaller: Candidate = ()
        if job.is_editable and not job.is_ready() and job.min_available > 1:
            target = ("PodGroup", job.namespace, job.name)
            smaller = (ProposedChange("MinAvailable", target, value=1, present=job.min_available),)
        now, alone = self._try(smaller, is_bounded=False), self._with_others_ended(smaller)
        if now is None or alone is None:
            return None
        before = 0 if not (subject.pod or subject.pods) else job.ready_tasks
        wanted = 1 if subject.pod else subject.pods or subject.minimum
        started = [int(trial.starts) if subject.pod else trial.placed - before for trial in (now, alone)]
        # The cause of one that can never start is that of the state without the other jobs.
        cause = self._found if self._found.stage == "CannotStart" and not smaller else alone
        reason = without_never(cause.summary)
        return StartablePods(wanted=wanted, now=started[0], alone=started[1], reason=reason)

    def _with_others_ended(self, changes: Candidate) -> FixTrial | None:
        try:
            return in_copy(self._prepared(changes, others_end=True).result, FixTrial)
        except (ForkedCopyError, RefusedError, UnknownObjectError, msgspec.ValidationError):
            return None

    def _ends_placed(self, changes: Candidate) -> bool:
        """Whether each job that ends has pods on nodes, or is one of the same queue: others come and go anyway."""
        for change in changes:
            kind, namespace, name = change.target
            job = self._core.snapshot().state.jobs.get(f"{namespace}/{name}")
            ends = change.kind == "End" and kind == "PodGroup"
            if ends and job is not None and not job.bound and job.queue != self._job.queue:
                return False
        return True

    # --- trials -----------------------------------------------------------------------------------------------------

    def _try(
        self, changes: Sequence[ProposedChange], *, is_last: bool = False, is_bounded: bool = True
    ) -> FixTrial | None:
        """A trial of changes; None when they cannot be applied, or a bound is reached. `is_last`: without `further`."""
        key = frozenset(changes)
        if key not in self._known:
            if is_bounded and len(self._known) > MAX_TRIALS:
                self._bound = f"{MAX_TRIALS} trials"
            elif is_bounded and cpu_seconds() > self._until:
                self._bound = f"{MAX_SECONDS:.0f} s of CPU time"
            if self._bound and is_bounded:
                return None
            self._progress(len(self._known), MAX_TRIALS)
            try:
                self._known[key] = self._run(changes, is_last)
            except (ForkedCopyError, RefusedError, UnknownObjectError, msgspec.ValidationError):
                self._known[key] = None
        return self._known[key]

    def _run(self, changes: Sequence[ProposedChange], is_last: bool) -> FixTrial:
        key = frozenset(changes)
        self._begin(changes, is_last=is_last)
        run, first = self._begun.pop(key)
        found = first.result()
        if run.conf is not None and found.starts:
            # The longest two trials of a search, side by side.
            self._without_it[key] = self._begin_without_it(changes)
            found = in_copy(run.result, FixTrial)
        return msgspec.structs.replace(found, summary="", further=()) if is_last else found

    def _begin(self, changes: Sequence[ProposedChange], *, is_last: bool = False) -> None:
        """Begin a trial. Raises as FixTrialRun."""
        if frozenset(changes) not in self._begun:
            run = self._prepared(changes, is_last=is_last)
            # With further actions every job searches victims; alone, this one finds at least as many.
            only = "" if run.conf is None else self._subject.key
            self._begun[frozenset(changes)] = run, RunningCopy(partial(run.result, only), FixTrial)

    def _in_vain(self, changes: Candidate) -> FixTrial | None:
        """The trial with pods ending last in which the job does not start: those of one workload, or all; or None.

        Pods take different times to end: another job may take what the first ones free, or a quota that is raised. Of
        pods that terminate the queue has the quota again before their nodes are free.
        """
        ends = dict.fromkeys(change.key for change in changes if change.kind == "End")
        groups = [{last} for last in ends] if len(ends) > 1 else []
        if ends:
            groups.append(set(ends))
        for last in groups:
            late = [change for change in changes if change.kind == "End" and change.key in last]
            run = self._prepared([change for change in changes if change not in late], late=late)
            if not (found := in_copy(run.result, FixTrial)).starts:
                return found
        return None

    def _look_ahead(self, rows: Sequence[_Row], fixes: Iterable[tuple[Candidate, bool]]) -> None:
        """Begin the trial of the next changes beside the present one."""
        if rows and not _contains_any(rows[0][3], fixes) and frozenset(rows[0][3]) not in self._known:
            with suppress(RefusedError, UnknownObjectError, msgspec.ValidationError):  # as its own turn finds
                self._begin(rows[0][3])

    # --- minimality -------------------------------------------------------------------------------------------------

    def _smallest(self, changes: Candidate) -> tuple[Candidate, bool]:
        """Changes without a part that can be missing or smaller; False when a bound ended the proof."""
        while True:
            smaller = self._without_a_part(changes) or self._with_a_smaller_amount(changes)
            if smaller is None:
                return changes, not self._bound
            changes = smaller

    def _starts(self, changes: Sequence[ProposedChange]) -> bool:
        tried = self._try(changes, is_last=True)
        return tried is not None and tried.starts

    def _without_a_part(self, changes: Candidate) -> Candidate | None:
        if len(changes) > 1:
            for part in sorted(changes, key=lambda change: -KINDS[change.kind].disruption):
                rest = tuple(change for change in changes if change is not part)
                if self._starts(rest):
                    return rest
        return None

    def _with_a_smaller_amount(self, changes: Candidate) -> Candidate | None:
        for index, part in enumerate(changes):

            def at(steps: int, index: int = index, part: ProposedChange = part) -> Candidate:
                return (*changes[:index], part.reduced(steps), *changes[index + 1 :])

            if part.steps > 1 and self._starts(at(part.steps - 1)):
                fails, starts = 0, part.steps - 1
                while starts - fails > 1:
                    middle = (starts + fails) // 2
                    fails, starts = (fails, middle) if self._starts(at(middle)) else (middle, starts)
                return at(starts)
        return None

    # --- costs ------------------------------------------------------------------------------------------------------

    def _suggestion(self, changes: Candidate, proven: bool, base: FixTrial | None) -> SuggestedFix:
        tried = self._known[frozenset(changes)]
        assert tried is not None
        own = self._subject.key
        before = set(base.difference.started) if base is not None else set()
        pending = set(tried.difference.pending)
        ahead = _ahead(self._core, own) if any(change.kind == "Priority" for change in changes) else ()
        delayed = [key for key in sorted(pending & {*before, *self._started_without_it(changes)}) if key != own]
        fix = describe_fix(self._core, self._view, self._job, self._subject.owner, changes)
        return msgspec.structs.replace(
            fix,
            restarted=tried.restarted,
            evicted=tried.difference.evicted,
            started=self._names(key for key in tried.difference.started if key != own and key not in before),
            delayed=self._names(dict.fromkeys((*(key for key in ahead if key in pending), *delayed))),
            minimal=proven,
        )

    def _started_without_it(self, changes: Candidate) -> tuple[str, ...]:
        """Jobs that start with the changes when this job is absent."""
        running = self._without_it.pop(frozenset(changes), None) or self._begin_without_it(changes)
        try:
            return running.result().difference.started
        except ForkedCopyError:
            return ()

    def _begin_without_it(self, changes: Sequence[ProposedChange]) -> RunningCopy[FixTrial]:
        others = [change for change in changes if not KINDS[change.kind].is_of_job]
        run = self._prepared(others, absent=True)
        return RunningCopy(run.result, FixTrial)

    def _prepared(
        self,
        changes: Sequence[ProposedChange],
        *,
        absent: bool = False,
        others_end: bool = False,
        is_last: bool = False,
        late: Sequence[ProposedChange] = (),
    ) -> FixTrialRun:
        found = self._core, self._view, self._subject, changes, self._now, self._cluster
        return FixTrialRun(
            *found, absent=absent, others_end=others_end, is_last=is_last, late=late, vcjobs=self._vcjobs
        )

    def stop(self) -> None:
        """End the trials of which no suggestion needs the result."""
        for running in (*self._without_it.values(), *(copy for _, copy in self._begun.values())):
            running.stop()
        self._without_it.clear()
        self._begun.clear()

    def _names(self, keys: Iterable[str]) -> tuple[str, ...]:
        jobs = self._core.snapshot().state.jobs
        return tuple(display_name(jobs[key]) for key in keys if key in jobs)


def _ahead(core: Core, key: str) -> tuple[str, ...]:
    """Keys of the pending jobs before a job in its queue."""
    session, job = core.snapshot().session, core.snapshot().state.jobs[key]
    if session is None or job.queue not in core.snapshot().state.queues:
        return ()
    own = session.job_key(job)
    others = core.snapshot().state.queues[job.queue].jobs.values()
    return tuple(other.key for other in others if other.pending and other is not job and session.job_key(other) < own)


def _disruption(changes: Candidate) -> int:
    ends = sum(change.kind == "End" for change in changes)
    return sum(KINDS[kind].disruption for kind in {change.kind for change in changes}) + ends


def _rank(fix: SuggestedFix) -> tuple[bool, int, int]:
    """A smaller gang last; then by the pods that end, restart or are evicted, and by the number of changes."""
    pods = sum(len(ended.pods) for ended in fix.ended) + len(fix.evicted) + len(fix.restarted)
    return any(KINDS[change.kind].is_of_gang for change in fix.changes), pods, len(fix.changes)


def _merge(changes: Candidate, more: Candidate) -> Candidate | None:
    """Both; of two amounts of one thing the later one. None for two values of one field."""
    merged = {change.identity: change for change in changes}
    both = (*changes, *more)
    if _single(changes) & _single(more) or {one.replaces for one in both} & {one.key for one in both} - {""}:
        return None  # also a card that replaces a replaced one
    for change in more:
        present = merged[change.identity].present if change.identity in merged else change.present
        merged[change.identity] = msgspec.structs.replace(change, present=present)
    return tuple(merged.values())


def _single(changes: Candidate) -> set[tuple[str, str]]:
    return {(change.kind, change.replaces) for change in changes if KINDS[change.kind].is_single}


def _contains_any(changes: Candidate, fixes: Iterable[tuple[Candidate, bool]]) -> bool:
    """Whether changes contain all parts of a fix, whatever the amounts, other than for a larger gang."""
    own = {change.identity for change in changes}
    return any(
        {change.identity for change in fix} <= own and (len(fix) == 1 or _gang(changes) <= _gang(fix))
        for fix, _ in fixes
    )


def _shape(changes: Candidate) -> Counter[object]:
    """The changes, of pods that end their workload and number."""
    return Counter((change.kind, change.key) if change.kind == "End" else change.identity for change in changes)


def _gang(changes: Candidate) -> int:
    """The minimum of the job with changes; above all others for one that they leave as it is."""
    return next((change.value for change in changes if change.kind == "MinAvailable"), 2**31)
