"""Bare pods as candidates for preemption: plugin gang protects them, and the report names the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

_CONF = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{{name: priority}}, {{name: gang{switches}}}]
- plugins: [{{name: predicates}}]
"""

_OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 1, memory: 8Gi, pods: 110}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 10
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec: {schedulerName: capcard-sched, nodeName: n, containers: [{name: c, resources: {requests: {cpu: 1}}}]}
status: {phase: Running}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 1, priorityClassName: high}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {scheduling.k8s.io/group-name: g}}
spec: {schedulerName: capcard-sched, priorityClassName: high, containers: [{name: c, resources: {requests: {cpu: 1}}}]}
"""


def cluster(switches: str, *, grouped: bool = False) -> Harness:
    """`grouped`: a controller has created a PodGroup for the bare pod."""
    h = Harness(_CONF.format(switches=switches), run=True)
    h.queue("q")
    h.queue("default")
    for value in (1, 10):
        h.priority_class(f"p{value}", value)
    h.node("n", cpu="1")
    group = "podgroup-default-bare-uid" if grouped else None
    if group is not None:
        h.group(group, queue="default", phase="Running", priority_class="p1")
    h.pod("bare", group=group, node="n", phase="Running", requests={"cpu": "1"}, priority=1)
    h.group("g", queue="default", priority_class="p10")
    h.pod("p", requests={"cpu": "1"}, priority=10)
    return h


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("switches", "evicted"), [("", []), (", enablePreemptable: false", ["bare"])])
def test_a_bare_pod_is_protected_by_gang_alone(switches: str, evicted: list[str], grouped: bool) -> None:
    h = cluster(switches, grouped=grouped)
    result = h.step()
    assert [intent.name for intent in result.intents if isinstance(intent, Evict)] == evicted


@pytest.mark.parametrize("grouped", [False, True])
def test_the_report_names_the_bare_pod(grouped: bool) -> None:
    h = cluster("", grouped=grouped)
    h.step()
    session = h.last_session
    (report,) = session.preemption_reports["default/g"].values()
    assert "gang (bare pod)" in report.text


def test_explain_names_the_bare_pod_whose_podgroup_a_controller_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects.yaml").write_text(_OBJECTS)
    (tmp_path / "conf.yaml").write_text(_CONF.format(switches=""))
    where = ["-f", str(tmp_path / "objects.yaml"), "--scheduler-conf", str(tmp_path / "conf.yaml")]
    assert run(["explain", "g", *where, "--until", "1m"]) == 0
    text = capsys.readouterr().out
    assert "preempt finds no victims (1 protected by gang (bare pod))" in text
    assert ["1", "gang (bare pod)"] in [line.split(maxsplit=1) for line in text.splitlines()]
