"""The kinds that controllers watch, and what is kept of each object: a few hundred bytes of JSON instead of the whole.

Only the fields that a controller reads are kept: 50,000 pods fit into a small process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import (
    CLAIM,
    COMMAND,
    CRON_JOB,
    DEPLOYMENT,
    HYPER_NODE,
    JOB,
    NODE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    REPLICA_SET,
    STATEFUL_SET,
    Key,
)
from capcard_sched.controllers.owner_rules import OwnerRule, built_in_rules
from capcard_sched.controllers.podgroups import OWNER_KINDS
from capcard_sched.kube.kinds import WatchedKind
from capcard_sched.kube.paths import object_path
from capcard_sched.model.annotations import GROUP_NAME, GROUP_NAME_ALIAS
from capcard_sched.model.kinds import KIND_BY_NAME, Kind
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.objects import ApiStruct, ObjectMeta, OwnerReference
from capcard_sched.model.ownership import Owner, controller_of_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Prefixes of the pod annotations and labels that controllers read.
_READ_PREFIXES: Final = ("volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/")
_REVISION: Final = "controller-revision-hash"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

#: Every kind that controllers read or write, by its name in a view.
RESOURCES: Final[Mapping[str, Kind]] = KIND_BY_NAME | {
    OWNER_KINDS["apps/v1", "DaemonSet"]: Kind("DaemonSet", "apps/v1", "daemonsets"),
    OWNER_KINDS["batch/v1", "Job"]: Kind("Job", "batch/v1", "jobs"),
}
#: Owners of which only the annotations count, and those rarely: they are read when a PodGroup is created.
FETCHED: Final = frozenset({DEPLOYMENT, OWNER_KINDS["apps/v1", "DaemonSet"], OWNER_KINDS["batch/v1", "Job"]})


class OwnerRecord(OwnerReference, frozen=True):
    block_owner_deletion: bool | None = None


class MetaRecord(ObjectMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerRecord, ...] | None = None


class WatchedObject(ApiStruct, frozen=True):
    """An object with its whole spec and status."""

    metadata: MetaRecord = MetaRecord()
    spec: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    #: Of a Command.
    action: str = ""
    target: msgspec.Raw = msgspec.Raw()
    #: Of a PriorityClass.
    value: int = 0


class OwnerSpec(ApiStruct, frozen=True):
    replicas: int | None = None


class OwnerStatus(ApiStruct, frozen=True):
    update_revision: str = ""


class WatchedWorkload(ApiStruct, frozen=True):
    metadata: MetaRecord = MetaRecord()
    spec: OwnerSpec = OwnerSpec()
    status: OwnerStatus = OwnerStatus()


class NameRecord(ApiStruct, frozen=True):
    """An object of which only the existence counts."""

    metadata: MetaRecord = MetaRecord()


class ContainerRecord(ApiStruct, frozen=True):
    """A container: its resources, and whether it is a sidecar."""

    name: str = ""
    resources: msgspec.Raw = msgspec.Raw()
    restart_policy: str = ""


class PodSpecRecord(ApiStruct, frozen=True):
    """The spec of a pod. No controller reads its node: a binding is no change."""

    scheduler_name: str = ""
    priority_class_name: str = ""
    containers: tuple[ContainerRecord, ...] = ()
    init_containers: tuple[ContainerRecord, ...] = ()
    overhead: msgspec.Raw = msgspec.Raw()
    resources: msgspec.Raw = msgspec.Raw()
    scheduling_group: msgspec.Raw = msgspec.Raw()


class TerminationRecord(ApiStruct, frozen=True):
    exit_code: int = 0
    finished_at: str | None = None


class ContainerStateRecord(ApiStruct, frozen=True):
    """The state of a container, as far as it ended."""

    terminated: TerminationRecord | None = None


class ContainerStatusRecord(ApiStruct, frozen=True):
    name: str = ""
    ready: bool = True
    restart_count: int = 0
    state: ContainerStateRecord = ContainerStateRecord()
    last_state: ContainerStateRecord = ContainerStateRecord()


class PodStatusRecord(ApiStruct, frozen=True):
    phase: str = ""
    container_statuses: tuple[ContainerStatusRecord, ...] | None = None
    init_container_statuses: tuple[ContainerStatusRecord, ...] | None = None


class WatchedPod(ApiStruct, frozen=True):
    metadata: MetaRecord = MetaRecord()
    spec: PodSpecRecord = PodSpecRecord()
    status: PodStatusRecord = PodStatusRecord()


class RecordChanged(NamedTuple):
    """An object as it is now."""

    kind: str
    namespace: str
    name: str
    uid: str
    #: resourceVersion as a number.
    version: int
    controller: Owner | None
    #: JSON without apiVersion and kind.
    data: bytes


_encode = msgspec.json.Encoder().encode
#: Owners whose PodGroup changes with them.
_FOLLOWED: Final = frozenset({("apps", REPLICA_SET), ("apps", STATEFUL_SET)})


def _change(kind: str, trim: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(record: Any) -> RecordChanged:
        meta: MetaRecord = record.metadata
        version = whole_number(meta.resource_version, 2**64) or 0
        data = _encode(trim(record))
        return RecordChanged(kind, meta.namespace or "", meta.name, meta.uid, version, controller_of_meta(meta), data)

    return changed


def _trim_pod(pod: WatchedPod, rules: Sequence[OwnerRule], keys: frozenset[str]) -> WatchedPod:
    """Requests count for the PodGroup that is still to be created, and where it follows its owner."""
    notes, labels = _read(pod.metadata.annotations, keys), _read(pod.metadata.labels, keys)
    spec = pod.spec
    owner = controller_of_meta(pod.metadata)
    is_followed = owner is not None and (owner.group, owner.kind) in _FOLLOWED
    if not is_followed and (labels or notes):
        known = {**(notes or {}), **(labels or {})}
        is_followed = any(rule.matches(known) for rule in rules)
    if notes and (GROUP_NAME in notes or GROUP_NAME_ALIAS in notes) and not is_followed:
        sidecars = tuple(
            ContainerRecord(each.name, restart_policy=each.restart_policy)
            for each in spec.init_containers
            if each.restart_policy == "Always"
        )
        spec = PodSpecRecord(scheduler_name=spec.scheduler_name, init_containers=sidecars)
    metadata = msgspec.structs.replace(pod.metadata, annotations=notes, labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def _read(entries: dict[str, str] | None, keys: frozenset[str]) -> dict[str, str] | None:
    kept = {key: value for key, value in (entries or {}).items() if key.startswith(_READ_PREFIXES) or key in keys}
    return kept or None


def _trim_whole(record: Any) -> Any:
    notes = record.metadata.annotations
    if not notes or _LAST_APPLIED not in notes:
        return record
    kept = {key: value for key, value in notes.items() if key != _LAST_APPLIED}
    return msgspec.structs.replace(record, metadata=msgspec.structs.replace(record.metadata, annotations=kept))


def _trim_owner(record: WatchedObject) -> WatchedObject:
    return WatchedObject(_trim_whole(record).metadata, record.spec)


def _trim_node(record: NameRecord) -> NameRecord:
    meta = record.metadata
    kept = MetaRecord(meta.name, None, meta.uid, meta.resource_version, meta.creation_timestamp)
    kept = msgspec.structs.replace(kept, labels=meta.labels, deletion_timestamp=meta.deletion_timestamp)
    return NameRecord(kept)


def _trim_name(record: NameRecord) -> NameRecord:
    meta = record.metadata
    kept = MetaRecord(meta.name, meta.namespace, meta.uid, meta.resource_version, meta.creation_timestamp)
    return NameRecord(kept)


#: Seconds for which changes of pods wait for further ones: a Job is reconciled once for the pods that start together.
_GATHER_PODS: Final = 0.05
#: Seconds for which changes of node labels wait for further ones: all HyperNodes are compared after each.
_GATHER_NODES: Final = 1.0
#: Of objects that are patched with a precondition every version counts.
_VERSIONED: Final = ("metadata.resource_version", "spec", "status")


class _TrimRule(NamedTuple):
    type: type[Any]
    trim: Callable[[Any], Any]
    reads: tuple[str, ...] | None = None


_ROWS: Final[Mapping[str, _TrimRule]] = {
    POD_GROUP: _TrimRule(WatchedObject, _trim_whole),
    QUEUE: _TrimRule(WatchedObject, _trim_whole),
    NAMESPACE_QUEUE: _TrimRule(WatchedObject, _trim_whole),
    JOB: _TrimRule(WatchedObject, _trim_whole, _VERSIONED),
    CRON_JOB: _TrimRule(WatchedObject, _trim_whole, _VERSIONED),
    COMMAND: _TrimRule(WatchedObject, _trim_whole),
    NODE: _TrimRule(NameRecord, _trim_node, ()),
    HYPER_NODE: _TrimRule(WatchedObject, _trim_whole, ("spec",)),
    REPLICA_SET: _TrimRule(WatchedWorkload, _trim_whole),
    STATEFUL_SET: _TrimRule(WatchedWorkload, _trim_whole),
    PRIORITY_CLASS: _TrimRule(WatchedObject, _trim_whole, ("value",)),
    CLAIM: _TrimRule(NameRecord, _trim_name, ()),
}
#: Kinds whose absence a controller can do without.
_OPTIONAL: Final = frozenset({PRIORITY_CLASS, CLAIM, CRON_JOB, NAMESPACE_QUEUE, NODE, HYPER_NODE})
_GATHER: Final = {POD: _GATHER_PODS, NODE: _GATHER_NODES}


class WatchedRecords:
    """The kinds that the controllers read under some rules of `ownerGroups`, and what is kept of their objects."""

    def __init__(self, rules: Sequence[OwnerRule]) -> None:
        keys = frozenset({_REVISION, *(key for rule in rules for key in rule.read_keys())})
        owners = {kind.view_name: kind.api_kind for rule in rules for kind in rule.owners}
        #: Every kind by its name in a view.
        self.resources: Mapping[str, Kind] = {**RESOURCES, **owners}
        #: Kinds of the objects with the numbers of gangs.
        self.owners = frozenset(owners)
        #: Those among them that no controller reads otherwise.
        self._foreign = self.owners - _ROWS.keys()
        #: Kinds of which an object that the cache lacks is read.
        self.fetched = FETCHED | self.owners
        self._rows = {
            POD: _TrimRule(WatchedPod, partial(_trim_pod, rules=rules, keys=keys)),
            **_ROWS,
            **dict.fromkeys(owners, _TrimRule(WatchedObject, _trim_owner, ("spec",))),
            **dict.fromkeys(_ROWS.keys() & owners, _TrimRule(WatchedObject, _trim_whole)),  # others read their status
        }
        self._decoders = {kind: msgspec.json.Decoder(row.type) for kind, row in self._rows.items()}

    def watched_kinds(self, kinds: Iterable[str]) -> tuple[WatchedKind[Any], ...]:
        """The rows for the reflectors. They deliver RecordChanged and ObjectGone."""
        wanted = set(kinds)
        return tuple(self._watched(kind) for kind in self._rows if kind in wanted)

    def _watched(self, kind: str) -> WatchedKind[Any]:
        row = self._rows[kind]
        return WatchedKind(
            row.type,
            name=kind,
            path=self.resources[kind].collection(),
            changed=_change(kind, row.trim),
            required=kind not in _OPTIONAL and kind not in self._foreign,
            expected=kind not in self._foreign and kind != NAMESPACE_QUEUE,
            reads=row.reads,
            written=kind not in self._foreign,
            explained=False,
            gather=_GATHER.get(kind, WatchedKind.gather),
        )

    def decode_change(self, kind: str, body: bytes) -> RecordChanged | None:
        """The object in the response to a write; None for an unwatched kind or a response without an object."""
        if kind not in self._rows:
            return None
        try:
            record = self._decoders[kind].decode(body)
        except msgspec.DecodeError:
            return None
        change: RecordChanged = _change(kind, self._rows[kind].trim)(record)
        return change if change.uid else None

    def path_of(self, key: Key, sub: str = "") -> str:
        """The path of an object, or of its subresource `sub`. Raises ValueError for an invalid name."""
        return object_path(self.resources[key.kind], key.namespace, key.name, sub)


#: Those under the built-in rules.
BUILT_IN: Final = WatchedRecords(built_in_rules())


def path_of(key: Key, sub: str = "") -> str:
    """The path of an object of Kubernetes or Volcano."""
    return object_path(RESOURCES[key.kind], key.namespace, key.name, sub)
