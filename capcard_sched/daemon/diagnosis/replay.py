"""A recording decided again: whether the decisions are the same, or where another scheduler-conf decides otherwise.

Every step is decided given the recorded history up to it (`daemon.replay_state`). Under the recorded conf every intent
is compared, in order; under another one, its decisions about pods and PodGroups: which are bound, where and when,
which are admitted, and which are evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from capcard_sched.daemon.diagnosis.recording import (
    Applied,
    ConfUsed,
    Failed,
    Leading,
    RecordingError,
    Stepped,
    conf_document,
)
from capcard_sched.daemon.diagnosis.replay_state import ReplayState
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.framework.session.pending_reasons import task_scheduling_reason
from capcard_sched.framework.session.report import SessionReport
from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.intents import Bind, EmitEvent, Evict, Intent, UpdatePodGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.daemon.diagnosis.recording import RecordingReader
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf

Kind: TypeAlias = Literal["bound", "admitted", "evicted"]
_INQUEUE: Final = "Inqueue"


class ReplayDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision that is another one now."""

    #: Number of the step, from 1, and its time in Unix seconds.
    step: int
    now: float
    #: "bound elsewhere", "not bound", "bound earlier", "bound only here" and the like; "written otherwise",
    #: "in another order".
    what: str
    #: `Kind namespace/name`.
    object: str
    queue: str = ""
    #: What was recorded, and what is decided here; "" is nothing.
    then: str = ""
    here: str = ""
    #: Why nothing is decided here.
    why: str = ""


class QueueCounts(msgspec.Struct):
    """Pods of one queue."""

    #: As recorded; the next four add up to it.
    bound: int = 0
    same: int = 0
    elsewhere: int = 0
    earlier: int = 0
    not_bound: int = 0
    #: Never bound in the recording.
    only_here: int = 0


class Replayed(msgspec.Struct):
    """What a replay found."""

    steps: int = 0
    sessions: int = 0
    #: Recorded intents that were compared.
    decisions: int = 0
    #: The first ones, in order of their steps.
    differences: list[ReplayDifference] = []
    #: How many there are of each kind, and of all.
    kinds: dict[str, int] = {}
    found: int = 0
    queues: dict[str, QueueCounts] = {}
    notes: list[str] = []

    @property
    def same(self) -> bool:
        """Whether everything was decided as recorded."""
        return not self.found


class _Early(msgspec.Struct, frozen=True):
    """A decision made here that the recording does not have at its step."""

    step: int
    now: float
    object: str
    queue: str
    here: str


def replay(reader: RecordingReader, registry: Registry, conf: Conf | None = None, *, most: int = 20) -> Replayed:
    """Decide everything again, under `conf` instead of the recorded ones when given.

    `most`: differences that are kept. Raises RecordingError when the file is no recording after all, or the recorded
    conf cannot be used here.
    """
    run = _Replay(reader, registry, conf, most)
    return run.finish()


class _Replay:
    """One replay; `finish` may be called once."""

    def __init__(self, reader: RecordingReader, registry: Registry, conf: Conf | None, most: int) -> None:
        self._reader = reader
        self._registry = registry
        self._other = conf
        self._most = most
        self._core: Core | None = None
        self._history = ReplayState()
        self._found = Replayed()
        #: Decisions that may turn out to be early, by kind and key.
        self._early: dict[tuple[Kind, str], _Early] = {}
        self._diverged = False

    def finish(self) -> Replayed:
        found = self._found
        for record in self._reader:
            match record:
                case ConfUsed():
                    self._use(record)
                case Applied(deltas):
                    self._apply(deltas)
                case Stepped():
                    self._step(record)
                case Failed(what, error):
                    found.notes.append(f"after step {found.steps}: {what} failed inside the daemon: {error}")
                case Leading(leading):
                    found.notes.append(f"after step {found.steps}: {'began' if leading else 'ceased'} to lead")
                case _:
                    pass
        if not self._reader.end:
            found.notes.append("the recording was cut off: replayed up to its last whole line")
        elif self._reader.end != "closed":
            found.notes.append(f"the recording ended early: {self._reader.end}")
        for (kind, _), early in sorted(self._early.items(), key=lambda item: (item[1].step, item[0])):
            self._note(early.step, early.now, f"{kind} only here", early.object, early.queue, here=early.here)
            if kind == "bound":
                self._counts(early.queue).only_here += 1
        found.differences.sort(key=lambda difference: difference.step)
        return found

    def _use(self, record: ConfUsed) -> None:
        conf = self._other
        if conf is None:
            result = parse_conf(msgspec.json.encode(record.document), registry=self._registry)
            if result.conf is None:
                why = "; ".join(problem.render() for problem in result.problems if problem.severity == "error")
                raise RecordingError(f"the recorded scheduler-conf cannot be used here: {why}")
            # An unknown name is a mere warning in a file; here a part of the daemon is missing.
            missing = sorted(_names(record.document) - _names(conf_document(result.conf)))
            if missing:
                names = ", ".join(missing)
                raise RecordingError(
                    f"the recorded scheduler-conf needs what is not installed: {names} (--plugins-dir?)"
                )
            conf = result.conf
        if self._core is None:
            header = self._reader.header
            self._core = Core(conf, self._registry, header.scheduler_names, header.default_queue)
        elif self._other is None:
            self._core.reconfigure(conf)
        else:
            self._found.notes.append(
                f"after step {self._found.steps}: a reload of the recorded scheduler-conf is left out"
            )

    @property
    def _running(self) -> Core:
        if self._core is None:
            raise RecordingError(
                "the recording has facts before its scheduler-conf: it was not written by this program"
            )
        return self._core

    def _apply(self, deltas: Sequence[object]) -> None:
        state = self._running.state
        for fact in self._history.facts(deltas):  # type: ignore[arg-type]
            try:
                state.apply(fact)
            except Exception as error:  # noqa: BLE001 - as the daemon does: the others count
                self._found.notes.append(f"{type(fact).__name__} could not be applied: {type(error).__name__}: {error}")

    def _step(self, record: Stepped) -> None:
        found, core = self._found, self._running
        found.steps += 1
        found.sessions += bool(record.session)
        found.decisions += len(record.intents)
        self._apply(record.deltas)
        try:
            result = core.step((), record.now)
        except Exception as error:  # noqa: BLE001 - a plugin of the other conf may raise anything
            found.notes.append(f"step {found.steps} raised {type(error).__name__}: {error}")
            result = StepResult([], SessionReport(""), True)
        if self._other is None and list(record.intents) == result.intents:
            self._history.decided(record.intents)
            self._count_same(record)
            return
        for kind, then, here in (
            ("bound", _bindings(record.intents), _bindings(result.intents)),
            ("admitted", self._admissions(record.intents), self._admissions(result.intents)),
            ("evicted", _evictions(record.intents), _evictions(result.intents)),
        ):
            self._compare(kind, then, here, record, result)  # type: ignore[arg-type]
        if self._other is None:
            self._compare_rest(record, result.intents)
        self._history.decided(record.intents)
        self._history.put_back(core.state, record.intents, result.intents, record.now)
        self._diverged = True

    # --- comparisons ------------------------------------------------------------------------------------------------

    def _compare(
        self,
        kind: Kind,
        then: dict[str, tuple[str, str]],
        here: dict[str, tuple[str, str]],
        record: Stepped,
        result: StepResult,
    ) -> None:
        """`then`, `here`: key of what was decided to (object, how)."""
        step = self._found.steps
        for key, (name, how) in here.items():
            if key not in then:
                self._early.setdefault((kind, key), _Early(step, record.now, name, self._queue_of(kind, key), how))
        for key, (name, how) in then.items():
            queue = self._queue_of(kind, key)
            early = self._early.pop((kind, key), None)
            if early is not None:
                verdict = "earlier"
                self._note(
                    early.step, early.now, f"{kind} earlier", name, queue, then=f"{how}, step {step}", here=early.here
                )
            elif key not in here:
                verdict = "not_bound"
                why = self._why(kind, key, result)
                self._note(step, record.now, f"not {kind}", name, queue, then=how, why=why)
            elif here[key][1] != how:
                verdict = "elsewhere"
                what = "bound elsewhere" if kind == "bound" else f"{kind} otherwise"
                self._note(step, record.now, what, name, queue, then=how, here=here[key][1])
            else:
                verdict = "same"
            if kind == "bound":
                counts = self._counts(queue)
                counts.bound += 1
                setattr(counts, verdict, getattr(counts, verdict) + 1)

    def _compare_rest(self, record: Stepped, decided: Sequence[Intent]) -> None:
        """Under the recorded conf everything else must be the same too: statuses, conditions, events, their order."""
        before = self._found.found
        compared = _bindings(record.intents).items() ^ _bindings(decided).items()
        compared |= _evictions(record.intents).items() ^ _evictions(decided).items()
        told = {uid for uid, _ in compared}
        then = [self._plain(intent) for intent in record.intents if not self._excused(intent, told)]
        here = [self._plain(intent) for intent in decided if not self._excused(intent, told)]
        missing, surplus = _surplus(then, here), _surplus(here, then)
        for subject in dict.fromkeys([*missing, *surplus]):
            wanted, got = missing.get(subject, []), surplus.get(subject, [])
            for index in range(max(len(wanted), len(got))):
                self._note(
                    self._found.steps, record.now, "written otherwise", subject,
                    then=wanted[index] if index < len(wanted) else "", here=got[index] if index < len(got) else "",
                )  # fmt: skip
        if self._found.found == before and not missing and not surplus and then != here:
            self._note(self._found.steps, record.now, "in another order", "all intents of the step")

    def _excused(self, intent: Intent, told: set[str]) -> bool:
        """Told already; or the echo of a binding that the core was told of another way."""
        if isinstance(intent, (Bind, Evict)):
            return intent.uid in told
        return self._diverged and isinstance(intent, EmitEvent) and intent.reason == reasons.POD_SCHEDULED.code

    def _plain(self, intent: Intent) -> Intent:
        """After the first difference sessions are numbered otherwise."""
        if not self._diverged or not isinstance(intent, UpdatePodGroup):
            return intent
        conditions = tuple(replace(item, transition_id="", last_transition_time=None) for item in intent.conditions)
        return replace(intent, conditions=conditions)

    def _admissions(self, intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
        """PodGroups that leave phase Pending."""
        return {
            f"{intent.namespace}/{intent.name}": (f"PodGroup {intent.namespace}/{intent.name}", intent.phase)
            for intent in intents
            if isinstance(intent, UpdatePodGroup)
            and intent.phase == _INQUEUE
            and self._history.phase(intent.namespace, intent.name) == "Pending"
        }

    # --- results ----------------------------------------------------------------------------------------------------

    def _count_same(self, record: Stepped) -> None:
        for uid in _bindings(record.intents):
            counts = self._counts(self._queue_of("bound", uid))
            counts.bound += 1
            counts.same += 1

    def _note(
        self, step: int, now: float, what: str, name: str, queue: str = "", *, then: str = "", here: str = "",
        why: str = "",
    ) -> None:  # fmt: skip
        self._found.found += 1
        self._found.kinds[what] = self._found.kinds.get(what, 0) + 1
        if len(self._found.differences) < self._most:
            self._found.differences.append(ReplayDifference(step, now, what, name, queue, then, here, why))

    def _counts(self, queue: str) -> QueueCounts:
        return self._found.queues.setdefault(queue, QueueCounts())

    def _queue_of(self, kind: Kind, key: str) -> str:
        state = self._running.state
        if kind == "admitted":
            job = state.jobs.get(key)
        else:
            task = state.tasks.get(key)
            job = None if task is None else task.job
        return "" if job is None else job.queue

    def _why(self, kind: Kind, key: str, result: StepResult) -> str:
        """What this core says about a pod or PodGroup for which it decided nothing."""
        core = self._running
        session = core.last_session
        if result.idle or session is None:
            return "no session was held: nothing it depends on had changed"
        task = core.state.tasks.get(key)
        job = core.state.jobs.get(key) if kind == "admitted" else None if task is None else task.job
        if job is None:
            return "it is not known"
        refusals = [
            refusal.message
            for (ref, _), refusal in session.refusals.items()
            if ref.kind == "PodGroup" and (ref.namespace, ref.name) == (job.namespace, job.name)
        ]
        if kind == "admitted" or task is None:
            return "; ".join(refusals)
        _, message, _ = task_scheduling_reason(task, session.outcomes.get(key), session.job_fit_error(job))
        return message or "; ".join(refusals)


def _bindings(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", _place(intent))
        for intent in intents
        if isinstance(intent, Bind)
    }


def _place(bind: Bind) -> str:
    card = bind.annotations.get(CARD_ASSIGNED)
    return f"{bind.node} ({card})" if card else bind.node


def _evictions(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", intent.reason)
        for intent in intents
        if isinstance(intent, Evict)
    }


def _surplus(ones: Sequence[Intent], others: Sequence[Intent]) -> dict[str, list[str]]:
    """Intents that are among the ones more often than among the others: object to their texts."""
    left: dict[bytes, int] = {}
    for intent in others:
        encoded = msgspec.json.encode(intent)
        left[encoded] = left.get(encoded, 0) + 1
    found: dict[str, list[str]] = {}
    for intent in ones:
        encoded = msgspec.json.encode(intent)
        if left.get(encoded, 0):
            left[encoded] -= 1
        else:
            found.setdefault(_subject(intent), []).append(encoded.decode())
    return found


def _subject(intent: Intent) -> str:
    if isinstance(intent, EmitEvent):
        ref = intent.object
        return f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}"
    kinds = {
        "UpdatePodGroup": "PodGroup", "AnnotatePodGroup": "PodGroup",
        "UpdatePodCondition": "Pod", "Bind": "Pod", "Evict": "Pod",
    }  # fmt: skip
    kind = kinds.get(type(intent).__name__, "Queue")
    namespace = getattr(intent, "namespace", "")
    return f"{kind} {namespace}/{intent.name}" if namespace else f"{kind} {intent.name}"


def _names(document: dict[str, Any]) -> set[str]:
    """Actions and plugins that a conf document names."""
    plugins = {f"plugin {plugin['name']}" for tier in document["tiers"] for plugin in tier["plugins"]}
    return plugins | {f"action {name}" for name in document["actions"].split(", ")}
