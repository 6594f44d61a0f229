"""Arguments of the extender."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.framework.api.hooks import HOOKS
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.plugins.extender.objects import ExtenderArguments, is_url
from capcard_sched.testing import Harness, registry
from tests.unit.plugins.extender.webhook import VERBS, conf

URL = "http://extender.example:8080"
WHOLE = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: extender
    arguments:
      extender.urlPrefix: http://127.0.0.1:8888
      extender.httpTimeout: 100ms
      extender.onSessionOpenVerb: onSessionOpen
      extender.onSessionCloseVerb: onSessionClose
      extender.predicateVerb: predicate
      extender.prioritizeVerb: prioritize
      extender.preemptableVerb: preemptable
      extender.reclaimableVerb: reclaimable
      extender.queueOverusedVerb: queueOverused
      extender.jobEnqueueableVerb: jobEnqueueable
      extender.jobEnqueuedVerb: jobEnqueued
      extender.jobReadyVerb: jobReady
      extender.allocateFuncVerb: allocate
      extender.deallocateFuncVerb: deallocate
      extender.ignorable: true
      extender.managedResources: [nvidia.com/gpu, x/y]
"""


def arguments(text: str) -> tuple[ExtenderArguments, list[str]]:
    """The parsed arguments, and the problems as users see them."""
    result = parse_conf(text, registry=registry())
    assert result.conf is not None
    (found,) = [option for tier in result.conf.tiers for option in tier if option.name == "extender"]
    assert isinstance(found.arguments, ExtenderArguments)
    return found.arguments, [problem.render() for problem in result.problems]


def test_a_conf_with_every_argument_of_volcano_loads_without_warnings() -> None:
    found, problems = arguments(WHOLE)
    assert problems == []
    assert found.seconds("httpTimeout") == 0.1
    assert found.ignorable
    assert found.managed_resources == ("nvidia.com/gpu", "x/y")
    assert len(found.verbs) == 12


def test_the_defaults_are_those_of_volcano() -> None:
    found, problems = arguments('actions: "allocate"\ntiers: [{plugins: [{name: extender}]}]\n')
    assert (found.url_prefix, found.seconds("httpTimeout"), found.ignorable) == ("", 1.0, False)
    assert (found.managed_resources, found.verbs) == ((), ())
    assert len(problems) == 1
    assert "no verb is configured; the webhook is never called" in problems[0]


@pytest.mark.parametrize(
    "key, value, message, attribute, used",
    [
        ("httpTimeout", "soon", '"soon" is not a duration above 0; 1s is used', "httpTimeout", 1.0),
        ("httpTimeout", "0s", '"0s" is not a duration above 0; 1s is used', "httpTimeout", 1.0),
        ("httpTimeout", 5, "expected a string, got the number 5", "httpTimeout", 1.0),
        ("sessionTimeout", "-1s", '"-1s" is not a duration above 0; 10s is used', "sessionTimeout", 10.0),
        ("breakerPeriod", "1", '"1" is not a duration above 0; 30s is used', "breakerPeriod", 30.0),
        ("retryPeriod", "", '"" is not a duration above 0; 10s is used', "retryPeriod", 10.0),
        ("cachePeriod", "x", '"x" is not a duration; 0s is used', "cachePeriod", 0.0),
        ("ignorable", "yes", 'expected true or false, got the string "yes"', "ignorable", False),
        ("connections", 0, "expected an integer >= 1 and <= 256, got the number 0", "connections", 16),
        ("predicateNodes", 1.5, "expected an integer >= 1, got the number 1.5", "predicate_nodes", 4),
        ("prioritizeNodes", -1, "expected an integer >= 0, got the number -1", "prioritize_nodes", 0),
        ("breakerFailures", -1, "expected an integer >= 0, got the number -1", "breaker_failures", 5),
        ("predicateVerb", 7, "expected a string, got the number 7", "predicate_verb", ""),
        ("prioritiseVerb", "x", 'plugin extender has no argument "extender.prioritiseVerb"', "prioritize_verb", ""),
        ("urlPrefix", "ftp://x", '"ftp://x" is not a URL that verbs can be appended to', "url_prefix", "ftp://x"),
        ("urlPrefix", "", '"" is not a URL that verbs can be appended to', "url_prefix", ""),
    ],
)
def test_a_wrong_argument_is_reported_with_its_place_value_and_accepted_form(
    key: str, value: Any, message: str, attribute: str, used: Any
) -> None:
    given = {"urlPrefix": URL, key: value}
    found, problems = arguments(conf(given.pop("urlPrefix"), "ready", **{"httpTimeout": "1s", **given}))
    (problem,) = problems
    assert problem.startswith(f'tiers[1].plugins[0].arguments["extender.{key}"]')
    assert message in problem
    read = found.seconds(attribute) if attribute.endswith(("Timeout", "Period")) else getattr(found, attribute)
    assert read == used
    assert ("the default is used" in problem) == ("expected" in message)
    assert found.job_ready_verb == "ready"  # the rest is kept


@pytest.mark.parametrize("value", ["x/y", [1], {"x/y": 1}])
def test_managed_resources_of_another_form_reject_the_conf(value: Any) -> None:
    result = parse_conf(conf(URL, "ready", managedResources=value), registry=registry())
    assert result.conf is None
    (problem,) = result.problems
    assert problem.path == 'tiers[1].plugins[0].arguments["extender.managedResources"]'
    assert problem.accepted == "a list, each entry a string"


@pytest.mark.parametrize(
    "text, valid",
    [
        ("http://h", True),
        ("https://h:8443/a/b//", True),
        ("http://10.0.0.1:1", True),
        ("http://[::1]:80/x", True),
        ("h:80", False),
        ("http://", False),
        ("http://h:0", False),
        ("http://h:65536", False),
        ("http://h/a?b", False),
        ("http://h/a b", False),
        ("file:///etc", False),
        ("http://user:secret@h", False),
    ],
)
def test_accepted_and_rejected_urls(text: str, valid: bool) -> None:
    assert is_url(text) == valid


def test_a_url_that_is_none_fails_every_call_without_sending_it() -> None:
    for ignorable in (True, False):
        h = Harness(conf("ftp://x", "ready", ignorable=ignorable))
        h.queue("q")
        h.node("n0")
        h.group("g")
        h.pod("p")
        h.step()
        assert bool(h.binds) == ignorable


#: Verb to the hooks that are answered only if it is given.
ANSWERED = {
    "predicateVerb": {"filter", "best_node", "signature"},
    "predicateBatchVerb": {"filter", "best_node", "signature"},
    "prioritizeVerb": {"score", "signature"},
    "preemptableVerb": {"preemptable"},
    "reclaimableVerb": {"reclaimable"},
    "queueOverusedVerb": {"overused"},
    "jobEnqueueableVerb": {"job_enqueueable"},
    "jobEnqueuedVerb": {"job_enqueued"},
    "jobReadyVerb": {"job_ready"},
    "allocateFuncVerb": {"on_allocate"},
    "deallocateFuncVerb": {"on_deallocate"},
    "onSessionOpenVerb": set(),
    "onSessionCloseVerb": set(),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_only_hooks_of_configured_verbs_are_implemented(verb: str) -> None:
    h = Harness(conf(URL, VERBS[verb], others=""))
    answered = {hook.method for hook in HOOKS if h.core.snapshot().dispatch.has(hook.method)}
    assert answered - {"open", "close", "next_wakeup", "metrics", "allocation_version"} == ANSWERED[verb]


def test_every_verb_has_its_argument() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(ExtenderArguments)}
    assert {name for name in names if name.endswith("Verb")} == {f"extender.{verb}" for verb in VERBS}
