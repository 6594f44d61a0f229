"""A write to the API server as an object: its key, its merge, its attempts, and the outcome of each of them."""

from __future__ import annotations

import enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from capcard_sched.kube.client import Client, Unreachable, get
from capcard_sched.kube.errors import ApiError, RequestError, RetryClass
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes.leadership_gate import LeadershipLost
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.objects import PodObject

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

#: Seconds; shortest and longest pause of a worker after a 429; the write itself may wait longer.
_MIN_PAUSE: Final = 0.1
#: Seconds between two attempts at a PreBind that is pending.
_PENDING_SECONDS: Final = 1.0
_MAX_PAUSE: Final = 1.0


class WriteResult(enum.Enum):
    """Result of an attempt at a write."""

    #: Committed.
    DONE = "done"
    #: A step before the write succeeded.
    ALLOWED = "allowed"
    #: The object is gone, or another one has its name.
    GONE = "gone"
    #: The pod is bound, as far as known not by this binding: the watch delivers the node.
    ELSEWHERE = "elsewhere"
    #: Not committed: the object is not as its writer read it.
    CONFLICT = "conflict"
    #: A definite rejection, or the write is outdated.
    REFUSED = "refused"
    #: Inconclusive or temporarily impossible: the same write is sent again.
    AGAIN = "again"


#: The result of an attempt, unless the writer of the kind knows better.
_RESULTS: Final = {
    RetryClass.LATER: WriteResult.AGAIN,
    RetryClass.UNKNOWN: WriteResult.AGAIN,
    RetryClass.CONFLICT: WriteResult.CONFLICT,
    RetryClass.ABSENT: WriteResult.GONE,
    RetryClass.REFUSED: WriteResult.REFUSED,
}


class WriteOutcome(NamedTuple):
    """Outcome of one attempt at a write."""

    result: WriteResult
    #: Status of the response; 0 without one.
    code: int = 0
    message: str = ""
    #: `Retry-After` in seconds.
    wait: float = 0.0
    #: The server is overloaded or unreachable: the worker pauses.
    throttled: bool = False

    @classmethod
    def of(cls, result: WriteResult, error: RequestError) -> WriteOutcome:
        """The outcome of an attempt that ended with an error; throttled by an overloaded or unreachable server."""
        throttled = result is WriteResult.AGAIN and (error.retry_class is RetryClass.LATER or not error.status)
        return cls(result, error.status, error.text, error.retry_after or 0.0, throttled)

    @property
    def pause(self) -> float:
        """Seconds until the worker sends its next write: the rate falls as 429s become frequent."""
        return min(max(self.wait, _MIN_PAUSE), _MAX_PAUSE) if self.throttled else 0.0


DONE: Final = WriteOutcome(WriteResult.DONE)


class PreBindPendingError(ApiError):
    """A PreBind waits for another component; the text names it. The PreBind is repeated, without holding a worker."""

    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.TOO_EARLY, "PreBindPending", message, _PENDING_SECONDS)


class WriteCall:
    """Base: a queued write. The dispatcher sends it, retries it, and drops it with its term of leadership."""

    __slots__ = ("attempts", "since", "term", "writer")

    #: Its part of the backlog, of bindings and evictions.
    lane: ClassVar[Literal["", "bind", "evict"]] = ""

    def __init__(self, writer: CallWriter[Any], term: int) -> None:
        self.writer = writer
        self.term = term
        #: Time of submission, in seconds of a monotonic clock; set when it is sent.
        self.since = 0.0
        self.attempts = 0

    @property
    def kind(self) -> str:
        """The kind of a status or an event in metrics; "" for other writes."""
        return ""

    @property
    def key(self) -> Hashable:
        """Later writes with the same key merge with this one while it waits."""
        return self

    def merge(self, older: WriteCall) -> WriteCall:
        """This write with what it keeps of an older one that was not sent."""
        self.attempts = max(self.attempts, older.attempts)
        return self


def merge_calls(old: WriteCall, new: WriteCall) -> WriteCall:
    """The newer of two calls with one key, with what it keeps of the older one."""
    return new.merge(old)


C = TypeVar("C", bound=WriteCall)


class WriterContext(NamedTuple):
    """The parameters that all writers share."""

    client: Client
    gate: LeadershipGate
    observer: Observer
    #: Monotonic, in seconds.
    clock: Callable[[], float]
    #: Passes an outcome to the core after a number of seconds.
    deliver: Callable[[float, Delta], None]
    #: Queues conditions and events.
    submit: Callable[[Sequence[Intent]], None]


class CallWriter(Generic[C]):
    """Base: sends the calls of one kind and judges the responses."""

    #: Seconds between attempts.
    backoff = WriteBackoff(first=0.1, longest=10.0)

    def __init__(self, context: WriterContext) -> None:
        self.context = context
        self.client, self.gate, self.observer, self.clock = context[:4]

    def not_before(self, call: C) -> float | None:
        """Time until which a call must wait, None to send it; read right before it is sent."""
        del call
        return None

    async def send(self, call: C) -> WriteOutcome:
        """Send a call once, and count the outcome. Raises LeadershipLost, also when its term ended meanwhile."""
        call.attempts += 1
        try:
            outcome = await self.attempt(call)
        except RequestError as error:
            outcome = await self.classify(call, error)
        except msgspec.DecodeError as error:
            outcome = await self.classify(
                call, Unreachable(f"the response cannot be decoded: {field_problem(error)}", sent=True)
            )
        self.observe(call, outcome)
        if call.term != self.gate.term:
            raise LeadershipLost
        return outcome

    async def attempt(self, call: C) -> WriteOutcome:
        """Send a call. Raises LeadershipLost, ApiError, Unreachable, and DecodeError for a malformed response."""
        raise NotImplementedError

    async def classify(self, call: C, error: RequestError) -> WriteOutcome:
        """The outcome of an attempt that ended with an error."""
        del call
        return WriteOutcome.of(_RESULTS[error.retry_class], error)

    def observe(self, call: C, outcome: WriteOutcome) -> None:
        """Report an attempt to the observer."""
        if outcome.result is WriteResult.DONE:
            self.observer.written(call.kind, self.clock() - call.since)
        else:
            self.observer.write_failed(call.kind, outcome.code, outcome.message)

    def wait(self, call: C, outcome: WriteOutcome) -> float:
        """Seconds until the next attempt, at least `Retry-After`."""
        return self.backoff.wait(call.attempts, outcome.wait)

    def end(self, call: C, outcome: WriteOutcome) -> None:
        """Act on the outcome of an attempt, AGAIN included, within the term of the call."""


decode_pod: Final = msgspec.json.Decoder(PodObject).decode


async def read_pod(client: Client, namespace: str, name: str, uid: str) -> PodObject | None:
    """Read the pod from etcd, not from a cache; None when it is gone or replaced.

    Raises ApiError or Unreachable when it cannot be read.
    """
    pod = await get(client, object_path("Pod", namespace, name), decode_pod)
    return pod if pod is not None and (not uid or pod.metadata.uid == uid) else None
