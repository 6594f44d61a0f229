"""The objects of the simulated API server by kind, namespace and name, and their watch by the scheduler.

Objects are values: a write creates a new mapping that shares the unchanged parts, so readers may keep a result, and
observers receive the old and the new object. Reads by key and by owner are O(1).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from capcard_sched.controllers.objects import (
    COMMAND,
    CONFIG_MAP,
    ENDED_PHASES,
    POD,
    POD_GROUP,
    JsonObject,
    annotations_of,
    is_owned,
    key_of,
    meta,
    spec,
    status,
)
from capcard_sched.controllers.queues import queue_and_phase
from capcard_sched.controllers.view import COMMANDS_AT_ONCE, command_age, target_of
from capcard_sched.model import deltas
from capcard_sched.model.annotations import DEVICE_CONFIG_KEY, NODE_VGPU_HANDSHAKE, SIMULATION_GRACE, SIMULATION_USAGE
from capcard_sched.model.card_registration import handshake_state
from capcard_sched.model.kinds import KINDS
from capcard_sched.model.kube_groups import KUBE_GROUP, KubePodGroup, job_name, translated
from capcard_sched.model.objects import NodeObject
from capcard_sched.model.timestamps import DurationError, parse_span
from capcard_sched.model.usage import parse_usage
from capcard_sched.simulation.clock import EPOCH, SECOND, VirtualClock
from capcard_sched.simulation.kinds import NODE, is_namespaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.controllers.objects import Key
    from capcard_sched.model.deltas import Delta

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
    """All objects of the simulated cluster; the `View` of its controllers."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        #: Sets the defaults of an object that a user creates or changes.
        self.admit: Callable[[str, JsonObject], JsonObject] = lambda _, obj: obj
        self._objects: dict[str, dict[tuple[str, str], JsonObject]] = {}
        self._owned: dict[str, dict[Reference, None]] = {}
        #: Queue to the number of its PodGroups by phase.
        self._phases: dict[str, Counter[str]] = {}
        self._observers: list[Callable[[Change], None]] = [self._count_group]
        self._version = 0
        self._created = 0
        self._given_uids: frozenset[str] = frozenset()
        #: Every object that ever existed: distinguishes a misspelt name from a deleted object.
        self._past: set[Reference] = set()

    def get(self, kind: str, namespace: str, name: str) -> JsonObject | None:
        objects = self._objects.get(kind)
        return None if objects is None else objects.get((namespace, name))

    def _found(self, kind: str, namespace: str, name: str) -> JsonObject:
        found = self.get(kind, namespace, name)
        if found is None:
            raise NotFoundError(f"{kind} {display_name(namespace, name)} does not exist")
        return found

    def list(self, kind: str) -> Iterable[JsonObject]:
        """Objects of a kind, in order of creation. Do not write while iterating; copy first."""
        return self._objects.get(kind, {}).values()

    def kinds(self) -> Iterable[str]:
        """Kinds with at least one object."""
        return [kind for kind, objects in self._objects.items() if objects]

    def dependents(self, uid: str) -> tuple[JsonObject, ...]:
        """Objects whose owner references name `uid`, in order of creation: those that the garbage collector checks."""
        found = (self.get(*reference) for reference in self._owned.get(uid, {}))
        return tuple(obj for obj in found if obj is not None)

    def owned(self, owner: JsonObject, kind: str) -> tuple[JsonObject, ...]:
        """Objects of a kind whose controller is `owner`, in order of creation."""
        references = self._owned.get(meta(owner)["uid"], {})
        found = (self.get(*reference) for reference in references if reference.kind == kind)
        return tuple(obj for obj in found if obj is not None and is_owned(obj, owner))

    def targeting(self, key: Key) -> Sequence[JsonObject]:
        """The `COMMANDS_AT_ONCE` oldest Commands for an object. O(Commands)."""
        found = (command for command in self.list(COMMAND) if target_of(command) == key)
        return sorted(found, key=command_age)[:COMMANDS_AT_ONCE]

    def group_phases(self, queue: str) -> Mapping[str, int]:
        """Number of PodGroups of a queue by phase."""
        return self._phases.get(queue, Counter())

    def _count_group(self, change: Change) -> None:
        if change.kind == POD_GROUP:
            for group, step in ((change.old, -1), (change.new, 1)):
                place = queue_and_phase(group)
                if place is not None:
                    self._phases.setdefault(place[0], Counter())[place[1]] += step

    def existed(self, kind: str, namespace: str, name: str) -> bool:
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
        old = self._found(kind, namespace, name)
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
        obj = self._found(kind, namespace, name)
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
        old = self._found(kind, namespace, name)
        del self._objects[kind][namespace, name]
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


#: The decoded form of the kinds that the scheduler watches, in the order of the deltas of a step: kinds that others
#: refer to come first.
_TYPES: dict[str, type[Any]] = {kind.name: kind.watch.type for kind in KINDS if kind.watch is not None}


class StoreWatch:
    """Collects the changes since the last `drain`."""

    def __init__(self, store: Store, started: float = EPOCH) -> None:
        """`started`: wall clock at the start of the program, Unix seconds; input handshakes are compared with it."""
        self._started = started
        self._store = store
        self._changed: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in _TYPES}
        self._gone: list[Delta] = []
        #: Node to the load of the last delta, as written.
        self._loads: dict[str, str] = {}
        self._outcomes: list[Delta] = []

    def observe(self, change: Change) -> None:
        """Queue a change."""
        changed = self._changed.get(change.kind)
        if changed is None or (change.kind == CONFIG_MAP and not _has_device_config(change)):
            return
        key = change.key
        if change.verb == "removed":
            changed.pop(key, None)
            if change.kind == NODE:
                self._gone += self._load(key[1], "")
            is_kube = change.kind == KUBE_GROUP
            gone = ("PodGroup", key[0], job_name(key[1])) if is_kube else (change.kind, *key)
            self._gone.append(deltas.ObjectGone(*gone, meta(change.object)["uid"]))
        else:
            changed[key] = None

    def report(self, outcome: Delta) -> None:
        self._outcomes.append(outcome)

    @property
    def pending(self) -> bool:
        return bool(self._gone or self._outcomes or any(self._changed.values()))

    def drain(self) -> list[Delta]:
        """The deltas since the last call: removals, then the newest version of changed objects, then outcomes."""
        found = self._gone
        self._gone = []
        for kind, keys in self._changed.items():
            for key in keys:
                obj = self._store.get(kind, *key)
                if obj is not None:
                    decoded = msgspec.convert(obj, _TYPES[kind])
                    judged = self._judged(decoded) if isinstance(decoded, NodeObject) else decoded
                    if isinstance(judged, KubePodGroup):
                        judged = translated(judged)
                    found.append(deltas.ObjectChanged(judged))
                    if kind == NODE:
                        found += self._load(key[1], annotations_of(obj).get(SIMULATION_USAGE, ""))
            keys.clear()
        found += self._outcomes
        self._outcomes = []
        return found

    def _judged(self, node: NodeObject) -> NodeObject:
        """A node without the age of its handshake: no device plugin responds in virtual time."""
        notes = node.metadata.annotations or {}
        text = notes.get(NODE_VGPU_HANDSHAKE)
        if text is None:
            return node
        dead = handshake_state(text, self._started) in ("overdue", "deleted")
        judged = {**notes, NODE_VGPU_HANDSHAKE: "Deleted" if dead else "Reported"}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=judged))

    def _load(self, node: str, text: str) -> list[Delta]:
        """The load of a node if it changed. The text was validated on input."""
        if text == self._loads.get(node, ""):
            return []
        if not text:
            del self._loads[node]
            return [deltas.NodeUsageGone(node)]
        self._loads[node] = text
        return [deltas.NodeUsageChanged({node: parse_usage(text)})]


def _has_device_config(change: Change) -> bool:
    """Whether a ConfigMap holds, or held, settings of a device plugin: the scheduler reads no others."""
    return any(DEVICE_CONFIG_KEY in (version.get("data") or {}) for version in (change.old, change.new) if version)
