"""Expected starts: with known durations the start of the simulation itself, otherwise percentiles with their basis."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.cli.main import run
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.framework.conf.scheduler_conf import default_text
from capcard_sched.framework.core import Core
from capcard_sched.insight.estimates.estimates import RUNS
from capcard_sched.insight.estimates.expected_start import Forecast, KnownState
from capcard_sched.insight.what_if import job_starts
from capcard_sched.model.annotations import RUNNING_ESTIMATE, SIMULATION_DURATION
from capcard_sched.model.diagnosis import ExpectedStart
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.timestamps import parse_timestamp
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.run import SimulationOptions, SimulationOutcome, simulate
from capcard_sched.simulation.scenario import Entry, Operation, Origin, Scenario, in_creation_order
from tests.insight.oracle_clusters import CONFS
from tests.insight.oracle_world import conf_of, registry
from tests.insight.scenes import core_of, recorded_run, written
from tests.insight.test_situations import explained
from tests.insight.test_what_if import CARD, CLUSTER, job
from tests.scenarios.notation import manifests, objects_of, operation

Manifest = dict[str, Any]


def node(name: str, cards: int = 8) -> Manifest:
    (made,) = manifests(f"node {name} {cards}*{CARD} cpu=64 memory=256Gi labels=kubernetes.io/hostname:{name}")
    return made


def queue(cards: int) -> Manifest:
    (made,) = manifests(f"queue q cards={CARD}:{cards}")
    return made


def vcjob(name: str, seconds: float | None, *, pods: int = 1, cards: int = 1, **spec: Any) -> Manifest:
    """A Job that the simulator ends after `seconds`; None: never."""
    runs = "" if seconds is None else f"runs={seconds}s"
    (made,) = manifests(f"job {name} queue=q min={pods} + w*{pods} gpu={cards} card={CARD} restartPolicy=Never {runs}")
    made["spec"] |= spec
    return made


def simulated(manifests: list[Manifest], until: int | None = None) -> SimulationOutcome:
    entries = in_creation_order(Entry(kind_of(each), each, Origin("test", 1)) for each in manifests)
    options = SimulationOptions(("volcano",), until=None if until is None else until * SECOND)
    return simulate(Scenario(entries, ()), core_of(options), options)


def snapshot_of(outcome: SimulationOutcome, *, hidden: bool = False) -> KnownState:
    """The end of a simulation; `hidden`: without the durations that only the simulator has."""
    objects = [obj for kind in outcome.store.kinds() for obj in outcome.store.list(kind)]
    if hidden:
        objects = json.loads(json.dumps(objects).replace(SIMULATION_DURATION, "example.com/hidden"))
    return KnownState(objects, EPOCH + outcome.end / SECOND, core_of().snapshot().conf, {} if hidden else outcome.ends)


def forecast(found: KnownState) -> dict[str, ExpectedStart]:
    made = Forecast(core_of(), found)
    return made.expected_starts(made.waiting())


#: Seconds, pods and cards of one pod of each job.
JOBS = st.lists(st.tuples(st.integers(5, 300), st.integers(1, 3), st.sampled_from([1, 2, 4])), min_size=1, max_size=7)


@given(jobs=JOBS, nodes=st.integers(1, 2), quota=st.sampled_from([4, 8, 12]), until=st.integers(0, 400), data=st.data())
@settings(max_examples=settings().max_examples // 5)
def test_with_known_durations_the_expected_start_is_the_start(
    jobs: list[tuple[int, int, int]], nodes: int, quota: int, until: int, data: st.DataObject
) -> None:
    """Whether the durations are those of the simulator, or declared in one of the ways."""
    way = data.draw(st.sampled_from(["simulator", "annotation", "runningEstimate", "deadline"]))
    made = []
    for index, (seconds, pods, cards) in enumerate(jobs):
        more = {"runningEstimate": f"{seconds}s"} if way == "runningEstimate" else {}
        each = vcjob(f"j{index}", seconds, pods=pods, cards=cards, **more)
        if way == "annotation":
            each["metadata"]["annotations"] = {RUNNING_ESTIMATE: f"{seconds}s"}
        if way == "deadline":
            each["spec"]["tasks"][0]["template"]["spec"]["activeDeadlineSeconds"] = seconds
        made.append(each)
    given_objects = [*(node(f"n{index}") for index in range(nodes)), queue(quota), *made]
    early = snapshot_of(simulated(given_objects, until), hidden=way != "simulator")
    found = forecast(early)
    assert forecast(early) == found, "the same state gives the same answer"
    whole = simulated(given_objects)
    created = {f"default/job/{each['metadata']['name']}": each for each in made}
    waits = {key: start.wait for key, start in job_starts(whole.store).items() if key in created}
    for key, wait in waits.items():
        start = None if wait is None else EPOCH + wait
        if start is not None and start <= early.now:
            assert key not in found
        else:
            runs = 0 if start is None and found[key].reason.startswith("never: ") else 1
            assert (found[key].p10, found[key].p90, found[key].runs) == (found[key].p50, found[key].p50, runs)
            assert found[key].p50 == (None if start is None else start - early.now), (key, way)
            assert (start is None) == bool(found[key].reason)


#: Scheduler-confs by name, with rotation after some seconds: an admitted job without a pod returns to Pending.
_AFTER = "configurations: [{name: enqueue, arguments: {inqueueTimeoutSeconds: %s}}]"
ROTATING = {
    f"{name}, {seconds} s": conf + _AFTER % seconds for name, conf in CONFS.items() for seconds in (60, 300) if conf
}
EVERY_CONF = (
    CONFS
    | ROTATING
    | {"built-in, 90 s": default_text().replace("inqueueTimeoutSeconds: 600", "inqueueTimeoutSeconds: 90")}
)
#: Second of the creation, seconds, pods, cards and cores of one pod, and whether one pod is enough.
ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(5, 900),
        st.integers(1, 3),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([1, 4, 16, 30]),
        st.booleans(),
    ),
    min_size=2,
    max_size=8,
)


@given(
    conf=st.sampled_from(sorted(EVERY_CONF)),
    arrivals=ARRIVALS,
    nodes=st.integers(1, 2),
    quota=st.sampled_from([8, 12, 24]),
    until=st.integers(300, 1500),
)
@settings(max_examples=settings().max_examples // 5)
def test_without_arrivals_the_announced_start_is_the_start_under_every_scheduler_conf(
    conf: str, arrivals: list[tuple[int, int, int, int, int, bool]], nodes: int, quota: int, until: int
) -> None:
    """Jobs rotate by `inqueueTimeoutSeconds`: the forecast continues with the order that the sessions keep."""
    operations = []
    for index, (at, seconds, pods, cards, cores, is_elastic) in enumerate(arrivals):
        each = vcjob(f"j{index}", seconds, pods=pods, cards=cards, **({"minAvailable": 1} if is_elastic else {}))
        each["metadata"]["namespace"] = "default"
        resources = each["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
        resources["requests"] = {"cpu": str(cores)}
        operations.append(Operation(at * SECOND, "create", "Job", "default", f"j{index}", each, Origin("test", 1)))
    operations.sort(key=lambda one: one.at)
    team = queue(quota)
    team["spec"]["capability"] = {"cpu": "40"}
    given_objects = [*(node(f"n{index}") for index in range(nodes)), team]
    entries = in_creation_order(Entry(kind_of(each), each, Origin("test", 1)) for each in given_objects)

    def ran(end: int) -> tuple[Core, SimulationOutcome]:
        core = Core(conf_of(EVERY_CONF[conf]), registry(), ("volcano",))
        options = SimulationOptions(("volcano",), until=end * SECOND)
        return core, simulate(Scenario(entries, tuple(operations)), core, options)

    core, early = ran(until)
    objects = [obj for kind in early.store.kinds() for obj in early.store.list(kind)]
    state = KnownState(objects, EPOCH + until, core.snapshot().conf, early.ends, progress=core.progress())
    made = Forecast(core, state)
    found = made.expected_starts(made.waiting())
    whole = job_starts(ran(until + 3 * 3600)[1].store)
    for one in operations:
        key, start = f"default/job/{one.name}", whole[f"default/job/{one.name}"].wait
        actual = None if start is None else one.at // SECOND + start - until
        if key in found and (actual is None or actual > 0):  # else it had started, and waits for its other pods
            assert found[key].p50 == actual, (key, conf)


def history(seconds: range, cards: int = 4) -> list[Manifest]:
    """Jobs that end one after the other, and one behind them that runs on."""
    return [vcjob(f"train-{index:02}", each, cards=cards) for index, each in enumerate(seconds)]


def test_durations_of_like_jobs_give_percentiles_and_name_their_number() -> None:
    given_objects = [node("n1"), queue(4), *history(range(100, 120)), vcjob("wait-1", 50, cards=4)]
    # 12 jobs have ended, the 13th runs since a moment.
    early = snapshot_of(simulated(given_objects, 1290), hidden=True)
    found = forecast(early)
    following = found["default/job/train-13"]
    assert following.runs == RUNS
    known = [value for value in (following.p10, following.p50, following.p90) if value is not None]
    assert (len(known), known) == (3, sorted(known))
    assert 0 < known[0] < known[2] < 120
    (awaited,) = following.awaited
    assert (awaited.workload, awaited.source) == ("default/job/train-12", "LikeJobs")
    assert awaited.like_jobs == 11, "the end of the first one begins the observation"
    assert awaited.alike == "queue, name, cards, size and requests"
    last = found["default/job/wait-1"]
    assert (last.p50 or 0) > 6 * 100, "it waits for all jobs before it"
    assert all(value >= 0 for each in found.values() for value in (each.p10, each.p50, each.p90) if value is not None)


def test_a_job_that_outlives_all_like_jobs_has_no_estimate() -> None:
    given_objects = [
        node("n1"),
        queue(4),
        *history(range(10, 22)),
        vcjob("train-99", 10_000, cards=4),
        vcjob("w", 1, cards=4),
    ]
    early = snapshot_of(simulated(given_objects, 1000), hidden=True)
    found = forecast(early)["default/job/w"]
    assert (found.p10, found.p50, found.p90) == (None, None, None)
    assert found.reason == "no estimate of the end of default/job/train-99"


def test_without_an_estimate_the_start_is_unknown_and_the_reason_names_the_job() -> None:
    given_objects = [node("n1"), queue(4), vcjob("a", None, cards=4), vcjob("b", None, cards=4)]
    found = forecast(snapshot_of(simulated(given_objects, 60), hidden=True))["default/job/b"]
    assert (found.p50, found.runs) == (None, 1)
    assert found.reason == "no estimate of the end of default/job/a"


def test_an_exceeded_estimate_counts_as_none() -> None:
    given_objects = [node("n1"), queue(4), vcjob("a", 500, cards=4, runningEstimate="30s"), vcjob("b", None, cards=4)]
    for until, known in ((20, True), (40, False)):
        found = forecast(snapshot_of(simulated(given_objects, until), hidden=True))["default/job/b"]
        assert (found.p50 is not None) == known


def test_a_job_that_starts_after_no_completion_reports_it() -> None:
    given_objects = [node("n1"), queue(4), vcjob("a", 60, cards=4), vcjob("b", None, cards=8)]
    found = forecast(snapshot_of(simulated(given_objects, 20)))["default/job/b"]
    assert found.p50 is None
    assert found.reason == "never: with every other job ended it does not start"


def start_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    text, document = explained(capsys, *words)
    return next((line for line in text.splitlines() if line.startswith("Expected start:")), ""), document


def test_explain_shows_the_expected_start_and_its_basis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + job("a", 4, seconds=600) + job("b", 4)))
    line, document = start_of(capsys, "b", "-f", str(file), "--until", "5m")
    basis = "when default/job/a ends (simulated duration)"
    assert line == f"Expected start:  in 5m1s, at 2026-01-01T00:10:01Z, {basis}"
    assert document["expectedStart"]["p50"] == 301
    assert parse_timestamp(document["expectedStart"]["computedAt"]) == EPOCH + 300
    line, document = start_of(capsys, "b", "-f", str(file), "--until", "5m", "--no-expected-start")
    assert (line, document["expectedStart"]) == ("", None)
    line, document = start_of(capsys, "a", "-f", str(file), "--until", "5m")
    assert (line, document["expectedStart"]) == ("", None), "a has started"


def test_a_job_that_can_never_start_has_no_expected_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + job("big", 8)))
    line, document = start_of(capsys, "big", "-f", str(file), "--until", "1m")
    assert line.startswith("Expected start:  never: ")
    assert document["expectedStart"]["p50"] is None


@pytest.mark.parametrize(
    "queue, line, cells",
    [
        ("closed", "never, unless the queue is opened", ["never", "never, unless the queue is opened"]),
        ("absent", "unknown until the queue exists", ["unknown", "unknown until the queue exists"]),
        ("small", "never: it needs 4", ["never", f"it needs 4 {CARD}, and the quota of queue small is 3"]),
    ],
)
def test_a_start_that_no_end_causes_is_announced_as_such(
    queue: str, line: str, cells: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    queues = f" queue closed cards={CARD}:8; queue small cards={CARD}:3;"
    pod = f" pod p queue={queue} card={CARD} gpu=4 scheduler=capcard-sched;"
    closed = operation("0s patch Queue closed {status: {state: Closed}}")
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "close"},
        "spec": {"operations": [closed]},
    }
    file.write_text(f"{written(CLUSTER + queues + pod)}\n---\n{json.dumps(scenario)}")
    found, _ = start_of(capsys, "p", "-f", str(file), "--until", "1m")
    assert found.startswith(f"Expected start:  {line}")
    assert run(["job", "list", "-f", str(file), "--until", "1m", "--expected-start"]) == 0
    row = cells_of(capsys.readouterr().out)["p"]
    assert [row["EXPECTED START"], row["BASIS"]] == cells


def test_a_recording_is_a_history_of_like_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past, now, file = tmp_path / "past.yaml", tmp_path / "now.yaml", tmp_path / "recording.jsonl"
    jobs = "".join(job(f"train-{index:02}", 4, seconds=100 + index, scheduler="volcano") for index in range(12))
    past.write_text(written(CLUSTER + jobs))
    more = " queue other;"  # objects have uids of their own
    now.write_text(written(CLUSTER + more + job("train-50", 4) + job("train-51", 4)))
    core = core_of()
    conf = core.snapshot().conf
    recording = Recording(file, conf, scheduler_names=("volcano",), default_queue="default", clock=lambda: EPOCH)
    recorded_run(str(past), core, recording, until=1500 * SECOND)
    recording.close(timeout=30.0)
    words = ("train-51", "-f", str(now), "--until", "30s")
    line, _ = start_of(capsys, *words)
    assert line == "Expected start:  unknown: no estimate of the end of default/job/train-50"
    database = tmp_path / "past.db"
    assert run(["ledger", "import", str(file), "--ledger", str(database)]) == 0
    found = {}
    for source in (["--history", str(file)], ["--ledger", str(database)]):
        line, document = start_of(capsys, *words, *source)
        assert line.endswith("when default/job/train-50 ends (12 like jobs)")
        found = document["expectedStart"]
        assert found["runs"] == RUNS
        assert 70 <= found["p10"] <= found["p50"] <= found["p90"] <= 90
    assert run(["job", "list", *words[1:], "--expected-start", "--ledger", str(database)]) == 0
    assert cells_of(capsys.readouterr().out)["train-51"]["BASIS"] == "12 like jobs"
    assert run(["explain", "train-51", "--recording", str(file), "--ledger", str(database)]) == 2
    assert capsys.readouterr().err == "error: --ledger: not with --recording: jobs of both would count twice\n"


def test_of_a_ledger_the_jobs_of_the_state_do_not_count_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ended pods of the simulation are still in the state, and its ledger has them, too."""
    file, database = tmp_path / "cluster.yaml", tmp_path / "cluster.db"
    ended = "".join(job(f"train-{index:02}", 4, seconds=10, scheduler="volcano") for index in range(8))
    file.write_text(written(CLUSTER + ended))
    assert run(["simulate", "-f", str(file), "--until", "10m", "--ledger", str(database)]) == 0
    capsys.readouterr()
    file.write_text(written(CLUSTER + ended + job("train-50", 4) + job("train-51", 4)))
    line, _ = start_of(capsys, "train-51", "-f", str(file), "--until", "10m", "--ledger", str(database))
    assert line == "Expected start:  unknown: no estimate of the end of default/job/train-50"


def test_a_file_that_is_no_recording_is_one_error_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + job("a", 4) + job("b", 4)))
    assert run(["explain", "b", "-f", str(file), "--until", "9s", "--history", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file}: not a recording file: expected a file written by `run --record`\n"
    )


def test_a_list_has_the_expected_start_of_each_kind_of_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = "".join(
        f" pod {name} queue=q card={CARD} gpu=4 runs={seconds}s scheduler=capcard-sched;"
        for name, seconds in (("notebook-1", 600), ("notebook-2", 60))
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(written(CLUSTER + pods + job("b", 4, seconds=60)))
    words = ["job", "list", "-f", str(file), "--until", "5m", "--expected-start"]
    assert run(words) == 0
    rows = cells_of(capsys.readouterr().out)
    starts = {name: row["EXPECTED START"] for name, row in rows.items()}
    assert starts == {"notebook-1": "-", "b": "5m", "notebook-2": "6m"}
    assert {name: row["BASIS"] for name, row in rows.items()} == {
        "notebook-1": "-",
        "b": "simulated duration",
        "notebook-2": "simulated duration",
    }
    assert run([*words, "-o", "json"]) == 0
    listed = {item["name"]: item["expectedStart"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert listed["notebook-1"] is None
    assert listed["b"]["awaited"][0]["workload"] == "default/pod/notebook-1"


def test_a_list_and_an_explanation_agree_about_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = [
        f"node n1 8*{CARD} cpu=64",
        f"queue q cards={CARD}:8",
        "group gated queue=q min=1",
        f"pod gated-0 group=gated queue=q gpu=1 card={CARD} schedulingGates=[{{name: x.io/wait}}]",
        "group parts queue=q min=3 minTaskMember={ps: 1, w: 2}",
        f"pod parts-0 group=parts queue=q gpu=1 card={CARD} annotations=volcano.sh/task-spec:w",
        f"pod ends queue=q gpu=8 card={CARD} nodeName=n1 grace=2h status={{phase: Running}}",
        f"pod large queue=q gpu=16 card={CARD}",
        "group runs queue=q min=1",
        "pod runs-0 group=runs queue=q cpu=1",
        "pod runs-1 group=runs queue=q cpu=1 schedulingGates=[{name: x.io/wait}]",
        "group wide queue=q min=1",
        "pod wide-0 group=wide queue=q cpu=1",
        "pod wide-1 group=wide queue=q cpu=100",
        "pod unbound queue=q cpu=1 volumes=[{name: d, persistentVolumeClaim: {claimName: data}}]",
        "device_class gpu.nvidia.com",
        "resource_claim c class=gpu.nvidia count=1",
        "pod claiming queue=q cpu=1 resourceClaims=[{name: c, resourceClaimName: c}]",
        "queue bare",
        f"pod unlimited queue=bare gpu=1 card={CARD}",
    ]
    plan = {"cluster": "\n".join(cluster), "operations": ["10s delete Pod ends"]}
    file = tmp_path / "cluster.yaml"
    file.write_text("\n---\n".join(map(json.dumps, objects_of(plan))))
    pods, groups = ("ends", "large", "unbound", "claiming", "unlimited"), ("gated", "parts", "runs", "wide")
    names = {name: f"pod/{name}" for name in pods} | {name: f"podgroup/{name}" for name in groups}
    assert run(["job", "list", "-f", str(file), "--until", "1m", "--expected-start", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    listed = {item["name"]: (item["expectedStart"] or {}).get("reason") for item in items}
    explained = {}
    for name, workload in names.items():
        assert run(["explain", workload, "-f", str(file), "--until", "1m", "-o", "json"]) == 0
        explained[name] = (json.loads(capsys.readouterr().out)["expectedStart"] or {}).get("reason")
    assert listed == explained
    never = {name: listed.pop(name) for name in ("large", "unbound", "claiming", "unlimited")}
    assert listed == {
        "gated": "scheduling gates",
        "parts": "members of the gang are missing",
        "ends": None,
        "runs": None,
        "wide": None,
    }
    for name, cause in {
        "large": "it needs 16",
        "unbound": "PersistentVolumeClaim data does not exist",
        "claiming": "device class gpu.nvidia does not exist",
        "unlimited": "queue bare has no card quota",
    }.items():
        assert never[name].startswith("never: ")
        assert cause in never[name]
    assert next(item["waitSeconds"] for item in items if item["name"] == "ends") is None


def cells_of(text: str) -> dict[str, dict[str, str]]:
    """The rows of a printed list by name, each as column to cell. At least two spaces separate cells."""
    header, *rows = (re.split(" {2,}", line.strip()) for line in text.splitlines())
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}
