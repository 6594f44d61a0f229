"""`PodScheduled=False` of pending pods: the reason, which cluster autoscalers read, and the message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.framework.close.podgroups import refusal_of
from capcard_sched.framework.close.provisioning import ProvisioningRequests
from capcard_sched.framework.close.quota_claims import QuotaClaims
from capcard_sched.framework.session.pending_reasons import task_scheduling_reason
from capcard_sched.framework.session.results import reference
from capcard_sched.model import reasons
from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.intents import Intent, RemoveGate, UpdatePodCondition
from capcard_sched.model.job import GRACE_SECONDS
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.quoting import plural
from capcard_sched.model.resources import PODS
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.backlog.task_outcome import TaskOutcome
    from capcard_sched.framework.close.session_events import SessionEvents
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.task_class import TaskClass

#: Seconds after the grace period of releasing pods for which a pod waits for them before it needs a new node.
RELEASE_SECONDS: Final = 60.0
_UNSCHEDULABLE: Final = reasons.POD_UNSCHEDULABLE.code
_QUOTA, _ORDER = reasons.POD_QUOTA_PENDING.code, reasons.POD_ORDER_PENDING.code
_GANG, _RELEASE = reasons.POD_GANG_PENDING.code, reasons.POD_RELEASE_PENDING.code
#: That of pods that would be `Unschedulable` without the ProvisioningRequest of their gang.
_PROVISIONING: Final = reasons.POD_PROVISIONING_PENDING.code
#: The reasons that the claims of pods decide on.
_BY_CLAIM: Final = frozenset({_UNSCHEDULABLE, _QUOTA})
#: The reasons of pods that lack nodes, and of all pods that have quota.
_LACKING: Final = frozenset({_UNSCHEDULABLE, _PROVISIONING})
_ADMITTED: Final = frozenset({*_LACKING, _RELEASE})


class _WrittenCondition(NamedTuple):
    reason: str
    message: str
    #: `status.nominatedNodeName` as written; None: the write kept the pod's.
    node: str | None
    #: Whether an event reported it.
    reported: bool
    #: The message without the nodes that the gang lacks, and whether the pod lacks one.
    detail: str
    lacks_node: bool


class _Release(NamedTuple):
    #: Key of the job of the pod, and the node whose pods are being released.
    job: str
    node: str
    #: Unix seconds until which the pod waits for them.
    end: float


class PodConditions:
    """Writes the conditions of pending pods whose reason or message changed. One per core."""

    def __init__(self, *, precise: bool = True) -> None:
        """`precise`: a reason per cause, and `Unschedulable` for pods that lack only nodes; else those of Volcano."""
        self._is_precise = precise
        self._claims, self._requests = QuotaClaims(), ProvisioningRequests()
        self._written: dict[str, _WrittenCondition] = {}
        #: By uid, the pods that wait for releasing pods.
        self._releasing: dict[str, _Release] = {}
        #: Uids of pods without a node whose queue allocation gate was removed.
        self._ungated: set[str] = set()

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds of the next write without a change of the cluster; None for none."""
        ends = [known.end for known in self._releasing.values()]
        return min([*ends, *filter(None, [self._requests.next_wakeup])], default=None)

    def clear(self) -> None:
        """Drops the last writes: those of an earlier leader term may be lost."""
        self._written.clear()
        self._ungated.clear()
        self._claims.clear()
        self._requests.clear()

    def forget(self, uid: str) -> None:
        """Drops the last write about a pod that is gone or bound."""
        self._written.pop(uid, None)
        self._releasing.pop(uid, None)
        self._ungated.discard(uid)

    def prune(self, alive: Container[str]) -> None:
        """Drops pods that are gone. `alive`: uids."""
        self._written = {uid: value for uid, value in self._written.items() if uid in alive}
        self._releasing = {uid: value for uid, value in self._releasing.items() if uid in alive}
        self._ungated = {uid for uid in self._ungated if uid in alive}
        self._requests.prune(alive)

    def pop_expired(self, now: float) -> list[str]:
        """Keys of the jobs whose conditions are due, once each; `now` in Unix seconds."""
        due = {uid: known.job for uid, known in self._releasing.items() if known.end <= now}
        waiting = {uid for uid in due if (known := self._written.get(uid)) is not None and known.reason == _RELEASE}
        return sorted({due[uid] for uid in waiting})

    def update_claims(self, session: Session) -> AbstractSet[str]:
        """Finds the pods that have quota, while pipelined pods hold theirs; returns the jobs whose reasons changed.

        Then decides on the ProvisioningRequests of gangs.
        """
        if session.carry_over.is_silent:
            return frozenset()
        changed = self._claims.update(session, self._requests.released(session))
        return changed | self._requests.update(session, self._claims.minimums)

    def renew(self, session: Session, keys: AbstractSet[str], events: SessionEvents, intents: list[Intent]) -> None:
        """Writes the reasons of pods whose claims changed, with the messages that were written last.

        A job whose attempt fails as before keeps its messages, whether a session attempts it or skips it.
        """
        intents += self._requests.drain()
        for key in sorted(keys & session.state.jobs.keys()):
            job, claims = session.state.jobs[key], self._claims.of(key)
            texts = _Texts(session, job, claims, self._written)
            for task in sorted(job.pending.values(), key=lambda task: task.name):
                if task.gates:
                    self._ungate(session, job, task, claims.get(task.uid, ""), events, intents)
                known = self._written.get(task.uid)
                if known is None or known.reason not in {*_BY_CLAIM, _PROVISIONING} or not self._is_precise:
                    continue
                former = _UNSCHEDULABLE if known.reason == _PROVISIONING else known.reason
                reason = self._requests.published(key, claims.get(task.uid, former))
                text = texts.with_missing_nodes(known.detail) if reason in _LACKING else known.detail
                if (reason, text) != (known.reason, known.message):
                    intents.append(UpdatePodCondition(task.namespace, task.name, task.uid, reason, text, None))
                    self._written[task.uid] = known._replace(reason=reason, message=text)

    def close(
        self, session: Session, job: Job, events: SessionEvents, intents: list[Intent], *, is_early: bool
    ) -> None:
        """`PodScheduled=False` and `FailedScheduling` for every pending task whose reason changed.

        A pod whose refusal is an event of its own gets no second one with the same text, and a pod with `CanNeverStart`
        gets none. A gang without all its pods is reported after a grace period (`is_early`); its conditions are written
        at once. The API server writes those of pods with scheduling gates; the queue allocation gate of a pod with
        quota is removed.
        """
        if is_early and not self._is_precise:
            return
        texts = _Texts(session, job, self._claims.of(job.key))
        # `CanNeverStart` is the event of each pod with that cause.
        is_never = any(row.type == reasons.CAN_NEVER_START.code for row in session.results.conditions.get(job.key, ()))
        is_silent = is_early or is_never
        gated = [task for task in job.gated.values() if task.unsupported and not task.gates]
        for task in sorted((*job.pending.values(), *gated), key=lambda task: task.name):
            outcome, known = session.results.outcome_of(task.uid), self._written.get(task.uid)
            if task.gates:
                self._ungate(session, job, task, self._reason(session, job, task, texts), events, intents)
                continue
            reason = self._reason(session, job, task, texts) if self._is_precise else ""
            if outcome is None or (outcome.kind == "refused" and not outcome.message):
                repeats = known is not None and known.reported and reason in (known.reason, "")
                if repeats and job.key not in session.changed.jobs:
                    continue
            code, message, nominated = task_scheduling_reason(task, outcome, texts)
            if reason == _RELEASE and outcome is not None and outcome.kind != "schedulable":
                nominated = self._releasing[task.uid].node
            elif reason:
                nominated = ""
            text = texts.with_missing_nodes(message) if reason in _LACKING else message
            has_expired = self._has_expired_node(session, task, nominated)
            node = nominated or ("" if has_expired or (known is not None and known.node) else None)
            content = reason or code, text, node or None
            if known is None or known[:3] != content or has_expired:
                intents.append(UpdatePodCondition(task.namespace, task.name, task.uid, content[0], text, node))
            elif known.reported or is_silent:
                continue
            lacks_node = _lacks_node(outcome)
            self._written[task.uid] = _WrittenCondition(*content, not is_silent, message, lacks_node)
            if not is_silent and not events.has_own_event(job, task, message):
                events.emit(session, intents, reference(task), "Warning", reasons.FAILED_SCHEDULING.code, message,
                            slot="pod", normalise=True)  # fmt: skip

    def _ungate(
        self, session: Session, job: Job, task: Task, reason: str, events: SessionEvents, intents: list[Intent]
    ) -> None:
        """Removes the queue allocation gate of a pod without a node, if it has quota: once."""
        if reason not in _ADMITTED or task.uid in self._ungated:
            return
        self._ungated.add(task.uid)
        intents.append(RemoveGate(task.namespace, task.name, task.uid))
        report_ungated(session, reference(task), job.queue, events, intents)

    def _has_expired_node(self, session: Session, task: Task, nominated: str) -> bool:
        """Whether `status.nominatedNodeName` of the pod is to be cleared."""
        carry_over, uid = session.carry_over, task.uid
        has_expired = uid in carry_over.expired_nominations and task.nominated_node != ""
        carry_over.clear_expired_nomination(uid)
        # A nomination of an earlier leader, or of another scheduler: autoscalers leave such a pod out.
        is_unknown = self._is_precise and uid not in self._written and uid not in carry_over.nominations
        return has_expired or (is_unknown and not nominated and task.nominated_node != "")

    # --- reasons ----------------------------------------------------------------------------------------------------

    def _reason(self, session: Session, job: Job, task: Task, texts: _Texts) -> str:
        """The reason of a pending pod; that of one without nodes depends on the request of its gang."""
        return self._requests.published(job.key, self._cause(session, job, task, texts))

    def _cause(self, session: Session, job: Job, task: Task, texts: _Texts) -> str:
        """What a pending pod waits for: by group, quota, order and nodes, in this order."""
        outcome = session.results.outcome_of(task.uid)
        if task.unsupported:
            return reasons.UNSUPPORTED_FEATURE.code
        if (
            outcome is not None
            and outcome.kind in ("schedulable", "pipelined")
            and job.key in session.results.pipelined_jobs
        ):
            return self._release_reason(session, job, task, outcome)
        if self._is_overdue(session, task, outcome):
            return _RELEASE
        self._releasing.pop(task.uid, None)
        if outcome is not None and outcome.refusal is not None:
            reason = outcome.refusal.pending_reason.code
            return self._claims.of(job.key).get(task.uid, reason) if reason in _BY_CLAIM else reason
        if not job.uid or job.valid_tasks < job.min_available or not job.roles_valid() or job.needs_gated():
            return _GANG
        if outcome is not None and outcome.kind == "refused":
            return self._claims.of(job.key).get(task.uid, _QUOTA)
        if outcome is None and not texts.was_attempted:
            return _ORDER
        return self._claims.of(job.key).get(task.uid, _ORDER)

    def _release_reason(self, session: Session, job: Job, task: Task, outcome: TaskOutcome) -> str:
        """`ReleasePending` until the releasing pods should be gone, then `Unschedulable`."""
        known = self._releasing.get(task.uid)
        if known is None:
            node = session.nodes.by_name.get(outcome.node)
            leaving = [] if node is None else [t.grace for t in node.tasks.values() if t.status is TaskStatus.RELEASING]
            end = session.now + max(leaving, default=GRACE_SECONDS) + RELEASE_SECONDS
            known = self._releasing[task.uid] = _Release(job.key, outcome.node, end)
        return _RELEASE if session.now < known.end else _UNSCHEDULABLE

    def _is_overdue(self, session: Session, task: Task, outcome: TaskOutcome | None) -> bool:
        """Whether the pod waits for pods whose grace period is over, and may still wait."""
        known = self._releasing.get(task.uid)
        if known is None or session.now >= known.end or outcome is None or outcome.kind != "unfit":
            return False
        node = session.nodes.by_name.get(known.node)
        return node is not None and any(other.status is TaskStatus.RELEASING for other in node.tasks.values())


def report_ungated(session: Session, ref: ObjectRef, queue: str, events: SessionEvents, intents: list[Intent]) -> None:
    """The event of a pod whose queue allocation gate is removed."""
    row = reasons.GATE_REMOVED
    message = row.render(queue=queue, gate=QUEUE_ALLOCATION_GATE)
    events.emit(session, intents, ref, row.type, row.code, message, slot="gate")


class _Texts:
    """What pending pods of one job share, computed on demand."""

    def __init__(
        self,
        session: Session,
        job: Job,
        claims: Mapping[str, str],
        written: Mapping[str, _WrittenCondition] | None = None,
    ) -> None:
        """`claims`: the reasons of the pending pods, by uid; `written`: which pods lack a node; else outcomes."""
        self._session, self._job, self._claims, self._written = session, job, claims, written
        self._job_text: str | None = None
        self._missing: str | None = None
        self._was_attempted: bool | None = None

    def __str__(self) -> str:
        """The text of a pod without an outcome of its own."""
        if self._job_text is None:
            job = self._job
            self._job_text = self._session.job_fit_error(job) if job.uid else refusal_of(job).message
        return self._job_text

    @property
    def was_attempted(self) -> bool:
        """Whether the session tried a pending pod of the job."""
        if self._was_attempted is None:
            results = self._session.results
            self._was_attempted = any(results.outcome_of(uid) is not None for uid in self._job.pending)
        return self._was_attempted

    def with_missing_nodes(self, message: str) -> str:
        """The message, and for a gang below its minimum the pods that have quota and no node."""
        if self._job.min_available <= 1 or self._job.is_ready():
            return message
        if self._missing is None:
            self._missing = self._describe()
        return reasons.GANG_LACKS_NODES.render(detail=message, missing=self._missing) if self._missing else message

    def _describe(self) -> str:
        """`2 pods (NVIDIA-H200, cpu 4, nvidia.com/gpu 8)`."""
        session = self._session
        counts: Counter[TaskClass] = Counter(
            task.cls
            for uid, task in self._job.pending.items()
            if self._claims.get(uid) == _UNSCHEDULABLE and self._lacks_node(uid)
        )
        shapes: Counter[str] = Counter()
        for cls, count in counts.items():
            shapes[_shape(session, cls)] += count
        return ", ".join(f"{plural(n, 'pod')} ({shape})" for shape, n in sorted(shapes.items()))

    def _lacks_node(self, uid: str) -> bool:
        if self._written is None:
            return _lacks_node(self._session.results.outcome_of(uid))
        return uid not in self._written or self._written[uid].lacks_node


def _lacks_node(outcome: TaskOutcome | None) -> bool:
    return outcome is None or not (outcome.kind in ("schedulable", "pipelined") or outcome.fits_partly)


def _shape(session: Session, cls: TaskClass) -> str:
    """`NVIDIA-H200, cpu 4, nvidia.com/gpu 8`: the cards that a pod of the class accepts, and its requests."""
    cards = session.dispatch.first("pod_cards", cls)
    amounts = sorted((name, amount) for name, amount in cls.requests.items() if amount > 0 and name != PODS)
    found = [f"{name} {format_amount(name, amount)}" for name, amount in amounts]
    if cards is not None and cards.names:
        found[:0] = ["|".join(cards.names), *[card for card, _ in cards.others]]
    return ", ".join(found) or "no request"
