"""A write to the API server as an object: its key, its merge, its attempts, and the outcome of each of them."""

from __future__ import annotations

import enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.model.objects import PodObject

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent


class RetryClass(enum.Enum):
    """State of a failed write, named by the next step."""

    #: Not committed, and the request is valid: send it again later.
    LATER = "later"
    #: Possibly committed, now or later: read the live object first.
    UNKNOWN = "unknown"
    #: Not committed, because the object differs from the request's assumption: read it.
    CONFLICT = "conflict"
    #: Not committed: an object of the request does not exist.
    ABSENT = "absent"
    #: Not committed, and the API server rejects the same request until something changes.
    REFUSED = "refused"


#: Status codes that do not reject this request; 401: a token during its renewal; 429: too many requests.
_LATER = frozenset({401, 425, 429})
_BY_STATUS = {404: RetryClass.ABSENT, 408: RetryClass.UNKNOWN, 409: RetryClass.CONFLICT}


def retry_class(error: ApiError | Unreachable) -> RetryClass:
    """Classify an error. A server error (5xx) does not show whether the write was committed."""
    if isinstance(error, Unreachable):
        return RetryClass.UNKNOWN if error.sent else RetryClass.LATER
    if error.status in _LATER:
        return RetryClass.LATER
    if error.status >= 500 or error.status < 300:  # possibly committed, with an undecodable response
        return RetryClass.UNKNOWN
    return _BY_STATUS.get(error.status, RetryClass.REFUSED)


def code_of(error: ApiError | Unreachable) -> int:
    """Status of the response, 0 without one."""
    return error.status if isinstance(error, ApiError) else 0


def text_of(error: ApiError | Unreachable) -> str:
    """Text for logs and events: the server's message if there is one."""
    if isinstance(error, ApiError):
        return error.message or error.reason or f"HTTP {error.status}"
    return str(error) or "no response"


def retry_after_of(error: ApiError | Unreachable) -> float:
    """`Retry-After` in seconds, 0.0 without it."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


def is_uid_mismatch(error: ApiError | Unreachable) -> bool:
    """Whether a patch was rejected because the object was replaced by another one of the same name."""
    if not isinstance(error, ApiError) or error.status != 422:
        return False
    return any(cause.field == "metadata.uid" for cause in error.details.causes or ())


#: Seconds; shortest and longest pause of a worker after a 429; the write itself may wait longer.
_MIN_PAUSE: Final = 0.1
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
    #: A definite rejection, or the write is outdated.
    REFUSED = "refused"
    #: Inconclusive or temporarily impossible: the same write is sent again.
    AGAIN = "again"


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

    @property
    def pause(self) -> float:
        """Seconds until the worker sends its next write: the rate falls as 429s become frequent."""
        return min(max(self.wait, _MIN_PAUSE), _MAX_PAUSE) if self.throttled else 0.0


DONE: Final = WriteOutcome(WriteResult.DONE)


def outcome_of(result: WriteResult, error: ApiError | Unreachable, *, throttled: bool = False) -> WriteOutcome:
    """The outcome of an attempt that ended with an error."""
    return WriteOutcome(result, code_of(error), text_of(error), retry_after_of(error), throttled)


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
    def key(self) -> Hashable:
        """Later writes with the same key merge with this one while it waits."""
        return self

    def merge(self, older: WriteCall) -> WriteCall:
        """This write with what it keeps of an older one that was not sent."""
        self.attempts = max(self.attempts, older.attempts)
        return self


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
        """Time until which a call must wait, None to send it; asked right before it is sent."""
        del call
        return None

    async def send(self, call: C) -> WriteOutcome:
        """Send a call once. Raises LeadershipLost."""
        raise NotImplementedError

    def wait(self, call: C, outcome: WriteOutcome) -> float:
        """Seconds until the next attempt."""
        return self.backoff.wait(call.attempts, outcome.wait)

    def end(self, call: C, outcome: WriteOutcome) -> None:
        """Act on the outcome of an attempt, AGAIN included, within the term of the call."""

    def observe(self, kind: str, call: C, outcome: WriteOutcome) -> WriteOutcome:
        """Count an attempt at a status or an event."""
        if outcome.result is WriteResult.DONE:
            self.observer.written(kind, self.clock() - call.since)
        else:
            self.observer.write_failed(kind, outcome.code, outcome.message)
        return outcome


_POD = msgspec.json.Decoder(PodObject)


def decode_pod(body: bytes) -> PodObject:
    """Decode a pod. Raises Unreachable (sent) for another body: the outcome is then unknown."""
    try:
        return _POD.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response is not a pod: {error}", sent=True) from error


async def read_pod(client: Client, namespace: str, name: str, uid: str) -> PodObject | None:
    """Read the pod from etcd, not from a cache; None when it is gone or replaced.

    Raises ApiError or Unreachable when it cannot be read.
    """
    try:
        body = await client.request("GET", object_path("Pod", namespace, name))
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    pod = decode_pod(body)
    return pod if not uid or pod.metadata.uid == uid else None
