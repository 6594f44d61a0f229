"""Overcommit."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import Vote
from capcard_sched.plugins.overcommit import OvercommitArguments
from capcard_sched.testing import Harness, registry


def _conf(arguments: str = "") -> str:
    return f"""
actions: "enqueue"
tiers: [{{plugins: [{{name: overcommit, arguments: {{{arguments}}}}}]}}]
"""


def _refusal(*figures: Figures, names: str) -> Refusal:
    return Refusal(
        "job_enqueueable",
        "overcommit",
        "Unschedulable",
        f"resource in cluster is overused: {names}",
        queue="q",
        figures=figures[0],
        event=True,
        type="Normal",
    )


def _cluster(used: str = "8", **resources: Any) -> Harness:
    h = Harness(_conf())
    h.node("n1", cpu="10", memory="10Gi", resources=resources)
    h.queue("q")
    if used != "0":
        h.group("busy", phase="Running")
        h.pod("busy", group="busy", node="n1", requests={"cpu": used})
    return h


def _add_group(h: Harness, name: str, min_resources: dict[str, str] | None) -> None:
    h.group(name, phase="Pending", min_resources=min_resources)


def test_admission_stops_when_reservations_fill_the_idle_amounts() -> None:
    h = _cluster()
    h.group("admitted", phase="Inqueue", min_resources={"cpu": "1"})
    _add_group(h, "big", {"cpu": "3"})
    _add_group(h, "small", {"cpu": "500m"})
    h.session()
    plugin = h.plugin("overcommit")
    assert plugin.job_enqueueable(h.job("big")) is Vote.PERMIT
    plugin.job_enqueued(h.job("big"))
    assert plugin.job_enqueueable(h.job("small")) == _refusal(Figures("cpu", 500, 4500, 4000), names="overused cpu")


def test_a_vote_reserves_nothing() -> None:
    h = _cluster()
    _add_group(h, "a", {"cpu": "3"})
    h.session()
    plugin = h.plugin("overcommit")
    assert [plugin.job_enqueueable(h.job("a")) for _ in range(3)] == [Vote.PERMIT] * 3


def test_a_job_without_minimum_resources_is_let_in_even_when_nothing_is_idle() -> None:
    h = _cluster(used="13")
    _add_group(h, "a", None)
    h.session()
    assert h.plugin("overcommit").job_enqueueable(h.job("a")) is Vote.PERMIT


def test_only_requested_resources_count() -> None:
    h = _cluster(used="13")
    _add_group(h, "fits", {"memory": "12Gi"})
    _add_group(h, "both", {"memory": "13Gi", "cpu": "1", "pods": "9999", "nvidia.com/gpu": "0"})
    h.session()
    plugin = h.plugin("overcommit")
    assert plugin.job_enqueueable(h.job("fits")) is Vote.PERMIT
    assert plugin.job_enqueueable(h.job("both")) == _refusal(
        Figures("cpu", 1000, 1000, -1000), names="overused cpu, overused memory"
    )


def test_a_resource_without_nodes_is_overused() -> None:
    h = _cluster()
    _add_group(h, "a", {"example.com/fpga": "1"})
    h.session()
    refusal = h.plugin("overcommit").job_enqueueable(h.job("a"))
    assert refusal.message == "resource in cluster is overused: overused example.com/fpga"


def test_reservations_of_partly_placed_jobs_count_cards_in_the_same_unit_as_requests() -> None:
    h = _cluster(used="0", **{"nvidia.com/gpu": 10})
    h.group("partly", phase="Running", min_member=1, min_resources={"nvidia.com/gpu": "8"})
    h.pod("p0", group="partly", node="n1", requests={"nvidia.com/gpu": 2})
    h.pod("p1", group="partly", requests={"nvidia.com/gpu": 6})
    _add_group(h, "fits", {"nvidia.com/gpu": "4"})
    _add_group(h, "too-much", {"nvidia.com/gpu": "5"})
    h.session()
    plugin = h.plugin("overcommit")
    assert plugin.job_enqueueable(h.job("fits")) is Vote.PERMIT  # 10 x 1.2 - 2 used - 6 reserved
    assert plugin.job_enqueueable(h.job("too-much")) == _refusal(
        Figures("nvidia.com/gpu", 5000, 11_000, 10_000), names="overused nvidia.com/gpu"
    )


def test_a_running_group_below_its_minimum_reserves_nothing() -> None:
    h = _cluster(used="0")
    h.group("degraded", phase="Running", min_member=2, min_resources={"cpu": "12"})
    h.pod("p0", group="degraded", node="n1")
    _add_group(h, "a", {"cpu": "11"})
    h.session()
    assert h.plugin("overcommit").job_enqueueable(h.job("a")) is Vote.PERMIT


def test_gated_pods_release_their_part_of_the_reservation() -> None:
    h = _cluster(used="0")
    h.group("gated", phase="Inqueue", min_resources={"cpu": "10"})
    h.pod("gated", group="gated", requests={"cpu": "6"}, schedulingGates=[{"name": "wait"}])
    _add_group(h, "a", {"cpu": "8"})
    h.session()
    assert h.plugin("overcommit").job_enqueueable(h.job("a")) is Vote.PERMIT


def test_resources_that_a_group_already_holds_are_not_requested_twice() -> None:
    h = _cluster(used="0")
    _add_group(h, "fell-back", {"cpu": "10"})
    h.pod("p0", group="fell-back", node="n1", requests={"cpu": "9"})
    h.session()
    assert h.plugin("overcommit").job_enqueueable(h.job("fell-back")) is Vote.PERMIT


def test_refused_groups_stay_pending_and_are_reported_once() -> None:
    h = _cluster(used="0")
    _add_group(h, "a", {"cpu": "13"})
    h.step()
    h.step()
    assert h.event_messages("PodGroup", "a") == [("Unschedulable", "resource in cluster is overused: overused cpu")]


@pytest.mark.parametrize(
    "arguments, factor, warned",
    [
        pytest.param("", 1.2, False, id="default"),
        pytest.param("overcommit-factor: 1.5", 1.5, False, id="float"),
        pytest.param("overcommit-factor: 2", 2.0, False, id="integer"),
        pytest.param("overcommit-factor: 0.8", 1.2, True, id="below 1"),
        pytest.param("overcommit-factor: '1.5'", 1.2, True, id="a string is no number"),
        pytest.param("overcommit-factor: .inf", 1.2, True, id="infinite"),
    ],
)
def test_factor(arguments: str, factor: float, warned: bool) -> None:
    result = parse_conf(_conf(arguments), registry=registry())
    assert result.conf is not None
    (tier,) = result.conf.tiers
    assert tier[0].arguments == OvercommitArguments(factor)
    assert bool(result.problems) is warned
