"""A recording decided again: the same under the recorded conf, and under another one only what that conf changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate, cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from capcard_sched.cli.main import run
from capcard_sched.daemon.diagnosis.recording import ConfUsed, RecordingError, RecordingReader, Stepped
from capcard_sched.daemon.diagnosis.replay import ReplayDifference, Replayed, _Replay, replay
from capcard_sched.framework.conf.scheduler_conf import Conf, parse_conf
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import Bind, Evict, Intent
from capcard_sched.state.cluster import ClusterState
from capcard_sched.testing import registry
from tests.daemon.recording.day import CONFS, EVENTS, Day, Event, conf, record

_COMMAND = "import sys; from capcard_sched.cli.main import main; main()"


def parsed(text: str) -> Conf:
    result = parse_conf(text, registry=registry())
    assert result.conf is not None
    return result.conf


def again(path: Path, other: str | None = None, most: int = 50) -> Replayed:
    return replay(RecordingReader(path), registry(), None if other is None else parsed(other), most=most)


def placed(state: ClusterState) -> dict[str, str]:
    """Nodes of pods, by uid."""
    return {uid: task.node.name for uid, task in state.tasks.items() if task.node is not None}


@pytest.mark.parametrize("name", sorted(CONFS))
@given(events=EVENTS)
@settings(max_examples=settings().max_examples // 3)
def test_a_replay_repeats_every_recorded_intent(name: str, events: list[Event]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        day = record(path, events, name)
        found = again(path)
        assert found.differences == []
        assert found.same
        assert found.decisions == sum(len(result.intents) for result in day.results)


@given(events=EVENTS, ticks=st.lists(st.sampled_from([0.0, 0.1, 3.0]), min_size=1, max_size=20))
@settings(max_examples=settings().max_examples // 3)
def test_sessions_cut_by_the_deadline_are_decided_again(events: list[Event], ticks: list[float]) -> None:
    elapsed = accumulate(cycle(ticks))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        record(path, events, timer=lambda: next(elapsed), session_deadline=1.0)
        found = again(path)
        assert found.differences == []
        assert found.same


@pytest.mark.parametrize("name", sorted(CONFS))
@given(events=EVENTS, other=st.sampled_from(sorted(CONFS)))
@settings(max_examples=settings().max_examples // 3)
def test_under_another_conf_every_step_still_starts_from_the_recorded_state(
    name: str, events: list[Event], other: str
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        day = record(path, events, name)
        replaying = _Replay(RecordingReader(path), registry(), parsed(CONFS[other]), 1000)
        found = replaying.finish()
        assert replaying._core is not None
        state = replaying._core.snapshot().state
        assert placed(state) == placed(day.core.snapshot().state)
        assert {key: job.phase for key, job in state.jobs.items() if not job.implicit} == {
            key: job.phase for key, job in day.core.snapshot().state.jobs.items() if not job.implicit
        }
        assert state.nodes.charged.tolist() == day.core.snapshot().state.nodes.charged.tolist()
        pods = sum(1 for result in day.results for intent in result.intents if isinstance(intent, Bind))
        counted = found.queues.values()
        assert sum(queue.bound for queue in counted) == pods
        assert sum(queue.same + queue.elsewhere + queue.earlier + queue.not_bound for queue in counted) == pods
        if other == name and not any(event.what == "reload" for event in events):
            assert found.same


def test_evictions_by_measured_load_are_replayed_and_the_password_of_its_source_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    day = Day(path, "load")
    day.load(10, 85)
    for _ in range(3):
        day.happen(Event("pod", 0))
    day.step()
    for bind in day.under_way:
        day.echo(bind)
    assert {bind.node for bind in day.bound} == {"n1"}
    for bind in day.bound:
        day.h.set_phase(bind.name, "Running")
    day.load(79, 5)
    for _ in range(3):
        day.happen(Event("wait", 10))
        day.step()
    day.close()
    assert any(isinstance(intent, Evict) for result in day.results for intent in result.intents)
    found = again(path)
    assert (found.same, found.differences) == (True, [])
    text = path.read_text()
    assert "http://nowhere:9090" in text
    assert "secret" not in text, "a recording is handed around"


def test_hash_seeds_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl.gz"
    day = Day(path)
    for number in range(12):
        day.gang(number)
    for number in range(12):
        day.step()
        for _ in range(2):
            day.happen(Event("echo", number))
        day.happen(Event("finish", number))
        day.happen(Event("quota", number))
    day.close()
    assert sum(len(result.intents) for result in day.results) > 100
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, "replay", str(path), "-o", "json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["same"] is True


# --- the form of a difference -----------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[Stepped], Stepped]) -> Path:
    """The recording with its steps changed."""
    reader = RecordingReader(path)
    records = [reader.header, *(change(item) if isinstance(item, Stepped) else item for item in reader)]
    lines = [msgspec.json.encode(item) for item in records]
    changed = path.with_name("changed.jsonl")
    changed.write_bytes(b"\n".join(lines) + b'\n{"record":"End","reason":"closed"}\n')
    return changed


def quiet_day(path: Path, name: str = "plain") -> Day:
    """One pod without cards at a time, bound and seen."""
    day = Day(path, name)
    day.step()
    for index in range(4):
        day.h.group(f"g{index}", queue="q", phase="Inqueue")
        day.h.pod(f"g{index}-0", group=f"g{index}")
        day.step()
        for bind in day.under_way:
            day.echo(bind)
        day.under_way.clear()
    day.step()
    day.close()
    return day


def test_one_changed_decision_is_reported_once_and_causes_no_other(tmp_path: Path) -> None:
    day = quiet_day(tmp_path / "day.jsonl")
    taken = day.bound[1]
    other = "n1" if taken.node == "n2" else "n2"

    def elsewhere(item: Delta | Intent) -> Delta | Intent:
        text = msgspec.json.encode(item)
        if b"g1-0" in text:
            text = text.replace(f'"{taken.node}"'.encode(), f'"{other}"'.encode())
            text = text.replace(f"to {taken.node}".encode(), f"to {other}".encode())
        return msgspec.json.decode(text, type=type(item))

    def move(step: Stepped) -> Stepped:
        deltas, intents = map(elsewhere, step.deltas), map(elsewhere, step.intents)
        return msgspec.structs.replace(step, deltas=tuple(deltas), intents=tuple(intents))

    found = again(rewritten(tmp_path / "day.jsonl", move))
    assert found.differences[0] == ReplayDifference(
        3, found.differences[0].now, "bound elsewhere", "Pod default/g1-0", "q", other, taken.node
    )
    assert found.kinds == {"bound elsewhere": 1}
    assert found.queues["q"].elsewhere == 1
    assert found.queues["q"].same == 3


def strict_day(path: Path, *, cards: int = 2, min_resources: dict[str, object] | None = None) -> Path:
    """A pod whose cards exceed the quota of its queue, bound by a conf without quotas."""
    day = Day(path, "plain")
    day.h.group("g", queue="r", phase="Pending" if min_resources else "Inqueue", min_resources=min_resources)
    day.h.pod("g-0", group="g", card="A", cards=cards)
    day.step()
    day.close()
    return path


def test_a_decision_that_is_missing_here_comes_with_its_reason(tmp_path: Path) -> None:
    found = again(strict_day(tmp_path / "cards.jsonl"), conf("gang", "capacity-card"))
    (difference,) = [item for item in found.differences if item.what == "not bound"]
    assert (difference.object, difference.queue, difference.recorded) == ("Pod default/g-0", "r", "n1")
    assert "insufficient <A> quota" in difference.reason
    assert "<2000>" in difference.reason
    assert found.queues["r"].not_bound == 1


def test_changed_admissions_are_reported(tmp_path: Path) -> None:
    path = strict_day(tmp_path / "day.jsonl", cards=3, min_resources={"cpu": "1", "nvidia.com/gpu": 3})
    (difference,) = again(path, conf("gang", "capacity-card")).differences
    assert (difference.what, difference.object) == ("not admitted", "PodGroup default/g")
    assert "quota" in difference.reason


def test_an_earlier_bind_of_another_conf_is_reported_with_both_steps(tmp_path: Path) -> None:
    day = Day(tmp_path / "day.jsonl", "cards")
    day.step()
    day.h.group("g", queue="r", phase="Inqueue")
    day.h.pod("g-0", group="g", card="A", cards=2)
    day.h.group("never", queue="r", phase="Inqueue")
    day.h.pod("never-0", group="never", card="B", cards=1)
    day.step()
    day.h.queue("q", cards={"A": 3})
    day.step()
    day.h.queue("r", cards={"A": 2}, capability={"cpu": "3", "memory": "100Gi"})
    day.step()
    day.close()
    assert [bind.name for bind in day.under_way] == ["g-0"]
    found = again(tmp_path / "day.jsonl", CONFS["plain"])
    by_kind = {item.what: item for item in found.differences}
    assert by_kind["bound earlier"].step == 2
    assert by_kind["bound earlier"].recorded == "n1, step 4"
    assert by_kind["bound earlier"].replayed == "n1"
    assert by_kind["extra bind"].object == "Pod default/never-0"
    assert (found.queues["r"].earlier, found.queues["r"].extra) == (1, 1)


def test_written_statuses_are_compared_too_under_the_recorded_conf(tmp_path: Path) -> None:
    quiet_day(tmp_path / "day.jsonl")

    def reword(step: Stepped) -> Stepped:
        text = msgspec.json.encode(step).decode().replace("Successfully assigned default/g2-0", "Sent default/g2-0")
        return msgspec.json.decode(text, type=Stepped)

    found = again(rewritten(tmp_path / "day.jsonl", reword))
    (difference,) = found.differences
    assert (difference.what, difference.object) == ("changed write", "Pod default/g2-0")
    assert "Sent" in difference.recorded
    assert "Successfully" in difference.replayed


def test_another_order_is_a_difference(tmp_path: Path) -> None:
    record(tmp_path / "day.jsonl", [Event("gang", 7), Event("gang", 3), Event("step", 0)])
    swapped = rewritten(
        tmp_path / "day.jsonl", lambda step: msgspec.structs.replace(step, intents=tuple(reversed(step.intents)))
    )
    found = again(swapped)
    assert not found.same
    assert set(found.kinds) == {"changed order"}


def test_only_so_many_differences_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    day = Day(tmp_path / "day.jsonl", "plain")
    for index in range(4):
        day.h.group(f"g{index}", queue="r", phase="Inqueue")
        day.h.pod(f"g{index}-0", group=f"g{index}", card="B", cards=1)
    day.step()
    day.close()
    found = again(tmp_path / "day.jsonl", CONFS["cards"], most=1)
    assert len(found.differences) == 1
    assert found.found == 4
    assert found.kinds == {"not bound": 4}


def test_a_recorded_reload_is_followed_or_left_out(tmp_path: Path) -> None:
    record(tmp_path / "day.jsonl", [Event("gang", 7), Event("reload", 0), Event("gang", 6)])
    assert again(tmp_path / "day.jsonl").same
    left_out = again(tmp_path / "day.jsonl", CONFS["cards"])
    assert any("a reload of the recorded scheduler-conf is skipped" in note for note in left_out.notes)


def test_a_conf_that_needs_a_plugin_we_do_not_have_is_refused(tmp_path: Path) -> None:
    quiet_day(tmp_path / "day.jsonl")
    reader = RecordingReader(tmp_path / "day.jsonl")
    lines = [msgspec.json.encode(reader.header)]
    for item in reader:
        text = msgspec.json.encode(item)
        lines.append(text.replace(b'"name":"binpack"', b'"name":"theirs"') if isinstance(item, ConfUsed) else text)
    (tmp_path / "theirs.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(RecordingError, match=r"not installed: plugin theirs"):
        again(tmp_path / "theirs.jsonl")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reports_an_unchanged_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet_day(tmp_path / "day.jsonl")
    assert run(["replay", str(tmp_path / "day.jsonl")]) == 0
    assert "unchanged: 6 steps" in capsys.readouterr().out


def test_the_command_shows_where_another_conf_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict_day(tmp_path / "day.jsonl")
    other = tmp_path / "conf.yaml"
    other.write_text(conf("gang", "capacity-card"))
    assert run(["replay", str(tmp_path / "day.jsonl"), "--scheduler-conf", str(other)]) == 0
    out = capsys.readouterr().out
    assert "1 not bound" in out
    assert "Pod default/g-0" in out
    assert "NOT BOUND" in out
    assert "step 1 at 2026-01-01T00:00:01Z: Pod default/g-0, queue r: not bound: recorded n1: " in out
    assert run(["replay", str(tmp_path / "day.jsonl"), "--scheduler-conf", str(other), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["queues"]["r"]["not_bound"] == 1
    assert document["same"] is False


def test_the_command_fails_when_the_recorded_conf_decides_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_day(tmp_path / "day.jsonl")
    changed = rewritten(tmp_path / "day.jsonl", lambda step: msgspec.structs.replace(step, intents=()))
    assert run(["replay", str(changed), "--most", "2"]) == 3
    out = capsys.readouterr().out
    assert "extra bind" in out
    assert "more differences (--most)" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["missing"], "missing: No such file or directory"),
        (["conf.yaml"], "not a recording file"),
        (["day.jsonl", "--scheduler-conf", "missing"], "missing: No such file or directory"),
        (["day.jsonl", "--scheduler-conf", "bad.yaml"], "invalid scheduler-conf"),
        (["day.jsonl", "--plugins-dir", "missing"], "not a folder"),
        (["day.jsonl", "--most", "-1"], "--most: -1 is negative"),
    ],
)
def test_bad_input_is_reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    quiet_day(tmp_path / "day.jsonl")
    (tmp_path / "conf.yaml").write_text(CONFS["plain"])
    (tmp_path / "bad.yaml").write_text("actions: [1]")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(["replay", *arguments]) == 2
    assert message in capsys.readouterr().err
