"""One reconcile of a Job: at most one action or change of phase, then the objects of the phase.

The status is written first: it records the action (see `records`), so that a controller which ends after any of the
writes resumes with the rest of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.jobs.events import POD_EVICTED, JobEvent, JobPolicies, PolicyAction, job_events
from capcard_sched.controllers.jobs.group import group_of, is_of_version
from capcard_sched.controllers.jobs.job_spec import job_spec
from capcard_sched.controllers.jobs.job_status import (
    JobMember,
    Records,
    census,
    job_status,
    member_annotations,
    members,
)
from capcard_sched.controllers.jobs.members import MemberSync, News
from capcard_sched.controllers.jobs.phases import (
    ACTIVE,
    COMPLETED,
    FAILED,
    PENDING,
    RESTART_PARTITION,
    RESTART_POD,
    RESTARTING,
    SYNC,
    TARGETED,
    Kill,
    Transition,
    ending,
    following,
    transition,
)
from capcard_sched.controllers.jobs.stalls import CANNOT_CONTINUE, find_stall
from capcard_sched.controllers.objects import (
    COMMAND,
    JOB,
    POD,
    POD_GROUP,
    JsonObject,
    Key,
    is_terminating,
    job_phase,
    merge_diff,
    meta,
    status,
)
from capcard_sched.controllers.view import (
    CLOCK_SKEW,
    Increment,
    Patch,
    Result,
    Write,
    delete,
    event_on,
    ignored_command,
    is_for,
    rest_at,
)
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.timestamps import format_duration, format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
    from capcard_sched.controllers.view import View

_COUNTED = {COMPLETED: "volcano_job_completed_phase_count", FAILED: "volcano_job_failed_phase_count"}
#: Fields of the status that show progress and record no decision.
_PROGRESS = frozenset(
    {
        *("pending", "running", "succeeded", "failed", "terminating", "unknown", "taskStatusCount"),
        *("state", "conditions", "minAvailable"),
    }
)
#: Phases before and after a change that is progress.
_PROGRESSING = ACTIVE | {""}
#: Seconds after a deletion within which a scheduler writes the condition of its eviction.
_CONDITION_DELAY = 2.0


class Settings(NamedTuple):
    """What a job controller is configured with."""

    scheduler_name: str
    make_keys: Callable[[], KeyPair]
    #: Whether restarts after evictions by the scheduler count towards `maxRetry`.
    count_preemptions: bool = True


class Request(NamedTuple):
    """An action to execute, with its cause."""

    action: str
    event: JobEvent | None = None
    command: JsonObject | None = None
    #: Set when an administrative decision caused it.
    reason: str = ""


class JobPass:
    """One reconcile of one Job. `run` once.

    Args:
        job: With the status that the passes before computed.
        written: The status that the API server has.
    """

    def __init__(self, settings: Settings, view: View, job: JsonObject, written: JsonObject, now: float) -> None:
        self._settings = settings
        self._view = view
        self._job = job
        self._written = written
        self._now = now
        self._spec = job_spec(job, settings.scheduler_name)
        self._policies = JobPolicies(self._spec)
        self._phase = job_phase(job) or PENDING
        self._version = int(status(job).get("version") or 0)
        self._retries = int(status(job).get("retryCount") or 0)
        self._records = Records(status(job).get("controlledResources"))
        self._pods = [(pod, member_annotations(pod)) for pod in view.owned(job, POD)]
        #: The pods as members, and the state of the Job of which that holds.
        self._found: list[JobMember] = []
        self._found_in: tuple[str, int, dict[str, str]] | None = None
        self._group = group_of(view, job, self._spec)
        self._writes: list[Write] = []
        self._at: float | None = None
        #: Events that are emitted once, by what they are about.
        self.news: News = {}
        #: Claims whose creation, and pods whose end the Job waits for.
        self.awaited: list[Key] = []
        #: The status, when it only shows progress since `written`; None when the pass decided something.
        self.progress: JsonObject | None = None

    def run(self, forced: Request | None = None) -> Result:
        """The writes of this pass."""
        request = forced or self._request()
        reason = ""
        if request is not None:
            reason = self._execute(request)
        elif self._phase in ACTIVE:
            return self._sync_members()
        found = self._members()
        before: list[Write] = []
        group_deletes = self._group_deletes()
        if request is None:
            if self._kills_whole_job():
                before = self._drop_plugins()
            self._phase = following(self._phase, self._spec, census(found), self._counted_retries)
        self._write_status(before, found, reason)
        if request is not None and request.command is not None:
            self._writes.append(delete(COMMAND, request.command))
        self._delete_doomed(found)
        self._writes += group_deletes
        return Result(self._writes, self._at)

    def _request(self) -> Request | None:
        """The action to execute now: that of the oldest command, else that of the first event that is due."""
        key = Key(JOB, self._spec.namespace, self._spec.name)
        self._at = rest_at(commands := self._view.targeting(key), self._now)
        for command in commands:
            action = str(command.get("action") or SYNC)
            if not is_for(command, key, self._spec.uid):
                deletion, self.news[f"Command {meta(command)['uid']}"] = ignored_command(JOB, self._job, command)
                self._writes.append(deletion)
                continue
            if meta(command)["uid"] != self._records.command and transition(self._phase, action) is not None:
                request = Request(action, command=command)
                if self._target(request) is not None:
                    return request
            self._writes.append(delete(COMMAND, command))
        is_last = self._phase == RESTARTING and self._counted_retries >= self._spec.max_retry
        if is_last or self._phase not in (*ACTIVE, RESTARTING):
            return None
        due: list[tuple[float, Request]] = []
        for event, moment, (action, delay) in self._actions():
            request = Request(action, event)
            if self._target(request) is None:
                continue
            if moment <= self._now:
                due.append((moment, request))
            else:
                self._at = moment if self._at is None else min(self._at, moment)
                text = f"Execute action {action} after {format_duration(delay)}"
                self.news[f"{event.name} {event.pod}"] = ("ExecuteAction", text, False)
        return min(due, key=lambda entry: entry[0])[1] if due else None

    def _actions(self) -> list[tuple[JobEvent, float, PolicyAction]]:
        """Events that have an action, and when it is due."""
        recorded = status(self._job).get("taskStatusCount") or {}
        found, delayed = self._members(), self._records.evicted()
        actions = []
        is_outdated = self._group is not None and is_of_version(self._group, self._version) is False
        for event in job_events(self._spec, found, None if is_outdated else self._group, recorded):
            if (action := self._policies.action_for(event)).action == SYNC:
                continue
            delay = action.delay
            moment = event.since + max(delay, self._condition_delay(event))
            if event.name == POD_EVICTED and delay:
                # The pod may be gone before the action is due.
                moment = self._plausible(event.pod, parse_time(delayed.pop(event.pod, "")), delay)
                moment = moment or float(math.ceil((event.since or self._now) + delay))
                self._records.delay(event.pod, format_timestamp(moment))
            actions.append((event, moment, action))
        running = {member.notes.name for member in found if member.current and member.phase == "Running"}
        for pod, moment_text in delayed.items():
            event = JobEvent(POD_EVICTED, parse_time(moment_text), self._task_of(pod), pod)
            action = self._policies.action_for(event)
            if pod in running or action.action == SYNC:
                self._records.cancel(pod)
            else:
                moment = self._plausible(pod, event.since, action.delay) or self._now + action.delay
                actions.append((event, moment, action))
                self._records.delay(pod, format_timestamp(moment))
        return actions

    def _plausible(self, pod: str, moment: float, delay: float) -> float:
        """The recorded moment of a delayed action; 0.0, without the record, if a clock that was ahead wrote it."""
        if moment <= self._now + delay + CLOCK_SKEW:
            return moment
        self._records.cancel(pod)
        return 0.0

    def _target(self, request: Request) -> Transition | None:
        """The effect of a request; None when it has none, as that of a restart without a pod."""
        if request.action in TARGETED and (request.event is None or not request.event.task):
            return None
        return transition(self._phase, request.action)

    def _execute(self, request: Request) -> str:
        """Change phase, version, retry count and records; the reason of the change."""
        effect = self._target(request)
        if effect is None:
            return ""
        name = request.reason or (request.event.name if request.event is not None else "CommandIssued")
        counts = effect.retry and effect.counts and not self._is_uncounted(request)
        last = self._counted_retries >= self._spec.max_retry - counts
        if effect.retry and effect.counts and not counts:
            self._records.add_uncounted()
        self._retries += effect.retry
        if effect.kill in (Kill.SOFT, Kill.UNSUCCESSFUL, Kill.ALL):
            self._version += 1
            self._records.forget_actions()
            if effect.kill is Kill.UNSUCCESSFUL:
                self._records.resume(self._retries)
            elif effect.kill is Kill.ALL and not last:
                self._records.restart(self._retries)
        elif request.event is not None:
            self._outdate(request.action, request.event)
        if request.command is not None:
            self._records.command = meta(request.command)["uid"]
            text = f"Start to execute command {request.action}, and clean it up to make sure executed not more than "
            self._writes.append(event_on(JOB, self._job, "CommandIssued", f"{text}once."))
        self._writes.append(event_on(JOB, self._job, "ExecuteAction", f"Start to execute action {request.action} "))
        self._phase = effect.phase
        return name

    @property
    def _counted_retries(self) -> int:
        """The restarts that count towards `maxRetry`."""
        evictions = 0 if self._settings.count_preemptions else self._records.uncounted
        return self._retries - self._records.resumes - evictions

    def _is_uncounted(self, request: Request) -> bool:
        event = request.event
        return not self._settings.count_preemptions and event is not None and bool(event.by_scheduler)

    def _condition_delay(self, event: JobEvent) -> float:
        """Seconds to wait for the condition that decides whether an eviction counts."""
        waits = not self._settings.count_preemptions and event.name == POD_EVICTED and event.by_scheduler is None
        return _CONDITION_DELAY if waits else 0.0

    def _outdate(self, action: str, event: JobEvent) -> None:
        if action == RESTART_POD:
            self._records.restart(self._retries, pod=event.pod)
            self._records.cancel(event.pod)
            return
        partition = self._partition_of(event.pod) if action == RESTART_PARTITION else ""
        self._records.restart(self._retries, task=event.task, partition=partition)
        for pod in self._records.evicted():
            if self._task_of(pod) == event.task and (not partition or self._partition_of(pod) == partition):
                self._records.cancel(pod)

    def _partition_of(self, pod: str) -> str:
        """The partition of a pod by its name, "" for none."""
        task = self._spec.task(self._task_of(pod))
        index = whole_number(pod.rpartition("-")[2])
        return task.partition_of(index) if task is not None and index is not None else ""

    def _task_of(self, pod: str) -> str:
        """The task of a pod by its name (`<job>-<task>-<index>`), "" for none of this Job."""
        name = pod.rpartition("-")[0].removeprefix(f"{self._spec.name}-")
        return name if name in self._spec.by_name and pod.startswith(f"{self._spec.name}-{name}-") else ""

    def _sync_members(self) -> Result:
        found = self._members()
        sync = MemberSync(self._view, self._job, self._spec, self._records, self._group, found)
        renaming = sync.rename_volumes()
        if renaming:
            return Result([*self._writes, *renaming])
        if sync.prepare(self._settings.make_keys):
            sync.sync_group(self._version)
            sync.sync_pods()
        self.awaited = sync.awaited
        self.news.update(sync.news)
        self._phase = following(self._phase, self._spec, census(found), self._counted_retries)
        self._write_status(sync.before, found, self._end_stalled(found))
        if self._phase in ACTIVE:
            self._writes += sync.after
        return Result(self._writes, self._at)

    def _end_stalled(self, found: list[JobMember]) -> str:
        """End a Job that cannot continue; the reason, "" for any other Job."""
        if self._phase not in ACTIVE or self._at is not None:
            return ""  # a delayed action may restart it
        stall = find_stall(self._job, self._spec, found, self._settings.scheduler_name)
        if stall is None:
            return ""
        if stall.is_new(self._now):
            self._at = stall.due
            return ""
        self._phase = ending(self._spec, census(found))
        self.news[CANNOT_CONTINUE] = (CANNOT_CONTINUE, stall.text, True)
        return CANNOT_CONTINUE

    def _kills_whole_job(self) -> bool:
        return self._phase != RESTARTING or self._records.restarts_job

    def _drop_plugins(self) -> list[Write]:
        """Delete the objects of plugins, once."""
        present = self._records.plugins()
        if not present:
            return []
        deletes = MemberSync(self._view, self._job, self._spec, self._records, None, []).plugin_deletes()
        for name in present:
            self._records.drop_plugin(name)
        return list(deletes)

    def _delete_doomed(self, found: list[JobMember]) -> None:
        for member in found:
            if member.to_delete and not is_terminating(member.pod):
                self._writes.append(delete(POD, member.pod))

    def _group_deletes(self) -> list[Write]:
        """A PodGroup of an earlier version goes with its pods: the next gang is admitted as a whole."""
        if self._group is None or is_terminating(self._group):
            return []
        is_outdated = self._kills_whole_job() or is_of_version(self._group, self._version) is False
        return [delete(POD_GROUP, self._group)] if is_outdated else []

    def _members(self) -> list[JobMember]:
        state = self._phase, self._version, self._records.entries
        if state != self._found_in:
            self._found_in = self._phase, self._version, dict(self._records.entries)
            self._found = members(self._spec, self._pods, self._phase, self._version, self._records)
        return self._found

    def _write_status(self, before: list[Write], found: list[JobMember], reason: str) -> None:
        """Put the status before the other writes of the pass, behind `before`."""
        if job_phase(self._job) != self._phase:
            found = self._members()
        wanted = job_status(
            self._job,
            self._spec,
            census(found),
            phase=self._phase,
            version=self._version,
            retries=self._retries,
            records=self._records,
            reason=reason,
            now=self._now,
        )
        patch = merge_diff(self._written, wanted)
        phases = {(each.get("state") or {}).get("phase", "") for each in (self._written, wanted)}
        lazy = set(patch) <= _PROGRESS and phases <= _PROGRESSING
        self.progress = wanted if lazy else None
        events, self._writes = self._writes, []
        self._writes += before
        if patch:
            self._writes.append(
                Patch(
                    Key(JOB, self._spec.namespace, self._spec.name),
                    {"status": patch},
                    uid=self._spec.uid,
                    version=meta(self._job).get("resourceVersion", ""),
                    subresource="status",
                    lazy=lazy,
                )
            )
        self._writes += events
        counter = _COUNTED.get(self._phase)
        if counter is not None and job_phase(self._job) != self._phase:
            labels = (("job_name", f"{self._spec.namespace}/{self._spec.name}"), ("queue_name", self._spec.queue))
            self._writes.append(Increment(counter, labels))
