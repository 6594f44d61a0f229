"""Classification of errors of writes: committed or not, and worth a retry or not."""

from __future__ import annotations

import enum

from capcard_sched.kube.client import ApiError, Unreachable


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
