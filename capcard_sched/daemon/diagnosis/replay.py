"""Replays a recording and reports where the decisions differ, under the recorded or another scheduler-conf.

Each step starts from the recorded history (`ReplayState`). Under the recorded conf every intent is compared, in order;
under another one, the decisions about pods and PodGroups: binds, admissions, evictions.
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
from capcard_sched.daemon.diagnosis.replay_state import ReplayState, bindings, evictions, surplus
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.framework.session.pending_reasons import task_scheduling_reason
from capcard_sched.framework.session.report import SessionReport
from capcard_sched.model import reasons
from capcard_sched.model.intents import Bind, EmitEvent, Evict, Intent, UpdatePodGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.daemon.diagnosis.recording import RecordingReader
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.model.deltas import Delta

Kind: TypeAlias = Literal["bound", "admitted", "evicted"]
_EXTRA: Final = {"bound": "extra bind", "admitted": "extra admission", "evicted": "extra eviction"}
_INQUEUE: Final = "Inqueue"


class ReplayDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed decision."""

    #: Number of the step, from 1, and its time in Unix seconds.
    step: int
    now: float
    #: "bound elsewhere", "not bound", "bound earlier", "extra bind" and the like; "changed write", "changed order".
    what: str
    #: `Kind namespace/name`.
    object: str
    queue: str = ""
    #: The recorded and the replayed decision; "" is none.
    recorded: str = ""
    replayed: str = ""
    #: Reason why the replay has no decision.
    reason: str = ""


class QueueCounts(msgspec.Struct):
    """Counts of pods of one queue."""

    #: Recorded binds; the sum of the next four.
    bound: int = 0
    same: int = 0
    elsewhere: int = 0
    earlier: int = 0
    not_bound: int = 0
    #: Not bound in the recording.
    extra: int = 0


class Replayed(msgspec.Struct):
    """The result of a replay."""

    steps: int = 0
    sessions: int = 0
    #: Recorded intents compared.
    decisions: int = 0
    #: The first differences, in order of steps.
    differences: list[ReplayDifference] = []
    #: Number of differences by kind, and in all.
    kinds: dict[str, int] = {}
    found: int = 0
    queues: dict[str, QueueCounts] = {}
    notes: list[str] = []

    @property
    def same(self) -> bool:
        """Whether all decisions are as recorded."""
        return not self.found


class _Early(msgspec.Struct, frozen=True):
    """A replayed decision that the recording does not have at its step."""

    step: int
    now: float
    object: str
    queue: str
    replayed: str


def replay(reader: RecordingReader, registry: Registry, conf: Conf | None = None, *, most: int = 20) -> Replayed:
    """Replay a recording, under `conf` instead of the recorded conf if given.

    `most`: maximum number of differences kept. Raises RecordingError if the file is not a recording or the recorded
    conf is invalid here.
    """
    return _Replay(reader, registry, conf, most).finish()


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
        #: Decisions that the recording may have at a later step, by kind and key.
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
                    found.notes.append(f"after step {found.steps}: {what} failed in the daemon: {error}")
                case Leading(leading):
                    became = "became leader" if leading else "lost leadership"
                    found.notes.append(f"after step {found.steps}: the daemon {became}")
                case _:
                    pass
        if not self._reader.end:
            found.notes.append("the recording is truncated: replayed up to its last complete line")
        elif self._reader.end != "closed":
            found.notes.append(f"the recording ended early: {self._reader.end}")
        for (kind, _), early in sorted(self._early.items(), key=lambda item: (item[1].step, item[0])):
            self._note(early.step, early.now, _EXTRA[kind], early.object, early.queue, replayed=early.replayed)
            if kind == "bound":
                self._counts(early.queue).extra += 1
        found.differences.sort(key=lambda difference: difference.step)
        return found

    def _use(self, record: ConfUsed) -> None:
        conf = self._other
        if conf is None:
            result = parse_conf(msgspec.json.encode(record.document), registry=self._registry)
            if result.conf is None:
                errors = "; ".join(problem.render() for problem in result.problems if problem.severity == "error")
                raise RecordingError(f"the recorded scheduler-conf is invalid here: {errors}")
            # An unknown name is a warning in a file; here a part of the daemon is missing.
            missing = sorted(_names(record.document) - _names(conf_document(result.conf)))
            if missing:
                names = ", ".join(missing)
                raise RecordingError(
                    f"the recorded scheduler-conf needs parts that are not installed: {names} (--plugins-dir?)"
                )
            conf = result.conf
        if self._core is None:
            header = self._reader.header
            self._core = Core(
                conf,
                self._registry,
                header.scheduler_names,
                header.default_queue,
                term_limits=header.term_limits,
                half_gang_timeout=header.half_gang_timeout,
                autoscaling=header.autoscaling,
                waits_for_groups=header.waits_for_groups,
                calls_webhooks=True,
            )
        elif self._other is None:
            self._core.reconfigure(conf)
        else:
            self._found.notes.append(
                f"after step {self._found.steps}: a reload of the recorded scheduler-conf is skipped"
            )

    @property
    def _running(self) -> Core:
        if self._core is None:
            raise RecordingError(
                "the recording has deltas before its scheduler-conf: it was not written by this program"
            )
        return self._core

    def _apply(self, deltas: Sequence[object]) -> None:
        def failed(delta: Delta, error: Exception) -> None:  # as in the daemon, it is skipped
            self._found.notes.append(f"{type(delta).__name__} not applied: {type(error).__name__}: {error}")

        self._running.apply_all(self._history.deltas(deltas), failed)  # type: ignore[arg-type]

    def _step(self, record: Stepped) -> None:
        found, core = self._found, self._running
        found.steps += 1
        found.sessions += bool(record.session)
        found.decisions += len(record.intents)
        self._apply(record.deltas)
        try:
            result = core.step((), record.now, cuts=record.cuts)
        except Exception as error:  # noqa: BLE001 - a plugin of the other conf may raise anything
            found.notes.append(f"step {found.steps} raised {type(error).__name__}: {error}")
            result = StepResult([], SessionReport(""), True)
        if self._other is None and list(record.intents) == result.intents:
            self._history.record_intents(record.intents)
            for uid in bindings(record.intents):
                counts = self._counts(self._queue_of("bound", uid))
                counts.bound += 1
                counts.same += 1
            return
        for kind, recorded, replayed in (
            ("bound", bindings(record.intents), bindings(result.intents)),
            ("admitted", self._admissions(record.intents), self._admissions(result.intents)),
            ("evicted", evictions(record.intents), evictions(result.intents)),
        ):
            self._compare(kind, recorded, replayed, record, result)  # type: ignore[arg-type]
        if self._other is None:
            self._compare_rest(record, result.intents)
        self._history.record_intents(record.intents)
        self._history.restore(core, record.intents, result.intents, record.now)
        self._diverged = True

    def _compare(
        self,
        kind: Kind,
        recorded: dict[str, tuple[str, str]],
        replayed: dict[str, tuple[str, str]],
        record: Stepped,
        result: StepResult,
    ) -> None:
        """`recorded`, `replayed`: key of a decision to (object, value)."""
        step = self._found.steps
        for key, (name, value) in replayed.items():
            if key not in recorded:
                self._early.setdefault((kind, key), _Early(step, record.now, name, self._queue_of(kind, key), value))
        for key, (name, value) in recorded.items():
            queue = self._queue_of(kind, key)
            early = self._early.pop((kind, key), None)
            if early is not None:
                outcome, at = "earlier", f"{value}, step {step}"
                self._note(early.step, early.now, f"{kind} earlier", name, queue, recorded=at, replayed=early.replayed)
            elif key not in replayed:
                outcome = "not_bound"
                reason = self._reason(kind, key, result)
                self._note(step, record.now, f"not {kind}", name, queue, recorded=value, reason=reason)
            elif replayed[key][1] != value:
                outcome = "elsewhere"
                what = "bound elsewhere" if kind == "bound" else f"{kind} differently"
                self._note(step, record.now, what, name, queue, recorded=value, replayed=replayed[key][1])
            else:
                outcome = "same"
            if kind == "bound":
                counts = self._counts(queue)
                counts.bound += 1
                setattr(counts, outcome, getattr(counts, outcome) + 1)

    def _compare_rest(self, record: Stepped, decided: Sequence[Intent]) -> None:
        """Under the recorded conf all other intents must be the same, too: statuses, conditions, events, order."""
        before = self._found.found
        compared = bindings(record.intents).items() ^ bindings(decided).items()
        compared |= evictions(record.intents).items() ^ evictions(decided).items()
        reported = {uid for uid, _ in compared}
        recorded = [self._plain(intent) for intent in record.intents if not self._is_reported(intent, reported)]
        replayed = [self._plain(intent) for intent in decided if not self._is_reported(intent, reported)]
        missing, extra = surplus(recorded, replayed), surplus(replayed, recorded)
        for subject in dict.fromkeys([*missing, *extra]):
            wanted, got = missing.get(subject, []), extra.get(subject, [])
            for index in range(max(len(wanted), len(got))):
                self._note(
                    self._found.steps, record.now, "changed write", subject,
                    recorded=wanted[index] if index < len(wanted) else "",
                    replayed=got[index] if index < len(got) else "",
                )  # fmt: skip
        if self._found.found == before and not missing and not extra and recorded != replayed:
            self._note(self._found.steps, record.now, "changed order", "all intents of the step")

    def _is_reported(self, intent: Intent, reported: set[str]) -> bool:
        """Whether `_compare` reports the intent, or it is the event of a restored bind."""
        if isinstance(intent, (Bind, Evict)):
            return intent.uid in reported
        return self._diverged and isinstance(intent, EmitEvent) and intent.reason == reasons.POD_SCHEDULED.code

    def _plain(self, intent: Intent) -> Intent:
        """The intent without session numbers, which differ after the first difference."""
        if not self._diverged or not isinstance(intent, UpdatePodGroup):
            return intent
        conditions = tuple(replace(item, transition_id="", last_transition_time=None) for item in intent.conditions)
        return replace(intent, conditions=conditions, admitted=False)  # formats before it do not record it

    def _admissions(self, intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
        """PodGroups that leave phase Pending."""
        return {
            f"{intent.namespace}/{intent.name}": (f"PodGroup {intent.namespace}/{intent.name}", intent.phase)
            for intent in intents
            if isinstance(intent, UpdatePodGroup)
            and intent.phase == _INQUEUE
            and self._history.phase(intent.namespace, intent.name) == "Pending"
        }

    def _note(
        self, step: int, now: float, what: str, name: str, queue: str = "", *, recorded: str = "",
        replayed: str = "", reason: str = "",
    ) -> None:  # fmt: skip
        self._found.found += 1
        self._found.kinds[what] = self._found.kinds.get(what, 0) + 1
        if len(self._found.differences) < self._most:
            difference = ReplayDifference(step, now, what, name, queue, recorded, replayed, reason)
            self._found.differences.append(difference)

    def _counts(self, queue: str) -> QueueCounts:
        return self._found.queues.setdefault(queue, QueueCounts())

    def _queue_of(self, kind: Kind, key: str) -> str:
        state = self._running.snapshot().state
        if kind == "admitted":
            job = state.jobs.get(key)
        else:
            task = state.tasks.get(key)
            job = None if task is None else task.job
        return "" if job is None else job.queue

    def _reason(self, kind: Kind, key: str, result: StepResult) -> str:
        core = self._running
        state, session = core.snapshot().state, core.snapshot().session
        if result.idle or session is None:
            return "no session: no input had changed"
        task = state.tasks.get(key)
        job = state.jobs.get(key) if kind == "admitted" else None if task is None else task.job
        if job is None:
            return "not found"
        refusals = [
            refusal.message
            for (ref, _), refusal in session.results.refusals.items()
            if ref.kind == "PodGroup" and (ref.namespace, ref.name) == (job.namespace, job.name)
        ]
        if kind == "admitted" or task is None:
            return "; ".join(refusals)
        _, message, _ = task_scheduling_reason(task, session.results.outcome_of(key), session.job_fit_error(job))
        return message or "; ".join(refusals)


def _names(document: dict[str, Any]) -> set[str]:
    """Actions and plugins that a conf document names."""
    plugins = {f"plugin {plugin['name']}" for tier in document["tiers"] for plugin in tier["plugins"]}
    return plugins | {f"action {name}" for name in document["actions"].split(", ")}
