"""Time in which pods held GPUs and did not use them, from the utilization that DCGM's exporter measures.

The exporter names the pod that holds each GPU. A GPU is unused in five minutes in which its utilization was always 0.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from capcard_sched.daemon.usage_source import PrometheusClient, UsageError
from capcard_sched.framework.conf.metrics_section import PrometheusSettings, read_address, without_password
from capcard_sched.ledger.unused_time import PodActivity, UnmeasuredError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.ledger.unused_time import PodName

_METRIC: Final = "DCGM_FI_DEV_GPU_UTIL"
#: Seconds of one interval.
_STEP: Final = 300
#: Millionths of a card-second of one GPU in one interval.
_AMOUNT: Final = _STEP * 1_000_000


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


class CardMeter:
    """Asks one Prometheus."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an address that is no URL."""
        address = read_address(url)
        if address is None:
            raise ValueError(f"{without_password(url)}: expected a URL such as http://prometheus.monitoring:9090")
        self._settings = PrometheusSettings(address)

    def __call__(self, periods: Sequence[tuple[int, int]]) -> list[dict[PodName, PodActivity]]:
        """The activity of pods in periods (Unix milliseconds), one dict per period. Raises UnmeasuredError."""
        try:
            return asyncio.run(self._measure(periods))
        except UsageError as error:
            raise UnmeasuredError(f"{without_password(self._settings.address)}: {error}") from None

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
            raise UsageError(f"no series {_METRIC} with the label pod")
        return found

    @staticmethod
    async def _counts(client: PrometheusClient, query: str, at: float) -> Mapping[PodName, float]:
        series = await client.vector(query, at)
        return {
            (one.metric["namespace"], one.metric["pod"]): one.number
            for one in series
            if one.metric.keys() >= {"namespace", "pod"} and one.number is not None
        }
