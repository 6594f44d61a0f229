"""Objects of a cluster as Kubernetes writes them: what the core does not keep, such as workloads and foreign pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from capcard_sched.daemon.diagnosis.saved_state import as_manifest
from capcard_sched.model.deltas import AlikePods, ObjectChanged, ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME, kind_of_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import msgspec

    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.store import Store

Json: TypeAlias = dict[str, Any]

#: Kinds of which the view keeps the objects in deltas.
_KEPT: Final = frozenset({"Job", "Node", "Pod", "PodGroup", "PriorityClass", "Queue"})
#: Kinds that are kept in part, for lists: the whole object is read.
_PARTIAL: Final = frozenset({"Job"})


class ObjectView(Protocol):
    """Read access to the objects of one state."""

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object; None when it does not exist or is not readable. "" is the namespace of cluster-scoped kinds."""

    def all_of(self, kind: str) -> Iterable[Json]:
        """The objects of a kind in all namespaces; none of a kind that the view does not keep."""

    def pods(self, namespace: str) -> Iterable[Json]:
        """The pods of a namespace, of all schedulers."""

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """The events about an object, oldest first."""


class StoreObjects:
    """The objects of a simulated cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object, or None."""
        return self._store.get(kind, namespace, name)

    def all_of(self, kind: str) -> Iterable[Json]:
        """The objects of a kind."""
        return self._store.list(kind)

    def pods(self, namespace: str) -> Iterable[Json]:
        """The pods of a namespace."""
        return [pod for pod in self._store.list("Pod") if pod["metadata"].get("namespace") == namespace]

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

    def __init__(
        self,
        found: Iterable[Delta],
        fetch: Callable[[str, str, str], Json | None] | None = None,
        fetch_events: Callable[[str, str, str], list[Json]] | None = None,
    ) -> None:
        """`fetch` reads kinds that deltas do not have; None: there are none."""
        self._fetch, self._fetch_events = fetch, fetch_events
        #: Deltas of kinds without an index yet: most answers look at objects of a few kinds only.
        self._found: dict[str, list[Delta]] = {kind: [] for kind in _KEPT}
        #: Kind to namespace and name to the object.
        self._kept: dict[str, dict[tuple[str, str], msgspec.Struct]] = {}
        #: Kinds with objects that are no longer in the order of a list.
        self._disordered: set[str] = set()
        for delta in found:
            if (kind := _kind_of(delta)) in _KEPT:
                self._found[kind].append(delta)

    def apply(self, delta: Delta) -> None:
        """Keep the last version of an object."""
        if (kind := _kind_of(delta)) in _KEPT:
            _keep(self._index(kind), delta)
            self._disordered.add(kind)

    def fetch_with(
        self, fetch: Callable[[str, str, str], Json | None], fetch_events: Callable[[str, str, str], list[Json]]
    ) -> None:
        """Read what deltas do not have with these functions from now on."""
        self._fetch, self._fetch_events = fetch, fetch_events

    def _of(self, kind: str) -> dict[tuple[str, str], msgspec.Struct]:
        """The objects of a kind, in the order of a list."""
        kept = self._index(kind)
        if kind in self._disordered:
            self._disordered.remove(kind)
            kept = self._kept[kind] = {key: kept[key] for key in sorted(kept, key="/".join)}
        return kept

    def _index(self, kind: str) -> dict[tuple[str, str], msgspec.Struct]:
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = {}
            for delta in self._found.pop(kind, ()):
                _keep(kept, delta)
        return kept

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object, or None."""
        found = self._of(kind).get((namespace, name))
        if found is not None and kind not in _PARTIAL:
            return as_manifest(kind, found)
        return None if kind in _KEPT - _PARTIAL or self._fetch is None else self._fetch(kind, namespace, name)

    def all_of(self, kind: str) -> Iterator[Json]:
        """The objects of a kind."""
        for obj in self._of(kind).values():
            yield as_manifest(kind, obj)

    def pods(self, namespace: str) -> Iterator[Json]:
        """The pods of a namespace."""
        for (of, _), pod in self._of("Pod").items():
            if of == namespace:
                yield as_manifest("Pod", pod)

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """The events about an object, oldest first; none in a recording."""
        return [] if self._fetch_events is None else self._fetch_events(kind, namespace, name)


def _kind_of(delta: Delta) -> str:
    """The kind of a delta about an object; "" for others."""
    if isinstance(delta, ObjectChanged):
        return kind_of_object(delta.object)
    if isinstance(delta, AlikePods):
        return "Pod"
    return delta.kind if isinstance(delta, ObjectGone) else ""


def _keep(kept: dict[tuple[str, str], msgspec.Struct], delta: Delta) -> None:
    """Apply a delta of one kind to its objects by namespace and name."""
    match delta:
        case ObjectChanged(obj):
            meta = obj.metadata
            is_namespaced = KIND_BY_NAME[kind_of_object(obj)].namespaced
            kept[meta.namespace or "default" if is_namespaced else "", meta.name] = obj
        case AlikePods():
            for pod in delta.objects():
                kept[pod.metadata.namespace or "default", pod.metadata.name] = pod
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
