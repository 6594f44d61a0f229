"""One queue with all queues below it: what it may have, deserves and holds (plugins reference §7.1, §7.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.quota.queue_sums import known_vector
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns, Vector

#: Stands for "no limit"; large enough for any amount, small enough to add amounts to.
UNLIMITED = 2**62


class Branch:
    """A queue, or the root above all of them. Vectors are int64 [resource columns].

    Sums (`held`, `allocated`, `reserved`) are of the queue and everything below it. They are kept exact by `move` and
    `reserve`, which change the branch and all branches above it.
    """

    __slots__ = (
        "allocated",
        "capability",
        "children",
        "deserved",
        "deserved_or_inf",
        "earmarked",
        "fault",
        "guarantee",
        "guarded",
        "held",
        "kept",
        "name",
        "named",
        "own",
        "own_reserved",
        "parent",
        "path",
        "queue",
        "real_capability",
        "reserved",
        "share",
        "version",
    )

    def __init__(self, name: str, queue: Queue | None, resources: ResourceColumns) -> None:
        self.name = name
        self.queue = queue
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        #: The branch itself and those above it whose limits it must keep, nearest first.
        self.path: tuple[Branch, ...] = (self,)
        #: Why nothing may run here, "" when something may.
        self.fault = ""

        #: Kept free for the queue. Settled by the tree: no less than what the branches below are guaranteed.
        self.guarantee = known_vector((queue and queue.guarantee) or {}, resources)
        #: UNLIMITED where nothing limits: scalars not named, cpu and memory not named or not above 0.
        self.capability = np.full(resources.width, UNLIMITED, dtype=np.int64)
        for resource, amount in ((queue and queue.capability) or {}).items():
            column = resources.find(resource)
            if column is not None and (amount > 0 or resource not in (CPU, MEMORY)):
                self.capability[column] = amount
        #: What the queue may have at most: its capability, and the guarantees of its neighbours left alone.
        self.real_capability = self.capability
        written = (queue and queue.deserved) or {}
        self.deserved = known_vector(written, resources)
        #: Columns of the resources that `deserved` says something of. It neither entitles to others nor limits them.
        self.named: frozenset[int] = frozenset(c for c in map(resources.find, written) if c is not None)
        self.deserved_or_inf = np.full(resources.width, np.inf)

        #: What pods of the queue itself hold, as it went into the sums.
        self.own = resources.zeros()
        self.allocated = resources.zeros()
        #: `allocated`, and the room on its way out that the session promised.
        self.held = resources.zeros()
        #: Promised to admitted groups, less what groups hold beyond their minimum; may be negative.
        self.reserved = resources.zeros()
        self.own_reserved = resources.zeros()
        #: Sum of `kept` over the children.
        self.earmarked = resources.zeros()
        #: Of the guarantees here and below, what is not used: others may not take it.
        self.kept = resources.zeros()
        #: Whether any queue of the tree has a guarantee.
        self.guarded = False
        #: Dominant share of deserved; None until asked for.
        self.share: float | None = None
        #: Counts the changes of the sums.
        self.version = 0

    @property
    def is_leaf(self) -> bool:
        """Whether no queue is below it."""
        return not self.children

    def chain(self) -> Iterator[Branch]:
        """The branch and all above it, nearest first, whether or not their limits count."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def settle_deserved(self, deserved: Vector, named: frozenset[int]) -> None:
        """Take these amounts for what the queue deserves of the `named` columns."""
        self.deserved, self.named = deserved, named
        self.deserved_or_inf = np.full(len(deserved), np.inf)
        for column in named:
            if deserved[column] > 0:
                self.deserved_or_inf[column] = deserved[column]

    def dominant_share(self) -> float:
        """The largest part held of any deserved resource; 0 when none is deserved."""
        if self.share is None:
            self.share = max(0.0, float((self.held / self.deserved_or_inf).max()))
        return self.share

    def move(self, amounts: Vector, *, promised: bool = False) -> None:
        """The queue's own pods hold `amounts` more. `promised`: of room that is still being released."""
        if not promised:
            self.own = self.own + amounts
        for branch in self.chain():
            branch.held += amounts
            if not promised:
                branch.allocated += amounts
            branch.share = None
            branch.version += 1
        self.update_kept()

    def update_kept(self) -> None:
        """Bring `kept` of this branch and of those above it up to date."""
        if not self.guarded:
            return
        branch = self
        while True:
            kept = np.maximum(branch.guarantee - branch.held, branch.earmarked)
            change = kept - branch.kept
            branch.kept = kept
            if branch.parent is None:
                return
            branch = branch.parent
            branch.earmarked = branch.earmarked + change

    def reserve(self, amounts: Vector) -> None:
        """The queue's own groups reserve this much in all."""
        change = amounts - self.own_reserved
        if change.any():
            self.own_reserved = amounts
            for branch in self.chain():
                branch.reserved += change
                branch.version += 1

    def __repr__(self) -> str:
        return f"Branch({self.name})"
