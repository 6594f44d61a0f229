"""The sla plugin."""

from __future__ import annotations

import pytest

from capcard_sched.model.status import PodGroupPhase, Vote
from capcard_sched.plugins.sla import Sla
from capcard_sched.testing import EPOCH, Harness

MINUTE, HOUR = 60, 3600
#: When the first group of a test is created, after its queue.
BORN = EPOCH + 2


def _conf(*tiers: str, arguments: str = "", actions: str = "enqueue") -> str:
    listed = "".join(f"- plugins: [{tier}]\n" for tier in tiers or (f"{{name: sla, arguments: {{{arguments}}}}}",))
    return f'actions: "{actions}"\ntiers:\n{listed}'


def _group(h: Harness, name: str, limit: str | None = None, *, key: str = "volcano.sh/sla-waiting-time") -> None:
    h.group(name, phase="Pending", annotations={key: limit} if limit is not None else {}, min_resources={"cpu": "1"})


def _born(h: Harness, name: str) -> float:
    return h.job(name).created


def test_11_1_the_earlier_deadline_goes_first() -> None:
    h = Harness(_conf())
    h.queue("q")
    _group(h, "a", "1h")
    _group(h, "b", "10m")
    h.session()
    plugin: Sla = h.plugin("sla")
    assert plugin.job_order(h.job("b")) < plugin.job_order(h.job("a"))
    assert plugin.job_order(h.job("a")) == _born(h, "a") + HOUR


@pytest.mark.parametrize(
    ("limit", "arguments", "seconds"),
    [
        pytest.param("30m", "", 30 * MINUTE, id="the job's own"),
        pytest.param("30m", "sla-waiting-time: 1h", 30 * MINUTE, id="the job's own beats the general one"),
        pytest.param(None, "sla-waiting-time: 1h", HOUR, id="the general one"),
        pytest.param("soon", "sla-waiting-time: 1h", HOUR, id="an invalid value counts as none"),
        pytest.param("0s", "", None, id="0 is no limit"),
        pytest.param("-5m", "", None, id="a negative one is no limit"),
        pytest.param("90", "", None, id="a number without unit is no limit"),
        pytest.param("500ms", "", 0.5, id="less than a second"),
    ],
)
def test_limit(limit: str | None, arguments: str, seconds: float | None) -> None:
    h = Harness(_conf(arguments=arguments))
    h.queue("q")
    _group(h, "a", limit)
    h.session()
    deadline = h.plugin("sla").job_order(h.job("a"))
    assert deadline == (float("inf") if seconds is None else _born(h, "a") + seconds)


def test_11_3_it_abstains_until_the_limit_and_permits_from_it_on() -> None:
    h = Harness(_conf(arguments="sla-waiting-time: 1h"))
    h.queue("q")
    _group(h, "a")
    plugin: Sla = h.plugin("sla")
    for age, vote in ((59 * MINUTE, Vote.ABSTAIN), (HOUR - 1, Vote.ABSTAIN), (HOUR, Vote.PERMIT)):
        h.now = BORN + age - 1  # a session is a second later
        h.session()
        assert (plugin.job_enqueueable(h.job("a")), plugin.job_pipelined(h.job("a"))) == (vote, vote)


OVERCOMMIT = "{name: overcommit, arguments: {overcommit-factor: 1}}"


def _refused_cluster(*tiers: str) -> Harness:
    """An empty cluster: overcommit refuses everything."""
    h = Harness(_conf(*tiers))
    h.queue("q")
    _group(h, "a", "1h")
    return h


def test_11_4_in_an_earlier_tier_it_outvotes_a_refusal() -> None:
    h = _refused_cluster("{name: sla}", OVERCOMMIT)
    h.step(EPOCH + 10)
    assert h.job("a").phase is PodGroupPhase.PENDING
    h.step(BORN + HOUR)
    assert h.job("a").phase is PodGroupPhase.INQUEUE


def test_in_the_same_tier_a_refusal_wins() -> None:
    h = _refused_cluster("{name: sla}, " + OVERCOMMIT)
    h.step(BORN + HOUR)
    assert h.job("a").phase is PodGroupPhase.PENDING


@pytest.mark.parametrize(
    ("tiers", "pipelined"),
    [
        pytest.param(("{name: sla}, {name: gang}",), False, id="11.5 in one tier gang's refusal wins"),
        pytest.param(("{name: sla}", "{name: gang}"), True, id="in an earlier tier it outvotes gang"),
        pytest.param(("{name: gang}", "{name: sla}"), False, id="in a later tier it is not called"),
    ],
)
def test_the_vote_to_pipeline(tiers: tuple[str, ...], pipelined: bool) -> None:
    h = Harness(_conf(*tiers))
    h.queue("q")
    h.group("a", min_member=2, annotations={"volcano.sh/sla-waiting-time": "1h"})
    h.pod("a0", group="a")
    h.now = EPOCH + 2 * HOUR
    assert h.session().job_pipelined(h.job("a")) is pipelined


def test_the_deadline_wakes_an_unchanged_cluster_and_nothing_else_does() -> None:
    h = _refused_cluster("{name: sla}", OVERCOMMIT)
    h.step(EPOCH + 10)
    result = h.step(EPOCH + 11)
    assert (result.idle, result.next_wakeup) == (True, BORN + HOUR)
    assert h.step(EPOCH + HOUR).idle
    result = h.step(BORN + HOUR)
    assert (result.idle, result.next_wakeup) == (False, None)
    assert h.step(BORN + 1 + HOUR).idle is False  # its own admission is a change
    assert h.step(BORN + 2 + HOUR).idle


def test_a_job_that_waits_past_its_deadline_is_reported_once() -> None:
    h = Harness(_conf("{name: gang}", "{name: sla, arguments: {sla-waiting-time: 1h30m}}", OVERCOMMIT))
    h.queue("q")
    _group(h, "a")
    _group(h, "b", "9h")
    for hours in (1, 2, 3, 4):
        h.step(EPOCH + hours * HOUR)
    message = "SLA deadline reached: the job has waited for 1h30m0s and is prioritized"
    emitted = h.event_messages("PodGroup", "a")
    assert [each for each in emitted if each[0] != "Unschedulable"] == [("SLADeadlineReached", message)]
    assert {reason for reason, _ in h.event_messages("PodGroup", "b")} == {"Unschedulable"}
