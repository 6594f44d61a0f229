"""Arguments of the rescheduling plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from capcard_sched.framework.api.problems import nearest, shown
from capcard_sched.model.usage import PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader

Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]

LOW_NODE_UTILIZATION = "lowNodeUtilization"
INTERVAL_KEY = "interval"
PERIOD_KEY = "metricsPeriod"
STRATEGIES_KEY = "strategies"
DEFAULT_INTERVAL = "5m"
_PODS = ("pod", "pods")
#: Parameters that Volcano accepts and ignores, with their defaults.
_UNUSED: dict[str, object] = {"thresholdPriorityClassName": "system-cluster-critical", "nodeFit": True}


class Bounds(msgspec.Struct, frozen=True):
    """Percent of load."""

    cpu: Percent = 100
    memory: Percent = 100


class Params(msgspec.Struct, frozen=True):
    """Parameters of strategy `lowNodeUtilization`."""

    #: A node below all of these is underutilized and can take pods.
    thresholds: Bounds = Bounds()
    #: A node above one of these is overutilized and loses pods.
    targets: Bounds = msgspec.field(name="targetThresholds", default=Bounds())


class Strategy(msgspec.Struct, frozen=True):
    """One entry of `strategies`."""

    name: str = LOW_NODE_UTILIZATION
    params: Params = Params()


class ReschedulingArguments(msgspec.Struct, frozen=True):
    """Arguments of rescheduling."""

    #: Interval between runs.
    interval: str = DEFAULT_INTERVAL
    #: The period of the averages; only the measured period is supported.
    period: str = msgspec.field(name=PERIOD_KEY, default=PERIOD)
    #: The strategies: `lowNodeUtilization`, with its `params` (docs/load.md).
    strategies: tuple[Strategy, ...] = (Strategy(),)


def parse(raw: Mapping[str, object], problems: ArgumentReader) -> ReschedulingArguments:
    """Read the arguments. An invalid value keeps its default with a warning; an unknown strategy is skipped."""
    arguments = problems.decode(ReschedulingArguments, {k: v for k, v in raw.items() if k != STRATEGIES_KEY})
    assert isinstance(arguments, ReschedulingArguments)
    interval, period = arguments.interval, arguments.period
    interval = problems.positive_duration(INTERVAL_KEY, interval, DEFAULT_INTERVAL)
    if period != PERIOD:
        problems.warning(
            PERIOD_KEY, f'no averages over "{period}" are measured; those over {PERIOD} are used', accepted=PERIOD
        )
        period = PERIOD
    return ReschedulingArguments(interval, period, _strategies(raw.get(STRATEGIES_KEY), problems))


def _strategies(raw: object, problems: ArgumentReader) -> tuple[Strategy, ...]:
    if raw is None:
        return ReschedulingArguments().strategies
    if not isinstance(raw, list):
        problems.error(STRATEGIES_KEY, f"expected a list, got {shown(raw)}", accepted="a list of {name, params}")
        return ()
    entries = [_strategy(entry, index, problems) for index, entry in enumerate(raw)]
    return tuple(entry for entry in entries if entry is not None)


def _strategy(raw: object, index: int, problems: ArgumentReader) -> Strategy | None:
    if not isinstance(raw, dict):
        message = f"entry {index}: expected a map, got {shown(raw)}"
        problems.error(STRATEGIES_KEY, message, accepted="a map with name and params")
        return None
    reader, entry = problems.inside(raw, STRATEGIES_KEY, index)
    name = entry.get("name")
    if name != LOW_NODE_UTILIZATION:
        hint = nearest(name, (LOW_NODE_UTILIZATION,)) if isinstance(name, str) else ""
        reader.warning(
            "name", f"unknown strategy {shown(name)}; it is skipped", hint=hint, accepted=LOW_NODE_UTILIZATION
        )
        return None
    for key in entry:
        if key not in ("name", "params"):
            reader.unknown(key, ("name", "params"))
    reader, params = reader.inside(entry.get("params"), "params")
    known: dict[str, Any] = {}
    for key, value in params.items():
        if key in _UNUSED:
            if value != _UNUSED[key]:
                reader.warning(key, "ignored, as in Volcano: critical pods are never evicted")
        elif key not in ("thresholds", "targetThresholds"):
            reader.unknown(key, ("thresholds", "targetThresholds", *_UNUSED))
        else:
            known[key] = _bounds(reader, params, key)
    found = Params(known.get("thresholds", Bounds()), known.get("targetThresholds", Bounds()))
    for resource in ("cpu", "memory"):
        least, most = getattr(found.thresholds, resource), getattr(found.targets, resource)
        if least > most:
            reader.warning(
                "thresholds",
                f"{resource}: {least} is above the target {most}; a node between the two takes pods and loses none",
            )
    return Strategy(LOW_NODE_UTILIZATION, found)


def _bounds(problems: ArgumentReader, params: Mapping[str, object], key: str) -> Bounds:
    reader, bounds = problems.inside(params.get(key), key)
    for name in _PODS:
        if name in bounds:
            reader.warning(name, "ignored, as in Volcano: the number of pods is not a load")
    found = reader.decode(Bounds, {name: value for name, value in bounds.items() if name not in _PODS})
    assert isinstance(found, Bounds)
    return found
