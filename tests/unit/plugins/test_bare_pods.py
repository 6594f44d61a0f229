"""The report of a preemption names the bare pods that plugin gang protects."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.cli.main import run

_CONF = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}]
"""

_OBJECTS = """
{apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {cpu: 1, memory: 8Gi, pods: 110}}}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 10}
---
{apiVersion: v1, kind: Pod, metadata: {name: bare}, status: {phase: Running}, spec: {
  schedulerName: capcard-sched, nodeName: n, containers: [{name: c, resources: {requests: {cpu: 1}}}]}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g}, spec: {
  minMember: 1, priorityClassName: high}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {scheduling.k8s.io/group-name: g}}, spec: {
  schedulerName: capcard-sched, priorityClassName: high, containers: [{name: c, resources: {requests: {cpu: 1}}}]}}
"""


def test_explain_names_the_bare_pod_whose_podgroup_a_controller_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects.yaml").write_text(_OBJECTS)
    (tmp_path / "conf.yaml").write_text(_CONF)
    where = ["-f", str(tmp_path / "objects.yaml"), "--scheduler-conf", str(tmp_path / "conf.yaml")]
    assert run(["explain", "g", *where, "--until", "1m"]) == 0
    text = capsys.readouterr().out
    assert "preempt finds no victims (1 protected by gang (bare pod))" in text
    assert ["1", "gang (bare pod)"] in [line.split(maxsplit=1) for line in text.splitlines()]
