"""Scores that no placement changes: preferred node affinity, images, taints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.selectors import term_weight

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import NodeView, Scores
    from capcard_sched.framework.toolkit.node_index import NodeIndex
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
    if counts is None or not len(rows):
        return None
    raw = rows.take(counts)
    highest = int(raw.max())
    if int(raw.min()) == highest:
        return None
    return (100 - 100 * raw // highest).astype(np.float64)
