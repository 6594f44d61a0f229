"""Limits of a queue that no plugin enforces are reported: an event on the queue, and once for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.vectors.notation import VectorHarness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: %s
"""
GPU = "nvidia.com/gpu"
NO_PLUGIN = (
    'metadata.annotations["volcano.sh/card.quota"]: not enforced: the scheduler-conf has no plugin capacity-card'
)


def device(path: str, field: str) -> str:
    return f'{path}["{GPU}"]: not enforced: no plugin of the scheduler-conf limits {GPU} by {field}'


@pytest.mark.parametrize(
    ("plugin", "queue", "detail"),
    [
        ("capacity-card", {"cards": {"A": 1}, "capability": {"cpu": "1"}}, None),
        ("capacity-card", {"capability": {GPU: 4}}, device("spec.capability", "capability")),
        ("capacity-card", {"deserved": {GPU: 4}}, device("spec.deserved", "deserved")),
        ("capacity-card", {"guarantee": {GPU: 4}}, device("spec.guarantee.resource", "guarantee")),
        ("capacity", {"capability": {GPU: 4}}, None),
        ("proportion", {"cards": {"A": 1}}, NO_PLUGIN),
    ],
)
def test_a_limit_without_effect_is_an_event_on_the_queue(
    plugin: str, queue: Mapping[str, Any], detail: str | None
) -> None:
    h = VectorHarness(CONF % plugin)
    h.queue("q", **queue)
    reported = [message for _, message in h.step().report.warnings]
    assert h.event_messages("Queue", "q") == ([] if detail is None else [("LimitNotEnforced", detail)])
    assert reported == ([] if detail is None else [detail])


CAPACITY_TREE = "capacity\n    enableHierarchy: true"


def below(path: str, resource: str) -> str:
    return (
        f'{path}["{resource}"]: not enforced for the queues below dept: '
        "only the plugin capacity with enableHierarchy: true enforces it there"
    )


@pytest.mark.parametrize(
    ("plugin", "fields", "details"),
    [
        ("capacity-card", {"capability": {"cpu": 8}}, [below("spec.capability", "cpu")]),
        ("capacity-card", {"guarantee": {"cpu": 8}}, [below("spec.guarantee.resource", "cpu")]),
        ("capacity-card", {"capability": {"volcano.sh/vgpu-number": 8}, "cards": {"A": 1}}, []),
        ("capacity", {"capability": {"memory": "1Gi"}}, [below("spec.capability", "memory")]),
        ("proportion", {"capability": {GPU: 8}}, [below("spec.capability", GPU)]),
        (CAPACITY_TREE, {"capability": {"cpu": 8, GPU: 8}}, []),
    ],
)
def test_a_limit_of_a_parent_without_effect_below_it_is_reported(
    plugin: str, fields: Mapping[str, Any], details: list[str]
) -> None:
    h = VectorHarness(CONF % plugin)
    h.queue("dept", **fields)
    assert h.step().report.warnings == []
    h.do("queue team parent=dept; queue other parent=dept")
    expected = "; ".join(details)
    assert [message for _, message in h.step().report.warnings] == ([expected] if details else [])
    assert h.event_messages("Queue", "dept") == ([("LimitNotEnforced", expected)] if details else [])
    h.queue("team", parent="root")
    h.queue("dept", **fields)
    h.step()
    h.delete_queue("other")
    h.step()
    h.queue("third", parent="dept")
    assert [message for _, message in h.step().report.warnings] == ([expected] if details else [])


def test_a_parent_that_is_missing_or_part_of_a_cycle_is_reported() -> None:
    h = VectorHarness(CONF % "capacity-card")
    h.do("queue team parent=dpt; queue dept")
    missing = "spec.parent: queue dpt does not exist: limits of a parent do not apply"
    assert [(ref.name, message) for ref, message in h.step().report.warnings] == [
        ("team", f'{missing}; did you mean "dept"?')
    ]
    h.queue("dpt")
    h.step()
    h.delete_queue("dpt")
    assert [ref.name for ref, _ in h.step().report.warnings] == ["team"]
    h.do("queue dept parent=team; queue team parent=dept")
    assert {(ref.name, message) for ref, message in h.step().report.warnings} == {
        ("dept", "spec.parent: the parents form a cycle: dept, team, dept"),
        ("team", "spec.parent: the parents form a cycle: team, dept, team"),
    }


def test_the_log_gets_each_warning_once() -> None:
    h = VectorHarness(CONF % "proportion")
    h.queue("q", cards={"A": 1})
    assert len(h.step().report.warnings) == 1
    h.queue("q", cards={"A": 2})
    assert h.step().report.warnings == []
    h.queue("q")
    h.step()
    h.queue("q", cards={"A": 2})
    assert len(h.step().report.warnings) == 1


def test_a_deleted_queue_with_bound_pods_is_reported_once() -> None:
    h = VectorHarness(CONF % "capacity-card")
    h.do("gpu_node n1; queue q cards=NVIDIA-H200:8; group g Running; pod p @n1 1*NVIDIA-H200")
    h.step()
    h.delete_queue("q")
    assert [(ref.name, message) for ref, message in h.step().report.warnings] == [
        ("q", "the queue is deleted and has bound pods, which stay charged to it")
    ]
    h.node("wake")
    assert h.step().report.warnings == []
