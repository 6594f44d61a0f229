"""Sessions without a change of the cluster: hook `next_wakeup`, and facts that only some plugins wake on."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.limits import ResourceQuotaObject
from capcard_sched.testing import EPOCH, Harness


class Clock(Plugin):
    """Something happens at `at`."""

    name = "clock"
    at: float | None = EPOCH + 100

    def next_wakeup(self) -> float | None:
        if self.at == 0:
            raise ZeroDivisionError("no clock")
        return self.at


class Watcher(Plugin):
    """Looks at quotas."""

    name = "watcher"
    reads = Reads.QUOTAS


def _harness(*names: str) -> Harness:
    listed = ", ".join(f"{{name: {name}}}" for name in names)
    h = Harness(f'actions: "allocate"\ntiers: [{{plugins: [{listed}]}}]', plugins=[Clock, Watcher])
    h.step(EPOCH + 1)
    return h


def test_a_step_at_the_next_wakeup_runs_a_session_and_an_earlier_one_does_not() -> None:
    h = _harness("clock")
    result = h.step(EPOCH + 99)
    assert (result.idle, result.next_wakeup) == (True, EPOCH + 100)
    assert not h.step(EPOCH + 100).idle


@pytest.mark.parametrize("at", [None, EPOCH - 5.0, 0.0], ids=["never", "in the past", "a plugin that fails"])
def test_an_invalid_next_wakeup_is_ignored(at: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "at", at)
    h = _harness("clock")
    result = h.step(EPOCH + 200)
    assert (result.idle, result.next_wakeup) == (True, None)
    if at == 0:
        session = h.last_session
        (error,) = session.results.report.errors
        assert (error.plugin, error.hook, error.object) == ("clock", "next_wakeup", "session")


def test_another_conf_forgets_the_time() -> None:
    h = _harness("clock")
    h.reconfigure('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]')
    h.step(EPOCH + 2)
    assert h.step(EPOCH + 101).idle


@pytest.mark.parametrize(("plugin", "idle"), [("watcher", False), ("gang", True)])
def test_a_change_starts_a_session_when_a_plugin_reads_the_kind(plugin: str, idle: bool) -> None:
    h = _harness(plugin)
    obj = {"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"cpu": "1"}}}
    h.apply(ObjectChanged(msgspec.convert(obj, ResourceQuotaObject)))
    assert h.step().idle is idle
    assert h.step().idle
    h.apply(ObjectGone("ResourceQuota", "ns", "q"), ObjectGone("PodDisruptionBudget", "ns", "b"))
    assert h.step().idle is idle
