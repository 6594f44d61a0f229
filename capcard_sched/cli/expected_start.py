"""Expected starts of the jobs of a cluster, for `explain` and `job list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.lists import Column, Json
from capcard_sched.cli.simulate import BadInputError
from capcard_sched.model.diagnosis import ExpectedStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.cli.cluster_source import ClusterSource
    from capcard_sched.insight.durations import JobRun
    from capcard_sched.insight.expected_start import Forecast

HistoryFlag: TypeAlias = Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False, metavar="FILE")]
#: Pods and nodes up to which `explain` estimates starts without being asked to.
_SMALL: Final = 2000


def load_forecast(cluster: ClusterSource, history: Iterable[Path], *, wanted: bool | None) -> Forecast | None:
    """The expected starts of a cluster; None when not wanted, or with `None` when it is large.

    `history`: recordings with durations of like jobs. Raises BadInputError.
    """
    from capcard_sched.insight.expected_start import Forecast

    state = cluster.core.snapshot().state
    if wanted is False or (wanted is None and len(state.tasks) + len(state.nodes) > _SMALL):
        return None
    known = cluster.known_state()
    return Forecast(cluster.core, known, read_history((*known.recorded, *history)))


def read_history(files: Iterable[Path]) -> list[JobRun]:
    """The runs of the jobs of recordings. Raises BadInputError."""
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader
    from capcard_sched.insight.job_runs import runs_of_recording

    found: list[JobRun] = []
    try:
        for file in files:
            reader = RecordingReader(file)
            found += runs_of_recording(reader, reader.header.at)
    except RecordingError as error:
        raise BadInputError(str(error)) from None
    return found


def with_expected_starts(cluster: ClusterSource, items: list[Json], history: Iterable[Path]) -> list[Json]:
    """Items of `job list` with a field `expectedStart`: null for a job that does not wait. Raises BadInputError."""
    if cluster.unreadable:
        raise BadInputError(f"--expected-start: access denied: {', '.join(cluster.unreadable)}")
    forecast = load_forecast(cluster, history, wanted=True)
    assert forecast is not None
    starts = forecast.expected_starts(forecast.waiting())
    return [
        {
            **item,
            "expectedStart": msgspec.to_builtins(
                starts.get(forecast.key_of(item["namespace"], f"{item['kind']}/{item['name']}", item["podGroup"]))
            ),
        }
        for item in items
    ]


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
