"""The metrics of the controllers: series of queues and Jobs go with their objects."""

from __future__ import annotations

from prometheus_client import generate_latest

from capcard_sched.controllers.view import Increment
from capcard_sched.daemon.controller_metrics import ControllerMetrics


def exposed(metrics: ControllerMetrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_the_gauges_of_a_queue_count_its_podgroups_and_go_with_it() -> None:
    metrics = ControllerMetrics()
    metrics.sample(["a", "b"], {"a": {"Running": 2, "Pending": 1}}, 5)
    counts = [("a", "running", 2), ("a", "pending", 1), ("b", "inqueue", 0)]
    for queue, phase, count in counts:
        assert f'volcano_queue_pod_group_{phase}_count{{queue_name="{queue}"}} {count}.0' in exposed(metrics)
    metrics.sample(["b"], {}, 5)
    assert not [line for line in exposed(metrics) if 'queue_name="a"' in line]
    assert 'volcano_queue_pod_group_running_count{queue_name="b"} 0.0' in exposed(metrics)


def test_the_counters_of_a_job_go_with_it() -> None:
    metrics = ControllerMetrics()
    metrics.count(Increment("volcano_job_failed_phase_count", (("job_name", "ns/j"), ("queue_name", "q"))))
    assert [line for line in exposed(metrics) if 'job_name="ns/j"' in line]
    metrics.forget_job("ns/j")
    assert not [line for line in exposed(metrics) if 'job_name="ns/j"' in line]
