"""The assumptions under which quotas and limits are read, each for the time of one block."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

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

    @contextmanager
    def plan_nominations(self) -> Iterator[None]:
        """While it is open, quotas count releasing tasks as gone."""
        before, self.nominating = self.nominating, True
        try:
            yield
        finally:
            self.nominating = before

    @contextmanager
    def complete_gangs(self) -> Iterator[None]:
        """While it is open, fair shares do not limit placements."""
        self.completing = True
        try:
            yield
        finally:
            self.completing = False

    @contextmanager
    def assume_growth(self) -> Iterator[None]:
        """While it is open, only limits of objects apply, none that follow from the size of the cluster."""
        before, self.growing = self.growing, True
        try:
            yield
        finally:
            self.growing = before

    def assume_admission(self) -> AbstractContextManager[None]:
        """Open it for votes on admission: with an autoscaler the size of the cluster does not limit them."""
        return self.assume_growth() if self._carry_over.expects_nodes else nullcontext()
