"""The hooks of numa-aware over a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model import deltas
from capcard_sched.plugins.numa_aware.node_cpus import SETTLE_SECONDS
from capcard_sched.plugins.numa_aware.plugin import NumaAwareArguments, normalised
from capcard_sched.testing import hooks_of, registry
from tests.unit.plugins.numa_aware.machines import SINGLE, cluster, numatopology, whole


@pytest.mark.parametrize(
    ("spans", "weight", "scores"),
    [
        pytest.param([1, 2, 2], 1, [50, 0, 0], id="20.1"),
        pytest.param([1, 1], 1, [0, 0], id="20.2"),
        pytest.param([0, 0], 1, [100, 100], id="none-in-use"),
        pytest.param([1, 2, 3], 1, [67, 34, 0], id="rounded-down"),
        pytest.param([1, 2, 2], 10, [500, 0, 0], id="weighted"),
        pytest.param([], 1, [], id="no-candidates"),
    ],
)
def test_vector_scores(spans: list[int], weight: int, scores: list[int]) -> None:
    assert normalised(np.array(spans, dtype=np.float64), weight).tolist() == scores


def test_only_tasks_that_need_cpu_alignment_have_a_private_signature() -> None:
    h = cluster()
    h.node("n")
    whole(h, "whole", 2)
    whole(h, "named", "1500m", SINGLE)
    h.pod("plain")

    def private() -> list[str]:
        session, plugin = h.session(), h.plugin("numa-aware")
        queue, names = session.queues["q"], ("whole", "named", "plain")
        return [name for name in names if hooks_of(plugin, session.engine.signature(queue, h.task(name))).reads_pods]

    assert private() == ["named"], "without CPU alignment whole CPUs are like others"
    h.apply(numatopology("n", "0-15"))
    assert private() == ["whole", "named"]


def test_a_binding_that_is_refused_gives_the_cpus_back() -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-7", nodes=1))
    whole(h, "p", 8)
    h._bound = lambda bind: None  # type: ignore[method-assign]  # the watch shows nothing
    h.step()
    h.apply(deltas.BindFailed(uid="default-p-uid", namespace="default", name="p", message="no", retry_after=60.0))
    whole(h, "r", 8)
    h.step()
    assert h.binds == {"p": "n", "r": "n"}


def test_the_page_has_a_scheduler_conf_that_loads_and_the_time_a_claim_lasts() -> None:
    page = (Path(__file__).parents[4] / "docs" / "numa.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    result = parse_conf(text, registry=registry())
    assert result.conf is not None
    assert not result.problems
    assert result.conf.tiers[1][2].arguments == NumaAwareArguments(10)
    assert f"has run for {SETTLE_SECONDS:g} s" in page
