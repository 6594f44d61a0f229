"""What the backend tells about itself: it neither logs nor counts, whoever runs it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from capcard_sched.model.intents import Bind, Evict


class Observer(Protocol):
    """Told of requests, watches and outcomes as they happen. Called in the event loop: must return at once."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One request ended. `resource` as in RBAC (`pods`, `pods/binding`); code 0: no answer."""

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        """Something happened to the watch of a kind.

        `event` is one of "listed", "restarted" (resumed after `detail`), "expired" (410: listed afresh), "stalled",
        "cut", "missing" (404), "forbidden" (403), "refused" (another error answer), "unreachable", "undecodable"
        (`detail` names object and field), "unexpected" (an event of unknown type).
        """

    def bound(self, bind: Bind, seconds: float) -> None:
        """A pod is bound, so many seconds after the intent was handed over."""

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        """The API server refused a binding."""

    def evicted(self, evict: Evict) -> None:
        """A pod was evicted."""

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        """The API server refused an eviction."""

    def written(self, kind: str, seconds: float) -> None:
        """Something else was written (a status, a condition, an event)."""

    def write_failed(self, kind: str, code: int, message: str) -> None:
        """The API server refused something else."""

    def dropped(self, kind: str, count: int) -> None:
        """So many writes were given up unsent."""


class NullObserver:
    """Tells nobody: for one-shot commands."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Nothing."""

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        """Nothing."""

    def bound(self, bind: Bind, seconds: float) -> None:
        """Nothing."""

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        """Nothing."""

    def evicted(self, evict: Evict) -> None:
        """Nothing."""

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        """Nothing."""

    def written(self, kind: str, seconds: float) -> None:
        """Nothing."""

    def write_failed(self, kind: str, code: int, message: str) -> None:
        """Nothing."""

    def dropped(self, kind: str, count: int) -> None:
        """Nothing."""
