"""Single objects and events of a live cluster, read when a diagnosis needs them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from capcard_sched.controllers.objects import Key
from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.controllers.records import RESOURCES, path_of
from capcard_sched.kube.informers import list_all
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.paths import events_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.insight.object_view import Json
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Resources that may be readable in one namespace only.
_NAMESPACED: Final = frozenset({"pods", "podgroups"})


class MissingKindError(Exception):
    """The API server does not serve a required kind."""


class _Listed(msgspec.Struct):
    items: list[dict[str, Any]] = []


def fetch_object(connection: Connection, kind: str, namespace: str, name: str) -> Json | None:
    """An object; None when it is missing, its kind is not served, or it is not readable."""
    if kind not in RESOURCES:
        return None
    try:
        body = asyncio.run(_get(connection, path_of(Key(kind, namespace, name))))
    except (ApiError, Unreachable, ValueError):
        return None
    found: Json = msgspec.json.decode(body)
    return {"apiVersion": RESOURCES[kind].api_version, "kind": kind, **found}


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


async def list_readable(client: Client, namespace: str, observer: Observer) -> tuple[list[Delta], tuple[str, ...]]:
    """Every object the scheduler watches, and the required resources that are not readable.

    Pods and PodGroups that are not readable in all namespaces are listed in `namespace`. Raises ApiError when no
    namespace is readable, MissingKindError, and Unreachable.
    """
    found: list[Delta] = []
    unreadable: list[str] = []
    refusal: ApiError | None = None
    for kind in KINDS:
        try:
            found += await list_all(client, (kind,), observer)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                text = f"kind {kind.name} is not served by the API server: install the CustomResourceDefinitions"
                raise MissingKindError(text) from None
            if error.status != HTTPStatus.FORBIDDEN or not namespace:
                raise
            refusal = refusal or error
            unreadable.append(kind.resource)
            if kind.resource in _NAMESPACED:
                found += await _in_namespace(client, kind, namespace, observer, unreadable)
    if refusal is not None and not any(" of other " in resource for resource in unreadable):
        raise refusal
    return found, tuple(sorted(unreadable))


async def _in_namespace(
    client: Client, kind: WatchedKind[Any], namespace: str, observer: Observer, unreadable: list[str]
) -> list[Delta]:
    """The objects of one namespace; `unreadable` then names the others."""
    group, _, resource = kind.path.rpartition("/")
    path = f"{group}/namespaces/{quote(namespace)}/{resource}"
    try:
        found = await list_all(client, (replace(kind, path=path),), observer)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return []
    unreadable[-1] = f"{resource} of other namespaces"
    return found


async def _get(connection: Connection, path: str, params: Mapping[str, str] | None = None) -> bytes:
    async with Client(connection) as client:
        return await client.request("GET", path, params=dict(params or {}))
