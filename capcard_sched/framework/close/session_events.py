"""Events at the end of a session: each cause once per object, repeated after some minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from capcard_sched.framework.session.carry_over import REFRESH_SECONDS
from capcard_sched.framework.session.results import reference
from capcard_sched.model import reasons
from capcard_sched.model.intents import EmitEvent, Intent, ObjectRef
from capcard_sched.model.job import IMPLICIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.refusal import Refusal


class SessionEvents:
    """The last events by object, and those of the refusals of a session. One per core."""

    def __init__(self) -> None:
        #: By kind and slot, the text and time of the last event of an object, by its uid where it has one of its own.
        #: Equal events share one record: 10,000 of them take 0.3 MiB.
        self._last: dict[tuple[str, str], dict[str | ObjectRef, tuple[str, float]]] = {}
        self._recent = ("", 0.0)
        #: Object and hook of a refusal to the Unix seconds at which one of its events is to be repeated.
        self._repeat_at: dict[tuple[ObjectRef, str], float] = {}
        #: Texts of the refusals of the current session that are events of their own, by object.
        self._texts: dict[ObjectRef, set[str]] = {}

    def clear(self) -> None:
        """Drops all events: those of an earlier leader term may be lost."""
        self._last.clear()
        self._repeat_at.clear()

    def prune(self, now: float) -> None:
        """Drops events that would be written again anyway; `now` in Unix seconds."""
        old = now - REFRESH_SECONDS
        kept = {slot: {key: it for key, it in found.items() if it[1] > old} for slot, found in self._last.items()}
        self._last = {slot: found for slot, found in kept.items() if found}
        self._repeat_at = {key: moment for key, moment in self._repeat_at.items() if moment > now}

    def begin_close(self, session: Session) -> None:
        """Reads the refusals of a session, before the events of its pods."""
        self._texts = {}
        for (ref, _), refusal in session.results.refusals.items():
            if refusal.event and (ref.kind != "PodGroup" or _is_for_pods(_job_of(session, ref), refusal)):
                self._texts.setdefault(ref, set()).add(refusal.message)

    def has_own_event(self, job: Job, task: Task, message: str) -> bool:
        """Whether a refusal of the session is an event with this text on a pending pod."""
        texts = self._texts
        return bool(texts) and any(message in texts.get(ref, ()) for ref in (reference(task), reference(job)))

    def refreshes(self, keys: Sequence[tuple[ObjectRef, str]]) -> list[float]:
        """Unix seconds at which events of refusals are to be repeated. `keys`: object and hook."""
        return [self._repeat_at[key] for key in keys if key in self._repeat_at]

    def emit(
        self,
        session: Session,
        intents: list[Intent],
        ref: ObjectRef,
        type: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        component: str = "",
        *,
        slot: str,
        normalise: bool = False,
    ) -> float:
        """Emits an event unless it repeats the last one of its object and slot within a short time.

        `normalise`: texts that differ in numbers only are equal. Returns the time of the last event, Unix seconds.
        """
        compared = f"{reason} {reasons.without_numbers(message) if normalise else message}"
        events = self._last.setdefault((ref.kind, slot), {})
        key = ref.uid if ref.uid not in ("", IMPLICIT) else ref
        last = events.get(key)
        if last is not None and last[0] == compared and session.now - last[1] < REFRESH_SECONDS:
            return last[1]
        if self._recent != (compared, session.now):
            self._recent = compared, session.now
        events[key] = self._recent
        intents.append(EmitEvent(ref, type, reason, message, component))
        return session.now

    def emit_refusals(self, session: Session, intents: list[Intent]) -> None:
        """The events of refusals that are new, or due again."""
        events = ((key, refusal) for key, refusal in session.results.refusals.items() if refusal.event)
        due = sorted(key for key, refusal in events if self._is_due(session, key, refusal))
        for ref, hook in due:
            refusal = session.results.refusals[ref, hook]
            emitted = [session.now]
            targets = [(ref, refusal.component)]
            if ref.kind == "PodGroup":
                job = _job_of(session, ref)
                if job is not None and (job.implicit or not job.uid):
                    targets = []
                if job is not None and _is_for_pods(job, refusal):
                    component = f"volcano.{refusal.plugin}" if refusal.plugin else ""
                    pods = sorted((reference(task) for task in job.pending.values()), key=lambda pod: pod.name)
                    targets += [(pod, component) for pod in pods]
            for target, component in targets:
                emitted.append(
                    self.emit(
                        session, intents, target, refusal.type, refusal.reason, refusal.message, component, slot=hook
                    )
                )
                emitted += [
                    self.emit(
                        session, intents, target, refusal.type, reason, message, component, slot=f"{hook}/{position}"
                    )
                    for position, (reason, message) in enumerate(refusal.also)
                ]
            self._repeat_at[ref, hook] = min(emitted) + REFRESH_SECONDS

    def _is_due(self, session: Session, key: tuple[ObjectRef, str], refusal: Refusal) -> bool:
        """Whether a refusal may have an event to emit: it is new, its job changed, or an event is to be repeated."""
        ref, _ = key
        return (
            not session.carry_over.repeats(ref, refusal)
            or session.now >= self._repeat_at.get(key, 0.0)
            or f"{ref.namespace}/{ref.name}" in session.changed.jobs
        )


def _job_of(session: Session, ref: ObjectRef) -> Job | None:
    return session.state.jobs.get(f"{ref.namespace}/{ref.name}")


def _is_for_pods(job: Job | None, refusal: Refusal) -> bool:
    """Whether the event of a refusal of a job is one of its pods, too."""
    return job is not None and (refusal.pods_too or job.implicit)
