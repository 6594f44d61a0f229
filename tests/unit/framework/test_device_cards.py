"""The numbers of devices by state follow the changes of devices, slices and nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
from tests.unit.devices.random_nodes import MOVES, RandomNodes


@given(st.integers(0, 2**32 - 1))
def test_kept_numbers_of_devices_equal_a_recount(seed: int) -> None:
    cluster, kept = RandomNodes(seed), DeviceStateCounts()
    for _ in range(MOVES):
        pools = cluster.pools
        assert kept.update(pools.inventory, pools.ledger) == DeviceStateCounts().update(pools.inventory, pools.ledger)
        cluster.step()
