"""The operator of CardBudgets, with kopf: it writes their status from the ledger, and nothing else.

It runs in a thread with an event loop of its own, so that pages never wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
import kopf
import msgspec

from capcard_sched.kube.client import Client, RequestError
from capcard_sched.ledger.budget_use import card_times, subtree_times
from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.ledger_thread import in_ledger_thread
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.model.card_budgets import (
    BUDGET_API,
    CARD_BUDGET,
    BudgetUse,
    CardBudgetObject,
    budget_status,
    card_budget_facts,
    period_at,
    status_patch,
    with_condition,
)
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.report_once import ReportOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.kube.connection import Connection
    from capcard_sched.ledger.budget_use import CardTime
    from capcard_sched.model.card_budgets import CardBudget

#: Seconds between two statuses of a budget, and before a new attempt after an error.
_PERIOD: Final = 30.0
_PAUSE: Final = 30.0
#: Statuses that a pass writes before changed budgets interrupt it.
_LEAST_WRITES: Final = 64
T = TypeVar("T")
_KIND: Final = KIND_BY_NAME[CARD_BUDGET]


class BudgetOperator:
    """Keeps the statuses of all CardBudgets while it is started."""

    def __init__(
        self,
        url: str,
        connection: Connection,
        parents: Callable[[], dict[str, str]],
        report: Callable[[str], None],
        may_write: Callable[[], bool],
    ) -> None:
        """`url`: of the ledger. `parents()`: each Queue to its parent, "" for root; runs in the loop that calls `run`.

        `report` gets each new error. `may_write()` is read before each status, from another thread.
        """
        self._url, self._connection, self._parents, self._report = url, connection, parents, report
        self._may_write = may_write
        #: CardBudgets by name, as JSON.
        self._budgets: dict[str, dict[str, Any]] = {}
        self._errors: ReportOnce[str, str] = ReportOnce()
        self._stop = threading.Event()
        self._changed: asyncio.Event | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def serve() -> None:
            try:
                asyncio.run(self._serve(loop))
            finally:
                loop.call_soon_threadsafe(done.set)

        thread = threading.Thread(target=serve, name="budgets", daemon=True)
        thread.start()
        try:
            await done.wait()
        finally:
            self._stop.set()

    async def _serve(self, main: asyncio.AbstractEventLoop) -> None:
        """Run the operator again after each of its ends, until it is stopped."""
        logging.getLogger("kopf").setLevel(logging.ERROR)
        while not self._stop.is_set():
            try:
                async with Client(self._connection) as client, asyncio.TaskGroup() as group:
                    await self._await_kind(client)
                    self._changed = asyncio.Event()
                    writer = group.create_task(self._write_statuses(client, main))
                    await self._watch()
                    writer.cancel()
            except* Exception as errors:  # noqa: BLE001 - kopf raises anything; the process serves on
                self._note("operator", str(errors.exceptions[0]) or type(errors.exceptions[0]).__name__)
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.to_thread(self._stop.wait, _PAUSE)

    async def _await_kind(self, client: Client) -> None:
        """Wait until the API server serves CardBudgets: kopf looks for kinds once."""
        while not self._stop.is_set():
            try:
                await client.request("GET", _KIND.collection(), params={"limit": "1"})
            except RequestError as error:
                self._note("operator", f"{CARD_BUDGET}s cannot be read: {error.text}")
                await self._pause()
            else:
                self._note("operator", "")
                return

    # --- kopf ---------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the objects until the operator is stopped."""
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        settings.scanning.disabled = True
        settings.posting.enabled = False
        group, version = BUDGET_API.split("/")
        kopf.on.login(registry=registry)(self._login)
        kopf.on.event(group, version, _KIND.resource, registry=registry)(self._seen)
        self._budgets.clear()
        await kopf.operator(
            registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=self._stop
        )

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """The connection of `web`: its TLS settings, and its token at each request."""
        connection = self._connection

        async def with_token(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            token = connection.token()
            if token:
                request.headers["Authorization"] = token if " " in token else f"Bearer {token}"
            if connection.server_name:
                request.server_hostname = connection.server_name
            return await send(request)

        await asyncio.to_thread(connection.renew)
        connector = aiohttp.TCPConnector(ssl=connection.ssl if connection.ssl is not None else True)
        session = aiohttp.ClientSession(connector=connector, middlewares=(with_token,), proxy=connection.proxy)
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    async def _seen(self, *, body: Mapping[str, Any], name: str, event: Mapping[str, Any], **_: Any) -> None:
        """A CardBudget exists, has changed, or is gone."""
        if event.get("type") == "DELETED":
            self._budgets.pop(name, None)
            return
        before, found = self._budgets.get(name), msgspec.json.decode(msgspec.json.encode(_plain(body)))
        self._budgets[name] = found
        if before is None or before["metadata"].get("generation") != found["metadata"].get("generation"):
            assert self._changed is not None
            self._changed.set()

    # --- statuses -----------------------------------------------------------------------------------------------------

    async def _write_statuses(self, client: Client, main: asyncio.AbstractEventLoop) -> None:
        """Write all statuses, periodically and when a spec changes."""
        assert self._changed is not None
        while True:
            try:
                async with asyncio.timeout(_PERIOD):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            parents = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._read_parents(), main))
            budgets = dict(self._budgets)
            try:
                patches = await in_ledger_thread(partial(self._patches, budgets, parents))
            except LedgerError as error:
                self._note("ledger", f"ledger: {error}")
                continue
            self._note("ledger", "")
            for number, (name, patch) in enumerate(in_order(patches, budgets)):
                if number >= _LEAST_WRITES and self._changed.is_set():
                    break  # changed budgets come first, the next pass has the others
                await self._write(client, name, patch)

    async def _read_parents(self) -> dict[str, str]:
        return self._parents()

    def _patches(self, budgets: Mapping[str, dict[str, Any]], parents: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """The changes of statuses by name, up to the end of the records. Raises LedgerError."""
        patches = {}
        #: Begin of a period to the use since: budgets share few periods.
        times: dict[int, dict[tuple[str, str], CardTime]] = {}
        with open_ledger(self._url) as ledger:
            now = round(ledger.recorded_until * 1000)
            if not now:
                return {}
            for name, obj in budgets.items():
                found = msgspec.convert(obj, CardBudgetObject)
                budget, _ = card_budget_facts(found)
                if budget is None:
                    continue
                begin = period_at(budget.period, now).begin
                if begin not in times:
                    times[begin] = subtree_times(card_times(ledger.database, begin, now), parents)
                use = _use(budget, times[begin])
                before = obj.get("status") or {}
                status = with_condition(budget_status(budget, use, now, obj["metadata"].get("generation")), before, now)
                if status != before:
                    patches[name] = status_patch(status, before)
        return patches

    async def _write(self, client: Client, name: str, patch: dict[str, Any]) -> None:
        if self._stop.is_set() or not self._may_write():
            return
        path, body = f"{_KIND.collection()}/{name}/status", msgspec.json.encode({"status": patch})
        try:
            answer = await client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        except RequestError as error:
            self._note(name, f"{CARD_BUDGET} {name}: its status cannot be written: {error.text}")
            return
        self._note(name, "")
        if name in self._budgets:
            self._budgets[name] = msgspec.json.decode(answer)

    def _note(self, subject: str, problem: str) -> None:
        """Report a new problem of a subject; "" for none any more."""
        for text in self._errors.update(subject, (problem,) if problem else ()):
            self._report(f"budgets: {text}")


def _plain(value: Any) -> Any:
    """The views of kopf as plain values."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _use(budget: CardBudget, times: Mapping[tuple[str, str], CardTime]) -> BudgetUse:
    found = {card: times.get((budget.queue, card)) for card in budget.limits}
    return BudgetUse(
        {card: 0 if use is None else use.used for card, use in found.items()},
        {card: 0 if use is None else use.held for card, use in found.items()},
    )


def in_order(patches: Mapping[str, T], budgets: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, T]]:
    """Patches of budgets, those whose spec the status does not show yet first."""

    def is_known(name: str) -> bool:
        shown = (budgets[name].get("status") or {}).get("observedGeneration")
        return bool(shown == budgets[name]["metadata"].get("generation"))

    return sorted(patches.items(), key=lambda one: is_known(one[0]))
