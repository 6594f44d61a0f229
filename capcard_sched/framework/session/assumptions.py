"""The assumptions under which quotas and limits are read, each for the time of one block."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from capcard_sched.framework.session.carry_over import CarryOver


class Assumptions:
    """Plugins with quotas and limits read them; a session makes them."""

    def __init__(self, carry_over: CarryOver) -> None:
        self._carry_over = carry_over
        #: Whether quotas count releasing tasks as gone: while nominations are planned. Bindings always count them.
        self.nominating = False
        #: Whether half gangs are completed: limits apply, fair shares do not.
        self.completing = False
        #: Whether limits that follow from the size of the cluster do not apply: more nodes would lift them.
        self.growing = False

    def plan_nominations(self) -> AbstractContextManager[None]:
        """While it is open, quotas count releasing tasks as gone."""
        return self._assume("nominating")

    def complete_gangs(self) -> AbstractContextManager[None]:
        """While it is open, fair shares do not limit placements."""
        return self._assume("completing")

    def assume_growth(self) -> AbstractContextManager[None]:
        """While it is open, only limits of objects apply, none that follow from the size of the cluster."""
        return self._assume("growing")

    def assume_admission(self) -> AbstractContextManager[None]:
        """Open it for votes on admission: with an autoscaler the size of the cluster does not limit them."""
        return self.assume_growth() if self._carry_over.expects_nodes else nullcontext()

    @contextmanager
    def _assume(self, name: Literal["nominating", "completing", "growing"]) -> Iterator[None]:
        before = getattr(self, name)
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, before)
