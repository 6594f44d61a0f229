"""The calibration of expected starts: shares of its predictions, and a part of a trace that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.expected_start import Prediction, Predictions, calibrate, compare, part_of_trace


def prediction(job: str, p10: float | None, p50: float | None, p90: float | None, *, at: float = 100.0) -> Prediction:
    return Prediction(job, at, p10, p50, p90)


def test_shares_count_starts_before_between_and_after_the_percentiles() -> None:
    starts = {"early": 104.0, "lower": 105.0, "upper": 120.0, "late": 121.0, "open": 500.0, "never": None}
    closed = [prediction(job, 5.0, 10.0, 20.0) for job in ("early", "lower", "upper", "late")]
    other = [prediction("open", 5.0, 10.0, None), prediction("never", None, None, None)]
    found = compare(
        [Predictions((*closed, *other), 3.0), Predictions((prediction("late", 1, 2, 30, at=99.0),), 1.0)], starts
    )
    assert (found.moments, found.predictions, found.unknown, found.open_end) == (2, 7, 1, 1)
    assert (found.before, found.inside, found.after) == (0.2, 0.6, 0.2)
    assert found.inside_by_moment == (0.5 + 1.0) / 2
    assert found.inside_with_open == pytest.approx(4 / 6)
    assert found.below_median == pytest.approx(2 / 6)
    assert (found.width, found.cpu_seconds_per_moment) == (15.0, 2.0)


def test_a_trace_of_equal_durations_is_predicted_from_the_jobs_that_have_ended(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,1,T4\n")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    head += "creation_time,deletion_time,scheduled_time"
    rows = [f"pod-{index},1000,1024,1,1000,,LS,Succeeded,{index},{index + 100},{index}" for index in range(16)]
    pods.write_text("\n".join([head, *rows]) + "\n")
    scenario = part_of_trace(nodes, pods, (0.0, 1.0), 1)
    early = calibrate(scenario, [450.0])
    assert (early.predictions, early.unknown) == (11, 11), "four jobs have ended"
    later = calibrate(scenario, [1250.0])
    assert (later.predictions, later.unknown) == (3, 0)
    assert (later.inside, later.error) == (1.0, 0.0)
