"""From pod templates to pods: names, labels, owners."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.simulation.kinds import JsonObject, meta

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The letters of generated names: no vowels, so no words; no 0, 1 or 3.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
POD_TEMPLATE_HASH = "pod-template-hash"


def spelled(number: int, length: int) -> str:
    """`length` letters and digits that stand for a number, lowest digits last, wrapping around."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(reversed(letters))


def digest(value: Any, length: int = 10) -> str:
    """A name for a JSON value: equal values, equal names."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return spelled(int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big"), length)


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


def pod_from(
    template: JsonObject,
    *,
    name: str,
    owner: JsonObject,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: JsonObject | None = None,
) -> JsonObject:
    """A pod of `owner`, in its namespace. `labels`, `annotations` and `spec` go over what the template says."""
    described = template.get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "namespace": meta(owner)["namespace"],
        "ownerReferences": [owner_reference(owner)],
    }
    for field, more in (("labels", labels), ("annotations", annotations)):
        merged = {**(described.get(field) or {}), **(more or {})}
        if merged:
            metadata[field] = merged
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**(template.get("spec") or {}), **(spec or {})},
    }
