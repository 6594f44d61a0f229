"""The garbage controller of Jobs: `ttlSecondsAfterFinished` after its end a Job goes (controllers reference §4.7)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from capcard_sched.simulation.clock import SECOND, virtual_time
from capcard_sched.simulation.kinds import JOB, JsonObject, meta, spec, status
from capcard_sched.simulation.workloads.jobs.phases import FINISHED

if TYPE_CHECKING:
    from capcard_sched.simulation.clock import Timer
    from capcard_sched.simulation.store import Change, Store

_Key = tuple[str, str]


class ExpiryController:
    """Deletes ended Jobs in time; what they own goes with them. An aborted Job may be resumed, so it stays."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[_Key, None] = {}
        self._timers: dict[_Key, Timer] = {}

    def observe(self, change: Change) -> None:
        """Take note of Jobs."""
        if change.kind == JOB:
            self._changed[change.key] = None

    def reconcile(self) -> bool:
        """Set and cancel appointments; whether there was anything to look at."""
        worked = bool(self._changed)
        for key in self._changed:
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            job = self._store.get(JOB, *key)
            due = _due(job) if job is not None else None
            if due is not None:
                delay = max(0, due - self._store.clock.now)
                self._timers[key] = self._store.clock.after(delay, partial(self._store.delete, JOB, *key))
        self._changed.clear()
        return worked


def _due(job: JsonObject) -> int | None:
    """When a Job is to go, None when it is to stay."""
    state = status(job).get("state") or {}
    kept = spec(job).get("ttlSecondsAfterFinished")
    if kept is None or state.get("phase") not in FINISHED:
        return None
    ended = virtual_time(state.get("lastTransitionTime") or meta(job)["creationTimestamp"])
    return (ended or 0) + int(kept) * SECOND
