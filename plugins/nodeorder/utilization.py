"""Scores nodes by utilization with the pod: least requested, most requested, balanced allocation.

The hottest code of the scheduler: it runs for every touched row and every class with one more pod. It makes as few
array calls as possible and computes the rest once per session or once per class.
"""

from __future__ import annotations

from math import floor, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import Mask, NodeView, Rows, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.resources import Matrix, Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments


class FewRequest(NamedTuple):
    """The amounts that a class adds to a node: plain integers in base units."""

    nonzero_cpu: int
    nonzero_memory: int
    cpu: int
    memory: int
    #: None when the class requests none, or no node has one.
    gpu: int | None
    gpu_column: int
    #: Whether the class requests none of the three; the balanced score is then omitted.
    nothing: bool


class FewWeights(NamedTuple):
    """Weights of the three scores."""

    least: int
    most: int
    balanced: int


def few_scores(
    weights: FewWeights, request: FewRequest, offers: Sequence[tuple[int, int, int]], charged: Sequence[Sequence[int]]
) -> Scores:
    """float64 [k], whole numbers, with the operations of `Utilization` in their order: both give the same bits.

    `offers[i]`: allocatable cpu, memory and GPU of node i; `charged[i]`: its `used` and the two non-zero amounts.
    """
    return np.array([_score(weights, request, offer, amounts) for offer, amounts in zip(offers, charged, strict=True)])


def _score(weights: FewWeights, request: FewRequest, offer: tuple[int, int, int], charged: Sequence[int]) -> float:
    cpu, memory, _ = offer
    total = 0.0
    if weights.balanced and not request.nothing:
        total = _balance(request, offer, charged) * weights.balanced
    if weights.least or weights.most:
        taken_cpu = min(charged[-2] + request.nonzero_cpu, max(cpu, 1))
        taken_memory = min(charged[-1] + request.nonzero_memory, max(memory, 1))
        filled = 0
        if weights.most:
            filled += weights.most * _mean(taken_cpu * 100 // max(cpu, 1), taken_memory * 100 // max(memory, 1), offer)
        if weights.least:
            least_cpu = (max(cpu, 1) - taken_cpu) * 100 // max(cpu, 1)
            least_memory = (max(memory, 1) - taken_memory) * 100 // max(memory, 1)
            filled += weights.least * _mean(least_cpu, least_memory, offer)
        total += filled
    return total


def _mean(cpu_part: int, memory_part: int, offer: tuple[int, int, int]) -> int:
    cpu, memory, _ = offer
    if cpu > 0 and memory > 0:
        return (cpu_part + memory_part) // 2
    return cpu_part if cpu > 0 else memory_part if memory > 0 else 0


def _balance(request: FewRequest, offer: tuple[int, int, int], charged: Sequence[int]) -> float:
    cpu, memory, gpu = offer
    fractions = []
    if cpu > 0:
        fractions.append(min((charged[0] + request.cpu) / cpu, 1.0))
    if memory > 0:
        fractions.append(min((charged[1] + request.memory) / memory, 1.0))
    if request.gpu is not None and gpu > 0:
        fractions.append(min((charged[request.gpu_column] + request.gpu) / gpu, 1.0))
    if len(fractions) == 3:
        first, second, third = fractions
        mean = (first + second + third) / 3.0
        first -= mean
        second -= mean
        third -= mean
        deviation = sqrt((first * first + second * second + third * third) / 3.0)
    elif len(fractions) == 2:
        deviation = abs(fractions[0] - fractions[1]) / 2
    else:
        deviation = 0.0
    return float(floor((1.0 - deviation) * 100.0))


GPU = "nvidia.com/gpu"
#: Rows up to which plain Python is faster than arrays.
_FEW = 5
#: Requests of classes that are cached between sessions.
_MOST_CLASSES = 4096


class _PodAmounts(NamedTuple):
    """The amounts that a class adds to a node."""

    #: int64 [2]: cpu milli and memory bytes, with the non-zero defaults.
    nonzero: Vector
    #: int64 [2]: cpu milli and memory bytes as requested.
    plain: Vector
    #: int64 [3]: the same and thousandths of a GPU; None when it requests none, or no node has one.
    three: Vector | None
    #: The same amounts as plain integers.
    few: FewRequest


class Utilization:
    """The three scores, weighted and added up."""

    def __init__(self, arguments: NodeOrderArguments) -> None:
        self._least = arguments.least_requested
        self._most = arguments.most_requested
        self._balanced = arguments.balanced_resource
        self._few = FewWeights(self._least, self._most, self._balanced)
        #: Per node cpu, memory and GPUs, as plain integers.
        self._offers: list[tuple[int, int, int]] = []
        self._generation = -1
        self._enabled = bool(self._least or self._most or self._balanced)
        self._requests: dict[TaskClass, _PodAmounts] = {}
        #: int64 [nodes, 2]: cpu and memory, at least 1 because they are divisors.
        self._offered: Matrix
        #: Mask, bool [nodes, 2]: the node has cpu, memory; None when all nodes have both.
        self._has: Mask | None
        #: The same for cpu, memory and GPUs; `_offered_three` is None when no node has a GPU.
        self._offered_three: Matrix | None
        self._has_three: Mask
        #: Columns of cpu, memory and GPUs: intp [3].
        self._columns: Rows

    def open(self, session: Session) -> None:
        """Read the nodes' allocatable amounts, which no placement changes. O(nodes) when nodes changed."""
        if len(self._requests) > _MOST_CLASSES:
            self._requests.clear()
        if session.nodes.generation == self._generation and not session.changed.everything:
            return
        self._generation = session.nodes.generation
        self._requests.clear()
        allocatable = session.nodes.allocatable
        has = allocatable[:, :2] > 0
        self._has = None if has.all() else has
        self._offered = np.maximum(allocatable[:, :2], 1)
        self._offered_three = None
        column = session.resources.find(GPU)
        if column is not None and column < allocatable.shape[1] and allocatable[:, column].any():
            self._columns = np.array([0, 1, column], dtype=np.intp)
            three = allocatable[:, self._columns]
            self._has_three = three > 0
            self._offered_three = np.maximum(three, 1)
        cpus, memories = allocatable[:, 0].tolist(), allocatable[:, 1].tolist()
        gpus = [0] * len(cpus) if self._offered_three is None else allocatable[:, column].tolist()
        self._offers = list(zip(cpus, memories, gpus, strict=True))

    def _request(self, cls: TaskClass) -> _PodAmounts:
        requests = cls.requests
        cpu, memory, gpu = requests.get("cpu", 0), requests.get("memory", 0), requests.get(GPU, 0)
        found = self._requests[cls] = _PodAmounts(
            np.array([cls.nonzero_cpu_milli, cls.nonzero_memory_bytes], dtype=np.int64),
            np.array([cpu, memory], dtype=np.int64),
            np.array([cpu, memory, gpu], dtype=np.int64) if gpu and self._offered_three is not None else None,
            FewRequest(
                cls.nonzero_cpu_milli,
                cls.nonzero_memory_bytes,
                cpu,
                memory,
                gpu if gpu and self._offered_three is not None else None,
                int(self._columns[2]) if self._offered_three is not None else 0,
                not (cpu or memory or gpu),
            ),
        )
        return found

    def scores(self, cls: TaskClass, rows: NodeView) -> Scores | None:
        """Whole numbers, float64 [k]; None when all weights are 0."""
        if not self._enabled:
            return None
        request = self._requests.get(cls) or self._request(cls)
        if request.few.nothing and not (self._least or self._most):
            return None
        if len(rows.rows) <= _FEW:
            offers = self._offers
            return few_scores(
                self._few, request.few, [offers[row] for row in rows.rows.tolist()], rows.charged.tolist()
            )
        offered = rows.take(self._offered)
        total: Scores | None = None
        if self._balanced and not request.few.nothing:
            total = self._balance(request, rows, offered)
            if self._balanced != 1:
                total *= self._balanced
        if self._least or self._most:
            taken = rows.nonzero_used + request.nonzero
            np.minimum(taken, offered, out=taken)
            filled = self._fill(taken, offered, rows)
            total = filled.astype(np.float64) if total is None else np.add(total, filled, out=total)
        return total

    def _fill(self, taken: Matrix, offered: Matrix, rows: NodeView) -> Vector:
        """Least and most requested: int64 [k]. `taken` (int64 [k, 2], not above `offered`) is overwritten."""
        filled: Vector | None = None
        if self._most:
            filled = self._mean(taken * 100 // offered, rows)
            if self._most != 1:
                filled *= self._most
        if self._least:
            np.subtract(offered, taken, out=taken)
            taken *= 100
            taken //= offered
            least = self._mean(taken, rows)
            if self._least != 1:
                least *= self._least
            filled = least if filled is None else filled + least
        assert filled is not None
        return filled

    def _mean(self, parts: Matrix, rows: NodeView) -> Vector:
        """The mean of cpu and memory, rounded down, over those that the node has: int64 [k]."""
        if self._has is None:
            mean: Vector = parts[:, 0] + parts[:, 1]
            mean >>= 1
            return mean
        has = rows.take(self._has)
        return (parts * has).sum(axis=1) // np.maximum(has.sum(axis=1), 1)  # type: ignore[no-any-return]

    def _balance(self, request: _PodAmounts, rows: NodeView, offered: Matrix) -> Scores:
        """Balanced: float64 [k], 100 less the standard deviation of the used fractions in percent, rounded down."""
        if request.three is not None or self._has is not None:
            deviation = self._deviation(request, rows)
            np.subtract(1.0, deviation, out=deviation)
            deviation *= 100.0
            return np.floor(deviation, out=deviation)
        fractions = (rows.used[:, :2] + request.plain) / offered
        np.minimum(fractions, 1.0, out=fractions)
        # The deviation of two values is half their difference: (1 - |d|/2) * 100 equals (2 - |d|) * 50 bit for bit.
        balance = fractions[:, 0] - fractions[:, 1]
        np.abs(balance, out=balance)
        np.subtract(2.0, balance, out=balance)
        balance *= 50.0
        return np.floor(balance, out=balance)

    def _deviation(self, request: _PodAmounts, rows: NodeView) -> Scores:
        """Standard deviation of the fractions that count on each node: float64 [k]; 0 for fewer than two.

        Sums run from left to right, as in kube-scheduler, so that the rounding agrees bit for bit.
        """
        if request.three is None or self._offered_three is None:
            has = rows.take(self._has) if self._has is not None else np.ones((len(rows), 2), dtype=bool)
            fractions = np.minimum((rows.used[:, :2] + request.plain) / rows.take(self._offered), 1.0)
            return np.where(has.all(axis=1), np.abs(fractions[:, 0] - fractions[:, 1]) / 2, 0.0)
        fractions = (rows.used.take(self._columns, axis=1) + request.three) / rows.take(self._offered_three)
        np.minimum(fractions, 1.0, out=fractions)
        has = rows.take(self._has_three)
        two: Scores | None = None
        if not has.all():
            # With one of the three missing, the two others take part.
            has_cpu, has_memory = has[:, 0], has[:, 1]
            cpu, memory, gpu = fractions[:, 0], fractions[:, 1], fractions[:, 2]
            two = np.abs(np.where(has_cpu, cpu, gpu) - np.where(has_memory, memory, gpu)) / 2
        mean = fractions[:, 0] + fractions[:, 1]
        mean += fractions[:, 2]
        mean /= 3.0
        fractions -= mean[:, None]
        fractions *= fractions
        three: Scores = fractions[:, 0] + fractions[:, 1]
        three += fractions[:, 2]
        three /= 3.0
        np.sqrt(three, out=three)
        if two is None:
            return three
        count = has.sum(axis=1)
        deviation: Scores = np.where(count == 3, three, np.where(count == 2, two, 0.0))
        return deviation
