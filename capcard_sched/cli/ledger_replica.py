"""The part of `web` that one of several replicas does: it records in the ledger and writes statuses of CardBudgets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cli.ledger_feed import LedgerFeed
from capcard_sched.cli.output import put, put_error
from capcard_sched.kube.client import Client
from capcard_sched.kube.election import RELEASED, Election, ElectionEvent
from capcard_sched.kube.lease import process_identity
from capcard_sched.web.budget_operator import BudgetOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.cli.web_live import FollowedCluster

#: Connections of the election: one for its watch.
_CONNECTIONS: Final = 2
#: Seconds of the release of the Lease.
_RELEASE: Final = 2.0


class LedgerReplica:
    """Records a followed cluster; with a Lease, while this process holds it."""

    def __init__(self, url: str, held: FollowedCluster, lease: str = "", **timing: Any) -> None:
        """`url`: of the ledger. `lease`: `NAMESPACE/NAME`, "" without one. `timing`: of the `Election`."""
        self._url, self._held, self._lease, self._timing = url, held, lease, timing
        self._election: Election | None = None
        self._terms: asyncio.TaskGroup | None = None
        self._term: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until cancelled; the Lease is released then."""
        if not self._lease:
            await self._record()
            return
        namespace, _, name = self._lease.partition("/")
        async with Client(self._held.connection, connections=_CONNECTIONS) as client, asyncio.TaskGroup() as terms:
            self._terms = terms
            self._election = Election(
                client,
                namespace=namespace,
                name=name,
                identity=process_identity(),
                on_change=self._changed,
                on_report=_report,
                **self._timing,
            )
            terms.create_task(self._election.run())
            try:
                await asyncio.Event().wait()
            finally:
                await self._election.release(_RELEASE)

    def _changed(self, leading: bool) -> None:
        if self._term is not None:
            self._term.cancel()
            self._term = None
        if leading:
            assert self._terms is not None
            self._term = self._terms.create_task(self._record())

    async def _record(self) -> None:
        """Record and write statuses: for one term, or without a Lease until another process records."""
        feed = LedgerFeed(self._url, self._held, self._lease, self._of_this_term())
        operator = BudgetOperator(
            self._url, self._held.connection, self._held.queue_parents, _warn, self._of_this_term()
        )
        self._held.on_changes = feed.note
        try:
            async with asyncio.TaskGroup() as group:
                operating = group.create_task(operator.run())
                await feed.run()
                operating.cancel()
        finally:
            if self._held.on_changes == feed.note:  # else a later term has begun
                self._held.on_changes = None

    def _of_this_term(self) -> Callable[[], bool]:
        """Whether the present term lasts."""
        election = self._election
        if election is None:
            return lambda: True
        term = election.transitions
        return lambda: election.transitions == term and election.is_leader()


def _report(event: ElectionEvent, detail: str) -> None:
    match event:
        case ElectionEvent.LEADING:
            put(f"ledger: this replica records: it holds {detail}", flush=True)
        case ElectionEvent.HOLDER:
            put(f"ledger: standing by: {detail} records", flush=True)
        case ElectionEvent.RECOVERED:
            put(f"ledger: {detail} is reachable again", flush=True)
        case ElectionEvent.RELEASED:
            pass
        case ElectionEvent.LOST if detail == RELEASED:
            pass
        case ElectionEvent.LOST:
            _warn(f"ledger: {detail}: this replica records no more until it holds the Lease again")
        case _:
            _warn(f"ledger: {detail}")


def _warn(text: str) -> None:
    put_error(f"warning: {text}", flush=True)
