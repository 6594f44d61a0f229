"""Admission by ResourceQuotas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.job import Job
from capcard_sched.model.limits import ResourceQuotaObject
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import PodGroupPhase, Vote
from capcard_sched.plugins.resourcequota import ResourceQuota
from capcard_sched.testing import Harness

CONF = """
actions: "enqueue"
tiers: [{plugins: [{name: resourcequota}]}]
"""


def _quota(
    h: Harness, hard: dict[str, Any], used: dict[str, Any] | None = None, *, name: str = "quota", **more: Any
) -> None:
    obj: dict[str, Any] = {"metadata": {"name": name, "namespace": "default"}, "spec": {"hard": hard}, "status": {}}
    if used is not None:
        obj["status"] = {"hard": hard, "used": used}
    obj["spec"] |= more
    h.apply(ObjectChanged(msgspec.convert(obj, ResourceQuotaObject)))


def _cluster() -> Harness:
    h = Harness(CONF)
    h.queue("q")
    return h


def _add_group(h: Harness, name: str, **minimum: Any) -> None:
    spelled = {key.replace("__", "/").replace("_", "."): value for key, value in minimum.items()}
    h.group(name, phase="Pending", min_resources=spelled)


def _vote(h: Harness, name: str) -> Vote | Refusal:
    answer: Vote | Refusal = h.plugin("resourcequota").job_enqueueable(h.job(name))
    return answer


def _message(h: Harness, name: str) -> str:
    answer = _vote(h, name)
    assert isinstance(answer, Refusal)
    return answer.message


def test_admitted_requests_count_against_the_next_job() -> None:
    h = _cluster()
    _quota(h, {"cpu": "10"}, {"cpu": "6"})
    _add_group(h, "first", cpu="3")
    _add_group(h, "next", cpu="2")
    h.session()
    assert _vote(h, "first") is Vote.PERMIT
    assert _vote(h, "next") is Vote.PERMIT  # a vote reserves nothing
    h.plugin("resourcequota").job_enqueued(h.job("first"))
    assert _vote(h, "next") == Refusal(
        "job_enqueueable",
        "resourcequota",
        "Unschedulable",
        "resource quota insufficient, requested: cpu=2, used: cpu=6, limited: cpu=10",
        queue="q",
        figures=Figures("cpu", 2000, 11_000, 10_000),
        event=True,
        type="Normal",
    )


def test_only_names_that_the_quota_limits_count() -> None:
    h = _cluster()
    _quota(h, {"pods": "5"}, {"pods": "5"})
    _add_group(h, "a", cpu="100")
    h.session()
    assert _vote(h, "a") is Vote.PERMIT


def test_the_job_must_fit_every_quota_of_the_namespace() -> None:
    h = _cluster()
    _quota(h, {"cpu": "10"}, {"cpu": "0"}, name="one")
    _quota(h, {"memory": "1Gi"}, {"memory": "1Gi"}, name="two")
    _add_group(h, "a", cpu="1", memory="1")
    h.session()
    assert _message(h, "a") == "resource quota insufficient, requested: memory=1, used: memory=1Gi, limited: memory=1Gi"


@pytest.mark.parametrize(
    ("hard", "minimum", "text"),
    [
        pytest.param({"requests.cpu": "1"}, {"cpu": "2"}, "", id="cpu is not requests.cpu"),
        pytest.param(
            {"requests.cpu": "1"}, {"requests_cpu": "1500m"}, "requested: requests.cpu=1500m", id="requests.cpu"
        ),
        pytest.param(
            {"limits.memory": "1Gi"}, {"limits_memory": "2Gi"}, "requested: limits.memory=2Gi", id="limits.memory"
        ),
        pytest.param({"count/pods": "1"}, {"count__pods": "2"}, "requested: count/pods=2", id="counts of objects"),
        pytest.param(
            {"requests.nvidia.com/gpu": "7"},
            {"requests_nvidia.com/gpu": "8"},
            "requested: requests.nvidia.com/gpu=8",
            id="cards",
        ),
        pytest.param(
            {"cpu": "1", "memory": "1Gi", "pods": "9"},
            {"pods": "2", "memory": "2Gi", "cpu": "1100m"},
            "requested: cpu=1100m, memory=2Gi,",
            id="all names that are over, sorted",
        ),
        pytest.param({"cpu": "0.1"}, {"cpu": "100m"}, "", id="exact decimals"),
        pytest.param({"cpu": "100m"}, {"cpu": "0.1001"}, "requested: cpu=101m", id="rounded up to thousandths"),
    ],
)
def test_names_and_amounts(hard: dict[str, str], minimum: dict[str, str], text: str) -> None:
    h = _cluster()
    _quota(h, hard, {})
    h.group("a", phase="Pending", min_resources={k.replace("__", "/").replace("_", "."): v for k, v in minimum.items()})
    h.session()
    if text:
        assert text in _message(h, "a")
    else:
        assert _vote(h, "a") is Vote.PERMIT


def test_jobs_without_minimum_and_other_namespaces_are_let_in() -> None:
    h = _cluster()
    _quota(h, {"cpu": "1"}, {"cpu": "1"})
    h.group("a", phase="Pending")
    h.group("b", phase="Pending", namespace="other", min_resources={"cpu": "5"})
    h.session()
    assert _vote(h, "a") is Vote.PERMIT
    assert h.plugin("resourcequota").job_enqueueable(h.job("b", namespace="other")) is Vote.PERMIT


def test_a_quota_that_its_controller_has_not_seen_limits_already() -> None:
    h = _cluster()
    _quota(h, {"cpu": "1"})
    _add_group(h, "a", cpu="2")
    h.session()
    assert _message(h, "a") == "resource quota insufficient, requested: cpu=2, used: cpu=0, limited: cpu=1"


def test_scopes_are_not_looked_at() -> None:
    h = _cluster()
    _quota(h, {"cpu": "1"}, {}, scopes=["BestEffort"])
    _add_group(h, "a", cpu="2")
    h.session()
    assert isinstance(_vote(h, "a"), Refusal)


def test_existing_pods_are_in_the_usage_and_not_requested_twice() -> None:
    h = _cluster()
    _quota(
        h,
        {"cpu": "10", "requests.cpu": "10", "limits.cpu": "12", "pods": "2", "count/pods": "2"},
        {"cpu": "6", "requests.cpu": "6", "limits.cpu": "8", "pods": "2", "count/pods": "2"},
    )
    _add_group(h, "deployment", cpu="6", requests_cpu="6", limits_cpu="8", pods="2", count__pods="2")
    for name in ("p0", "p1"):
        h.pod(name, group="deployment", requests={"cpu": "3"}, limits={"cpu": "4"})
    h.session()
    assert _vote(h, "deployment") is Vote.PERMIT


def test_of_jobs_whose_pods_exist_together_beyond_the_quota_as_many_are_admitted_as_fit() -> None:
    h = _cluster()
    _quota(h, {"cpu": "4"}, {"cpu": "6"})
    for name in ("a", "b"):
        _add_group(h, name, cpu="3")
        h.pod(f"{name}-0", group=name, requests={"cpu": "3"})
    _add_group(h, "least", cpu="1")
    h.settle()
    phases = [h.job(name).phase for name in ("a", "b", "least")]
    assert phases == [PodGroupPhase.INQUEUE, PodGroupPhase.PENDING, PodGroupPhase.INQUEUE]
    assert h.event_messages("PodGroup", "b") == [
        ("Unschedulable", "resource quota insufficient, requested: cpu=3, used: cpu=3, limited: cpu=4")
    ]


def test_a_job_whose_pods_are_more_than_its_minimum_needs_all_of_them() -> None:
    h = _cluster()
    _quota(h, {"cpu": "4"}, {"cpu": "6"})
    _add_group(h, "a", cpu="3")
    for name in ("a-0", "a-1"):
        h.pod(name, group="a", requests={"cpu": "3"})
    h.session()
    assert _message(h, "a") == "resource quota insufficient, requested: cpu=6, used: cpu=0, limited: cpu=4"


def test_an_ended_pod_counts_as_an_object_only() -> None:
    h = _cluster()
    _quota(h, {"pods": "1", "count/pods": "1"}, {"pods": "0", "count/pods": "1"})
    _add_group(h, "a", pods="1", count__pods="1")
    h.pod("old", group="a", phase="Succeeded")
    h.session()
    assert _vote(h, "a") is Vote.PERMIT
    _quota(h, {"pods": "0"}, {"pods": "0"})
    h.session()
    assert "requested: pods=1" in _message(h, "a")


def test_reservations_of_earlier_sessions_last_until_the_pods_exist() -> None:
    h = _cluster()
    _quota(h, {"cpu": "10"}, {"cpu": "0"})
    _add_group(h, "first", cpu="8")
    h.settle()
    assert h.job("first").phase is PodGroupPhase.INQUEUE
    _add_group(h, "next", cpu="4")
    h.settle()
    assert h.job("next").phase is PodGroupPhase.PENDING
    assert h.event_messages("PodGroup", "next") == [
        ("Unschedulable", "resource quota insufficient, requested: cpu=4, used: cpu=0, limited: cpu=10")
    ]
    h.pod("p", group="first", requests={"cpu": "8"})  # in the quota's usage from now on
    _quota(h, {"cpu": "10"}, {"cpu": "6"})
    h.settle()
    assert h.job("next").phase is PodGroupPhase.INQUEUE


def test_a_deleted_job_reserves_nothing() -> None:
    h = _cluster()
    _quota(h, {"cpu": "10"}, {"cpu": "0"})
    _add_group(h, "first", cpu="8")
    h.settle()
    h.delete_group("first")
    _add_group(h, "next", cpu="4")
    h.settle()
    assert h.job("next").phase is PodGroupPhase.INQUEUE


def test_a_freed_quota_wakes_and_other_quotas_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    h = _cluster()
    _quota(h, {"cpu": "1"}, {"cpu": "1"})
    _add_group(h, "a", cpu="1")
    h.settle()
    assert h.step().idle
    checked: list[str] = []
    vote = ResourceQuota.job_enqueueable

    def listen(self: ResourceQuota, job: Job) -> Vote | Refusal:
        checked.append(job.name)
        return vote(self, job)

    monkeypatch.setattr(ResourceQuota, "job_enqueueable", listen)
    h.reconfigure(CONF)
    h.step()
    assert checked == ["a"]
    h.node("n")
    h.step()
    assert checked == ["a"], "the same grounds, the same answer"
    h.apply(ObjectGone("ResourceQuota", "default", "quota"))
    assert not h.step().idle
    assert (checked, h.job("a").phase) == (["a", "a"], PodGroupPhase.INQUEUE)


def test_the_same_quota_again_is_no_change() -> None:
    h = _cluster()
    _quota(h, {"cpu": "1"}, {"cpu": "1"})
    h.settle()
    _quota(h, {"cpu": "1"}, {"cpu": "1000m"})
    assert h.step().idle


def test_without_the_plugin_quotas_wake_nothing() -> None:
    h = Harness('actions: "enqueue"\ntiers: [{plugins: [{name: gang}]}]')
    h.queue("q")
    h.settle()
    _quota(h, {"cpu": "1"}, {"cpu": "1"})
    assert h.step().idle
