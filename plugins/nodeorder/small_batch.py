"""Utilization scores of a few rows in plain Python, where array calls cost more than the arithmetic.

The operations and their order are those of `utilization`, so that both give the same bits.
"""

from __future__ import annotations

from math import floor, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import Scores


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
    """float64 [k], whole numbers.

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
