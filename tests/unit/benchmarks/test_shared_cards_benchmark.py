from __future__ import annotations

import pytest

from benchmarks.shared_cards import PLAIN_PODS, SHARED, measure_sharing


@pytest.mark.parametrize("scene", SHARED)
def test_the_engine_and_the_plain_loop_choose_the_same_nodes(scene: str) -> None:
    found = measure_sharing(scene, "small", 40, repeats=1)

    assert found.placed == found.pods > PLAIN_PODS
    assert found.agreed == PLAIN_PODS
    assert found.card_bytes > 0
