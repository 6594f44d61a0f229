"""A queue with all queues below it: its limits, deserved amounts and usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.quota.limits import capability_vector
from capcard_sched.framework.quota.queue_sums import known_vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns, Vector


class Branch:
    """A queue, or the root above all of them. Vectors are int64 [resource columns].

    Sums (`held`, `allocated`, `releasing`) cover the queue and all queues below it. `add` and `release` keep them
    exact: they update the branch and all branches above it.
    """

    __slots__ = (
        "allocated",
        "capability",
        "ceiling",
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
        "own_releasing",
        "parent",
        "path",
        "queue",
        "real_capability",
        "releasing",
        "share",
    )

    def __init__(self, name: str, queue: Queue | None, resources: ResourceColumns) -> None:
        self.name = name
        self.queue = queue
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        #: The branch itself and those above it whose limits apply to it, nearest first.
        self.path: tuple[Branch, ...] = (self,)
        #: Why nothing can run here, "" for a valid queue.
        self.fault = ""

        #: Kept free for the queue. The tree raises it to the guarantees of the branches below.
        self.guarantee = known_vector((queue and queue.guarantee) or {}, resources)
        self.capability = capability_vector(queue.capability if queue is not None else None, resources)
        #: The largest amount the queue can hold: its capability, without the guarantees of its siblings. In this
        #: cluster, and in one of any size.
        self.real_capability = self.ceiling = self.capability
        written = (queue and queue.deserved) or {}
        self.deserved = known_vector(written, resources)
        #: Columns of the resources named in `deserved`. Other resources are neither deserved nor limited by it.
        self.named: frozenset[int] = frozenset(c for c in map(resources.find, written) if c is not None)
        self.deserved_or_inf = np.full(resources.width, np.inf)

        #: Allocated amounts of the queue's own pods, as included in the sums.
        self.own = resources.zeros()
        self.allocated = resources.zeros()
        #: `allocated` and the amounts nominated in this session.
        self.held = resources.zeros()
        #: Amounts of pods that are being released, and those of the queue's own pods: they limit until they are gone.
        self.releasing = resources.zeros()
        self.own_releasing = resources.zeros()
        #: Sum of `kept` over the children.
        self.earmarked = resources.zeros()
        #: The unused part of the guarantees here and below: not available to other queues.
        self.kept = resources.zeros()
        #: Whether any queue of the tree has a guarantee.
        self.guarded = False
        #: Dominant share of deserved; None until computed.
        self.share: float | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether no queue is below it."""
        return not self.children

    def chain(self) -> Iterator[Branch]:
        """The branch and all above it, nearest first, whether or not their limits apply."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def set_deserved(self, deserved: Vector, named: frozenset[int]) -> None:
        """Set the deserved amounts of the `named` columns."""
        self.deserved, self.named = deserved, named
        self.deserved_or_inf = np.full(len(deserved), np.inf)
        for column in named:
            if deserved[column] > 0:
                self.deserved_or_inf[column] = deserved[column]

    def dominant_share(self) -> float:
        """The largest held/deserved of any deserved resource; 0 when none is deserved."""
        if self.share is None:
            self.share = max(0.0, float((self.held / self.deserved_or_inf).max()))
        return self.share

    def add(self, amounts: Vector, *, pipelined: bool = False) -> None:
        """Add `amounts` to the usage of the queue's own pods. `pipelined`: nominated, not allocated."""
        if not pipelined:
            self.own = self.own + amounts
        for branch in self.chain():
            branch.held += amounts
            if not pipelined:
                branch.allocated += amounts
            branch.share = None
        self.update_kept()

    def release(self, amounts: Vector) -> None:
        """Add `amounts` to those of the queue's own pods that are being released."""
        self.own_releasing = self.own_releasing + amounts
        for branch in self.chain():
            branch.releasing += amounts

    def update_kept(self) -> None:
        """Recompute `kept` of this branch and of those above it."""
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

    def __repr__(self) -> str:
        return f"Branch({self.name})"
