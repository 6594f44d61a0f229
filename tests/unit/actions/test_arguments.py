"""Action arguments of Volcano load without a warning."""

from __future__ import annotations

import pytest

from capcard_sched.actions.preempt import PreemptArguments
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


_PREEMPT = """
actions: preempt
tiers: [{plugins: [{name: gang}]}]
configurations: [{name: preempt, arguments: """


@pytest.mark.parametrize(
    "written, problems",
    [
        ("{minCandidateNodesPercentage: 10, topologyAwarePreemptWorkerNum: 16, predicateErrorCacheEnable: false}", 0),
        ("{minCandidateNodesPercentage: 101}", 1),
        ("{minCandidateNodesAbsolute: 0}", 1),
        ("{enableTopologyAwarePreemption: true, minCandidateNodesAbsolute: 200}", 1),
        ("{minCandidateNodes: 3}", 1),
    ],
)
def test_arguments_of_preempt_are_checked(written: str, problems: int) -> None:
    result = parse_conf(_PREEMPT + written + "}]", registry=registry())
    assert result.conf is not None
    found = [problem for problem in result.problems if "configurations" in str(problem.path)]
    assert len(found) == problems, found
    assert isinstance(result.conf.action_arguments["preempt"], PreemptArguments)
