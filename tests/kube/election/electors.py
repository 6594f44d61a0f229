"""Replicas that compete for a Lease, and an observer that checks that no two lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.election import Election, ElectionEvent
from tests.clock import until

#: Short enough for tests, long enough for a busy machine to renew in time.
QUICK: dict[str, Any] = {"lease_duration": 4.0, "renew_deadline": 3.0, "retry_period": 0.5}
LEASE = "the-lease"


class Elector:
    """One replica: a client, an election that runs, and its reports."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        identity: str,
        *,
        qps: float = 2000,
        observer: Any = None,
        **settings: Any,
    ) -> None:
        connection = load_connection(str(kubeconfig))
        self.client = Client(connection, connections=2, qps=qps, burst=1, observer=observer)
        self.changes: list[bool] = []
        self.reports: list[tuple[ElectionEvent, str]] = []
        self.election = Election(
            self.client,
            namespace=namespace,
            name=LEASE,
            identity=identity,
            on_change=self.changes.append,
            on_report=lambda happening, detail: self.reports.append((happening, detail)),
            **{**QUICK, **settings},
        )
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        self.task = asyncio.create_task(self.election.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self.client.__aexit__(None, None, None)

    @property
    def leads(self) -> bool:
        return self.election.is_leader()

    async def kill(self) -> None:
        """End it without a release, as SIGKILL does."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.result()

    def reported(self, happening: ElectionEvent) -> list[str]:
        return [detail for each, detail in self.reports if each is happening]


@asynccontextmanager
async def leader(kubeconfig: Path, namespace: str, identity: str = "a", **settings: Any) -> AsyncIterator[Elector]:
    """An elector that leads."""
    async with Elector(kubeconfig, namespace, identity, **settings) as one:
        await until(lambda: one.leads, "a leader")
        yield one


@asynccontextmanager
async def standby(kubeconfig: Path, namespace: str, identity: str = "b", **settings: Any) -> AsyncIterator[Elector]:
    """An elector that has seen the leader."""
    async with Elector(kubeconfig, namespace, identity, **settings) as two:
        await until(lambda: bool(two.election.holder), "a standby")
        yield two


class Watchman:
    """Polls, from outside, which replica reports that it leads."""

    def __init__(self, electors: Iterable[Elector]) -> None:
        self.electors = list(electors)
        self.together: list[tuple[str, ...]] = []
        self.looks = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _look(self) -> None:
        while True:
            leading = tuple(each.election.identity for each in self.electors if each.leads)
            self.looks += 1
            if len(leading) > 1:
                self.together.append(leading)
            await asyncio.sleep(0.001)
