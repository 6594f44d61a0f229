"""API paths of objects, and the RBAC names of paths."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from capcard_sched.model.kinds import KIND_BY_NAME, Kind

_LEASE: Final = Kind("Lease", "coordination.k8s.io/v1", "leases")
#: Names that need no quoting: nearly all; quoting takes ten times as long as this check.
_PLAIN: Final = re.compile(r"[A-Za-z0-9.-]+")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def collection_path(kind: Kind | str, namespace: str = "") -> str:
    """Path of the objects of a kind, or of the name of one, in a namespace or in all."""
    found = kind if isinstance(kind, Kind) else _LEASE if kind == _LEASE.name else KIND_BY_NAME[kind]
    return found.collection(_segment(namespace) if namespace else "")


def object_path(kind: Kind | str, namespace: str, name: str, sub: str = "") -> str:
    """Path of an object, or of its subresource `sub`; `namespace` is "" for cluster-scoped kinds.

    Raises ValueError for invalid names ("", "." and ".."): they would address another resource.
    """
    path = f"{collection_path(kind, namespace)}/{_segment(name)}"
    return f"{path}/{sub}" if sub else path


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
