"""Serves the pages as HTML and the same views as JSON. Read-only: no cookies, no other hosts, no other methods."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from capcard_sched.insight.trials.forked_copy import ForkedCopyError
from capcard_sched.web.access import VIEWER, DeniedError
from capcard_sched.web.pages import PAGES, USAGE
from capcard_sched.web.render import render
from capcard_sched.web.source import UnavailableError
from capcard_sched.web.usage_csv import usage_csv
from capcard_sched.web.view_turns import ViewTurns
from capcard_sched.web.views import JobView, UsageView, WebError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.access import Access
    from capcard_sched.web.pages import Page
    from capcard_sched.web.source import PageSource

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
#: The namespaces whose jobs the viewer may see; None for all.
_NAMESPACES: Final[web.RequestKey[frozenset[str] | None]] = web.RequestKey("namespaces")
#: Addresses of probes: without access, and without content.
_PROBES: Final = ("/healthz", "/readyz")
#: Parameters of every page.
_COMMON: Final = frozenset({"at"})
#: Bytes of a request line: a scheduler-conf is part of an address.
_LINE_BYTES: Final = 65_536
#: Streams of events at a time.
STREAMS: Final = 64
#: Streams, and views that are made or wait, of one user at a time.
STREAMS_OF_ONE: Final = 16
VIEWS_OF_ONE: Final = 8
#: Views that are made at a time, and those of one user: slow ones, and others, which do not wait for them.
_SLOW_TURNS: Final = (2, 1)
_QUICK_TURNS: Final = (3, 2)
#: The sum of both.
VIEWS_AT_ONCE: Final = _SLOW_TURNS[0] + _QUICK_TURNS[0]


class WebServer:
    """One port with all pages. `start` once, `stop` once."""

    def __init__(self, source: PageSource, access: Access) -> None:
        self._source, self._access = source, access
        self._static = {name: files("capcard_sched.web").joinpath("static", name).read_bytes() for name in _STATIC}
        app = web.Application(middlewares=[self._guard], client_max_size=0)
        for page in PAGES:
            if page.address:
                app.router.add_get(page.address, self._page(page))
            app.router.add_get(f"/api/v1{page.document}", self._document(page))
        app.router.add_get(f"{USAGE.address}.csv", self._usage_csv)
        app.router.add_get("/api/v1/events", self._events)
        for address in _PROBES:
            app.router.add_get(address, self._probe)
        for name in _STATIC:
            app.router.add_get(f"/static/{name}", self._file(name))
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, max_line_size=_LINE_BYTES, shutdown_timeout=1.0
        )
        #: Streams, and the user of each.
        self._streams: dict[asyncio.Task[object], str] = {}
        #: User to the number of views.
        self._views: Counter[str] = Counter()
        self._slow, self._quick = ViewTurns(*_SLOW_TURNS), ViewTurns(*_QUICK_TURNS)

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """End streams and close."""
        for task in self._streams:
            task.cancel()
        await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check access, turn exceptions into pages, and set the headers of every response."""
        try:
            if request.path not in _PROBES:
                request[_NAMESPACES] = await self._access.namespaces(request)
            response = await handler(request)
        except DeniedError as error:
            response = self._error(request, error.status, str(error))
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
        except LookupError as error:
            response = self._error(request, 404, str(error.args[0]))
        except ValueError as error:
            response = self._error(request, 400, str(error))
        except UnavailableError as error:
            response = self._error(request, 503, str(error))
            response.headers["Retry-After"] = response.headers["Refresh"] = "2"
        except ForkedCopyError as error:
            response = self._error(request, 500, str(error))
        except web.HTTPException as error:
            response = self._error(request, error.status, f"{request.path}: {error.reason}")
            response.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
        except Exception as error:  # noqa: BLE001 - a defect of one page; others go on
            traceback.print_exception(error)
            response = self._error(request, 500, f"internal error: {type(error).__name__}; the log has more")
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _error(self, request: web.Request, status: int, text: str) -> web.Response:
        found = WebError(status=status, message=text)
        if request.path.startswith("/api/"):
            return _json(found, status)
        page = render("error.html", found, path=request.path, query={})
        return web.Response(text=page, status=status, content_type="text/html")

    def _page(self, page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            query = _query(request, page)
            view = await self._view(request, page, query)
            shown = dict(sorted(query.items()))
            text = render(page.template, view, path=request.rel_url.raw_path, query=shown)
            response = web.Response(text=text, content_type="text/html")
            response.enable_compression()
            return response

        return handle

    async def _view(self, request: web.Request, page: Page, query: Mapping[str, str]) -> InsightPart:
        """The view of a request. Raises UnavailableError while as many of its user are made."""
        viewer = request.get(VIEWER, "")
        if viewer and self._views[viewer] >= VIEWS_OF_ONE:
            raise UnavailableError(f"{VIEWS_OF_ONE} pages of this user are being made already")
        self._views[viewer] += 1
        try:
            turns = self._slow if is_slow(page, query) else self._quick
            async with turns.turn(viewer):
                return await self._source.view(page, {**query, **request.match_info}, request[_NAMESPACES])
        finally:
            self._views -= Counter([viewer])

    def _document(self, page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            query = _query(request, page)
            response = _json(await self._view(request, page, query))
            response.enable_compression()
            return response

        return handle

    def _file(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(body=self._static[name], content_type=_STATIC[name], charset="utf-8")

        return handle

    async def _usage_csv(self, request: web.Request) -> web.Response:
        """The groups of the page of usage with the same query."""
        view = await self._view(request, USAGE, _query(request, USAGE))
        assert isinstance(view, UsageView)
        response = web.Response(text=usage_csv(view.by, view.groups), content_type="text/csv", charset="utf-8")
        response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
        return response

    async def _probe(self, request: web.Request) -> web.Response:
        if request.path == "/readyz" and not self._source.is_ready:
            return web.Response(text="the cluster is read for the first time\n", status=503)
        return web.Response(text="ok\n")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the page is read again after a change."""
        if len(self._streams) >= STREAMS:
            raise UnavailableError(f"{STREAMS} streams of events are open already")
        viewer = request.get(VIEWER, "")
        if viewer and list(self._streams.values()).count(viewer) >= STREAMS_OF_ONE:
            raise UnavailableError(f"{STREAMS_OF_ONE} streams of events of this user are open already")
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = viewer
        try:
            await response.prepare(request)
            async for event, data in self._source.changes():
                await response.write(f"event: {event}\ndata: {data}\n\n".encode())
        except (ConnectionError, asyncio.CancelledError):
            with contextlib.suppress(Exception):
                await response.write_eof()
        finally:
            self._streams.pop(task, None)
        return response


def is_slow(page: Page, query: Mapping[str, str]) -> bool:
    """Whether a view takes longer than others: it has trials on request, or reads a database."""
    return bool(query.get("at")) or (page.is_slow and (page.kind is not JobView or query.get("fix") == "1"))


def _query(request: web.Request, page: Page) -> dict[str, str]:
    """The parameters of a request. Raises ValueError for an unknown one, or one given twice."""
    found: dict[str, str] = {}
    accepted = _COMMON | page.query
    for name, value in request.query.items():
        if name not in accepted:
            raise ValueError(f"{name}: unknown parameter; accepted: {', '.join(sorted(accepted))}")
        if name in found:
            raise ValueError(f"{name}: given twice")
        if value:
            found[name] = value
    return found


def _json(view: msgspec.Struct, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(view), indent=2)
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")
