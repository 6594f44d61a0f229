"""What claims are charged, and how often a claim counts in the sums of one queue."""

from __future__ import annotations

from typing import NamedTuple

#: Kinds of the pods that hold a claim: positions in `HeldClaim.pods`.
ALLOCATED, NOMINATED, RELEASING = range(3)


class ClaimCharge(NamedTuple):
    """What one claim of a pod is charged."""

    #: `namespace/name`; "" while it is not generated.
    key: str
    #: Column and amount > 0.
    amounts: tuple[tuple[int, int], ...] = ()
    #: Whether it is the claim of one pod.
    is_own: bool = True
    #: The columns of a class whose devices a request takes all, and the name of that request.
    unbounded: tuple[tuple[int, str], ...] = ()


class HeldClaim:
    """A claim in the sums of one queue."""

    __slots__ = ("amounts", "is_own", "pods")

    def __init__(self, charge: ClaimCharge) -> None:
        self.amounts, self.is_own = charge.amounts, charge.is_own
        #: Number of the pods with allocated status, nominated ones, and those that are being released.
        self.pods = [0, 0, 0]

    @property
    def parts(self) -> tuple[int, int, int]:
        """How often it counts in `Branch.allocated`, `held` and `releasing`: 0 or 1 each."""
        allocated, nominated, releasing = self.pods
        held = bool(allocated or nominated)
        return int(bool(allocated)), int(held), int(bool(releasing) and not held)
