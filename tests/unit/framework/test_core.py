"""The core as a whole: when sessions run, the effects of a failing plugin, and its reports."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from capcard_sched.framework.api.hooks import DECORATED, HOOKS
from capcard_sched.framework.api.node_hooks import filter, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.session import Session
from capcard_sched.model import deltas
from capcard_sched.model.intents import Bind
from capcard_sched.model.status import TaskStatus, Vote
from tests.accounting import rebuilt, recorded
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}, {name: moody}, {name: binpack}]}]
"""


def _cluster(conf: str = _CONF, plugins: tuple[type[Plugin], ...] = ()) -> VectorHarness:
    h = VectorHarness(conf, plugins=plugins)
    h.do("node n1 cpu=8; node n2 cpu=8")
    return h


# --- sessions ---------------------------------------------------------------------------------------------------------

_PLAIN = _CONF.replace("{name: moody}, ", "")


def test_a_refused_binding_is_tried_again() -> None:
    h = _cluster(_PLAIN)
    h.do("queue q; group g; pod p0")
    h.step()
    h._deltas.clear()  # the binding never shows
    h.apply(deltas.BindFailed("default", "p0", "default-p0-uid", "conflict"))
    h.binds.clear()
    h.step()
    assert list(h.binds) == ["p0"]


def test_each_gang_is_handed_over_as_it_is_committed_and_again_in_the_result() -> None:
    handed: list[list[str]] = []
    h = VectorHarness(_PLAIN, on_commit=lambda binds: handed.append([bind.name for bind in binds]))
    h.do("node n1 cpu=8; queue q")
    for group in ("a", "b"):
        h.group(group, min_member=2)
        for member in range(2):
            h.pod(f"{group}{member}", group=group)
    h.do("group waits min=3; pod waits/w0")
    result = h.step()
    assert handed == [["a0", "a1"], ["b0", "b1"]]
    assert [each.name for each in result.intents if isinstance(each, Bind)] == ["a0", "a1", "b0", "b1"]
    assert [(each.name, each.job, each.queue) for each in result.report.placed] == [
        ("a0", "a", "q"), ("a1", "a", "q"), ("b0", "b", "q"), ("b1", "b", "q"),
    ]  # fmt: skip


def test_timings_come_from_the_timer_and_decide_nothing() -> None:
    ticks = iter(range(1000))
    timed = VectorHarness(_PLAIN, timer=lambda: float(next(ticks)))
    plain = VectorHarness(_PLAIN)
    for h in (timed, plain):
        h.do("node n1; queue q; group g; pod p0")
    reports = [h.step().report for h in (timed, plain)]
    assert timed.binds == plain.binds == {"p0": "n1"}
    assert reports[1].timings == []
    actions = [(each.name, each.seconds) for each in reports[0].timings if each.kind == "action"]
    assert actions == [("enqueue", 1.0), ("allocate", 1.0), ("backfill", 1.0)]
    assert ("gang", "OnSessionClose") in {(each.name, each.phase) for each in reports[0].timings}


def test_a_new_conf_is_used_from_the_next_step_on_and_sees_everything() -> None:
    h = _cluster('actions: "enqueue"\ntiers: [{plugins: [{name: gang}]}]')
    h.do("queue q; group g Pending min=2; pod p0; pod p1")
    h.settle()
    assert (h.phases, h.binds) == ({"g": "Inqueue"}, {})
    h.reconfigure(_PLAIN)
    h.step()
    assert set(h.binds) == {"p0", "p1"}
    h.reconfigure(_PLAIN)
    h.settle()
    assert recorded(h.state) == rebuilt(h.state)


def test_a_plugin_instance_lives_as_long_as_its_conf() -> None:
    h = _cluster(_PLAIN)
    first = h.plugin("gang")
    h.step()
    assert h.plugin("gang") is first
    h.reconfigure(_PLAIN)
    assert h.plugin("gang") is not first


# --- plugins that fail ------------------------------------------------------------------------------------------------


class _Moody(Plugin):
    """Fails in `hook` whenever it has to do with something that is called bad."""

    name: ClassVar[str] = "moody"
    hook: ClassVar[str] = ""
    emitted: ClassVar[list[str]] = []


def _is_bad(subject: Any) -> bool:
    """Whether a queue, job, task, placement or class is the bad one."""
    annotations = getattr(subject, "annotations", {})
    if annotations.get("volcano.sh/revocable-zone") == "bad":
        return True
    named = (getattr(subject, "job", None), getattr(subject, "cls", None))
    return "bad" in getattr(subject, "name", "") or any(_is_bad(one) for one in named if one is not None)


_DEFAULTS: dict[str, Any] = {
    "job_order": 0,
    "queue_order": 0,
    "task_order": 0,
    "job_ready": True,
    "job_enqueueable": Vote.ABSTAIN,
    "overused": False,
}


def _moody(hook: str) -> type[_Moody]:
    def call(self: Plugin, *arguments: Any) -> Any:
        if any(_is_bad(argument) for argument in arguments):
            raise RuntimeError("not in the mood")
        return _DEFAULTS.get(hook)

    if hook in DECORATED:
        call = {"filter": filter, "score": score}[hook](call)
    return type("Moody", (_Moody,), {"hook": hook, hook: call})


#: Hooks that the existing actions and the core call for one job, task, queue or class at a time.
_CALLED_HOOKS = [
    "job_order",
    "queue_order",
    "task_order",
    "job_valid",
    "job_ready",
    "job_enqueueable",
    "job_enqueued",
    "overused",
    "allocatable",
    "signature",
    "pre_predicate",
    "filter",
    "score",
    "on_allocate",
    "bind_annotations",
]


def _mixed(h: VectorHarness) -> None:
    """A good gang, and a bad one that goes first in a queue of its own."""
    h.do("queue bad-queue; queue q")
    for name, queue in (("bad", "bad-queue"), ("good", "q")):
        h.group(name, queue=queue, min_member=2, phase="Pending")
        for i in range(2):
            h.pod(f"{name}-{i}", group=name, annotations={"volcano.sh/revocable-zone": name})


@pytest.mark.parametrize("hook", _CALLED_HOOKS)
def test_a_plugin_that_fails_over_one_job_stops_that_job_only(hook: str) -> None:
    assert hook in {row.method for row in HOOKS}
    h = _cluster(plugins=(_moody(hook),))
    _mixed(h)
    errors = [error for _ in range(3) for error in h.step().report.errors]
    assert {name for name in h.binds if name.startswith("good")} == {"good-0", "good-1"}
    assert {(error.plugin, error.hook) for error in errors} == {("moody", hook)}
    if hook == "job_enqueued":
        assert set(h.binds) == {"good-0", "good-1", "bad-0", "bad-1"}, "it only gets the notification"
        return
    assert set(h.binds) == {"good-0", "good-1"}
    assert recorded(h.state) == rebuilt(h.state)
    assert h.task("bad-0").status is TaskStatus.PENDING


@pytest.mark.parametrize("hook", ["job_valid", "on_allocate", "filter", "job_ready"])
def test_the_failure_is_reported_on_the_object(hook: str) -> None:
    h = _cluster(plugins=(_moody(hook),))
    _mixed(h)
    h.settle(40)
    reported = [message for reason, message in h.event_messages("PodGroup", "bad") if "moody" in message]
    assert reported
    assert "not in the mood" in reported[0]


def test_a_plugin_that_fails_in_an_undo_hook_leaves_no_partial_state() -> None:
    h = _cluster(plugins=(_moody("on_deallocate"),))
    h.do("queue q; group bad min=3; pod bad/bad-0..1 annotations=volcano.sh/revocable-zone:bad")
    h.do("pod bad/bad-2 cpu=99 annotations=volcano.sh/revocable-zone:bad; group good min=1; pod good/good-0 cpu=8")
    h.do("pod good/good-1 cpu=8")
    result = h.step()
    assert set(h.binds) == {"good-0", "good-1"}
    assert {(error.plugin, error.hook) for error in result.report.errors} == {("moody", "on_deallocate")}
    assert recorded(h.state) == rebuilt(h.state)


@pytest.mark.parametrize("hook", ["on_allocate", "on_deallocate"])
def test_a_plugin_whose_sums_may_be_off_counts_anew_in_the_next_session(hook: str) -> None:
    seen: list[bool] = []

    class Counting(_moody(hook)):  # type: ignore[misc]
        def open(self, session: Session) -> None:
            seen.append(session.changed.everything)

    h = _cluster(plugins=(Counting,))
    h.do("queue q; group bad min=2")
    for i, cpu in enumerate(("1", "99")):
        notes = {"volcano.sh/revocable-zone": "bad"}
        h.pod(f"bad-{i}", group="bad", requests={"cpu": cpu}, annotations=notes)
    h.step()
    h.node("n1", cpu="8", labels={"new": "label"})
    h.step()
    assert seen == [True, True]


def test_a_plugin_that_fails_over_a_gang_that_is_not_ready_stops_that_gang_only() -> None:
    conf = _CONF.replace("{name: gang}, {name: moody}", "{name: moody}, {name: gang}")
    h = _cluster(conf, (_moody("job_pipelined"),))
    h.queue("q")
    for name, cpu in (("bad", "99"), ("good", "2")):
        h.group(name, min_member=2)
        for i, wanted in enumerate(("6", cpu)):
            h.pod(f"{name}-{i}", group=name, requests={"cpu": wanted}, annotations={"volcano.sh/revocable-zone": name})
    result = h.step()
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("moody", "job_pipelined")]
    assert set(h.binds) == {"good-0", "good-1"}
    assert recorded(h.state) == rebuilt(h.state)


@pytest.mark.parametrize("hook", ["open", "close"])
def test_a_plugin_that_fails_at_the_ends_of_a_session_is_reported(hook: str) -> None:
    def fail(self: Plugin, session: object) -> None:
        raise RuntimeError("not in the mood")

    h = _cluster(plugins=(type("Moody", (_Moody,), {hook: fail}),))
    h.do("queue q; group g; pod p0")
    result = h.step()
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("moody", hook)]
    assert set(h.binds) == (set() if hook == "open" else {"p0"}), "without its protection nothing is placed"
    if hook == "open":
        assert not h.step().idle, "what was not done is still to be done"


def test_an_action_that_fails_does_not_stop_the_next() -> None:
    class Broken(Action):
        name = "broken"

        def execute(self, session: object) -> None:
            raise RuntimeError("not today")

    h = VectorHarness(_PLAIN.replace("enqueue, allocate", "enqueue, broken, allocate"), actions=[Broken])
    h.do("node n1; queue q; group g; pod p0")
    result = h.step()
    assert [(error.hook, error.object) for error in result.report.errors] == [("broken", "action broken")]
    assert set(h.binds) == {"p0"}


# --- determinism ------------------------------------------------------------------------------------------------------


def _busy(h: VectorHarness) -> None:
    for i in range(4):
        h.queue(f"q{i}", weight=i + 1)
    for i in range(6):
        h.group(f"g{i}", queue=f"q{i % 5}", min_member=1 + i % 3)
        for j in range(4):
            h.pod(f"g{i}-w-{j}", group=f"g{i}", requests={"cpu": str(1 + i % 4)})


def test_the_same_facts_in_any_order_give_the_same_intents_byte_for_byte() -> None:
    answers = set()
    for seed in range(5):
        h = _cluster(_PLAIN)
        _busy(h)
        listed = list(h._deltas)
        order = np.random.default_rng(seed).permutation(len(listed)) if seed else range(len(listed))
        h._deltas = [listed[i] for i in order]
        answers.add(b"|".join(msgspec.json.encode(h.step().intents) for _ in range(3)))
    assert len(answers) == 1


def test_deltas_that_fail_outside_of_a_step_are_reported() -> None:
    h = _cluster(_PLAIN)
    unknown = deltas.ObjectGone("Unheard", "", "x")
    failed: list[tuple[deltas.Delta, type[Exception]]] = []
    h.core.apply_all([unknown], lambda delta, error: failed.append((delta, type(error))))
    assert failed == [(unknown, KeyError)]
