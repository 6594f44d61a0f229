"""Durations of like jobs: groups, censored and truncated runs, quantiles; and the runs that a recording contains."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.daemon.diagnosis.recording import Recording, RecordingReader
from capcard_sched.insight.estimates.durations import FEWEST_LIKE_JOBS, DurationTable, JobFeatures, JobRun
from capcard_sched.insight.estimates.estimates import RUNS, quantile_ranks
from capcard_sched.insight.estimates.job_runs import runs_of_recording, stem_of
from capcard_sched.simulation.clock import EPOCH, SECOND
from tests.insight.scenes import core_of, recorded_run, written
from tests.insight.test_what_if import CLUSTER, job

SHAPE = JobFeatures("default", "q", "train", "NVIDIA-H200", 1.0, 8)
NOW = 1_000_000.0


def ended(seconds: float, shape: JobFeatures = SHAPE, *, observed_from: float = 0.0) -> JobRun:
    """A job that ended just now after `seconds`."""
    return JobRun(f"{shape}{seconds}", shape, NOW - seconds, observed_from, NOW, True)


def running(seconds: float, shape: JobFeatures = SHAPE) -> JobRun:
    """A job that has run for `seconds` and still runs."""
    return ended(seconds, shape)._replace(ended=False)


def quantiles(
    table: DurationTable, age: float, shape: JobFeatures = SHAPE, *, number: int = 4000
) -> list[float | None]:
    return [table.quantile(shape, age, (index + 0.5) / number) for index in range(number)]


@given(
    durations=st.lists(st.integers(1, 500), max_size=40),
    still=st.lists(st.integers(1, 500), max_size=20),
    age=st.integers(0, 500),
    share=st.floats(0.001, 0.999),
)
def test_a_quantile_exceeds_the_age_and_is_one_that_was_observed(
    durations: list[int], still: list[int], age: int, share: float
) -> None:
    table = DurationTable([*map(ended, durations), *map(running, still)])
    found = table.quantile(SHAPE, age, share)
    longer = sum(duration > age for duration in durations)
    assert (table.like_jobs(SHAPE, age) is None) == (longer < FEWEST_LIKE_JOBS)
    if longer < FEWEST_LIKE_JOBS:
        assert found is None
    if found is not None:
        assert found > age
        assert found in durations


def test_n_like_jobs_divide_the_time_into_equal_parts_with_an_open_end() -> None:
    found = quantiles(DurationTable([ended(seconds) for seconds in range(10, 100, 10)]), 0.0)
    for seconds in (*range(10, 100, 10), None):
        assert found.count(seconds) / len(found) == pytest.approx(0.1, abs=0.001), seconds


def test_a_quantile_is_conditional_on_the_age() -> None:
    table = DurationTable([ended(seconds) for seconds in range(10, 200, 10)])
    found = quantiles(table, 100.0)
    assert {seconds for seconds in found if seconds is not None} == set(range(110, 200, 10))
    assert found.count(110) / len(found) == pytest.approx(0.1, abs=0.001)


def test_jobs_that_still_run_make_long_durations_more_probable() -> None:
    short, long = [ended(10 + index / 10) for index in range(20)], [ended(100 + index) for index in range(10)]
    without = DurationTable([*short, *long])
    beside = DurationTable([*short, *long, *(running(50) for _ in range(30))])
    for table, jobs in ((without, 31), (beside, 61)):
        share = sum(seconds is not None and seconds < 50 for seconds in quantiles(table, 0.0)) / 4000
        assert share == pytest.approx(20 / jobs, abs=0.001)


def test_jobs_from_before_the_observation_count_from_their_age_then() -> None:
    """Jobs of 10 s and of 1,000 s start equally often. Of those with an end in the last 100 s, half are long ones."""
    seen = NOW - 100
    short = [JobRun(f"s{i}", SHAPE, seen + i, seen, seen + i + 10, True) for i in range(-10, 90)]
    long = [JobRun(f"l{i}", SHAPE, seen - 1000 + i, seen, seen + i, True) for i in range(100)]
    alive = [JobRun(f"r{i}", SHAPE, NOW - i, seen, NOW, False) for i in range(1000)]
    table = DurationTable([*short, *long, *alive])
    share = sum(seconds == 10 for seconds in quantiles(table, 0.0)) / 4000
    assert share == pytest.approx(0.5, abs=0.05)


OTHER = SHAPE._replace(stem="eval")
GROUPS = {
    "the same": (SHAPE, "queue, name, cards, size and requests"),
    "other requests": (SHAPE._replace(requests=(4000, 1 << 30)), "queue, name, cards and size"),
    "another size": (SHAPE._replace(size=16), "queue and name"),
    "another name": (OTHER, "queue, card and size"),
    "another queue": (SHAPE._replace(queue="r", stem="x"), "card and size"),
    "nothing in common": (SHAPE._replace(queue="r", stem="x", card="A100"), None),
}


@pytest.mark.parametrize("shape, alike", GROUPS.values(), ids=GROUPS)
def test_the_narrowest_group_with_enough_jobs_is_used(shape: JobFeatures, alike: str | None) -> None:
    table = DurationTable([ended(10 + index) for index in range(FEWEST_LIKE_JOBS)])
    found = table.like_jobs(shape, 0.0)
    assert (None if found is None else found.alike) == alike
    assert found is None or found.jobs == FEWEST_LIKE_JOBS
    assert (table.quantile(shape, 0.0, 0.5) is None) == (alike is None)


def test_beyond_the_longest_job_of_a_group_the_next_one_decides() -> None:
    narrow = [ended(10 + index) for index in range(9)]
    wide = [ended(1000 + index, OTHER) for index in range(20)]
    found = quantiles(DurationTable([*narrow, *wide]), 0.0)
    assert sum(seconds is not None and seconds < 100 for seconds in found) / 4000 == pytest.approx(0.9, abs=0.001)
    assert sum(seconds is not None and seconds >= 1000 for seconds in found) / 4000 == pytest.approx(0.095, abs=0.001)


def test_durations_have_a_factor_in_common_beside_an_order_of_each_job() -> None:
    ranks = [quantile_ranks(f"default/job-{number}") for number in range(1000)]
    assert {tuple(sorted(one)) for one in ranks} == {tuple(range(1, RUNS + 1))}
    assert len(set(ranks)) == len(ranks)
    pairs = [statistics.correlation(one, other) for one, other in itertools.pairwise(ranks)]
    assert statistics.fmean(pairs) == pytest.approx(0.2, abs=0.06)
    sums = [sum(one[run] for one in ranks) / len(ranks) for run in range(RUNS)]
    assert sums[-1] - sums[0] > RUNS / 4, "the sums of independent orders would be equal"


NAMES = {
    "train": "train",
    "train-0417": "train",
    "train-0417-x7k2p": "train",
    "llama3-train-20261122t1015": "llama3-train",
    "openb-pod-0001": "openb-pod",
    "h200-train": "h200-train",
    "a-1-b": "a-1-b",
}


@pytest.mark.parametrize("name, stem", NAMES.items())
def test_a_stem_has_no_numbers_and_hashes_at_its_end(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_a_recording_has_the_runs_of_its_jobs(tmp_path: Path) -> None:
    manifests, file = tmp_path / "cluster.yaml", tmp_path / "recording.jsonl"
    jobs = [
        job(name, 4, seconds=seconds, scheduler="volcano") for name, seconds in {"a-1": 60, "b-1": 30, "c-1": 0}.items()
    ]
    manifests.write_text(written(CLUSTER + "".join(jobs)))
    core = core_of()
    recording = Recording(
        file, core.snapshot().conf, scheduler_names=("volcano",), default_queue="default", clock=lambda: EPOCH
    )
    recorded_run(str(manifests), core, recording, until=200 * SECOND)
    recording.close(timeout=30.0)
    reader = RecordingReader(file)
    runs = {run.shape.stem: run for run in runs_of_recording(reader, reader.header.at)}
    assert {stem: run.ended for stem, run in runs.items()} == {"a": True, "b": True, "c": False}
    assert runs["a"].last - runs["a"].start == pytest.approx(60, abs=1)
    assert runs["b"].last - runs["b"].start == pytest.approx(30, abs=1)
    assert runs["a"].shape._replace(requests=None) == JobFeatures("default", "q", "a", "NVIDIA-H200", 4.0, 4)
