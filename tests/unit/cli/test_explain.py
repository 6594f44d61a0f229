"""`capcard-sched explain` on the demo: the line that matters, and who waits how long."""

from pathlib import Path

import pytest

from capcard_sched.cli.main import run

DEMO = Path(__file__).parents[3] / "config" / "examples" / "demo"

ANSWERS = [
    ("chat", "10m", "4 placed, minimum 1, 6 pods, waiting 10m", "Queue <serving> has insufficient <NVIDIA-H200> quota"),
    ("tracker", "2m", "0 placed, minimum 2, 0 pods, waiting 2m", "Queue <vision> has insufficient"),
    ("llm-pretrain-xl", "10m", "0 placed, minimum 2, 2 pods, waiting 10m", "0/5 nodes are unavailable"),
    ("detector", "10m", "4 placed, minimum 4, 4 pods", "nothing waits: every pod is placed"),
    ("etl", "10m", "3 placed, minimum 3, 3 pods", "nothing waits: every pod has ended"),
]


@pytest.mark.parametrize("name, until, counts, why", ANSWERS, ids=[case[0] for case in ANSWERS])
def test_the_first_lines_say_who_waits_how_long_and_why(
    name: str, until: str, counts: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", name, "-f", str(DEMO), "--until", until]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("default/")
    assert lines[1] == counts
    assert lines[2].startswith(f"Why: {why}")


def test_a_job_whose_group_is_gone_names_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "etl", "-f", str(DEMO), "--until", "10m"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "no queue" in head
    assert "missing" not in head


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nobody", id="of nobody"),
        pytest.param("llm", id="the beginning of a Job's"),
        pytest.param("etl-worker", id="the beginning of a pod's"),
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
    assert lines[0].startswith("default/job/train (train-of-my-own)  queue q ")
    assert "has insufficient CPU quota" in lines[2]


TIDAL = DEMO.parent / "tidal"
TIDE_TAKES = ["-f", str(TIDAL), "--scheduler-conf", str(TIDAL / "conf" / "scheduler.yaml"), "--until", "8h10s"]


def test_a_job_whose_pods_were_told_to_go_is_not_called_placed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "job/pretrain", *TIDE_TAKES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "Why: nothing waits: 2 of 2 pods are leaving"


@pytest.mark.parametrize("name", ["default/pretrain", "default/job/pretrain", "default/pretrain-worker-1"])
def test_a_name_may_be_given_as_we_print_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name, "-n", "elsewhere", *TIDE_TAKES]) == 0
    assert capsys.readouterr().out.startswith("default/job/pretrain (")


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
    ("first", "g", "", "first", "nothing waits: first is Running on n1"),
    ("gated", "g", "schedulingGates: [{name: later}],", "gated", "scheduling gates keep gated back"),
    ("gated", "g", "schedulingGates: [{name: later}],", "g", "scheduling gates keep 1 of 1 pods back"),
    ("lost", "nobody", "", "lost", "PodGroup <default/nobody> does not exist"),
]


@pytest.mark.parametrize(
    "pod, group, more, asked, why", MEMBERS, ids=["placed", "gated pod", "gated job", "without a group"]
)
def test_a_pod_is_answered_for_itself(
    pod: str, group: str, more: str, asked: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = MEMBER.replace("NAME", pod).replace("GROUP", group).replace("MORE", more)
    second = MEMBER.replace("NAME", "second").replace("GROUP", "g").replace("MORE", "") if pod == "first" else ""
    path = tmp_path / "crowd.yaml"
    path.write_text(CROWD + member + second)
    assert run(["explain", asked, "-f", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"Why: {why}"
    assert "20454d" not in lines[1]  # since 1970


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


def test_a_claim_to_either_of_two_cards_has_no_quota_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(CLAIM, "utf-8")
    assert run(["explain", "g", "-f", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["A100", "4", "0", "0", "4", "4"] in rows
    assert ["A100|H100", "-", "0", "2", "-", "-"] in rows
    assert ["H100", "2", "0", "0", "2", "not", "in", "cluster"] in rows
