"""The flags of the conditions of pending pods, and the order of what they wait for."""

from __future__ import annotations

import pytest

from capcard_sched.model.autoscaling import AutoscalingOptions
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity-card}, {name: overcommit}]
"""
_ADMITTING = AutoscalingOptions(expects_nodes=True)


def _large_job(options: AutoscalingOptions, *, pods: bool) -> VectorHarness:
    h = VectorHarness(_CONF, autoscaling=options)
    h.do("node n1..3 cpu=1; queue q")
    h.group("g", queue="q", min_member=4, min_resources={"cpu": "4"}, phase="Pending")
    if pods:
        h.do("pod g/p0..3 cpu=1")
    h.step()
    return h


@pytest.mark.parametrize("options, phase", [(_ADMITTING, "Inqueue"), (AutoscalingOptions(), "Pending")])
def test_a_job_above_the_size_of_the_cluster_is_admitted_for_an_autoscaler(
    options: AutoscalingOptions, phase: str
) -> None:
    h = _large_job(options, pods=False)
    assert h.job("g").phase.value == phase
    h.do("pod g/p0..3 cpu=1")
    h.step()
    assert {name: h.reasons[name][0] for name in ("p0", "p3")} == {"p0": "Unschedulable", "p3": "Unschedulable"}
    assert not h.binds


@pytest.mark.parametrize("size, never", [(3, False), (2, True)])
def test_a_job_above_the_size_of_the_cluster_is_admitted_for_node_groups(size: int, never: bool) -> None:
    group = f"nodeGroups: [{{name: g, resources: {{cpu: 1, memory: 8Gi}}, maxSize: {size}}}]"
    h = VectorHarness(f"{_CONF}\n{group}\n")
    h.do("node n1 cpu=1; queue q; group g min=4 amounts={cpu: 4} Pending; pod g/p0..3 cpu=1")
    h.step()
    conditions = {condition.type for condition in h.job("g").conditions}
    assert (h.job("g").phase.value, "CanNeverStart" in conditions) == ("Inqueue", never)


def test_a_job_that_nodes_would_help_can_start_some_day() -> None:
    h = VectorHarness(_CONF, autoscaling=_ADMITTING)
    h.do("node n1 cpu=1; queue q cards=H200:16; group g Pending; pod g/p0..1 8*H200")
    h.settle_for(2)
    conditions = {condition.type for condition in h.job("g").conditions}
    assert (h.job("g").phase.value, "CanNeverStart" in conditions) == ("Inqueue", False)
    assert h.reasons == {"p0": ("Unschedulable", ""), "p1": ("Unschedulable", "")}


def test_the_reasons_of_volcano_are_written_on_demand() -> None:
    h = VectorHarness(_CONF, autoscaling=AutoscalingOptions(precise_reasons=False))
    h.do("gpu_node n1 4*A; queue q cards=A:12; group g min=2; pod g/p0..1 4*A; group over Pending; pod over/p2 16*A")
    h.step()
    assert {name: reason for name, (reason, _) in h.reasons.items()} == {
        "p0": "Schedulable",
        "p1": "Unschedulable",
        "p2": "Unschedulable",
    }
    assert "lacks" not in h.pod_message("p1")


def test_a_change_of_messages_alone_writes_no_condition_of_a_standing_failure() -> None:
    h = VectorHarness(_CONF)
    h.do("gpu_node n1 4*A; queue q cards=A:800; group g Pending; pod g/p0..99 8*A")
    h.settle_for(3)
    assert set(h.reasons.values()) == {("Unschedulable", "")}
    for number in range(2, 6):
        h.node(f"n{number}", cpu="1")
        kinds = {type(intent).__name__ for intent in h.step().intents}
        assert "UpdatePodCondition" not in kinds
