"""The tree of all queues: structure, limits, usage and faults.

Without hierarchy every queue is a child of a root of the cluster's size, which only keeps guarantees free. A fault of
the tree stops the queues concerned and those below them. Inconsistent amounts are only reported: every limit applies
anyway.

The root limits the sum of all queues only with a capability of its own. Without one a full cluster admits jobs within
the deserved amounts of their queues, which may then reclaim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.quota.limits import UNLIMITED, capability_vector, limiting_total
from capcard_sched.framework.quota.queue_sums import known_vector
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.queue import ROOT
from capcard_sched.model.reasons import (
    QUEUE_CAPABILITY_EXCEEDED,
    QUEUE_CYCLE,
    QUEUE_PARENT_INVALID,
    QUEUE_SHARES_EXCEEDED,
)
from capcard_sched.plugins.capacity.charges import HeldClaim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.resources import Amounts, ResourceColumns, Vector
    from capcard_sched.plugins.capacity.charges import ClaimCharge


class Branch:
    """A queue, or the root above all of them. Vectors are int64 [resource columns].

    Sums (`held`, `allocated`, `releasing`) cover the queue and all queues below it. `add`, `release` and `hold_claim`
    keep them exact: they update the branch and all branches above it.
    """

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
        #: The claims of pods here and below that have charges, by key: in the sums, not in `own` and `own_releasing`.
        self.claims: dict[str, HeldClaim] = {}
        #: Those that several pods may name.
        self.common: set[str] = set()

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def chain(self) -> Iterator[Branch]:
        """The branch and all above it, nearest first, whether or not their limits apply."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def set_deserved(self, deserved: Vector, named: frozenset[int]) -> None:
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

    def hold_claim(self, charge: ClaimCharge, kind: int, by: int) -> None:
        """Add `by` pods of a kind to those of the queue that hold a claim, below 0 to subtract."""
        for branch in self.chain():
            held = branch.claims.get(charge.key)
            if held is None:
                held = branch.claims[charge.key] = HeldClaim(charge)
            before = held.parts
            held.pods[kind] += by
            branch.count_claim(held.amounts, [now - then for now, then in zip(held.parts, before, strict=True)])
            if not any(held.pods):
                del branch.claims[charge.key]
                branch.common.discard(charge.key)
            elif not held.is_own:
                branch.common.add(charge.key)
        self.update_kept()

    def count_claim(self, amounts: Iterable[tuple[int, int]], parts: Sequence[int]) -> None:
        """Add amounts to the sums of this branch alone. `parts`: how often, as `HeldClaim.parts`."""
        if not any(parts):
            return
        allocated, held, releasing = parts
        for column, amount in amounts:
            self.allocated[column] += amount * allocated
            self.held[column] += amount * held
            self.releasing[column] += amount * releasing
        self.share = None

    def common_claims(self) -> frozenset[tuple[str, int]]:
        """Each claim that several pods may name, with the number of its pods."""
        return frozenset((key, sum(self.claims[key].pods)) for key in self.common)

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


class QueueProblem(NamedTuple):
    """A problem of a queue, reported as an event on it."""

    queue: str
    reason: Reason
    message: str


class Tree:
    """All queues of a session. The constructor computes limits; usage is added afterwards."""

    def __init__(
        self, queues: Mapping[str, Queue], total: Vector, resources: ResourceColumns, shares: Rows, *, hierarchy: bool
    ) -> None:
        """`total`: allocatable of the cluster, int64 [resource columns].

        `shares`: columns that the size of the cluster does not limit unless there are guarantees to keep free.
        """
        self._resources = resources
        self._hierarchy = hierarchy
        self.problems: list[QueueProblem] = []
        top = queues.get(ROOT) if hierarchy else None
        self.root = Branch(ROOT, top, resources)
        #: Every queue by name, in order of name.
        self.branches: dict[str, Branch] = {
            name: self.root if queue is top else Branch(name, queue, resources)
            for name, queue in sorted(queues.items())
        }
        self._connect(queues)
        order = [self.root]  # from the top down; no recursion: the depth of the tree is unlimited
        for branch in order:
            order += branch.children
        self._raise_guarantees(order)
        offered = limiting_total(total, self.root.guarantee, shares)
        self.root.real_capability = np.minimum(offered, self.root.capability)
        self._set_root_deserved()
        for branch in order:
            if branch.children:
                self._limit_children(branch)
        guarded = bool(self.root.guarantee.any())
        for branch in (self.root, *self.branches.values()):
            branch.guarded = guarded
        for branch in self.branches.values():
            branch.update_kept()

    @property
    def ancestors(self) -> dict[str, list[str]]:
        """The names of the branches above each queue, nearest first; without hierarchy no sum covers other queues."""
        if not self._hierarchy:
            return {}
        return {name: [above.name for above in branch.chain()][1:] for name, branch in self.branches.items()}

    def _connect(self, queues: Mapping[str, Queue]) -> None:
        faults = self._faults(queues) if self._hierarchy else {}
        for name, branch in self.branches.items():
            if branch is self.root:
                continue
            branch.fault = faults.get(name, "")
            above = (queues[name].parent or ROOT) if self._hierarchy and not branch.fault else ROOT
            parent = branch.parent = self.root if above == ROOT else self.branches[above]
            parent.children.append(branch)
            if branch.fault:  # its usage counts, its guarantee and deserved amounts do not
                branch.guarantee = self._resources.zeros()
                branch.deserved, branch.named = self._resources.zeros(), frozenset()
        if self._hierarchy:
            limited = self._written(self.root, "capability")
            for branch in self.branches.values():
                branch.path = tuple(one for one in branch.chain() if limited or one is branch or one is not self.root)

    def _faults(self, queues: Mapping[str, Queue]) -> dict[str, str]:
        """Faults by queue: the queue or one above it is in a cycle or has an unknown parent."""
        faults: dict[str, str] = {ROOT: ""}
        for name in sorted(queues):
            trail: list[str] = []
            current = name
            while current not in faults:
                if current in trail:
                    first = min(trail[trail.index(current) :])
                    faults[current] = self._report(QUEUE_CYCLE, first)
                    break
                trail.append(current)
                parent = queues[current].parent or ROOT
                if parent != ROOT and parent not in queues:
                    faults[current] = self._report(QUEUE_PARENT_INVALID, current, parent=parent)
                    break
                current = parent
            for member in trail:
                faults.setdefault(member, faults[current])
        return faults

    def _report(self, reason: Reason, queue: str, **fields: str) -> str:
        message = reason.render(queue=queue, **fields)
        self.problems.append(QueueProblem(queue, reason, message))
        return message

    def _raise_guarantees(self, order: list[Branch]) -> None:
        """Raise each guarantee to the sum of those below it, so that these hold in the whole cluster."""
        for branch in reversed(order):
            if branch.children:
                below = np.sum([child.guarantee for child in branch.children], axis=0)
                if branch is not self.root or self._written(branch, "guarantee"):
                    columns = frozenset(np.flatnonzero(below).tolist())
                    self._check_sum(branch, "guarantee", below, branch.guarantee, columns)
                branch.guarantee = np.maximum(branch.guarantee, below)

    def _set_root_deserved(self) -> None:
        root = self.root
        if not self._written(root, "deserved"):
            named = frozenset(column for child in root.children for column in child.named)
            below = np.sum([child.deserved for child in root.children], axis=0) if root.children else root.deserved
            root.set_deserved(below, named)
        else:
            root.set_deserved(root.deserved, root.named)

    def _limit_children(self, branch: Branch) -> None:
        children = branch.children
        guarantees = np.sum([child.guarantee for child in children], axis=0)
        limitless = branch.real_capability == UNLIMITED
        free = np.where(limitless, UNLIMITED, np.maximum(branch.real_capability - guarantees, 0))
        unlimited = branch.ceiling == UNLIMITED
        wanted = self._resources.zeros()
        for child in children:
            if self._hierarchy:
                self._check_capability(branch, child)
                wanted += child.deserved
                child.capability = np.where(child.capability == UNLIMITED, branch.capability, child.capability)
            child.real_capability = np.minimum(free + child.guarantee, child.capability)
            most = np.maximum(branch.ceiling - guarantees, 0) + child.guarantee
            child.ceiling = np.minimum(np.where(unlimited, UNLIMITED, most), child.capability)
            deserved = child.deserved if self._hierarchy else np.minimum(child.deserved, child.real_capability)
            guaranteed = np.flatnonzero(child.guarantee).tolist()
            child.set_deserved(np.maximum(deserved, child.guarantee), child.named.union(guaranteed))
        if self._written(branch, "deserved"):
            self._check_sum(branch, "deserved", wanted, branch.deserved, branch.named)

    @staticmethod
    def _written(branch: Branch, field: str) -> bool:
        return branch.queue is not None and bool(getattr(branch.queue, field))

    def _check_capability(self, parent: Branch, child: Branch) -> None:
        """Report a child whose capability exceeds its parent's. A cluster smaller than a quota is no problem."""
        beyond = (child.capability < UNLIMITED) & (child.capability > parent.capability)
        if beyond.any():
            columns = frozenset(np.flatnonzero(beyond).tolist())
            self._report(
                QUEUE_CAPABILITY_EXCEEDED,
                parent.name,
                capability=self._shown(parent.capability, columns),
                child=child.name,
                child_capability=self._shown(child.capability, columns),
            )

    def _check_sum(self, parent: Branch, kind: str, wanted: Vector, most: Vector, columns: frozenset[int]) -> None:
        beyond = frozenset(column for column in columns if wanted[column] > most[column])
        if beyond and self._hierarchy:
            self._report(
                QUEUE_SHARES_EXCEEDED,
                parent.name,
                kind=kind,
                amounts=self._shown(most, beyond),
                wanted=self._shown(wanted, beyond),
            )

    def _shown(self, vector: Vector, columns: frozenset[int]) -> str:
        """`cpu 4, memory 8Gi`: the amounts of these columns."""
        names = self._resources.names
        found: Amounts = {names[column]: vector.item(column) for column in columns}
        return ", ".join(f"{name} {format_amount(name, found[name])}" for name in self._resources.sorted_names(found))


def depth_in_common(one: Branch, other: Branch) -> int:
    """The depth of the lowest common ancestor; 0 is the root."""
    above = set(one.chain())
    for branch in other.chain():
        if branch in above:
            return sum(1 for _ in branch.chain()) - 1
    return 0
