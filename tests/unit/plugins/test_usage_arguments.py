"""Arguments of the usage plugin, and loads as text."""

from __future__ import annotations

import pytest

from capcard_sched.model.usage import NodeUsage, UsageFormError, parse_usage

# --- loads as text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu=80,memory=50", NodeUsage(80.0, 50.0)),
        (" memory = 12.5 ", NodeUsage(None, 12.5)),
        ("cpu=0", NodeUsage(0.0)),
    ],
)
def test_a_load_reads_from_text(text: str, expected: NodeUsage) -> None:
    assert parse_usage(text) == expected


@pytest.mark.parametrize("text", ["", "cpu", "cpu=101", "cpu=-1", "cpu=80%", "gpu=1", "cpu=1,cpu=2", "cpu=nan"])
def test_an_invalid_load_is_reported_with_the_accepted_form(text: str) -> None:
    with pytest.raises(UsageFormError, match="percent from 0 to 100"):
        parse_usage(text)
