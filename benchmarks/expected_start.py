"""Calibration of expected starts on a cluster trace: the share of actual starts between the predicted percentiles.

The trace runs through the simulator. At sampled moments a copy of the process predicts the start of each job that has
waited for at least `_WAITED` seconds; it sees no duration of the trace, only the jobs that have ended until then. The
run then continues, and its starts are compared with the predictions.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.cli.sources.cores import build_core
from capcard_sched.controllers.objects import POD, ROOT_QUEUE
from capcard_sched.insight.estimates.expected_start import Forecast, KnownState
from capcard_sched.insight.estimates.job_runs import job_key, start_of
from capcard_sched.insight.trials.forked_copy import in_copy
from capcard_sched.model.annotations import SIMULATION_DURATION
from capcard_sched.model.timestamps import parse_timestamp
from capcard_sched.simulation.clock import SECOND
from capcard_sched.simulation.run import SimulationOptions, SimulationRun
from capcard_sched.simulation.scenario import Scenario
from capcard_sched.simulation.scenario_reader import load_scenario
from capcard_sched_trace.openb import cards_by_model, make_scenario
from capcard_sched_trace.openb_rows import read_nodes, read_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.framework.core import Core

_DAY: Final = 86_400
_WAITED: Final = 10.0


class Prediction(msgspec.Struct, frozen=True):
    """The percentiles for one job at one moment. Times in seconds from then."""

    job: str
    at: float
    p10: float | None
    p50: float | None
    p90: float | None


class Predictions(msgspec.Struct, frozen=True):
    """All predictions of one moment."""

    found: tuple[Prediction, ...]
    cpu_seconds: float


class Calibration(msgspec.Struct, frozen=True):
    """Figures of one run. Shares are of predictions with both percentiles."""

    moments: int
    predictions: int
    #: Predictions without p50, and with p50 but without p90.
    unknown: int
    open_end: int
    #: Shares of actual starts before p10, between the percentiles, and after p90.
    before: float
    inside: float
    after: float
    #: The mean over the moments of their shares inside: the jobs of one moment wait for the same ends.
    inside_by_moment: float
    #: The share of predictions with p10 for which the start is inside, with an unknown p90 as unbounded.
    inside_with_open: float
    #: The share of actual starts before p50.
    below_median: float
    #: Medians, in seconds: actual wait, width p10 to p90, and distance of the start from p50.
    wait: float | None
    width: float
    error: float
    cpu_seconds: float
    cpu_seconds_per_moment: float


class _Predicting:
    """Predicts at moments of a run, each in a copy of the process."""

    def __init__(self, core: Core, run: SimulationRun, moments: Iterable[float]) -> None:
        """`moments`: seconds since the start of the run."""
        self._core, self._run = core, run
        self.found: list[Predictions] = []
        for moment in moments:
            run.cluster.clock.after(round(moment * SECOND), self._keep)

    def _keep(self) -> None:
        predicted = in_copy(self._predict, Predictions)
        if predicted.found:
            self.found.append(predicted)

    def _predict(self) -> Predictions:
        store, now = self._run.cluster.store, self._run.cluster.clock.unix
        objects = [_hidden(obj) if kind == POD else obj for kind in store.kinds() for obj in store.list(kind)]
        waiting = {
            job_key(pod)
            for pod in store.list(POD)
            if start_of(pod) is None and now - parse_timestamp(pod["metadata"]["creationTimestamp"]) >= _WAITED
        }
        if not waiting:
            return Predictions((), 0.0)
        found = Forecast(self._core, KnownState(objects, now, self._core.snapshot().conf)).expected_starts(waiting)
        predictions = tuple(
            Prediction(key, now // 1, each.p10, each.p50, each.p90) for key, each in sorted(found.items())
        )
        return Predictions(predictions, _cpu_seconds())


def _hidden(pod: JsonObject) -> JsonObject:
    """A pod without its duration in the trace."""
    metadata = pod["metadata"]
    notes = {key: text for key, text in metadata["annotations"].items() if key != SIMULATION_DURATION}
    return {**pod, "metadata": {**metadata, "annotations": notes}}


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def part_of_trace(nodes: Path, pods: Path, days: tuple[float, float], most_nodes: int) -> Scenario:
    """The pods that the trace creates between two days, with the quotas of the whole trace.

    Of the nodes, `most_nodes` with the most numerous card: quotas, not nodes, make the pods of the trace wait.
    """
    known = read_nodes(nodes)
    counts = cards_by_model(known)
    model = max(counts, key=lambda model: counts[model])
    made = make_scenario([node for node in known if node.model == model][:most_nodes], read_pods(pods))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        made.write_json(file)  # type: ignore[arg-type]
        file.flush()
        scenario = load_scenario([file.name], existing_queues=(ROOT_QUEUE, "default"))
    begin, end = (day * _DAY * SECOND for day in days)
    return scenario._replace(operations=tuple(each for each in scenario.operations if begin <= each.at < end))


def calibrate(scenario: Scenario, moments: Sequence[float]) -> Calibration:
    """Predict at moments (seconds since the start of the trace) and compare with the run."""
    options = SimulationOptions(("capcard-sched", "volcano"))
    core = build_core(None, None, options)
    run = SimulationRun(scenario, core, options)
    run.load()
    predicting = _Predicting(core, run, moments)
    store = run.finish().store
    starts = {job_key(pod): start_of(pod) for pod in store.list(POD)}
    return compare(predicting.found, starts)


def compare(found: Sequence[Predictions], starts: dict[str, float | None]) -> Calibration:
    """Compare predictions with the Unix seconds of the starts."""
    everything = [each for predictions in found for each in predictions.found]
    waits = {(each.job, each.at): (starts.get(each.job) or float("inf")) - each.at for each in everything}
    closed, opened, medians = [], [], []
    for each in everything:
        wait = waits[each.job, each.at]
        if each.p50 is not None:
            medians.append((each.p50, wait))
        if each.p10 is not None:
            opened.append(each.p10 <= wait <= (float("inf") if each.p90 is None else each.p90))
            if each.p90 is not None:
                closed.append((each.p10, each.p90, wait))

    def share(values: Sequence[bool]) -> float:
        return sum(values) / len(values) if values else 0.0

    def is_inside(each: Prediction) -> bool:
        return (each.p10 or 0.0) <= waits[each.job, each.at] <= (each.p90 or 0.0)

    known = [[is_inside(each) for each in one.found if each.p90 is not None] for one in found]
    shares = [share(values) for values in known if values]
    return Calibration(
        moments=len(found),
        predictions=len(everything),
        unknown=sum(each.p50 is None for each in everything),
        open_end=sum(each.p50 is not None and each.p90 is None for each in everything),
        before=share([wait < p10 for p10, _, wait in closed]),
        inside=share([p10 <= wait <= p90 for p10, p90, wait in closed]),
        after=share([wait > p90 for _, p90, wait in closed]),
        inside_by_moment=statistics.fmean(shares) if shares else 0.0,
        inside_with_open=share(opened),
        below_median=share([wait < median for median, wait in medians]),
        wait=statistics.median(waits.values()) if waits else 0.0,
        width=statistics.median(p90 - p10 for p10, p90, _ in closed) if closed else 0.0,
        error=statistics.median(abs(wait - median) for median, wait in medians) if medians else 0.0,
        cpu_seconds=_cpu_seconds(),
        cpu_seconds_per_moment=statistics.median(each.cpu_seconds for each in found) if found else 0.0,
    )


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=Path, required=True, help="node list of the trace, CSV")
    parser.add_argument("--pods", type=Path, required=True, help="pod list of the trace, CSV")
    parser.add_argument("--days", type=float, nargs=2, default=(0.0, 149.0), help="part of the trace that runs")
    parser.add_argument("--nodes-of-trace", type=int, default=100, help="number of nodes")
    parser.add_argument("--between", type=float, nargs=2, default=(134.0, 149.0), help="days of the moments")
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = Random(given.seed)
    moments = [random.uniform(*given.between) * _DAY for _ in range(given.moments)]
    scenario = part_of_trace(given.nodes, given.pods, tuple(given.days), given.nodes_of_trace)
    found = calibrate(scenario, moments)
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


if __name__ == "__main__":
    main()
