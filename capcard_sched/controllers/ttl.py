"""The garbage collector of Jobs: `ttlSecondsAfterFinished` after its end a Job is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.phases import FINISHED
from capcard_sched.controllers.objects import (
    JOB,
    JsonObject,
    Key,
    is_terminating,
    job_phase,
    key_of,
    meta,
    spec,
    status,
)
from capcard_sched.controllers.view import CLOCK_SKEW, Delete, Patch, Result
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.view import Failure, View


class TtlController:
    """Deletes finished Jobs; their objects are left to the garbage collector. An aborted Job may be resumed."""

    watches = frozenset({JOB})
    replays = watches

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """Jobs that exist and have a time to live."""
        if new is not None and spec(new).get("ttlSecondsAfterFinished") is not None:
            yield Key(JOB, *key_of(new))

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Delete the Job when it is due; the write fails when the Job was changed meanwhile."""
        job = view.get(*key)
        if job is None or is_terminating(job):
            return Result()
        kept = spec(job).get("ttlSecondsAfterFinished")
        if kept is None or job_phase(job) not in FINISHED:
            return Result()
        ended = parse_time(status(job)["state"].get("lastTransitionTime") or meta(job).get("creationTimestamp"))
        uid, version = meta(job)["uid"], meta(job).get("resourceVersion", "")
        if ended > now + CLOCK_SKEW:
            # A clock was ahead: the time to live begins now, not when that time comes.
            end = {"status": {"state": {"lastTransitionTime": format_timestamp(now)}}}
            return Result([Patch(key, end, uid=uid, version=version, subresource="status")])
        if now < ended + float(kept):
            return Result(at=ended + float(kept))
        return Result([Delete(key, uid, foreground=True, version=version)])

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """The deletion is repeated."""
        return Result()
