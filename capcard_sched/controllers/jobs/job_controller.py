"""The job controller: from changes of Jobs, pods, PodGroups and Commands to the Jobs to reconcile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.job_pass import JobPass, Request, Settings
from capcard_sched.controllers.jobs.members import PLUGIN_ARGUMENT_IGNORED
from capcard_sched.controllers.jobs.phases import FINISHED, TERMINATE
from capcard_sched.controllers.objects import (
    CLAIM,
    COMMAND,
    JOB,
    POD,
    POD_GROUP,
    JsonObject,
    Key,
    controller_of,
    is_terminating,
    job_phase,
    key_of,
    meta,
    status,
)
from capcard_sched.controllers.view import (
    Create,
    Delete,
    Result,
    delete,
    event_on,
    rest_at,
    target_of,
    unmatched_commands,
)
from capcard_sched.model.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.controllers.jobs.members import News
    from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
    from capcard_sched.controllers.view import Failure, View
    from capcard_sched.model.intents import EmitEvent

#: Kind of an object that could not be created to the reason of the event.
_CREATE_REASONS = {POD_GROUP: "PodGroupError", CLAIM: "PVCError", POD: "FailedCreate"}


class JobController:
    """Reconciles Jobs (`batch.volcano.sh`)."""

    watches = frozenset({JOB, POD, POD_GROUP, COMMAND, CLAIM})
    replays = frozenset({JOB, COMMAND})

    def __init__(
        self, scheduler_name: str, make_keys: Callable[[], KeyPair], *, count_preemptions: bool = True
    ) -> None:
        """`scheduler_name` for Jobs that name none; `make_keys` for the ssh plugin."""
        self._settings = Settings(scheduler_name, make_keys, count_preemptions)
        #: Job uid to the news emitted last.
        self._emitted: dict[str, News] = {}
        #: Claims that do not exist, and pods that have the name of a member, to the Jobs that wait for a change.
        self._awaiting: dict[Key, dict[Key, None]] = {}
        #: Job to what it waits for, as of its last pass.
        self._awaited: dict[Key, tuple[Key, ...]] = {}
        #: Job uid to the status that the API server has, and to the one that shows the progress since.
        self._progress: dict[str, tuple[JsonObject, JsonObject]] = {}

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """The Job itself, the Job that owns the object, or the target of a Command."""
        obj = new if new is not None else old
        assert obj is not None
        if kind == JOB:
            yield Key(JOB, *key_of(obj))
            if new is None:
                self._emitted.pop(meta(obj)["uid"], None)
                self._progress.pop(meta(obj)["uid"], None)
        elif kind in (POD, POD_GROUP):
            owner = controller_of(obj)
            if owner is not None and kind_of(owner) == JOB:
                yield Key(JOB, key_of(obj)[0], owner["name"])
            if new is None:
                yield from self._awaiting.pop(Key(kind, *key_of(obj)), {})
        elif kind == COMMAND and new is not None:
            target = target_of(new)
            if target is not None and target.kind == JOB:
                yield target
        elif kind == CLAIM and old is None:
            yield from self._awaiting.pop(Key(kind, *key_of(obj)), {})

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """One pass over a Job. A Job that is being deleted is left to the garbage collector."""
        job = view.get(JOB, key.namespace, key.name)
        if job is None:
            self._await(key, ())
            return unmatched_commands(view, key, now)
        if is_terminating(job):
            self._await(key, ())
            commands = view.targeting(key)
            return Result([delete(COMMAND, command) for command in commands], rest_at(commands, now))
        return self._pass(view, job, now, None)

    def _pass(self, view: View, job: JsonObject, now: float, forced: Request | None) -> Result:
        uid, written = meta(job)["uid"], status(job)
        before, progress = self._progress.get(uid, (written, written))
        if before != written:
            progress = written
        run = JobPass(self._settings, view, {**job, "status": progress}, written, now)
        result = run.run(forced)
        # Progress lasts until the API server has it, or the decision that follows it.
        progress = run.progress if run.progress is not None else progress
        if progress != written:
            self._progress[uid] = (written, progress)
        else:
            self._progress.pop(uid, None)
        self._await(Key(JOB, *key_of(job)), tuple(run.awaited))
        return result._replace(writes=[*result.writes, *self._events(job, run.news)])

    def _await(self, job: Key, objects: tuple[Key, ...]) -> None:
        """Makes changes of these objects, and of no others, queue a Job."""
        for each in self._awaited.pop(job, ()):
            waiting = self._awaiting.get(each, {})
            waiting.pop(job, None)
            if not waiting:
                self._awaiting.pop(each, None)
        for each in objects:
            self._awaiting.setdefault(each, {})[job] = None
        if objects:
            self._awaited[job] = objects

    def _events(self, job: JsonObject, news: News) -> list[EmitEvent]:
        """Events for the news that were not emitted before."""
        uid = meta(job)["uid"]
        known = self._emitted.pop(uid, {})
        # The arguments of plugins never change: their events are not repeated after a restart of the Job.
        lasting = {about: entry for about, entry in known.items() if entry[0] == PLUGIN_ARGUMENT_IGNORED}
        if news or lasting:
            self._emitted[uid] = {**lasting, **news}
        fresh = [entry for about, entry in news.items() if known.get(about) != entry]
        return [event_on(JOB, job, reason, text, warning=warning) for reason, text, warning in fresh]

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """An event; at the retry limit the Job is terminated, unless only its queue or a claim is in the way."""
        job = view.get(JOB, key.namespace, key.name)
        if job is None:
            return Result()
        kind = failure.write.object["kind"] if isinstance(failure.write, Create) else ""
        reason = _CREATE_REASONS.get(kind, "FailedCreate" if kind else "JobStatusError")
        if isinstance(failure.write, Delete):
            reason = "FailedDelete"
        events = [event_on(JOB, job, reason, failure.error, warning=True)]
        phase = job_phase(job)
        if not failure.last or kind in (POD_GROUP, CLAIM) or phase in FINISHED:
            return Result(events)
        text = "Job failed on action SyncJob for retry limit reached"
        result = self._pass(view, job, now, Request(TERMINATE, reason="RetryLimitReached"))
        return result._replace(
            writes=[*events, event_on(JOB, job, "ExecuteAction", text, warning=True), *result.writes]
        )
