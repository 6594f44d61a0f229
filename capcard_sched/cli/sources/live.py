"""A live cluster as input: the lists of its API server, and the installed scheduler-conf."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from capcard_sched.cli.cache_client import FLAG, VARIABLE, CacheError, connect
from capcard_sched.cli.exit_codes import READER_HINT, BadInputError
from capcard_sched.cli.output import put_error
from capcard_sched.cli.sources.cores import options_of
from capcard_sched.cli.sources.inputs import LoadedCluster, StateInput
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings
from capcard_sched.insight.sources.object_view import DeltaObjects, for_core
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.reports.progress import shown_progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from capcard_sched.cli.sources.source import Source
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.insight.estimates.expected_start import KnownState
    from capcard_sched.insight.sources.object_view import Json
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

_CONF_KEY: Final = "scheduler.yaml"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
#: Watch event of an optional kind to the text of its note.
_UNREAD: Final = {"missing": "not served by the API server", "forbidden": "access denied"}
_T = TypeVar("_T")


class LiveInput(StateInput):
    """A live cluster, read with one list per kind."""

    is_live = True
    #: The kinds that are readable.
    kinds: tuple[WatchedKind[Any], ...] = ()
    connection: Connection

    def __init__(self, source: Source, namespace: str = "", *, jobs: bool = False) -> None:
        """`namespace`: the one to read where the objects of all namespaces are not readable; "" for the context's.

        `jobs`: read the Jobs, too.
        """
        super().__init__(source)
        self.conf_name = f"ConfigMap {source.installed_conf}"
        self._wanted, self._jobs = namespace, jobs

    def pages(self) -> Generator[Iterable[Delta]]:
        """Read the cluster. The event loop runs while the caller waits for the next page."""
        _refuse_cache(self.source.cache)
        self._connect(connection_of(self.source.kubeconfig, self.source.context))
        with api_errors(self.connection), closing(stepped(self._lists())) as pages:
            yield from pages

    def _connect(self, connection: Connection) -> None:
        self.connection, self.namespace = connection, connection.namespace or "default"
        self.when = f"at {connection.server}"

    async def _lists(self) -> AsyncGenerator[Iterable[Delta]]:
        from capcard_sched.insight.sources.live_objects import JOBS, ReadableLists
        from capcard_sched.kube.client import Client
        from capcard_sched.kube.instrumentation import Observer

        unread: dict[str, list[str]] = {}

        class Notes(Observer):
            """Collects missing and forbidden kinds; prints undecodable objects."""

            def watch(self, resource: str, event: str, detail: str = "") -> None:
                if event == "undecodable":
                    put_error(f"warning: {detail}; skipped")
                elif event in _UNREAD:
                    unread.setdefault(event, []).append(resource)

        namespace, more = self._wanted or self.namespace, [JOBS] if self._jobs else ()
        async with Client(self.connection) as client, ReadableLists(client, namespace, Notes(), more) as lists:
            conf = await installed_conf(client, self.source)
            self._set_state((), conf)
            yield ()
            with shown_progress("reading") as progress:
                async for page in lists.read():
                    yield page
                    progress.counted(lists.done, lists.total, noun="objects")
        print_notes(unread, lists.unreadable)
        self.kinds = lists.kinds
        self._set_state(lists.deltas, conf, lists.unreadable)

    def _set_state(self, deltas: Iterable[Delta], conf: str, unreadable: tuple[str, ...] = ()) -> None:
        """The state as of now. `conf`: text of the installed scheduler-conf, "" for none."""
        self.deltas, self.now = deltas, time.time()
        options = options_of(self.source)
        names, queue = options.scheduler_names, options.default_queue
        self.settings = SavedSettings(format_timestamp(self.now), names, queue, conf, unreadable)

    def load_again(self, deltas: Sequence[Delta], *, headlines: bool) -> LoadedCluster:
        """A new core for a later state of the cluster that was read. Raises BadInputError."""
        assert self.settings is not None
        self._set_state(deltas, self.settings.scheduler_conf, self.settings.unreadable)
        core = self._first_core()
        core.apply_all(for_core(deltas))
        return self._loaded(core, read_only=True, headlines=headlines)

    def fetch_explained(self) -> list[Json]:
        """Jobs, Deployments and events that diagnoses read, for a saved state. Raises BadInputError. After `read`."""
        from capcard_sched.daemon.diagnosis.saved_state import as_manifest, saved_deployment, saved_event, saved_job
        from capcard_sched.insight.sources.live_objects import fetch_explained

        with api_errors(self.connection):
            jobs, deployments, events, refused = fetch_explained(self.connection, self._wanted or self.namespace)
            if refused is not None and refused.status not in (_NOT_FOUND, _FORBIDDEN):
                raise refused
        if refused is not None:
            print_notes({"missing" if refused.status == _NOT_FOUND else "forbidden": ["jobs"]}, ())
        saved = [as_manifest("Job", saved_job(job)) for job in jobs]
        saved += [as_manifest("Deployment", saved_deployment(one)) for one in deployments]
        return [*saved, *(as_manifest("Event", saved_event(event)) for event in events)]

    def _objects(self) -> DeltaObjects:
        from capcard_sched.insight.sources.live_objects import fetch_events, fetch_object

        objects = self._listed()
        objects.fetch = partial(fetch_object, self.connection)
        objects.fetch_events = partial(fetch_events, self.connection)
        return objects

    def _listed(self) -> DeltaObjects:
        return DeltaObjects(self.deltas)

    def _known_state(self, conf: Conf) -> KnownState:
        from capcard_sched.insight.sources.live_objects import fetch_jobs

        known = super()._known_state(conf)
        return known._replace(objects=[*fetch_jobs(self.connection), *known.objects])


def stepped(items: AsyncGenerator[_T]) -> Generator[_T]:
    """The items of an asynchronous generator, each computed when it is wanted, in an event loop of their own."""
    import asyncio

    import uvloop

    found: list[_T] = []  # not the result of a task: asyncio formats results as text

    async def step() -> None:
        async for item in items:
            found.append(item)
            return

    # uvloop decrypts a list in three quarters of the time.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(step())
            while found:
                yield found.pop()
                runner.run(step())
        finally:
            runner.run(items.aclose())


def _refuse_cache(cache: str | None) -> None:
    """Raises BadInputError with a cache, which would have served the verb. `cache`: the flag of the verb."""
    path = os.environ.get(VARIABLE, "") if cache is None else cache
    if not path:
        return
    name = FLAG if cache else VARIABLE
    try:
        connect(path).close()
    except CacheError as error:
        raise BadInputError(f"{name}: {error}") from None
    raise BadInputError(f"{name}: {path}: the cache took no request of this program; repeat the command")


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
    from capcard_sched.insight.sources.live_objects import MissingKindError
    from capcard_sched.kube.client import ApiError, Unreachable

    try:
        yield
    except (ApiError, MissingKindError, Unreachable) as error:
        hint = f"; missing rights: {READER_HINT}" if getattr(error, "status", 0) == _FORBIDDEN else ""
        raise BadInputError(f"{connection.server}: {error}{hint}") from None


def print_notes(unread: Mapping[str, Sequence[str]], unreadable: Sequence[str]) -> None:
    """Print what is not read. `unread`: event of a watch to optional resources."""
    for event, resources in unread.items():
        put_error(f"note: {_UNREAD[event]}, assumed empty: {', '.join(resources)}")
    if unreadable:
        consequence = "; no quota and no node is shown" if {"nodes", "queues"} <= set(unreadable) else ""
        put_error(f"note: access denied: {', '.join(unreadable)}{consequence}; {READER_HINT}")


async def installed_conf(client: Client, source: Source) -> str:
    """The text of the installed scheduler-conf; "" when it is missing, not readable, or replaced by a flag.

    Raises BadInputError, ApiError and Unreachable.
    """
    from capcard_sched.kube.client import ApiError
    from capcard_sched.kube.paths import object_path

    class ConfigMap(msgspec.Struct):
        data: dict[str, str] = {}

    name = source.installed_conf
    if source.scheduler_conf is not None or not name:
        return ""
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
        return ""
    conf = msgspec.json.decode(body, type=ConfigMap).data.get(_CONF_KEY)
    if conf is None:
        put_error(f"note: ConfigMap {name} has no key {_CONF_KEY}; using the built-in scheduler-conf")
    return conf or ""
