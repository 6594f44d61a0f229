"""What claims of one namespace that get no devices cost in one session, and pods of other namespaces beside them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.claim_objects import present
from capcard_sched.devices import device_content
from capcard_sched.devices.device_content import DeviceContent
from capcard_sched.framework.session import namespace_work
from capcard_sched.framework.toolkit import device_cards
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import ResourceClaimObject
from capcard_sched.model.objects import PodObject
from capcard_sched.plugins.capacity_card import cards, claim_cards
from capcard_sched.plugins.predicates import empty_nodes
from capcard_sched.testing import Harness
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

        def counted(content: DeviceContent, program: Any) -> bool:
            self.compared += 1
            return matches(content, program)

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

    def counted(request: Any, device: Any) -> bool:
        nonlocal compared
        compared += 1
        return may_match(request, device)

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
    assert not h.binds
    assert "use resourceClaimTemplateName" in h.pod_message("late")


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
