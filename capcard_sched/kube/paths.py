"""API paths of objects, and the RBAC names of paths."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

CORE: Final = "/api/v1"
SCHEDULING: Final = "/apis/scheduling.volcano.sh/v1beta1"
COORDINATION: Final = "/apis/coordination.k8s.io/v1"

PODS: Final = f"{CORE}/pods"
NODES: Final = f"{CORE}/nodes"
NAMESPACES: Final = f"{CORE}/namespaces"
QUEUES: Final = f"{SCHEDULING}/queues"

#: Names that need no quoting: nearly all; quoting takes ten times as long as this check.
_PLAIN: Final = re.compile(r"[A-Za-z0-9.-]+")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def object_path(api: str, resource: str, name: str, *, namespace: str = "", sub: str = "") -> str:
    """Path of an object, from such as `/api/v1`, `pods`, a name, a namespace and a subresource.

    Raises ValueError for invalid names ("", "." and ".."): they would address another resource.
    """
    path = f"{api}/namespaces/{_segment(namespace)}/{resource}" if namespace else f"{api}/{resource}"
    return f"{path}/{_segment(name)}/{sub}" if sub else f"{path}/{_segment(name)}"


def pod_path(namespace: str, name: str, sub: str = "") -> str:
    """A pod, or its `binding`, `eviction` or `status`."""
    return object_path(CORE, "pods", name, namespace=namespace, sub=sub)


def node_path(name: str, sub: str = "") -> str:
    """A node."""
    return object_path(CORE, "nodes", name, sub=sub)


def podgroup_path(namespace: str, name: str, sub: str = "") -> str:
    """A PodGroup of scheduling.volcano.sh."""
    return object_path(SCHEDULING, "podgroups", name, namespace=namespace, sub=sub)


def queue_path(name: str, sub: str = "") -> str:
    """A Queue of scheduling.volcano.sh, or its `status`."""
    return object_path(SCHEDULING, "queues", name, sub=sub)


def config_maps(namespace: str) -> str:
    """The ConfigMaps of a namespace."""
    return f"{CORE}/namespaces/{_segment(namespace)}/configmaps"


def claim_path(namespace: str, name: str) -> str:
    """A PersistentVolumeClaim."""
    return object_path(CORE, "persistentvolumeclaims", name, namespace=namespace)


def volume_path(name: str) -> str:
    """A PersistentVolume."""
    return object_path(CORE, "persistentvolumes", name)


def events_path(namespace: str, name: str = "") -> str:
    """The events of a namespace, or a single event."""
    collection = f"{CORE}/namespaces/{_segment(namespace)}/events"
    return f"{collection}/{_segment(name)}" if name else collection


def leases_path(namespace: str) -> str:
    """The Leases of a namespace."""
    return f"{COORDINATION}/namespaces/{_segment(namespace)}/leases"


def lease_path(namespace: str, name: str) -> str:
    """A Lease."""
    return object_path(COORDINATION, "leases", name, namespace=namespace)


def _segment(name: str) -> str:
    if name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is not a valid name of an object")
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def resource_of(path: str) -> tuple[str, bool]:
    """RBAC resource of a path, and whether it is a collection: `("pods/binding", False)`, `("nodes", True)`.

    A path that is not a resource (`/version`) is returned unchanged.
    """
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        rest = rest[2:]
    if not rest:
        return path, False
    return (f"{rest[0]}/{'/'.join(rest[2:])}" if len(rest) > 2 else rest[0]), len(rest) == 1


def verb_of(method: str, *, collection: bool, watch: bool = False) -> str:
    """RBAC verb of a request."""
    if method == "GET":
        return "watch" if watch else "list" if collection else "get"
    if method == "DELETE" and collection:
        return "deletecollection"
    return _VERBS.get(method, method.lower())
