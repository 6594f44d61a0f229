"""Talks to the webhook over HTTP: the only module of a plugin that calls out, reads a clock and starts a thread.

An event loop runs in a thread of its own, from the first call until the client is closed or forgotten. The scheduler
thread hands over a group of calls that do not depend on each other and waits for all of them: they go side by side, on
connections that are kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

import aiohttp
import msgspec

from capcard_sched.plugins.extender.breaker import Breaker, BreakerState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

Answer = TypeVar("Answer")

#: A longer answer is not read.
MOST_BYTES: Final = 10 * 1024 * 1024
_CHUNK: Final = 64 * 1024
#: Single failures are told once in so many seconds; the metrics count all of them.
_REPEAT_SECONDS: Final = 60.0
#: How much later than agreed a group of calls may end before it is given up.
_GRACE_SECONDS: Final = 5.0
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "capcard-sched",
}

Kind = Literal["connection", "timeout", "status", "size", "answer", "breaker", "budget", "url"]

_log = logging.getLogger("capcard_sched.plugins.extender")


class CallFailure(NamedTuple):
    """Why there is no answer."""

    #: `breaker`, `budget` and `url`: the call was not made, or not for as long as it may take.
    kind: Kind
    message: str


class Question(NamedTuple, Generic[Answer]):
    """What a verb is sent, and what is understood of its answers."""

    verb: str
    #: Reads the body of an answer; raises ValueError with what is wrong with it.
    decode: Callable[[bytes], Answer]
    #: May be sent a second time when a kept connection turns out to be closed.
    repeatable: bool = True


class Count(msgspec.Struct):
    """What became of the calls of one verb."""

    calls: int = 0
    #: Time the calls took, added up.
    seconds: float = 0.0
    #: Failures by kind.
    failures: dict[Kind, int] = msgspec.field(default_factory=dict)


class _Unread(Exception):  # noqa: N818 - it says what happened
    """An answer that is none."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.failure = CallFailure(kind, message)


def url_of(prefix: str, verb: str) -> str:
    """Where a verb is sent to."""
    return f"{prefix.rstrip('/')}/{verb}"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The thread; it must not hold what would keep the client alive."""
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Loop:
    """A thread with an event loop and a session of HTTP in it."""

    def __init__(self, connections: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="extender", daemon=True)
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

    def run(self, work: Coroutine[Any, Any, Answer], timeout: float | None) -> Answer:
        """Do something in the thread and wait for it. Raises TimeoutError after `timeout` seconds."""
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
    """Calls of one webhook. To be used by one thread.

    An instance that nobody needs any more ends its thread by itself; `close` does so at once.
    """

    def __init__(self, prefix: str, *, timeout: float, budget: float, connections: int, breaker: Breaker,
                 consequence: str = "") -> None:  # fmt: skip
        """`prefix`: what stands before verbs, "" when there is no usable one; `timeout` of a call and `budget` of a
        session in seconds; `consequence` says in the log what follows when there is no answer.
        """  # noqa: D205 - one sentence
        self._prefix = prefix
        self._timeout = timeout
        self._budget = budget
        self._connections = connections
        self._breaker = breaker
        self._consequence = consequence
        self._left = budget
        self._loop: _Loop | None = None
        self._close: Callable[[], object] | None = None
        #: When a single failure was told last.
        self._told: float | None = None
        #: By verb, in the order they were first sent.
        self.counts: dict[str, Count] = {}

    @property
    def breaker_state(self) -> BreakerState:
        """Whether the webhook is asked at all now."""
        return self._breaker.state(monotonic())

    def close(self) -> None:
        """End the thread; it begins anew with the next call."""
        if self._close is not None:
            self._close()
        self._loop = self._close = None

    def begin(self) -> None:
        """A session begins: it has the whole budget."""
        self._left = self._budget

    def _unreachable(self) -> CallFailure | None:
        """Why no call would be made now, None when one would."""
        if not self._prefix:
            return CallFailure("url", "there is no URL to ask")
        if self._breaker.state(monotonic()) is BreakerState.OPEN:
            return self._unmade("breaker")
        return self._unmade("budget") if self._left <= 0 else None

    def ask(
        self, question: Question[Answer], many: int, write: Callable[[], Sequence[bytes]]
    ) -> list[Answer | CallFailure]:
        """The answers to `many` requests that may be sent in any order, in the order of their bodies. Never raises.

        `write` makes the bodies; it is not called when nobody would read them.
        """
        if not many:
            return []
        count = self.counts.setdefault(question.verb, Count())
        failure = self._unreachable()
        if failure is not None:
            count.failures[failure.kind] = count.failures.get(failure.kind, 0) + many
            return [failure] * many
        bodies = write()
        began = monotonic()
        if many > 1 and self._breaker.state(began) is BreakerState.HALF_OPEN:
            found = self._group(question, bodies[:1], count)  # one tries whether it is worth it
            self._left -= monotonic() - began
            return found + self.ask(question, many - 1, lambda: bodies[1:])
        found = self._group(question, bodies, count)
        self._left -= monotonic() - began
        return found

    def silence(self, verb: str) -> CallFailure | None:
        """The failure of any call that would be made now, counted once; None when calls are made."""
        failure = self._unreachable()
        if failure is not None:
            failures = self.counts.setdefault(verb, Count()).failures
            failures[failure.kind] = failures.get(failure.kind, 0) + 1
        return failure

    def _group(self, question: Question[Answer], bodies: Sequence[bytes], count: Count) -> list[Answer | CallFailure]:
        if self._loop is None:
            self._loop = _Loop(self._connections)
            self._close = weakref.finalize(self, self._loop.stop)
        deadline = monotonic() + self._left
        try:
            return self._loop.run(self._all(question, bodies, deadline, count), self._left + _GRACE_SECONDS)
        except TimeoutError:
            self._breaker.failed(monotonic())
            count.failures["budget"] = count.failures.get("budget", 0) + len(bodies)
            return [self._unmade("budget")] * len(bodies)

    def _unmade(self, kind: Literal["breaker", "budget"]) -> CallFailure:
        if kind == "breaker":
            return CallFailure(kind, "it is not asked for a while, because it failed again and again")
        return CallFailure(kind, f"the session has waited for it {self._budget:g} s already")

    # --- in the thread of the loop ----------------------------------------------------------------------------------

    async def _all(
        self, question: Question[Answer], bodies: Sequence[bytes], deadline: float, count: Count
    ) -> list[Answer | CallFailure]:
        room = asyncio.Semaphore(self._connections)
        calls: list[asyncio.Task[Answer | CallFailure]] = []
        for body in bodies:
            call = self._one(question, body, deadline, count, room)
            calls.append(asyncio.create_task(call))
        return await asyncio.gather(*calls)

    async def _one(
        self, question: Question[Answer], body: bytes, deadline: float, count: Count, room: asyncio.Semaphore
    ) -> Answer | CallFailure:
        async with room:
            began = monotonic()
            left = deadline - began
            answer: Answer | CallFailure
            if left <= 0:
                answer = self._unmade("budget")
            elif not self._breaker.allows(began):
                answer = self._unmade("breaker")
            else:
                answer = await self._call(question, body, min(self._timeout, left))
                ended = monotonic()
                count.calls += 1
                count.seconds += ended - began
                self._judge(question.verb, answer, ended)
            if isinstance(answer, CallFailure):
                count.failures[answer.kind] = count.failures.get(answer.kind, 0) + 1
            return answer

    async def _call(self, question: Question[Answer], body: bytes, limit: float) -> Answer | CallFailure:
        """One call within `limit` seconds."""
        verb, url = question.verb, url_of(self._prefix, question.verb)
        try:
            async with asyncio.timeout(limit):
                try:
                    data = await self._post(verb, url, body)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                    if not question.repeatable or isinstance(error, aiohttp.ClientConnectorError):
                        raise
                    data = await self._post(verb, url, body)
            return question.decode(data)
        except _Unread as problem:
            return problem.failure
        except TimeoutError:
            if limit < self._timeout:
                return self._unmade("budget")
            return CallFailure("timeout", f"no answer to {verb} from {url} within {limit:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return CallFailure(
                "connection", f"{verb} could not be asked at {url}: {str(error) or type(error).__name__}"
            )
        except ValueError as error:
            return CallFailure("answer", f"the answer to {verb} from {url} cannot be used: {error}")

    async def _post(self, verb: str, url: str, body: bytes) -> bytes:
        """The body of the answer. Raises _Unread when it is none, and what aiohttp raises."""
        assert self._loop is not None
        async with self._loop.session.post(url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                message = f"failed {verb} with extender at URL {url}, code {response.status}"
                raise _Unread("status", message)
            data = bytearray()
            if (response.content_length or 0) <= MOST_BYTES:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    data += chunk
                    if len(data) > MOST_BYTES:
                        break
                else:
                    return bytes(data)
            response.close()  # the rest is not worth reading
            raise _Unread("size", f"the answer to {verb} from {url} is longer than {MOST_BYTES >> 20} MiB")

    def _judge(self, verb: str, answer: object, now: float) -> None:
        """Tell the breaker, and the log what is new."""
        breaker = self._breaker
        if not isinstance(answer, CallFailure):
            if breaker.succeeded():
                _log.info("the extender answers again: %s", verb)
        elif answer.kind == "budget":
            breaker.abandoned()  # it may have answered, had it been given the time
        elif breaker.failed(now):
            _log.warning(
                "the extender failed %d times in a row and is left alone for a while, then tried again; "
                "until it answers, %s. The last failure: %s",
                breaker.failures,
                self._consequence or "there is no answer",
                answer.message,
            )
        else:
            news = self._told is None or now - self._told >= _REPEAT_SECONDS
            self._told = now if news else self._told
            _log.log(logging.WARNING if news else logging.DEBUG, "the extender failed: %s", answer.message)
