"""The result for all nodes at once equals the result of each node alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model import deltas
from capcard_sched.model.numa import format_cpus
from capcard_sched.plugins.numa_aware.node_cpus import CpuPlan
from capcard_sched.plugins.numa_aware.numa_rows import NumaRows
from capcard_sched.testing import Harness
from tests.unit.plugins.numa_aware.machines import BEST_EFFORT, RESTRICTED, SINGLE, cluster, detail, numatopology

SHAPES = (
    {"nodes": 1, "cpus": 4},
    {"nodes": 2, "cpus": 4, "threads": 2},
    {"nodes": 4, "cpus": 3, "per_socket": 2},
)


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    shape = draw(st.sampled_from(SHAPES))
    total = len(detail(**shape))
    return {
        "policy": draw(st.sampled_from([BEST_EFFORT, RESTRICTED, SINGLE, "none"])),
        "free": format_cpus(draw(st.integers(0, 2**total - 1))),
        "reserved": draw(st.sampled_from([None, "1", "2500m"])),
        **shape,
    }


def taken_up(objects: list[dict[str, Any]]) -> tuple[Harness, NumaRows]:
    h = cluster()
    for index, obj in enumerate(objects):
        h.node(f"n{index}")
        h.apply(numatopology(f"n{index}", obj["free"], **{key: value for key, value in obj.items() if key != "free"}))
    h.session()
    rows: NumaRows = h.plugin("numa-aware")._rows
    return h, rows


@given(st.lists(machines(), min_size=1, max_size=5), st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_rows_equal_the_plans_of_single_nodes(objects: list[dict[str, Any]], wanted: list[int]) -> None:
    _, rows = taken_up(objects)
    everything = np.arange(len(objects), dtype=np.intp)
    refused, spans = rows.place(everything, rows.tracked, tuple(wanted))
    for row, obj in enumerate(objects):
        if obj["policy"] == "none":
            assert (rows.tracked[row], refused[row], spans[row]) == (False, -1, 0)
            continue
        found = rows._nodes[f"n{row}"].plan(wanted)
        expected = (-1, found.span) if isinstance(found, CpuPlan) else (found.container, 0)
        assert (refused[row], spans[row]) == expected, obj


@given(machines(), st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=2), max_size=6), st.data())
def test_a_released_claim_restores_the_former_row(
    machine: dict[str, Any], pods: list[list[int]], data: st.DataObject
) -> None:
    h, rows = taken_up([{**machine, "policy": BEST_EFFORT}])
    node, cpus = h.state.nodes.by_name["n0"], rows._nodes["n0"]
    history = []
    for index, wanted in enumerate(pods):
        history.append((cpus.available, rows._reach.tolist()))
        rows.claim(node, f"p{index}", tuple(wanted))
        given = rows.assigned(node, f"p{index}")
        if given is None:
            assert sum(wanted) > history[-1][0].bit_count()
        else:
            assert given[1].cpus == history[-1][0] & ~cpus.available
            assert given[1].cpus.bit_count() == sum(wanted)
    for index in reversed(range(len(pods))):
        rows.release(node, f"p{index}")
        assert (cpus.available, rows._reach.tolist()) == history[index]
    assert cpus.claims == {}
    if pods:  # in any other order all is there in the end, too
        for index, wanted in enumerate(pods):
            rows.claim(node, f"p{index}", tuple(wanted))
        for index in data.draw(st.permutations(range(len(pods)))):
            rows.release(node, f"p{index}")
        assert (cpus.available, rows._reach.tolist()) == history[0]


def test_machines_of_more_numa_nodes_may_come_later() -> None:
    h, rows = taken_up([{"free": "0-3", "nodes": 1, "cpus": 4}])
    h.apply(numatopology("n0", "0-15", nodes=8, cpus=2))
    h.session()
    everything = np.array([0], dtype=np.intp)
    assert rows.place(everything, rows.tracked, (2,))[1].tolist() == [1]
    h.apply(deltas.ObjectGone("Numatopology", "", "n0"))
    h.session()
    assert (rows.present.tolist(), rows.tracked.tolist(), rows.tracks_any) == ([False], [False], False)


def test_results_of_many_kinds_are_evicted_and_computed_again() -> None:
    h, rows = taken_up([{"free": "0-15"}, {"free": "0-3,8-15"}])
    everything = np.arange(2, dtype=np.intp)
    for wanted in range(1, 300):
        rows.place(everything, rows.tracked, (wanted,))
    h.session()
    assert rows._sizes == {}
    assert rows.place(everything, rows.tracked, (8,))[1].tolist() == [1, 1]
    assert rows.place(everything, rows.tracked, (9,))[0].tolist() == [0, 0]


def test_a_cached_result_follows_the_rows_that_changed() -> None:
    h, rows = taken_up([{"free": "0-7", "policy": RESTRICTED}, {"free": "0-7", "policy": RESTRICTED}])
    everything, node = np.arange(2, dtype=np.intp), h.state.nodes.by_name["n1"]
    assert rows.place(everything, rows.tracked, (5,))[0].tolist() == [-1, -1]
    rows.claim(node, "p", (4,))
    assert rows.place(everything, rows.tracked, (5,))[0].tolist() == [-1, 0]
    rows.release(node, "p")
    assert rows.place(everything, rows.tracked, (5,))[0].tolist() == [-1, -1]
