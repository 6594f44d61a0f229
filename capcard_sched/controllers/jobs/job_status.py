"""The status of a Job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.phases import FINISHED
from capcard_sched.controllers.objects import JsonObject, meta, status
from capcard_sched.model.timestamps import format_duration, format_timestamp, parse_time

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import JobSpec
    from capcard_sched.controllers.jobs.phases import Census
    from capcard_sched.controllers.jobs.records import Records


def job_status(
    job: JsonObject,
    desired: JobSpec,
    count: Census,
    *,
    phase: str,
    version: int,
    retries: int,
    records: Records,
    reason: str,
    now: float,
) -> JsonObject:
    """The status to write. Fields that are 0 or empty are left out, as the reference does."""
    present = status(job)
    wanted = {
        **present,
        "minAvailable": desired.min_available,
        "pending": count.pending,
        "running": count.running,
        "succeeded": count.succeeded,
        "failed": count.failed,
        "terminating": count.terminating,
        "unknown": count.unknown,
        "taskStatusCount": {name: {"phase": phases} for name, phases in sorted(count.by_task.items())},
        "version": version,
        "retryCount": retries,
        "controlledResources": records.entries,
    }
    if (present.get("state") or {}).get("phase") != phase:
        stamp = format_timestamp(now)
        wanted["state"] = {"phase": phase, "lastTransitionTime": stamp, **({"reason": reason} if reason else {})}
        # One entry per phase, the newest last.
        others = [entry for entry in present.get("conditions") or () if entry.get("status") != phase]
        wanted["conditions"] = [*others, {"status": phase, "lastTransitionTime": stamp}]
        if phase in FINISHED:
            wanted["runningDuration"] = format_duration(now - parse_time(meta(job).get("creationTimestamp")))
    kept = {"state", "minAvailable"}
    return {field: value for field, value in wanted.items() if value or field in kept}
