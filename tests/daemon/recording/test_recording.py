"""The file of a recording: its content, its end, and the readable part of a truncated one."""

from __future__ import annotations

import gzip
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from capcard_sched import __version__
from capcard_sched.daemon.diagnosis import recording as module
from capcard_sched.daemon.diagnosis.recording import (
    Applied,
    ConfUsed,
    Failed,
    Header,
    Leading,
    Recording,
    RecordingError,
    RecordingReader,
    Stepped,
    conf_document,
)
from capcard_sched.daemon.diagnosis.replay import replay
from capcard_sched.framework.conf.scheduler_conf import default_conf, parse_conf
from capcard_sched.framework.core import StepResult
from capcard_sched.framework.session.report import SessionReport
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind, Intent
from capcard_sched.model.kinds import KubernetesObject
from capcard_sched.testing import registry
from tests.daemon.recording.day import CONFS, Day, Event, record
from tests.objects import change_of

pytestmark = pytest.mark.processes

_DAY = [
    Event(what, number)
    for what, number in (
        ("gang", 7), ("gang", 6), ("step", 0), ("echo", 0), ("refuse later", 0), ("step", 0), ("retry", 0), ("step", 0),
        ("takeover", 0), ("gang", 3),
    )
]  # fmt: skip


def opened(path: Path, **more: Any) -> Recording:
    conf = default_conf(registry())
    return Recording(path, conf, scheduler_names=["a", "b"], default_queue="d", clock=lambda: 5.0, **more)


def facts(count: int) -> list[Delta]:
    return [ObjectGone("Node", "", f"node-{number}") for number in range(count)]


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_a_recording_has_deltas_and_decisions_in_order(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    recording = opened(path)
    bind = Bind("ns", "p", "u", "n", {"k": "v"})
    recording.leading(leading=True)
    recording.applied([ObjectGone("Node", "", "x")])
    recording.stepped(StepResult([bind], SessionReport("session-1"), False), [ObjectGone("Node", "", "y")], 7.25)
    recording.stepped(StepResult([], SessionReport(""), True), [], 8.0)
    recording.failed("session", ValueError("oops"))
    recording.close(10)
    reader = RecordingReader(path)
    assert reader.header == Header(
        2, __version__, 5.0, ("a", "b"), "d", half_gang_timeout=60.0, autoscaling=DEFAULT_AUTOSCALING
    )
    conf, *rest = list(reader)
    assert isinstance(conf, ConfUsed)
    assert conf.hash == default_conf(registry()).hash
    assert rest == [
        Leading(True, 5.0),
        Applied((ObjectGone("Node", "", "x"),)),
        Stepped(7.25, (ObjectGone("Node", "", "y"),), (bind,), "session-1"),
        Failed("session", "ValueError: oops"),
    ], "an idle step over nothing is left out"
    assert reader.end == "closed"
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert path.stat().st_mode & 0o777 == 0o600


def example(kind: type[Any]) -> Any:
    """A message with something in every field."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        of: Any = field.type
        if msgspec.UnsetType in get_args(of):
            of = next(each for each in get_args(of) if each is not msgspec.UnsetType)
        optional = type(None) in get_args(of)
        types = [each for each in get_args(of) if isinstance(each, type)]
        parts = [each for each in types if issubclass(each, (msgspec.Struct, bool))]
        if optional and parts:
            values[field.name] = parts[0]()
        elif isinstance(of, type) and issubclass(of, msgspec.Struct):
            required = [item for item in msgspec.structs.fields(of) if item.required]
            values[field.name] = example(of) if required else of()
        elif of in (float, int, bool):
            values[field.name] = of(3)
        elif "Literal" in str(of):
            values[field.name] = get_args(of)[0]
        elif str(of).startswith("dict"):
            held = get_args(of)[1]
            nested = isinstance(held, type) and issubclass(held, msgspec.Struct)
            values[field.name] = {"key": held() if nested else "value"}
        elif str(of).startswith("tuple"):
            items = get_args(of)
            values[field.name] = ("text",) * len(items) if {*items} == {str} else ()
        elif str(of).startswith("list"):
            values[field.name] = [example(get_args(of)[0])]
        elif of is msgspec.Raw:
            values[field.name] = msgspec.Raw(b'{"kind":"Pod"}')
        else:
            values[field.name] = "text"
    return kind(**values)


MESSAGES = [
    *(ObjectChanged(example(kind)) for kind in get_args(KubernetesObject)),
    *(example(kind) for kind in (*get_args(Delta), *get_args(Intent)) if kind is not ObjectChanged),
]


@pytest.mark.parametrize("message", MESSAGES, ids=change_of)
def test_every_fact_and_every_decision_can_be_read_back(tmp_path: Path, message: Any) -> None:
    recording = opened(tmp_path / "f")
    if isinstance(message, get_args(Delta)):
        recording.applied([message])
    else:
        recording.stepped(StepResult([message], SessionReport("s"), False), [], 1.0)
    recording.close(10)
    _, found = list(RecordingReader(tmp_path / "f"))
    assert isinstance(found, (Applied, Stepped))
    assert found == (Applied((message,)) if isinstance(found, Applied) else Stepped(1.0, (), (message,), "s"))


@pytest.mark.parametrize(
    "text",
    [
        *(each.replace("user:secret@", "") for each in CONFS.values()),
        """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
    enablePreemptable: false
  - name: capacity-card
    arguments: {nodeOrderWeight: 2.5}
- plugins:
  - name: binpack
    arguments: {binpack.weight: 10, binpack.resources: "nvidia.com/gpu", binpack.resources.nvidia.com/gpu: 8}
configurations:
- name: allocate
  arguments: {}
metrics: {type: prometheus, address: "http://x"}
""",
        "",
    ],
)
def test_a_recorded_conf_reads_as_the_one_in_use(text: str) -> None:
    conf = parse_conf(text, registry=registry()).conf
    assert conf is not None
    back = parse_conf(msgspec.json.encode(conf_document(conf)), registry=registry())
    assert back.conf is not None, back.problems
    assert msgspec.structs.replace(back.conf, hash="") == msgspec.structs.replace(conf, hash="")


# --- the end of a recording -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz"])
def test_the_size_limit_ends_a_recording_with_a_mark(tmp_path: Path, name: str) -> None:
    reasons: list[str] = []
    path = tmp_path / name
    recording = opened(path, max_bytes=30_000, on_end=reasons.append)
    for number in range(2000):
        recording.applied([ObjectGone("Node", "", f"{number}-{hash(str(number)):x}{os.urandom(40).hex()}")])
    recording.close(10)
    assert recording.ended
    assert path.stat().st_size <= 30_000
    assert path.stat().st_size > 20_000
    reader = RecordingReader(path)
    assert sum(isinstance(item, Applied) for item in reader) > 50
    assert reader.end == "the file has reached its limit of 30000 bytes"
    assert reasons == [reader.end]


def test_a_disk_that_is_too_slow_ends_a_recording_and_never_holds_the_scheduler_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 1000)
    os.mkfifo(tmp_path / "pipe")
    ready = threading.Event()
    release = threading.Event()
    taken: list[bytes] = []

    def read_late() -> None:
        with (tmp_path / "pipe").open("rb") as pipe:
            ready.set()
            release.wait(30)
            taken.append(pipe.read())

    reader = threading.Thread(target=read_late)
    reader.start()
    reasons: list[str] = []
    recording = opened(tmp_path / "pipe", on_end=reasons.append)
    ready.wait(10)
    began = time.monotonic()
    for _ in range(100):
        recording.applied(facts(100))
    assert time.monotonic() - began < 5
    assert recording.ended
    release.set()
    recording.close(10)
    reader.join(10)
    assert reasons == ["the disk is too slow: 1000 deltas and intents are waiting"]
    last = taken[0].splitlines()[-1]
    assert msgspec.json.decode(last) == {"record": "End", "reason": reasons[0]}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_ends_a_recording_with_the_reason() -> None:
    reasons: queue.Queue[str] = queue.Queue()
    recording = opened(Path("/dev/full"), on_end=reasons.put)
    assert reasons.get(timeout=10) == "/dev/full: No space left on device"
    recording.applied(facts(3))
    recording.close(10)
    assert reasons.empty()


def test_an_earlier_recording_of_the_name_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text("what a daemon wrote before it was restarted")
    opened(path).close(10)
    assert (tmp_path / "previous-day.jsonl").read_text() == "what a daemon wrote before it was restarted"
    assert RecordingReader(path).header.default_queue == "d"


def test_a_file_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"no/such/folder/f: No such file or directory"):
        opened(tmp_path / "no" / "such" / "folder" / "f")


def test_handing_over_costs_little_and_everything_arrives(tmp_path: Path) -> None:
    recording = opened(tmp_path / "f")
    batch = facts(100)

    def hand_over() -> None:
        for _ in range(200):
            recording.applied(batch)

    threads = [threading.Thread(target=hand_over) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.close(30)
    records = [item for item in RecordingReader(tmp_path / "f") if isinstance(item, Applied)]
    assert len(records) == 400
    assert recording._waiting == 0


# --- truncated recordings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_a_recording_cut_off_anywhere_replays_up_to_its_last_whole_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    record(path, _DAY)
    whole = path.read_bytes()
    lines = (gzip.decompress(whole) if name.endswith(".gz") else whole).splitlines(keepends=True)
    steps = 0
    for size in range(2000, len(whole), 997):
        cut = tmp_path / f"cut-{name}"
        cut.write_bytes(whole[:size])
        found = replay(RecordingReader(cut), registry())
        assert found.same
        assert found.steps >= steps
        steps = found.steps
        assert found.notes[-1] == "the recording is truncated: replayed up to its last complete line"
    assert 0 < steps <= sum(b'"record":"Stepped"' in line for line in lines)


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz"])
def test_a_written_record_is_in_the_file_at_once(tmp_path: Path, name: str) -> None:
    """A daemon that is killed leaves all but what it was just doing, packed or not."""
    day = Day(tmp_path / name)
    day.gang(7)
    day.step()
    for _ in range(200):
        if day.recording._queue.empty() and not day.recording._waiting:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert replay(RecordingReader(tmp_path / name), registry()).steps == 1
    day.close()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not a recording file"),
        (b"hello\n", "not a recording file"),
        (b'{"record":"Leading","leading":true,"at":1}\n', "not a recording file"),
        (b"\x1f\x8bnot gzip", "not a recording file"),
        (
            b'{"record":"Header","format":99,"program":"x","at":1,"scheduler_names":[],"default_queue":"d"}\n',
            "unsupported recording format 99; accepted: 2",
        ),
    ],
)
def test_a_file_that_is_not_a_recording_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(RecordingError) as raised:
        RecordingReader(tmp_path / "f")
    assert message in str(raised.value)
    assert str(tmp_path / "f") in str(raised.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda lines: [*lines[:4], b'{"record":"Stepped","now":"noon"}\n', *lines[5:]],
            r"line 5: now: expected a number, got",
        ),
        (lambda lines: [lines[0], *lines[2:]], "before its scheduler-conf"),
    ],
    ids=["a damaged line is named by number", "deltas before a conf"],
)
def test_a_recording_that_cannot_be_replayed_is_reported(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    path = tmp_path / "f"
    record(path, _DAY)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RecordingError, match=message):
        replay(RecordingReader(path), registry())
