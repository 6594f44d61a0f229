"""The CustomResourceDefinition of ProvisioningRequests: its fields alone, for an API server without an autoscaler."""

from __future__ import annotations

import time
from typing import Any, Final

from capcard_sched.model.timestamps import format_timestamp
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest

PROVISIONING: Final = "provisioningrequests"
_TEXT: Final[Manifest] = {"type": "string"}


def _object(required: tuple[str, ...] = (), **properties: Any) -> Manifest:
    return {"type": "object", "properties": properties, **({"required": [*required]} if required else {})}


def _list(items: Manifest, **limits: int) -> Manifest:
    return {"type": "array", "items": items, **limits}


def definition() -> Manifest:
    """Fields, limits and the immutable spec of autoscaling.x-k8s.io/v1."""
    pod_set = _object(
        ("count", "podTemplateRef"),
        count={"type": "integer", "format": "int32", "minimum": 1},
        podTemplateRef=_object(name=_TEXT),
    )
    spec = _object(
        ("podSets", "provisioningClassName"),
        parameters={"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}},
        podSets=_list(pod_set, minItems=1, maxItems=32),
        provisioningClassName={"type": "string", "maxLength": 253},
    )
    spec["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "the spec is immutable"}]
    condition = _object(
        ("lastTransitionTime", "message", "reason", "status", "type"),
        lastTransitionTime={"type": "string", "format": "date-time"},
        message=_TEXT,
        observedGeneration={"type": "integer", "format": "int64"},
        reason=_TEXT,
        status=_TEXT,
        type=_TEXT,
    )
    details = {"type": "object", "additionalProperties": _TEXT}
    status = _object(conditions=_list(condition), provisioningClassDetails=details)
    names = {"plural": PROVISIONING, "singular": "provisioningrequest", "kind": "ProvisioningRequest",
             "shortNames": ["provreq"], "listKind": "ProvisioningRequestList"}  # fmt: skip
    root = _object(("spec",), apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, status=status)
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The API server reserves the domain for reviewed definitions.
        "metadata": {
            "name": f"{PROVISIONING}.autoscaling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": "autoscaling.x-k8s.io",
            "names": names,
            "scope": "Namespaced",
            "versions": [{**version, "schema": {"openAPIV3Schema": root}}],
        },
    }


async def serve_provisioning(cluster: Cluster) -> None:
    """Apply the definition, and wait until the API server serves it."""
    await cluster.apply(definition())

    async def is_served() -> bool:
        return definition()["metadata"]["name"] in await cluster._resources(fresh=True)

    await cluster.wait_until(is_served, "ProvisioningRequests to be served")


async def without_provisioning(cluster: Cluster) -> None:
    """Wait until the API server has dropped the kind of an earlier test."""

    async def is_gone() -> bool:
        return definition()["metadata"]["name"] not in await cluster._resources(fresh=True)

    await cluster.wait_until(is_gone, "ProvisioningRequests to be dropped")


async def set_condition(cluster: Cluster, name: str, kind: str, message: str = "", *, before: float = 0.0) -> None:
    """What an autoscaler does: a condition of a request is True. `before`: for how many seconds."""
    found = await cluster.get(PROVISIONING, name)
    stamp = format_timestamp(time.time() - before)
    row = {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": stamp}
    former = (found.get("status") or {}).get("conditions") or []
    await cluster.patch(PROVISIONING, name, {"status": {"conditions": [*former, row]}}, subresource="status")
