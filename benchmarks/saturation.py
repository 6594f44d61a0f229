"""GPUs allocated on a saturated cluster: the pods of a trace arrive until they request 130 % of its GPUs, none ends.

| Scene | Requests | Arrivals |
|---|---|---|
| F1 | parts of GPUs and whole ones, as in the trace | single pods |
| F2 | every request rounded up to whole GPUs | single pods |
| F3 | as F1 | gangs of 8 equal pods |
| F4 | as F2 | gangs of 8 equal pods |
| F5 | as F1, and no two pods request the same cpu, memory and part of a GPU | single pods |

The method is that of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023): the pods of the trace in random order,
more of them drawn at random until the demand is reached. Prints the percentage of GPUs allocated when 100, 110, 120 and
130 % have arrived, the free GPUs that no kind of the mix can use, and pods per CPU second.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import yaml
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks.measure import core_with
from benchmarks.workloads import START, make_queue, timestamp
from capcard_sched.framework.explain.stranded import StrandedReader
from capcard_sched.model.annotations import POD_QUEUE_NAME
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import Bind
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject
from capcard_sched_trace.openb import make_scenario
from capcard_sched_trace.openb_rows import read_nodes, read_pods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.model.deltas import Delta
    from capcard_sched_trace.openb import Sharing
    from capcard_sched_trace.openb_rows import TracePod

app = App(name="saturation", help="Measure GPUs allocated on a saturated cluster.")

#: Scene to sharing and members of a gang.
SCENES: Final[dict[str, tuple[Sharing, int]]] = {
    "F1": ("vgpu", 1),
    "F2": ("whole", 1),
    "F3": ("vgpu", 8),
    "F4": ("whole", 8),
    "F5": ("vgpu", 1),
}
#: Scenes in which every pod has a size of its own.
_OWN_SIZES: Final = ("F5",)
MARKS: Final = (100, 110, 120, 130)
#: Pods that arrive per second, and so per session.
BATCH: Final = 50


#: Pod lists: as recorded, and with models that a third of the pods name.
TRACES: Final = ("default", "gpuspec33")
#: MiB of memory per thousandth of a GPU, in scenes with sizes in MiB: parts of the smallest card.
_MIB_PER_SHARE: Final = 14
_MEMORY: Final = "volcano.sh/vgpu-memory"
_PERCENTAGE: Final = f"{_MEMORY}-percentage"
_CONFIG: Final = Path(__file__).parent.parent / "config"
#: The shipped scheduler-confs of shared and of whole GPUs.
_VGPU, _WHOLE = "examples/vgpu/conf/scheduler.yaml", "scheduler.yaml"
#: Plugins whose scores a row replaces, and the weight of deviceshare's score where it decides alone.
_SCORES, _ALONE = ("fragmentation", "nodeorder", "binpack"), 10
_EVEN: Final = {"leastrequested.weight": 0, "balancedresource.weight": 0}
#: Name to plugins with scores and their arguments, beside deviceshare where GPUs are shared; None: those of the file.
CONFS: Final[dict[str, dict[str, dict[str, int]] | None]] = {
    "shipped": None,
    "fragmentation": {"fragmentation": {}, "nodeorder": _EVEN},
    "fragmentation, binpack": {"fragmentation": {}, "nodeorder": _EVEN, "binpack": {}},
    "fragmentation, nodeorder": {"fragmentation": {}, "nodeorder": {}},
    "fragmentation, nodeorder, binpack": {"fragmentation": {}, "nodeorder": {}, "binpack": {}},
    "nodeorder, binpack": {"nodeorder": {}, "binpack": {}},
    "binpack": {"binpack": {}},
    "none": {},
}


class SaturationConf(NamedTuple):
    """A row of CONFS, or a scheduler-conf with its text."""

    name: str
    text: str = ""


class Saturation(msgspec.Struct, frozen=True):
    """Figures of one run."""

    scene: str
    trace: str
    conf: str
    seed: int
    #: Percent of all GPUs, by mark.
    allocated: tuple[float, ...]
    #: Free GPUs at the end that no kind of the mix can use.
    stranded: float
    pods: int
    cpu_seconds: float


def conf_of(scene: str, name: str) -> str:
    """The scheduler-conf of a scene with the scores of a row of CONFS."""
    is_shared, scores = SCENES[scene][0] == "vgpu", CONFS[name]
    text = (_CONFIG / _VGPU if is_shared else _CONFIG / _WHOLE).read_text(encoding="utf-8")
    if scores is None:
        return text
    conf = yaml.safe_load(text)
    for tier in conf["tiers"]:
        tier["plugins"] = [one for one in tier["plugins"] if one["name"] not in _SCORES]
        for one in tier["plugins"]:
            if one["name"] == "deviceshare" and "fragmentation" not in scores:
                one["arguments"]["deviceshare.ScheduleWeight"] = _ALONE
    conf["tiers"][-1]["plugins"] += [{"name": plugin, "arguments": dict(given)} for plugin, given in scores.items()]
    return str(yaml.safe_dump(conf, sort_keys=False))


def measure_saturation(scene: str, nodes: Path, pods: Path, conf: SaturationConf, seed: int) -> Saturation:
    """One run. Raises TraceError for an unusable trace, RuntimeError for an unusable scheduler-conf."""
    sharing, gang = SCENES[scene]
    machines = read_nodes(nodes)
    total = 1000 * sum(machine.cards for machine in machines)
    arrivals = _arrivals(read_pods(pods), total * MARKS[-1] // 100, gang, seed, whole=sharing == "whole")
    scenario = make_scenario(machines, [pod for pod, _ in arrivals], sharing=sharing)
    core = core_with(conf.text or conf_of(scene, conf.name), conf.name)
    for manifest in scenario.manifests:
        if manifest["kind"] == "Node":
            core.apply(ObjectChanged(msgspec.convert(manifest, NodeObject)))
    core.step([], START)
    core.apply(ObjectChanged(make_queue("q", _all_cards(core))))
    core.step([], START)
    by_name = {each["create"]["metadata"]["name"]: each["create"] for each in scenario.operations}
    if scene in _OWN_SIZES:
        for number, (pod, _) in enumerate(arrivals):
            _give_own_size(by_name[pod.name], pod, number)
    run = _Run(core, {pod.name: demand for pod, demand in arrivals})
    marks, found, arrived = list(MARKS), [], 0
    began = time.process_time()
    for first in range(0, len(arrivals), BATCH):
        batch = arrivals[first : first + BATCH]
        run.arrive([by_name[pod.name] for pod, _ in batch], gang)
        arrived += sum(demand for _, demand in batch)
        while marks and arrived * 100 >= marks[0] * total:
            found.append(100 * run.allocated / total)
            marks.pop(0)
    run.arrive([], gang)
    seconds = time.process_time() - began
    stranded = sum(each.stranded for each in (StrandedReader(core.snapshot()).by_card() or {}).values())
    trace = pods.stem.rpartition("_")[2]
    return Saturation(scene, trace, conf.name, seed, tuple(found), stranded, len(arrivals), seconds)


def _all_cards(core: Core) -> dict[str, int]:
    """The whole cards of the cluster: a quota that never refuses."""
    found: Counter[str] = Counter()
    state = core.snapshot().state
    for node in state.nodes.by_name.values():
        found.update({card: amount // 1000 for card, (amount, _) in state.cards_of(node).items()})
    return dict(found)


def _give_own_size(manifest: dict[str, Any], pod: TracePod, number: int) -> None:
    """Request a little more cpu and memory than in the trace, and a part of a GPU in MiB, all of them by `number`."""
    resources = manifest["spec"]["containers"][0]["resources"]
    resources["requests"] = {"cpu": f"{pod.cpu_milli + number % 97}m", "memory": f"{pod.memory_mib + number // 97}Mi"}
    if 0 < pod.share_milli < 1000:
        del resources["limits"][_PERCENTAGE]
        resources["limits"][_MEMORY] = str(pod.share_milli * _MIB_PER_SHARE + number % 1009)


def _arrivals(pods: Sequence[TracePod], most: int, gang: int, seed: int, *, whole: bool) -> list[tuple[TracePod, int]]:
    """Pods in order of arrival, with unique names, each with thousandths of GPUs requested, until `most` are."""
    random = Random(seed)
    order = list(pods)
    random.shuffle(order)
    found: list[tuple[TracePod, int]] = []
    requested = 0
    while requested < most:
        pod = order.pop() if order else random.choice(pods)
        demand = pod.cards * (1000 if whole else pod.share_milli)
        for _ in range(gang if pod.cards else 1):
            number = len(found)
            found.append((pod._replace(name=f"p-{number:06d}", created=number, scheduled=None, deleted=None), demand))
            requested += demand
    return found


class _Run:
    """A core whose bindings take effect at once."""

    def __init__(self, core: Core, demands: dict[str, int]) -> None:
        self._core = core
        self._demands = demands
        self._pods: dict[str, dict[str, Any]] = {}
        self._bound: list[Delta] = []
        self._now = START
        self._groups = 0
        #: Thousandths of GPUs that bound pods hold.
        self.allocated = 0

    def arrive(self, manifests: Sequence[dict[str, Any]], gang: int) -> None:
        """Create pods, with a PodGroup for each gang, and run one session."""
        deltas, self._bound = self._bound, []
        left, name = 0, ""
        for manifest in manifests:
            resources = manifest["spec"]["containers"][0]["resources"]
            is_gang = gang > 1 and bool(resources.get("limits"))
            if not left:
                left, name = gang if is_gang else 1, f"g-{self._groups:06d}"
                self._groups += 1
                deltas.append(self._group(name, left))
            left -= 1
            deltas.append(self._pod(manifest, name))
        self._step(deltas)

    def _step(self, deltas: list[Delta]) -> None:
        self._now += 1
        for intent in self._core.step(deltas, self._now).intents:
            if isinstance(intent, Bind):
                pod = self._pods[intent.name]
                pod["spec"]["nodeName"] = intent.node
                pod["metadata"]["annotations"] |= intent.pod_annotations()
                pod["status"] = {"phase": "Running"}
                self._bound.append(ObjectChanged(msgspec.convert(pod, PodObject)))
                self.allocated += self._demands[intent.name]

    def _group(self, name: str, members: int) -> Delta:
        obj = {
            "metadata": {"namespace": "default", "name": name, "uid": name, "creationTimestamp": timestamp(self._now)},
            "spec": {"minMember": members, "queue": "q"},
            "status": {"phase": "Inqueue"},
        }
        return ObjectChanged(msgspec.convert(obj, PodGroupObject))

    def _pod(self, manifest: dict[str, Any], group: str) -> Delta:
        metadata = manifest["metadata"]
        notes = {key: text for key, text in metadata["annotations"].items() if key != POD_QUEUE_NAME}
        pod = {
            **manifest,
            "metadata": {
                **metadata,
                "namespace": "default",
                "uid": metadata["name"],
                "annotations": {**notes, "scheduling.k8s.io/group-name": group},
                "creationTimestamp": timestamp(self._now),
            },
            "status": {"phase": "Pending"},
        }
        self._pods[metadata["name"]] = pod
        return ObjectChanged(msgspec.convert(pod, PodObject))


def traces_in(folder: Path) -> tuple[Path, list[Path]]:
    """The node list and the pod lists of a folder with the openb trace. Raises FileNotFoundError."""
    nodes = folder / "openb_node_list_gpu_node.csv"
    pods = [folder / f"openb_pod_list_{name}.csv" for name in TRACES]
    missing = [path.name for path in (nodes, *pods) if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)} of the openb trace")
    return nodes, pods


def measure_all(
    folder: Path, scenes: Sequence[str], confs: Sequence[SaturationConf], seeds: int, jobs: int = 1
) -> list[Saturation]:
    """Every scene with every scheduler-conf and trace. Raises FileNotFoundError, and as `measure_saturation`."""
    nodes, pods = traces_in(folder)
    tasks = [
        (scene, nodes, path, conf, seed)
        for scene in scenes
        for path in pods
        for conf in confs
        for seed in range(1, seeds + 1)
    ]
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(measure_saturation, *zip(*tasks, strict=True)))


def saturation_table(runs: Sequence[Saturation]) -> Table:
    """Means over the seeds."""
    title = "GPUs allocated on a saturated cluster: percent when so much has arrived"
    table = Table("scene", "trace", "scheduler-conf", "seeds", *(f"{mark} %" for mark in MARKS), title=title)
    for header in ("stranded", "pods/CPU s"):
        table.add_column(header, justify="right")
    groups: dict[tuple[str, str, str], list[Saturation]] = {}
    for run in runs:
        groups.setdefault((run.scene, run.trace, run.conf), []).append(run)
    for key, found in groups.items():
        marks = [f"{statistics.mean(run.allocated[mark] for run in found):.1f}" for mark in range(len(MARKS))]
        stranded = statistics.mean(run.stranded for run in found)
        rate = statistics.mean(run.pods / run.cpu_seconds for run in found)
        table.add_row(*key, str(len(found)), *marks, f"{stranded:.0f}", f"{rate:,.0f}")
    return table


@app.default
def saturation(
    folder: Annotated[Path, Parameter(help="The folder with the CSV files of the openb trace.")],
    *,
    confs: Annotated[str, Parameter(help=f"Separated by semicolons: {'; '.join(CONFS)}.")] = ";".join(CONFS),
    conf: Annotated[list[Path] | None, Parameter(help="scheduler-conf files to compare in their place.")] = None,
    scenes: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(SCENES)}.")] = ",".join(SCENES),
    seeds: Annotated[int, Parameter(help="Runs per figure.")] = 10,
    jobs: Annotated[int, Parameter(help="Processes.")] = 1,
    json: Annotated[Path | None, Parameter(help="Write the figures of all runs to this file.")] = None,
) -> int:
    """Measure every scene with every scheduler-conf and both traces, and print means over the seeds."""
    names, chosen = scenes.split(","), confs.split(";")
    unknown = [name for name in names if name not in SCENES] + [name for name in chosen if name not in CONFS]
    if unknown or seeds < 1:
        console, wrong = Console(), f"unknown: {', '.join(unknown)}" if unknown else "--seeds must be at least 1"
        console.print(f"{wrong}; scenes are {', '.join(SCENES)}, scheduler-confs {'; '.join(CONFS)}")
        return 2
    files = [SaturationConf(path.name, path.read_text(encoding="utf-8")) for path in conf or ()]
    runs = measure_all(folder, names, files or [SaturationConf(name) for name in chosen], seeds, jobs)
    if json is not None:
        json.write_bytes(msgspec.json.encode(runs))
    Console().print(saturation_table(runs))
    return 0


if __name__ == "__main__":
    app()
