"""Measurements of the core on synthetic workloads: plain functions from a workload to figures."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.plain_scheduler import PlainScheduler
from benchmarks.workloads import START, make
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import default_text, parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.gc import settle_memory
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.intents import Bind
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PodStatus, QueueObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.workloads import Workload

#: When the session under measurement runs: after every creation time of every workload.
NOW = float(START + 100_000)
#: How often the single-change session is repeated inside one run.
_CHANGES = 9


class Run(msgspec.Struct, frozen=True):
    """Figures of one workload at one size; times are medians over the repeats, in seconds."""

    workload: str
    size: str
    nodes: int
    pods: int
    placed: int
    #: Queues of the workload with an insufficient quota by design.
    short_queues: int
    #: From JSON bytes to the state: decoding and applying every object, per second.
    deltas_per_second: float
    #: The one session that places everything: wall-clock, and what this process computed of it.
    session_seconds: float
    session_cpu_seconds: float
    #: Fastest and slowest repeat.
    session_spread: tuple[float, float]
    #: Taking in the news that all of it runs now, and the session that follows.
    feedback_seconds: float
    #: A step without any news.
    steady_seconds: float
    #: One new pod of a known template: applied, placed and committed.
    change_seconds: float
    repeats: int

    @property
    def tasks_per_second(self) -> float:
        """Tasks placed per second of the session."""
        return self.placed / self.session_seconds

    @property
    def tasks_per_cpu_second(self) -> float:
        """The same on a machine with nothing else to do."""
        return self.placed / self.session_cpu_seconds


class Growth(msgspec.Struct, frozen=True):
    """Growth of the session along one axis: the slope of a line through (log size, log CPU seconds)."""

    axis: str
    fixed: str
    points: list[tuple[int, float]]
    exponent: float


class Comparison(msgspec.Struct, frozen=True):
    """Engine and plain loop on the same objects, both per second of CPU time."""

    workload: str
    nodes: int
    pods: int
    plain_placed: int
    plain_tasks_per_second: float
    engine_placed: int
    engine_tasks_per_second: float
    #: How many pods both put on the same node.
    agreed: int

    @property
    def ratio(self) -> float:
        """Ratio of the plain loop's time to the engine's."""
        return self.engine_tasks_per_second / self.plain_tasks_per_second


def build_core() -> Core:
    """A core with the built-in scheduler-conf. Raises RuntimeError when it does not parse."""
    return core_with(default_text(), "built-in scheduler-conf")


def core_with(text: str, name: str, timer: Callable[[], float] | None = None) -> Core:
    """A core with a scheduler-conf, `name` for messages; `timer` as for `Core`. Raises RuntimeError likewise."""
    registry = Registry.load()
    conf, problems = parse_conf(text, registry=registry)
    if conf is None:
        raise RuntimeError(f"{name}: {problems}")
    return Core(conf, registry, timer=timer)


# --- one workload at one size -----------------------------------------------------------------------------------------


def measure(name: str, size: str, nodes: int, pods: int, repeats: int) -> Run:
    """Place everything in one session, `repeats` times from scratch, and measure the sessions after it."""
    workload = make(name, nodes, pods)
    frames = encode(workload)
    samples = [_sample(workload, frames) for _ in range(repeats)]
    sessions = [sample["session"] for sample in samples]
    median = {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
    return Run(
        workload=name,
        size=size,
        nodes=nodes,
        pods=pods,
        placed=int(median["placed"]),
        short_queues=len(workload.short_queues),
        deltas_per_second=1 / median["decode_and_apply"],
        session_seconds=median["session"],
        session_cpu_seconds=median["cpu"],
        session_spread=(min(sessions), max(sessions)),
        feedback_seconds=median["feedback"],
        steady_seconds=median["steady"],
        change_seconds=median["change"],
        repeats=repeats,
    )


class Frame(NamedTuple):
    """One object as the bytes an API server would send."""

    kind: type
    data: bytes

    def decode(self) -> Delta:
        return DECODERS[self.kind](self.data)


def encode(workload: Workload) -> list[Frame]:
    return [Frame(type(delta.object), msgspec.json.encode(delta.object)) for delta in workload.deltas()]


def _decode(decoder: msgspec.json.Decoder[Any], frame: bytes) -> Delta:
    return ObjectChanged(decoder.decode(frame))


DECODERS: dict[type, Callable[[bytes], Delta]] = {
    kind: partial(_decode, msgspec.json.Decoder(kind))
    for kind in (
        NodeObject, QueueObject, DeviceClassObject, ResourceSliceObject, ResourceClaimObject, PodGroupObject, PodObject,
    )
}  # fmt: skip


def started_core(frames: Sequence[Frame], conf: str | None = None) -> tuple[Core, Sequence[Frame]]:
    """A core that runs already, and the frames of the work that is still to arrive. `conf`: else the built-in one.

    Its first session, over nodes and queues alone, is behind it: a scheduler has that once, when it starts.
    """
    core = build_core() if conf is None else core_with(conf, "scheduler-conf of the scene")
    standing = [frame for frame in frames if frame.kind in (NodeObject, QueueObject)]
    take_in(core, standing)
    core.step((), NOW - 1)
    return core, [frame for frame in frames if frame.kind not in (NodeObject, QueueObject)]


def take_in(core: Core, frames: Sequence[Frame]) -> None:
    """Decode and apply one by one, as the watch does: no fact outlives its application."""
    for frame in frames:
        core.apply(frame.decode())


class Session(NamedTuple):
    """One session: wall-clock and CPU seconds, and what it bound."""

    seconds: float
    cpu_seconds: float
    binds: list[Bind]


def run_session(core: Core) -> Session:
    """One session over what was taken in. Raises RuntimeError when a hook failed in it."""
    start, start_cpu = perf_counter(), process_time()
    result = core.step((), NOW)
    seconds, cpu_seconds = perf_counter() - start, process_time() - start_cpu
    if result.report.errors:
        raise RuntimeError(f"a hook failed: {result.report.errors[0]}")
    return Session(seconds, cpu_seconds, [intent for intent in result.intents if isinstance(intent, Bind)])


class PlacedScene(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one scene at one size: the session that places everything; medians over the repeats, in seconds."""

    scene: str
    size: str
    nodes: int
    pods: int
    placed: int
    session_seconds: float
    session_cpu_seconds: float

    @property
    def tasks_per_cpu_second(self) -> float:
        """Pods placed per second that this process computed."""
        return self.placed / self.session_cpu_seconds


class SceneRun(PlacedScene, frozen=True, kw_only=True):
    """The same, with one more pod and with the plain loop."""

    #: One more pod, once everything runs.
    change_cpu_seconds: float
    plain_seconds_per_pod: float
    #: Of the pods of the plain loop, those that it places as the engine does.
    agreed: int

    @property
    def ratio(self) -> float:
        """Ratio of the plain loop's time per pod to the engine's."""
        return self.plain_seconds_per_pod * self.tasks_per_cpu_second


def session_medians(sessions: Sequence[Session]) -> dict[str, Any]:
    """The fields of a `PlacedScene` that follow from the sessions of the repeats."""
    return {
        "placed": len(sessions[0].binds),
        "session_seconds": statistics.median(session.seconds for session in sessions),
        "session_cpu_seconds": statistics.median(session.cpu_seconds for session in sessions),
    }


def one_more_pod(core: Core, scene: str, news: Iterable[Sequence[Delta]], at: float) -> float:
    """CPU seconds of the session for one more pod with a group of its own: the median over the pods of `news`.

    Args:
        core: Runs a session at `at` first.
        scene: Name in errors.
        news: Objects of each pod.
        at: Unix seconds.

    Raises:
        RuntimeError: A pod was not placed.
    """
    core.step([], at)
    seconds = []
    for number, deltas in enumerate(news):
        began = process_time()
        result = core.step(deltas, at + 1 + number)
        seconds.append(process_time() - began)
        if not any(isinstance(intent, Bind) for intent in result.intents):
            raise RuntimeError(f"{scene}: the additional pod {number} was not placed")
    return statistics.median(seconds)


def _sample(workload: Workload, frames: Sequence[Frame]) -> dict[str, float]:
    found: dict[str, float] = {}
    core, work = started_core(frames)
    start = perf_counter()
    take_in(core, work)
    found["decode_and_apply"] = (perf_counter() - start) / len(work)
    settle_memory()
    found["session"], found["cpu"], binds = run_session(core)
    found["placed"] = len(binds)
    nodes = {bind.uid: bind.node for bind in binds}
    news = [running(pod, nodes[pod.metadata.uid]) for pod in workload.pods if pod.metadata.uid in nodes]
    start = perf_counter()
    core.step(news, NOW + 1)
    found["feedback"] = perf_counter() - start
    core.step((), NOW + 2)
    start = perf_counter()
    core.step((), NOW + 3)
    found["steady"] = perf_counter() - start
    found["change"] = statistics.median(_one_change(core, workload, number) for number in range(_CHANGES))
    return found


def running(pod: PodObject, node: str) -> ObjectChanged:
    """The pod once it runs on a node."""
    replace = msgspec.structs.replace
    return ObjectChanged(replace(pod, spec=replace(pod.spec, node_name=node), status=PodStatus(phase="Running")))


def _one_change(core: Core, workload: Workload, number: int) -> float:
    """Seconds of a step with one new single-pod group of a template without cards."""
    pattern = next(pod for pod in workload.pods if "volcano.sh/card.name" not in (pod.metadata.annotations or {}))
    name = f"late-{number}"
    group, pod = _late(workload.groups[0], pattern, name)
    news: list[Delta] = [ObjectChanged(group), ObjectChanged(pod)]
    start = perf_counter()
    core.step(news, NOW + 10 + number)
    return perf_counter() - start


def _late(group: PodGroupObject, pod: PodObject, name: str) -> tuple[PodGroupObject, PodObject]:
    replace = msgspec.structs.replace
    annotations = {**(pod.metadata.annotations or {}), "scheduling.k8s.io/group-name": name}
    new_pod = replace(pod, metadata=replace(pod.metadata, name=f"{name}-0", uid=f"{name}-0", annotations=annotations))
    new_group = replace(
        group,
        metadata=replace(group.metadata, name=name, uid=name),
        spec=replace(group.spec, min_member=1, min_resources=None),
    )
    return new_group, new_pod


# --- growth, memory, the plain loop -----------------------------------------------------------------------------------


def session_cpu_seconds(name: str, nodes: int, pods: int, repeats: int) -> float:
    """Median CPU time of the one session that places everything: other processes do not bend the curve."""
    frames = encode(make(name, nodes, pods))
    times = []
    for _ in range(repeats):
        core, work = started_core(frames)
        take_in(core, work)
        settle_memory()
        times.append(run_session(core).cpu_seconds)
    return statistics.median(times)


def growth_in_pods(name: str, nodes: int, pods: Sequence[int], repeats: int) -> Growth:
    """Session time over pods at a fixed number of nodes."""
    points = [(count, session_cpu_seconds(name, nodes, count, repeats)) for count in pods]
    return Growth("pods", f"{nodes:,} nodes", points, exponent(points))


def growth_in_nodes(name: str, pods: int, nodes: Sequence[int], repeats: int) -> Growth:
    """Session time over nodes at a fixed number of pods."""
    points = [(count, session_cpu_seconds(name, count, pods, repeats)) for count in nodes]
    return Growth("nodes", f"{pods:,} pods", points, exponent(points))


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Least-squares slope of log seconds over log size: 1 is linear."""
    sizes = [math.log(size) for size, _ in points]
    times = [math.log(seconds) for _, seconds in points]
    return statistics.linear_regression(sizes, times).slope


class Resident(msgspec.Struct, frozen=True):
    """Growth of the resident set of a fresh process, bytes."""

    #: While it takes in the objects.
    bytes: float
    #: Once a session placed the pods and they run.
    running: float


def memory_per_10k_pods(name: str, nodes: int, pods: int) -> Resident:
    """Resident memory per 10,000 pods (their PodGroups included), measured in a process of its own.

    That process reads the objects one by one from a file, so that nothing else comes and goes in its memory: nodes
    and queues first, then it notes its resident set, then groups and pods, and notes it again. Growth of arrays, label
    sets and classes is inside; Python itself and the nodes are not.
    """
    found = resident_growth(encode(make(name, nodes, pods)))
    return Resident(found.bytes * 10_000 / pods, found.running * 10_000 / pods)


def resident_growth(frames: Sequence[Frame]) -> Resident:
    """The growth over the frames behind nodes, queues and slices."""
    with NamedTemporaryFile(suffix=".jsonl") as file:
        file.writelines(frame.kind.__name__.encode() + b" " + frame.data + b"\n" for frame in frames)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.memory", file.name]
        answer = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[1])  # noqa: S603
    return msgspec.json.decode(answer.stdout, type=Resident)


def compare(name: str, nodes: int, pods: int) -> Comparison:
    """The engine and the plain loop on the same workload, in CPU time; reading the objects counts for neither."""
    workload = make(name, nodes, pods)
    plain = PlainScheduler(*workload.documents())
    start = process_time()
    expected = plain.run()
    plain_seconds = process_time() - start
    core, work = started_core(encode(workload))
    take_in(core, work)
    settle_memory()
    _, engine_seconds, binds = run_session(core)
    decisions = {f"{bind.namespace}/{bind.name}": bind.node for bind in binds}
    return Comparison(
        workload=name,
        nodes=nodes,
        pods=pods,
        plain_placed=len(expected),
        plain_tasks_per_second=len(expected) / plain_seconds,
        engine_placed=len(decisions),
        engine_tasks_per_second=len(decisions) / engine_seconds,
        agreed=sum(1 for pod, node in decisions.items() if expected.get(pod) == node),
    )


# --- the machine ------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """The machine of the measurement."""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    model = platform.processor() or platform.machine()
    cores = "?"
    if cpuinfo.exists():
        lines = [line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines()]
        model = next((value.strip() for key, _, value in lines if key.strip() == "model name"), model)
        cores = str(sum(1 for key, _, _ in lines if key.strip() == "processor"))
    memory = "?"
    if meminfo.exists():
        kib = int(meminfo.read_text(encoding="utf-8").split()[1])
        memory = f"{kib / 2**20:.0f} GiB"
    return {
        "cpu": model,
        "cores": cores,
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f} before the first run",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }
