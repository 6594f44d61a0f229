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
