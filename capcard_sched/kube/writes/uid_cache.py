"""Uids of involved objects, for events whose intent has none: without it `kubectl describe` shows no event.

A uid is read by a list with a field selector, because the scheduler has the permission to list.
"""

from __future__ import annotations

from http import HTTPStatus
from posixpath import dirname
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.decode import METADATA_LIST
from capcard_sched.kube.paths import QUEUES, pod_path, podgroup_path
from capcard_sched.kube.writes.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.intents import ObjectRef

#: Seconds for which a uid is cached: an object may be deleted and created again under its name.
_FRESH_SECONDS = 60.0
_CAPACITY = 4096


class UidCache:
    """Reads uids and caches them for a minute."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: Lru[ObjectRef, tuple[str, float]] = Lru(_CAPACITY)

    async def uid(self, ref: ObjectRef) -> str | None:
        """The uid; None when the object does not exist. Raises ApiError or Unreachable.

        Events about nodes carry the node's name, as those of the kubelet.
        """
        if ref.uid:
            return ref.uid
        if ref.kind == "Node":
            return ref.name
        known = self._known.get(ref)
        if known is not None and self._clock() - known[1] < _FRESH_SECONDS:
            return known[0]
        uid = await self._fetch(ref)
        if uid is None:
            return None
        self._known.put(ref, (uid, self._clock()))
        return uid

    async def _fetch(self, ref: ObjectRef) -> str | None:
        if ref.kind == "Queue":
            path = QUEUES
        else:
            of_kind = pod_path if ref.kind == "Pod" else podgroup_path
            path = dirname(of_kind(ref.namespace, ref.name))
        try:
            response = await self._client.request("GET", path, params={"fieldSelector": f"metadata.name={ref.name}"})
            items = METADATA_LIST.decode(response).items or ()
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        except msgspec.DecodeError as error:
            raise Unreachable(f"the response of {path} is not a list: {error}", sent=True) from error
        return items[0].metadata.uid if items else None
