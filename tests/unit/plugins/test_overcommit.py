"""Arguments of overcommit."""

from __future__ import annotations

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.plugins.overcommit import OvercommitArguments
from capcard_sched.testing import registry


def _conf(arguments: str = "") -> str:
    return f"""
actions: "enqueue"
tiers: [{{plugins: [{{name: overcommit, arguments: {{{arguments}}}}}]}}]
"""


@pytest.mark.parametrize(
    "arguments, factor, warned",
    [
        pytest.param("", 1.2, False, id="default"),
        pytest.param("overcommit-factor: 1.5", 1.5, False, id="float"),
        pytest.param("overcommit-factor: 2", 2.0, False, id="integer"),
        pytest.param("overcommit-factor: 0.8", 1.2, True, id="below 1"),
        pytest.param("overcommit-factor: '1.5'", 1.2, True, id="a string is no number"),
        pytest.param("overcommit-factor: .inf", 1.2, True, id="infinite"),
    ],
)
def test_factor(arguments: str, factor: float, warned: bool) -> None:
    result = parse_conf(_conf(arguments), registry=registry())
    assert result.conf is not None
    (tier,) = result.conf.tiers
    assert tier[0].arguments == OvercommitArguments(factor)
    assert bool(result.problems) is warned
