"""Arguments of the extender."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.framework.api.hooks import HOOKS
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.testing import Harness, registry
from capcard_sched_extender.objects import ExtenderArguments, is_url
from tests.unit.extender.webhook import VERBS, conf

URL = "http://extender.example:8080"


def test_the_defaults_are_those_of_volcano() -> None:
    result = parse_conf('actions: "allocate"\ntiers: [{plugins: [{name: extender}]}]\n', registry=registry())
    assert result.conf is not None
    found: Any = result.conf.tiers[0][0].arguments
    assert (found.url_prefix, found.ignorable, found.managed_resources, found.verbs) == ("", False, (), ())
    (problem,) = result.problems
    assert "no verb is configured; the webhook is never called" in problem.render()


@pytest.mark.parametrize(
    ("key", "text", "seconds"),
    [
        ("httpTimeout", "100ms", 0.1),
        ("httpTimeout", "soon", 1.0),
        ("httpTimeout", "0s", 1.0),
        ("sessionTimeout", "-1s", 10.0),
        ("breakerPeriod", "1", 30.0),
        ("retryPeriod", "", 10.0),
        ("cachePeriod", "x", 0.0),
    ],
)
def test_a_duration_that_is_none_counts_as_the_default(key: str, text: str, seconds: float) -> None:
    h = Harness(conf(URL, "ready", **{key: text}))
    assert h.plugin("extender").arguments.seconds(key) == seconds


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
