"""Errors of requests: an error response, no response, or a request that was withheld; and what libraries do to them."""

from __future__ import annotations

import asyncio
import enum
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A value of a Warning header with code 299: agent, text in quotes, and a date or none.
_WARNING: Final = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')


class StatusCause(msgspec.Struct, frozen=True):
    """One cause of a rejected request."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status: the object and the causes."""

    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """A `v1.Status`: the API server's response to a failed request."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


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
_LATER: Final = frozenset({401, 425, 429})
_BY_STATUS: Final = {404: RetryClass.ABSENT, 408: RetryClass.UNKNOWN, 409: RetryClass.CONFLICT}


class RequestError(Exception):
    """A request without a successful response: the server responded with an error, or not at all."""

    #: Code of the response; 0 without one.
    status = 0
    #: Seconds; None when absent.
    retry_after: float | None = None
    details = StatusDetails()

    @property
    def retry_class(self) -> RetryClass:
        """The next step of a write that ended with this error."""
        raise NotImplementedError

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later, or has succeeded."""
        return self.retry_class in (RetryClass.LATER, RetryClass.UNKNOWN)

    @property
    def text(self) -> str:
        """Text for logs and events: the server's message if there is one."""
        return str(self) or "no response"

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        return self.details.causes or ()

    @property
    def is_uid_mismatch(self) -> bool:
        """Whether a patch was rejected because the object was replaced by another one of the same name."""
        return self.status == HTTPStatus.UNPROCESSABLE_ENTITY and any(
            cause.field == "metadata.uid" for cause in self.causes
        )


class ApiError(RequestError):
    """The server responded with an error."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: StatusDetails | None = None,
    ) -> None:
        """`status`: HTTP code. `reason`: as in the Status ("NotFound", …). `retry_after`: seconds, None when absent."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details or StatusDetails()

    @property
    def retry_class(self) -> RetryClass:
        """A server error (5xx) does not show whether the write was committed."""
        if self.status in _LATER:
            return RetryClass.LATER
        if self.status >= 500 or self.status < 300:  # possibly committed, with an undecodable response
            return RetryClass.UNKNOWN
        return _BY_STATUS.get(self.status, RetryClass.REFUSED)

    @property
    def text(self) -> str:
        return self.message or self.reason or f"HTTP {self.status}"


class Unreachable(RequestError):  # noqa: N818 -- the state of the server is unknown, which is no error of the request
    """There was no response."""

    def __init__(self, message: str, *, sent: bool) -> None:
        """`sent`: False when the request certainly never reached the server."""
        super().__init__(message)
        self.sent = sent

    @property
    def retry_class(self) -> RetryClass:
        """Without a response, only a request that was not sent is certainly not committed."""
        return RetryClass.UNKNOWN if self.sent else RetryClass.LATER


class RequestWithheld(Exception):  # noqa: N818 -- the caller's own check stopped the request
    """The caller's check stopped the request: it was not sent, or not sent again."""


_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """Decode a Status; any other body becomes the message (proxies respond with text or HTML)."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        return Status(message=body[:500].decode("utf-8", "replace").strip())


def api_error(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error in a response with status `code`."""
    status = decode_status(body)
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "Unknown"
    retry_after = parse_retry_after(headers.get("Retry-After"))
    if retry_after is None and status.details is not None and status.details.retry_after_seconds > 0:
        retry_after = float(status.details.retry_after_seconds)
    return ApiError(
        code, status.reason or phrase.replace(" ", ""), status.message or phrase, retry_after, status.details
    )


def parse_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Parse a Retry-After header, a number or an HTTP date, into seconds ≥ 0. None when absent or neither."""
    if not header:
        return None
    text = header.strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def warnings_of(headers: Iterable[tuple[bytes, str]]) -> list[str]:
    """Texts of the Warning headers with code 299, in order; the API server sends no other code."""
    values = [value for name, value in headers if name == b"warning"]
    return [re.sub(r"\\(.)", r"\1", text) for value in values for text in _WARNING.findall(value)]


def forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error of a library and of its causes.

    Libraries keep an error in the connection that it ended, or in a local list. The frames of its traceback hold that
    in turn: a reference cycle.
    """
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


def cancellations() -> int:
    """Number of cancellations of the running task so far; growth across a call means that the call swallowed one.

    aiohappyeyeballs cancels the losing attempts of a connection race. A cancellation of the
    caller at that moment is swallowed, and the connection is returned: a loop that runs until cancelled would not end.
    """
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
