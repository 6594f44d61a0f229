"""The charge of a share is known before it is allocated, and follows from what the allocation consumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.devices.claims import claim_facts
from capcard_sched.devices.device_card import charge_of
from capcard_sched.framework.toolkit.device_cards import DeviceCards
from capcard_sched.model.device_objects import ResourceClaimObject
from tests.unit.devices.pools import Pools, decode

_CARD: Final = "NVIDIA-H200/shared"


@st.composite
def _capacities(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """The capacities of a device by name, with values below 1,000."""
    found: dict[str, dict[str, Any]] = {}
    for name in draw(st.sampled_from([("memory",), ("memory", "cores"), ()])):
        value = draw(st.integers(1, 999))
        found[name] = {"value": str(value)}
        if draw(st.booleans()):
            low = draw(st.integers(0, value))
            span = {"min": str(low), "step": str(draw(st.integers(1, 50)))}
            found[name]["requestPolicy"] = {"default": str(low), "validRange": span}
    return found


def _expected(consumed: Mapping[str, Any], capacities: dict[str, dict[str, Any]]) -> int:
    """Thousandths, in whole numbers."""
    parts = [-(-1000 * int(amount) // int(capacities[name]["value"])) for name, amount in consumed.items()]
    return max([1, *parts])


@given(_capacities(), st.dictionaries(st.sampled_from(["memory", "cores"]), st.integers(0, 1100)), st.integers(1, 3))
def test_a_share_costs_what_was_announced(
    capacities: dict[str, dict[str, Any]], requested: dict[str, int], count: int
) -> None:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H200"}}
    fields = {"attributes": attributes, "allowMultipleAllocations": True, "capacity": capacities}
    pool = {"name": "N1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"g{number}", **fields} for number in range(2)]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "N1", "pool": pool, "devices": devices}
    pools = Pools([{"metadata": {"name": "s"}, "spec": spec}], [{"metadata": {"name": "c"}, "spec": {}}])
    amounts = {name: str(amount) for name, amount in requested.items()}
    exactly = {"deviceClassName": "c", "count": count, "capacity": {"requests": amounts}}
    claim = {"metadata": {"name": "c0"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    plan = pools.inventory.plans.of(claim_facts(decode(claim, ResourceClaimObject)))
    cards = DeviceCards()
    cards.read(pools.inventory)
    announced = cards.matching(plan.requests[0][0])
    found = pools.allocate([claim])
    if not isinstance(found, list):
        assert not announced or count > len(devices)
        return
    ((card, charges),) = announced.items()
    results = found[0].devices.results or ()
    assert (card, len(results)) == (_CARD, count)
    for each in results:
        device = pools.inventory.device((each.driver, each.pool, each.device))
        assert device is not None
        assert charges == {charge_of(device, each)} == {_expected(each.consumed_capacity or {}, capacities)}
