"""Single objects and events of a live cluster, read when a diagnosis needs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.controllers.records import RESOURCES
from capcard_sched.kube.paths import events_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.insight.object_view import Json
    from capcard_sched.kube.connection import Connection


class _Listed(msgspec.Struct):
    items: list[dict[str, Any]] = []


def fetch_object(connection: Connection, kind: str, namespace: str, name: str) -> Json | None:
    """An object; None when it is missing, its kind is not served, or it is not readable."""
    resource = RESOURCES.get(kind)
    if resource is None:
        return None
    try:
        body = asyncio.run(_get(connection, resource.path(namespace, name)))
    except (ApiError, Unreachable, ValueError):
        return None
    found: Json = msgspec.json.decode(body)
    return {"apiVersion": resource.api_version, "kind": kind, **found}


def fetch_events(connection: Connection, kind: str, namespace: str, name: str) -> list[Json]:
    """The events about an object, oldest first; none without the right to list events.

    Events of cluster-scoped objects are in namespace `default`.
    """
    about = f"involvedObject.kind={kind},involvedObject.name={name}"
    try:
        body = asyncio.run(_get(connection, events_path(namespace or "default"), {"fieldSelector": about}))
    except (ApiError, Unreachable, ValueError):
        return []
    found = msgspec.json.decode(body, type=_Listed).items
    return sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


async def _get(connection: Connection, path: str, params: Mapping[str, str] | None = None) -> bytes:
    async with Client(connection) as client:
        return await client.request("GET", path, params=dict(params or {}))
