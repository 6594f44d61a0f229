"""A live cluster that a cache holds: its objects, kept current, and a core that has taken them in."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.cli.inputs import BadInputError
from capcard_sched.cli.live_cluster import LiveCluster, address_of, api_errors, installed_conf, print_notes
from capcard_sched.cli.output import put, put_error
from capcard_sched.cli.watch import follow_objects
from capcard_sched.controllers.objects import JOB
from capcard_sched.insight.live_objects import JOBS, list_readable
from capcard_sched.insight.object_view import DeltaObjects, for_core
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.model.deltas import ObjectGone, ObjectUnreadable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence

    from capcard_sched.cli.live_cluster import ClusterRequest
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.live_objects import Readable
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.informers import Informers
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Events of a kind that is not read.
_UNREAD: Final = frozenset({"missing", "forbidden"})
#: Seconds of a request of the installed scheduler-conf.
_CONF_SECONDS: Final = 10.0


class HeldCluster(Observer):
    """The objects of a live cluster as of its watches. Reads as `read_cluster`, from memory."""

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

    async def find_kinds(self) -> Readable:
        """What may be read, by a list of one object for each kind. Raises BadInputError."""
        from capcard_sched.kube.client import Client

        with api_errors(self.connection):
            async with Client(self.connection) as client:
                found = await list_readable(client, self.namespace, self, [JOBS], probe=True)
        print_notes(self._unread((*KINDS, JOBS)), found.unreadable)
        return found

    def follow(self, found: Readable) -> Coroutine[Any, Any, None]:
        """What keeps the cluster current for ever: the kinds that are readable, and optional ones once they are."""
        self.unreadable, self._readable = found.unreadable, frozenset(kind.resource for kind in found.kinds)
        kinds = [replace(kind, required=True) for kind in found.kinds]
        kinds += [kind for kind in (*KINDS, JOBS) if not kind.required and kind.resource not in self._readable]

        def begin(informers: Informers) -> None:
            self.informers = informers
            state = self.core.snapshot().state
            count = f"{len(state.nodes)} nodes and {len(self.objects.of('Pod'))} pods"
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

    def read(self, request: ClusterRequest) -> LiveCluster:
        """As `read_cluster`. Raises BadInputError for another cluster, too, and while the cache is not in sync."""
        server, own = address_of(request.kubeconfig, request.context)
        if server != self.connection.server:
            text = f"the cache holds the cluster at {self.connection.server}, and the kubeconfig names {server}"
            raise BadInputError(f"--cache: {text}")
        self.check()
        wanted = request.namespace or own
        if wanted != self.namespace and any(" of other " in resource for resource in self.unreadable):
            text = f"the cache may read namespace {self.namespace} only, and {wanted} is asked for"
            raise BadInputError(f"--cache: {text}; `capcard-sched cache -n {wanted}` reads it")
        connection = msgspec.structs.replace(self.connection, namespace=own)
        with api_errors(connection):
            conf = asyncio.run(_conf(connection, request.conf_name)) if request.conf_name else None
        if request.receiver is not None:
            request.receiver(conf)
        assert self.informers is not None
        left_out = () if request.jobs else (JOB,)
        for problem in self.informers.problems(left_out):
            put_error(f"warning: {problem}; skipped")
        kinds = [kind for kind in self.informers.kinds if kind.name not in left_out]
        unreadable = tuple(one for one in self.unreadable if request.jobs or one.partition(" ")[0] != JOBS.resource)
        print_notes(self._unread(kinds), unreadable)
        deltas = SortedDeltas(self.objects, kinds)
        return LiveCluster(connection, conf, deltas, unreadable, tuple(kinds), self.core, self.objects)

    def _unread(self, kinds: Iterable[WatchedKind[Any]]) -> dict[str, list[str]]:
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


async def _conf(connection: Connection, name: str) -> str | None:
    from capcard_sched.kube.client import Client

    async with Client(connection, timeout=_CONF_SECONDS) as client:
        return await installed_conf(client, name)
