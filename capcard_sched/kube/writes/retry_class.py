"""What an error means for a write: whether it was done, may have been done, and whether asking again can help."""

from __future__ import annotations

import enum

from capcard_sched.kube.client import ApiError, Unreachable


class RetryClass(enum.Enum):
    """What is known after a request failed, named by what to do next."""

    #: Certainly not done, through no fault of the request: send the same again later.
    LATER = "later"
    #: May have been done, or may still be: read the live object before anything else is decided.
    UNKNOWN = "unknown"
    #: Not done, because the object is not as the request assumed: read it.
    CONFLICT = "conflict"
    #: Not done: something the request names does not exist.
    ABSENT = "absent"
    #: Not done, and the same request will be refused again until somebody changes something.
    REFUSED = "refused"


#: Answers that are no refusal of this request; 401: a token that is just being renewed; 429: too many requests.
_LATER = frozenset({401, 425, 429})
_BY_STATUS = {404: RetryClass.ABSENT, 408: RetryClass.UNKNOWN, 409: RetryClass.CONFLICT}


def verdict(error: ApiError | Unreachable) -> RetryClass:
    """Judge an error. A server error (5xx) says nothing about whether the write was committed."""
    if isinstance(error, Unreachable):
        return RetryClass.UNKNOWN if error.sent else RetryClass.LATER
    if error.status in _LATER:
        return RetryClass.LATER
    if error.status >= 500 or error.status < 300:  # done, perhaps, but the answer could not be read
        return RetryClass.UNKNOWN
    return _BY_STATUS.get(error.status, RetryClass.REFUSED)


def code_of(error: ApiError | Unreachable) -> int:
    """The status of the answer, 0 when there was none."""
    return error.status if isinstance(error, ApiError) else 0


def text_of(error: ApiError | Unreachable) -> str:
    """What to tell people: the server's own words where it said any."""
    if isinstance(error, ApiError):
        return error.message or error.reason or f"HTTP {error.status}"
    return str(error) or "no answer"


def asked_wait(error: ApiError | Unreachable) -> float:
    """Seconds the server asked to wait (`Retry-After`), 0.0 when it did not."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


def names_another_uid(error: ApiError | Unreachable) -> bool:
    """Whether a patch was refused because it names the uid of an object that is no more: another one has its name."""
    if not isinstance(error, ApiError) or error.status != 422:
        return False
    return any(cause.field == "metadata.uid" for cause in error.details.causes or ())
