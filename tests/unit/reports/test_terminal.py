"""Amounts as reports show them."""

from __future__ import annotations

import pytest

from capcard_sched.reports.terminal import format_base_amount


@pytest.mark.parametrize(
    "resource, amount, text",
    [
        pytest.param("cpu", 1500, "1.5", id="half a core"),
        pytest.param("cpu", 1_234_567, "1234.567", id="more than six digits"),
        pytest.param("NVIDIA-H200", 2_000_000_000, "2000000", id="many cards without an exponent"),
        pytest.param("memory", 2**41, "2048Gi", id="2 TiB"),
        pytest.param("memory", 3 * 2**40 + 2**20, "3145729Mi", id="not whole inGi"),
        pytest.param("memory", 0, "0Gi", id="nothing"),
        pytest.param("ephemeral-storage", 2**30, "1Gi", id="all that is counted in bytes"),
        pytest.param("pods", 110, "110", id="pods are plain"),
    ],
)
def test_amounts_are_in_the_unit_of_their_resource(resource: str, amount: int, text: str) -> None:
    assert format_base_amount(resource, amount) == text
