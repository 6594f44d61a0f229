"""The port through which the plugin calls its webhook.

Without `session.calls_webhooks` it is `NoWebhook`: every call fails with kind `url`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Response = TypeVar("Response")

FailureKind: TypeAlias = Literal["connection", "timeout", "status", "size", "answer", "breaker", "budget", "url"]


class CallFailure(NamedTuple):
    """The reason why there is no response."""

    #: `breaker`, `budget` and `url`: the call was not sent, or was cut short by the session's budget.
    kind: FailureKind
    message: str


class WebhookVerb(NamedTuple, Generic[Response]):
    """One verb of a webhook."""

    name: str
    #: Decodes the body of a response; raises ValueError with the problem.
    decode: Callable[[bytes], Response]
    #: Whether the request may be sent again when a kept connection turns out to be closed.
    repeatable: bool = True


class CallCount(msgspec.Struct):
    """The calls of one verb."""

    calls: int = 0
    #: Sum of the durations of the calls.
    seconds: float = 0.0
    #: Failures by kind.
    failures: dict[FailureKind, int] = msgspec.field(default_factory=dict)


class BreakerState(IntEnum):
    """The values of the metric."""

    CLOSED = 0
    #: One call may probe the webhook.
    HALF_OPEN = 1
    OPEN = 2


class WebhookSettings(NamedTuple):
    """The settings of one webhook; durations in seconds."""

    #: Prefix of all verbs, "" without a usable URL.
    prefix: str
    #: Of one call, and of all calls of a session together.
    timeout: float
    budget: float
    #: Maximum number of concurrent calls.
    connections: int
    #: Failures in a row that open the circuit breaker (0: never), and how long it stays open.
    breaker_failures: int
    breaker_period: float
    #: The consequence of a missing response, for the log.
    consequence: str = ""


class WebhookPort(Protocol):
    """Calls of one webhook."""

    @property
    def counts(self) -> Mapping[str, CallCount]:
        """By verb, in the order of their first calls."""

    @property
    def breaker_state(self) -> BreakerState:
        """The current state of the circuit breaker."""

    def begin(self) -> None:
        """Start a session: its budget is full."""

    def call(
        self, verb: WebhookVerb[Response], number: int, write: Callable[[], Sequence[bytes]]
    ) -> list[Response | CallFailure]:
        """The responses to `number` independent requests, in the order of their bodies. Never raises.

        `write` makes the bodies; it is not called when no request is sent.
        """

    def unavailable(self, name: str) -> CallFailure | None:
        """The failure of any call of the verb now, counted once; None while calls are sent."""


class NoWebhook:
    """The port where nothing provides one: every call fails."""

    def __init__(self) -> None:
        self.counts: dict[str, CallCount] = {}
        self.breaker_state = BreakerState.CLOSED

    def begin(self) -> None:
        """Nothing to do."""

    def call(
        self,
        verb: WebhookVerb[Response],
        number: int,
        write: Callable[[], Sequence[bytes]],
    ) -> list[Response | CallFailure]:
        """Failures only; `write` is not called."""
        return [self._failure(verb.name, number)] * number

    def unavailable(self, name: str) -> CallFailure | None:
        return self._failure(name, 1)

    def _failure(self, name: str, number: int) -> CallFailure:
        failures = self.counts.setdefault(name, CallCount()).failures
        failures["url"] = failures.get("url", 0) + number
        return CallFailure("url", "there is no connection to webhooks here")
