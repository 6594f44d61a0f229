"""Packs pods onto as few nodes as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.task_class import TaskClass

MAX_SCORE = 100
#: Rows up to which plain Python is faster than arrays.
_FEW = 12


#: Relative weight; 0 disables the resource, a negative value is replaced by the default.
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

RESOURCES_KEY = "binpack.resources"


class BinpackArguments(msgspec.Struct, frozen=True):
    """Weights of the score and of the resources."""

    #: Score multiplier; 0 disables, a negative value spreads pods.
    weight: int = msgspec.field(name="binpack.weight", default=1)
    #: Relative weight of cpu; 0 disables it.
    cpu: Weight = msgspec.field(name="binpack.cpu", default=1)
    #: Relative weight of memory; 0 disables it.
    memory: Weight = msgspec.field(name="binpack.memory", default=1)
    #: Comma-separated names of further resources.
    resources: str = msgspec.field(name=RESOURCES_KEY, default="")
    #: Relative weight of each of them, 1 by default.
    resource_weights: dict[str, Weight] = msgspec.field(name=f"{RESOURCES_KEY}.<name>", default_factory=dict)


class _Term(NamedTuple):
    column: int
    request: int
    #: Points for a full node: the resource's part of all weights x 100 x `binpack.weight`.
    points: float
    #: float64 [nodes]: allocatable, infinity where the node has none.
    capacity: npt.NDArray[np.float64]
    #: The same for single nodes.
    capacities: list[float]


class Binpack(Plugin):
    """Scores a node by its utilization with the pod, weighted over the requested resources.

    A requested resource that the node lacks adds 0, with its weight in the total. If the pod exceeds the node's
    capacity of a resource, the score is 0.
    """

    name = "binpack"
    Arguments = BinpackArguments
    arguments: BinpackArguments

    def setup(self) -> None:
        given = self.arguments
        #: Weight by resource name.
        self._weights = {**given.resource_weights, CPU: given.cpu, MEMORY: given.memory}
        self._session: Session
        self._terms: dict[TaskClass, list[_Term]] = {}
        self._capacities: dict[int, tuple[npt.NDArray[np.float64], list[float]]] = {}
        self._generation = -1

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> BinpackArguments:
        """Reads `binpack.resources.<name>` of the listed names too; other names are ignored with a warning."""
        return problems.decode_weighted(BinpackArguments, raw, RESOURCES_KEY, Weight)

    def open(self, session: Session) -> None:
        self._session = session
        self._terms.clear()
        generation = session.nodes.generation
        if generation != self._generation or session.changed.everything:
            self._generation = generation
            self._capacities.clear()

    @score(reads=NODE_AMOUNTS)
    def score_fullness(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """0 to 100 x `binpack.weight` per row; None when no requested resource has a weight."""
        terms = self._terms.get(signature.cls)
        if terms is None:
            terms = self._terms[signature.cls] = self._terms_of(signature.cls)
        if not terms:
            return None
        used = rows.used
        if len(rows.rows) <= _FEW:
            return _few_scores(terms, rows.rows.tolist(), used)
        scores: Scores | None = None
        fullest: Scores | None = None
        for column, request, points, capacity, _ in terms:
            filled = (used[:, column] + request) / rows.take(capacity)
            fullest = filled if fullest is None else np.maximum(fullest, filled)
            scores = filled * points if scores is None else scores + filled * points
        assert scores is not None
        assert fullest is not None
        scores[fullest > 1.0] = 0.0
        return scores

    def _terms_of(self, cls: TaskClass) -> list[_Term]:
        if self.arguments.weight == 0:
            return []
        names = self._session.resources.names
        requested = [
            (column, int(cls.request[column]), self._weights[names[column]])
            for column in (cls.request > 0).nonzero()[0].tolist()
            if self._weights.get(names[column])
        ]
        total = sum(weight for _, _, weight in requested)
        return [
            _Term(column, request, weight / total * MAX_SCORE * self.arguments.weight, *self._capacity(column))
            for column, request, weight in requested
        ]

    def _capacity(self, column: int) -> tuple[npt.NDArray[np.float64], list[float]]:
        found = self._capacities.get(column)
        if found is None:
            allocatable = self._session.nodes.allocatable[:, column]
            capacity = np.where(allocatable > 0, allocatable.astype(np.float64), np.inf)
            found = self._capacities[column] = (capacity, capacity.tolist())
        return found


def _few_scores(terms: list[_Term], rows: list[int], used: npt.NDArray[np.int64]) -> Scores:
    """The scores of a few rows: the same operations in the same order as for arrays, so that the bits agree."""
    scores = []
    for entry, row in enumerate(rows):
        score = 0.0
        for column, request, points, _, capacities in terms:
            filled = (used.item(entry, column) + request) / capacities[row]
            if filled > 1.0:
                score = 0.0
                break
            score += filled * points
        scores.append(score)
    return np.array(scores)
