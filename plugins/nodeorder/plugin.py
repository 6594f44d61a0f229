"""The nodeorder plugin: maps its hooks to the scores of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_hooks import CANDIDATES, NODE_AMOUNTS, NODE_SPEC, OTHER_NODES, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.node_index import NodeIndex
from capcard_sched.model.selectors import term_weight
from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments
from capcard_sched.plugins.nodeorder.preferences import PreferenceBook, Preferences, pod_affinity, spread_scores
from capcard_sched.plugins.nodeorder.utilization import Utilization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass


_MIB = 1024 * 1024
#: Bytes; images up to this size do not count, because pulling them is fast.
IMAGE_MINIMUM_BYTES = 23 * _MIB
#: Bytes per container; a larger sum counts as this one.
IMAGE_MAXIMUM_BYTES = 1000 * _MIB


def node_affinity(index: NodeIndex, cls: TaskClass) -> Vector | None:
    """Sum of the weights of the preferred terms that each node matches: int64 [nodes]; None without such terms."""
    affinity = cls.affinity.node_affinity if cls.affinity is not None else None
    terms = [term for term in (affinity.preferred or () if affinity is not None else ()) if term.weight > 0]
    if not terms:
        return None
    total = np.zeros(len(index), dtype=np.int64)
    for term in terms:
        total[index.term(term.preference)] += term_weight(term.weight)
    return total


def _prefers_nodes(cls: TaskClass) -> bool:
    affinity = cls.affinity.node_affinity if cls.affinity is not None else None
    return affinity is not None and bool(affinity.preferred)


def normalized(raw: Vector | None, rows: NodeView) -> Scores | None:
    """Raw scores (int64 [nodes]) over the candidates, 0 to 100: float64 [k]; None when all are equal."""
    if raw is None or not len(rows):
        return None
    found = rows.take(raw)
    highest = int(found.max())
    if int(found.min()) == highest:
        return None
    return (100 * found // highest).astype(np.float64)


def full_image_name(name: str) -> str:
    """An image name with its tag, `latest` by default."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


class Images:
    """Image locality over the nodes of one generation. The index of images is built on first use."""

    def __init__(self, index: NodeIndex) -> None:
        self._index = index
        #: Image to (rows, sizes in bytes); None until first use.
        self._holders: dict[str, tuple[list[int], list[int]]] | None = None

    def _find(self, name: str) -> tuple[list[int], list[int]] | None:
        if self._holders is None:
            self._holders = {}
            for row, node in enumerate(self._index.nodes):
                for image, size in node.images.items():
                    rows, sizes = self._holders.setdefault(image, ([], []))
                    rows.append(row)
                    sizes.append(size)
        return self._holders.get(full_image_name(name))

    def scores(self, cls: TaskClass) -> Vector | None:
        """Image locality of each node, 0 to 100: int64 [nodes]; None when no node has any of the images.

        An image counts with its size times the share of nodes that have it, so that a single node with the image does
        not attract every pod.
        """
        present = np.zeros(len(self._index), dtype=np.int64)
        for name in cls.images:
            found = self._find(name)
            if found is not None:
                rows, sizes = found
                share = len(rows) / len(self._index)
                present[rows] += (np.array(sizes, dtype=np.int64) * share).astype(np.int64)
        highest = IMAGE_MAXIMUM_BYTES * len(cls.images)
        if not cls.images or int(present.max(initial=0)) <= IMAGE_MINIMUM_BYTES:
            return None
        np.clip(present, IMAGE_MINIMUM_BYTES, highest, out=present)
        return 100 * (present - IMAGE_MINIMUM_BYTES) // (highest - IMAGE_MINIMUM_BYTES)


def taints(counts: Vector | None, rows: NodeView) -> Scores | None:
    """Taint toleration over the candidates, 0 to 100: float64 [k]; None when all are equal.

    `counts` (int64 [nodes]): PreferNoSchedule taints of each node that the class does not tolerate.
    """
    found = normalized(counts, rows)
    return None if found is None else 100 - found


class NodeOrder(Plugin):
    """Scores nodes by utilization, affinity, images, taints and topology spread.

    A score that is equal on all candidates is omitted, because it does not change the order.
    """

    name = "nodeorder"
    Arguments = NodeOrderArguments
    arguments: NodeOrderArguments

    def setup(self) -> None:
        self._weights = self.arguments
        self._index = NodeIndex(())
        self._images = Images(self._index)
        self._utilization = Utilization(self._weights)
        self._book = PreferenceBook(self._weights)

    def open(self, session: Session) -> None:
        index = self._index.renewed(session)
        if index is not self._index:
            self._index, self._images = index, Images(index)
        self._utilization.open(session)
        self._book.open(session, self._index)

    def signature(self, queue: Queue, task: Task) -> Preferences | None:
        return self._book.of(task)

    def _has_preferences(self, signature: PodSignature) -> bool:
        return signature.context(self.name) is not None

    def _compares(self, signature: PodSignature) -> bool:
        """Whether `compare` has a part for any candidates: without one the best node is that of the kept scores."""
        weights, cls = self._weights, signature.cls
        if weights.taint_toleration and self._index.preferences(cls.tolerations) is not None:
            return True
        return bool(weights.node_affinity) and weights.scoring == "kube-scheduler" and _prefers_nodes(cls)

    @score(reads=NODE_SPEC)
    def score_spec(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        weights, cls = self._weights, signature.cls
        parts = []
        if weights.node_affinity and weights.scoring == "volcano":
            parts.append((weights.node_affinity, node_affinity(self._index, cls)))
        if weights.image_locality:
            parts.append((weights.image_locality, self._images.scores(cls)))
        return _sum((weight, rows.take(part).astype(np.float64)) for weight, part in parts if part is not None)

    @score(reads=NODE_AMOUNTS)
    def score_utilization(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        return self._utilization.scores(signature.cls, rows)

    @score(reads=CANDIDATES, when=_compares)
    def compare(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        weights, cls = self._weights, signature.cls
        parts: list[tuple[int, Scores | None]] = []
        if weights.taint_toleration:
            counts = self._index.preferences(cls.tolerations)
            parts.append((weights.taint_toleration, taints(counts, candidates)))
        if weights.node_affinity and weights.scoring == "kube-scheduler":
            raw = node_affinity(self._index, cls)
            parts.append((weights.node_affinity, normalized(raw, candidates)))
        return _sum(parts)

    @score(reads=OTHER_NODES, when=_has_preferences)
    def compare_pods(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        weights, preferences = self._weights, signature.context(self.name)
        parts: list[tuple[int, Scores | None]] = []
        if preferences.affinity or preferences.carried is not None:
            parts.append((weights.pod_affinity, pod_affinity(self._index, preferences, candidates)))
        if preferences.spread:
            spread = spread_scores(self._book, self._index, signature.cls, preferences.spread, candidates)
            parts.append((weights.topology_spread, spread))
        return _sum(parts)

    def on_allocate(self, placement: Placement) -> None:
        self._book.counters.place(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._book.counters.displace(placement)


def _sum(parts: Iterable[tuple[int, Scores | None]]) -> Scores | None:
    total: Scores | None = None
    for weight, part in parts:
        if part is not None:
            total = weight * part if total is None else total + weight * part
    return total
