"""What becomes of a request: an error the server answers, or no answer at all."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class StatusCause(msgspec.Struct, frozen=True):
    """One thing that is wrong with a refused object."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status: which object, and what is wrong with it."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """What an API server answers when there is no object to answer with."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(Exception):
    """The server answered with an error."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: StatusDetails | None = None,
    ) -> None:
        """`status`: HTTP code. `reason`: as in the Status ("NotFound", …). `retry_after`: seconds, None when unsaid."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details or StatusDetails()


class Unreachable(Exception):  # noqa: N818 -- says what is known: no answer
    """There was no answer."""

    def __init__(self, message: str, *, sent: bool) -> None:
        """`sent`: False when the request certainly never reached the server."""
        super().__init__(message)
        self.sent = sent


class RequestWithheld(Exception):  # noqa: N818 -- no error: whoever asked wanted it so
    """The request was not to leave any more when its turn came: it has not been sent, or not a second time."""


_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """A Status as JSON; anything else becomes the message (proxies answer in words or HTML)."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        return Status(message=body[:500].decode("utf-8", "replace").strip())


def api_error(code: int, headers: Mapping[str, str], body: bytes, now: datetime | None = None) -> ApiError:
    """The error in an answer with status `code`; `now` is what an HTTP date in Retry-After is measured from."""
    said = decode_status(body)
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "Unknown"
    retry_after = parse_retry_after(headers.get("Retry-After"), now)
    if retry_after is None and said.details is not None and said.details.retry_after_seconds > 0:
        retry_after = float(said.details.retry_after_seconds)
    return ApiError(code, said.reason or phrase.replace(" ", ""), said.message or phrase, retry_after, said.details)


def parse_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date. None when absent or neither; never negative."""
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
