"""`capcard-sched explain` on the demo: the reason line, counts and waiting time."""

from pathlib import Path

import pytest

from capcard_sched.cli.main import run

DEMO = Path(__file__).parents[3] / "config" / "examples" / "demo"

ANSWERS = [
    ("chat", "10m", "4/6 scheduled, minAvailable 1, pending for 10m", "Queue serving has no quota left: 4 of 4 "),
    ("tracker", "2m", "0/2 scheduled, minAvailable 2, pending for 2m", "The PodGroup is not admitted: it needs "),
    (
        "llm-pretrain-xl",
        "10m",
        "0/2 scheduled, minAvailable 2, pending for 10m",
        "Can never start: minAvailable 2 needs 16 ",
    ),
    ("detector", "10m", "4/4 scheduled, minAvailable 4", "Not pending: all pods are scheduled"),
    ("etl", "10m", "3/3 scheduled, minAvailable 3", "Not pending: all pods have finished"),
]


@pytest.mark.parametrize("name, until, counts, why", ANSWERS, ids=[case[0] for case in ANSWERS])
def test_the_first_line_is_the_reason(
    name: str, until: str, counts: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", name, "-f", str(DEMO), "--until", until]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, _, reason = lines[0].partition(": ")
    assert head.startswith("default/")
    assert reason.startswith(why)
    assert ["Pods:", *counts.split()] in [line.split() for line in lines]


def test_a_job_without_a_podgroup_names_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "etl", "-f", str(DEMO), "--until", "10m"]) == 0
    text = capsys.readouterr().out
    assert "Queue:" not in text
    assert "PodGroup:" not in text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("missing", id="of no object"),
        pytest.param("llm", id="the prefix of a Job's"),
        pytest.param("etl-worker", id="the prefix of a pod's"),
        pytest.param("job/chat", id="of another kind"),
    ],
)
def test_an_unknown_name_is_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name, "-f", str(DEMO), "--until", "1s"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"default/{name}: no such job or pod" in captured.err


WAITING_JOB = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: q}
spec: {capability: {cpu: 1}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train, uid: of-my-own}
spec:
  queue: q
  minAvailable: 1
  tasks:
  - {name: w, replicas: 1, template: {spec: {containers: [{name: c, resources: {requests: {cpu: 2}}}]}}}
"""


@pytest.mark.parametrize("name", ["train", "job/train", "default/job/train", "train-of-my-own"])
def test_a_job_that_has_no_pods_yet_is_found_by_its_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "waiting.yaml"
    path.write_text(WAITING_JOB)
    assert run(["explain", name, "-f", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("default/job/train: The PodGroup is not admitted") or "needs 2 cpu" in lines[0]
    assert "PodGroup: train-of-my-own (phase Pending)" in [" ".join(line.split()) for line in lines]


TIDAL = DEMO.parent / "tidal"
DURING_RECLAIM = ["-f", str(TIDAL), "--scheduler-conf", str(TIDAL / "conf" / "scheduler.yaml"), "--until", "8h10s"]


def test_a_job_with_evicted_pods_is_not_reported_as_scheduled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "job/pretrain", *DURING_RECLAIM]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "default/job/pretrain: Not pending: 2 of 2 pods are terminating."


@pytest.mark.parametrize("name", ["pretrain", "job/pretrain", "pretrain-worker-1", "pod/pretrain-worker-1"])
def test_a_name_is_accepted_in_every_printed_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", f"default/{name}", "-n", "elsewhere", *DURING_RECLAIM]) == 0
    assert capsys.readouterr().out.startswith("default/job/pretrain: ")


CROWD = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: 2}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 1}
"""
MEMBER = """
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, annotations: {scheduling.k8s.io/group-name: GROUP}}
spec: {schedulerName: volcano, MORE containers: [{name: c, resources: {requests: {cpu: 2}}}]}
"""
MEMBERS = [
    ("first", "g", "", "first", "Not pending: pod first is Running on n1"),
    ("gated", "g", "schedulingGates: [{name: later}],", "gated", "Pod gated has scheduling gates"),
    ("gated", "g", "schedulingGates: [{name: later}],", "g", "1 of 2 pods has scheduling gates"),
    ("lost", "missing", "", "lost", "PodGroup <default/missing> does not exist"),
]


@pytest.mark.parametrize(
    "pod, group, more, name, why", MEMBERS, ids=["scheduled", "gated pod", "gated job", "without a group"]
)
def test_a_pod_has_its_own_reason(
    pod: str, group: str, more: str, name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = MEMBER.replace("NAME", pod).replace("GROUP", group).replace("MORE", more)
    second = MEMBER.replace("NAME", "second").replace("GROUP", "g").replace("MORE", "")
    path = tmp_path / "crowd.yaml"
    path.write_text(CROWD + member + second)
    assert run(["explain", name, "-f", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].partition(": ")[2] == f"{why}."
    assert not any("20454d" in line for line in lines)  # since 1970


CLAIM = """
{apiVersion: v1, kind: Node,
 metadata: {name: n, labels: {nvidia.com/gpu.product: A100, nvidia.com/gpu.memory: "81920"}},
 status: {allocatable: {cpu: "8", memory: 8Gi, nvidia.com/gpu: "4", pods: "9"}}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q,
 annotations: {volcano.sh/card.quota: '{"A100": 4, "H100": 2}'}}, spec: {capability: {cpu: "8", memory: 8Gi}}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g,
 annotations: {volcano.sh/card.request: '{"A100|H100": 2}'}}, spec: {minMember: 2, queue: q, minResources: {cpu: "2"}}}
"""


def test_a_reservation_for_either_of_two_cards_has_no_quota_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(CLAIM, "utf-8")
    assert run(["explain", "g", "-f", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["q", "A100", "4", "0", "0", "4", "4"] in rows
    assert ["q", "A100|H100", "-", "0", "2", "-", "-"] in rows
    assert ["q", "H100", "2", "0", "0", "2", "none"] in rows


GANG = """
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 3, memory: 8Gi, pods: 9}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {allocatable: {cpu: 3, memory: 8Gi, pods: 9}}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g}, spec: {minMember: 2}}
"""


RUNNING = MEMBER.replace("NAME", "other").replace("GROUP", "").replace("MORE", "nodeName: n1,")


def explain_gang(other: str, more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    members = (MEMBER.replace("NAME", name).replace("GROUP", "g").replace("MORE", more) for name in ("a", "b"))
    file = tmp_path / "gang.yaml"
    file.write_text(GANG + other + "".join(members), "utf-8")
    assert run(["explain", "g", "-f", str(file)]) == 0
    return capsys.readouterr().out


def test_pods_that_fit_wait_for_the_rest_of_the_gang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explain_gang(RUNNING, "", tmp_path, capsys)
    assert "1 of 2 pending pods fits now, and the gang starts with 2: each pod needs 2 cpu free" in text
    assert "a: fits on n2; waiting for gang\n" in text
    assert "b: no node fits\n" in text


def test_preemption_is_mentioned_as_the_result_of_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explain_gang("", "nodeSelector: {rack: missing},", tmp_path, capsys)
    assert "no node fits\n" in text
    assert "preempt and reclaim are not in `actions` of the scheduler-conf and would not help" in text
