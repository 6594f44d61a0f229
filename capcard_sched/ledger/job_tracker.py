"""The lives of one job, and the stage it is in, from its PodGroup and its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.ledger.rows import JobRecord, StageRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.ledger.rows import Row

#: As in `model.diagnosis`. The causes of `Pending` are those of `explain`, which deltas do not have.
LifeStage: TypeAlias = Literal["NotAdmitted", "NoPods", "Pending", "GangWaiting", "Scheduled", "Degraded"]
#: Outcomes of pods and jobs; of the pods of a job the first one here decides.
OUTCOMES: Final = ("Lost", "Evicted", "Failed", "Deleted", "Completed")


class TrackedPod(msgspec.Struct):
    """One active pod of a life."""

    #: Unix milliseconds.
    bound: int | None = None
    #: It is on its node and neither terminating nor failed.
    scheduled: bool = False


class JobTracker:
    """One job. `changed` returns its changed rows."""

    def __init__(self, row: JobRecord, stage: StageRow | None = None) -> None:
        """`row`: of its first life, or of the one that is recorded; `stage`: the recorded one that lasts."""
        self.row = row
        #: The PodGroup exists.
        self.exists = True
        #: The PodGroup has left phase Pending; the job has none.
        self.is_admitted = False
        self._stage = stage
        self._pods: dict[str, TrackedPod] = {}
        #: Pods of this life that are gone or finished, by outcome.
        self._outcomes: set[str] = set()
        self._last_end = 0
        #: The moments at which the completed pods of this life were bound.
        self._completed: list[int] = []
        #: The last version of both rows.
        self._written: dict[type[Row], Row] = {}

    @property
    def is_over(self) -> bool:
        """Whether neither the PodGroup nor an active pod exists."""
        return not self.exists and not self._pods

    def pod(self, uid: str, created: int, now: int) -> TrackedPod:
        """The record of an active pod. The first one after the end of a life begins another."""
        found = self._pods.get(uid)
        if found is None:
            if self.row.ended is not None:
                self._restart(max(self.row.ended, min(created, now)))
            found = self._pods[uid] = TrackedPod()
        return found

    def _restart(self, at: int) -> None:
        admitted = at if self.is_admitted else None
        self.row = msgspec.structs.replace(
            self.row, life=self.row.life + 1, submitted=at, admitted=admitted, first_scheduled=None, whole=None,
            ended=None, outcome="", gap=False,
        )  # fmt: skip
        self._stage, self._outcomes, self._last_end, self._completed = None, set(), 0, []

    def pod_ended(self, uid: str, at: int, outcome: str) -> None:
        """A pod finished or is gone."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._outcomes.add(outcome)
            if outcome == "Completed" and pod.bound is not None:
                self._completed.append(pod.bound)
            self._last_end = max(self._last_end, at)

    def changed(self, now: int, *, gap: bool = False) -> Iterator[Row]:
        """The rows that changed since the last call. `gap`: the records have one before `now`."""
        yield from self._advance(now)
        row = self.row
        row.gap = row.gap or (gap and row.ended == now)
        for present in (row, self._stage):
            if present is not None and self._written.get(type(present)) != present:
                copy = self._written[type(present)] = msgspec.structs.replace(present)
                yield copy

    def _advance(self, now: int) -> Iterator[Row]:
        """Set the moments of the life, and yield the stages that ended."""
        row = self.row
        if row.ended is not None:
            return
        running = [pod.bound for pod in self._pods.values() if pod.scheduled and pod.bound is not None]
        bound, least = sorted([*running, *self._completed]), max(row.min_member, 1)
        enough = len(bound) >= least
        if bound and row.first_scheduled is None:
            row.first_scheduled = max(bound[0], row.submitted)
        if row.admitted is None and (self.is_admitted or bound):
            row.admitted = max(row.submitted, min([now, *bound[:1]]))
        if enough and row.whole is None:
            row.whole = max(bound[least - 1], row.submitted)
        if not self._pods and (self._outcomes or not self.exists):
            row.ended = max(self._last_end or now, row.submitted)
            row.outcome = next((one for one in OUTCOMES if one in self._outcomes), "Deleted")
        for stage, at in self._stages(enough, now):
            yield from self._enter(stage, at)
        if row.ended is not None and self._stage is not None:
            self._stage.ended = max(row.ended, self._stage.began)

    def _stages(self, enough: bool, now: int) -> Iterator[tuple[LifeStage, int]]:
        """The stages of the life up to now, with the moments at which they may have begun."""
        row = self.row
        if self._stage is None:
            yield "NotAdmitted", row.submitted
        if row.admitted is not None and row.first_scheduled is None and row.ended is None:
            yield ("Pending" if self._pods else "NoPods"), (row.admitted if self._is_in("NotAdmitted") else now)
        if row.first_scheduled is not None and self._is_in("NotAdmitted", "Pending", "NoPods"):
            if row.admitted is not None and row.admitted < row.first_scheduled and self._is_in("NotAdmitted"):
                yield "Pending", row.admitted
            yield "GangWaiting", row.first_scheduled
        if row.whole is not None and self._is_in("GangWaiting"):
            yield "Scheduled", row.whole
        if row.whole is not None and row.ended is None:
            yield ("Scheduled" if enough else "Degraded"), now

    def _is_in(self, *stages: LifeStage) -> bool:
        return self._stage is None or self._stage.stage in stages

    def _enter(self, stage: LifeStage, at: int) -> Iterator[Row]:
        present = self._stage
        if present is not None and present.stage == stage:
            return
        if present is not None:
            at = max(at, present.began)
            if at == present.began:  # it lasted no time: the row gets the next stage
                present.stage = stage
                return
            present.ended = at
            yield present
        self._stage = StageRow(self.row.uid, self.row.life, at, stage)
