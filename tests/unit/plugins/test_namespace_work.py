"""What claims of one namespace that get no devices cost in one session, and pods of other namespaces beside them."""

from __future__ import annotations

import gc
from typing import Any, Final

import msgspec
import pytest

from benchmarks.claim_objects import present
from capcard_sched.cel.program import Program
from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices import claims, device_content, selector_work
from capcard_sched.devices.claims import AllocationError
from capcard_sched.devices.device_content import DeviceContent
from capcard_sched.devices.selectors import compile_selector
from capcard_sched.framework.eviction.group_evictor import GroupEvictor
from capcard_sched.framework.session import namespace_work
from capcard_sched.framework.toolkit import device_cards
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, SliceDevice
from capcard_sched.model.objects import PodObject
from capcard_sched.plugins.capacity_card import cards, claim_cards
from capcard_sched.plugins.predicates import claim_verdicts, empty_nodes
from capcard_sched.state import cluster
from capcard_sched.testing import Harness
from tests.properties.test_churn import SPARES
from tests.reachable import reachable, sizes
from tests.unit.devices.pools import claim, decode

_NODES, _HOSTILE = 20, 100
#: Bounds in place of those of the product, to which the sizes are small.
_SEARCHES, _COMPARED = 600, 2_000
#: Nodes times contents of claims, with a share of each: what one session would search.
_ALL = _NODES * _HOSTILE
_CONF = "actions: '{actions}'\ntiers:\n- plugins: [{{name: gang}}, {{name: predicates}}{more}]\n"


def _put(h: Harness, number: int, namespace: str, name: str, group: str, selector: str = "") -> None:
    """A pod with a generated claim for one GPU."""
    meta = {"namespace": namespace, "name": name, "uid": f"pod-{number}"}
    wanted = claim(number, {"r": {"class": "gpu", **({"cel": selector} if selector else {})}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": meta["uid"], "controller": True}
    wanted["metadata"] |= {"namespace": namespace, "ownerReferences": [owner]}
    h.apply(ObjectChanged(decode(wanted, ResourceClaimObject)))
    pod: dict[str, Any] = {
        "metadata": {**meta, "annotations": {"scheduling.k8s.io/group-name": group}},
        "spec": {
            "schedulerName": "capcard-sched",
            "resourceClaims": [{"name": "r", "resourceClaimTemplateName": "t"}],
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "r", "resourceClaimName": f"c{number}"}]},
    }
    h.apply(ObjectChanged(msgspec.convert(pod, PodObject)))


def _hostile(number: int) -> str:
    """A selector that no device passes, and that reads an attribute that differs on all devices."""
    return f'device.attributes["gpu.nvidia.com"].uuid == "none-{number}"'


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_work, "MOST_SEARCHES", _SEARCHES)
    monkeypatch.setattr(claim_cards, "MOST_COMPARED", _COMPARED)
    monkeypatch.setattr(empty_nodes, "MOST_DEVICES", _COMPARED)


class _Work:
    """Searches and comparisons of the sessions."""

    def __init__(self, h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self._h, self.compared = h, 0
        self._before = (0, 0)
        matches = DeviceContent.matches

        def counted(content: DeviceContent, *arguments: Any) -> bool:
            self.compared += 1
            return matches(content, *arguments)

        monkeypatch.setattr(DeviceContent, "matches", counted)

    def step(self) -> tuple[int, int]:
        """Searches that find no devices, and comparisons of devices with selectors, in the next session."""
        searches, compared = self._h.core.snapshot().state.claims.searches.failed(), self.compared
        self._h.step()
        return self._h.core.snapshot().state.claims.searches.failed() - searches, self.compared - compared


def _cluster(more: str = "", actions: str = "allocate, backfill") -> Harness:
    h = Harness(_CONF.format(more=more, actions=actions))
    h.apply(*present("D1", _NODES))
    h.step()
    return h


@pytest.mark.parametrize("actions", ["allocate", "enqueue, allocate"])
def test_the_order_of_other_namespaces_stays(actions: str) -> None:
    """A job that waits is not put behind younger ones of a lower priority, where another namespace is at its bound."""
    h = _cluster(", {name: priority}, {name: overcommit}", actions)
    h.queue("q", capability={"cpu": "100000", "example.com/x": "1"})
    h.node("x", cpu="8", resources={"example.com/x": 1})
    h.priority_class("urgent", 1000)
    h.group("holds", queue="q", namespace="good")
    h.pod("holds", group="holds", namespace="good", requests={"example.com/x": 1}, node="x", phase="Running")
    phase, needs = "Pending" if "enqueue" in actions else "Inqueue", {"example.com/x": 1}
    h.group("high", queue="q", namespace="good", phase=phase, priority_class="urgent", min_resources=needs)
    h.pod("high", group="high", namespace="good", priority=1000, requests=needs)
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    assert h.step().report.unfinished, "the other namespace is at its bound"
    h.apply(ObjectGone("Pod", "good", "holds"))
    h.group("low", queue="q", namespace="good", phase=phase, min_resources=needs)
    h.pod("low", group="low", namespace="good", requests=needs)
    h.step()
    assert [*h.binds] == ["high"]


@pytest.mark.parametrize("alone", [True, False], ids=["a PodGroup each", "one elastic PodGroup"])
def test_a_namespace_has_a_bound_of_searches_in_a_session(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    h = _cluster()
    for number in range(_HOSTILE):
        group = f"bad-{number}" if alone else "bad"
        if alone or not number:
            h.group(group, queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", group, _hostile(number))
    h.group("healthy", queue="q", namespace="good")
    _put(h, 10**6, "good", "healthy", "healthy")
    work = _Work(h, monkeypatch)
    searches, _ = work.step()
    assert _SEARCHES / 2 < searches <= _SEARCHES + _NODES < _ALL
    assert [*h.binds] == ["healthy"], "another namespace of the queue is not held up"
    done = searches
    while (found := work.step()[0]) and done < 2 * _ALL:
        assert found <= _SEARCHES + _NODES
        done += found
    if alone:
        assert _ALL <= done <= _ALL + _HOSTILE, "every job has its turn, once; one device was taken meanwhile"
    _put(h, 10**6 + 1, "good", "later", "later")
    h.group("later", queue="q", namespace="good")
    assert work.step()[0] <= _SEARCHES + _NODES
    assert "later" in h.binds


def test_the_text_of_a_held_job_names_the_bound() -> None:
    h = _cluster()
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    h.step()
    assert "the namespace reached the bound of searches" in h.pod_message(f"bad-{_HOSTILE - 1}")
    h.settle()
    assert "cannot allocate all claims" in h.pod_message(f"bad-{_HOSTILE - 1}")


def test_a_namespace_has_a_bound_of_comparisons_for_its_card_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_work, "MOST_SEARCHES", _ALL)
    h = _cluster(", {name: capacity-card}")
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    h.group("healthy", queue="q", namespace="good")
    _put(h, 10**6, "good", "healthy", "healthy")
    work, devices = _Work(h, monkeypatch), 8 * _NODES
    most = 5 * _COMPARED  # with the class and the claim; on empty nodes with both in a search, and with the claim
    searches, compared = work.step()
    assert compared <= most + 2 * 8 * searches + 10 * devices < 2 * _HOSTILE * devices
    assert [*h.binds] == ["healthy"]
    assert "are not known yet" in h.pod_message(f"bad-{_HOSTILE - 1}")
    h.settle(_HOSTILE)
    assert "cannot allocate all claims" in h.pod_message(f"bad-{_HOSTILE - 1}"), "every claim has its turn"


def test_sessions_end_with_more_contents_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each content is compared with the devices once, and again only when these change; a change of another claim
    concerns that claim."""
    monkeypatch.setattr(namespace_work, "MOST_SEARCHES", _ALL)
    monkeypatch.setattr(claim_cards, "_MOST_CONTENTS", _HOSTILE // 4)
    monkeypatch.setattr(device_cards, "MOST_SELECTORS", _HOSTILE // 4)
    monkeypatch.setattr(cards, "_SPARE", _HOSTILE // 4)
    h = _cluster(", {name: capacity-card}")
    compared = 0
    may_match = device_cards.may_match

    def counted(request: Any, device: Any, meter: Any = None) -> bool:
        nonlocal compared
        compared += 1
        return may_match(request, device, meter)

    monkeypatch.setattr(device_cards, "may_match", counted)
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    h.settle(_HOSTILE)
    assert "cannot allocate all claims" in h.pod_message(f"bad-{_HOSTILE - 1}")
    devices = 8 * _NODES
    assert compared <= (_HOSTILE + 1) * devices
    for number in range(5):
        before = compared
        h.group(f"good-{number}", queue="q", namespace="good")
        _put(h, 10**6 + number, "good", f"good-{number}", f"good-{number}")
        h.settle(5)
        assert f"good-{number}" in h.binds
        assert compared - before <= devices


def test_a_claim_that_is_created_after_the_first_session_is_charged() -> None:
    h = _cluster(", {name: capacity-card}")
    h.group("late", queue="q")
    h.pod("late", group="late", requests={"cpu": "1"}, resourceClaims=[{"name": "r", "resourceClaimName": "c1"}])
    h.settle()
    assert 'resourceclaim "c1" not found' in h.pod_message("late")
    wanted = claim(1, {"r": {"class": "gpu"}})
    wanted["metadata"]["namespace"] = "default"
    h.apply(ObjectChanged(decode(wanted, ResourceClaimObject)))
    h.settle()
    assert "late" in h.binds
    ((card, amount),) = h.plugin("capacity-card").accounts.ledger.queues["q"].own.allocated.cards.items()
    assert (card.startswith("NVIDIA"), amount) == (True, 1000)


def test_a_device_keeps_a_bounded_number_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_content, "_MOST_RESULTS", 50)
    h = _cluster(", {name: capacity-card}")
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    h.settle(_HOSTILE)
    devices = h.last_session.snapshot.devices.all_devices()
    assert {len(device.content._results) <= 50 for device in devices} == {True}


def test_the_places_of_claims_are_counted_over_several_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gangs whose claims no empty node serves: each is proved never to start, some in each session."""
    monkeypatch.setattr(namespace_work, "MOST_SEARCHES", 10**9)
    h = _cluster()
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad", min_member=1)
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))

    def counted() -> int:
        jobs = h.core.snapshot().state.jobs
        return sum(jobs[f"bad/bad-{number}"].node_limit is not None for number in range(_HOSTILE))

    found: list[int] = []
    while (len(found) < 2 or found[-1] > found[-2]) and len(found) < _HOSTILE:
        h.group("other", namespace="good", labels={"session": str(len(found))})
        h.step()
        found.append(counted())
    content = _NODES * 9  # a search and eight devices on each node
    assert found[0] == -(-_COMPARED // content), "one reaches the bound"
    assert found[-1] == _HOSTILE, found


#: Comparisons of a costly selector, and its steps on a device.
_TERMS: Final = 700
_COSTLY_STEPS: Final = 3 * _TERMS
#: The bound of steps in place of that of the product: some devices of one content.
_MOST_STEPS: Final = 40 * _COSTLY_STEPS
_COSTLY: Final = 12


def _costly(number: int, *, passes: bool = False) -> str:
    """A selector that takes many steps on each device."""
    terms = " && ".join(["1 < 2"] * _TERMS)
    last = f'uuid != "none-{number}"' if passes else f'uuid == "none-{number}"'
    return f'{terms} && device.attributes["gpu.nvidia.com"].{last}'


def _fill_with_costly(h: Harness, *, passes: bool = False) -> None:
    for number in range(_COSTLY):
        h.group(f"bad-{number}", queue="q", namespace="bad")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _costly(number, passes=passes))
    h.group("healthy", queue="q", namespace="good")
    _put(h, 10**6, "good", "healthy", "healthy")


class _Steps:
    """Steps of selectors in the sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = 0
        measured = Program.measured

        def counted(program: Program, *values: Any) -> Any:
            result, steps = measured(program, *values)
            self.total += steps
            return result, steps

        monkeypatch.setattr(Program, "measured", counted)


_WITH: Final = {
    "predicates": ("", "allocate, backfill"),
    "capacity-card": (", {name: capacity-card}", "allocate, backfill"),
    "evictions": (", {name: capacity-card}, {name: priority}", "enqueue, allocate, backfill, preempt, reclaim"),
    "budget": (", {name: budget}", "enqueue, allocate, backfill"),
}


@pytest.mark.parametrize("kind", _WITH)
def test_a_namespace_has_a_bound_of_steps_of_selectors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costly selectors of one namespace are evaluated over several sessions; the results are those of one."""
    monkeypatch.setattr(selector_work, "MOST_STEPS", _MOST_STEPS)
    monkeypatch.setattr(selector_work, "MOST_OF_CONTENT", 100 * _MOST_STEPS)
    h = _cluster(*_WITH[kind])
    _fill_with_costly(h)
    steps, sessions = _Steps(monkeypatch), list[int]()
    result = h.step()
    sessions.append(steps.total)
    assert [*h.binds] == ["healthy"], "another namespace of the queue is not held up"
    assert "selectors" in h.pod_message(f"bad-{_COSTLY - 1}")
    while not result.idle and len(sessions) < 500:
        before = steps.total
        result = h.step()
        assert not result.report.errors
        sessions.append(steps.total - before)
    assert result.idle
    devices = 8 * _NODES
    assert steps.total >= _COSTLY * devices * _COSTLY_STEPS, "every device is compared"
    assert steps.total <= 1.2 * _COSTLY * devices * (_COSTLY_STEPS + 20), "and once"
    assert max(sessions) <= _MOST_STEPS + 2 * (_COSTLY_STEPS + 20) + 100 * devices
    for number in range(_COSTLY):
        assert "cannot allocate all claims" in h.pod_message(f"bad-{number}"), "every claim has its turn"


@pytest.mark.parametrize("kind", _WITH)
def test_costly_selectors_that_devices_pass_get_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_work, "MOST_STEPS", _MOST_STEPS)
    h = _cluster(*_WITH[kind])
    _fill_with_costly(h, passes=True)
    h.settle(500)
    assert sorted(h.binds) == sorted(["healthy", *(f"bad-{number}" for number in range(_COSTLY))])


def test_a_content_that_takes_all_its_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_work, "MOST_STEPS", _MOST_STEPS)
    monkeypatch.setattr(selector_work, "MOST_OF_CONTENT", 2 * _MOST_STEPS)
    for more in ("", ", {name: capacity-card}"):
        h = _cluster(more)
        _fill_with_costly(h)
        h.settle(500)
        for number in range(_COSTLY):
            assert "take more than" in h.pod_message(f"bad-{number}")
        assert [*h.binds] == ["healthy"]
        h.apply(ObjectChanged(decode({"metadata": {"name": "other"}, "spec": {}}, DeviceClassObject)))
        assert h.step().report.unfinished, "a change of classes begins anew"


@pytest.mark.parametrize("more", ["", ", {name: capacity-card}"])
@pytest.mark.parametrize("passes", [False, True], ids=["no device", "all devices"])
@pytest.mark.parametrize("most", [100, 200])
def test_what_is_refused_does_not_depend_on_what_the_process_evaluated_before(
    most: int, passes: bool, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that saw half of the nodes first, with results for their devices, and one that starts with all."""
    monkeypatch.setattr(selector_work, "MOST_STEPS", _MOST_STEPS)
    monkeypatch.setattr(selector_work, "MOST_OF_CONTENT", most * _COSTLY_STEPS)
    texts = []
    for first in (_NODES // 2, _NODES):
        h = Harness(_CONF.format(more=more, actions="allocate, backfill"))
        h.apply(*present("D1", first))
        h.step()
        h.group("bad", queue="q", namespace="bad", min_member=2)
        _put(h, 1, "bad", "bad-1", "bad", _costly(1, passes=passes))
        h.settle(500)
        assert "bad-1" not in h.binds, "the gang is not complete"
        h.apply(*present("D1", _NODES))
        h.settle(500)
        h.group("bad", queue="q", namespace="bad", min_member=1)
        h.settle(500)
        texts.append((sorted(h.binds), h.pod_message("bad-1") if not h.binds else ""))
    assert texts[0] == texts[1]
    is_refused = most < 8 * _NODES
    assert ("take more than" in texts[0][1]) == is_refused
    assert (texts[0][0] == ["bad-1"]) == (passes and not is_refused)


def test_a_selector_beside_others_has_its_part_of_the_steps() -> None:
    work = selector_work.SelectorWork()
    work.begin(1, 1000)
    meter = selector_work.SelectorMeter(work, "team", (b"content",), ends=True)
    most = selector_work.MOST_OF_CONTENT // 1000
    meter.judge(most + selector_work.FREE_STEPS, 1)
    meter.judge(most // 4 + selector_work.FREE_STEPS, 4)
    for steps, selectors in ((most + 1, 1), (most // 4 + 1, 4)):
        with pytest.raises(AllocationError, match="take more than"):
            meter.judge(steps + selector_work.FREE_STEPS, selectors)


def _counted_plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by the arguments of each compilation of a claim."""
    found, plan_claim = list[Any](), claims.plan_claim

    def counted(*arguments: Any) -> Any:
        found.append(arguments)
        return plan_claim(*arguments)

    monkeypatch.setattr(claims, "plan_claim", counted)
    return found


def test_compilations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selector that is cheap to evaluate, and long: spaces and comments cost as much to read as operators."""
    monkeypatch.setattr(selector_work, "MOST_STEPS", 4 * 10_000 * selector_work.STEPS_PER_CHARACTER)
    compiled = _counted_plans(monkeypatch)
    for more in ("", ", {name: capacity-card}"):
        h = _cluster(more)
        for number in range(_COSTLY):
            h.group(f"bad-{number}", queue="q", namespace="bad")
            text = f"{_hostile(number)} // {'x' * 10_000}"
            _put(h, number, "bad", f"bad-{number}", f"bad-{number}", text)
        compiled.clear()
        h.step()
        assert 4 <= len(compiled) <= 5
        h.settle(50)
        assert len(compiled) == _COSTLY


@pytest.mark.parametrize("kept", [4096, 3], ids=["all plans are kept", "few are"])
def test_compilations_for_jobs_that_are_not_admitted_count(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt plans their claims: the close of the session does, for the reasons that autoscalers read."""
    monkeypatch.setattr(selector_work, "MOST_STEPS", 4 * 10_000 * selector_work.STEPS_PER_CHARACTER)
    monkeypatch.setattr(claims, "_MOST_PLANS", kept)
    compiled = _counted_plans(monkeypatch)
    h = _cluster(", {name: fairshare}, {name: overcommit}", "enqueue, allocate")
    for number in range(_COSTLY):
        h.group(f"bad-{number}", queue="q", namespace="bad", phase="Pending", min_resources={"cpu": "1000000"})
        text = f"{_hostile(number)} // {'x' * 10_000}"
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", text)
    h.group("good", queue="q", namespace="good", phase="Pending", min_resources={"cpu": "1000000"})
    _put(h, 10**6, "good", "good", "good")
    h.step()
    assert 0 < len(compiled) <= 6, "four of the hostile namespace, and those of the other one"
    assert h.reasons["good"][0] == "Unschedulable", "the other namespace has its reason in the first session"
    h.settle(_COSTLY)
    found = sum(h.reasons[f"bad-{number}"][0] == "Unschedulable" for number in range(_COSTLY))
    assert found == _COSTLY if kept > _COSTLY else found > 0
    compiled.clear()
    h.group("more", queue="q", namespace="good", phase="Pending", min_resources={"cpu": "1000000"})
    _put(h, 10**6 + 1, "good", "more", "more")
    h.step()
    assert len(compiled) <= 6, "a change of the queue plans all claims again that are not kept, as far as the bound"
    h.settle(_COSTLY)


def test_results_that_are_errors_keep_no_frames() -> None:
    """Each raise of one exception adds the frames that it passes to its traceback."""
    program = compile_selector("1 / 0 == 1")
    assert isinstance(program, Program)
    content = DeviceContent(msgspec.convert({"name": "g", "attributes": {}}, SliceDevice), "d", {})
    for _ in range(20):
        with pytest.raises(EvaluationError) as error:
            content.matches(program)
    depth, entry = 0, error.value.__traceback__
    while entry is not None:
        depth, entry = depth + 1, entry.tb_next
    assert depth < 5


@pytest.mark.parametrize("kind", _WITH)
def test_contents_of_claims_that_are_gone_are_not_kept(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods with claims of different content that come and go: neither entries nor texts remain."""
    own = (
        (claims, "_MOST_PLANS"), (claim_cards, "_MOST_CONTENTS"), (device_cards, "MOST_SELECTORS"),
        (claim_verdicts, "_MOST_CONTENTS"), (device_content, "_MOST_RESULTS"), (selector_work, "_MOST_CONTENTS"),
        (cards, "_MOST_ALIKE"),
    )  # fmt: skip
    for module, name in (*own, *SPARES["entries"], *SPARES["sessions"]):
        monkeypatch.setattr(module, name, 8)
    for module in (claims, cluster):
        monkeypatch.setattr(module, "_SPARE_BYTES", 0)
    monkeypatch.setattr(claims, "_MOST_PLAN_BYTES", 0)
    h = _cluster(*_WITH[kind])
    h.group("stays", queue="q")

    def churn(first: int, count: int) -> None:
        for begin in range(first, first + count, 10):
            numbers = range(begin, begin + 10)
            for number in numbers:
                h.group(f"bad-{number}", queue="q", namespace="bad")
                text = f"{_hostile(number)} // {number} {'x' * 4_000}"
                _put(h, number, "bad", f"bad-{number}", f"bad-{number}", text)
            h.settle(50)
            for number in numbers:
                h.apply(ObjectGone("Pod", "bad", f"bad-{number}"), ObjectGone("PodGroup", "bad", f"bad-{number}"))
                h.apply(ObjectGone("ResourceClaim", "bad", f"c{number}"))
            h.step()
        for _ in range(20):  # records expire
            h.pod("spare", group="stays", labels={"at": str(h.now)})
            h.step(h.now + 1000)
        gc.collect()

    def texts() -> int:
        return sum(len(item) for _, item in reachable(h.core) if isinstance(item, str | bytes))

    churn(0, 20)
    before, text = sizes(h.core), texts()
    churn(20, 200)
    grown = [
        f"{path}: {before[path]} to {size}" for path, size in sizes(h.core).items() if size > 2 * before[path] + 64
    ]
    assert not grown, "\n".join(grown)
    assert texts() <= 1.5 * text + 20 * 4_000


def test_many_short_selectors_reach_the_bound_of_a_namespace_too() -> None:
    work = selector_work.SelectorWork()
    meter = selector_work.SelectorMeter(work, "team", (b"content",), ends=True)
    for _ in range(selector_work.MOST_STEPS // 20):
        meter.admit()
        meter.evaluated(100)
    with pytest.raises(selector_work.EvaluationsPostponedError):
        meter.admit()


def test_every_attempt_is_begun_within_the_bounds_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of preemption within a job, whose pods were attempted before in the session."""
    begun: list[tuple[str, str]] = []
    allows, attempt = namespace_work.NamespaceWork.allows_attempt, GroupEvictor.attempt

    def allowed(work: Any, job: Any) -> bool:
        is_allowed = allows(work, job)
        if is_allowed:
            begun.append(("begin", job.key))
        return is_allowed

    def attempted(evictor: Any, queue: Any, job: Any, *arguments: Any) -> Any:
        begun.append(("attempt", job.key))
        return attempt(evictor, queue, job, *arguments)

    monkeypatch.setattr(namespace_work.NamespaceWork, "allows_attempt", allowed)
    monkeypatch.setattr(GroupEvictor, "attempt", attempted)
    h = _cluster(", {name: priority}", "preempt")
    for number in range(_HOSTILE):
        h.group(f"bad-{number}", queue="q", namespace="bad", min_member=2)
        h.pod(f"runs-{number}", group=f"bad-{number}", namespace="bad", requests={"cpu": "1"}, node="n0")
        _put(h, number, "bad", f"bad-{number}", f"bad-{number}", _hostile(number))
    h.step()
    attempts = [place for place, (what, _) in enumerate(begun) if what == "attempt"]
    assert 1 < len(attempts) < _HOSTILE, "the bound is reached"
    assert all(begun[place - 1] == ("begin", begun[place][1]) for place in attempts)
