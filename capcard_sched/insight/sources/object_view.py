"""Objects of a cluster as Kubernetes writes them: what the core does not keep, such as workloads and foreign pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from capcard_sched.daemon.diagnosis.saved_state import SavedEvent, SavedJob, as_manifest
from capcard_sched.model.deltas import ObjectChanged, ObjectGone, ObjectUnreadable
from capcard_sched.model.kinds import KIND_BY_NAME, kind_of_object
from capcard_sched.model.objects import PodObject
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.store import Store

Json: TypeAlias = dict[str, Any]

#: Kinds that deltas have completely: no further object is read.
_WHOLE: Final = frozenset({"Node", "Pod", "PodGroup", "PriorityClass", "Queue"})
#: Reasons of events of the job controller about a Job that gets no PodGroup.
CONTROLLER_FAILURES: Final = frozenset({"PluginError", "PVCError", "PodGroupError", "FailedCreate"})
#: Kinds that are kept in part, for lists: the whole object is read.
_PARTIAL: Final = frozenset({"Job"})


class ObjectView(Protocol):
    """Read access to the objects of one state."""

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object; None when it does not exist or is not readable. "" is the namespace of cluster-scoped kinds."""

    def all_of(self, kind: str) -> Iterable[Json]:
        """The objects of a kind in all namespaces; none of a kind that the view does not keep."""

    def pods(self, namespace: str, besides: Collection[str] = ()) -> Iterable[Json]:
        """The pods of a namespace, of all schedulers; `besides`: without those of some."""

    def scheduled_at(self, namespace: str, name: str) -> float | None:
        """Unix seconds at which a pod was bound; None for a pod without a node."""

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """The events about an object, oldest first."""


class StoreObjects:
    """The objects of a simulated cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return self._store.get(kind, namespace, name)

    def all_of(self, kind: str) -> Iterable[Json]:
        return self._store.list(kind)

    def pods(self, namespace: str, besides: Collection[str] = ()) -> Iterable[Json]:
        """The pods of a namespace."""
        return [
            pod
            for pod in self._store.list("Pod")
            if pod["metadata"].get("namespace") == namespace
            and (pod.get("spec") or {}).get("schedulerName") not in besides
        ]

    def scheduled_at(self, namespace: str, name: str) -> float | None:
        """When a pod was bound."""
        pod = self._store.get("Pod", namespace, name) or {}
        conditions = (pod.get("status") or {}).get("conditions") or ()
        moments = [one.get("lastTransitionTime") for one in conditions if _is_scheduled(one.get("type"), one["status"])]
        return _bound_at((pod.get("spec") or {}).get("nodeName"), moments, pod.get("metadata") or {})

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """The events about an object, oldest first."""
        about = {"kind": kind, "name": name}
        found = []
        for event in self._store.list("Event"):
            involved = event.get("involvedObject") or {}
            if about.items() <= involved.items() and (involved.get("namespace") or "") in {"", namespace}:
                found.append(event)
        return sorted(found, key=lambda event: str(event.get("lastTimestamp") or ""))


class DeltaObjects:
    """The last version of each object in deltas: of a recording, or of the lists of a live cluster."""

    def __init__(self, found: Iterable[Delta]) -> None:
        #: Read what deltas do not have, of a live cluster: objects of other kinds, and events.
        self.fetch: Callable[[str, str, str], Json | None] = lambda *_: None
        self.fetch_events: Callable[[str, str, str], list[Json]] = lambda *_: []
        #: Deltas of kinds without an index yet: most diagnoses read objects of a few kinds only.
        self._found: dict[str, list[Delta]] = {}
        #: Kind to namespace and name to the last version of an object, which may be unreadable.
        self._kept: dict[str, dict[tuple[str, str], Delta]] = {}
        #: Kinds with objects that are no longer in the order of a list.
        self._disordered: set[str] = set()
        for delta in found:
            if kind := _kind_of(delta):
                self._found.setdefault(kind, []).append(delta)

    def apply(self, delta: Delta) -> None:
        """Keep the last version of an object."""
        if kind := _kind_of(delta):
            _keep(self._index(kind), delta)
            self._disordered.add(kind)

    def of(self, kind: str) -> Mapping[tuple[str, str], Delta]:
        """The last versions of the objects of a kind by namespace and name, in the order of a list."""
        kept = self._index(kind)
        if kind in self._disordered:
            self._disordered.remove(kind)
            kept = self._kept[kind] = {key: kept[key] for key in sorted(kept, key="/".join)}
        return kept

    def _index(self, kind: str) -> dict[tuple[str, str], Delta]:
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = {}
            for delta in self._found.pop(kind, ()):
                _keep(kept, delta)
        return kept

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object, or None."""
        found = self.of(kind).get((namespace, name))
        if isinstance(found, ObjectChanged) and (kind not in _PARTIAL or isinstance(found.object, SavedJob)):
            return as_manifest(kind, found.object)
        return None if kind in _WHOLE else self.fetch(kind, namespace, name)

    def all_of(self, kind: str) -> Iterator[Json]:
        return (as_manifest(kind, found.object) for found in self.of(kind).values() if isinstance(found, ObjectChanged))

    def pods(self, namespace: str, besides: Collection[str] = ()) -> Iterator[Json]:
        """The pods of a namespace."""
        for (of, _), found in self.of("Pod").items():
            if of != namespace or not isinstance(found, ObjectChanged):
                continue
            pod = found.object
            if not isinstance(pod, PodObject) or pod.spec.scheduler_name not in besides:
                yield as_manifest("Pod", pod)

    def scheduled_at(self, namespace: str, name: str) -> float | None:
        """When a pod was bound."""
        found = self.of("Pod").get((namespace, name))
        if not isinstance(found, ObjectChanged) or not isinstance(found.object, PodObject):
            return None
        pod = found.object
        conditions = pod.status.conditions or ()
        moments = [one.last_transition_time for one in conditions if _is_scheduled(one.type, one.status)]
        return _bound_at(pod.spec.node_name, moments, {"creationTimestamp": pod.metadata.creation_timestamp})

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """The events about an object, oldest first; of a saved state those that it has, none in a recording."""
        about = {"kind": kind, "name": name}
        saved = [
            as_manifest("Event", found.object)
            for found in self.of("Event").values()
            if isinstance(found, ObjectChanged)
            and isinstance(found.object, SavedEvent)
            and about.items() <= found.object.involved_object.items()
            and (found.object.involved_object.get("namespace") or namespace) == namespace
        ]
        saved.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return saved or self.fetch_events(kind, namespace, name)


def _is_scheduled(type: Any, status: Any) -> bool:
    return bool(type == "PodScheduled" and status == "True")


def _bound_at(node: Any, moments: Sequence[str | None], metadata: Json) -> float | None:
    """The time of the condition of a bound pod, else its creation."""
    if not node:
        return None
    return parse_time(next(iter(moments), None) or metadata.get("creationTimestamp")) or None


def _kind_of(delta: Delta) -> str:
    """The kind of a delta about an object; "" for others."""
    if isinstance(delta, ObjectChanged):
        return kind_of_object(delta.object)
    if isinstance(delta, ObjectUnreadable):
        return delta.object.kind
    return delta.kind if isinstance(delta, ObjectGone) else ""


def _keep(kept: dict[tuple[str, str], Delta], delta: Delta) -> None:
    """Apply a delta of one kind to its objects by namespace and name."""
    match delta:
        case ObjectChanged(obj):
            meta = obj.metadata
            is_namespaced = KIND_BY_NAME[kind_of_object(obj)].namespaced
            kept[meta.namespace or "default" if is_namespaced else "", meta.name] = delta
        case ObjectUnreadable(ref):
            kept.setdefault((ref.namespace, ref.name), delta)  # an earlier version stays
        case ObjectGone(_, namespace, name):
            kept.pop((namespace, name), None)


def for_core(found: Iterable[Delta]) -> list[Delta]:
    """The deltas of kinds that the scheduler reads."""
    return [
        delta
        for delta in found
        if not (
            (isinstance(delta, ObjectChanged) and kind_of_object(delta.object) in _PARTIAL)
            or (isinstance(delta, ObjectGone) and delta.kind in _PARTIAL)
        )
    ]


def vcjob_key(namespace: str, name: str) -> str:
    """The key of a Job without a PodGroup among headlines."""
    return f"Job {namespace}/{name}"


def full_name(obj: Json) -> tuple[str, str]:
    """Namespace (`default` without one) and name."""
    return obj["metadata"].get("namespace") or "default", obj["metadata"]["name"]


def vcjobs_of(objects: ObjectView) -> dict[tuple[str, str], Json]:
    """The Jobs of `batch.volcano.sh`, by namespace and name; those of `batch` have no tasks."""
    return {full_name(job): job for job in objects.all_of("Job") if "tasks" in (job.get("spec") or {})}
