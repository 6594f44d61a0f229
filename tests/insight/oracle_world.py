"""A cluster in the simulator: its objects after some seconds, the answers of `explain`, and what a change does to it.

Nothing here reads the diagnosis; `World.answer` alone calls it. A change edits copies of the objects, which another
simulation continues with a new scheduler.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import Conf, default_conf, parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.model.kinds import kind_of
from capcard_sched.reports.terminal import EscapingConsole
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.run import SimulationOptions, simulate
from capcard_sched.simulation.scenario import Entry, Operation, Origin, Scenario, in_creation_order
from capcard_sched.simulation.store import Store
from tests.insight.oracle_clusters import CONFS, END, Cluster

Json = dict[str, Any]
#: Changes objects in place.
Edit = Callable[[list[Json]], None]

GROUP = "scheduling.k8s.io/group-name"
_NAMES = ("volcano",)
_ORIGIN = Origin("oracle", 1)
#: Sessions in which a job has to start after a change: admission, pods of the controller, placement, evictions.
SECONDS = 8


@cache
def registry() -> Registry:
    """The plugins of this repository."""
    return Registry.load(None)


@cache
def conf_of(text: str) -> Conf:
    """A scheduler-conf; "" for the built-in one."""
    if not text:
        return default_conf(registry())
    result = parse_conf(text, registry=registry())
    assert result.conf is not None, result.problems
    return result.conf


def ended(pod: Json) -> bool:
    """Whether a pod has finished."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def bound(pod: Json) -> bool:
    """Whether a pod holds a node and neither ended nor terminates."""
    return bool(pod["spec"].get("nodeName")) and not ended(pod) and "deletionTimestamp" not in pod["metadata"]


def notes(obj: Json) -> dict[str, str]:
    """Annotations."""
    found: dict[str, str] = obj["metadata"].get("annotations") or {}
    return found


class Waiting(NamedTuple):
    """A job with too few pods."""

    #: Of the PodGroup.
    group: str
    #: As `explain` takes it: `job/j1`.
    name: str
    queue: str
    minimum: int
    #: Bound pods now.
    running: int
    #: Bound pods with which it counts as started.
    goal: int
    scheduler: str = "volcano"


class World:
    """The state of a cluster. `objects` are not changed."""

    def __init__(self, conf: str, objects: list[Json], end: int, core: Core | None, store: Store | None) -> None:
        self.conf, self.objects, self.end = conf, objects, end
        self._core, self._store = core, store

    # --- reading ----------------------------------------------------------------------------------------------------

    def of(self, kind: str) -> list[Json]:
        """The objects of a kind."""
        return [obj for obj in self.objects if obj["kind"] == kind]

    def get(self, kind: str, name: str) -> Json | None:
        """An object by its name."""
        return next((obj for obj in self.of(kind) if obj["metadata"]["name"] == name), None)

    def members(self, group: str) -> list[Json]:
        """Pods of a PodGroup."""
        return [pod for pod in self.of("Pod") if notes(pod).get(GROUP) == group]

    def pods_of(self, job: Waiting) -> list[Json]:
        """Pods of a job, also those that its controller makes anew."""
        kind, _, name = job.name.partition("/")
        if kind == "job":
            labels = "volcano.sh/job-name"
            return [pod for pod in self.of("Pod") if (pod["metadata"].get("labels") or {}).get(labels) == name]
        if kind == "deployment":
            sets = {
                obj["metadata"]["name"]
                for obj in self.of("ReplicaSet")
                if any(owner["name"] == name for owner in obj["metadata"].get("ownerReferences") or ())
            }
            return [
                pod
                for pod in self.of("Pod")
                if any(owner["name"] in sets for owner in pod["metadata"].get("ownerReferences") or ())
            ]
        return [
            pod for pod in self.members(job.group) or self.of("Pod") if kind != "pod" or pod["metadata"]["name"] == name
        ]

    def running(self, job: Waiting) -> int:
        """Bound pods of a job."""
        return sum(map(bound, self.pods_of(job)))

    def waiting(self) -> list[Waiting]:
        """The jobs with pending pods, or below their minimum, by name."""
        found = []
        for group in self.of("PodGroup"):
            name, spec = group["metadata"]["name"], group["spec"]
            pods = self.members(name)
            pending = [pod for pod in pods if not pod["spec"].get("nodeName") and not ended(pod)]
            running = sum(map(bound, pods))
            minimum = max(spec.get("minMember") or 1, 1)
            if not pending and (pods or running >= minimum):
                continue
            vcjob: Json = next(iter(group["metadata"].get("ownerReferences") or ()), {})
            goal = minimum if running < minimum else running + 1
            queue = str(spec.get("queue") or "default")
            scheduler = pending[0]["spec"].get("schedulerName", "") if pending else "volcano"
            found.append(Waiting(name, self._name(vcjob, name), queue, minimum, running, goal, scheduler))
        return sorted(found)

    def _name(self, owner: Json, group: str) -> str:
        if not owner:
            return f"podgroup/{group}"
        if owner["kind"] == "ReplicaSet":
            owner = next(iter((self.get("ReplicaSet", owner["name"]) or {})["metadata"]["ownerReferences"]))
        return f"{owner['kind'].lower()}/{owner['name']}"

    @property
    def is_settled(self) -> bool:
        """Whether the session of the answers decided nothing: else their figures are those of the next moment."""
        assert self._core is not None
        jobs = self._core.snapshot().state.jobs
        for group in self.of("PodGroup"):
            job = jobs.get(f"default/{group['metadata']['name']}")
            if job is not None and str(job.phase) != ((group.get("status") or {}).get("phase") or "Pending"):
                return False
        placed = {uid for uid, task in self._core.snapshot().state.tasks.items() if task.node is not None}
        held = {pod["metadata"]["uid"] for pod in self.of("Pod") if pod["spec"].get("nodeName") and not ended(pod)}
        return placed == held

    def warnings_about(self, kind: str) -> list[Json]:
        """The Warning events about objects of a kind."""
        assert self._store is not None
        events = self._store.list("Event")
        return [one for one in events if one["type"] == "Warning" and one["involvedObject"]["kind"] == kind]

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, name: str, *, fix: bool = False) -> tuple[JobDiagnosis, str]:
        """The diagnosis and its text."""
        from capcard_sched.insight.diagnosis.explain import explain, find
        from capcard_sched.insight.sources.object_view import StoreObjects
        from capcard_sched.reports.explain import render

        assert self._core is not None
        assert self._store is not None
        objects = StoreObjects(self._store)
        subject = find(self._core, objects, "default", name)
        assert subject is not None, name
        found = explain(self._core, objects, subject, EPOCH + self.end / SECOND, fix=fix)
        found = msgspec.json.decode(msgspec.json.encode(found), type=JobDiagnosis)
        console = EscapingConsole(file=io.StringIO(), width=1000)
        console.print(render(found))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return found, "\n".join(line.rstrip() for line in text.splitlines())

    # --- changes ----------------------------------------------------------------------------------------------------

    def after(self, *edits: Edit, conf: str | None = None, seconds: int = SECONDS) -> World:
        """The world some seconds after edits of its objects."""
        objects = copy.deepcopy(self.objects)
        for obj in objects:
            if obj["kind"] == "ResourceQuota":  # its controller knows all pods, and counts those that are left
                obj.pop("status", None)
        for edit in edits:
            edit(objects)
        begin = (self.end // SECOND + 1) * SECOND
        uids = frozenset(str(obj["metadata"].get("uid") or "") for obj in objects)
        entries = in_creation_order(Entry(obj["kind"], obj, _ORIGIN) for obj in objects)
        options = SimulationOptions(_NAMES, begin=begin, started=EPOCH + begin / SECOND, until=begin + seconds * SECOND)
        return _run(self.conf if conf is None else conf, Scenario(entries, (), uids=uids), options)

    def starts(self, job: Waiting, *edits: Edit, conf: str | None = None, seconds: int = SECONDS) -> bool:
        """Whether a job starts after edits."""
        later = self.after(*edits, conf=conf, seconds=seconds)
        return later.running(job) >= job.goal


def simulated(cluster: Cluster) -> World:
    """The end of the timeline of a cluster."""
    entries = in_creation_order(Entry(kind_of(obj), obj, _ORIGIN) for obj in cluster.objects())
    operations = tuple(_operation(one) for one in cluster.timeline())
    return _run(CONFS[cluster.conf], Scenario(entries, operations), SimulationOptions(_NAMES, until=END * SECOND))


def _operation(one: Json) -> Operation:
    at = int(one["at"].removesuffix("s")) * SECOND
    verb = next(key for key in one if key != "at")
    obj, kind = one[verb], kind_of(one[verb])
    namespace = "" if kind in {"Node", "Queue"} else "default"
    body = {} if verb == "delete" else obj
    return Operation(at, verb, kind, namespace, obj["metadata"]["name"], body, _ORIGIN)  # type: ignore[arg-type]


def _run(conf: str, scenario: Scenario, options: SimulationOptions) -> World:
    core = Core(conf_of(conf), registry(), scheduler_names=_NAMES, default_queue="default")
    outcome = simulate(scenario, core, options)
    core.keep_silent()
    core.resync()
    core.step(outcome.deltas, EPOCH + outcome.end / SECOND)
    store = outcome.store
    objects = [obj for kind in store.kinds() if kind != "Event" for obj in store.list(kind)]
    return World(conf, objects, outcome.end, core, store)
