"""Arguments of the usage plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from capcard_sched.model.quantity import QuantityError, milli, units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader

#: A negative value is replaced by the default; 0 disables the resource.
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

THRESHOLDS_KEY = "thresholds"
#: Flat keys of the thresholds; they take precedence over the section.
CPU_THRESHOLD_KEY = "thresholds.cpu"
MEM_THRESHOLD_KEY = "thresholds.mem"
ESTIMATOR_KEY = "estimator"
_NESTED_KEYS = (THRESHOLDS_KEY, CPU_THRESHOLD_KEY, MEM_THRESHOLD_KEY, ESTIMATOR_KEY)


class Thresholds(msgspec.Struct, frozen=True):
    """Percent of load above which a node is filtered out."""

    #: Threshold of cpu.
    cpu: Percent = 80
    #: Threshold of memory.
    mem: Percent = 80


class Estimator(msgspec.Struct, frozen=True):
    """Estimates the use of pods placed since the last measurement."""

    #: Whether to estimate. Otherwise a burst of pods goes to the node that was the idlest when it was measured.
    enable: bool = True
    #: Fraction of its request that a pod uses.
    request_ratio: Ratio = 0.7
    #: Fraction of the difference between limit and request that a pod uses.
    burst_ratio: Ratio = 0.0
    #: Load, 0 to 1, from which the estimates of further pods are multiplied by `risk_factor`.
    risk_threshold: Share = 0.6
    #: Factor above `risk_threshold`.
    risk_factor: Ratio = 1.2
    #: Quantity of cpu that a pod without request and limit uses.
    be_cpu: str = "250m"
    #: Quantity of memory that a pod without request and limit uses.
    be_mem: str = "200Mi"


class UsageArguments(msgspec.Struct, frozen=True):
    """Arguments of usage."""

    #: Score multiplier; 0 disables.
    weight: Weight = msgspec.field(name="usage.weight", default=5)
    #: Relative weight of the cpu load.
    cpu_weight: Weight = msgspec.field(name="cpu.weight", default=1)
    #: Relative weight of the memory load.
    memory_weight: Weight = msgspec.field(name="memory.weight", default=1)
    #: Percent of load above which a node is filtered out.
    thresholds: Thresholds = Thresholds()
    #: Estimates the use of pods placed since the last measurement.
    estimator: Estimator = Estimator()


def parse(raw: Mapping[str, object], problems: ArgumentReader) -> UsageArguments:
    """Read the arguments. An invalid value keeps its default with a warning: it must not filter out every node."""
    plain = {key: value for key, value in raw.items() if key not in _NESTED_KEYS}
    arguments = problems.decode(UsageArguments, plain)
    inside, map_of = problems.inside(raw.get(THRESHOLDS_KEY), THRESHOLDS_KEY)
    thresholds = inside.decode(Thresholds, map_of)
    inside, map_of = problems.inside(raw.get(ESTIMATOR_KEY), ESTIMATOR_KEY)
    estimator = inside.decode(Estimator, map_of)
    thresholds = Thresholds(
        problems.read(raw, CPU_THRESHOLD_KEY, Percent, thresholds.cpu),
        problems.read(raw, MEM_THRESHOLD_KEY, Percent, thresholds.mem),
    )
    usual = Estimator()
    estimator = msgspec.structs.replace(
        estimator,
        be_cpu=_quantity(inside, "be_cpu", estimator.be_cpu, usual.be_cpu, milli),
        be_mem=_quantity(inside, "be_mem", estimator.be_mem, usual.be_mem, units),
    )
    return msgspec.structs.replace(arguments, thresholds=thresholds, estimator=estimator)


def _quantity(problems: ArgumentReader, key: str, text: str, default: str, parse: Callable[[str], int]) -> str:
    try:
        if parse(text) >= 0:
            return text
        why = f'"{text}" is negative'
    except QuantityError as error:
        why = str(error)
    problems.warning(key, f"{why}; {default} is used", accepted=f"a quantity such as {default}")
    return default
