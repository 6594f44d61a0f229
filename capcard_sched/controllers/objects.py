"""API objects as JSON: names of the kinds that controllers read and write, and access to the usual fields."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.kinds import APPS_API as APPS_API  # noqa: PLC0414 -- a re-export
from capcard_sched.model.kinds import BATCH_API as BATCH_API  # noqa: PLC0414 -- a re-export
from capcard_sched.model.kinds import BUS_API as BUS_API  # noqa: PLC0414 -- a re-export
from capcard_sched.model.kinds import NETWORKING_API as NETWORKING_API  # noqa: PLC0414 -- a re-export
from capcard_sched.model.kinds import SCHEDULING_API as SCHEDULING_API  # noqa: PLC0414 -- a re-export
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.ownership import Owner, owner_of

#: An API object as JSON. Values in a view are never changed in place.
JsonObject: TypeAlias = dict[str, Any]

POD: Final = "Pod"
NODE: Final = "Node"
HYPER_NODE: Final = "HyperNode"
SERVICE: Final = "Service"
CONFIG_MAP: Final = "ConfigMap"
SECRET: Final = "Secret"  # noqa: S105 - the name of a kind
CLAIM: Final = "PersistentVolumeClaim"
EVENT: Final = "Event"
NETWORK_POLICY: Final = "NetworkPolicy"
DEPLOYMENT: Final = "Deployment"
REPLICA_SET: Final = "ReplicaSet"
STATEFUL_SET: Final = "StatefulSet"
DAEMON_SET: Final = "DaemonSet"
PRIORITY_CLASS: Final = "PriorityClass"
QUEUE: Final = "Queue"
POD_GROUP: Final = "PodGroup"
JOB: Final = "Job"
CRON_JOB: Final = "CronJob"
COMMAND: Final = "Command"

ENDED_PHASES: Final = ("Succeeded", "Failed")
ROOT_QUEUE: Final = "root"
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
#: Characters of a DNS label, and those of its digest, which makes names of volumes distinct.
_LABEL_LENGTH: Final = 63
_DIGEST_LETTERS: Final = 8


class Key(NamedTuple):
    """An object: kind, namespace ("" for cluster-scoped kinds), name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def meta(obj: JsonObject) -> JsonObject:
    """`metadata`. Raises KeyError when absent."""
    metadata: JsonObject = obj["metadata"]
    return metadata


def spec(obj: JsonObject) -> JsonObject:
    """`spec`, {} when absent."""
    return obj.get("spec") or {}


def status(obj: JsonObject) -> JsonObject:
    """`status`, {} when absent."""
    return obj.get("status") or {}


def annotations_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.annotations`, {} when absent."""
    return meta(obj).get("annotations") or {}


def deletion_cost(pod: JsonObject) -> int:
    """The cost of a pod of a ReplicaSet that shrinks: it deletes those of lower costs first. 0 for an invalid one."""
    text = annotations_of(pod).get(POD_DELETION_COST, "0")
    cost = whole_number(text.removeprefix("-"))
    return 0 if cost is None else -cost if text.startswith("-") else cost


def labels_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.labels`, {} when absent."""
    return meta(obj).get("labels") or {}


def key_of(obj: JsonObject) -> tuple[str, str]:
    """Namespace ("" for cluster-scoped kinds) and name."""
    metadata = meta(obj)
    return metadata.get("namespace") or "", metadata["name"]


def is_terminating(obj: JsonObject) -> bool:
    """Whether a deletion timestamp is set."""
    return bool(meta(obj).get("deletionTimestamp"))


def has_ended(pod: JsonObject) -> bool:
    """Whether the pod is Succeeded or Failed."""
    return status(pod).get("phase") in ENDED_PHASES


def job_phase(job: JsonObject) -> str:
    """`status.state.phase` of a Job, "" when absent."""
    return (status(job).get("state") or {}).get("phase") or ""


def controller_of(obj: JsonObject) -> JsonObject | None:
    """The owner reference with `controller: true`, if it is complete: an API server accepts no other."""
    for owner in meta(obj).get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner) if owner.get("uid") and owner.get("kind") and owner.get("name") else None
    return None


def controller_key(obj: JsonObject) -> Owner | None:
    """The identity of the object that owns `obj`, None without a controller."""
    found = controller_of(obj)
    if found is None:
        return None
    return owner_of(key_of(obj)[0], str(found.get("apiVersion") or ""), found["kind"], found["name"], found["uid"])


def identity(obj: JsonObject) -> Owner:
    namespace, name = key_of(obj)
    return owner_of(namespace, obj.get("apiVersion") or "", obj.get("kind") or "", name, meta(obj).get("uid") or "")


def is_owned(obj: JsonObject, owner: JsonObject) -> bool:
    """Whether `owner` is the controller of `obj`."""
    return controller_key(obj) == identity(owner)


def owner_reference(owner: JsonObject) -> JsonObject:
    """The controller reference to `owner`."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta(owner)["name"],
        "uid": meta(owner)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def volume_name(name: str) -> str:
    """The name of a volume after that of an object: at most 63 characters, and no dots, which names of objects have."""
    if len(name) <= _LABEL_LENGTH and "." not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
    head = name.replace(".", "-")[: _LABEL_LENGTH - 1 - _DIGEST_LETTERS]
    return f"{head}-{digest}"


def merge_diff(old: JsonObject, new: JsonObject) -> JsonObject:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`; {} when they are equal."""
    patch: JsonObject = dict.fromkeys(key for key in old if key not in new)
    for key, wanted in new.items():
        present = old.get(key)
        if isinstance(wanted, dict) and isinstance(present, dict):
            inner = merge_diff(present, wanted)
            if inner:
                patch[key] = inner
        elif key not in old or present != wanted or isinstance(present, bool) is not isinstance(wanted, bool):
            patch[key] = wanted
    return patch
