"""A live cluster that a cache holds: its objects, kept current, and a core that has taken them in."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.output import put, put_error
from capcard_sched.cli.sources.live import LiveInput, address_of, api_errors, installed_conf, print_notes
from capcard_sched.controllers.objects import JOB
from capcard_sched.gc import settle_memory
from capcard_sched.insight.sources.live_objects import JOBS, ReadableLists
from capcard_sched.insight.sources.object_view import DeltaObjects, for_core
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING
from capcard_sched.model.deltas import ObjectGone, ObjectUnreadable
from capcard_sched.model.quoting import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence

    from capcard_sched.cli.sources.source import Source
    from capcard_sched.framework.core import Core
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.informers import Informers
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Events of a kind that is not read.
_UNREAD: Final = frozenset({"missing", "forbidden"})
#: Seconds of a request of the installed scheduler-conf.
_CONF_SECONDS: Final = 10.0


class HeldCluster(Observer):
    """The objects of a live cluster as of its watches."""

    def __init__(self, core: Core, connection: Connection, namespace: str) -> None:
        """`core`: without objects; no session runs on it. `namespace`: that to read where others are not readable."""
        self.core, self.connection, self.namespace = core, connection, namespace
        self.objects = DeltaObjects(())
        #: Required resources that are not readable.
        self.unreadable: tuple[str, ...] = ()
        #: Set to a BadInputError at a refusal to watch a kind that is readable.
        self.denied: Future[None] = Future()
        #: Set once every list is complete.
        self.informers: Informers | None = None
        self._readable: frozenset[str] = frozenset()
        #: Resource to the last event of its watch other than success, with its text.
        self._troubles: dict[str, tuple[str, str]] = {}

    async def find_kinds(self) -> ReadableLists:
        """What may be read, by a list of one object for each kind. Raises BadInputError."""
        from capcard_sched.kube.client import Client

        with api_errors(self.connection):
            async with (
                Client(self.connection) as client,
                ReadableLists(client, self.namespace, self, [JOBS], probe=True) as found,
            ):
                async for _ in found.read():
                    pass
        print_notes(self.unread((*KINDS, JOBS)), found.unreadable)
        return found

    def follow(self, found: ReadableLists) -> Coroutine[Any, Any, None]:
        """What keeps the cluster current for ever: the kinds that are readable, and optional ones once they are."""
        self.unreadable, self._readable = found.unreadable, frozenset(kind.resource for kind in found.kinds)
        kinds = [replace(kind, required=True) for kind in found.kinds]
        kinds += [kind for kind in (*KINDS, JOBS) if not kind.required and kind.resource not in self._readable]

        def begin(informers: Informers) -> None:
            self.informers = informers
            state = self.core.snapshot().state
            count = f"{plural(len(state.nodes), 'node')} and {plural(len(self.objects.of('Pod')), 'pod')}"
            put(f"in sync with {self.connection.server}: {count}", flush=True)

        return follow_objects(self.connection, kinds, self.deliver, self, self.denied, begin)

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        """Note the state of the watch of a kind."""
        if event in {"listed", "restarted"}:
            self._troubles.pop(resource, None)
        elif event == "undecodable":
            put_error(f"warning: {detail}; skipped", flush=True)
        else:
            self._troubles[resource] = event, detail
        if event == "forbidden" and resource in self._readable and self.informers is None and not self.denied.done():
            self.denied.set_exception(BadInputError(f"access denied: {detail or resource}"))

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Take in changes."""
        found: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ObjectUnreadable):
                ref = delta.object
                # A read of the cluster has no former version of it.
                found.append(ObjectGone(ref.kind, ref.namespace, ref.name))
            found.append(delta)
        for delta in found:
            self.objects.apply(delta)
        self.core.apply_all(for_core(found))
        if self.informers is not None:
            self.core.forget_gone()

    def stale_for(self) -> float | None:
        """Seconds for which the watch of a readable kind has not been open; None before the lists are complete."""
        return None if self.informers is None else self.informers.stale_for()

    def check(self) -> None:
        """Raises BadInputError while some watch of a readable kind is not open."""
        seconds = self.stale_for()
        if seconds == 0.0:
            return
        troubles = (f"{resource}: {detail or event}" for resource, (event, detail) in sorted(self._troubles.items()))
        text = "; ".join(one for one in troubles if one.partition(":")[0] in self._readable) or "no answer yet"
        since = "reads the cluster for the first time" if seconds is None else f"is not in sync for {seconds:.0f} s"
        raise BadInputError(f"--cache: the cache of {self.connection.server} {since}: {text}")

    def unread(self, kinds: Iterable[WatchedKind[Any]]) -> dict[str, list[str]]:
        """Events of watches to the resources of optional kinds that are not read."""
        found: dict[str, list[str]] = {}
        for kind in kinds:
            event = self._troubles.get(kind.resource, ("", ""))[0]
            if event in _UNREAD and kind.resource not in self._readable:
                found.setdefault(event, []).append(kind.resource)
        return found


class SortedDeltas:
    """The objects in the order of the lists of an API server. Sorted with the first use: few verbs need all."""

    def __init__(self, objects: DeltaObjects, kinds: Sequence[WatchedKind[Any]]) -> None:
        self._objects, self._kinds = objects, kinds

    def __iter__(self) -> Iterator[Delta]:
        return (delta for kind in self._kinds for delta in self._objects.of(kind.name).values())


class HeldInput(LiveInput):
    """A live cluster that a cache holds, read from its memory. Its core serves one verb, in a copy of the process."""

    def __init__(self, source: Source, held: HeldCluster, namespace: str = "", *, jobs: bool = False) -> None:
        """`namespace`, `jobs`: as of `LiveInput`."""
        super().__init__(source, namespace, jobs=jobs)
        self._held = held
        #: The core of `load` has no objects yet.
        self._is_new = False

    def pages(self) -> Generator[Iterable[Delta]]:
        """Read the scheduler-conf. The deltas are for a core that has none."""
        held, source = self._held, self.source
        server, own = address_of(source.kubeconfig, source.context)
        if server != held.connection.server:
            text = f"the cache holds the cluster at {held.connection.server}, and the kubeconfig names {server}"
            raise BadInputError(f"--cache: {text}")
        held.check()
        wanted = self._wanted or own
        if wanted != held.namespace and any(" of other " in resource for resource in held.unreadable):
            text = f"the cache may read namespace {held.namespace} only, and {wanted} is asked for"
            raise BadInputError(f"--cache: {text}; `capcard-sched cache -n {wanted}` reads it")
        self._connect(msgspec.structs.replace(held.connection, namespace=own))
        with api_errors(self.connection):
            conf = asyncio.run(self._conf())
        self._set_state((), conf)
        yield ()
        assert held.informers is not None
        left_out = () if self._jobs else (JOB,)
        for problem in held.informers.problems(left_out):
            put_error(f"warning: {problem}; skipped")
        self.kinds = tuple(kind for kind in held.informers.kinds if kind.name not in left_out)
        unreadable = tuple(one for one in held.unreadable if self._jobs or one.partition(" ")[0] != JOBS.resource)
        print_notes(held.unread(self.kinds), unreadable)
        self._set_state(SortedDeltas(held.objects, self.kinds), conf, unreadable)
        if self._is_new:
            yield for_core(self.deltas)

    async def _conf(self) -> str:
        from capcard_sched.kube.client import Client

        async with Client(self.connection, timeout=_CONF_SECONDS) as client:
            return await installed_conf(client, self.source)

    def _first_core(self) -> Core:
        """The core of the cache under the scheduler-conf of a new one; with other parameters the new one."""
        made, held, source = super()._first_core(), self._held.core, self.source
        wanted, known = made.snapshot(), held.snapshot()
        parameters = ("scheduler_names", "default_queue")
        is_alike = all(getattr(wanted.state, name) == getattr(known.state, name) for name in parameters)
        if source.plugins_dir is None and source.autoscaling == DEFAULT_AUTOSCALING and is_alike:
            held.reconfigure(wanted.conf)
            return held
        self._is_new = True
        return made

    def _listed(self) -> DeltaObjects:
        return self._held.objects


def run_followed(work: Coroutine[Any, Any, None]) -> None:
    """Run what follows objects. Raises the BadInputError that ends it."""
    try:
        asyncio.run(work)
    except BaseExceptionGroup as group:
        denied: BaseException | None = group.subgroup(BadInputError)
        while isinstance(denied, BaseExceptionGroup):
            denied = denied.exceptions[0]
        if denied is None:
            raise
        raise BadInputError(str(denied)) from None


async def follow_objects(
    connection: Connection,
    kinds: Iterable[WatchedKind[Any]],
    deliver: Callable[[Sequence[Delta]], None],
    observer: Observer,
    denied: Future[None],
    begin: Callable[[Informers], None],
) -> None:
    """Deliver the objects of kinds and their changes for ever; `begin` is called once all are delivered.

    Changes of fields that the scheduler does not read are delivered, too: lists show some. Raises the exception that
    is set in `denied`.
    """
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.informers import Informers

    whole = [replace(kind, reads=None, derives=None) for kind in kinds]
    async with Client(connection) as client, asyncio.TaskGroup() as group:
        informers = Informers(client, deliver, observer, whole)
        group.create_task(informers.run())
        group.create_task(_raised(denied))
        await informers.wait_synced()
        gc.enable()  # from here on, what is replaced becomes garbage
        begin(informers)
        settle_memory()


async def _raised(denied: Future[None]) -> None:
    await asyncio.wrap_future(denied)
