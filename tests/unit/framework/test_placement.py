"""Placement of pods: scores, ties, alternatives, hooks that look further than one node, and nominated nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from capcard_sched.framework.api.node_hooks import (
    CANDIDATES,
    NODE_AMOUNTS,
    NODE_SPEC,
    OTHER_NODES,
    NodeReads,
    filter,
    score,
)
from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Scores
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import TaskStatus
from tests import objects
from tests.vectors.notation import VectorHarness


def _conf(*plugins: str) -> str:
    listed = ", ".join(f"{{name: {name}}}" for name in ("gang", *plugins))
    return f'actions: "allocate"\ntiers: [{{plugins: [{listed}]}}]'


def _cluster(count: int, *plugins: type[Plugin], cpu: int = 4) -> VectorHarness:
    h = VectorHarness(_conf(*(plugin.name for plugin in plugins)), plugins=plugins)
    for i in reversed(range(count)):
        h.node(f"n{i}", cpu=str(cpu))
    h.do("queue q; group g")
    return h


def _scoring(name: str, reads: NodeReads, compute: Callable[[NodeView], Scores]) -> type[Plugin]:
    """A plugin that scores nodes by what it reads."""

    @score(reads=reads)
    def score_nodes(self: Plugin, signature: PodSignature, rows: NodeView) -> Scores:
        return compute(rows)

    return type(name.title(), (Plugin,), {"name": name, "score_nodes": score_nodes})


#: Prefer nodes with more free cpu, and with less (all scores are negative).
_EMPTIEST = _scoring("emptiest", NODE_AMOUNTS, lambda rows: rows.idle[:, 0] / 1000.0)
_FULLEST = _scoring("fullest", NODE_AMOUNTS, lambda rows: -rows.idle[:, 0].astype(np.float64))
#: Compares nodes: the middle one of those left is best.
_COMPARING = _scoring("comparing", CANDIDATES, lambda rows: (np.arange(len(rows)) == len(rows) // 2).astype(np.float64))


class _OnePerNode(Plugin):
    """Reads the tasks of the node itself, undeclared: at most one pod on each."""

    name: ClassVar[str] = "one-per-node"

    @filter
    def filter_taken(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        result.reject(np.array([bool(rows.nodes[row].tasks) for row in rows.rows]), Code.UNSCHEDULABLE, "taken")


class _Together(Plugin):
    """Reads other nodes: everyone follows the first pod."""

    name: ClassVar[str] = "together"

    @filter(reads=OTHER_NODES)
    def filter_apart(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        taken = [row for row, node in enumerate(rows.nodes) if node.tasks]
        result.reject(~np.isin(rows.rows, taken or rows.rows), Code.UNSCHEDULABLE, "apart from the others")


class _Favourite(Plugin):
    """Prefers one node by name, whatever is on it; refuses another."""

    name: ClassVar[str] = "favourite"

    @filter(reads=NODE_SPEC)
    def filter_name(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        rejected = np.array([rows.nodes[row].name == "n0" for row in rows.rows])
        result.reject(rejected, Code.UNRESOLVABLE, "not this one")

    @score(reads=NODE_SPEC)
    def score_name(self, signature: PodSignature, rows: NodeView) -> Scores:
        return np.array([100.0 * (rows.nodes[row].name == "n2") for row in rows.rows])


class _Last(Plugin):
    """Takes the choice out of everyone's hands."""

    name: ClassVar[str] = "last"

    def best_node(
        self, signature: PodSignature, rows: np.ndarray[tuple[int], np.dtype[np.intp]], scores: Scores
    ) -> int:
        return int(rows[-1])


@pytest.mark.parametrize(
    "nodes, plugins, pods, expected",
    [
        pytest.param(3, [], 5, "n0 n0 n0 n0 n1", id="equal nodes fill up in order of name"),
        pytest.param(3, [_EMPTIEST], 7, "n0 n1 n2 n0 n1 n2 n0", id="every pod sees the ones before"),
        pytest.param(4, [_Favourite], 7, "n2 n2 n2 n2 n1 n1 n1", id="static answers hold throughout"),
        pytest.param(4, [_Favourite, _EMPTIEST], 5, "n2 n2 n2 n2 n1", id="scores are added"),
        pytest.param(3, [_OnePerNode], 4, "n0 n1 n2 -", id="a scorer that reads tasks runs for each task"),
        pytest.param(3, [_Together], 6, "n0 n0 n0 n0 - -", id="so does a scorer that reads other nodes"),
        pytest.param(3, [_COMPARING], 5, "n1 n1 n1 n1 n2", id="so does a scorer that compares nodes"),
        pytest.param(3, [_Last], 5, "n2 n2 n2 n2 n1", id="the best-node hook has the last word"),
        pytest.param(0, [_EMPTIEST], 2, "- -", id="no nodes"),
    ],
)
@pytest.mark.parametrize("minimum", [1, 0])
def test_placement_of_pods(nodes: int, plugins: list[type[Plugin]], pods: int, expected: str, minimum: int) -> None:
    h = _cluster(nodes, *plugins)
    h.group("g", min_member=minimum)
    for i in range(pods):
        h.pod(f"g-w-{i}")
    h.step()
    assert " ".join(h.binds.get(f"g-w-{i}", "-") for i in range(pods)) == expected


def test_long_runs_refill_the_list_of_the_best() -> None:
    h = _cluster(200, _EMPTIEST, cpu=5)
    h.do("group g min=1000; pod g-w-0..999")
    h.step()
    per_node: dict[str, int] = {}
    for node in h.binds.values():
        per_node[node] = per_node.get(node, 0) + 1
    assert set(per_node.values()) == {5}
    assert len(per_node) == 200
    order = [h.binds[f"g-w-{i}"] for i in range(200)]
    assert order == sorted(order), "one round over all nodes before the second"


def test_a_ranking_of_negative_scores_follows_the_placements_of_many_others() -> None:
    h = VectorHarness(_conf("fullest"), plugins=[_FULLEST])
    h.queue("q")
    for i in range(80):
        h.node(f"n{i:02}", cpu=str(100 + i))
    for name, pods, cpu in ("a", 1, "1"), ("b", 40, "135"), ("c", 1, "1"):
        h.group(name, min_member=pods)
        for i in range(pods):
            h.pod(f"{name}-{i}", group=name, requests={"cpu": cpu})
    h.step()
    assert (h.binds["a-0"], h.binds["b-1"], h.binds["c-0"]) == ("n00", "n36", "n36"), "1 cpu is left there"


def test_a_lane_that_is_full_ends_the_run() -> None:
    h = _cluster(4, _EMPTIEST)
    h.pod("p")
    session = h.session()
    ranking = session.engine.ranking(session.engine.signature(session.queues["q"], h.task("p")))
    alternatives = np.array([0, 1, -1, 0], dtype=np.intp)
    assert ranking.take(9, alternatives, (2, 5)) == [0, 1, 2, 3]


def test_a_ranking_follows_placements_and_undoings_of_others() -> None:
    h = _cluster(2, _EMPTIEST)
    h.do("pod a cpu=1; pod b cpu=3")
    session = h.session()
    job, engine, queue = h.job("g"), session.engine, session.queues["q"]
    small = engine.signature(queue, h.task("a"))
    assert engine.ranking(small).take(0, None, ()) == []
    statement = Statement(session)
    statement.allocate(job, [h.task("b")], [session.nodes.nodes[0]])
    assert engine.ranking(small).take(1, None, ()) == [1]
    statement.discard()
    session.state.place(job, [h.task("a")], [session.nodes.nodes[1]], TaskStatus.ALLOCATED)
    assert engine.ranking(small).take(1, None, ()) == [0]


@pytest.mark.parametrize(
    "nominated, cpu, expected",
    [
        pytest.param("n2", "1", "n2", id="it has room"),
        pytest.param("n1", "4", "n0", id="it is too full"),
        pytest.param("missing", "1", "n0", id="it is gone"),
    ],
)
def test_a_nominated_node_is_tried_first_if_it_fits(nominated: str, cpu: str, expected: str) -> None:
    h = _cluster(3)
    h.pod("other", group=None, scheduler="other", node="n1")
    h.apply(objects.pod("p", group="g", requests={"cpu": cpu}, nominated=nominated))
    h.step()
    assert h.binds == {"p": expected}


def test_a_ranking_is_kept_until_a_node_changes() -> None:
    batch_sizes: list[int] = []

    class Counting(_Favourite):
        name = "counting"

        @filter(reads=NODE_SPEC)
        def filter_name(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
            batch_sizes.append(len(rows))

    h = _cluster(2, Counting)
    h.pod("p", requests={"cpu": "9"})
    h.step()
    first = len(batch_sizes)
    h.pod("foreign", group=None, node="n0", scheduler="other", requests={"cpu": "1"})
    h.step()
    diagnosed = batch_sizes[first:]
    h.node("n5", cpu="4")
    h.step()
    assert first >= 1
    assert diagnosed.count(2) == 0, "a pod on a node is no change of nodes"
    assert 3 in batch_sizes


@pytest.mark.parametrize("releasing, promised, room", [(0, 0, 4), (2, 0, 4), (2, 3, 3), (2, 3, 2), (2, 3, 1)])
def test_future_idle_counts_releasing_and_pipelined_amounts(releasing: int, promised: int, room: int) -> None:
    h = _cluster(1)
    if releasing:
        h.pod("old", group=None, scheduler="other", node="n0", requests={"cpu": str(releasing)})
        h.terminate("old")
    h.pod("p", requests={"cpu": str(room)})
    h.pod("q", requests={"cpu": str(promised or 1)})
    session = h.session()
    if promised:
        Statement(session).pipeline(h.job("g"), [h.task("q")], [session.nodes.nodes[0]])
    engine = session.engine
    signature = engine.signature(session.queues["q"], h.task("p"))
    fits_later = promised + room <= 4
    assert engine.fits(signature, 0, future=True) is fits_later
    assert engine.fits(signature, 0, future=False) is (room <= 4 - releasing and fits_later)


class _Remembering(Plugin):
    """Answers with an array of its own, the same in every call, and refuses small nodes."""

    name: ClassVar[str] = "remembering"
    points: ClassVar[dict[int, Scores]] = {}

    @filter(reads=NODE_AMOUNTS)
    def filter_size(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        result.reject(rows.allocatable[:, 0] < 4000, Code.UNSCHEDULABLE, "not here")

    @score(reads=NODE_AMOUNTS)
    def score_same(self, signature: PodSignature, rows: NodeView) -> Scores:
        return self.points.setdefault(len(rows), np.full(len(rows), 7.0))


def test_scores_a_plugin_keeps_are_not_written_to() -> None:
    h = _cluster(3, _Remembering)
    h.do("node n0 cpu=2; pod p-0..1 cpu=1")
    h.step()
    assert set(h.binds.values()) == {"n1"}
    assert _Remembering.points, "the plugin was called"
    assert all((points == 7.0).all() for points in _Remembering.points.values())
