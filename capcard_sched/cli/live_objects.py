"""Objects of a live cluster for the verbs `job` and `queue`: read, follow, create, delete, send commands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from cyclopts import Group, Parameter

from capcard_sched.cli.exit_codes import READER_HINT, usage_error
from capcard_sched.cli.lists import OutputFlag, Printer, WatchFlag, print_document
from capcard_sched.cli.output import put
from capcard_sched.model.kinds import CRD_HINT

if TYPE_CHECKING:
    from capcard_sched.cli.lists import Listing
    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.kube.client import Client

Batch: TypeAlias = "list[JsonObject]"

_CLUSTER: Final = Group("The cluster", sort_key=2)
#: Objects per page of a list.
_PAGE: Final = "500"
#: Messages of an API server for kinds that it does not serve.
_UNSERVED: Final = frozenset({"404 page not found", "the server could not find the requested resource"})
#: Seconds between two attempts to watch.
_PAUSE: Final = 1.0
_T = TypeVar("_T")


class RequestFailedError(Exception):
    """The API server rejected a request or cannot be reached; the text is for users."""


class AbsentError(RequestFailedError):
    """An object does not exist, or the API server does not serve its kind."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Live:
    """Flags that select the cluster and the namespace."""

    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], group=_CLUSTER, show_default=False)] = ""
    """Namespace. Default: that of the kubeconfig's context."""

    kubeconfig: Annotated[Path | None, Parameter(group=_CLUSTER)] = None
    """Kubeconfig file. Default: the one kubectl uses."""

    context: Annotated[str, Parameter(group=_CLUSTER, show_default=False, metavar="NAME")] = ""
    """Context of the kubeconfig. Default: its current context."""


class LiveObjects:
    """Requests of one verb. Raises RequestFailedError."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def list(self, kind: str) -> list[JsonObject]:
        """All objects of a kind in all namespaces."""
        found, _ = await self._list(kind, "", {})
        return found

    async def read_optional(self, path: str) -> JsonObject | None:
        """The object or list at a path; None where it does not exist, or its kind is not served."""
        try:
            return await self._request("GET", path)
        except AbsentError:
            return None

    async def watch_one(self, kind: str, name: str) -> AsyncIterator[Batch]:
        """An object, and again whenever it changes or changes were missed, for ever."""
        import msgspec

        from capcard_sched.kube.client import ApiError, Unreachable
        from capcard_sched.kube.controllers.records import RESOURCES
        from capcard_sched.kube.decode import LineBuffer

        selectors, namespace = {"fieldSelector": f"metadata.name={name}"}, self._scope(kind)
        found, version = await self._list(kind, namespace, selectors)
        yield found
        while True:
            if not version:
                found, version = await self._list(kind, namespace, selectors)
                yield found
            params = {**selectors, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
            buffer = LineBuffer()
            try:
                async with self._client.stream(RESOURCES[kind].collection(namespace), params) as stream:
                    while piece := await stream.read():
                        for event in map(msgspec.json.decode, buffer.feed(piece).splitlines()):
                            if event["type"] == "ERROR":  # the version is too old
                                version = ""
                                break
                            version = event["object"]["metadata"]["resourceVersion"]
                            if event["type"] != "BOOKMARK":
                                yield [event["object"]]
                        if not version:
                            break
            except ApiError as error:
                if error.status != HTTPStatus.GONE:
                    raise RequestFailedError(error.message) from None
                version = ""
            except (Unreachable, TimeoutError):
                await asyncio.sleep(_PAUSE)

    async def _list(self, kind: str, namespace: str, selectors: dict[str, str]) -> tuple[Batch, str]:
        """The objects and the version of the list."""
        from capcard_sched.kube.controllers.records import RESOURCES

        path = RESOURCES[kind].collection(namespace)
        params = {"limit": _PAGE, **selectors}
        found: list[JsonObject] = []
        while True:
            page = await self._request("GET", path, params=params)
            typed = {"apiVersion": RESOURCES[kind].api_version, "kind": kind}
            found += [{**typed, **item} for item in page.get("items") or ()]
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return found, metadata.get("resourceVersion", "")
            params["continue"] = metadata["continue"]

    async def get(self, kind: str, name: str) -> JsonObject:
        """One object. Raises RequestFailedError."""
        return await self._request("GET", self._path(kind, name))

    async def create(self, obj: JsonObject) -> JsonObject:
        """Create an object in its namespace, else in the selected one."""
        from capcard_sched.kube.controllers.records import RESOURCES

        kind, namespace = obj["kind"], obj["metadata"].get("namespace") or self._scope(obj["kind"])
        return await self._request("POST", RESOURCES[kind].collection(namespace), obj)

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object and, in the background, its dependents."""
        await self._request("DELETE", self._path(kind, name), {"propagationPolicy": "Background"})

    async def patch(self, kind: str, name: str, patch: JsonObject) -> None:
        """Merge-patch an object."""
        await self._request("PATCH", self._path(kind, name), patch)

    async def command(self, action: str, kind: str, name: str) -> None:
        """Create a Command for an object."""
        from capcard_sched.controllers.objects import BUS_API, COMMAND

        target = await self.get(kind, name)
        meta = target["metadata"]
        reference = {"apiVersion": target["apiVersion"], "kind": kind, "name": meta["name"], "uid": meta["uid"]}
        namespace = meta.get("namespace") or self.namespace
        metadata = {"generateName": f"{meta['name']}-{action.lower()}-", "namespace": namespace}
        body = {"apiVersion": BUS_API, "kind": COMMAND, "metadata": metadata, "action": action, "target": reference}
        await self.create(body)

    def _scope(self, kind: str) -> str:
        return "" if kind == "Queue" else self.namespace

    def _path(self, kind: str, name: str) -> str:
        from capcard_sched.controllers.objects import Key
        from capcard_sched.kube.controllers.records import path_of

        try:
            return path_of(Key(kind, self._scope(kind), name))
        except ValueError as error:
            raise RequestFailedError(str(error)) from None

    async def _request(
        self, method: str, path: str, body: JsonObject | None = None, *, params: dict[str, str] | None = None
    ) -> JsonObject:
        import msgspec

        from capcard_sched.kube.client import ApiError, Unreachable
        from capcard_sched.kube.writes.requests import MERGE

        content = None if body is None else msgspec.json.encode(body)
        kind = MERGE if method == "PATCH" else "application/json"
        try:
            response = await self._client.request(
                method, path, params=params, body=content, content_type=kind, limit=2**30
            )
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND and error.message in _UNSERVED:
                resource = path.partition("/apis/")[2].split("/")
                group = "/".join(resource[:2])
                text = f"{group} is not served by the API server: {CRD_HINT}"
                raise AbsentError(text) from None
            if error.status == HTTPStatus.NOT_FOUND:
                raise AbsentError(error.message) from None
            forbidden = method == "GET" and error.status == HTTPStatus.FORBIDDEN
            hint = f"; missing rights: {READER_HINT}" if forbidden else ""
            raise RequestFailedError(f"{error.message}{hint}") from None
        except Unreachable as error:
            raise RequestFailedError(f"{self._client.connection.server}: {error}") from None
        found: JsonObject = msgspec.json.decode(response)
        return found


def with_objects(live: Live, work: Callable[[LiveObjects], Coroutine[Any, Any, _T]]) -> _T | int:
    """Run `work` on the cluster; the exit status of an error instead of its result."""
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import ConnectionConfigError, load_connection

    async def run() -> _T:
        async with Client(connection) as client:
            return await work(LiveObjects(client, live.namespace or connection.namespace or "default"))

    try:
        connection = load_connection(live.kubeconfig, None, live.context or None)
        return asyncio.run(run())
    except (ConnectionConfigError, RequestFailedError) as error:
        return usage_error(str(error))


def change_object(
    live: Live, verb: str, kind: str, name: str, change: Callable[[LiveObjects], Coroutine[Any, Any, object]]
) -> int:
    """Change one object, and print the success of the verb."""

    async def work(objects: LiveObjects) -> int:
        await change(objects)
        put(f"{verb} {kind.lower()} {name} successfully")
        return 0

    return with_objects(live, work)


def object_change(kind: str, verb: str, text: str, action: str = "") -> Callable[..., int]:
    """A verb that sends a command to one object, or deletes it without an `action`. `text`: its help."""

    def change(name: str, *, live: Live = Live()) -> int:
        def work(objects: LiveObjects) -> Coroutine[Any, Any, None]:
            return objects.command(action, kind, name) if action else objects.delete(kind, name)

        return change_object(live, verb, kind, name, work)

    change.__doc__ = f"{text}\n\nArgs:\n    name: The {_noun(kind)}."
    return change


def object_show(
    listing: Listing,
    text: str,
    complete: Callable[[LiveObjects, JsonObject], Coroutine[Any, Any, JsonObject]] | None = None,
    reference: Callable[[str, str], tuple[str, str, str]] | None = None,
) -> Callable[..., int]:
    """The verb `get`. `text`: its help. `complete` adds the figures of a table to an object.

    `reference`: kind, namespace and name of the object of an argument in the selected namespace.
    """

    def get(name: str, *, watch: WatchFlag = False, output: OutputFlag = "table", live: Live = Live()) -> int:
        printer = Printer(listing, output)

        async def show(objects: LiveObjects, obj: JsonObject) -> None:
            if output in {"json", "yaml"}:
                if watch and output == "yaml":
                    put("---")
                print_document(obj, output)
                sys.stdout.flush()
            else:
                printer.print_items([obj if complete is None else await complete(objects, obj)])

        async def work(objects: LiveObjects) -> int:
            kind, own = listing.kind, name
            if reference is not None:
                kind, objects.namespace, own = reference(name, objects.namespace)
            found = await objects.get(kind, own)  # an unknown name is an error
            if not watch:
                await show(objects, found)
                return 0
            async for batch in objects.watch_one(kind, own):
                for obj in batch:
                    await show(objects, obj)
            return 0

        return with_objects(live, work)

    kind = _noun(listing.kind)
    get.__doc__ = f"""{text}

Args:
    name: The {kind}.
    watch: Print the {kind} again whenever it changes.
    output: Output format.
"""
    return get


def _noun(kind: str) -> str:
    return "queue" if kind == "Queue" else kind
