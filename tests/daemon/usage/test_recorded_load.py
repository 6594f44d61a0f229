"""Load that was measured is part of a recording: the same is decided again without any source."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.daemon.diagnosis.recording import Recording, RecordingReader
from capcard_sched.daemon.diagnosis.replay import replay
from capcard_sched.model.deltas import NodeUsageChanged, NodeUsageGone
from capcard_sched.model.intents import Evict
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import Harness, registry

CONF = """
actions: "enqueue, allocate, shuffle"
tiers:
- plugins: [{name: gang}, {name: predicates}]
- plugins:
  - {name: usage}
  - name: rescheduling
    arguments:
      interval: 1m
      strategies:
      - name: lowNodeUtilization
        params: {thresholds: {cpu: 40, memory: 40}, targetThresholds: {cpu: 50, memory: 50}}
metrics: {type: prometheus, address: "http://user:secret@nowhere:9090"}
"""
NODES = ("n0", "n1", "n2")
LOADS = st.dictionaries(st.sampled_from(NODES), st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=3)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["pods", "pods", "load", "load", "wait", "forget", "gone"]), LOADS, st.integers(0, 400)),
    min_size=5,
    max_size=25,
)


class Day:
    """A recorded run of a core."""

    def __init__(self, path: Path) -> None:
        self.h = Harness(CONF, run=True)
        self.recording = Recording(
            path,
            self.h.core.snapshot().conf,
            scheduler_names=sorted(self.h.state.scheduler_names),
            default_queue=self.h.state.default_queue,
        )
        self.h.queue("q")
        self.h.group("g")
        for name in NODES:
            self.h.node(name, cpu="6", memory="60Gi")
        self.pods = self.binds = self.evictions = 0

    def step(self, seconds: float) -> None:
        deltas = list(self.h._deltas)
        result = self.h.step(self.h.now + seconds)
        self.recording.stepped(result, deltas, self.h.now)
        evicted = [intent.name for intent in result.intents if isinstance(intent, Evict)]
        for name in evicted:
            self.h.delete_pod(name)
        self.evictions += len(evicted)

    def happen(self, what: str, loads: dict[str, tuple[int, int]], number: int) -> None:
        h = self.h
        if what == "pods":
            for _ in range(1 + number % 3):
                h.pod(f"p{self.pods}", requests={"cpu": "1", "memory": "5Gi"})
                self.pods += 1
        elif what == "load":
            at = h.now - number
            h.apply(NodeUsageChanged({name: NodeUsage(cpu, memory, at) for name, (cpu, memory) in loads.items()}))
        elif what == "forget":
            for name in loads:
                h.apply(NodeUsageGone(name))
        elif what == "gone" and self.pods:
            h.delete_pod(f"p{number % self.pods}")
        self.step(1.0 + (number if what == "wait" else number % 30))


@given(EVENTS)
@settings(max_examples=settings().max_examples // 2)
def test_decisions_by_usage_are_replayed(
    events: list[tuple[str, dict[str, tuple[int, int]], int]],
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        day = Day(path)
        day.step(1)
        for event in events:
            day.happen(*event)
        day.recording.close(10)
        found = replay(RecordingReader(path), registry())
        assert found.differences == []
        assert found.same


def test_a_day_on_which_pods_are_moved_is_decided_again(tmp_path: Path) -> None:
    day = Day(tmp_path / "day.jsonl")
    day.happen("load", {"n0": (10, 10), "n1": (85, 85), "n2": (85, 85)}, 0)
    for _ in range(2):
        day.happen("pods", {}, 2)
    day.happen("wait", {}, 100)
    day.happen("load", {"n0": (79, 79), "n1": (5, 5), "n2": (5, 5)}, 0)
    day.happen("wait", {}, 100)
    day.recording.close(10)
    assert len(day.h.binds) == 6
    assert day.evictions > 0
    found = replay(RecordingReader(tmp_path / "day.jsonl"), registry())
    assert (found.same, found.differences) == (True, [])
    assert found.decisions > 0
    text = (tmp_path / "day.jsonl").read_text()
    assert "http://nowhere:9090" in text
    assert "secret" not in text, "a recording is handed around"
