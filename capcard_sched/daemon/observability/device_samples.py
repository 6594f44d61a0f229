"""Series of dynamic resource allocation, sampled from the ledger of devices."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.devices.searches import TRIALS
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.devices.inventory import DeviceInventory
    from capcard_sched.devices.ledger import DeviceLedger
    from capcard_sched.devices.searches import SearchCounts
    from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
    from capcard_sched.model.job import Task


class DeviceSeries(NamedTuple):
    """One series of a row of the table of metrics."""

    name: str
    #: Of a histogram: `_bucket`, `_count` or `_sum`.
    suffix: str
    labels: dict[str, str]
    value: float


def device_series(
    inventory: DeviceInventory, ledger: DeviceLedger, states: DeviceStateCounts, tasks: Mapping[str, Task]
) -> Iterator[DeviceSeries]:
    """All series; none for a cluster without ResourceSlices and ResourceClaims.

    O(devices of the pools that changed since the last call with `states`, and claims with binding conditions). `tasks`:
    by uid.
    """
    if not inventory.slices and not ledger.claims:
        return
    for (card, state), count in sorted(states.update(inventory, ledger).items()):
        yield DeviceSeries("capcard_dra_devices", "", {"card": card, "state": state}, count)
    for name, count in _claim_states(ledger).items():
        yield DeviceSeries("capcard_dra_claims", "", {"state": name}, count)
    yield DeviceSeries("capcard_dra_waiting_pods", "", {}, _waiting_pods(ledger, tasks))
    yield DeviceSeries("capcard_dra_double_allocations_total", "", {}, ledger.doubled.total)
    yield from _searches(ledger.searches)


def _claim_states(ledger: DeviceLedger) -> Mapping[str, int]:
    """State to the number of claims."""
    allocated, assumed = ledger.allocated_claims, ledger.assumed_claims()
    return {
        "unallocated": len(ledger.claims) - allocated - assumed,
        "assumed": assumed,
        "allocated": allocated,
    }


def _waiting_pods(ledger: DeviceLedger, tasks: Mapping[str, Task]) -> int:
    """The number of placed pods that are not bound yet and have devices with binding conditions."""
    reserved = {uid for key in ledger.prepared for uid in ledger.claims[key].consumers}
    return sum(1 for uid in reserved if (task := tasks.get(uid)) is not None and task.status is TaskStatus.BINDING)


def _searches(searches: SearchCounts) -> Iterator[DeviceSeries]:
    for result, count in searches.results.items():
        yield DeviceSeries("capcard_dra_allocations_total", "", {"result": result}, count)
    name, counts = "capcard_dra_allocation_trials", list(accumulate(searches.trials))
    for bound, count in zip(TRIALS, counts, strict=False):
        yield DeviceSeries(name, "_bucket", {"le": str(bound)}, count)
    yield DeviceSeries(name, "_bucket", {"le": "+Inf"}, counts[-1])
    yield DeviceSeries(name, "_count", {}, counts[-1])
    yield DeviceSeries(name, "_sum", {}, searches.all_trials)
