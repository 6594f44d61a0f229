"""Combination of the results of several plugins over tiers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from capcard_sched.framework.api.dispatch import Dispatch, HookFailed
from capcard_sched.framework.api.plugin import VETO, Plugin, VictimDecision
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote

_NO = Refusal("job_enqueueable", "b", "Full", "the queue is full")
_BOOM = object()
_SILENT = object()

P, A, R = Vote.PERMIT, Vote.ABSTAIN, Vote.REJECT


def _vetoing(uid: str, *, votes: str) -> Any:
    """A veto that names victims too, here by uid."""
    return VictimDecision({uid: "x"}, votes)  # type: ignore[arg-type]


def _agreed(votes: str) -> VictimDecision:
    """A vote that requires unanimity; `votes` are uids, one letter each."""
    return VictimDecision({}, votes, unanimous=True)  # type: ignore[arg-type]


def _dispatch(method: str, *tiers: list[Any]) -> Dispatch:
    """Plugins called a, b, c ... over all tiers, each giving one answer; _SILENT ones do not have the method."""
    names = iter("abcdefgh")

    def plugin(answer: Any) -> tuple[Plugin, dict[str, bool]]:
        def call(self: Plugin, *arguments: object) -> Any:
            if answer is _BOOM:
                raise RuntimeError("boom")
            return answer

        body: dict[str, Any] = {"name": next(names)}
        if answer is not _SILENT:
            body[method] = call
        return type("Stand", (Plugin,), body)(), {}

    return Dispatch([[plugin(answer) for answer in tier] for tier in tiers])


@pytest.mark.parametrize(
    "tiers, verdict",
    [
        pytest.param([[P, A], [R]], (True, None), id="a permit ends at its tier"),
        pytest.param([[A], [R]], (False, None), id="abstaining passes to the next tier"),
        pytest.param([[P, R]], (False, None), id="a reject in the same tier is final"),
        pytest.param([[A], [A]], (True, None), id="all abstain"),
        pytest.param([], (True, None), id="none"),
        pytest.param([[_SILENT], [P]], (True, None), id="a tier without the hook is none"),
        pytest.param([[A, _NO]], (False, _NO), id="a refusal rejects and names the reason"),
        pytest.param([[P], [_NO]], (True, None), id="a refusal below a permit has no effect"),
        pytest.param([[P, _BOOM, R]], HookFailed, id="a failure is no vote"),
        pytest.param([[P], [_BOOM]], (True, None), id="a plugin that is not called cannot fail"),
    ],
)
def test_votes(tiers: list[list[Any]], verdict: Any) -> None:
    dispatch = _dispatch("job_enqueueable", *tiers)
    if verdict is HookFailed:
        with pytest.raises(HookFailed, match="RuntimeError: boom"):
            dispatch.votes("job_enqueueable", None)
    else:
        assert dispatch.votes("job_enqueueable", None) == verdict


@pytest.mark.parametrize(
    "tiers, victims",
    [
        pytest.param([[{1, 2}, {2, 3}]], [2], id="intersection inside a tier"),
        pytest.param([[set()], [{5}]], [5], id="an empty answer in tier 1 is no veto"),
        pytest.param([[{1}, {2}, {2, 3}]], [], id="an empty intersection is not filled up by the next plugin"),
        pytest.param([[{1}, {2}, {2, 3}], [{4}]], [4], id="it passes to the next tier"),
        pytest.param([[None, {1}], [{9}]], [1], id="abstentions are skipped, the first tier that decides is final"),
        pytest.param([[None], [None]], [], id="all abstain"),
        pytest.param([], [], id="no plugin registered"),
        pytest.param([[{3, 1, 2}, {1, 3}]], [1, 3], id="candidates keep their order"),
    ],
)
@pytest.mark.parametrize("method", ["preemptable", "reclaimable"])
def test_victims(method: str, tiers: list[list[Any]], victims: list[int]) -> None:
    tasks = {i: SimpleNamespace(uid=i) for i in range(10)}
    answers = [[None if one is None else [tasks[i] for i in sorted(one)] for one in tier] for tier in tiers]
    found = _dispatch(method, *answers).victims(method, None, list(tasks.values()))
    assert [victim.uid for victim in found] == victims


@pytest.mark.parametrize(
    "tiers, victims, kept",
    [
        pytest.param(
            [[{1, 2}], [VictimDecision({"1": ""})]], ["2"], {"1": "b"}, id="a veto below the tier that decides"
        ),
        pytest.param(
            [[{1, 2}, VictimDecision({"2": "budget"})]], ["1"], {"2": "budget"}, id="a veto beside it, with its cause"
        ),
        pytest.param([[{1, 2}], [VETO]], [], {"1": "b", "2": "b"}, id="a veto on all victims"),
        pytest.param([[{1}], [{2}]], ["1"], {"2": "a"}, id="a plain vote below has no effect"),
        pytest.param([[_vetoing("1", votes="2")]], ["2"], {"1": "x"}, id="a veto that votes as well"),
        pytest.param(
            [[None], [VictimDecision({"1": "x"}), {1, 2}]], ["2"], {"1": "x"}, id="a veto without a vote abstains"
        ),
        pytest.param(
            [[{1}], [VictimDecision({"1": "x"}), {1, 2}]], ["2"], {"1": "x"}, id="what is protected decides no tier"
        ),
        pytest.param([[set()], [_agreed("12")]], [], {"1": "a", "2": "a"}, id="unanimity: no vote above, no vote"),
        pytest.param([[{1}], [_agreed("12")]], ["1"], {"2": "a"}, id="unanimity: those of every tier"),
        pytest.param([[_agreed("12")], [{2}]], ["2"], {"1": "b"}, id="unanimity: a tier below counts"),
        pytest.param(
            [[_agreed("12"), None], [None]], ["1", "2"], {}, id="unanimity: a plugin that abstains is not called"
        ),
        pytest.param(
            [[_agreed("12")], [VictimDecision({"1": "x"})]],
            ["2"],
            {"1": "x"},
            id="unanimity: a veto holds all the same",
        ),
    ],
)
def test_w10_a_veto_protects_in_every_tier(tiers: list[list[Any]], victims: list[str], kept: dict[str, str]) -> None:
    tasks = {uid: SimpleNamespace(uid=uid) for uid in "12"}

    def answer(one: Any) -> Any:
        if isinstance(one, VictimDecision):
            return one if one.victims is None else one._replace(victims=[tasks[uid] for uid in one.victims])  # type: ignore[index,misc]
        return None if one is None else [tasks[str(uid)] for uid in sorted(one)]

    judgement = _dispatch("reclaimable", *[[answer(one) for one in tier] for tier in tiers]).judge(
        "reclaimable", None, list(tasks.values())
    )
    assert [victim.uid for victim in judgement.victims] == victims
    assert judgement.kept == kept


@pytest.mark.parametrize(
    "tiers, named",
    [
        pytest.param([[{1, 2}, {2, 3}], [{4}]], [1, 2, 3], id="the union inside a tier, each once"),
        pytest.param([[set(), None], [{4}]], [4], id="the first tier with an answer"),
        pytest.param([], [], id="none"),
    ],
)
def test_victim_tasks_are_the_union_of_the_first_tier_with_any(tiers: list[list[Any]], named: list[int]) -> None:
    tasks = {i: SimpleNamespace(uid=i) for i in range(10)}
    answers = [[None if one is None else [tasks[i] for i in sorted(one)] for one in tier] for tier in tiers]
    found = _dispatch("victim_tasks", *answers).union_first_tier("victim_tasks", list(tasks.values()))
    assert [victim.uid for victim in found] == named


def test_first_is_the_first_result_that_is_not_none() -> None:
    assert _dispatch("may_reclaim", [None, False], [True]).first("may_reclaim", None) is False
    assert _dispatch("may_reclaim", [None]).first("may_reclaim", None) is None


def test_the_first_results_of_many_subjects_call_no_later_plugin() -> None:
    assert _dispatch("evict_scope", ["whole", _BOOM]).first_of("evict_scope", [1, 2]) == ["whole", "whole"]
    assert _dispatch("evict_scope", [None], ["job"]).first_of("evict_scope", [1, 2]) == ["job", "job"]
    assert _dispatch("evict_scope", [None, _SILENT]).first_of("evict_scope", [1]) == [None]
    with pytest.raises(HookFailed):
        _dispatch("evict_scope", [None, _BOOM]).first_of("evict_scope", [1])


@pytest.mark.parametrize(
    "tiers, expected",
    [
        pytest.param([], False, id="none"),
        pytest.param([[True, True], [False]], True, id="the first tier decides"),
        pytest.param([[True, False], [True]], False, id="all of it must agree"),
        pytest.param([[_SILENT], [True]], True, id="the first tier that has one"),
    ],
)
def test_first_tier_all(tiers: list[list[Any]], expected: bool) -> None:
    assert _dispatch("job_starving", *tiers).first_tier_all("job_starving", None) is expected


@pytest.mark.parametrize(
    "tiers, ready, overused",
    [
        pytest.param([], True, False, id="no plugin: ready, not overused"),
        pytest.param([[True], [False]], False, True, id="one of each"),
        pytest.param([[True, True]], True, True, id="all yes"),
        pytest.param([[False], [False]], False, False, id="all no"),
    ],
)
def test_all_and_any(tiers: list[list[Any]], ready: bool, overused: bool) -> None:
    assert _dispatch("job_ready", *tiers).all("job_ready", None) is ready
    assert _dispatch("overused", *tiers).any("overused", None) is overused


def test_keys_come_in_the_order_of_the_file() -> None:
    assert _dispatch("job_order", [3, _SILENT], [1, 2]).keys("job_order", None) == (3, 1, 2)


def test_the_first_refusal_wins_and_ends_the_vote() -> None:
    assert _dispatch("job_valid", [None, _NO, _BOOM]).refusal("job_valid", None) is _NO
    assert _dispatch("job_valid", [None], [None]).refusal("job_valid", None) is None


@pytest.mark.parametrize(
    "method, invoke",
    [
        ("job_order", lambda d: d.keys("job_order", None)),
        ("job_valid", lambda d: d.refusal("job_valid", None)),
        ("job_ready", lambda d: d.all("job_ready", None)),
        ("overused", lambda d: d.any("overused", None)),
        ("job_starving", lambda d: d.first_tier_all("job_starving", None)),
        ("preemptable", lambda d: d.victims("preemptable", None, [])),
        ("on_allocate", lambda d: d.notify("on_allocate", None)),
    ],
)
def test_a_failure_names_the_plugin_and_the_hook(method: str, invoke: Any) -> None:
    with pytest.raises(HookFailed) as caught:
        invoke(_dispatch(method, [_SILENT, _BOOM]))
    assert (caught.value.plugin, caught.value.hook, str(caught.value)) == ("b", method, "RuntimeError: boom")
    assert isinstance(caught.value.error, RuntimeError)


def test_every_plugin_is_notified_even_when_the_first_fails() -> None:
    notified: list[str] = []

    class First(Plugin):
        name = "first"

        def on_allocate(self, placement: object) -> None:
            notified.append("first")
            raise ValueError("once")

    class Second(Plugin):
        name = "second"

        def on_allocate(self, placement: object) -> None:
            notified.append("second")
            raise ValueError("twice")

    dispatch = Dispatch([[(First(), {})], [(Second(), {})]])
    with pytest.raises(HookFailed, match="once"):
        dispatch.notify("on_allocate", None)
    assert notified == ["first", "second"]


def test_a_switch_turns_off_its_hook_and_no_other() -> None:
    class Both(Plugin):
        name = "both"

        def job_order(self, job: object) -> int:
            return 1

        def job_ready(self, job: object) -> bool:
            return False

        def on_allocate(self, placement: object) -> None:
            return

    dispatch = Dispatch([[(Both(), {"enableJobReady": False, "enableJobOrder": True})]])
    assert dispatch.has("job_order")
    assert dispatch.has("on_allocate"), "what has no switch cannot be turned off"
    assert not dispatch.has("job_ready")
    assert dispatch.all("job_ready", None)
