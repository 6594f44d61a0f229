"""A recorded day of a small cluster: random things happen to a core, and a recording of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec

from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import StepResult
from capcard_sched.model.deltas import (
    BindFailed,
    BindRetry,
    Delta,
    NodeUsageChanged,
    NodeUsageGone,
    ObjectChanged,
    Takeover,
)
from capcard_sched.model.intents import Bind, UpdatePodGroup
from capcard_sched.model.objects import PodObject
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import Harness, registry


def conf(*plugins: str, actions: str = "enqueue, allocate, backfill") -> str:
    listed = ", ".join(f"{{name: {name}}}" for name in plugins)
    return f'actions: "{actions}"\ntiers: [{{plugins: [{listed}]}}]'


CONFS = {
    "cards": conf("priority", "gang", "drf", "predicates", "capacity-card", "nodeorder", "binpack"),
    "shares": conf("priority", "gang", "drf", "proportion", "overcommit", "nodeorder"),
    "plain": conf("gang", "binpack"),
    "bare": conf("gang", actions="allocate, backfill"),
    "load": """
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
""",
}


class Event(NamedTuple):
    what: str
    number: int


EVENTS = st.lists(
    st.builds(
        Event,
        what=st.sampled_from(
            ["step", "step", "step", "gang", "gang", "pod", "node", "drop node", "echo", "echo", "refuse",
             "refuse later", "retry", "finish", "delete", "takeover", "stand by", "reload", "quota", "label", "load",
             "load gone", "wait"]
        ),
        number=st.integers(0, 40),
    ),
    min_size=5,
    max_size=40,
)  # fmt: skip


class Day:
    """Actions of the scheduler thread and of the cluster, recorded as the daemon records them."""

    def __init__(self, path: Path, name: str = "cards", *, max_bytes: int = 1 << 30, **options: Any) -> None:
        self.h = Harness(CONFS[name], **options)
        self.core = self.h.core
        self.recording = Recording(
            path,
            self.core.snapshot().conf,
            scheduler_names=self.core.snapshot().state.scheduler_names,
            default_queue=self.core.snapshot().state.default_queue,
            max_bytes=max_bytes,
            clock=lambda: self.h.now,
        )
        #: Bindings that the API server has not answered, and pods that are left alone.
        self.under_way: list[Bind] = []
        self.left_alone: list[Bind] = []
        self.bound: list[Bind] = []
        self.results: list[StepResult] = []
        self._made = 0
        self.recording.leading(leading=True)
        self.h.queue("q", cards={"A": 4, "B": 2}, capability={"cpu": "100", "memory": "100Gi"})
        self.h.queue("r", cards={"A": 1}, capability={"cpu": "3", "memory": "100Gi"})
        self.node("A")
        self.node("B")
        self.take_in(Takeover())

    # --- the scheduler thread -----------------------------------------------------------------------------------------

    def take_in(self, *more: Delta) -> None:
        """Facts without a session."""
        facts = [*self.h._deltas, *more]
        self.h._deltas = []
        for fact in facts:
            self.core.apply(fact)
        if facts:
            self.recording.applied(facts)

    def step(self) -> StepResult:
        self.h.now += 1
        facts, self.h._deltas = self.h._deltas, []
        result = self.core.step(facts, self.h.now)
        self.recording.stepped(result, facts, self.h.now)
        self.under_way += [intent for intent in result.intents if isinstance(intent, Bind)]
        for intent in result.intents:
            if isinstance(intent, UpdatePodGroup):
                self.h.phases[intent.name] = intent.phase
        self.results.append(result)
        return result

    def reload(self, name: str) -> None:
        result = parse_conf(CONFS[name], registry=registry())
        assert result.conf is not None
        self.core.reconfigure(result.conf)
        self.recording.conf(result.conf)

    def close(self) -> None:
        self.recording.close(10)
        assert not self.recording._thread.is_alive()

    # --- the cluster --------------------------------------------------------------------------------------------------

    def node(self, card: str) -> None:
        self._made += 1
        self.h.gpu_node(f"n{self._made}", card, 2, cpu="4", memory="64Gi")

    def gang(self, number: int) -> None:
        self._made += 1
        name = f"g{self._made}"
        pods = 1 + number % 4
        self.h.group(name, queue="qr"[number % 2], min_member=number % (pods + 1), phase="Pending")
        for index in range(pods):
            card = ("", "A", "B", "A|B")[(number + index) % 4]
            self.h.pod(f"{name}-{index}", group=name, card=card or None, cards=1 if card else 0)

    def echo(self, bind: Bind) -> None:
        self.h._bound(bind)
        self.bound.append(bind)

    def happen(self, event: Event) -> None:
        what, number = event
        match what:
            case "step":
                self.step()
            case "gang":
                self.gang(number)
            case "pod":
                self._made += 1
                self.h.pod(f"p{self._made}", group=None, annotations={"scheduling.volcano.sh/queue-name": "q"})
            case "node":
                self.node("AB"[number % 2])
            case "drop node":
                self.h.delete_node(f"n{1 + number % max(1, self._made)}")
            case "takeover":
                self.recording.leading(leading=False)
                self.recording.leading(leading=True)
                self.take_in(Takeover())
                self.under_way.clear()
                self.left_alone.clear()
            case "stand by":
                self.take_in()
            case "reload":
                self.reload(sorted(CONFS)[number % len(CONFS)])
            case "quota":
                self.h.queue("q", cards={"A": number % 5, "B": 2}, capability={"cpu": "100", "memory": "100Gi"})
            case "retry":
                for bind in self.left_alone:
                    self.h.apply(BindRetry(bind.namespace, bind.name, bind.uid))
                self.left_alone.clear()
            case "load":
                self.load(number, 80 - 2 * number)
            case "load gone":
                self.h.apply(NodeUsageGone(f"n{1 + number % 2}"))
            case "wait":
                self.h.now += 10 * number
            case "label":
                for name in sorted(self.h._pods)[number % 5 :: 7]:
                    self.touch(name, number)
            case _:
                self._to_one(what, number)

    def load(self, *percents: float) -> None:
        """Measured load of n1, n2 and so on, in percent of CPU and memory."""
        measured = {f"n{1 + index}": NodeUsage(each, each, self.h.now) for index, each in enumerate(percents)}
        self.h.apply(NodeUsageChanged(measured))

    def touch(self, key: str, number: int) -> None:
        """A pod is updated and stays what it is, as far as scheduling is concerned."""
        obj = self.h._pods[key]
        obj["metadata"]["labels"] = {"touched": str(number)}
        self.h.apply(ObjectChanged(msgspec.convert(obj, PodObject)))

    def _to_one(self, what: str, number: int) -> None:
        pool = self.bound if what in ("finish", "delete") else self.under_way
        if not pool:
            return
        bind: Any = pool.pop(number % len(pool))
        match what:
            case "echo":
                self.echo(bind)
            case "refuse":
                self.h.apply(BindFailed(bind.namespace, bind.name, bind.uid, "no"))
            case "refuse later":
                self.h.apply(BindFailed(bind.namespace, bind.name, bind.uid, "no", 5.0))
                self.left_alone.append(bind)
            case "finish" if f"{bind.namespace}/{bind.name}" in self.h._pods:
                self.h.set_phase(bind.name, "Succeeded")
            case "delete":
                self.h.delete_pod(bind.name)


def record(path: Path, events: list[Event], name: str = "cards", **options: Any) -> Day:
    """A whole day, closed."""
    day = Day(path, name, **options)
    for event in events:
        day.happen(event)
    for _ in range(3):
        day.step()
    day.close()
    return day
