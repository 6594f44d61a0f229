"""The ledger as its callers use it: sources are recorded with `start` and `feed`, reports read with `usage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from capcard_sched.ledger import schema
from capcard_sched.ledger.database import LedgerDatabase
from capcard_sched.ledger.job_history import job_history, last_lives
from capcard_sched.ledger.object_facts import FINISHED
from capcard_sched.ledger.recorder import AdoptedRows, LedgerRecorder
from capcard_sched.ledger.rollup import roll_up
from capcard_sched.ledger.rows import CapacityRow, ChargeRow, JobRecord, QuotaRecord, StageRow, storable
from capcard_sched.ledger.usage_report import UsageQuery, UsageReport, usage_report
from capcard_sched.ledger.usage_series import UsageOverTime, usage_series
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import PodGroupObject, PodObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from capcard_sched.ledger.job_history import JobLife
    from capcard_sched.ledger.rows import Row
    from capcard_sched.ledger.unused_time import Meter
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

#: Rows that wait at most before they are written.
_BATCH: Final = 2000
#: Milliseconds after which a step without rows is written, so that the records reach to the present.
_QUIET: Final = 30_000


def open_ledger(url: str, *, create: bool = True) -> UsageLedger:
    """Open a database: a file of SQLite, or `postgresql://USER@HOST:PORT/NAME`.

    `create`: create it, or migrate its tables, where necessary; else it must exist. Raises LedgerError.
    """
    return UsageLedger(LedgerDatabase(url, create=create))


class UsageLedger:
    """One database of jobs, charges, capacity and quotas. Methods raise LedgerError."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database
        self._recorder: LedgerRecorder | None = None
        self._source = ""
        self._live = False
        #: Of the writes of this recorder.
        self._generation = 0
        #: Unix milliseconds up to which the source is recorded, and of the last step.
        self._until = self._now = 0
        #: What the source had recorded when it was started.
        self._resumed = 0
        #: The end of the records of other sources, before the first step; else 0.
        self._former = 0
        #: Rows that wait, by table and key.
        self._waiting: dict[tuple[Any, ...], Row] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._database.close()

    @property
    def database(self) -> LedgerDatabase:
        """For statements of their own."""
        return self._database

    @property
    def recorded_until(self) -> float:
        """Unix seconds up to which the database has records; 0.0 without any."""
        return max((source.recorded_until for source in self._database.sources()), default=0) / 1000

    @property
    def recorded_since(self) -> float:
        """Unix seconds of the first record; 0.0 without any."""
        return min((source.began for source in self._database.sources()), default=0) / 1000

    # --- recording ----------------------------------------------------------------------------------------------------

    def start(
        self,
        source: str,
        kind: str,
        began: float,
        *,
        card_labels: CardLabels = DEFAULT_CARD_LABELS,
        default_queue: str = "default",
        lease: str = "",
    ) -> None:
        """Begin to record a source. The first `feed` brings all of its objects. Other processes record no more.

        `source`: a name that only this input has; an input that was recorded in part continues, if it is fed again from
        its beginning. `kind`: `simulation`, `recording` or `live`. `began`: Unix seconds. `lease`: `NAMESPACE/NAME`
        of the Lease that the caller holds, "" without one. Raises LedgerError where the database has records of another
        source after `began`, or where the holder of another Lease records.
        """
        begun = self._database.begin_source(source, kind, round(began * 1000), lease)
        self._source, self._live, self._generation = source, kind == "live", begun.generation
        self._now = begun.began if self._live else 0
        self._until = self._resumed = begun.until
        self._former, self._waiting = begun.former, {}
        self._recorder = LedgerRecorder(
            self._rows_at(begun.former), card_labels=card_labels, default_queue=default_queue
        )

    def feed(self, now: float, deltas: Iterable[Delta], intents: Iterable[Intent] = ()) -> None:
        """Record one step. `now`: Unix seconds, later than the last step to the millisecond.

        `intents`: the decisions of the scheduler after these deltas, where they are known.
        A live source is written with each step that changes something, and at least every 30 s; others in batches.
        Raises FencedError where another process has begun to record.
        """
        if self._recorder is None:
            raise ValueError("no source was started")
        moment = max(round(now * 1000), self._now)
        if self._former:
            deltas = list(deltas)
            self._recorder.adopt_ended(*self._ended_rows(deltas, self._former))
            self._former = 0
        rows = self._recorder.feed(moment, deltas, intents)
        self._now = moment
        if moment <= self._resumed:
            return  # it is recorded already
        for row in map(storable, rows):
            table = schema.TABLES[type(row)]
            self._waiting[table.name, *(getattr(row, column.name) for column in table.primary_key)] = row
        if len(self._waiting) >= _BATCH or (self._live and (self._waiting or moment - self._until >= _QUIET)):
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting or self._now > self._until:
            self._database.write(self._waiting.values(), self._source, self._now, self._generation)
            self._waiting, self._until = {}, self._now

    def _rows_at(self, until: int) -> AdoptedRows:
        """The rows that last at a moment, as they were then."""
        found = AdoptedRows(until)
        if not until:
            return found
        tables = self._database.read_all(
            [
                *(select(table).where(schema.lasting(table, until)) for table in schema.LASTING),
                schema.rows_at(schema.CAPACITY, until),
                schema.rows_at(schema.QUOTA, until),
            ]
        )
        for row in tables[0]:
            life = schema.read_row(JobRecord, row)
            for name in ("admitted", "first_scheduled", "whole", "ended"):
                if (getattr(life, name) or 0) > until:
                    setattr(life, name, None)
            life.outcome = "" if life.ended is None else life.outcome
            found.jobs[life.uid] = life
        for row in tables[1]:
            found.stages[row.uid] = StageRow(row.uid, row.life, row.began, row.stage)
        for row in tables[2]:
            held = schema.read_row(ChargeRow, row)
            held.ended, held.end_reason, held.preemptor = None, "", ""
            found.charges.setdefault(held.pod_uid, []).append(held)
        for parts in found.charges.values():
            parts.sort(key=lambda part: part.part)
        found.capacity = {row.card: schema.read_row(CapacityRow, row) for row in tables[3]}
        found.quotas = {(row.queue, row.card): schema.read_row(QuotaRecord, row) for row in tables[4]}
        return found

    def _ended_rows(self, deltas: Sequence[Delta], until: int) -> tuple[dict[str, JobRecord], set[str]]:
        """Of these objects: the last lives of jobs, and the finished pods with a charge, that ended up to a moment."""
        objects = [delta.object for delta in deltas if isinstance(delta, ObjectChanged)]
        finished = [one.metadata.uid for one in objects if isinstance(one, PodObject) and one.status.phase in FINISHED]
        owners = [*(one.metadata.uid for one in objects if isinstance(one, PodGroupObject)), *finished]
        job, charge = schema.JOB, schema.CHARGE
        jobs = self._database.read_of(
            select(job).where(job.c.submitted <= until, job.c.ended <= until).order_by(job.c.life), job.c.uid, owners
        )
        charges = self._database.read_of(
            select(charge.c.pod_uid).where(charge.c.ended <= until), charge.c.pod_uid, finished
        )
        return {row.uid: schema.read_row(JobRecord, row) for row in jobs}, {row.pod_uid for row in charges}

    # --- reading ------------------------------------------------------------------------------------------------------

    def usage(self, query: UsageQuery, meter: Meter | None = None) -> UsageReport:
        """Card-time by the groups of a query. `meter`: a source of utilization."""
        return usage_report(self._database, query, meter)[0]

    def usage_over_time(self, query: UsageQuery, meter: Meter | None = None) -> UsageOverTime:
        """The same with cards in use over time, by card and queue; the charges are read once."""
        report, intervals = usage_report(self._database, query, meter)
        begin = round(max(query.since, self.recorded_since) * 1000)
        end = max(begin, round(min(query.until, self.recorded_until) * 1000))
        return UsageOverTime(report, usage_series(intervals, begin, end), (end - begin) / 1000)

    def history(self, since: float, until: float, name: str = "", namespace: str = "") -> list[JobLife]:
        """The lives of jobs that lasted between two moments (Unix seconds), in order of submission.

        `name`: of a workload or of its PodGroup, "" for all; `namespace`: "" for all.
        """
        return job_history(self._database, round(since * 1000), round(until * 1000), name, namespace)

    def last_lives(self, until: float, namespace: str, kind: str, name: str, most: int) -> list[JobLife]:
        """The last lives of one job that ended before `until` (Unix seconds), at most `most`; the latest first."""
        return last_lives(self._database, round(until * 1000), namespace, kind, name, most)

    def history_before(self, until: float, seconds: float, name: str, namespace: str) -> list[JobLife]:
        """The lives of jobs that lasted in the seconds up to the last record, `until`, and at that moment."""
        return self.history(until - seconds, until + 0.001, name, namespace)

    def keep(self, seconds: float) -> int:
        """Replace charges and jobs that ended before the day `seconds` before the last record by daily sums.

        Returns the number of charges.
        """
        return roll_up(self._database, self.recorded_until * 1000 - seconds * 1000)
