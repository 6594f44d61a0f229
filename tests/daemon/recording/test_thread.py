"""The scheduler thread, recorded and counted as the daemon does it: what it decided is decided again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from capcard_sched.daemon.diagnosis.recording import Recording, RecordingReader, Stepped
from capcard_sched.daemon.diagnosis.replay import replay
from capcard_sched.daemon.observability.metric_samples import CoreSample, sample_core
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.scheduler_thread import SchedulerThread
from capcard_sched.framework.conf.scheduler_conf import default_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import Bind, Intent
from capcard_sched.testing import Harness, registry


class Daemon:
    """Answers every binding at once, and listens to the thread."""

    def __init__(self, path: Path) -> None:
        self.h = Harness()
        core = self.h.core
        self.metrics = Metrics()
        self.recording = Recording(
            path,
            core.snapshot().conf,
            scheduler_names=core.snapshot().state.scheduler_names,
            default_queue=core.snapshot().state.default_queue,
        )
        self.thread = SchedulerThread(core, handover=self.handover, listener=self, period=0.2)
        self.bound: dict[str, str] = {}
        self.failures: list[str] = []

    def handover(self, intents: Sequence[Intent]) -> None:
        echoes = Harness.__new__(Harness)
        echoes._pods, echoes._run, echoes._deltas = self.h._pods, True, []
        for intent in intents:
            if isinstance(intent, Bind):
                self.bound[intent.name] = intent.node
                self.metrics.bound(intent, 0.001)
                echoes._bound(intent)
        if echoes._deltas:
            self.thread.deliver(echoes._deltas)

    def applied(self, deltas: Sequence[Delta]) -> None:
        self.recording.applied(deltas)

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        assert core is self.h.core
        self.recording.stepped(result, deltas, now)
        self.metrics.session(result.report, seconds, intake=intake, idle=result.idle)

    def failed(self, what: str, error: Exception) -> None:
        self.failures.append(f"{what}: {error}")
        self.recording.failed(what, error)

    def deliver(self) -> None:
        facts, self.h._deltas = self.h._deltas, []
        self.thread.deliver(facts)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.bound) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.bound) == count


def test_a_replay_repeats_the_decisions_of_the_thread(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl.gz"
    daemon = Daemon(path)
    daemon.metrics.leader(leading=True)
    daemon.thread.start()
    h = daemon.h
    h.queue("q", cards={"NVIDIA-H200": 24}, capability={"cpu": "2000", "memory": "20Ti"})
    for index in range(4):
        h.gpu_node(f"n{index}")
    daemon.deliver()  # while standing by
    daemon.thread.lead()
    for gang in range(8):  # of which three fit
        h.group(f"g{gang}", min_member=8, phase="Pending")
        for index in range(8):
            h.pod(f"g{gang}-{index}", group=f"g{gang}", card="NVIDIA-H200", cards=1)
        daemon.deliver()
        time.sleep(0.02)
    daemon.wait_for(24)
    answer: Future[CoreSample] = Future()
    daemon.thread.call(lambda core: sample_core(core.snapshot()), answer)
    daemon.metrics.plugin_samples(answer.result(30))
    again: Future[None] = Future()

    def reload(core: Core) -> None:
        conf = default_conf(registry())
        core.reconfigure(conf)
        daemon.recording.conf(conf)

    daemon.thread.call(reload, again)
    again.result(30)
    h.queue("q", cards={"NVIDIA-H200": 32}, capability={"cpu": "2000", "memory": "20Ti"})
    daemon.deliver()
    daemon.wait_for(32)
    time.sleep(0.3)
    daemon.thread.stop()
    assert daemon.thread.join(10)
    daemon.recording.close(10)
    assert daemon.failures == []
    text = daemon.metrics.exposition().decode()
    assert "volcano_pods_bound_total 32.0\n" in text
    assert "volcano_task_scheduling_latency_milliseconds_count 32.0\n" in text
    assert 'volcano_queue_card_capacity{card="NVIDIA-H200",queue_name="q"} 24.0\n' in text
    recorded = [item for item in RecordingReader(path) if isinstance(item, Stepped)]
    assert {
        intent.name: intent.node for item in recorded for intent in item.intents if isinstance(intent, Bind)
    } == daemon.bound
    found = replay(RecordingReader(path), registry())
    assert found.differences == []
    assert found.queues["q"].same == 32
