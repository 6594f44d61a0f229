"""Expected starts of the jobs of a cluster, for `explain` and `job list`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import READER_HINT, BadInputError
from capcard_sched.cli.lists import Column, Json
from capcard_sched.model.diagnosis import ExpectedStart, JobDiagnosis, no_start, waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from capcard_sched.cli.sources.inputs import LoadedCluster
    from capcard_sched.insight.estimates.durations import JobRun
    from capcard_sched.insight.estimates.expected_start import Forecast, KnownState

HistoryFlag: TypeAlias = Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False, metavar="FILE")]
LedgerFlag: TypeAlias = Annotated[str, Parameter(show_default=False, metavar="FILE|URL")]
#: Pods and nodes up to which `explain` estimates starts by default: 19 runs take seconds.
_SMALL: Final = 200


def explain_start(
    cluster: LoadedCluster, found: JobDiagnosis, history: Iterable[Path], ledger: str = "", *, wanted: bool | None
) -> ExpectedStart | None:
    """The expected start of the job of a diagnosis; None for one that does not wait, or when not wanted.

    `history`, `ledger`: recordings or a database with like jobs. `wanted`: None for clusters of up to 200 pods and
    nodes. Raises BadInputError.
    """
    if wanted is False or cluster.unreadable or not found.waits:
        return None
    state = cluster.core.snapshot().state
    size = len(state.tasks) + len(state.nodes)
    if wanted is None and size > _SMALL:
        return no_start(cluster.now, f"not estimated by default with {size} pods and nodes; pass --expected-start")
    return _forecast(cluster, read_history(history), ledger).explain(found)


def _forecast(cluster: LoadedCluster, history: Iterable[JobRun], ledger: str) -> Forecast:
    """The expected starts of a cluster. `history`, `ledger`: runs of like jobs. Raises BadInputError."""
    from capcard_sched.insight.estimates.expected_start import Forecast

    known = cluster.known_state()
    runs = _read_ledger(ledger, known) if ledger else read_history(known.recorded)
    return Forecast(cluster.core, known, [*runs, *history])


def check_history(history: Collection[Path], ledger: str, recording: Path | None) -> None:
    """Raises BadInputError for a ledger beside recordings, which may have the same jobs."""
    if ledger and (history or recording is not None):
        other = "--history" if history else "--recording"
        raise BadInputError(f"--ledger: not with {other}: jobs of both would count twice")


def _read_ledger(url: str, known: KnownState) -> list[JobRun]:
    """The runs of the jobs of a database. Raises BadInputError."""
    from capcard_sched.controllers.objects import POD
    from capcard_sched.insight.estimates.ledger_runs import runs_of_ledger
    from capcard_sched.ledger.database import LedgerDatabase, LedgerError
    from capcard_sched.model.kinds import kind_of

    present = {str(obj["metadata"].get("uid")) for obj in known.objects if kind_of(obj) == POD}
    try:
        with closing(LedgerDatabase(url, create=False)) as database:
            return runs_of_ledger(database, present)
    except LedgerError as error:
        raise BadInputError(f"--ledger: {error}") from None


def read_history(files: Iterable[Path]) -> list[JobRun]:
    """The runs of the jobs of recordings. Raises BadInputError."""
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader
    from capcard_sched.insight.estimates.job_runs import runs_of_recording

    found: list[JobRun] = []
    try:
        for file in files:
            reader = RecordingReader(file)
            found += runs_of_recording(reader, reader.header.at)
    except RecordingError as error:
        raise BadInputError(str(error)) from None
    return found


def with_expected_starts(
    cluster: LoadedCluster, items: list[Json], history: Iterable[JobRun], ledger: str = ""
) -> list[Json]:
    """Items of `job list` with a field `expectedStart`: null for a job that does not wait. Raises BadInputError."""
    if cluster.unreadable:
        text = f"--expected-start: access denied: {', '.join(cluster.unreadable)}"
        raise BadInputError(f"{text}: {READER_HINT}")
    forecast = _forecast(cluster, history, ledger)
    keys = [_key(forecast, item) if cluster.headlines is None or _waits(item) else "" for item in items]
    reasons = [_reason(item) if key else "" for key, item in zip(keys, items, strict=True)]
    starts = forecast.expected_starts({key for key, reason in zip(keys, reasons, strict=True) if key and not reason})
    found = [
        no_start(cluster.now, reason) if reason else starts.get(key) for key, reason in zip(keys, reasons, strict=True)
    ]
    return [{**item, "expectedStart": msgspec.to_builtins(start)} for item, start in zip(items, found, strict=True)]


def _key(forecast: Forecast, item: Json) -> str:
    return forecast.key_of(item["namespace"], f"{item['kind'].removeprefix('vc')}/{item['name']}", item["podGroup"])


def _waits(item: Json) -> bool:
    """Whether the job waits for its start: not for further pods of one that has its minimum."""
    return waits(item["stage"], item["scheduled"], item["minAvailable"])


def _reason(item: Json) -> str:
    """Why no end of other jobs starts a job, by its stage; "" if one may."""
    from capcard_sched.insight.estimates.expected_start import reason_of_stage

    return reason_of_stage(item["stage"], item["reason"])


def _cell(column: int) -> Callable[[Json], str]:
    def text(item: Json) -> str:
        from capcard_sched.reports.explain import start_cells

        found = item["expectedStart"]
        return "-" if found is None else start_cells(msgspec.convert(found, ExpectedStart))[column]

    return text


def _percentile(name: str) -> Callable[[Json], float | None]:
    return lambda item: (item["expectedStart"] or {}).get(name)


#: Median and 90th percentile from now, and basis.
START_COLUMNS: Final = (
    Column("EXPECTED START", _percentile("p50"), _cell(0)),
    Column("P90", _percentile("p90"), _cell(1)),
    Column("BASIS", _cell(2)),
)
