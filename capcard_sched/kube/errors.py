"""Errors of requests: an error response, no response, or a request that was withheld; and what libraries do to them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class ApiError(Exception):
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


class Unreachable(Exception):  # noqa: N818 -- the state of the server is unknown, which is no error of the request
    """There was no response."""

    def __init__(self, message: str, *, sent: bool) -> None:
        """`sent`: False when the request certainly never reached the server."""
        super().__init__(message)
        self.sent = sent


class RequestWithheld(Exception):  # noqa: N818 -- the caller's own check stopped the request
    """The caller's check stopped the request: it was not sent, or not sent again."""


_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """Decode a Status; any other body becomes the message (proxies respond with text or HTML)."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        return Status(message=body[:500].decode("utf-8", "replace").strip())


def api_error(code: int, headers: Mapping[str, str], body: bytes, now: datetime | None = None) -> ApiError:
    """The error in a response with status `code`; an HTTP date in Retry-After is relative to `now`."""
    status = decode_status(body)
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "Unknown"
    retry_after = parse_retry_after(headers.get("Retry-After"), now)
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
