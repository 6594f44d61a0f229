"""Scoring strategy of a pod: MostAllocated or LeastAllocated, with weights per resource."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from capcard_sched.model.decode_errors import field_problem, json_problem

MOST_ALLOCATED: Final = "MostAllocated"
LEAST_ALLOCATED: Final = "LeastAllocated"
STRATEGIES: Final = (LEAST_ALLOCATED, MOST_ALLOCATED)
#: Maximum of a weight.
MOST_WEIGHT: Final = 2**31 - 1
WEIGHTS_FORM: Final = (
    'a JSON object of resource names and whole numbers from 0 on, such as {"cpu": 1, "nvidia.com/gpu": 2}'
)

_Weights: TypeAlias = dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_WEIGHT)]]
_decoder = msgspec.json.Decoder(_Weights)


class StrategyError(ValueError):
    """Text that is not a map of weights."""


def parse_weights(text: str) -> tuple[tuple[str, int], ...]:
    """`volcano.sh/resource-strategy-weight`: resources and their weights. Raises StrategyError."""
    try:
        return tuple(_decoder.decode(text).items())
    except msgspec.ValidationError as error:
        raise StrategyError(str(json_problem(error, text))[:256]) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise StrategyError(str(field_problem(error))[:256]) from None
