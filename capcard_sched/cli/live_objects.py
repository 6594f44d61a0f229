"""Objects of a live cluster for the verbs `job`, `queue` and `pod`: read, create, delete, send commands, print."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

from cyclopts import Group, Parameter

from capcard_sched.cli.exit_codes import usage_error

if TYPE_CHECKING:
    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.kube.client import Client

Output: TypeAlias = Literal["table", "wide", "json", "yaml", "name"]
OutputFlag: TypeAlias = Annotated[Output, Parameter(name=["--output", "-o"])]
WatchFlag: TypeAlias = Annotated[bool, Parameter(name=["--watch", "-w"], negative=())]
Batch: TypeAlias = "list[JsonObject]"
#: Header and value of each column.
Columns: TypeAlias = "Sequence[tuple[str, Callable[[JsonObject], object]]]"

_CLUSTER: Final = Group("The cluster", sort_key=2)
#: Objects per page of a list.
_PAGE: Final = "500"
#: Seconds between two attempts to watch.
_PAUSE: Final = 1.0
_T = TypeVar("_T")


class RequestFailedError(Exception):
    """The API server rejected a request or cannot be reached; the text is for users."""


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

    async def list(self, kind: str, *, namespace: str | None, labels: str = "", fields: str = "") -> list[JsonObject]:
        """All objects of a kind in a namespace; with None in all of them."""
        found, _ = await self._list(kind, namespace, _selectors(labels, fields))
        return found

    async def list_and_watch(
        self, kind: str, *, namespace: str | None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Batch]:
        """All objects of a kind, then each one that changes, for ever; all of them again when changes were missed."""
        import msgspec

        from capcard_sched.kube.client import ApiError, Unreachable
        from capcard_sched.kube.controllers.records import RESOURCES
        from capcard_sched.kube.decode import LineBuffer

        selectors = _selectors(labels, fields)
        found, version = await self._list(kind, namespace, selectors)
        yield found
        while True:
            if not version:
                found, version = await self._list(kind, namespace, selectors)
                yield found
            params = {**selectors, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
            buffer = LineBuffer()
            try:
                async with self._client.stream(RESOURCES[kind].collection(namespace or ""), params) as stream:
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

    async def _list(self, kind: str, namespace: str | None, selectors: dict[str, str]) -> tuple[Batch, str]:
        """The objects and the version of the list."""
        from capcard_sched.kube.controllers.records import RESOURCES

        path = RESOURCES[kind].collection(namespace or "")
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
        """One object."""
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

    async def command(self, action: str, target: JsonObject) -> None:
        """Create a Command for an object."""
        from capcard_sched.controllers.objects import BUS_API, COMMAND

        meta = target["metadata"]
        reference = {field: target[field] for field in ("apiVersion", "kind")} | {
            field: meta[field] for field in ("name", "uid")
        }
        metadata = {
            "generateName": f"{meta['name']}-{action.lower()}-",
            "namespace": meta.get("namespace") or self.namespace,
        }
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
            answer = await self._client.request(
                method, path, params=params, body=content, content_type=kind, limit=2**30
            )
        except ApiError as error:
            raise RequestFailedError(error.message) from None
        except Unreachable as error:
            raise RequestFailedError(f"{self._client.connection.server}: {error}") from None
        found: JsonObject = msgspec.json.decode(answer)
        return found


def _selectors(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {name: text for name, text in given.items() if text}


def with_objects(live: Live, work: Callable[[LiveObjects], Coroutine[Any, Any, _T]]) -> _T | int:
    """Run `work` on the cluster; the exit status of an error instead of its result."""
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import ConnectionConfigError, load_connection

    async def run() -> _T:
        async with Client(connection) as client:
            return await work(LiveObjects(client, live.namespace or connection.namespace or "default"))

    try:
        connection = load_connection(
            str(live.kubeconfig) if live.kubeconfig is not None else None, None, live.context or None
        )
        return asyncio.run(run())
    except (ConnectionConfigError, RequestFailedError) as error:
        return usage_error(str(error))


async def show_objects(
    batches: AsyncIterator[Batch],
    columns: Columns,
    wide: Columns,
    output: Output,
    keep: Callable[[JsonObject], bool] = lambda _: True,
) -> int:
    """Print objects of `list_and_watch` as they come, until the reader is gone: a row or a document each."""
    shown = [*columns, *(wide if output == "wide" else ())]
    widths: list[int] = []
    async for batch in batches:
        kept = [obj for obj in batch if keep(obj)]
        if output in {"table", "wide"}:
            headers = [] if widths else [[header for header, _ in shown]]
            widths = print_rows([*headers, *([value(obj) for _, value in shown] for obj in kept)], widths)
        else:
            for obj in kept:
                if output == "yaml":
                    print("---")
                print_one(obj, columns, wide, output)
        sys.stdout.flush()
    return 0


def print_objects(objects: Sequence[JsonObject], columns: Columns, wide: Columns, output: Output) -> None:
    """Print objects in the selected format; a table has two spaces between columns."""
    if output in {"json", "yaml"}:
        document: Any = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        print_document(document, output)
    elif output == "name":
        for obj in objects:
            group = obj["apiVersion"].partition("/")[0] if "/" in obj["apiVersion"] else ""
            print(f"{obj['kind'].lower()}{'.' + group if group else ''}/{obj['metadata']['name']}")
    elif not objects:
        print("No resources found", file=sys.stderr)
    else:
        shown = [*columns, *(wide if output == "wide" else ())]
        print_table([header for header, _ in shown], [[value(obj) for _, value in shown] for obj in objects])


def print_one(obj: JsonObject, columns: Columns, wide: Columns, output: Output) -> None:
    """Print one object; JSON and YAML without a list around it."""
    if output in {"json", "yaml"}:
        print_document(obj, output)
    else:
        print_objects([obj], columns, wide, output)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns."""
    print_rows([headers, *rows])


def print_rows(rows: Iterable[Sequence[object]], widths: Sequence[int] = ()) -> list[int]:
    """Print left-aligned columns of at least `widths` characters; returns their widths."""
    texts = [[str(value) for value in row] for row in rows]
    least = [[" " * width for width in widths]] if widths else []
    if not texts:
        return list(widths)
    found = [max(map(len, column)) for column in zip(*texts, *least, strict=True)]
    for row in texts:
        print("  ".join(text.ljust(width) for text, width in zip(row, found, strict=True)).rstrip())
    return found


def print_document(document: JsonObject, output: Output) -> None:
    """Print one document as JSON or YAML."""
    if output == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        import yaml

        print(yaml.safe_dump(document, sort_keys=False), end="")
