"""Arguments of the usage plugin, and loads as text."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model.usage import NodeUsage, UsageFormError, parse_usage
from capcard_sched.plugins.usage.arguments import Estimator, Thresholds, UsageArguments
from capcard_sched.testing import registry

_CONF = "actions: allocate\ntiers: [{{plugins: [{{name: usage, arguments: {{{}}}}}]}}]\n"


def _parsed(arguments: str) -> tuple[UsageArguments, list[str]]:
    result = parse_conf(_CONF.format(arguments), registry=registry())
    assert result.conf is not None, result.problems
    option = result.conf.option("usage")
    assert option is not None
    assert isinstance(option.arguments, UsageArguments)
    return option.arguments, [problem.render() for problem in result.problems]


def test_every_argument_is_read() -> None:
    text = (
        "usage.weight: 2, cpu.weight: 3, memory.weight: 4, thresholds: {cpu: 70, mem: 60}, estimator: {enable: false, "
        'request_ratio: 1, burst_ratio: 0.5, risk_threshold: 0.25, risk_factor: 2, be_cpu: "1", be_mem: 1Gi}'
    )
    found, problems = _parsed(text)
    assert problems == []
    assert msgspec.to_builtins(found) == {
        "usage.weight": 2,
        "cpu.weight": 3,
        "memory.weight": 4,
        "thresholds": {"cpu": 70, "mem": 60},
        "estimator": {
            "enable": False,
            "request_ratio": 1.0,
            "burst_ratio": 0.5,
            "risk_threshold": 0.25,
            "risk_factor": 2.0,
            "be_cpu": "1",
            "be_mem": "1Gi",
        },
    }


_PLACE = "tiers[0].plugins[0].arguments"


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ('thresholds: {cpu: "80%"}', ".thresholds.cpu", ['the string "80%"', "an integer >= 0 and <= 100"]),
        ("thresholds: {mem: high}", ".thresholds.mem", ['the string "high"', "an integer >= 0 and <= 100"]),
        ("thresholds: {cpu: 101}", ".thresholds.cpu", ["the number 101", "an integer >= 0 and <= 100"]),
        ("thresholds: {mem: -1}", ".thresholds.mem", ["the number -1"]),
        ("thresholds: {memory: 70}", ".thresholds.memory", ["thresholds of plugin usage", "accepted: cpu, mem"]),
        ("thresholds: 80", ".thresholds", ["expected a map, got the number 80"]),
        ("estimator: [1]", ".estimator", ["expected a map, got a list"]),
        ("estimator: {risk_threshold: 60}", ".estimator.risk_threshold", ["the number 60", "<= 1"]),
        ("estimator: {risk_factr: 2}", ".estimator.risk_factr", ["no argument", 'did you mean "risk_factor"?']),
        ("estimator: {be_cpu: much}", ".estimator.be_cpu", ["250m is used", "a quantity such as 250m"]),
        ('estimator: {be_mem: "-1Gi"}', ".estimator.be_mem", ["200Mi is used"]),
        ("cpu.weight: -1", '["cpu.weight"]', ["the number -1", "an integer >= 0"]),
        ("usage.weight: five", '["usage.weight"]', ['the string "five"']),
        ("period: 10m", ".period", ["no argument"]),
    ],
)  # fmt: skip
def test_better_an_invalid_argument_is_reported_with_its_path_and_keeps_its_default(
    arguments: str, path: str, words: list[str]
) -> None:
    found, problems = _parsed(arguments)
    assert found == UsageArguments()
    assert len(problems) == 1
    assert problems[0].startswith(_PLACE + path), problems
    for word in words:
        assert word in problems[0]


def test_a_wrong_threshold_leaves_the_other_as_it_is() -> None:
    assert _parsed("thresholds: {cpu: no, mem: 55}")[0].thresholds == Thresholds(80, 55)


def test_thresholds_may_be_written_under_names_of_their_own() -> None:
    assert _parsed("thresholds.cpu: 50, thresholds.mem: 60") == (UsageArguments(thresholds=Thresholds(50, 60)), [])
    assert _parsed("thresholds.cpu: 50, thresholds: {cpu: 70, mem: 60}")[0].thresholds == Thresholds(50, 60)
    found, problems = _parsed('thresholds.mem: "60"')
    assert found == UsageArguments()
    assert len(problems) == 1
    assert problems[0].startswith(_PLACE + '["thresholds.mem"]')


def test_null_sections_are_absent_ones() -> None:
    assert _parsed("thresholds: null, estimator: null") == (UsageArguments(estimator=Estimator()), [])


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
