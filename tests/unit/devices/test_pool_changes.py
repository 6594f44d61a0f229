"""Pools that changed, for readers that are few or many changes behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.devices import pool_changes
from capcard_sched.devices.pool_changes import PoolChanges

_POOLS = [("d", f"p{number}") for number in range(6)]


@given(st.lists(st.lists(st.sampled_from(_POOLS), max_size=3), max_size=30), st.integers(1, 6), st.data())
def test_no_changed_pool_is_missing(notes: list[list[tuple[str, str]]], most: int, data: st.DataObject) -> None:
    """Without the bound, and with it: a reader that is further behind than what is kept gets all its pools."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_changes, "_MOST", most)
        changes = PoolChanges()
        for pools in notes:
            changes.note(*pools)
        serial = data.draw(st.integers(0, len(notes)))
        found, exact = changes.since(serial, iter(_POOLS)), {pool for pools in notes[serial:] for pool in pools}
        assert exact <= set(found)
        assert len(changes._last) <= most
        if len({pool for pools in notes for pool in pools}) <= most:
            assert set(found) == exact, "what did not change is not found again"
