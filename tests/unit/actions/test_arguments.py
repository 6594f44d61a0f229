"""Action arguments of Volcano load without a warning."""

from __future__ import annotations

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.testing import registry

_CONF = """
actions: {action}
tiers: [{{plugins: [{{name: gang}}]}}]
configurations: [{{name: {action}, arguments: {{predicateErrorCacheEnable: {value}}}}}]
"""


@pytest.mark.parametrize("action", ["allocate", "backfill", "preempt"])
def test_the_error_cache_may_be_switched_by_files_of_the_reference(action: str) -> None:
    for value in ("true", "false"):
        result = parse_conf(_CONF.format(action=action, value=value), registry=registry())
        assert result.conf is not None
        assert result.problems == ()
    result = parse_conf(_CONF.format(action=action, value='"false"'), registry=registry())
    assert result.conf is not None
    (problem,) = result.problems
    assert problem.message == 'expected true or false, got the string "false"; the default is used'


def test_arguments_of_an_action_that_is_not_in_use_are_checked_too() -> None:
    text = """
actions: allocate
tiers: [{plugins: [{name: gang}]}]
configurations: [{name: preempt, arguments: {minCandidateNodesAbsolut: 3}}]
"""
    result = parse_conf(text, registry=registry())
    assert result.conf is not None
    assert "preempt" not in result.conf.action_arguments
    (problem,) = result.problems
    assert (problem.path, problem.hint) == (
        "configurations[0].arguments.minCandidateNodesAbsolut",
        'did you mean "minCandidateNodesAbsolute"?',
    )
