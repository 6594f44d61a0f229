"""Guarantees of docs/numa.md."""

from __future__ import annotations

import re
from pathlib import Path

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.plugins.numa_aware.node_cpus import SETTLE_SECONDS
from capcard_sched.plugins.numa_aware.plugin import NumaAwareArguments
from capcard_sched.testing import registry

PAGE = (Path(__file__).parents[4] / "docs" / "numa.md").read_text()


def test_the_scheduler_conf_of_the_page_loads() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    result = parse_conf(text, registry=registry())
    assert result.conf is not None
    assert not result.problems
    assert result.conf.tiers[1][2].arguments == NumaAwareArguments(10)


def test_the_page_gives_the_time_a_claim_lasts() -> None:
    assert f"has run for {SETTLE_SECONDS:g} s" in PAGE
