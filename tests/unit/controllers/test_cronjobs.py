"""CronJobs: schedules, missed times, concurrency, history."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.controllers.cronjobs import Schedule, ScheduleError
from capcard_sched.model.timestamps import parse_timestamp
from tests.unit.controllers.bench import GRACE, ClusterBench, task

_HOUR = 3600


def _cron(bench: ClusterBench, schedule: str = "0 * * * *", **spec: Any) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"tasks": [task("w", 1)]}}
    bench.create("CronJob", "c", spec={"schedule": schedule, "jobTemplate": template, **spec})


def _run(bench: ClusterBench, code: int = 0) -> None:
    bench.admit()
    bench.bind()
    for pod in bench.live():
        if bench.get("Pod", pod)["status"]["phase"] == "Running":
            bench.finish(pod, code)


#: Schedule, time zone, span of times, and the last and next time; in January 2026, `day hour:minute`.
SCHEDULES = [
    ("*/15 * * * *", "", ("01 00:00", "01 00:40"), ("01 00:30", "01 00:45")),
    ("0 2 * * *", "", ("01 00:00", "01 01:59"), (None, "01 02:00")),
    ("0 2 * * *", "Europe/Berlin", ("01 00:00", "01 01:00"), ("01 01:00", "02 01:00")),
    ("@daily", "", ("01 00:00", "04 12:00"), ("04 00:00", "05 00:00")),
    ("* * * * *", "", ("01 00:00", "31 12:00"), ("31 12:00", "31 12:01")),
]


def _stamp(text: str) -> float:
    day, _, hour = text.partition(" ")
    return parse_timestamp(f"2026-01-{day}T{hour}:00Z")


@pytest.mark.parametrize("text, zone, span, expected", SCHEDULES)
def test_the_latest_and_the_next_time_of_a_schedule(
    text: str, zone: str, span: tuple[str, str], expected: tuple[str | None, str]
) -> None:
    found = Schedule(text, zone).latest(_stamp(span[0]), _stamp(span[1]))
    assert found == tuple(None if moment is None else _stamp(moment) for moment in expected)


@pytest.mark.parametrize(
    "text, zone", [("", ""), ("x", ""), ("* * * *", ""), ("61 * * * *", ""), ("@daily", "Mars/Base")]
)
def test_a_wrong_schedule_names_its_field(text: str, zone: str) -> None:
    with pytest.raises(ScheduleError, match="spec.timeZone" if zone else "spec.schedule"):
        Schedule(text, zone)


def test_a_job_is_created_at_each_time_and_old_ones_are_deleted() -> None:
    bench = ClusterBench()
    _cron(bench, successfulJobsHistoryLimit=2)
    assert bench.names("Job") == []
    names = []
    for _ in range(4):
        bench.wait(_HOUR)
        _run(bench)
        names.append(max(bench.names("Job")))
    start = parse_timestamp("2026-01-01T01:00:00Z")
    assert names[0] == f"c-{int(start) // 60}"
    assert bench.names("Job") == names[2:]
    job = bench.get("Job", names[-1])
    assert job["metadata"]["labels"] == {"a": "b"}
    assert job["metadata"]["ownerReferences"][0]["name"] == "c"
    status = bench.get("CronJob", "c")["status"]
    assert (status["lastScheduleTime"], status.get("active")) == ("2026-01-01T04:00:00Z", [])
    assert status["lastSuccessfulTime"] == "2026-01-01T04:00:00Z"
    bench.delete("CronJob", "c")
    assert bench.names("Job") == []


def test_failed_jobs_have_a_limit_of_their_own() -> None:
    bench = ClusterBench()
    _cron(bench)
    for _ in range(3):
        bench.wait(_HOUR)
        _run(bench, code=1)
    assert len(bench.names("Job")) == 1


@pytest.mark.parametrize("policy, count", [("Allow", 2), ("Forbid", 1), ("Replace", 1)])
def test_a_job_that_is_still_active_meets_the_policy(policy: str, count: int) -> None:
    bench = ClusterBench()
    _cron(bench, concurrencyPolicy=policy)
    bench.wait(_HOUR)
    bench.admit()
    bench.bind()
    first = bench.names("Job")
    bench.wait(_HOUR + GRACE)
    assert len(bench.names("Job")) == count
    assert (bench.names("Job")[0] == first[0]) is (policy != "Replace")
    assert bool(bench.messages("CronJob", "JobAlreadyActive")) is (policy == "Forbid")


def test_a_suspended_cronjob_starts_nothing_and_makes_the_last_time_good_afterwards() -> None:
    bench = ClusterBench()
    _cron(bench, suspend=True)
    bench.wait(3 * _HOUR)
    assert bench.names("Job") == []
    bench.patch("CronJob", "c", {"spec": {"suspend": False}})
    assert bench.names("Job") == [f"c-{int(parse_timestamp('2026-01-01T03:00:00Z')) // 60}"]


def test_a_time_that_is_long_over_is_not_made_good() -> None:
    bench = ClusterBench()
    _cron(bench, suspend=True, startingDeadlineSeconds=60)
    bench.wait(_HOUR + 61)
    bench.patch("CronJob", "c", {"spec": {"suspend": False}})
    assert bench.names("Job") == []
    assert len(bench.messages("CronJob", "MissSchedule")) == 1
    bench.wait(_HOUR - 61)
    assert len(bench.names("Job")) == 1


def test_a_wrong_schedule_is_reported_once() -> None:
    bench = ClusterBench()
    _cron(bench, "every day")
    bench.patch("CronJob", "c", {"metadata": {"labels": {"touched": "yes"}}})
    (message,) = bench.messages("CronJob", "InvalidSchedule")
    assert message.startswith("spec.schedule: 'every day'")
