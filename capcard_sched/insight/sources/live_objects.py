"""Single objects and events of a live cluster, read when a diagnosis needs them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from capcard_sched.controllers.objects import JOB, POD_GROUP, QUEUE, Key
from capcard_sched.insight.sources.object_view import CONTROLLER_FAILURES
from capcard_sched.kube.client import ApiError, Client, RequestError
from capcard_sched.kube.controllers.records import BUILT_IN, RESOURCES
from capcard_sched.kube.decode import PAGE, ReadAhead
from capcard_sched.kube.informers import initial_deltas, list_all
from capcard_sched.kube.kinds import KINDS, WatchedKind
from capcard_sched.kube.paths import collection_path
from capcard_sched.kube.reflector import DeltaStore
from capcard_sched.model.kinds import CRD_HINT, KIND_BY_NAME
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.reasons import GROUP_EVICTED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from capcard_sched.insight.sources.object_view import Json
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.model.deltas import Delta

#: Field selectors to the reasons of the events that diagnoses read.
_EVENTS: Final = {
    f"involvedObject.kind={JOB},type=Warning": CONTROLLER_FAILURES,
    f"involvedObject.kind={QUEUE},reason=CloseQueue": {"CloseQueue"},
    f"involvedObject.kind={POD_GROUP},reason={GROUP_EVICTED.code}": {GROUP_EVICTED.code},
}
#: Resources that may be readable in one namespace only.
_NAMESPACED: Final = frozenset({"pods", "podgroups", "jobs"})


class _ListedPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base: camelCase on the wire."""


class _ListedJobTask(_ListedPart, frozen=True):
    replicas: int = 1


class _ListedJobSpec(_ListedPart, frozen=True):
    queue: str = ""
    scheduler_name: str = ""
    min_available: int = 0
    tasks: tuple[_ListedJobTask, ...] = ()


class _ListedJobState(_ListedPart, frozen=True):
    phase: str = ""
    reason: str = ""


class _ListedJobStatus(_ListedPart, frozen=True):
    state: _ListedJobState = _ListedJobState()
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    retry_count: int = 0


class ListedJob(_ListedPart, frozen=True, tag="Job", tag_field="kind"):
    """A Job (batch.volcano.sh): the fields of `job list`. The scheduler reads none."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _ListedJobSpec = _ListedJobSpec()
    status: _ListedJobStatus = _ListedJobStatus()


#: Jobs, for lists; their deltas are not for a core.
JOBS: Final[WatchedKind[Any]] = WatchedKind(
    ListedJob,
    explained=False,
    name=JOB,
    path=KIND_BY_NAME[JOB].collection(),
)


class MissingKindError(Exception):
    """The API server does not serve a required kind."""


class _Listed(msgspec.Struct):
    items: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}


def fetch_object(connection: Connection, kind: str, namespace: str, name: str) -> Json | None:
    """An object; None when it is missing, its kind is not served, or it is not readable."""
    if kind not in BUILT_IN.resources:
        return None
    try:
        body = asyncio.run(_get(connection, BUILT_IN.path_of(Key(kind, namespace, name))))
    except (RequestError, ValueError):
        return None
    found: Json = msgspec.json.decode(body)
    known = BUILT_IN.resources[kind]
    return {"apiVersion": known.api_version, "kind": known.name, **found}


def fetch_jobs(connection: Connection) -> list[Json]:
    """The whole Jobs of all namespaces; none without the right to list them, or where the kind is not served."""
    try:
        return asyncio.run(_list_whole(connection, JOB))
    except RequestError:
        return []


def fetch_explained(
    connection: Connection, namespace: str
) -> tuple[list[Json], list[Json], list[Json], ApiError | None]:
    """The whole Jobs and Deployments, and the events that diagnoses read.

    Those of `namespace` alone where those of all are not readable; none of what is not served or may not be listed.
    Last, the ApiError of the Jobs. Raises Unreachable.
    """
    refused: ApiError | None = None
    try:
        jobs = _list_readable(connection, JOB, namespace)
    except ApiError as error:
        jobs, refused = [], error
    try:
        events = [
            event
            for selector, reasons in _EVENTS.items()
            for event in _list_readable(connection, "Event", namespace, selector)
            if event.get("reason") in reasons
        ]
    except ApiError:
        events = []
    try:
        deployments = _list_readable(connection, "Deployment", namespace)
    except ApiError:
        deployments = []
    return jobs, deployments, events, refused


def _list_readable(connection: Connection, kind: str, namespace: str, selector: str = "") -> list[Json]:
    try:
        return asyncio.run(_list_whole(connection, kind, selector=selector))
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
    return asyncio.run(_list_whole(connection, kind, namespace, selector))


async def _list_whole(connection: Connection, kind: str, namespace: str = "", selector: str = "") -> list[Json]:
    """The objects of a kind, in one namespace where it is given. `selector`: of fields."""
    typed = {"apiVersion": RESOURCES[kind].api_version, "kind": kind}
    found: list[Json] = []
    params = {"limit": str(PAGE), **({"fieldSelector": selector} if selector else {})}
    async with Client(connection) as client:
        while True:
            body = await client.request("GET", RESOURCES[kind].collection(namespace), params=params, limit=2**30)
            page = msgspec.json.decode(body, type=_Listed)
            found += [{**typed, **item} for item in page.items]
            params["continue"] = str(page.metadata.get("continue") or "")
            if not params["continue"]:
                return found


def fetch_events(connection: Connection, kind: str, namespace: str, name: str) -> list[Json]:
    """The events about an object, oldest first; none without the right to list events.

    Events of cluster-scoped objects are in namespace `default`.
    """
    about = f"involvedObject.kind={kind},involvedObject.name={name}"
    try:
        body = asyncio.run(_get(connection, collection_path("Event", namespace or "default"), {"fieldSelector": about}))
    except (RequestError, ValueError):
        return []
    found = msgspec.json.decode(body, type=_Listed).items
    return sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


class ReadableLists(ReadAhead):
    """The lists of the kinds that the scheduler watches, and of `more`, as far as they are readable.

    A context manager, which requests the first lists.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        observer: Observer,
        more: Iterable[WatchedKind[Any]] = (),
        *,
        probe: bool = False,
    ) -> None:
        """`namespace`: that of pods, PodGroups and Jobs that are not readable in all namespaces; "" for none.

        `probe`: one object of each kind at most, to find the kinds.
        """
        self._wanted, self._namespace, self._observer = (*KINDS, *more), namespace, observer
        super().__init__(client, self._wanted, probe=probe)
        #: Every object so far; the number of objects so far, and with those that follow of the same kind.
        self.deltas: list[Delta] = []
        self.done = self.total = 0
        #: At the end: required resources that are not readable, as `nodes` or `pods of other namespaces`.
        self.unreadable: tuple[str, ...] = ()
        #: The kinds that are readable, with the paths that are.
        self.kinds: tuple[WatchedKind[Any], ...] = ()

    async def read(self) -> AsyncGenerator[Sequence[Delta]]:
        """The deltas of the kinds that the scheduler watches by page; an empty page for one of `more`.

        Raises ApiError when no namespace is readable, MissingKindError, and Unreachable.
        """
        unreadable: list[str] = []
        refusal: ApiError | None = None
        for number, kind in enumerate(self._wanted):
            store = DeltaStore(kind, self._observer)
            try:
                async for page in self.pages(number):
                    self.done += len(page.items)
                    self.total = self.done + page.remaining
                    yield self._kept(number, initial_deltas(kind, page, store))
                self.kinds += (kind,)
            except ApiError as error:
                if _is_missing(kind, error, self._observer):
                    continue
                if error.status != HTTPStatus.FORBIDDEN or (kind.required and not self._namespace):
                    raise
                own = _in_namespace(kind, self._namespace) if kind.resource in _NAMESPACED and self._namespace else None
                deltas = None if own is None else await _list_own(self._client, own, self._observer)
                if own is not None and deltas is not None:
                    yield self._kept(number, deltas)
                    self.kinds += (own,)
                elif not kind.required:
                    self._observer.watch(kind.resource, "forbidden", error.message)
                    continue
                refusal = refusal or error
                unreadable.append(kind.resource if deltas is None else f"{kind.resource} of other namespaces")
        if refusal is not None and not any(" of other " in resource for resource in unreadable):
            raise refusal
        self.unreadable = tuple(sorted(unreadable))

    def _kept(self, number: int, deltas: list[Delta]) -> Sequence[Delta]:
        self.deltas += deltas
        return deltas if number < len(KINDS) else ()


def _is_missing(kind: WatchedKind[Any], error: ApiError, observer: Observer) -> bool:
    """Whether the API server does not serve a kind. Raises MissingKindError for a required one."""
    if error.status != HTTPStatus.NOT_FOUND:
        return False
    if kind.required:
        raise MissingKindError(f"kind {kind.name} is not served by the API server: {CRD_HINT}") from None
    observer.watch(kind.resource, kind.unavailable(error.status), error.message)
    return True


def _in_namespace(kind: WatchedKind[Any], namespace: str) -> WatchedKind[Any]:
    group, _, resource = kind.path.rpartition("/")
    return replace(kind, path=f"{group}/namespaces/{quote(namespace)}/{resource}", required=True)


async def _list_own(client: Client, kind: WatchedKind[Any], observer: Observer) -> list[Delta] | None:
    """The objects of one namespace; None without the right to list them."""
    try:
        return await list_all(client, (kind,), observer)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return None


async def _get(connection: Connection, path: str, params: Mapping[str, str] | None = None) -> bytes:
    async with Client(connection) as client:
        return await client.request("GET", path, params=dict(params or {}))
