"""reclaim: evictions across queues, gang-consistently."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from rich.console import Console

from capcard_sched.framework.api.plugin import VETO, Plugin, VictimDecision
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.find import find_job
from capcard_sched.model.deltas import EvictFailed, ObjectChanged
from capcard_sched.model.intents import Evict
from capcard_sched.model.job import Task
from capcard_sched.model.objects import PodObject
from capcard_sched.model.refusal import Refusal
from capcard_sched.reports.explain import render
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.evictions import evicted, leave, terminate
from tests.vectors.plugins import PLUGINS

H200 = "NVIDIA-H200"
_PREEMPTABLE = "volcano.sh/preemptable"


def _conf(
    actions: str = "enqueue, allocate, backfill, reclaim", gang: str = "enableReclaimable: false", *more: str
) -> str:
    later = ", ".join(f"{{name: {name}}}" for name in ("predicates", "tide", "nodeorder", *more))
    return f"""
actions: "{actions}"
tiers:
- plugins: [{{name: priority}}, {{name: gang, {gang}}}, {{name: conformance, enableReclaimable: false}}]
- plugins: [{later}]
"""


class _World:
    """One H200 node of 8 unless more are added; `qi` takes, `qt` gives."""

    def __init__(self, conf: str | None = None, *, nodes: int = 1, cards: int = 8) -> None:
        self.h = Harness(_conf() if conf is None else conf, run=True, plugins=PLUGINS)
        for value in (20000, 40000, 60000, 80000):
            self.h.priority_class(f"p{value}", value)
        for i in range(nodes):
            self.h.gpu_node(f"n{i + 1}", count=cards)
        self.h.queue("qi", priority=80000, reclaimable=False)
        self.h.queue("qj", priority=80000, reclaimable=True)
        self.h.queue("qt", priority=20000)

    def queue(self, name: str, **more: Any) -> _World:
        """A queue as it is given here."""
        self.h.queue(name, **more)
        return self

    def run(
        self, name: str, cards: int, *nodes: str, queue: str = "qt", priority: int = 20000, least: int = 1, **more: Any
    ) -> _World:
        """A job with one running pod of so many cards per node."""
        group = more.pop("group", {})
        self.h.group(name, queue=queue, min_member=least, phase="Running", priority_class=f"p{priority}", **group)
        for i, node in enumerate(nodes):
            self.h.pod(f"{name}-w-{i}", group=name, cards=cards, node=node, **more)
        return self

    def want(
        self, cards: int, *, name: str = "r", pods: int = 1, least: int = 1, queue: str = "qi", **more: Any
    ) -> _World:
        """A job whose pods wait."""
        self.h.group(name, queue=queue, min_member=least, priority_class="p80000")
        for i in range(pods):
            self.h.pod(f"{name}-w-{i}", group=name, cards=cards, card=H200, **more)
        return self

    def failed(self, pod: str = "r-w-0") -> str:
        """The last `ReclaimFailed` text of a pod."""
        found = [text for reason, text in self.h.event_messages("Pod", pod) if reason == "ReclaimFailed"]
        return found[-1] if found else ""


def _one(cards: int = 4, **more: Any) -> Callable[[_World], object]:
    return lambda w: w.run("a", cards, "n1", **more)


_VECTORS: list[tuple[str, Callable[[_World], object], int, list[str], str]] = [
    ("1 the newest goes", lambda w: w.run("a", 4, "n1").run("b", 4, "n1"), 4, ["b-w-0"], ""),
    ("2 the lowest priority goes", lambda w: w.run("a", 4, "n1").run("b", 4, "n1", priority=40000), 4, ["a-w-0"], ""),
    (
        "3 priority orders and does not filter",
        lambda w: w.run("a", 4, "n1", priority=80000).run("i", 4, "n1", queue="qj"),
        4, ["a-w-0"], "",
    ),
    ("5 no victim of its kind", lambda w: w.run("i", 4, "n1", queue="qj").run("j", 4, "n1", queue="qj"), 4, [],
     "0/1 nodes can be reclaimed: 2 service-type"),
    ("12 the pod is not preemptable", _one(8, annotations={_PREEMPTABLE: "false"}), 4, [],
     "0/1 nodes can be reclaimed: 1 not-preemptable"),
    ("13 an unreadable value is not preemptable", _one(8, annotations={_PREEMPTABLE: "yes"}), 4, [],
     "0/1 nodes can be reclaimed: 1 not-preemptable"),
    ("14 its PodGroup is not preemptable", _one(8, group={"annotations": {_PREEMPTABLE: "false"}}), 4, [],
     "0/1 nodes can be reclaimed: 1 not-preemptable"),
    ("14 the pod wins over its PodGroup",
     _one(8, group={"annotations": {_PREEMPTABLE: "false"}}, annotations={_PREEMPTABLE: "true"}),
     4, ["a-w-0"], ""),
    ("15 its queue is not reclaimable", lambda w: w.queue("qt", reclaimable=False).run("a", 8, "n1"), 4, [],
     "0/1 nodes can be reclaimed: 1 queue-not-reclaimable"),
    ("17 a closed queue gives", lambda w: w.queue("qt", state="Closed").run("a", 8, "n1"), 4, ["a-w-0"], ""),
    ("19 the same queue", _one(8, queue="qi"), 4, [], "0/1 nodes can be reclaimed: 1 same-queue"),
    ("32 free cards come first",
     lambda w: w.run("a", 2, "n1").run("b", 2, "n1").run("i", 2, "n1", queue="qj"), 4, ["b-w-0"], ""),
    ("34 unneeded victims are spared",
     lambda w: w.run("a", 2, "n1").run("b", 4, "n1", priority=40000).run("i", 2, "n1", queue="qj"),
     4, ["b-w-0"], ""),
    ("34 two that a third makes unnecessary are spared",
     lambda w: w.run("a", 1, "n1").run("b", 1, "n1").run("c", 4, "n1", priority=40000).run("i", 2, "n1", queue="qj"),
     4, ["c-w-0"], ""),
    ("34 of two one is spared that a gang makes unnecessary",
     lambda w: w.run("a", 2, "n1").run("e", 2, *["n1"] * 3, least=3, priority=40000),
     6, ["e-w-0", "e-w-1", "e-w-2"], ""),
    ("36 spare members go first, the last ones", lambda w: w.run("e", 2, *["n1"] * 4, least=2), 4,
     ["e-w-2", "e-w-3"], ""),
    ("37 a core goes whole", lambda w: w.run("e", 2, *["n1"] * 4, least=2), 6,
     ["e-w-0", "e-w-1", "e-w-2", "e-w-3"], ""),
    ("38 a job that is one unit",
     lambda w: w.run("e", 2, *["n1"] * 4, least=2, group={"annotations": {"volcano.sh/evict-scope": "job"}}), 2,
     ["e-w-0", "e-w-1", "e-w-2", "e-w-3"], ""),
    ("52 critical pods whatever the switches", _one(8, priorityClassName="system-node-critical"), 4, [],
     "0/1 nodes can be reclaimed: 1 system-critical"),
    ("not enough", lambda w: w.run("a", 2, "n1").run("i", 6, "n1", queue="qj"), 4, [],
     "0/1 nodes can be reclaimed: 1 not enough, 1 service-type"),
]  # fmt: skip


@pytest.mark.parametrize(
    "setting, cards, victims, emitted", [row[1:] for row in _VECTORS], ids=[row[0] for row in _VECTORS]
)
def test_victims_on_one_node(setting: Callable[[_World], object], cards: int, victims: list[str], emitted: str) -> None:
    w = _World()
    setting(w)
    w.want(cards)
    result = w.h.step()
    assert not result.report.errors
    assert evicted(result) == victims
    if emitted:
        assert w.failed() == emitted
    assert recorded(w.h.state) == rebuilt(w.h.state)


@pytest.mark.parametrize("overrides", ["annotations", "labels"])
def test_a_gang_with_a_protected_member_is_not_broken(overrides: str) -> None:
    w = _World()
    w.run("g", 4, "n1", least=2)
    w.h.pod("g-w-1", group="g", cards=4, node="n1", **{overrides: {_PREEMPTABLE: "false"}})  # type: ignore[arg-type]
    w.want(4)
    assert evicted(w.h.step()) == []
    assert w.failed() == "0/1 nodes can be reclaimed: 1 gang, 1 not-preemptable"


def test_with_gang_voting_spare_members_go_one_by_one() -> None:
    w = _World(_conf(gang="enableReclaimable: true"))
    w.run("g", 4, "n1", "n1", least=1).want(4)
    assert evicted(w.h.step()) == ["g-w-1"]


# --- W-numbers --------------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_undone_is_no_reason_for_another_session() -> None:
    w = _World(nodes=2)
    w.h.queue("qk", reclaimable=False)
    w.run("a", 8, "n1").run("b", 8, "n2", queue="qk").want(8, pods=2, least=2)
    w.h.settle(3)


def test_w09_free_capacity_is_used_first_and_no_other_node_is_affected() -> None:
    """The reference's reclaim shortfall: 2 free, one pod of 2, a request of 4."""
    w = _World(nodes=2, cards=4)
    w.run("a", 2, "n1").run("b", 4, "n2", priority=40000).want(4)
    assert evicted(w.h.step()) == ["a-w-0"]


def test_a_gang_reclaims_its_capacity_in_one_session() -> None:
    w = _World(nodes=2)
    w.run("a", 8, "n1").run("b", 8, "n2").want(4, pods=4, least=4)
    result = w.h.step()
    assert evicted(result) == ["a-w-0", "b-w-0"]
    assert len(w.h.last_session.carry_over.nominations) == 4


def test_jobs_of_one_session_evict_pods_of_one_job() -> None:
    w = _World(nodes=2)
    w.run("a", 8, "n1", "n2").want(8).want(4, name="s")
    assert evicted(w.h.step()) == ["a-w-0", "a-w-1"]


def test_w10_a_veto_in_a_lower_tier_is_final() -> None:
    class Permissive(Plugin):
        name = "permissive"

        def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
            return list(candidates)

    class Budget(Plugin):
        name = "budget"
        answer: ClassVar[VictimDecision | None] = None

        def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision | None:
            return self.answer

    conf = """
actions: "allocate, reclaim"
tiers: [{plugins: [{name: gang, enableReclaimable: false}, {name: permissive}]}, {plugins: [{name: budget}]}]
"""
    for answer, victims in [
        (None, ["b-w-0"]),
        (VictimDecision({"default-b-w-0-uid": ""}), ["a-w-0"]),
        (VictimDecision({}, ()), ["b-w-0"]),
        (VETO, []),
    ]:
        Budget.answer = answer
        h = Harness(conf, run=True, plugins=[Permissive, Budget])
        h.node("n1", cpu="4")
        h.queue("q")
        h.queue("p", reclaimable=False)
        for name in ("a", "b"):
            h.group(name, queue="q", min_member=1, phase="Running")
            h.pod(f"{name}-w-0", group=name, node="n1", requests={"cpu": "2"})
        h.group("r", queue="p")
        h.pod("r-w-0", group="r", requests={"cpu": "2"})
        assert evicted(h.step()) == victims


@pytest.mark.parametrize("cause", ["never", "quota", "invalid"])
def test_w13_other_jobs_of_the_queue_are_tried(cause: str) -> None:
    w = _World(_conf("allocate, reclaim", "enableReclaimable: false", "cards"))
    w.run("a", 4, "n1").run("b", 4, "n1")
    if cause == "never":
        w.want(4, name="first", preemptionPolicy="Never")
    elif cause == "quota":
        w.want(12, name="first")
    else:
        w.want(4, name="first", pods=1, least=3)
    w.want(4, name="second")
    result = w.h.step()
    assert evicted(result) == ["b-w-0"]
    assert {intent.by for intent in result.intents if isinstance(intent, Evict)} == {"default/second-w-0"}


def test_quota_is_checked_before_any_eviction() -> None:
    w = _World(_conf("allocate, reclaim", "enableReclaimable: false", "cards"))
    w.run("a", 8, "n1").run("x", 4, "elsewhere", queue="qi").want(4).want(4, name="s")
    result = w.h.step()
    assert evicted(result) == ["a-w-0"]
    assert ("Full", "queue qi is full") in w.h.event_messages("Pod", "s-w-0")


def test_w21_the_same_cluster_gives_the_same_victims_in_any_order() -> None:
    answers = []
    for names in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        w = _World(nodes=2)
        for name in "abcd":
            w.h._meta(f"{name}-w-0", "default")
            w.h._meta(name, "default")
        for name in names:
            w.run(name, 4, "n1" if name in "ac" else "n2")
        w.want(4, pods=2, least=2)
        answers.append(evicted(w.h.step()))
    assert answers[0] == answers[1] == ["c-w-0", "d-w-0"]


# --- reservations -----------------------------------------------------------------------------------------------------


def _taken() -> _World:
    """b was evicted for r and is back, pending, in front of r by age of its pod group."""
    w = _World()
    w.run("a", 4, "n1").run("b", 4, "n1").want(4)
    terminate(w.h, w.h.step())
    return w


def test_reclaimed_capacity_stays_nominated_while_victims_terminate() -> None:
    w = _taken()
    result = w.h.step()
    assert evicted(result) == []
    assert w.h.pod_message("r-w-0").startswith("Pod default/r-w-0 can possibly be assigned to n1, once resource is")


def test_w34_the_victim_does_not_reclaim_the_capacity_back() -> None:
    w = _taken()
    leave(w.h, "b-w-0")
    w.h.group("b", queue="qt", min_member=1, priority_class="p80000")
    w.h.pod("b2-w-0", group="b", cards=4, card=H200)
    w.h.step()
    assert w.h.binds == {"r-w-0": "n1"}
    assert not w.h.last_session.carry_over.nominations, "a nomination ends with the binding"


def test_a_reservation_ends_with_its_pod() -> None:
    w = _taken()
    leave(w.h, "b-w-0", "r-w-0")
    w.h.pod("b2-w-0", group="b", cards=4, card=H200)
    w.h.step()
    assert w.h.binds == {"b2-w-0": "n1"}
    assert not w.h.last_session.carry_over.nominations


def test_a_reservation_expires_and_the_core_wakes_up_for_it() -> None:
    w = _World()
    w.run("a", 8, "n1").want(4)
    result = w.h.step()
    terminate(w.h, result)
    taken = w.h.now
    assert result.next_wakeup == taken + 90
    w.h.step()
    assert w.h.step(taken + 89).idle
    assert not w.h.step(taken + 90).idle
    assert ("ReclaimExpired", "reservation on node n1 expired after 90s") in w.h.event_messages("Pod", "r-w-0")


def test_the_time_of_a_reservation_is_an_argument() -> None:
    conf = _conf() + "configurations: [{name: reclaim, arguments: {reservationSeconds: 5}}]\n"
    w = _World(conf)
    w.run("a", 8, "n1").want(4)
    assert w.h.step().next_wakeup == w.h.now + 35


@pytest.mark.parametrize(("graces", "waits"), [((0, 0), 60), ((5, 120), 180), ((None, 10), 90), ((-7, 0), 61)], ids=str)
def test_a_reservation_gives_the_victims_the_time_that_they_are_given(
    graces: tuple[int | None, ...], waits: int
) -> None:
    w = _World()
    for name, grace in zip("ab", graces, strict=True):
        overrides: dict[str, Any] = {} if grace is None else {"terminationGracePeriodSeconds": grace}
        w.run(name, 4, "n1", **overrides)
    w.want(8)
    result = w.h.step()
    assert evicted(result) == ["a-w-0", "b-w-0"]
    assert result.next_wakeup == w.h.now + waits


def test_after_a_restart_a_nominated_pod_waits_until_its_victims_terminate() -> None:
    w = _World()
    w.run("a", 8, "n1", terminationGracePeriodSeconds=600)
    w.h.terminate("a-w-0")
    w.want(4)
    pod = w.h._pods["default/r-w-0"]
    pod["status"]["nominatedNodeName"] = "n1"
    w.h._deltas.append(ObjectChanged(msgspec.convert(pod, PodObject)))
    assert w.h.step().next_wakeup == w.h.now + 630


def test_w42_a_refused_eviction_is_not_tried_again_at_once() -> None:
    w = _World()
    w.run("a", 4, "n1").run("b", 4, "n1").want(4)
    assert evicted(w.h.step()) == ["b-w-0"]
    w.h.apply(EvictFailed("default", "b-w-0", "default-b-w-0-uid", "disruption budget"))
    assert evicted(w.h.step()) == ["a-w-0"]
    w.h.apply(EvictFailed("default", "a-w-0", "default-a-w-0-uid", "disruption budget"))
    assert evicted(w.h.step()) == []
    assert w.failed() == "0/1 nodes can be reclaimed: 2 eviction-refused"


def test_nominations_survive_a_change_of_the_conf() -> None:
    w = _taken()
    w.h.reconfigure(_conf())
    leave(w.h, "b-w-0")
    w.h.group("b", queue="qt", min_member=1, priority_class="p80000")
    w.h.pod("b2-w-0", group="b", cards=4, card=H200)
    w.h.step()
    assert w.h.binds == {"r-w-0": "n1"}


# --- cycles -----------------------------------------------------------------------------------------------------------


class _Everyone(Plugin):
    """Every job may evict every other, except as the class attributes restrict."""

    name = "everyone"

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        return list(candidates)

    preemptable = reclaimable


def _queue_q(hook: str, answer: object) -> dict[str, object]:
    """A hook with an answer for the victim's queue `q` alone, by job or queue."""
    return {hook: lambda _, subject, *more: answer if "q" in (subject.name, getattr(subject, "queue", "")) else None}


_OVER = Refusal("preemptive", "everyone", "Unschedulable", "over")
_TAKEN_BACK = [
    pytest.param("reclaim", {}, {}, [], id="across queues"),
    pytest.param("reclaim", {"back": False}, {}, ["a-w-0"], id="the queue of the preemptor is not reclaimable"),
    pytest.param("reclaim", {_PREEMPTABLE: "false"}, {}, ["a-w-0"], id="the preemptor is not preemptable"),
    pytest.param("reclaim", {}, _queue_q("overused", True), ["a-w-0"], id="the victim's queue is overused"),
    pytest.param("reclaim", {}, _queue_q("may_reclaim", False), ["a-w-0"], id="the victim's job may not reclaim"),
    pytest.param("reclaim", {}, _queue_q("preemptive", _OVER), ["a-w-0"], id="the victim's queue is over its quota"),
    pytest.param("preempt", {}, {}, [], id="within a queue"),
    pytest.param(
        "preempt", {_PREEMPTABLE: "false"}, {}, ["a-w-0"], id="within a queue the preemptor is not preemptable"
    ),
    pytest.param("preempt", {"least": 0}, {}, ["a-w-0"], id="within a queue the victim's job keeps its minimum"),
]


@pytest.mark.parametrize("action, settings, hooks, victims", _TAKEN_BACK)
def test_w34_a_pod_that_could_reclaim_the_capacity_back_is_not_evicted(
    action: str, settings: dict[str, Any], hooks: dict[str, object], victims: list[str]
) -> None:
    conf = f"""
actions: "allocate, {action}"
tiers:
- plugins: [{{name: gang, enableReclaimable: false, enablePreemptable: false}}]
- plugins: [{{name: everyone}}]
"""
    h = Harness(conf, run=True, plugins=[type("Everyone", (_Everyone,), hooks)])
    h.node("n1", cpu="2")
    h.queue("q")
    h.queue("p", reclaimable=settings.get("back", True))
    h.group("a", queue="q", phase="Running", min_member=settings.get("least", 1))
    h.pod("a-w-0", group="a", node="n1", requests={"cpu": "2"})
    h.group("r", queue="q" if action == "preempt" else "p")
    annotations = {_PREEMPTABLE: settings[_PREEMPTABLE]} if _PREEMPTABLE in settings else {}
    h.pod("r-w-0", group="r", requests={"cpu": "2"}, annotations=annotations)
    assert evicted(h.step()) == victims
    if action == "reclaim":
        emitted = [text for reason, text in h.event_messages("Pod", "r-w-0") if reason == "ReclaimFailed"]
        assert emitted == ([] if victims else ["0/1 nodes can be reclaimed: 1 would-take-back"])
    assert recorded(h.state) == rebuilt(h.state)


# --- pods that cannot be placed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue, victims", [("qt", ["holder-w-0"]), ("qj", [])], ids=["reclaimable", "of its kind"])
def test_filters_run_again_without_the_victims(queue: str, victims: list[str]) -> None:
    """The port is the conflict: the pod that holds it is evicted if it may be, though there are cards enough."""
    w = _World()
    port: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {}, "ports": [{"containerPort": 80, "hostPort": 80}]}]
    }
    w.run("plain", 1, "n1")
    w.h.group("holder", queue=queue, min_member=1, phase="Running")
    w.h.pod("holder-w-0", group="holder", node="n1", **port)
    w.h.group("r", queue="qi")
    w.h.pod("r-w-0", group="r", **port)
    assert evicted(w.h.step()) == victims
    assert recorded(w.h.state) == rebuilt(w.h.state)


@pytest.mark.parametrize("order", ["enqueue, allocate, reclaim", "enqueue, reclaim, allocate"])
def test_the_order_of_actions_does_not_change_the_victims(order: str) -> None:
    w = _World(_conf(order), nodes=2)
    w.run("a", 8, "n1").run("b", 4, "n2").want(4, pods=2, least=2)
    result = w.h.step()
    assert evicted(result) == ["b-w-0"]


def test_reclaim_leaves_pods_that_fit_to_allocate() -> None:
    w = _World(_conf("enqueue, reclaim, allocate"), nodes=2)
    w.run("a", 8, "n1").want(4)
    result = w.h.step()
    assert evicted(result) == []
    assert w.h.binds == {"r-w-0": "n2"}


def test_a_pod_that_quota_rejects_gets_no_message_about_missing_victims() -> None:
    """The quota refuses the second pod before any node is filtered."""
    w = _World(_conf("enqueue, allocate, reclaim", "enableReclaimable: false", "cards"), nodes=2)
    w.run("a", 8, "n1").run("b", 8, "n2").want(8, pods=2, least=2)
    assert evicted(w.h.step()) == []
    emitted = [reason for name in ("r-w-0", "r-w-1") for reason, _ in w.h.event_messages("Pod", name)]
    assert "Full" in emitted
    assert "ReclaimFailed" not in emitted


# --- messages ---------------------------------------------------------------------------------------------------------


def test_victims_their_group_and_the_reclaimer_get_events() -> None:
    w = _World(nodes=2)
    w.run("T1", 4, "n1", "n2", least=2).run("i", 4, "n1", queue="qj").run("T2", 4, "n2", priority=40000)
    w.want(2, name="chat", pods=2)
    result = w.h.step()
    intents = {intent.name: intent for intent in result.intents if isinstance(intent, Evict)}
    assert {name: intent.message for name, intent in intents.items()} == dict.fromkeys(
        ["T1-w-0", "T1-w-1"], f"reclaim: {H200}: 2 on node n1 for default/chat-w-0 of queue qi"
    )
    assert ("Evict", "reclaim: 2 pods evicted for default/chat-w-0 of queue qi") in w.h.event_messages("PodGroup", "T1")
    assert (
        "Reclaimed",
        f"2 pods of 1 jobs evicted on node n1: default/T1; waiting for {H200}: 2",
    ) in w.h.event_messages("Pod", "chat-w-0")
    assert [reason for reason, _ in w.h.event_messages("Pod", "chat-w-1")] == ["FailedScheduling"]
    emitted = [text for reason, text in w.h.event_messages("PodGroup", "chat") if reason == "Reclaimed"]
    assert emitted == [f"2 pods of 1 jobs evicted on node n1: default/T1; waiting for {H200}: 2"]
    promises = w.h.last_session.carry_over.nominations
    assert {nomination.node for nomination in promises.values()} == {"n1"}


def test_explain_names_protection_reasons_and_the_reclaimer() -> None:
    def text(name: str) -> str:
        job = find_job(w.h.core.snapshot(), "default", name)
        assert job is not None
        console = Console(width=200, file=io.StringIO())
        console.print(render(diagnose_job(w.h.core.snapshot(), job)))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    w = _World()
    w.run("a", 4, "n1").run("i", 4, "n1", queue="qj").want(6)
    w.h.step()
    emitted = text("r")
    assert "reclaim: no preemption victims for r-w-0 on 1 node" in emitted
    assert "service-type" in emitted
    assert "on 1 node evicting every possible victim frees too little" in emitted
    w = _World()
    w.run("a", 8, "n1").want(4)
    w.h.step()
    assert [(pod.pod, pod.by, pod.action) for pod in diagnose_job(w.h.core.snapshot(), w.h.job("a")).evicted] == [
        ("a-w-0", "default/r-w-0", "reclaim")
    ]
    assert "default/r-w-0" in text("a")


def test_a_failing_plugin_costs_only_its_job() -> None:
    w = _World(_conf("allocate, reclaim", "enableReclaimable: false", "grumpy"))
    w.run("a", 4, "n1").run("b", 4, "n1").want(4).want(4, name="s")
    result = w.h.step()
    assert evicted(result) == ["b-w-0"]
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("grumpy", "preemptive")]
    assert recorded(w.h.state) == rebuilt(w.h.state)
