"""Time in which pods held GPUs and did not use them, from the utilization that DCGM's exporter measures.

The exporter names the pod that holds each GPU. A GPU is unused in five minutes in which its utilization was always 0.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from capcard_sched.daemon.usage_source import PrometheusClient, UsageError
from capcard_sched.framework.conf.metrics_section import (
    PrometheusSettings,
    prometheus_of,
    read_address,
    without_password,
)
from capcard_sched.ledger.unused_time import PodActivity, UnmeasuredError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from capcard_sched.ledger.unused_time import PodName

_METRIC: Final = "DCGM_FI_DEV_GPU_UTIL"
_NO_SERIES: Final = f"no series {_METRIC} with the label pod"
#: Seconds of one interval.
_STEP: Final = 300
#: Millionths of a card-second of one GPU in one interval.
_AMOUNT: Final = _STEP * 1_000_000
#: Seconds: of sums over a period, and of the present.
_LONG_TIMEOUT: Final = 120.0
_SHORT_TIMEOUT: Final = 15.0
_T = TypeVar("_T")


class PodGpus(NamedTuple):
    """Numbers of GPUs of one pod: measured, and without any use."""

    measured: int
    unused: int


def _gpus(expression: str) -> str:
    """The largest value of each GPU of a pod, by its labels.

    Where the labels of the scraped exporter have these names, Prometheus keeps those of the GPU as `exported_...`.
    """
    for label in ("pod", "namespace"):
        expression = f'label_replace({expression}, "{label}", "$1", "exported_{label}", "(.+)")'
    return f"max by (namespace, pod, UUID, GPU_I_ID) ({expression})"


def activity_query(seconds: int, *, unused: bool) -> str:
    """PromQL: the intervals of all GPUs of each pod in the last seconds; `unused`: those without utilization only."""
    gpus = _gpus(f"max_over_time({_METRIC}[{_STEP}s])")
    found = f"({gpus} == 0)" if unused else gpus
    # Prometheus 2 includes the moment at which a range begins, Prometheus 3 does not.
    return f"sum by (namespace, pod) (count_over_time({found}[{max(1, seconds - 1)}s:{_STEP}s]))"


async def _limited(measuring: Coroutine[Any, Any, _T], seconds: float) -> _T:
    try:
        async with asyncio.timeout(seconds):
            return await measuring
    except TimeoutError:
        raise UsageError(f"no response within {seconds:g} s") from None


class CardMeter:
    """Queries one Prometheus."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings

    @classmethod
    def of_url(cls, url: str) -> CardMeter:
        """Raises ValueError for an address that is no URL."""
        address = read_address(url)
        if address is None:
            raise ValueError(f"{without_password(url)}: expected a URL such as http://prometheus.monitoring:9090")
        return cls(PrometheusSettings(address))

    @classmethod
    def of_conf(cls, metrics: Mapping[str, str]) -> CardMeter | None:
        """The Prometheus of the section `metrics` of a scheduler-conf, None without one."""
        settings = prometheus_of(metrics)
        return None if settings is None else cls(settings)

    def __call__(self, periods: Sequence[tuple[int, int]]) -> list[dict[PodName, PodActivity]]:
        """The activity of pods in periods (Unix milliseconds), one dict per period. Raises UnmeasuredError."""
        return self._run(self._measure(periods))

    def gpus(self, at: float | None = None) -> dict[PodName, PodGpus]:
        """The GPUs of pods in the five minutes up to a moment (Unix seconds, default: now). Raises UnmeasuredError."""
        return self._run(self._gpus_at(at), _SHORT_TIMEOUT)

    def _run(self, measuring: Coroutine[Any, Any, _T], timeout: float = _LONG_TIMEOUT) -> _T:
        """The result, of a thread with a loop of its own: callers may have one that runs. Raises UnmeasuredError."""
        try:
            with ThreadPoolExecutor(1) as threads:
                return threads.submit(asyncio.run, _limited(measuring, timeout)).result()
        except UsageError as error:
            raise UnmeasuredError(f"{without_password(self._settings.address)}: {error}") from None

    async def _gpus_at(self, at: float | None) -> dict[PodName, PodGpus]:
        gpus = _gpus(f"max_over_time({_METRIC}[{_STEP}s])")
        async with PrometheusClient(self._settings) as client:
            measured = await self._counts(client, f"count by (namespace, pod) ({gpus})", at)
            unused = await self._counts(client, f"count by (namespace, pod) ({gpus} == 0)", at)
        if not measured:
            raise UsageError(_NO_SERIES)
        return {pod: PodGpus(round(count), round(unused.get(pod, 0.0))) for pod, count in measured.items()}

    async def _measure(self, periods: Sequence[tuple[int, int]]) -> list[dict[PodName, PodActivity]]:
        found = []
        async with PrometheusClient(self._settings) as client:
            for begin, end in periods:
                seconds = (end - begin) // 1000
                measured, unused = [
                    await self._counts(client, activity_query(seconds, unused=unused), end / 1000)
                    for unused in (False, True)
                ]
                found.append(
                    {
                        pod: PodActivity(round(count) * _AMOUNT, round(unused.get(pod, 0.0)) * _AMOUNT)
                        for pod, count in measured.items()
                    }
                )
        if not any(found):
            raise UsageError(_NO_SERIES)
        return found

    @staticmethod
    async def _counts(client: PrometheusClient, query: str, at: float | None = None) -> Mapping[PodName, float]:
        series = await client.vector(query, at)
        return {
            (one.metric["namespace"], one.metric["pod"]): one.number
            for one in series
            if one.metric.keys() >= {"namespace", "pod"} and one.number is not None
        }
