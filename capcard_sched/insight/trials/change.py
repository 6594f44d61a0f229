"""A part of a fix as data."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

#: Kind, namespace ("" for cluster-scoped kinds) and name of an object.
Target: TypeAlias = tuple[str, str, str]

#: The target of changes of the scheduler-conf.
CONF: Final[Target] = ("", "", "scheduler-conf")


class ProposedChange(msgspec.Struct, frozen=True):
    """One part of a fix."""

    #: Name of its class in `kinds`, without `Fix`.
    kind: str
    #: The changed object.
    target: Target
    #: Card, resource, taint, class, queue, action or plugin.
    key: str = ""
    #: The new amount and the present one: cards, base units, or pods. Equal for changes without an amount.
    value: int = 0
    present: int = 0
    #: The difference between two amounts that are worth a trial: 1, or a Mi of memory.
    step: int = 1
    #: Of `AcceptCard`: the cards `A|B` that the changed pods name; the other pods of the job keep theirs.
    replaces: str = ""

    @property
    def identity(self) -> tuple[str, Target, str, str]:
        """Equal for changes that differ only in the amount, or in the PriorityClass."""
        return self.kind, self.target, "" if self.kind == "Priority" else self.key, self.replaces

    @property
    def steps(self) -> int:
        return abs(self.value - self.present) // self.step

    def reduced(self, steps: int) -> ProposedChange:
        """The same change, `steps` in size."""
        sign = 1 if self.value >= self.present else -1
        return msgspec.structs.replace(self, value=self.present + sign * steps * self.step)


#: Changes that are made together.
Candidate: TypeAlias = tuple[ProposedChange, ...]
