"""`python -m benchmarks.caches`: microseconds of each cached function, computed and kept, for an argument of its kind.

A cache is worth its lines and its memory only where a kept result is returned faster than it is computed. The figures
beside the caches in the code are from this table.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from capcard_sched.cel import program, regex
from capcard_sched.controllers import owner_paths, quota_usage
from capcard_sched.devices import selectors
from capcard_sched.framework.quota import limits
from capcard_sched.model import (
    card_registration,
    cards,
    cooldown,
    json_pods,
    numa,
    ownership,
    quantity,
    queue,
    reasons,
    timestamps,
    yaml_reader,
)
from capcard_sched.model import limits as model_limits
from capcard_sched.model.card_labels import CardLabels
from capcard_sched.model.task_class import ContainerAmounts
from capcard_sched.plugins import sla
from capcard_sched.plugins.capacity_card import card_inventory
from capcard_sched.plugins.predicates import extended_claims
from capcard_sched.state import decode
from capcard_sched.validation import unknown_fields

_REPEATS: Final = 7
#: Seconds of one measurement, at least.
_LONG: Final = 0.01
_POD: Final = msgspec.json.encode(
    {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "8", "memory": "64Gi"}}}]}}
)
_AMOUNTS: Final = (("cpu", "128"), ("memory", "1Ti"), ("nvidia.com/gpu", "8"), ("pods", "110"))
_MESSAGE: Final = "pod group is not ready, 2 Pending, 3 minAvailable; Pending: 2 Unschedulable. Origin reason is p-0"
_LABELS: Final = (("nvidia.com/gpu.memory", "143771"), ("nvidia.com/gpu.product", "NVIDIA-H200"))
_REGISTERED: Final = ":".join(f"GPU-{number},10,143771,100,NVIDIA-NVIDIA H200,0,true" for number in range(8)) + ":"
_CPUS: Final = tuple((str(cpu), numa.CpuPlace(cpu // 64, cpu // 64, cpu // 2)) for cpu in range(128))
_QUOTA: Final = '{"NVIDIA-H200": 8, "NVIDIA-A100": 16}'
_GPUS: Final = (("nvidia.com/gpu", 8000),)
_EXTENDED: Final = extended_claims.ExtendedResources(
    (ContainerAmounts("main", _GPUS, _GPUS, names=("cpu", "memory", "nvidia.com/gpu")),), (("nvidia.com/gpu", "gpu"),)
)
#: Each cached function, in the order of modules, and the arguments that are measured.
CASES: Final[tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...]] = (
    (program.compiled, ("device.attributes['gpu'].model == 'H200'", ())),
    (regex.compiled, ("^H[12]00$",)),
    (owner_paths._steps, ("spec.replicatedJobs[*].template.spec",)),
    (quota_usage._usage, (((_POD, 8),),)),
    (selectors.read_attributes, ("device.attributes['gpu'].model == 'H200'",)),
    (limits._ratio, (1.2,)),
    (card_registration._uuids, (_REGISTERED,)),
    (cards._discover, (_LABELS, (("nvidia.com/gpu", 8000),), CardLabels())),
    (cooldown._seconds, ("10m",)),
    (json_pods.amounts_of_json, (_POD,)),
    (model_limits._amounts, (_AMOUNTS,)),
    (numa._read, (_CPUS,)),
    (ownership.owner_of, ("team-a", "batch/v1", "Job", "train", "0a1b2c3d")),
    (quantity._base_cached, ("memory", "64Gi")),
    (quantity._scaled_cached, ("64Gi", 0)),
    (queue.namespace_rule, ("team in (a, b)",)),
    (reasons.without_numbers, (_MESSAGE,)),
    (timestamps._format_seconds, (1_767_225_600.0,)),
    (timestamps.parse_timestamp, ("2026-01-01T10:20:30Z",)),
    (yaml_reader._plain_tag, ("nvidia",)),
    (sla.waiting_limit, ("1h",)),
    (card_inventory.parsed, (cards.parse_card_quota, _QUOTA)),
    (extended_claims._claim, (_EXTENDED,)),
    (decode._valid_amounts, (_AMOUNTS,)),
    (unknown_fields._nearest, ("minAvailabel", "Job")),
)


def microseconds(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """The least time of a call, of several measurements."""
    scope, number = {"function": function, "arguments": arguments}, 1
    while (timer := timeit.Timer("function(*arguments)", globals=scope)).timeit(number) < _LONG:
        number *= 2
    return min(timer.repeat(_REPEATS, number)) / number * 1e6


def main() -> None:
    """Print the table."""
    table = Table("Function", "Computed, µs", "Kept, µs", box=None)
    for function, arguments in CASES:
        plain = function.__wrapped__  # type: ignore[attr-defined] # of `lru_cache` and `text_cache`
        name = f"{plain.__module__.removeprefix('capcard_sched.')}.{plain.__name__}"
        table.add_row(name, *(f"{microseconds(each, arguments):.2f}" for each in (plain, function)))
    Console().print(table)


if __name__ == "__main__":
    main()
