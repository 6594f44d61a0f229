"""`capcard-sched what-if`: jobs, evictions and usage before and after changes of the input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.cli.what_if import WORSE
from tests.insight.json_schema import violations
from tests.insight.scenes import written
from tests.scenarios.notation import manifests

DEMO = str(Path(__file__).parents[2] / "config" / "examples" / "demo")
SCHEMA = Path(__file__).parents[2] / "docs" / "what-if.schema.json"
CARD = "NVIDIA-H200"
#: Statements: queue `q` has 4 of the 8 cards of `n1`.
CLUSTER = f"node n1 8*{CARD} cpu=64 memory=256Gi labels=kubernetes.io/hostname:n1; queue q cards={CARD}:4;"


def job(name: str, cards: int, *, seconds: int = 0, scheduler: str = "capcard-sched") -> str:
    """The statement of a vcjob of one pod; it runs for `seconds`, for ever with 0."""
    runs = f" runs={seconds}s" if seconds else ""
    return f" job {name} scheduler={scheduler} queue=q min=1 + w gpu={cards} card={CARD}{runs};"


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """`a` holds the cards of the quota, `b` waits."""
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + job("a", 4) + job("b", 4)))
    return str(file)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], int]:
    status = run(["what-if", *arguments, "--until", "10m", "-o", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads(SCHEMA.read_text())
    assert violations(found, schema, schema) == []
    return found, status


def jobs(found: dict[str, Any], change: str) -> list[str]:
    return [row["job"] for row in found[change]]


def test_a_larger_quota_starts_the_job_that_waited_for_it(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, status = report(capsys, "-f", cluster, "--quota", f"q/{CARD}=8")
    assert (jobs(found, "starts"), jobs(found, "blocked"), status) == (["default/job/b"], [], 0)
    assert found["starts"][0]["waitBefore"] is None
    assert {"queue": "q", "resource": CARD, "before": 4.0, "after": 8.0} in found["usage"]


def test_a_smaller_quota_blocks_the_job_that_used_it(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, status = report(capsys, "-f", cluster, "--quota", f"q/{CARD}=2")
    assert (jobs(found, "starts"), jobs(found, "blocked"), status) == ([], ["default/job/a"], WORSE)


def test_the_device_of_a_card_is_no_change_besides_the_card(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = report(capsys, "-f", cluster, "--quota", f"q/{CARD}=8")
    assert {row["resource"] for row in found["usage"]} == {CARD}


def test_a_quota_of_a_card_that_no_node_provides_is_a_warning(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["what-if", "-f", cluster, "--quota", f"q/{CARD.lower()}=8"]) == 0
    captured = capsys.readouterr()
    assert captured.err == (f"warning: --quota: no node provides card {CARD.lower()}; did you mean {CARD}?\n")
    assert captured.out == "no job waits longer.\n"


@pytest.mark.parametrize(
    ("quotas", "problem"),
    [
        ([f"q/{CARD}=8", f"q/{CARD}=16"], f"--quota: 'q/{CARD}=8' and 'q/{CARD}=16' are quotas of one card of queue q"),
        (["q/A|B=1", "q/B|A=2"], "--quota: 'q/A|B=1' and 'q/B|A=2' are quotas of one card of queue q"),
        (["q/cpu=8"], "--quota: 'q/cpu=8': cpu is a resource, not a card"),
        (["q/memory=8"], "--quota: 'q/memory=8': memory is a resource, not a card"),
    ],
)
def test_quotas_that_contradict_each_other_or_are_of_no_card_are_refused(
    cluster: str, quotas: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", "-f", cluster, *(word for quota in quotas for word in ("--quota", quota))]) == 2
    assert problem in capsys.readouterr().err


def test_nodes_without_quota_change_nothing_and_with_it_they_start_a_job(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "c.yaml"
    more.write_text(written(job("c", 8)))
    found, _ = report(capsys, "-f", cluster, "--add-nodes", "2xn1")
    assert (jobs(found, "starts"), found["usage"]) == ([], [])
    changes = ["--add-nodes", "2xn1", "--quota", f"q/{CARD}=16", "--add", str(more)]
    found, status = report(capsys, "-f", cluster, *changes)
    assert (jobs(found, "starts"), status) == (["default/job/b", "default/job/c"], 0)
    assert found["changes"] == [f"--add {more}", f"--quota q/{CARD}=16", "--add-nodes 2xn1"]


def test_a_drained_node_returns_its_pods_to_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = "{phase: Running, startTime: '2026-01-01T00:00:00Z'}"
    pod = f"pod p group=g card={CARD} gpu=4 nodeName=n1 scheduler=capcard-sched status={running}"
    file = tmp_path / "bound.yaml"
    file.write_text(written(f"{CLUSTER} group g queue=q min=1; {pod}"))
    found, status = report(capsys, "-f", str(file), "--drain", "n1")
    assert (jobs(found, "blocked"), status) == (["default/podgroup/g"], WORSE)
    assert {"queue": "q", "resource": CARD, "before": 4.0, "after": 0.0} in found["usage"]
    found, status = report(capsys, "-f", str(file), "--drain", "n1", "--add-nodes", "1xn1")
    assert jobs(found, "blocked") == ["default/podgroup/g"], "a copy of a drained node is drained too"


def test_pods_of_a_drained_node_that_run_elsewhere_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = "{phase: Running, startTime: '2026-01-01T00:00:00Z'}"
    ended = "pod done gpu=1 nodeName=n1 scheduler=capcard-sched status={phase: Succeeded}"
    agent = manifests(f"pod agent nodeName=n1 scheduler=capcard-sched status={running}")[0]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": True}
    agent["metadata"]["ownerReferences"] = [owner]
    pods = "; ".join(f"pod p{i} card={CARD} gpu=1 queue=q nodeName=n1 status={running}" for i in range(2))
    file = tmp_path / "bound.yaml"
    objects = written(f"{CLUSTER} node n2 8*{CARD} cpu=64 memory=256Gi; {pods}; {ended}")
    file.write_text(f"{objects}\n---\n{json.dumps(agent)}")
    found, status = report(capsys, "-f", str(file), "--drain", "n1")
    assert found["restarts"] == [{"job": f"default/pod/p{i}", "pods": 1, "wait": 0.0} for i in range(2)]
    assert status == 0, "they run again at once"
    run(["what-if", "-f", str(file), "--drain", "n1"])
    head = capsys.readouterr().out.splitlines()[0]
    assert head == "no job waits longer; 2 pods restart: default/pod/p0 (1), default/pod/p1 (1)."


def test_pods_of_a_simulated_deployment_on_a_drained_node_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    chat = f"deployment chat*4 gpu=1 card={CARD} queue=q scheduler=capcard-sched"
    file.write_text(written(f"{CLUSTER} node n2 8*{CARD} cpu=64 memory=256Gi; {chat}"))
    found, status = report(capsys, "-f", str(file), "--drain", "n1")
    assert ([(row["job"], row["wait"]) for row in found["restarts"]], status) == (
        [("default/deployment/chat", None)],
        0,
    )


SCENARIO = """
---
apiVersion: simulation.capcard-sched.io/v1alpha1
kind: Scenario
metadata: {name: s}
spec:
  operations:
  - at: 5s
    patch:
      apiVersion: scheduling.volcano.sh/v1beta1
      kind: Queue
      metadata: {name: q, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 4, "other": 2}'}}
"""


def test_a_quota_holds_against_the_timeline_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + job("a", 4) + job("b", 4, seconds=60)) + SCENARIO)
    assert run(["what-if", "-f", str(file), "--until", "10m", "--quota", f"q/{CARD}=8"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("1 job starts.\n")
    assert captured.err.startswith(f"warning: --quota q/{CARD}=8 also replaces the quota of the timeline at 5s (")
    saved = tmp_path / "saved.json"
    run(["what-if", "-f", str(file), "--until", "10m", "--quota", f"q/{CARD}=8", "--save", str(saved)])
    assert '\\"NVIDIA-H200\\": 8, \\"other\\": 2' in saved.read_text()


def test_an_urgent_job_delays_those_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, more = tmp_path / "base.yaml", tmp_path / "more.yaml"
    base.write_text(written(CLUSTER + job("a", 4, seconds=60) + job("b", 4, seconds=60)))
    more.write_text(written(job("aa", 4, seconds=120)))
    found, status = report(capsys, "-f", str(base), "--add", str(more))
    assert jobs(found, "starts") == ["default/job/aa"]
    (moved,) = found["moved"]
    assert (moved["job"], status) == ("default/job/b", WORSE)
    assert moved["waitAfter"] > moved["waitBefore"] + 60
    run(["what-if", "-f", str(base), "--add", str(more), "--until", "10m"])
    assert "starts 2m later" in capsys.readouterr().out


def test_the_changed_input_simulates_to_the_same_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "changed.json"
    changes = ["--quota", f"research/{CARD}=16", "--drain", "a100-1", "--add-nodes", "1xh200-1"]
    found, _ = report(capsys, "-f", DEMO, *changes, "--save", str(saved))
    unchanged, status = report(capsys, "-f", str(saved), "--quota", f"research/{CARD}=16")
    assert status == 0
    assert not any(unchanged[field] for field in ("starts", "blocked", "moved", "pods", "evictions", "usage"))
    again = tmp_path / "again.json"
    report(capsys, "-f", str(saved), "--quota", f"research/{CARD}=16", "--save", str(again))
    assert again.read_bytes() == saved.read_bytes()
    assert found["endAfter"] == unchanged["endAfter"]


def test_a_deployment_with_more_or_fewer_pods_is_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(written(f"{CLUSTER} deployment chat*3 gpu=2 card={CARD} queue=q scheduler=capcard-sched"))
    chat = "default/deployment/chat"
    found, status = report(capsys, "-f", str(file), "--quota", f"q/{CARD}=6")
    assert (found["pods"], status) == ([{"job": chat, "before": 2, "after": 3}], 0)
    found, status = report(capsys, "-f", str(file), "--quota", f"q/{CARD}=2")
    assert (found["pods"], status) == ([{"job": chat, "before": 2, "after": 1}], WORSE)
    assert run(["what-if", "-f", str(file), "--quota", f"q/{CARD}=2"]) == WORSE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "1 job has fewer pods."
    assert [chat, "2", "1"] in map(str.split, lines)


def test_another_scheduler_conf_is_compared(tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "scheduler.yaml"
    conf.write_text('actions: "enqueue, allocate"\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n')
    found, _ = report(capsys, "-f", cluster, "--conf", str(conf))
    assert jobs(found, "starts") == ["default/job/b"], "no plugin checks card quotas"


BAD = {
    "no input": (["--kubeconfig", "/nowhere", "--drain", "n1"], "kubeconfig /nowhere: no such file"),
    "no change": (["-f", DEMO], "no change: pass --add"),
    "unknown queue": (["-f", DEMO, "--quota", "nope/A=1"], "Queue nope does not exist; the input has research"),
    "form of a quota": (["-f", DEMO, "--quota", "research=1"], "--quota: 'research=1': expected QUEUE/CARD=N"),
    "unknown node": (["-f", DEMO, "--drain", "x"], "Node x does not exist"),
    "form of copies": (["-f", DEMO, "--add-nodes", "h200-1"], "--add-nodes: 'h200-1': expected NxNODE"),
    "unknown template": (["-f", DEMO, "--add-nodes", "2xnope"], "Node nope does not exist"),
    "standard input twice": (["-f", "-", "--add", DEMO], "--add: the base is read twice, standard input only once"),
    "missing manifests": (["-f", DEMO, "--add", "/no/such.yaml"], "/no/such.yaml"),
    "unwritable file": (["-f", DEMO, "--drain", "h200-1", "--save", "/no/such/x"], "--save: /no/such/x"),
}


@pytest.mark.parametrize("arguments, text", BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["what-if", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_the_table_starts_with_the_answer(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["what-if", "-f", cluster, "--until", "10m", "--quota", f"q/{CARD}=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "1 job starts."
    assert any("default/job/b" in line and "never" in line for line in lines)
