"""An ApiWriter on a real API server behind the fault proxy, with all its callbacks recorded."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.writes.api_writer import ApiWriter
from capcard_sched.kube.writes.binder import PreBind
from capcard_sched.kube.writes.claim_releaser import UndoPreBind
from capcard_sched.model.deltas import BindFailed, Delta
from capcard_sched.model.intents import Bind, Evict, Intent
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest
from tests.controlplane.proxy import Exchange, Proxy

Reported = tuple[str, str, int]


class Listener(Observer):
    """Records outcomes: (what, object, code)."""

    def __init__(self) -> None:
        self.bindings: list[Reported] = []
        self.evictions: list[Reported] = []
        self.writes: list[tuple[str, int]] = []
        self.messages: list[str] = []
        self.lost: dict[str, int] = {}

    def bound(self, bind: Bind, seconds: float) -> None:
        assert seconds >= 0
        self.bindings.append(("bound", bind.name, 201))

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        assert message
        self.bindings.append(("failed", bind.name, code))

    def evicted(self, evict: Evict) -> None:
        self.evictions.append(("evicted", evict.name, 200))

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        assert message
        self.evictions.append(("failed", evict.name, code))

    def written(self, kind: str, seconds: float) -> None:
        assert seconds >= 0
        self.writes.append((kind, 200))

    def write_failed(self, kind: str, code: int, message: str) -> None:
        assert message
        self.messages.append(message)
        self.writes.append((kind, code))

    def dropped(self, kind: str, count: int) -> None:
        self.lost[kind] = self.lost.get(kind, 0) + count


class Harness:
    """A running ApiWriter; `leads` is its view of the Lease."""

    def __init__(
        self,
        cluster: Cluster,
        proxy: Proxy,
        *,
        binders: int = 8,
        use_eviction_api: bool = False,
        fence: Callable[[], str | None] = lambda: None,
        pre_bind: PreBind | None = None,
        undo_pre_bind: UndoPreBind | None = None,
        timeout: float = 10.0,
        qps: float = 2000,
        burst: int = 2000,
        user: str = "scheduler-a",
        time_left: Callable[[], float] | None = None,
        server_seconds: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.leads = True
        #: Seconds by which the effects' clocks are ahead of the real ones.
        self.ahead = 0.0
        self.deltas: list[Delta] = []
        self.observer = Listener()
        self.client = Client(
            load_connection(str(proxy.kubeconfig_for(user))),
            connections=binders + 16,
            qps=qps,
            burst=burst,
            timeout=timeout,
        )
        self.effects = ApiWriter(
            self.client,
            self._deliver,
            self.observer,
            time_left=time_left or (lambda: math.inf if self.leads else 0.0),
            server_seconds=server_seconds,
            binders=binders,
            scheduler_name="capcard-sched",
            use_eviction_api=use_eviction_api,
            fence=fence,
            pre_bind=pre_bind,
            undo_pre_bind=undo_pre_bind,
            clock=lambda: time.monotonic() + self.ahead,
            now=lambda: time.time() + self.ahead,
        )
        self._running: asyncio.Task[None] | None = None

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        self.deltas.extend(deltas)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        self._running = asyncio.create_task(self.effects.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        (ended,) = await asyncio.gather(self._running, return_exceptions=True)
        await self.client.__aexit__(None, None, None)
        assert isinstance(ended, asyncio.CancelledError), ended

    # --- queries of tests -------------------------------------------------------------------------------------------

    def submit(self, *intents: Intent) -> None:
        """Hand over intents of a session."""
        self.effects.submit(intents)

    async def write(self, *intents: Intent, within: float = 60.0) -> None:
        """Hand over intents and wait until everything is written."""
        self.submit(*intents)
        await self.quiet(within)

    def reset(self) -> None:
        """The lease is lost."""
        self.effects.reset()

    async def refusal(self, within: float = 60.0) -> BindFailed:
        """The delta of the only binding that failed."""
        await self.until(lambda: self.deltas, "the refusal", within)
        (failed,) = self.deltas
        assert isinstance(failed, BindFailed)
        return failed

    async def until(self, check: Callable[[], Any], what: str, within: float = 60.0) -> Any:
        """Wait for a callback or a write of the ApiWriter."""
        try:
            return await self.cluster.wait_until(check, what, within=within)
        except AssertionError as error:
            seen = [(each.verb, each.path, each.status) for each in self.proxy.exchanges[-10:]]
            raise AssertionError(f"{error}: {self.effects.backlog()}, {vars(self.observer)}, {seen}") from None

    async def quiet(self, within: float = 60.0) -> None:
        """Wait until everything is written."""
        await self.until(lambda: not any(self.effects.backlog().values()), "an empty backlog", within)

    def requests(self, verb: str, part: str) -> list[Exchange]:
        """The requests that reached the proxy, by verb and part of their path."""
        return [each for each in self.proxy.exchanges if each.verb == verb and part in each.path]

    async def events(self, reason: str, namespace: str = "") -> list[Manifest]:
        """Events of that reason."""
        return [event for event in await self.cluster.list("events", namespace=namespace) if event["reason"] == reason]


def ids(made: Manifest) -> tuple[str, str, str]:
    """Namespace, name and uid of an object as the API server returned it."""
    meta = made["metadata"]
    return meta.get("namespace", ""), meta["name"], meta["uid"]


def bind_of(pod: Manifest, node: str = "n1", **annotations: str) -> Bind:
    """A binding of a pod."""
    return Bind(*ids(pod), node, annotations)


def evict_of(pod: Manifest, reason: str = "preempt") -> Evict:
    """An eviction of a pod."""
    return Evict(*ids(pod), reason, reason)


def condition(pod: Manifest, type: str) -> Manifest:
    """The condition of a type; empty when there is none."""
    found: list[Manifest] = [row for row in pod.get("status", {}).get("conditions", []) if row["type"] == type]
    return found[0] if found else {}
