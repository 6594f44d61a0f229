"""The metrics of the controllers: series of queues and Jobs go with their objects."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from capcard_sched.controllers.namespace_queues import blocked_reason
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


def test_the_gauges_of_a_namespace_queue_have_its_reason_and_go_with_it() -> None:
    metrics = ControllerMetrics()

    def shown() -> list[str]:
        return [line.removeprefix("volcano_") for line in exposed(metrics) if line.startswith("volcano_namespacequeue")]

    metrics.sample_namespace_queues({"a/x": "", "a/y": "ParentNotFound"})
    assert shown() == [
        'namespacequeue_ready{queue_name="a/x"} 1.0',
        'namespacequeue_ready{queue_name="a/y"} 0.0',
        'namespacequeue_blocked{queue_name="a/y",reason="ParentNotFound"} 1.0',
    ]
    metrics.sample_namespace_queues({"a/x": "QueueClosed"})
    assert shown() == [
        'namespacequeue_ready{queue_name="a/x"} 0.0',
        'namespacequeue_blocked{queue_name="a/x",reason="QueueClosed"} 1.0',
    ]
    metrics.sample_namespace_queues({})
    assert shown() == []


@pytest.mark.parametrize(
    "status, reason",
    [
        ({}, "NotReady"),
        ({"state": "Open", "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}, ""),
        ({"state": "Closed", "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}, "QueueClosed"),
        ({"state": "Open", "conditions": [{"type": "Ready", "status": "False", "reason": "HierarchyCycle"}]},
         "HierarchyCycle"),
        ({"state": "Open", "conditions": ["x"]}, "NotReady"),
    ],
)  # fmt: skip
def test_a_namespace_queue_is_blocked_by_its_condition_or_its_state(status: dict[str, Any], reason: str) -> None:
    assert blocked_reason({"metadata": {"name": "x", "namespace": "a"}, "status": status}) == reason


def test_the_counters_of_a_job_go_with_it() -> None:
    metrics = ControllerMetrics()
    metrics.count(Increment("volcano_job_failed_phase_count", (("job_name", "ns/j"), ("queue_name", "q"))))
    assert [line for line in exposed(metrics) if 'job_name="ns/j"' in line]
    metrics.forget_job("ns/j")
    assert not [line for line in exposed(metrics) if 'job_name="ns/j"' in line]
