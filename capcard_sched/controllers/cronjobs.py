"""The CronJob controller: a Job for every time of a schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from capcard_sched.controllers.jobs.phases import COMPLETED, FINISHED
from capcard_sched.controllers.objects import (
    BATCH_API,
    CRON_JOB,
    JOB,
    JsonObject,
    Key,
    controller_of,
    is_terminating,
    job_phase,
    key_of,
    merge_diff,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.controllers.view import CLOCK_SKEW, Create, Delete, Patch, Result, Write, delete, event_on
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.view import Failure, View
    from capcard_sched.model.intents import EmitEvent

ALLOW, FORBID, REPLACE = "Allow", "Forbid", "Replace"
#: Finished Jobs that are kept without a limit in the CronJob.
_SUCCESSFUL, _FAILED = 3, 1
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: Seconds of a week, and the times of the densest schedule in it: of an older gap only the last week is searched.
_WEEK: Final = 7 * 86_400
_MOST_MISSED: Final = 10_081
_FIELDS: Final = 5


class ScheduleError(ValueError):
    """A schedule or time zone that cannot be read."""


class Schedule:
    """A cron expression in a time zone. Raises ScheduleError."""

    def __init__(self, expression: str, time_zone: str = "") -> None:
        text = _MACROS.get(expression.strip(), expression.strip())
        if len(text.split()) != _FIELDS:
            raise ScheduleError(
                f"spec.schedule: {expression!r}: accepted are five fields such as '0 2 * * *', or @daily"
            )
        try:
            self._zone = ZoneInfo(time_zone) if time_zone else UTC
        except (ZoneInfoNotFoundError, ValueError, OSError):
            accepted = "a name such as Europe/Berlin"
            raise ScheduleError(f"spec.timeZone: {time_zone!r} is no time zone: accepted: {accepted}") from None
        self._text = text
        try:
            next(self._after(0.0), None)
        except CronSimError as error:
            raise ScheduleError(f"spec.schedule: {expression!r}: {error}") from None

    def _after(self, moment: float) -> Iterator[float]:
        for found in CronSim(self._text, datetime.fromtimestamp(moment, self._zone)):
            yield found.timestamp()

    def latest(self, after: float, until: float) -> tuple[float | None, float | None]:
        """The last time after `after` and not after `until`, and the first one after `until`; unix seconds."""
        last = None
        for moment in islice(self._after(after), _MOST_MISSED):
            if moment > until:
                return last, moment
            last = moment
        if until - _WEEK > after:
            return self.latest(until - _WEEK, until)
        return last, next(self._after(until), None)


class CronJobController:
    """Creates Jobs by schedule, and deletes finished ones beyond the history limits."""

    watches = frozenset({CRON_JOB, JOB})
    replays = frozenset({CRON_JOB})

    def __init__(self) -> None:
        #: CronJob uid to the warning emitted last.
        self._warned: dict[str, str] = {}

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """The CronJob itself, or the CronJob that owns a Job."""
        obj = new if new is not None else old
        assert obj is not None
        if kind == CRON_JOB:
            yield Key(CRON_JOB, *key_of(obj))
            if new is None:
                self._warned.pop(meta(obj)["uid"], None)
            return
        owner = controller_of(obj)
        if owner is not None and kind_of(owner) == CRON_JOB:
            yield Key(CRON_JOB, key_of(obj)[0], owner["name"])

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Create the Job of the latest schedule time, once; then the status and the history."""
        cron = view.get(*key)
        if cron is None or is_terminating(cron):
            return Result()
        jobs = sorted(view.owned(cron, JOB), key=_created)
        try:
            schedule = Schedule(str(spec(cron).get("schedule") or ""), str(spec(cron).get("timeZone") or ""))
        except ScheduleError as error:
            return Result([*self._warn(cron, "InvalidSchedule", str(error)), *_status(cron, jobs, None)])
        started = parse_time(status(cron).get("lastScheduleTime") or meta(cron).get("creationTimestamp"))
        if started > now + CLOCK_SKEW:
            # A clock was ahead. Until its time comes, no schedule time would follow.
            text = f"the last schedule time {format_timestamp(started)} is in the future: it counts as now"
            return Result([*self._warn(cron, "ScheduleTimeReset", text), *_status(cron, jobs, now)], now)
        due, following = schedule.latest(started, now)
        if spec(cron).get("suspend"):
            due = following = None
        writes = [] if due is None else self._start(cron, jobs, due, now)
        return Result([*writes, *_status(cron, jobs, due), *_history(cron, jobs)], following)

    def _start(self, cron: JsonObject, jobs: list[JsonObject], due: float, now: float) -> list[Write]:
        """Start the Job of a schedule time, or report why it is skipped."""
        deadline = spec(cron).get("startingDeadlineSeconds")
        if deadline is not None and now - due > float(deadline):
            text = f"missed the schedule time {format_timestamp(due)} by more than {deadline} s"
            return [*self._warn(cron, "MissSchedule", text)]
        active = [job for job in jobs if not _is_finished(job)]
        policy = spec(cron).get("concurrencyPolicy") or ALLOW
        name = f"{meta(cron)['name']}-{int(due) // 60}"
        if any(meta(job)["name"] == name for job in jobs):
            return []  # the status was not written any more
        if policy == FORBID and active:
            return [*self._warn(cron, "JobAlreadyActive", f"Job {meta(active[0])['name']} is still active")]
        self._warned.pop(meta(cron)["uid"], None)
        replaced = [delete(JOB, job) for job in active] if policy == REPLACE else []
        created = event_on(CRON_JOB, cron, "SuccessfulCreate", f"Created job {name}")
        return [*replaced, Create(_job(cron, name)), created]

    def _warn(self, cron: JsonObject, reason: str, text: str) -> list[EmitEvent]:
        if self._warned.get(meta(cron)["uid"]) == text:
            return []
        self._warned[meta(cron)["uid"]] = text
        return [event_on(CRON_JOB, cron, reason, text, warning=True)]

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """An event with the error of the API server."""
        cron = view.get(*key)
        if cron is None or not isinstance(failure.write, Create):
            return Result()
        return Result(self._warn(cron, "FailedCreate", failure.error))


def _job(cron: JsonObject, name: str) -> JsonObject:
    template = spec(cron).get("jobTemplate") or {}
    described = template.get("metadata") or {}
    metadata: JsonObject = {"name": name, "namespace": key_of(cron)[0], "ownerReferences": [owner_reference(cron)]}
    metadata.update({field: described[field] for field in ("labels", "annotations") if described.get(field)})
    return {"apiVersion": BATCH_API, "kind": JOB, "metadata": metadata, "spec": template.get("spec") or {}}


def _created(job: JsonObject) -> tuple[str, str]:
    return meta(job).get("creationTimestamp") or "", meta(job)["name"]


def _is_finished(job: JsonObject) -> bool:
    return job_phase(job) in FINISHED or is_terminating(job)


def _status(cron: JsonObject, jobs: list[JsonObject], started: float | None) -> list[Patch]:
    """The status: active Jobs, the last schedule time, the last success."""
    present = status(cron)
    active = [
        {
            "apiVersion": BATCH_API,
            "kind": JOB,
            "namespace": key_of(job)[0],
            "name": meta(job)["name"],
            "uid": meta(job)["uid"],
        }
        for job in jobs
        if not _is_finished(job)
    ]
    ended = [(status(job).get("state") or {}).get("lastTransitionTime") for job in jobs if job_phase(job) == COMPLETED]
    success = max((stamp for stamp in ended if stamp), default=present.get("lastSuccessfulTime"))
    wanted = {
        "active": active,
        "lastScheduleTime": format_timestamp(started) if started is not None else present.get("lastScheduleTime"),
        "lastSuccessfulTime": success,
    }
    patch = merge_diff(present, {**present, **{field: value for field, value in wanted.items() if value is not None}})
    if not patch or (patch == {"active": []} and "active" not in present):
        return []
    version = meta(cron).get("resourceVersion", "")
    key, uid = Key(CRON_JOB, *key_of(cron)), meta(cron)["uid"]
    return [Patch(key, {"status": patch}, uid=uid, version=version, subresource="status")]


def _history(cron: JsonObject, jobs: list[JsonObject]) -> list[Delete]:
    """Deletions of the oldest finished Jobs beyond the limits."""
    writes = []
    for successful, field, default in (
        (True, "successfulJobsHistoryLimit", _SUCCESSFUL),
        (False, "failedJobsHistoryLimit", _FAILED),
    ):
        limit = spec(cron).get(field)
        kept = default if limit is None else int(limit)
        ended = [
            job
            for job in jobs
            if job_phase(job) in FINISHED and (job_phase(job) == COMPLETED) is successful and not is_terminating(job)
        ]
        writes += [delete(JOB, job) for job in ended[: max(0, len(ended) - kept)]]
    return writes
