"""The HyperNodes that hold pods of the PodGroups that a label selector selects, during one session.

Equal selectors of a namespace share the result, and a placement changes it by the pods of one group. Every comparison
is counted, so that the session can bound those of a namespace.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from capcard_sched.framework.placement.hypernode_bounds import PLACED, placed_by_hyper_node
from capcard_sched.model.selectors import matches_labels, namespace_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.group_affinity import GroupTerm
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import LabelSelector

#: Values of an expression whose scan costs as much as one comparison.
_VALUES: Final = 32


class PlacedGroups:
    """The groups with placed pods, by namespace and label, and the order in which the session changed them."""

    def __init__(self, session: Session) -> None:
        self.tree: HyperNodeTree = session.snapshot.tree
        self.jobs: Mapping[str, Job] = session.jobs
        self._namespaces = session.snapshot.namespaces
        #: Counts comparisons of a namespace.
        self.charge: Callable[[str, int], None] = session.namespace_work.compare
        #: Keys of the jobs whose pods changed, in order.
        self.moves: list[str] = []
        #: By namespace, by key; None until the first selector.
        self._placed: dict[str, dict[str, Job]] | None = None
        self._noted = 0
        #: By namespace and label, keys of the placed groups.
        self._labeled: dict[str, dict[tuple[str, str], list[str]]] = {}
        #: Key of a job to its HyperNodes.
        self._leaves: dict[str, frozenset[int]] = {}
        self._above: dict[int, np.ndarray[tuple[int], np.dtype[np.intp]]] = {}
        self._selected: dict[tuple[str, bytes], SelectedGroups] = {}

    def note(self, job: Job) -> None:
        """Notes that a pod of a job was placed, or lost its place."""
        self.moves.append(job.key)
        self._leaves.pop(job.key, None)

    def selected(self, namespace: str, term: GroupTerm) -> SelectedGroups:
        """The groups that a term of a PodGroup in a namespace selects, as they are now; itself included."""
        found = self._selected.get((namespace, term.selection))
        if found is None:
            found = self._selected[namespace, term.selection] = SelectedGroups(self, namespace, term)
        found.sync()
        return found

    def leaves_of(self, job: Job) -> frozenset[int]:
        """The lowest HyperNodes with placed pods of a job; -1 for nodes in none."""
        found = self._leaves.get(job.key)
        if found is None:
            counted = placed_by_hyper_node(self.tree, job)
            found = self._leaves[job.key] = frozenset(number for number, pods in counted.items() if pods)
        return found

    def above_at(self, tier: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """By HyperNode, the one of a tier that it is or is in, -1 for none; the last entry is for nodes in none."""
        found = self._above.get(tier)
        if found is None:
            tree = self.tree
            found = np.full(len(tree) + 1, -1, dtype=np.intp)
            for number in range(len(tree) - 1, -1, -1):  # parents follow their members
                found[number] = number if tree.tiers[number] == tier else found[tree.parents[number]]
            self._above[tier] = found
        return found

    def matching(self, namespace: str, term: GroupTerm) -> list[Job]:
        """The placed groups that a term of a PodGroup in a namespace selects."""
        placed = self._current()
        candidates: list[Job] = []
        if term.namespaces is None:
            spaces: Iterable[str] = (namespace,)
        else:
            self.charge(namespace, len(placed) * _cost_of(term.namespaces))
            spaces = [name for name in placed if self._selects_namespace(name, namespace, term)]
        for name in spaces:
            candidates += self._candidates(name, term.groups)
        self.charge(namespace, len(candidates) * _cost_of(term.groups))
        return [job for job in candidates if matches_labels(term.groups, job.labels)]

    def is_selected(self, job: Job, namespace: str, term: GroupTerm) -> bool:
        """Whether a term of a PodGroup in a namespace selects a group."""
        self.charge(namespace, _cost_of(term.groups))
        is_within = self._selects_namespace(job.namespace, namespace, term)
        return job.is_editable and is_within and matches_labels(term.groups, job.labels)

    def _selects_namespace(self, name: str, namespace: str, term: GroupTerm) -> bool:
        if term.namespaces is None:
            return name == namespace
        return matches_labels(term.namespaces, namespace_labels(name, self._namespaces.get(name)))

    def _current(self) -> dict[str, dict[str, Job]]:
        if self._placed is None:
            self._placed = {}
            for job in self.jobs.values():
                if job.is_editable and job.count(PLACED):
                    self._placed.setdefault(job.namespace, {})[job.key] = job
        else:
            for key in dict.fromkeys(self.moves[self._noted :]):
                moved = self.jobs.get(key)
                if moved is None or not moved.is_editable or key in self._placed.get(moved.namespace, ()):
                    continue
                self._placed.setdefault(moved.namespace, {})[key] = moved
                if (index := self._labeled.get(moved.namespace)) is not None:
                    _add_labels(index, moved)
        self._noted = len(self.moves)
        return self._placed

    def _candidates(self, namespace: str, selector: LabelSelector | None) -> Iterable[Job]:
        """The placed groups of a namespace, without those that lack the rarest label of a selector."""
        placed = self._current().get(namespace, {})
        labels: Mapping[str, str] = (selector.match_labels if selector is not None else None) or {}
        if not labels or not placed:
            return placed.values()
        index = self._labeled.get(namespace)
        if index is None:
            index = self._labeled[namespace] = {}
            for job in placed.values():
                _add_labels(index, job)
        rarest = min((index.get(label, []) for label in labels.items()), key=len)
        return [placed[key] for key in rarest]


class SelectedGroups:
    """The HyperNodes of the groups that one selector of one namespace selects."""

    def __init__(self, groups: PlacedGroups, namespace: str, term: GroupTerm) -> None:
        self._groups, self._namespace, self._term = groups, namespace, term
        #: Key of a group to whether it is selected, and of a selected one to its HyperNodes.
        self._is_selected: dict[str, bool] = {}
        self._leaves: dict[str, frozenset[int]] = {}
        #: Lowest HyperNode to the keys of the groups there, and to the first two of them.
        self._there: dict[int, set[str]] = {}
        self._first: dict[int, tuple[str, ...]] = {}
        #: Tier to the result for groups that hold none of the HyperNodes.
        self._shared: dict[int, dict[int, str]] = {}
        self._seen = len(groups.moves)
        for job in groups.matching(namespace, term):
            self._is_selected[job.key] = True
            self._put(job)

    def sync(self) -> None:
        """Follows the moves since the last call."""
        groups = self._groups
        if self._seen == len(groups.moves):
            return
        for key in dict.fromkeys(groups.moves[self._seen :]):
            job = groups.jobs.get(key)
            if job is None:
                continue
            is_selected = self._is_selected.get(key)
            if is_selected is None:
                is_selected = self._is_selected[key] = groups.is_selected(job, self._namespace, self._term)
            if is_selected:
                self._put(job)
        self._seen = len(groups.moves)

    def holders(self, tier: int, job: Job) -> Mapping[int, str]:
        """HyperNode of a tier to the first group with pods there, without a job itself, ascending."""
        if job.key in self._leaves:
            return self._holders(tier, job.key)
        found = self._shared.get(tier)
        if found is None:
            found = self._shared[tier] = self._holders(tier, "")
        return found

    def _holders(self, tier: int, without: str) -> dict[int, str]:
        above = self._groups.above_at(tier)
        found: dict[int, str] = {}
        self._groups.charge(self._namespace, len(self._first))
        for leaf, keys in self._first.items():
            number = int(above[leaf])
            first = next((key for key in keys if key != without), None)
            if number >= 0 and first is not None and first < found.get(number, _LAST):
                found[number] = first
        return dict(sorted(found.items()))

    def _put(self, job: Job) -> None:
        before, after = self._leaves.get(job.key, frozenset()), self._groups.leaves_of(job)
        if before == after:
            return
        self._shared.clear()
        self._leaves[job.key] = after
        if not after:  # no longer a holder
            del self._leaves[job.key]
        changed = before ^ after
        self._groups.charge(self._namespace, len(changed))
        for leaf in changed:
            there = self._there.setdefault(leaf, set())
            if leaf in after:
                there.add(job.key)
                self._first[leaf] = tuple(sorted({*self._first.get(leaf, ()), job.key})[:2])
                continue
            there.discard(job.key)
            if not there:
                del self._there[leaf], self._first[leaf]
            elif job.key in self._first[leaf]:
                self._groups.charge(self._namespace, len(there))
                self._first[leaf] = tuple(nsmallest(2, there))


#: Above every key of a job.
_LAST: Final = chr(0x10FFFF)


def _add_labels(index: dict[tuple[str, str], list[str]], job: Job) -> None:
    for label in job.labels.items():
        index.setdefault(label, []).append(job.key)


def _cost_of(selector: LabelSelector | None) -> int:
    """Comparisons of one group with a selector, at most."""
    if selector is None:
        return 1
    expressions: tuple[Any, ...] = tuple(selector.match_expressions or ())
    values = sum(len(each.values or ()) // _VALUES for each in expressions)
    return 1 + len(selector.match_labels or {}) + len(expressions) + values
