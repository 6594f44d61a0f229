"""Reads every object of a live cluster that the scheduler reads, and the installed scheduler-conf."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched.cli.cache_client import FLAG, VARIABLE, CacheError, connect
from capcard_sched.cli.inputs import READER_HINT, BadInputError
from capcard_sched.cli.output import put_error
from capcard_sched.reports.progress import shown_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.object_view import DeltaObjects
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Gets the text of the installed scheduler-conf, in a thread of its own while the API server makes the first lists;
#: its result takes in the objects, page by page.
Receiver: TypeAlias = "Callable[[str | None], Callable[[Sequence[Delta]], None]]"

#: In a cache: what reads the cluster that it holds.
_HELD: Final[list[Reader]] = []
_CONF_KEY: Final = "scheduler.yaml"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
#: Watch event of an optional kind to the text of its note.
_UNREAD: Final = {"missing": "not served by the API server", "forbidden": "access denied"}


class LiveCluster(NamedTuple):
    """What one read of a live cluster found."""

    connection: Connection
    #: Text of the installed scheduler-conf; None when it is missing, not readable, or replaced by a flag.
    conf: str | None
    #: Every object that the scheduler watches, and Jobs when a verb reads them.
    deltas: Iterable[Delta]
    #: Required resources that are not readable.
    unreadable: tuple[str, ...]
    #: The kinds that are readable.
    kinds: tuple[WatchedKind[Any], ...]
    #: Set by a cache: a core that has taken in the objects, and the view of them.
    core: Core | None = None
    objects: DeltaObjects | None = None


class ClusterRequest(NamedTuple):
    """What a verb reads of a live cluster."""

    kubeconfig: Path | None
    #: Context of the kubeconfig; "" for its current one.
    context: str
    #: The ConfigMap of the scheduler-conf, `namespace/name`; "" for none.
    conf_name: str
    #: The one to read where the objects of all namespaces are not readable; "" for that of the kubeconfig's context.
    namespace: str
    #: Read the Jobs, too.
    jobs: bool
    receiver: Receiver | None


def read_cluster(request: ClusterRequest) -> LiveCluster:
    """Read a cluster. Raises BadInputError, and what the receiver raises."""
    import asyncio

    import uvloop

    connection = connection_of(request.kubeconfig, request.context)
    found: list[LiveCluster] = []  # not the result of the task: asyncio formats results as text

    async def read() -> None:
        found.append(await _read_lists(connection, request))

    # uvloop decrypts a list in three quarters of the time.
    with api_errors(connection), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(read())
    return found[0]


#: `read_cluster`, or the same from memory.
Reader: TypeAlias = "Callable[[ClusterRequest], LiveCluster]"


class DeclinedError(BaseException):
    """The client of a cache is to run the verb itself. No error of a verb: each would print it."""


def hold(read: Reader) -> None:
    """Let every verb read live clusters with a function from now on: in a cache."""
    _HELD.append(read)


def reader(cache: str | None) -> Reader:
    """The function that reads live clusters. `cache`: the flag of the verb. Raises BadInputError with a cache.

    A verb that a cache serves gets here in that cache only.
    """
    if _HELD:
        return _HELD[0]
    path = os.environ.get(VARIABLE, "") if cache is None else cache
    if not path:
        return read_cluster
    name = FLAG if cache else VARIABLE
    try:
        connect(path).close()
    except CacheError as error:
        raise BadInputError(f"{name}: {error}") from None
    raise BadInputError(f"{name}: {path}: the cache took no request of this program; repeat the command")


def leave_cache(cache: str | None, reason: str) -> None:
    """Of a verb that no cache serves: raises BadInputError with the flag, and DeclinedError in a cache."""
    if cache:
        raise BadInputError(f"{FLAG}: answers about a live cluster as it is; {reason}")
    if _HELD:
        raise DeclinedError


def connection_of(kubeconfig: Path | None, context: str) -> Connection:
    """The connection of a kubeconfig. Raises BadInputError."""
    from capcard_sched.kube.connection import load_connection

    with _config_errors(kubeconfig):
        return load_connection(kubeconfig, None, context or None)


def address_of(kubeconfig: Path | None, context: str) -> tuple[str, str]:
    """Server and namespace of the connection of a kubeconfig. Raises BadInputError."""
    from capcard_sched.kube.connection import load_address

    with _config_errors(kubeconfig):
        return load_address(kubeconfig, context or None)


@contextmanager
def _config_errors(kubeconfig: Path | None) -> Iterator[None]:
    from capcard_sched.kube.connection import ConnectionConfigError

    try:
        yield
    except ConnectionConfigError as error:
        text = str(error)
        if kubeconfig is None:
            text = f"{text.rstrip('.')}; or pass manifests with -f"
        raise BadInputError(text) from None


@contextmanager
def api_errors(connection: Connection) -> Iterator[None]:
    """Raise the errors of an API server as BadInputError."""
    from capcard_sched.insight.live_objects import MissingKindError
    from capcard_sched.kube.client import ApiError, Unreachable

    try:
        yield
    except (ApiError, MissingKindError, Unreachable) as error:
        hint = f"; missing rights: {READER_HINT}" if getattr(error, "status", 0) == _FORBIDDEN else ""
        raise BadInputError(f"{connection.server}: {error}{hint}") from None


async def _read_lists(connection: Connection, request: ClusterRequest) -> LiveCluster:
    import asyncio

    from capcard_sched.insight.live_objects import JOBS, list_readable
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer

    unread: dict[str, list[str]] = {}
    conf: str | None = None

    class Notes(Observer):
        """Collects missing and forbidden kinds; prints undecodable objects."""

        def watch(self, resource: str, event: str, detail: str = "") -> None:
            if event == "undecodable":
                put_error(f"warning: {detail}; skipped")
            elif event in _UNREAD:
                unread.setdefault(event, []).append(resource)

    async with Client(connection) as client:

        async def begin() -> Callable[[Sequence[Delta]], None] | None:
            nonlocal conf
            conf = await installed_conf(client, request.conf_name) if request.conf_name else None
            return None if request.receiver is None else await asyncio.to_thread(request.receiver, conf)

        namespace = request.namespace or connection.namespace or "default"
        jobs = [JOBS] if request.jobs else ()
        with shown_progress("reading") as progress:
            count = partial(progress.counted, noun="objects")
            found = await list_readable(client, namespace, Notes(), jobs, begin, count=count)
    print_notes(unread, found.unreadable)
    return LiveCluster(connection, conf, found.deltas, found.unreadable, found.kinds)


def print_notes(unread: Mapping[str, Sequence[str]], unreadable: Sequence[str]) -> None:
    """Print what is not read. `unread`: event of a watch to optional resources."""
    for event, resources in unread.items():
        put_error(f"note: {_UNREAD[event]}, assumed empty: {', '.join(resources)}")
    if unreadable:
        consequence = "; no quota and no node is shown" if {"nodes", "queues"} <= set(unreadable) else ""
        put_error(f"note: access denied: {', '.join(unreadable)}{consequence}; {READER_HINT}")


async def installed_conf(client: Client, name: str) -> str | None:
    """The text of the installed scheduler-conf, a ConfigMap `namespace/name`; None when it is missing or not readable.

    Raises ApiError and Unreachable.
    """
    from capcard_sched.kube.client import ApiError
    from capcard_sched.kube.paths import object_path

    class ConfigMap(msgspec.Struct):
        data: dict[str, str] = {}

    namespace, _, plain = name.partition("/")
    if not namespace or not plain:
        raise BadInputError(f"--installed-conf: {name!r}: expected NAMESPACE/NAME")
    try:
        body = await client.request("GET", object_path("ConfigMap", namespace, plain))
    except ApiError as error:
        if error.status not in {_NOT_FOUND, _FORBIDDEN}:
            raise
        reason = "not found" if error.status == _NOT_FOUND else "access denied"
        put_error(f"note: ConfigMap {name}: {reason}; using the built-in scheduler-conf")
        return None
    conf = msgspec.json.decode(body, type=ConfigMap).data.get(_CONF_KEY)
    if conf is None:
        put_error(f"note: ConfigMap {name} has no key {_CONF_KEY}; using the built-in scheduler-conf")
    return conf
