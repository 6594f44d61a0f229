"""The state of one evaluation, and what compilation passes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from capcard_sched.cel.static_types import Static
from capcard_sched.cel.values import CostError

if TYPE_CHECKING:
    from capcard_sched.cel.syntax import SyntaxNode

#: Steps of one evaluation: nodes inside of loops, elements, tens of characters.
MAX_STEPS: Final = 100_000


class Frame:
    """Variables and the remaining steps of one evaluation."""

    __slots__ = ("slots", "steps")

    def __init__(self, slots: list[Any]) -> None:
        self.slots = slots
        self.steps = MAX_STEPS

    def charge(self, steps: int) -> None:
        """Counts steps. Raises CostError beyond the limit."""
        self.steps -= steps
        if self.steps < 0:
            raise CostError("CEL: too many steps")


Code: TypeAlias = Callable[[Frame], Any]
#: Code and what is known of the type of its result.
Typed: TypeAlias = tuple[Code, Static]


class MacroScope(Protocol):
    """The compiler, for macros."""

    nodes: int

    def compile(self, node: SyntaxNode) -> Typed:
        """Raises CompileError."""

    def bound(self, names: Sequence[tuple[str, Static]], body: SyntaxNode) -> tuple[list[int], Code, Static]:
        """Compiles a body with further variables; returns their slots as well."""

    def variable(self, node: SyntaxNode) -> str:
        """The name that a macro binds. Raises CompileError for any other node."""
