"""The objects of the simulated API server by kind, namespace and name.

Objects are values: a write creates a new mapping that shares the unchanged parts, so readers may keep a result, and
observers receive the old and the new object. Reads by key and by owner are O(1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from capcard_sched.controllers.objects import ENDED_PHASES, POD, JsonObject, annotations_of, key_of, meta, spec, status
from capcard_sched.model.annotations import SIMULATION_GRACE
from capcard_sched.model.timestamps import DurationError, parse_span
from capcard_sched.simulation.clock import SECOND, VirtualClock
from capcard_sched.simulation.kinds import is_namespaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_GRACE = 30 * SECOND


class NotFoundError(LookupError):
    """No object of that kind and name."""


class AlreadyExistsError(ValueError):
    """An object of that kind and name exists."""


class Change(NamedTuple):
    """One write: `old` is None for an added object, `new` for a removed one."""

    verb: Literal["added", "modified", "removed"]
    kind: str
    old: JsonObject | None
    new: JsonObject | None

    @property
    def object(self) -> JsonObject:
        """The newest version there is."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return key_of(self.object)


class Reference(NamedTuple):
    """Kind, namespace and name of an object."""

    kind: str
    namespace: str
    name: str


def merged(target: JsonObject, patch: JsonObject) -> JsonObject:
    """JSON merge patch (RFC 7386). Returns `target` itself when the patch changes nothing; never modifies it."""
    result: JsonObject | None = None
    for key, wanted in patch.items():
        value = wanted
        present = target.get(key)
        if value is None:
            if key not in target:
                continue
            result = dict(target) if result is None else result
            del result[key]
            continue
        if isinstance(value, dict):
            value = merged(present if isinstance(present, dict) else {}, value)
            if value is present:
                continue
        elif key in target and type(value) is type(present) and value == present:
            continue
        result = dict(target) if result is None else result
        result[key] = value
    return target if result is None else result


class Store:
    """All objects of the simulated cluster."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        #: Sets the defaults of an object that a user creates or changes.
        self.admit: Callable[[str, JsonObject], JsonObject] = lambda _, obj: obj
        self._objects: dict[str, dict[tuple[str, str], JsonObject]] = {}
        self._owned: dict[str, dict[Reference, None]] = {}
        self._observers: list[Callable[[Change], None]] = []
        self._version = 0
        self._created = 0
        self._given_uids: frozenset[str] = frozenset()
        #: Every object that ever existed: distinguishes a misspelt name from a deleted object.
        self._past: set[Reference] = set()

    def get(self, kind: str, namespace: str, name: str) -> JsonObject | None:
        """The object, or None."""
        objects = self._objects.get(kind)
        return None if objects is None else objects.get((namespace, name))

    def list(self, kind: str) -> Iterable[JsonObject]:
        """Objects of a kind, in order of creation. Do not write while iterating; copy first."""
        return self._objects.get(kind, {}).values()

    def kinds(self) -> Iterable[str]:
        """Kinds with at least one object."""
        return [kind for kind, objects in self._objects.items() if objects]

    def owned(self, uid: str, kind: str | None = None) -> tuple[JsonObject, ...]:
        """Objects whose owner references name `uid`, in order of creation."""
        found = (self.get(*reference) for reference in self._owned.get(uid, {}) if kind in (None, reference.kind))
        return tuple(obj for obj in found if obj is not None)

    def existed(self, kind: str, namespace: str, name: str) -> bool:
        """Whether the object exists or existed."""
        return Reference(kind, namespace, name) in self._past

    def observe(self, observer: Callable[[Change], None]) -> None:
        """Call `observer` for every later change, before the write returns; it must not write."""
        self._observers.append(observer)

    def reserve_uids(self, uids: frozenset[str]) -> None:
        """Reserve the uids of the input: no other object gets one of them."""
        self._given_uids = uids

    def create(self, kind: str, obj: JsonObject) -> JsonObject:
        """Store a new object; a given uid, creation time and status are kept. Raises AlreadyExistsError."""
        metadata = dict(meta(obj))
        if is_namespaced(kind):
            metadata.setdefault("namespace", "default")
        elif is_namespaced(kind) is False:
            metadata.pop("namespace", None)
        reference = Reference(kind, metadata.get("namespace", ""), metadata["name"])
        objects = self._objects.setdefault(kind, {})
        if reference[1:] in objects:
            raise AlreadyExistsError(f"{kind} {display_name(reference.namespace, reference.name)} already exists")
        if not metadata.get("uid"):
            metadata["uid"] = self._fresh_uid()
        if not metadata.get("creationTimestamp"):
            metadata["creationTimestamp"] = self.clock.timestamp()
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        obj = {**obj, "metadata": metadata}
        obj = self.admit(kind, obj)
        objects[reference[1:]] = obj
        self._past.add(reference)
        self._link(reference, obj)
        self._tell(Change("added", kind, None, obj))
        return obj

    def patch(self, kind: str, namespace: str, name: str, patch: JsonObject, *, by_user: bool = False) -> JsonObject:
        """Merge-patch an object; no write at all when it changes nothing. Raises NotFoundError.

        With `by_user`, fields that the patch drops get their defaults again.
        """
        old = self.get(kind, namespace, name)
        if old is None:
            raise NotFoundError(f"{kind} {display_name(namespace, name)} does not exist")
        new = merged(old, patch)
        if by_user and new is not old:
            new = self.admit(kind, new)
        if new is old or (by_user and new == old):
            return old
        self._version += 1
        new["metadata"] = {**meta(new), "resourceVersion": str(self._version)}
        self._objects[kind][namespace, name] = new
        if meta(old).get("ownerReferences") != meta(new).get("ownerReferences"):
            reference = Reference(kind, namespace, name)
            self._unlink(reference, old)
            self._link(reference, new)
        self._tell(Change("modified", kind, old, new))
        return new

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete as a client does: a pod on a node terminates until its kubelet removes it.

        Pods without a node, pods that have ended, pods without grace and all other objects are removed at once.
        Raises NotFoundError.
        """
        obj = self.get(kind, namespace, name)
        if obj is None:
            raise NotFoundError(f"{kind} {display_name(namespace, name)} does not exist")
        if kind == POD:
            grace = grace_period(obj)
            on_node = bool(spec(obj).get("nodeName")) and status(obj).get("phase") not in ENDED_PHASES
            if on_node and grace > 0:
                if not meta(obj).get("deletionTimestamp"):
                    stamp = self.clock.timestamp(self.clock.now + grace)
                    patch = {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace // SECOND}
                    self.patch(kind, namespace, name, {"metadata": patch})
                return
        self.remove(kind, namespace, name)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object at once. Raises NotFoundError."""
        old = self._objects.get(kind, {}).pop((namespace, name), None)
        if old is None:
            raise NotFoundError(f"{kind} {display_name(namespace, name)} does not exist")
        self._version += 1
        self._unlink(Reference(kind, namespace, name), old)
        self._tell(Change("removed", kind, old, None))

    def _fresh_uid(self) -> str:
        while True:
            self._created += 1
            uid = f"{self._created:08x}-0000-4000-8000-{self._created:012x}"
            if uid not in self._given_uids:
                return uid

    def _tell(self, change: Change) -> None:
        for observer in self._observers:
            observer(change)

    def _link(self, reference: Reference, obj: JsonObject) -> None:
        for owner in meta(obj).get("ownerReferences") or ():
            if owner.get("uid"):
                self._owned.setdefault(owner["uid"], {})[reference] = None

    def _unlink(self, reference: Reference, obj: JsonObject) -> None:
        for owner in meta(obj).get("ownerReferences") or ():
            owned = self._owned.get(owner.get("uid", ""))
            if owned is not None:
                owned.pop(reference, None)
                if not owned:
                    del self._owned[owner["uid"]]


def display_name(namespace: str, name: str) -> str:
    """`namespace/name`, or the name alone for a cluster-scoped object."""
    return f"{namespace}/{name}" if namespace else name


def grace_period(pod: JsonObject) -> int:
    """How long a pod terminates, in microseconds: the simulation's annotation, else its spec, else 30 s."""
    written = annotations_of(pod).get(SIMULATION_GRACE)
    if written is not None:
        try:
            return parse_span(written)
        except DurationError:
            pass  # rejected on input; only a pod from a template of before a patch has one
    seconds = spec(pod).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE if seconds is None else int(seconds) * SECOND
