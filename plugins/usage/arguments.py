"""Arguments of `usage` as users write them (plugins reference §15, §28)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from capcard_sched.model.quantity import QuantityError, milli, units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader

#: A negative one is refused in favour of the default; 0 leaves the resource out.
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

THRESHOLDS_KEY = "thresholds"
#: The thresholds under names of their own, as the list of arguments calls them; they count before the section.
CPU_THRESHOLD_KEY = "thresholds.cpu"
MEM_THRESHOLD_KEY = "thresholds.mem"
ESTIMATOR_KEY = "estimator"
_READ_APART = (THRESHOLDS_KEY, CPU_THRESHOLD_KEY, MEM_THRESHOLD_KEY, ESTIMATOR_KEY)


class Thresholds(msgspec.Struct, frozen=True):
    """Percent of load above which a node takes no more pods."""

    #: Of cpu.
    cpu: Percent = 80
    #: Of memory.
    mem: Percent = 80


class Estimator(msgspec.Struct, frozen=True):
    """What pods that were placed since the last measurement are taken to use."""

    #: Without it a burst of pods goes to whatever node was idlest when it was measured.
    enable: bool = True
    #: Part of the request that a pod is taken to use.
    request_ratio: Ratio = 0.7
    #: Part of what the limit allows beyond it.
    burst_ratio: Ratio = 0.0
    #: From this load on, 0 to 1, the estimates of further pods are multiplied by `risk_factor`.
    risk_threshold: Share = 0.6
    #: That factor.
    risk_factor: Ratio = 1.2
    #: What a pod uses of cpu when it names neither a request nor a limit; a quantity.
    be_cpu: str = "250m"
    #: The same of memory.
    be_mem: str = "200Mi"


class UsageArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: Times the score, which is up to 100.
    weight: Weight = msgspec.field(name="usage.weight", default=5)
    #: How much the load of cpu counts in it.
    cpu_weight: Weight = msgspec.field(name="cpu.weight", default=1)
    #: How much the load of memory counts in it.
    memory_weight: Weight = msgspec.field(name="memory.weight", default=1)
    #: Percent of load above which a node takes no more pods.
    thresholds: Thresholds = Thresholds()
    #: What pods that were placed since the last measurement are taken to use.
    estimator: Estimator = Estimator()


def parse(raw: Mapping[str, object], problems: ArgumentReader) -> UsageArguments:
    """Whatever is wrong keeps its default and is told with its path: half a threshold must not close the cluster."""
    plain = {key: value for key, value in raw.items() if key not in _READ_APART}
    arguments = problems.decode(UsageArguments, plain)
    assert isinstance(arguments, UsageArguments)
    inside, map_of = problems.inside(raw.get(THRESHOLDS_KEY), THRESHOLDS_KEY)
    thresholds = inside.decode(Thresholds, map_of)
    inside, map_of = problems.inside(raw.get(ESTIMATOR_KEY), ESTIMATOR_KEY)
    estimator = inside.decode(Estimator, map_of)
    assert isinstance(thresholds, Thresholds)
    thresholds = Thresholds(
        problems.read(raw, CPU_THRESHOLD_KEY, Percent, thresholds.cpu),
        problems.read(raw, MEM_THRESHOLD_KEY, Percent, thresholds.mem),
    )
    assert isinstance(estimator, Estimator)
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
