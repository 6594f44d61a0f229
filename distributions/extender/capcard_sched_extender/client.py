"""The HTTP client behind the port of webhooks, with a circuit breaker that stops calls while a webhook keeps failing.

An event loop runs in its own thread, from the first call until the client is closed or collected. The scheduler thread
passes a group of independent calls and waits for all of them; they run concurrently on kept-alive connections.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import aiohttp

from capcard_sched_extender.port import BreakerState, CallCount, CallFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from capcard_sched_extender.port import FailureKind, WebhookSettings, WebhookVerb


class Breaker:
    """Opens after failures in a row, allows one probe after a period, and closes when a call succeeds.

    Times are seconds of a monotonic clock. Not thread-safe.
    """

    def __init__(self, failures: int, period: float) -> None:
        """`failures` in a row open it (0: never) for `period` seconds."""
        self._most = failures
        self._period = period
        self._opened: float | None = None
        self._trying = False
        #: Failures since the last success.
        self.failures = 0

    def state(self, now: float) -> BreakerState:
        """The state at `now`."""
        if self._opened is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened + self._period else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a call may be sent; when half open, one at a time."""
        state = self.state(now)
        if state is BreakerState.HALF_OPEN and not self._trying:
            self._trying = True
            return True
        return state is BreakerState.CLOSED

    def succeeded(self) -> bool:
        """Note a response. Returns whether it closed the breaker."""
        closes = self._opened is not None
        self._opened, self._trying, self.failures = None, False, 0
        return closes

    def failed(self, now: float) -> bool:
        """Note a failure. Returns whether it opened the closed breaker."""
        self.failures += 1
        opens = self._opened is None and 0 < self._most <= self.failures
        if opens or self.state(now) is BreakerState.HALF_OPEN:
            self._opened = now
        self._trying = False
        return opens

    def abandoned(self) -> None:
        """Note a call that ended without a result."""
        self._trying = False


Response = TypeVar("Response")

#: Bytes; a longer response is rejected.
MOST_BYTES: Final = 10 * 1024 * 1024
_CHUNK: Final = 64 * 1024
#: Seconds between two log lines about single failures; the metrics count all of them.
_REPEAT_SECONDS: Final = 60.0
#: Seconds after its deadline until a group of calls is abandoned.
_GRACE_SECONDS: Final = 5.0
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "capcard-sched",
}

_log = logging.getLogger("capcard_sched.plugins.extender")


class _NoResponse(Exception):  # noqa: N818 - not an error of this program
    """An HTTP response that is not a response of the verb."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.failure = CallFailure(kind, message)


def url_of(prefix: str, name: str) -> str:
    return f"{prefix.rstrip('/')}/{name}"


def _run(runner: asyncio.Runner) -> None:
    """The thread. It must not hold a reference to the client, so that the client can be collected."""
    with runner:  # cancels the calls under way
        runner.get_loop().run_forever()


class _Loop:
    """A thread with an event loop and an HTTP session."""

    def __init__(self, connections: int) -> None:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()
        self._thread = threading.Thread(target=_run, args=(runner,), name="extender", daemon=True)
        self._thread.start()
        self.session = self.run(self._connect(connections), None)

    @staticmethod
    async def _connect(connections: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def run(self, work: Coroutine[Any, Any, Response], timeout: float | None) -> Response:
        """Run a coroutine in the thread and wait for it. Raises TimeoutError after `timeout` seconds."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed():
            return
        if threading.current_thread() is self._thread:  # the last reference went while the loop ran
            self._loop.create_task(self.session.close()).add_done_callback(lambda _: self._loop.stop())
            return
        self.run(self.session.close(), _GRACE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GRACE_SECONDS)


class WebhookClient:
    """The port of one webhook (`WebhookPort`), for one thread.

    The thread ends when the client is closed or collected.
    """

    def __init__(self, settings: WebhookSettings) -> None:
        self._prefix = settings.prefix
        self._timeout = settings.timeout
        self._budget = settings.budget
        self._connections = settings.connections
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_period)
        self._consequence = settings.consequence
        self._left = settings.budget
        self._loop: _Loop | None = None
        self._close: Callable[[], object] | None = None
        #: When a single failure was logged last.
        self._logged_at: float | None = None
        #: By verb, in the order of their first calls.
        self.counts: dict[str, CallCount] = {}

    @property
    def breaker_state(self) -> BreakerState:
        return self._breaker.state(monotonic())

    def close(self) -> None:
        """End the thread; the next call starts another one."""
        if self._close is not None:
            self._close()
        self._loop = self._close = None

    def begin(self) -> None:
        self._left = self._budget

    def _unreachable(self) -> CallFailure | None:
        """The reason why a call now is not sent; None while calls are sent."""
        if not self._prefix:
            return CallFailure("url", "no valid URL is configured")
        if self._breaker.state(monotonic()) is BreakerState.OPEN:
            return self._unmade("breaker")
        return self._unmade("budget") if self._left <= 0 else None

    def call(
        self, verb: WebhookVerb[Response], number: int, write: Callable[[], Sequence[bytes]]
    ) -> list[Response | CallFailure]:
        """The responses to `number` independent requests, in the order of their bodies. Never raises.

        `write` makes the bodies; it is not called when no request is sent.
        """
        if not number:
            return []
        count = self.counts.setdefault(verb.name, CallCount())
        failure = self._unreachable()
        if failure is not None:
            count.failures[failure.kind] = count.failures.get(failure.kind, 0) + number
            return [failure] * number
        bodies = write()
        began = monotonic()
        if number > 1 and self._breaker.state(began) is BreakerState.HALF_OPEN:
            found = self._group(verb, bodies[:1], count)  # the probe of the breaker
            self._left -= monotonic() - began
            return found + self.call(verb, number - 1, lambda: bodies[1:])
        found = self._group(verb, bodies, count)
        self._left -= monotonic() - began
        return found

    def unavailable(self, name: str) -> CallFailure | None:
        """The failure of any call of the verb now, counted once; None while calls are sent."""
        failure = self._unreachable()
        if failure is not None:
            failures = self.counts.setdefault(name, CallCount()).failures
            failures[failure.kind] = failures.get(failure.kind, 0) + 1
        return failure

    def _group(
        self, verb: WebhookVerb[Response], bodies: Sequence[bytes], count: CallCount
    ) -> list[Response | CallFailure]:
        if self._loop is None:
            self._loop = _Loop(self._connections)
            self._close = weakref.finalize(self, self._loop.stop)
        deadline = monotonic() + self._left
        try:
            return self._loop.run(self._all(verb, bodies, deadline, count), self._left + _GRACE_SECONDS)
        except TimeoutError:
            self._breaker.failed(monotonic())
            count.failures["budget"] = count.failures.get("budget", 0) + len(bodies)
            return [self._unmade("budget")] * len(bodies)

    def _unmade(self, kind: Literal["breaker", "budget"]) -> CallFailure:
        if kind == "breaker":
            return CallFailure(kind, "the circuit breaker is open after repeated failures")
        return CallFailure(kind, f"the session's budget of {self._budget:g} s is used up")

    async def _all(
        self, verb: WebhookVerb[Response], bodies: Sequence[bytes], deadline: float, count: CallCount
    ) -> list[Response | CallFailure]:
        slots = asyncio.Semaphore(self._connections)
        calls: list[asyncio.Task[Response | CallFailure]] = []
        for body in bodies:
            call = self._one(verb, body, deadline, count, slots)
            calls.append(asyncio.create_task(call))
        return await asyncio.gather(*calls)

    async def _one(
        self, verb: WebhookVerb[Response], body: bytes, deadline: float, count: CallCount, slots: asyncio.Semaphore
    ) -> Response | CallFailure:
        async with slots:
            began = monotonic()
            left = deadline - began
            response: Response | CallFailure
            if left <= 0:
                response = self._unmade("budget")
            elif not self._breaker.allows(began):
                response = self._unmade("breaker")
            else:
                response = await self._send(verb, body, min(self._timeout, left))
                ended = monotonic()
                count.calls += 1
                count.seconds += ended - began
                self._record(verb.name, response, ended)
            if isinstance(response, CallFailure):
                count.failures[response.kind] = count.failures.get(response.kind, 0) + 1
            return response

    async def _send(self, verb: WebhookVerb[Response], body: bytes, limit: float) -> Response | CallFailure:
        name, url = verb.name, url_of(self._prefix, verb.name)
        try:
            async with asyncio.timeout(limit):
                try:
                    data = await self._post(name, url, body)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                    if not verb.repeatable or isinstance(error, aiohttp.ClientConnectorError):
                        raise
                    data = await self._post(name, url, body)
            return verb.decode(data)
        except _NoResponse as problem:
            return problem.failure
        except TimeoutError:
            if limit < self._timeout:
                return self._unmade("budget")
            return CallFailure("timeout", f"no response to {name} from {url} within {limit:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return CallFailure("connection", f"{name} failed at {url}: {str(error) or type(error).__name__}")
        except ValueError as error:
            return CallFailure("answer", f"the response to {name} from {url} is invalid: {error}")

    async def _post(self, name: str, url: str, body: bytes) -> bytes:
        """The body of the response. Raises _NoResponse, and the errors of aiohttp."""
        assert self._loop is not None
        async with self._loop.session.post(url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                message = f"failed {name} with extender at URL {url}, code {response.status}"
                raise _NoResponse("status", message)
            data = bytearray()
            if (response.content_length or 0) <= MOST_BYTES:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    data += chunk
                    if len(data) > MOST_BYTES:
                        break
                else:
                    return bytes(data)
            response.close()  # the rest is not read
            raise _NoResponse("size", f"the response to {name} from {url} is longer than {MOST_BYTES >> 20} MiB")

    def _record(self, name: str, response: object, now: float) -> None:
        """Update the breaker and log state changes."""
        breaker = self._breaker
        if not isinstance(response, CallFailure):
            if breaker.succeeded():
                _log.info("the extender responds again: %s", name)
        elif response.kind == "budget":
            breaker.abandoned()  # the budget ended first
        elif breaker.failed(now):
            _log.warning(
                "the extender failed %d times in a row: the circuit breaker is open; "
                "until it responds, %s. The last failure: %s",
                breaker.failures,
                self._consequence or "there is no response",
                response.message,
            )
        else:
            news = self._logged_at is None or now - self._logged_at >= _REPEAT_SECONDS
            self._logged_at = now if news else self._logged_at
            _log.log(logging.WARNING if news else logging.DEBUG, "the extender failed: %s", response.message)
