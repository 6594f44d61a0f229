"""The pools that changed since a number of changes: results that are kept per pool are found again for these."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Driver and pool.
PoolId: TypeAlias = tuple[str, str]


class PoolChanges:
    """The number of changes so far, and the number at the last change of each pool."""

    def __init__(self) -> None:
        self.serial = 0
        #: In the order of the numbers.
        self._last: dict[PoolId, int] = {}

    def note(self, *pools: PoolId) -> None:
        """A change of some pools, or of none."""
        self.serial += 1
        for pool in pools:
            self._last.pop(pool, None)
            self._last[pool] = self.serial

    def forget(self) -> None:
        """No reader is behind: pools that are gone leave nothing."""
        self._last.clear()

    def since(self, serial: int) -> Iterator[PoolId]:
        """The pools that changed since `serial` had this value. O(such pools)."""
        for pool, at in reversed(self._last.items()):
            if at <= serial:
                return
            yield pool
