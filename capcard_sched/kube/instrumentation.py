"""Callbacks of the backend for metrics and logs; the backend itself logs the warnings of the API server only."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from capcard_sched.model.intents import Bind, Evict

#: Status of a list to the event of a kind that does not exist, or may not be listed.
UNAVAILABLE: Final[dict[int, str]] = {HTTPStatus.NOT_FOUND: "missing", HTTPStatus.FORBIDDEN: "forbidden"}


_log = logging.getLogger(__name__)
#: Number of warnings that are logged at most: their texts may contain names of objects.
_MAX_WARNINGS: Final = 1000
_logged_warnings: set[str] = set()


class Observer:
    """Receives requests, watch events and outcomes; logs warnings, and ignores the rest.

    Called in the event loop; must not block.
    """

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One request ended. `resource` as in RBAC (`pods`, `pods/binding`); code 0: no response."""

    def warned(self, text: str) -> None:
        """A response has a Warning header, like that of a deprecated API. Logs a text once per process."""
        if text not in _logged_warnings and len(_logged_warnings) < _MAX_WARNINGS:
            _logged_warnings.add(text)
            _log.warning("API server warning: %s", text)

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        """The watch of a kind changed its state.

        `event` is one of "listed", "restarted" (resumed after `detail`), "expired" (410: listed again), "stalled",
        "cut", "missing" (404), "forbidden" (403), "refused" (another error response), "unreachable", "undecodable"
        (`detail` names object and field), "unexpected" (an event of unknown type).
        """

    def bound(self, bind: Bind, seconds: float) -> None:
        """A pod was bound `seconds` after its intent was submitted."""

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        """The API server rejected a binding."""

    def evicted(self, evict: Evict) -> None:
        """A pod was evicted."""

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        """The API server rejected an eviction."""

    def written(self, kind: str, seconds: float) -> None:
        """A status, a condition or an event was written."""

    def write_failed(self, kind: str, code: int, message: str) -> None:
        """The API server rejected a status, a condition or an event."""

    def claim_written(self, step: str, code: int) -> None:
        """A write to a ResourceClaim ended: "protect" (finalizer), "allocate", "reserve" or "release"; as `request`."""

    def devices_prepared(self, result: str, seconds: float) -> None:
        """The wait for binding conditions ended `seconds` after the allocation: "ready", or "failed" (or too late)."""

    def dropped(self, kind: str, count: int) -> None:
        """`count` writes were dropped unsent."""
