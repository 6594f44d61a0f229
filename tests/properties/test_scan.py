"""A cached scan chooses the same nodes as a full evaluation before every pod, whatever happens in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_hooks import CANDIDATES, NODE_PODS, OTHER_NODES, filter, score
from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Scores
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.placement.engine import PlacementEngine
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{{plugins: [{{name: gang}}, {{name: predicates}}, {{name: nodeorder}}, {more}]}}]
"""


class _Guests(Plugin):
    """Scores a node by its pods: pods of even index attract each other, up to three."""

    name = "guests"

    def open(self, session: Session) -> None:
        self._session = session

    def _even(self, rows: NodeView) -> Scores:
        nodes = self._session.nodes.nodes
        guests = [[task for task in nodes[row].tasks.values() if task.name[-1] in "02468"] for row in rows.rows]
        return np.array([len(each) for each in guests], dtype=np.float64)

    @filter(reads=NODE_PODS)
    def filter_even(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        result.reject(self._even(rows) >= 3, Code.UNSCHEDULABLE, "full of even ones")

    @score(reads=NODE_PODS)
    def score_even(self, signature: PodSignature, rows: NodeView) -> Scores:
        return 10 * self._even(rows)


class _Relative(Plugin):
    """Compares the candidates: those whose place among them is a multiple of three are better."""

    name = "relative"

    @score(reads=CANDIDATES)
    def compare(self, signature: PodSignature, candidates: NodeView) -> Scores:
        return np.where(np.arange(len(candidates)) % 3 == 0, 25.0, 0.0)


class _Silent(Plugin):
    """Scores every node by the number of pods in the cluster, without declaring what it reads."""

    name = "silent"

    def open(self, session: Session) -> None:
        self._session = session

    @score
    def score_anywhere(self, signature: PodSignature, rows: NodeView) -> Scores:
        anywhere = sum(len(node.tasks) for node in self._session.nodes.nodes)
        scores: Scores = (anywhere * rows.rows % 7).astype(np.float64)
        return scores


class _Crowd(_Silent):
    """Returns the given scores."""

    name = "crowd"

    @score(reads=OTHER_NODES)
    def score_anywhere(self, signature: PodSignature, rows: NodeView) -> Scores:
        return super().score_anywhere(signature, rows)


class _Chooser(Plugin):
    """Takes the last of the best but one."""

    name = "chooser"

    def best_node(self, signature: PodSignature, rows: Any, scores: Scores) -> int:
        return int(rows[np.argsort(scores, kind="stable")[-2:][0]])


_PLUGINS: dict[str, tuple[type[Plugin], ...]] = {
    "no plugins": (),
    "guests": (_Guests,),
    "compared": (_Relative,),
    "both": (_Guests, _Relative),
    "a chooser": (_Guests, _Chooser),
    "elsewhere": (_Crowd,),
    "a silent plugin": (_Silent,),
}
_SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "pool",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"spread": "yes"}},
        }
    ]
}
_CLASSES: list[dict[str, Any]] = [
    {"requests": {"cpu": "1"}},
    {"requests": {"cpu": "2"}, "nodeSelector": {"pool": "a"}},
    {"requests": {"cpu": "1"}, "labels": {"spread": "yes"}, **_SPREAD},
    {},
]
_PODS = 16
_steps = st.lists(
    st.tuples(
        st.integers(0, len(_CLASSES) - 1),
        st.sampled_from(["place", "place", "place", "promise", "undo", "evict"]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=30,
)
_nodes = st.lists(st.sampled_from("ab"), min_size=1, max_size=8)


def _cluster(plugins: tuple[type[Plugin], ...], pools: list[str]) -> Session:
    more = ", ".join(f"{{name: {plugin.name}}}" for plugin in plugins) or "{name: conformance}"
    h = Harness(_CONF.format(more=more), plugins=plugins)
    for index, pool in enumerate(pools):
        h.node(f"n{index}", cpu="4", labels={"pool": pool})
    h.queue("q")
    for index, spec in enumerate(_CLASSES):
        h.group(f"g{index}", min_member=1)
        for member in range(_PODS):
            h.pod(f"g{index}-w-{member}", group=f"g{index}", **spec)
        h.pod(f"g{index}-w-{_PODS}", group=f"g{index}", node="n0", phase="Running", **spec)
    return h.session()


@pytest.mark.parametrize("most", [1, 64], ids=["one kept", "many kept"])
@pytest.mark.parametrize("plugins", _PLUGINS)
@given(pools=_nodes, steps=_steps)
def test_the_best_row_is_that_of_a_full_scan(
    plugins: str, most: int, pools: list[str], steps: list[tuple[int, str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlacementEngine, "max_score_caches", most)
        session = _cluster(_PLUGINS[plugins], pools)
        engine, statement = session.engine, Statement(session)
        for index, what, which in steps:
            job = session.state.jobs[f"default/g{index}"]
            if what == "undo":
                statement.rollback(max(0, len(statement) - which % 4))
            elif what == "evict":
                running = [task for task in job.tasks.values() if task.status is TaskStatus.RUNNING]
                if running:
                    statement.evict(running[which % len(running)], "test")
            elif pending := list(session.pending_tasks(job)):
                signature = engine.signature(session.queues["q"], pending[0])
                row = engine.best(signature)
                assert row == engine.choose(signature, engine.candidates(signature, future=False))
                if row >= 0:
                    put = statement.allocate if what == "place" else statement.pipeline
                    put(job, [pending[0]], [session.nodes.nodes[row]])


class _Faltering(_Guests):
    """Fails once when armed."""

    name = "faltering"
    fails = False

    @score(reads=NODE_PODS)
    def score_even(self, signature: PodSignature, rows: NodeView) -> Scores:
        if self.fails:
            self.fails = False
            raise RuntimeError("not now")
        return super().score_even(signature, rows)


def test_nodes_with_a_failed_hook_are_evaluated_again() -> None:
    session = _cluster((_Faltering,), ["a", "a"])
    engine, statement = session.engine, Statement(session)
    job = session.state.jobs["default/g0"]
    first, second = list(session.pending_tasks(job))[:2]
    signature = engine.signature(session.queues["q"], first)
    row = engine.best(signature)
    statement.allocate(job, [first], [session.nodes.nodes[row]])
    (plugin,) = (each for each in session.dispatch.plugins if isinstance(each, _Faltering))
    plugin.fails = True
    again = engine.signature(session.queues["q"], second)
    with pytest.raises(HookFailed):
        engine.best(again)
    assert engine.best(again) == row
