"""The barrier of a gang with ResourceClaims: no pod is bound before the claims of all are allocated."""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class BindGang(Generic[C]):
    """The bindings of one commit. A failed PreBind of one fails all: none was bound."""

    __slots__ = ("_missing", "_waiting", "failure")

    def __init__(self, members: int) -> None:
        self._missing = members
        self._waiting: list[C] = []
        #: Why one of them failed; "" while none has.
        self.failure = ""

    def allowed(self, call: C) -> list[C]:
        """Notes a PreBind that succeeded. Returns the calls that continue: all with the last one, or to be refused."""
        self._missing -= 1
        self._waiting.append(call)
        return self._take() if self.failure or not self._missing else []

    def failed(self, failure: str) -> list[C]:
        """Notes a PreBind that was refused. Returns the calls that waited, to be refused."""
        self._missing -= 1
        self.failure = self.failure or failure
        return self._take()

    def _take(self) -> list[C]:
        found, self._waiting = self._waiting, []
        return found
