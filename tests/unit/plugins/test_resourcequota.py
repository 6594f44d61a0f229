"""Admission by ResourceQuotas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.job import Job
from capcard_sched.model.limits import ResourceQuotaObject
from capcard_sched.model.refusal import Refusal
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
