"""The pools that changed since a number of changes: results that are kept per pool are found again for these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Driver and pool.
PoolId: TypeAlias = tuple[str, str]
#: Pools whose last change is kept: nodes come and go, each with the names of its pools.
_MOST: Final = 8192


class PoolChanges:
    """The number of changes so far, and the number at the last change of each of the pools that changed last."""

    def __init__(self) -> None:
        self.serial = 0
        #: In the order of the numbers.
        self._last: dict[PoolId, int] = {}
        #: The highest number that is not kept.
        self._forgotten = 0

    def note(self, *pools: PoolId) -> None:
        """A change of some pools, or of none."""
        self.serial += 1
        for pool in pools:
            self._last.pop(pool, None)
            self._last[pool] = self.serial
        while len(self._last) > _MOST:
            self._forgotten = self._last.pop(next(iter(self._last)))

    def since(self, serial: int, pools: Iterable[PoolId]) -> list[PoolId]:
        """The pools that changed since `serial` had this value, last first. O(such pools).

        All of `pools`, those that the caller may have results of, where more changed than are kept.
        """
        if serial < self._forgotten:
            return [*pools]
        found = []
        for pool, at in reversed(self._last.items()):
            if at <= serial:
                break
            found.append(pool)
        return found
