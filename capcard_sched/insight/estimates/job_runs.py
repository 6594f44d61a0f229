"""Which job a pod belongs to, its shape, and the runs of jobs: from pods of a state, or from a recording."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.objects import (
    DAEMON_SET,
    ENDED_PHASES,
    JOB,
    POD,
    POD_GROUP,
    REPLICA_SET,
    STATEFUL_SET,
    annotations_of,
    controller_key,
    controller_of,
    has_ended,
    key_of,
    meta,
    spec,
    status,
)
from capcard_sched.daemon.diagnosis.recording import Applied, Stepped
from capcard_sched.daemon.diagnosis.saved_state import as_manifest
from capcard_sched.insight.estimates.durations import JobFeatures, JobRun
from capcard_sched.model.annotations import (
    CARD_NAME,
    CARD_NAME_ALIAS,
    JOB_NAME,
    POD_QUEUE_NAME,
    QUEUE_NAME,
)
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.intents import Evict
from capcard_sched.model.json_pods import valid_pod_amounts
from capcard_sched.model.kinds import CORE_API, kind_of
from capcard_sched.model.kube_groups import job_name
from capcard_sched.model.objects import PodGroupObject, PodObject
from capcard_sched.model.ownership import owner_of
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.daemon.diagnosis.recording import Record
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.ownership import Owner

#: Owners of pods that run for ever.
SERVICES: Final = frozenset({REPLICA_SET, STATEFUL_SET, DAEMON_SET})
#: Parts at the end of a name that have a digit: numbers, dates, hashes.
_NUMBERED: Final = re.compile(r"([-.][a-z0-9]*\d[a-z0-9]*)+$")
#: Resources that are no cards.
_PLAIN: Final = ("cpu", "memory", "pods", "ephemeral-storage")
_MILLI: Final = 1000


def job_key(pod: JsonObject) -> str:
    """The job of a pod: `namespace/job/name` for a vcjob, else the key of its PodGroup, else `namespace/pod/name`."""
    namespace, name = key_of(pod)
    notes = annotations_of(pod)
    if JOB_NAME in notes:
        return f"{namespace}/job/{notes[JOB_NAME]}"
    kube = (spec(pod).get("schedulingGroup") or {}).get("podGroupName")
    group = group_of(notes) or (job_name(kube) if kube else f"pod/{name}")
    return f"{namespace}/{group}"


def vcjob_key(vcjob: JsonObject) -> str:
    """`job_key` of the pods of a vcjob."""
    return "/job/".join(key_of(vcjob))


def group_key(group: JsonObject) -> str:
    """`job_key` of the pods of a PodGroup."""
    owner = controller_of(group)
    if owner is not None and kind_of(owner) == JOB:
        return f"{key_of(group)[0]}/job/{owner['name']}"
    return "/".join(key_of(group))


def is_service(pod: JsonObject) -> bool:
    """Whether the pod belongs to a workload that runs for ever."""
    owner = controller_of(pod)
    return owner is not None and kind_of(owner) in SERVICES


def workload_name(pod: JsonObject) -> str:
    """The name of the vcjob, else of the owner, else of the pod itself."""
    owner = controller_of(pod)
    return annotations_of(pod).get(JOB_NAME) or (owner["name"] if owner is not None else str(meta(pod)["name"]))


def stem_of(name: str) -> str:
    """A name without the parts at its end that have a digit: `train` of `train-0417-x7k2p`."""
    return _NUMBERED.sub("", name)


def shape_of(pods: Iterable[tuple[JsonObject, int]], queue: str, namespace: str, name: str) -> JobFeatures:
    """The shape of a job from its pods, or pod templates, and the number of each."""
    card, per_pod, cards, cores = "", 0.0, 0.0, 0.0
    requests: tuple[int, int] | None = None
    for pod, count in pods:
        resource, amount, cpu, memory = _request(pod)
        notes = (pod.get("metadata") or {}).get("annotations") or {}
        cards, cores = cards + amount * count, cores + cpu / _MILLI * count
        if amount > per_pod or requests is None:
            requests = cpu, memory
        if amount > per_pod:
            per_pod, card = amount, notes.get(CARD_NAME) or notes.get(CARD_NAME_ALIAS) or resource
    return JobFeatures(namespace, queue, stem_of(name), card, per_pod, _size(cards or cores), requests)


def shape_of_cards(namespace: str, queue: str, name: str, card: str, per_pod: int, total: int) -> JobFeatures:
    """The shape of a job whose pods held thousandths of a card: one of them at most, and all."""
    return JobFeatures(namespace, queue, stem_of(name), card, per_pod / _MILLI, _size(total / _MILLI))


def _size(amount: float) -> int:
    """Cards or cores, rounded up to a power of two."""
    return 1 << max(0, math.ceil(math.log2(max(amount, 1.0))))


def _request(pod: JsonObject) -> tuple[str, float, int, int]:
    """The extended resource of which a pod requests most, its amount, thousandths of a core, and bytes of memory."""
    requests = valid_pod_amounts(pod).requests
    devices = {
        name: amount / _MILLI for name, amount in requests.items() if name not in _PLAIN and "hugepages" not in name
    }
    best = max(devices, key=lambda name: (devices[name], name), default="")
    return best, devices.get(best, 0.0), requests.get("cpu", 0), requests.get("memory", 0)


def pod_runs(pod: JsonObject) -> bool:
    return status(pod).get("phase") == "Running" and not has_ended(pod) and bool(spec(pod).get("nodeName"))


def start_of(pod: JsonObject) -> float | None:
    """Unix seconds at which a pod started; None before, or when it is not known."""
    return parse_time(status(pod).get("startTime")) or None


def end_of(pod: JsonObject) -> float | None:
    """Unix seconds at which an ended pod became not ready; None when it is not known."""
    for condition in status(pod).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return parse_time(condition.get("lastTransitionTime")) or None
    return None


class _StartedPod(NamedTuple):
    """One pod of a job that started."""

    pod: JsonObject
    start: float
    #: Its end, or the last moment at which it is known to run.
    last: float
    ended: bool


class RunCollector:
    """Joins pods to runs of jobs."""

    def __init__(self, observed_from: float) -> None:
        self._observed_from = observed_from
        self._parts: dict[Owner, dict[str, _StartedPod]] = {}
        self._queues: dict[str, str] = {}

    def add_group(self, group: JsonObject) -> None:
        """Note the queue of a PodGroup."""
        self._queues["/".join(key_of(group))] = str(spec(group).get("queue") or "")

    def add_pod(self, pod: JsonObject, last: float, *, ended: bool) -> None:
        """Note a pod; one that has not started, or belongs to a service, is no run."""
        start = start_of(pod)
        if start is not None and not is_service(pod):
            uid = str(meta(pod).get("uid") or "/".join(key_of(pod)))
            key = controller_key(pod) or owner_of(key_of(pod)[0], CORE_API, POD, key_of(pod)[1], uid)
            self._parts.setdefault(key, {})[uid] = _StartedPod(pod, start, last, ended)

    def queue_of(self, pod: JsonObject) -> str:
        """The queue of a pod: that of its PodGroup, else the one it names."""
        notes = annotations_of(pod)
        group = group_of(notes)
        queue = self._queues.get(f"{key_of(pod)[0]}/{group}") if group else None
        return queue or notes.get(QUEUE_NAME) or notes.get(POD_QUEUE_NAME) or "default"

    def runs(self) -> list[JobRun]:
        """One run per job, from the start of its first pod to the end of its last."""
        found = []
        for key, pods in self._parts.items():
            parts = list(pods.values())
            first = parts[0].pod
            shape = shape_of(
                [(part.pod, 1) for part in parts], self.queue_of(first), key_of(first)[0], workload_name(first)
            )
            start, last = min(part.start for part in parts), max(part.last for part in parts)
            found.append(
                JobRun(
                    f"{key.namespace}/{key.uid}",
                    shape,
                    start,
                    self._observed_from,
                    last,
                    all(part.ended for part in parts),
                )
            )
        return found


def runs_of_state(objects: Iterable[JsonObject], now: float) -> list[JobRun]:
    """The runs of the jobs of a state. Ends are known since the first end of a pod that still exists."""
    objects = list(objects)
    ends = {str(meta(obj)["uid"]): end_of(obj) for obj in objects if kind_of(obj) == POD and has_ended(obj)}
    collector = RunCollector(min((end for end in ends.values() if end is not None), default=now))
    for obj in objects:
        kind = kind_of(obj)
        if kind == POD_GROUP:
            collector.add_group(obj)
        elif kind == POD:
            end = ends.get(str(meta(obj)["uid"]), now)
            if end is not None:
                collector.add_pod(obj, end, ended=has_ended(obj))
    return collector.runs()


class _RecordedPods:
    """Collects the runs of pods from the deltas of a recording."""

    def __init__(self, begin: float) -> None:
        self.collector, self.now = RunCollector(begin), begin
        #: Uid of each pod that has started to its newest version.
        self.running: dict[str, PodObject] = {}
        self.evicted: set[str] = set()

    def note(self, pod: PodObject, *, ended: bool) -> None:
        self.collector.add_pod(as_manifest(POD, pod), self.now, ended=ended)

    def apply(self, delta: Delta) -> None:
        match delta:
            case ObjectGone(kind=kind, uid=uid) if kind == POD:
                gone = self.running.pop(uid, None)
                if gone is not None:
                    self.note(gone, ended=uid not in self.evicted)
            case ObjectChanged(object=PodGroupObject() as group):
                self.collector.add_group(as_manifest(POD_GROUP, group))
            case ObjectChanged(object=PodObject() as pod):
                uid = pod.metadata.uid or ""
                if pod.status.phase not in ENDED_PHASES:
                    self.running[uid] = pod
                elif self.running.pop(uid, None) is not None:
                    self.note(pod, ended=True)


def runs_of_recording(records: Iterable[Record], begin: float) -> list[JobRun]:
    """The runs of the jobs of a recording that began at `begin`. An evicted pod has not ended."""
    pods = _RecordedPods(begin)
    for record in records:
        if isinstance(record, Stepped):
            pods.now = record.now
        for delta in record.deltas if isinstance(record, Applied | Stepped) else ():
            pods.apply(delta)
        if isinstance(record, Stepped):
            pods.evicted.update(intent.uid for intent in record.intents if isinstance(intent, Evict))
    for pod in pods.running.values():
        pods.note(pod, ended=False)
    return pods.collector.runs()
