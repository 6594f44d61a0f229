"""Measured load on its way through the state."""

from __future__ import annotations

import pytest

from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.model.deltas import NodeUsageChanged, NodeUsageGone
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import EPOCH, Harness


class Looks(Plugin):
    """Looks at load."""

    name = "looks"
    reads = Reads.USAGE


def _harness(plugin: str) -> Harness:
    h = Harness(f'actions: "allocate"\ntiers: [{{plugins: [{{name: {plugin}}}]}}]', plugins=[Looks])
    h.node("n")
    h.settle()
    return h


def test_a_measurement_replaces_the_former_one_and_affects_no_other_node() -> None:
    h = _harness("looks")
    h.apply(NodeUsageChanged({"a": NodeUsage(1, 2, 3), "b": NodeUsage(4)}), NodeUsageChanged({"a": NodeUsage(5, 6, 7)}))
    session = h.session()
    assert session.snapshot.usage == {"a": NodeUsage(5, 6, 7), "b": NodeUsage(4)}
    assert session.changed.usage == {"a", "b"}
    h.apply(NodeUsageGone("a"), NodeUsageGone("never"))
    session = h.session()
    assert (session.snapshot.usage, session.changed.usage) == ({"b": NodeUsage(4)}, {"a"})
    assert h.session().changed.usage == set()


@pytest.mark.parametrize(("plugin", "idle"), [("looks", False), ("gang", True)])
def test_load_starts_a_session_only_where_a_plugin_reads_it(plugin: str, idle: bool) -> None:
    h = _harness(plugin)
    h.apply(NodeUsageChanged({"n": NodeUsage(1)}))
    assert h.step().idle is idle
    assert h.step().idle


@pytest.mark.parametrize(("age", "fresh"), [(0, True), (299, True), (300, False), (900, False), (-60, True)], ids=str)
def test_a_measurement_counts_for_five_minutes(age: float, fresh: bool) -> None:
    assert NodeUsage(1, 1, EPOCH - age).is_fresh(EPOCH) is fresh


def test_a_load_without_a_time_holds() -> None:
    assert NodeUsage(1, 1).is_fresh(EPOCH)
