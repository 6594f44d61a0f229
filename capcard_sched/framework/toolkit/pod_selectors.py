"""The pods that a pod affinity term or a spread constraint selects, in a form that can be compared and indexed.

Two terms that select the same pods give equal `PodSelector`s, whichever pods carry them, so that the selected pods are
counted once (`topology_counts`). A `namespaceSelector` depends on the labels of namespaces: the caller passes them to
each match. A namespace that was not seen yet has only the label of its name, `kubernetes.io/metadata.name`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from capcard_sched.model.objects import LabelSelector, PodAffinityTerm, Requirement, TopologySpreadConstraint
from capcard_sched.model.selectors import label_selector_problem, matches_labels, namespace_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass

#: Cache entries by task class; a larger cache is cleared, because most of its classes no longer exist.
MAX_CLASSES = 4096
#: Labels of the namespaces seen so far, by name (`Session.namespaces`).
NamespaceLabels: TypeAlias = "Mapping[str, Mapping[str, str]]"


class SelectorError(ValueError):
    """A label selector that Kubernetes does not accept; the message gives the reason."""


class PodSelector(NamedTuple):
    """Pods by namespace and labels. Hashable: the selectors inside are canonical."""

    #: None selects nothing, an empty selector everything.
    selector: LabelSelector | None
    #: None is every namespace.
    namespaces: tuple[str, ...] | None
    #: Further namespaces, by label.
    namespace_selector: LabelSelector | None = None

    def selects(self, namespace: str, labels: Mapping[str, str], known: NamespaceLabels) -> bool:
        """Whether a pod in `namespace` with `labels` is selected."""
        if self.selector is None:
            return False
        if self.namespaces is not None and namespace not in self.namespaces:
            by_label = self.namespace_selector
            if by_label is None or not matches_labels(by_label, namespace_labels(namespace, known.get(namespace))):
                return False
        return matches_labels(self.selector, labels)

    def is_affected_by(self, namespace: str, before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> bool:
        """Whether a change of the namespace's labels from `before` to `now` changes the selected pods."""
        by_label = self.namespace_selector
        if by_label is None or self.namespaces is None or namespace in self.namespaces:
            return False
        old, new = namespace_labels(namespace, before), namespace_labels(namespace, now)
        return matches_labels(by_label, old) != matches_labels(by_label, new)

    @property
    def is_empty(self) -> bool:
        """Whether it selects by no label at all."""
        return self.selector is not None and not self.selector.match_expressions


def _canonical(selector: LabelSelector, more: Iterable[Requirement] = ()) -> LabelSelector:
    """The selector and `more` as sorted expressions. Raises SelectorError."""
    problem = label_selector_problem(selector)
    if problem is not None:
        raise SelectorError(problem)
    requirements = {Requirement(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for requirement in (*(selector.match_expressions or ()), *more):
        values = tuple(sorted(set(requirement.values or ())))
        requirements.add(Requirement(requirement.key, requirement.operator, values or None))
    order = sorted(requirements, key=lambda each: (each.key, each.operator, each.values or ()))
    return LabelSelector(match_expressions=tuple(order))


def _from_labels(
    keys: tuple[str, ...] | None, operator: str, selector: LabelSelector | None, labels: Mapping[str, str]
) -> list[Requirement]:
    """The requirements of (mis)matchLabelKeys that the stored selector does not have yet.

    The API server merges them when it creates a pod, and does not accept other requirements on these keys: a key that
    the selector has was merged with the label that the pod had then.
    """
    merged = {each.key for each in (selector.match_expressions or ())} if selector is not None else set()
    return [Requirement(key, operator, (labels[key],)) for key in keys or () if key in labels and key not in merged]


def term_selector(term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> PodSelector:
    """The pods that a term of a pod in `namespace` with `labels` selects. Raises SelectorError.

    A term without namespaces and namespace selector selects the pod's own namespace; an empty namespace selector
    selects every namespace. Keys of (mis)matchLabelKeys that the pod lacks are skipped, as in the API server, which
    merges the others into the selector.
    """
    own = _from_labels(term.match_label_keys, "In", term.label_selector, labels)
    other = _from_labels(term.mismatch_label_keys, "NotIn", term.label_selector, labels)
    selector = None if term.label_selector is None else _canonical(term.label_selector, own + other)
    namespaces = tuple(sorted(set(term.namespaces or ())))
    if term.namespace_selector is None:
        return PodSelector(selector, namespaces or (namespace,))
    by_label = _canonical(term.namespace_selector)
    if not by_label.match_expressions:
        return PodSelector(selector, None)
    return PodSelector(selector, namespaces, by_label)


def spread_selector(constraint: TopologySpreadConstraint, namespace: str, labels: Mapping[str, str]) -> PodSelector:
    """The pods that a spread constraint counts, all in the pod's own namespace. Raises SelectorError."""
    own = _from_labels(constraint.match_label_keys, "In", constraint.label_selector, labels)
    if constraint.label_selector is None:
        return PodSelector(None, (namespace,))
    return PodSelector(_canonical(constraint.label_selector, own), (namespace,))


def label_keys(terms: Iterable[PodAffinityTerm], constraints: Iterable[TopologySpreadConstraint]) -> tuple[str, ...]:
    """The labels of the owning pod that its terms refer to, sorted."""
    keys: set[str] = set()
    for term in terms:
        keys.update(term.match_label_keys or ())
        keys.update(term.mismatch_label_keys or ())
    for constraint in constraints:
        keys.update(constraint.match_label_keys or ())
    return tuple(sorted(keys))


_T = TypeVar("_T")


class TermCache(Generic[_T]):
    """Caches the resolved terms of pods by class, namespace and the labels that the terms refer to."""

    def __init__(self, keys_of: Callable[[TaskClass], tuple[str, ...]], read: Callable[[Task], _T]) -> None:
        """`keys_of`: the `label_keys` of a class's terms. `read`: resolves the terms of one pod."""
        self._keys_of = keys_of
        self._read = read
        self._keys: dict[TaskClass, tuple[str, ...]] = {}
        self._terms: dict[tuple[TaskClass, str, tuple[str | None, ...]], _T] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._terms)

    def of(self, task: Task) -> _T:
        """The terms of a pod."""
        cls, labels = task.cls, task.labels
        keys = self._keys.get(cls)
        if keys is None:
            keys = self._keys[cls] = self._keys_of(cls)
        key = (cls, task.namespace, tuple([labels.get(each) for each in keys]))
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = self._read(task)
        return terms

    def open(self, *, everything: bool) -> None:
        """Clear the cache at the start of a session when everything changed or when it is too large."""
        if everything or len(self) > MAX_CLASSES:
            self._keys.clear()
            self._terms.clear()


#: Number of anchors of one entry; an entry with more is anchored by namespace or not at all.
_MAX_ANCHORS = 256


class PodCache(Generic[_T]):
    """Caches a value by class, namespace and labels of a pod, for as long as a version stays the same."""

    def __init__(self, read: Callable[[Task], _T]) -> None:
        """`read`: computes the value of one pod."""
        self._read = read
        self._version: object = None
        #: The labels are kept, so that their identity stays unique.
        self._values: dict[tuple[TaskClass, str, int], tuple[Mapping[str, str], _T]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def of(self, task: Task, version: object) -> _T:
        """The value of a pod under the current version."""
        if version != self._version or len(self._values) > MAX_CLASSES:
            self._version = version
            self._values.clear()
        key = (task.cls, task.namespace, id(task.labels))
        cached = self._values.get(key)
        if cached is None:
            cached = self._values[key] = task.labels, self._read(task)
        return cached[1]


class SelectorIndex(Generic[_T]):
    """Finds the entries that select a pod without evaluating all of them.

    An entry is a conjunction of selectors and a value. Entries are found by the namespaces and the label value that
    one of their selectors requires; only entries that require neither are evaluated for every pod.
    """

    def __init__(self) -> None:
        #: By namespace (None: every) and label (empty: any).
        self._entries: dict[tuple[str | None, str, str], dict[_T, tuple[PodSelector, ...]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @staticmethod
    def _anchors(selectors: tuple[PodSelector, ...]) -> list[tuple[str | None, str, str]]:
        best: list[tuple[str | None, str, str]] = [(None, "", "")]
        for selector in selectors:
            assert selector.selector is not None
            names = selector.namespaces if selector.namespace_selector is None else None
            namespaces: tuple[str | None, ...] = (None,) if names is None else names
            for requirement in selector.selector.match_expressions or ():
                values = requirement.values or ()
                if requirement.operator == "In" and len(namespaces) * len(values) <= _MAX_ANCHORS:
                    return [(name, requirement.key, value) for name in namespaces for value in values]
            if names is not None and len(names) <= _MAX_ANCHORS:
                best = [(name, "", "") for name in names]
        return best

    def add(self, selectors: tuple[PodSelector, ...], value: _T) -> None:
        """Add a value. An entry with a selector that selects nothing is not stored."""
        if any(selector.selector is None for selector in selectors):
            return
        for anchor in self._anchors(selectors):
            self._entries.setdefault(anchor, {})[value] = selectors
        self._size += 1

    def discard(self, selectors: tuple[PodSelector, ...], value: _T) -> None:
        """Remove the entry that `add` stored for the same arguments."""
        if any(selector.selector is None for selector in selectors):
            return
        for anchor in self._anchors(selectors):
            entries = self._entries[anchor]
            del entries[value]
            if not entries:
                del self._entries[anchor]
        self._size -= 1

    def matching(self, namespace: str, labels: Mapping[str, str], known: NamespaceLabels) -> list[_T]:
        """Values of the entries whose selectors all select the pod, unordered. O(labels + entries found by them)."""
        found: list[_T] = []
        if not self._size:
            return found
        for name in (namespace, None):
            for label in (*labels.items(), ("", "")):
                entries = self._entries.get((name, *label))
                if entries is not None:
                    found += [
                        value
                        for value, selectors in entries.items()
                        if all(selector.selects(namespace, labels, known) for selector in selectors)
                    ]
        return found
