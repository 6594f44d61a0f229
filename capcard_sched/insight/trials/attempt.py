"""The attempt of one job on a copy of the state: what refuses it now, whether it can ever start, what a quota changes.

The diagnosis comes from a session that attempts the job alone, with the figures of the present state. The same session
with every other job ended decides whether the job can ever start; with a larger quota, whether that starts it.
"""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.explain.device_causes import awaits_slices
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.label_causes import NO_AFFINE_POD, awaits_pods
from capcard_sched.framework.explain.limit_causes import QuotaClaim
from capcard_sched.framework.explain.never import NEVER, without_never
from capcard_sched.framework.explain.rejections import ObservedAttempt
from capcard_sched.framework.explain.sentences import lower
from capcard_sched.framework.explain.volume_causes import awaits_volumes
from capcard_sched.insight.sources.changes import Edits, free_quota, remove_taint, set_card_quota, set_unschedulable
from capcard_sched.insight.sources.job_pods import pods_of_job
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, RunningCopy
from capcard_sched.insight.trials.trial import PERIOD, step_alone
from capcard_sched.insight.trials.victims import unit_of
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.deltas import Delta, ObjectGone
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.model.intents import Evict
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.quoting import plural
from capcard_sched.model.reasons import CARD_BUDGET_SPENT
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.simulation.kinds import RESOURCE_QUOTA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.job import Job

#: Sessions of one attempt: admission, evictions, placement.
_SESSIONS: Final = 6
#: Pods up to which the trial without other jobs takes part in a diagnosis: it deletes 10,000 in a second or two.
_MOST_PODS: Final = 15_000
#: The beginning of the fact in a larger cluster, and with an extender.
UNTRIED: Final = "A start without the other jobs was not tried"
#: The end of the summary of a job that starts without the other jobs once no node is cordoned or tainted.
NEVER_WITH_NODES: Final = "; with the nodes as they are it never starts"
#: Stages whose cause an attempt finds anew.
ATTEMPTED: Final = frozenset({"NotAdmitted", "OverQuota", "ClusterFull", "NoNodeFits", "GangWaiting", "CannotStart"})
#: Pods that find a node, in a cause.
_FIT_NOW: Final = re.compile(r" pending pods? fit(s?) now")
#: Stages of jobs of which the trial without other jobs is worth its cost.
_MAY_BE_IMPOSSIBLE: Final = (ATTEMPTED - {"CannotStart"}) | {"NotTried"}


def may_never_start(found: JobDiagnosis) -> bool:
    """Whether only a trial without other jobs decides that the job of a diagnosis can never start."""
    return found.stage in _MAY_BE_IMPOSSIBLE


def behind_head(summary: str, stage: str, first: str) -> str:
    """The summary of a job behind the head of its FIFO queue, by stage and summary of the head."""
    return f"{summary}, which {lower(first)}" if stage == "CannotStart" and first.startswith(NEVER) else summary


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of one attempt."""

    #: Pods of the job on nodes; the PodGroup is admitted.
    placed: int
    is_admitted: bool
    starts: bool
    #: Of the state at the end; None for a job that starts.
    diagnosis: JobDiagnosis | None = None
    #: Of the diagnosis: larger quotas that may start the job.
    claims: tuple[QuotaClaim, ...] = ()


class JobAttempt:
    """Attempts of one job. `now` in Unix seconds."""

    def __init__(
        self, core: Core, objects: ObjectView, job: Job, now: float, *, pod: str = "", vcjob: Json | None = None
    ) -> None:
        self._core, self._objects, self._job, self._now, self._pod, self._vcjob = core, objects, job, now, pod, vcjob
        #: Before any attempt: pods on nodes, and whether the job has its minimum.
        self._placed, self._is_ready = job.ready_tasks, bool(job.tasks) and _has_minimum(job)

    def diagnose(self, found: JobDiagnosis, *, tries_claims: bool = True) -> JobDiagnosis:
        """A diagnosis with the causes of the present state. `found` is that of the last session. Runs in a copy.

        `tries_claims`: with the fact of a larger quota that starts the job.
        """
        if found.stage not in ATTEMPTED | _MAY_BE_IMPOSSIBLE and not self._admits(found):
            return found
        if self._core.snapshot().conf.option("extender"):
            note = f"{UNTRIED}: a trial would call the webhook of the extender"
            return msgspec.structs.replace(found, facts=(*found.facts, note))
        try:
            return self._diagnose(found, tries_claims=tries_claims)
        except ForkedCopyError as error:
            return msgspec.structs.replace(found, facts=(*found.facts, f"The attempt on a copy failed: {error}"))

    def _admits(self, found: JobDiagnosis) -> bool:
        """Whether the next session admits the job, whose pods do not exist yet: they may have limits of their own."""
        return found.stage == "Schedulable" and not self._job.tasks and self._vcjob is not None

    def _diagnose(self, found: JobDiagnosis, *, tries_claims: bool) -> JobDiagnosis:
        is_small = len(self._core.snapshot().state.tasks) <= _MOST_PODS
        session = self._core.snapshot().session
        is_fixed = session is None or not session.carry_over.expects_nodes  # nodes that join may start it
        admits = self._admits(found)
        may_be = is_small and not self._is_ready and is_fixed and (may_never_start(found) or admits)
        alone = self._begin(self._without_others(repair=False)) if may_be else None
        claims: Sequence[QuotaClaim] = ()
        if found.stage in ATTEMPTED or admits:
            try:
                now = self._begin(()).result()
            except ForkedCopyError:
                if alone is not None:
                    alone.stop()
                raise
            claims = now.claims
            # Another phase: alone the job is admitted, and the order of the jobs keeps it from that.
            other = now.diagnosis
            if other is not None and other.stage in ATTEMPTED and (admits or other.phase == found.phase):
                found = msgspec.structs.replace(other, phase=found.phase, waiting_seconds=found.waiting_seconds)
        facts = list(found.facts)
        if alone is not None and not (unaided := alone.result()).starts:
            other = self._never_alone(found, unaided)
            if other is not None:
                return other
        if tries_claims:
            facts[:0] = [claim.text for claim in islice(filter(self._holds, claims), 1)]
        if not is_small and not self._is_ready and is_fixed and may_never_start(found):
            pods, limit = len(self._core.snapshot().state.tasks), self._job.node_limit
            if limit is not None and limit.places:
                cause = f"it needs {plural(limit.figures.requested, 'pod')}, and {limit.places}"
                return msgspec.structs.replace(
                    found, stage="CannotStart", summary=f"{NEVER}: {cause}", facts=tuple(facts)
                )
            facts.append(f"{UNTRIED}: the cluster has {pods} pods, and the trial has at most {_MOST_PODS}")
        return msgspec.structs.replace(found, facts=tuple(facts))

    def _never_alone(self, found: JobDiagnosis, unaided: AttemptResult) -> JobDiagnosis | None:
        """The diagnosis of a job that does not start without the others; None if it does with other nodes or claims.

        `unaided`: the result without the others.
        """
        repaired = self._begin(self._without_others(repair=True)).result()
        last = repaired.diagnosis
        if repaired.starts:
            facts, left = list(found.facts), unaided.diagnosis
            if left is not None and left.summary != found.summary:
                facts[:0] = [f"With every other job ended: {_without_now(lower(left.summary))}"]
            summary = f"{found.summary}{NEVER_WITH_NODES}"
            return msgspec.structs.replace(found, summary=summary, facts=tuple(facts), starts_alone=False)
        if last is None or last.stage not in ATTEMPTED:
            return None
        admits_nothing = last.stage == "NotAdmitted" and not any(one.checks for one in last.refusals)
        if admits_nothing:  # a CardBudget admits jobs again with its next period
            awaits = any(one.reason == CARD_BUDGET_SPENT.code for one in last.refusals)
            return msgspec.structs.replace(found, starts_alone=awaits, awaits_objects=awaits)
        if self._awaits_objects(last):
            return msgspec.structs.replace(found, awaits_objects=True)
        return None if self._starts_later() else self._never(found, last)

    def _starts_later(self) -> bool:
        """Whether the job starts without the others at the next change by the time alone, such as of hours of nodes."""
        moments = [call() for _, call in self._core.snapshot().dispatch.entries("next_wakeup")]
        gone = self._without_others(repair=False)
        later = {moment for moment in moments if moment is not None and moment > self._now}
        return any(self._begin(gone, at=moment + PERIOD).result().starts for moment in sorted(later))

    def _awaits_objects(self, found: JobDiagnosis) -> bool:
        """Whether pods of others, volumes that controllers bind, or slices that drivers publish are missing."""
        names = {pods.names[0] for pods in found.pending if pods.refusal is not None}
        affine = {
            pods.names[0]
            for pods in found.pending
            if any(row.decides and row.reason.startswith(NO_AFFINE_POD) for row in pods.nodes)
        }
        session = self._core.snapshot().session
        return session is not None and any(
            (task.name in names and task.cls.volumes and awaits_volumes(session.snapshot.volumes, task))
            or (task.name in affine and awaits_pods(session.snapshot, task))
            or (task.uid in self._job.pending and awaits_slices(session.snapshot, task))
            for task in self._job.tasks.values()
        )

    @staticmethod
    def _never(found: JobDiagnosis, last: JobDiagnosis) -> JobDiagnosis:
        """The cause is that of the state without the other jobs."""
        cause = without_never(last.summary)
        if last.stage != "CannotStart":
            cause = lower(cause)
        return msgspec.structs.replace(
            found,
            stage="CannotStart",
            summary=f"{NEVER}: {_without_now(cause)}",
            facts=tuple(fact for fact in last.facts if " free" not in fact or "is not the reason" not in fact),
            pending=last.pending,
            refusals=last.refusals,
        )

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _begin(
        self, deltas: Sequence[Delta], *, alone: bool = True, at: float | None = None
    ) -> RunningCopy[AttemptResult]:
        return RunningCopy(partial(self._attempt, deltas, alone=alone, at=at), AttemptResult)

    def _attempt(self, deltas: Sequence[Delta], *, alone: bool, at: float | None) -> AttemptResult:
        """Sessions that attempt the job, or all jobs, after some changes. On the core itself, for one of a copy.

        `at`: Unix seconds of the first session; None for the present.
        """
        core, key, now = self._core, self._job.key, self._now if at is None else at
        attempt = ObservedAttempt(key)
        core.try_actions(core.snapshot().conf, key, only=key if alone else "", observe=attempt.observe)
        waiting = list(deltas)
        for _ in range(_SESSIONS):
            result = step_alone(core, waiting, now)
            waiting = [
                ObjectGone("Pod", one.namespace, one.name, one.uid) for one in result.intents if isinstance(one, Evict)
            ]
            waiting += self._created()
            now += PERIOD
            if not (waiting or result.report.decided):
                break
        job = core.snapshot().state.jobs.get(key)
        assert job is not None
        is_admitted = job.phase is not PodGroupPhase.PENDING
        without_pods = not job.tasks and self._vcjob is None and is_admitted
        if self._pod:
            starts = any(task.name == self._pod and task.node is not None for task in job.tasks.values())
        else:
            starts = without_pods or (bool(job.tasks) and _has_minimum(job) and job.roles_ready())
        if starts and not (self._is_ready and job.pending):
            return AttemptResult(job.ready_tasks, is_admitted, starts=True)
        claims: list[QuotaClaim] = []
        diagnosis = diagnose_job(core.snapshot(), job, pod=self._pod, attempt=attempt, claims=claims)
        return AttemptResult(job.ready_tasks, is_admitted, starts, diagnosis, tuple(claims))

    def _created(self) -> list[Delta]:
        """The pods of an admitted Job, which its controller creates after the admission."""
        job = self._core.snapshot().state.jobs.get(self._job.key)
        if job is None or job.tasks or self._vcjob is None or job.phase is PodGroupPhase.PENDING:
            return []
        return pods_of_job(self._core, Edits(self._objects), self._vcjob, job.name)

    def _without_others(self, *, repair: bool) -> list[Delta]:
        """Every other job, and each terminating pod, has ended. `repair`: and no node is cordoned or tainted."""
        state = self._core.snapshot().state
        gone: list[Delta] = [
            ObjectGone("Pod", task.namespace, task.name, task.uid)
            for task in state.tasks.values()
            if (task.deleting or task.job is not self._job) and unit_of(task) is not None
        ]
        gone += [
            ObjectGone("PodGroup", job.namespace, job.name, job.uid)
            for job in state.jobs.values()
            if job is not self._job and not job.implicit
        ]
        edits = Edits(self._objects)
        for quota in self._objects.all_of(RESOURCE_QUOTA):
            edits.put(free_quota(quota))
        for node in state.nodes.by_name.values() if repair else ():
            if node.known and (node.unschedulable or node.taints):
                found = edits.edit("Node", "", node.name)
                set_unschedulable(found, value=False)
                remove_taint(found, "")
        return [*gone, *edits.deltas()]

    # --- claims -----------------------------------------------------------------------------------------------------

    def _holds(self, claim: QuotaClaim) -> bool:
        """Whether each of the quotas alone starts the pods, in a copy; then also where other jobs compete for them."""
        return all(self._starts(claim, alone=alone) for alone in (True, False))

    def _starts(self, claim: QuotaClaim, *, alone: bool) -> bool:
        for queue, resource, amount in claim.quotas:
            try:
                deltas = self._with_quota(queue, resource, amount)
                result = self._begin(deltas, alone=alone).result()
            except (ForkedCopyError, msgspec.ValidationError, ValueError):
                return False
            if not (result.is_admitted if not claim.pods else result.placed >= self._placed + claim.pods):
                return False
        return True

    def _with_quota(self, name: str, resource: str, amount: float) -> list[Delta]:
        edits = Edits(self._objects)
        ref = queue_ref(name)
        queue = edits.edit(ref.kind, ref.namespace, ref.name)
        capability = dict((queue.get("spec") or {}).get("capability") or {})
        notes = (queue.get("metadata") or {}).get("annotations") or {}
        if resource in capability or resource in (CPU, MEMORY) or CARD_QUOTA not in notes:
            scale = 1 if resource == MEMORY else 1000
            capability[resource] = format_amount(resource, math.ceil(amount * scale))
            queue["spec"] = {**(queue.get("spec") or {}), "capability": capability}
        else:
            set_card_quota(queue, resource, math.ceil(amount))
        return edits.deltas()


def _has_minimum(job: Job) -> bool:
    """Whether the minimum has nodes: a gang does not wait for pods without requests, and each of them needs a node."""
    return job.is_ready() and job.ready_tasks >= job.min_available


def _without_now(text: str) -> str:
    """A cause of another state than the present one."""
    return _FIT_NOW.sub(r" pods find\1 a node", text)
