"""The reports of the tidal example: training yields its cards to inference by day and runs again at night."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched import config
from capcard_sched.cli.exit_codes import FailureWatch
from capcard_sched.controllers.objects import JOB, POD
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.model.timestamps import parse_span
from capcard_sched.reports.recording import Recorder
from capcard_sched.reports.timeline import Timeline, timeline_of
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.run import SimulationOptions, SimulationOutcome, simulate
from capcard_sched.simulation.scenario_reader import load_scenario
from capcard_sched.testing import registry

H200 = "NVIDIA-H200"
HOUR = 3600.0
FOLDER = Path(config.__file__).parent / "examples" / "tidal"


def run(until: str) -> tuple[Timeline, SimulationOutcome]:
    conf = parse_conf((FOLDER / "conf" / "scheduler.yaml").read_bytes(), registry=registry())
    assert conf.conf is not None
    assert not conf.problems
    recorder = Recorder()
    scenario = load_scenario([str(FOLDER)], existing_queues=("root", "default"))
    core = FailureWatch(Core(conf.conf, registry()), recorder)
    outcome = simulate(scenario, core, SimulationOptions(until=parse_span(until)))
    recorder.finish(EPOCH + outcome.end / SECOND)
    return timeline_of(recorder, buckets=24), outcome


@pytest.fixture(scope="module")
def day() -> tuple[Timeline, SimulationOutcome]:
    return run("24h")


def test_three_pods_of_two_jobs_are_evicted_and_each_event_names_the_preemptor(
    day: tuple[Timeline, SimulationOutcome],
) -> None:
    evictions = [(one.at, one.pod, one.queue, one.card, one.cards) for one in day[0].evictions]
    assert evictions == [
        (8 * HOUR, "default/pretrain-worker-1", "training", H200, 4),
        (8 * HOUR, "default/pretrain-worker-0", "training", H200, 4),
        (11 * HOUR, "default/tuning-worker-0", "training", H200, 4),
    ]
    for eviction in day[0].evictions:
        assert eviction.message.startswith(f"reclaim: {H200}: 2 on node {eviction.node} for default/chat-")
        assert eviction.message.endswith(" of queue serving")


def test_inference_reclaims_cards_by_day_and_training_runs_at_night(day: tuple[Timeline, SimulationOutcome]) -> None:
    serving, training = day[0].services
    assert (serving.service, training.service) == ("inference", "training")
    by_hour = [(round(mine), round(theirs)) for mine, theirs in zip(serving.means, training.means, strict=True)]
    assert by_hour == [(4, 12)] * 8 + [(8, 4)] + [(12, 4)] * 2 + [(14, 0)] * 9 + [(6, 8)] + [(2, 12)] * 3
    assert serving.card_hours == pytest.approx(202, abs=0.2)
    assert training.card_hours == pytest.approx(152, abs=0.2)


def test_a_pod_above_the_quota_reclaims_nothing(day: tuple[Timeline, SimulationOutcome]) -> None:
    """The fifth replica waits an hour for the quota of 12 to be raised, while training has four cards."""
    (wait,) = day[0].quota_waits
    assert (wait.queue, wait.resource, wait.limit, wait.blocked_at_end) == ("serving", H200, 12_000, 0)
    assert wait.seconds == HOUR + 30, "the victim terminated for half a minute"
    assert wait.longest_job.startswith("default/chat-")


def test_the_gang_runs_whole_or_not_at_all_and_returns_in_the_evening(
    day: tuple[Timeline, SimulationOutcome],
) -> None:
    jobs = {job["metadata"]["name"]: job["status"] for job in day[1].store.list(JOB)}
    assert {name: status["state"]["phase"] for name, status in jobs.items()} == {
        "pretrain": "Running",
        "tuning": "Running",
    }
    assert jobs["pretrain"]["retryCount"] == 1
    store = run("20h31m")[1].store
    pods = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in store.list(POD)}
    assert pods["pretrain-worker-0"]
    assert pods["pretrain-worker-1"]
    assert not pods["tuning-worker-0"], "resumed, but no cards are free, and training reclaims none"
