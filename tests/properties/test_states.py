"""Rankings over states agree with a full scan, whichever classes take turns and whatever is undone in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.placement import node_classes
from capcard_sched.framework.session.session import Session
from capcard_sched.model.job import Task
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{{plugins: [{{name: gang}}, {{name: predicates}}, {orders}]}}]
"""
_ORDERS = {
    "no scoring plugin": "{name: conformance}",
    "spread": "{name: nodeorder}",
    "pack": "{name: binpack}",
    "both": "{name: nodeorder}, {name: binpack, arguments: {binpack.weight: 3}}",
}
#: Requests by class; classes that select nodes have masks of their own.
_CLASSES: list[dict[str, Any]] = [
    {"requests": {"cpu": "1"}},
    {"requests": {"cpu": "2", "memory": "2Gi"}},
    {"requests": {"cpu": "1"}, "nodeSelector": {"pool": "a"}},
    {"requests": {"cpu": "3"}, "nodeSelector": {"pool": "b"}},
    {"requests": {"cpu": "1", "memory": "1Gi"}, "nodeSelector": {"kubernetes.io/hostname": "n02"}},
    {
        "requests": {"cpu": "1"},
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 7,
                        "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]},
                    }
                ]
            }
        },
    },
]
_PODS = 24
_steps = st.lists(
    st.tuples(
        st.integers(0, len(_CLASSES) - 1),
        st.integers(1, 9),
        st.sampled_from(["kept", "kept", "kept", "undone", "undone later"]),
    ),
    min_size=1,
    max_size=14,
)
_nodes = st.lists(st.tuples(st.sampled_from(["4", "8"]), st.sampled_from("ab")), min_size=1, max_size=12)


def _cluster(orders: str, nodes: list[tuple[str, str]]) -> Session:
    h = Harness(_CONF.format(orders=orders))
    for index, (cpu, pool) in enumerate(nodes):
        name = f"n{index:02d}"
        h.node(name, cpu=cpu, memory="16Gi", labels={"pool": pool, "kubernetes.io/hostname": name})
    h.queue("q")
    for index, spec in enumerate(_CLASSES):
        h.group(f"g{index}", min_member=1)
        for member in range(_PODS):
            h.pod(f"g{index}-w-{member}", group=f"g{index}", **spec)
    return h.session()


def _pending(session: Session, index: int) -> list[Task]:
    return list(session.pending_tasks(session.state.jobs[f"default/g{index}"]))


def _by_scan(session: Session, index: int, count: int) -> list[int]:
    """The rows of the next pods, evaluating all nodes before each; nothing is left placed."""
    job = session.state.jobs[f"default/g{index}"]
    rows: list[int] = []
    placed: list[Task] = []
    for task in _pending(session, index)[:count]:
        signature = session.engine.signature(session.queues["q"], task)
        row = session.engine.choose(signature, session.engine.candidates(signature, future=False))
        if row < 0:
            break
        session.state.place(job, [task], [session.nodes.nodes[row]], TaskStatus.ALLOCATED)
        placed.append(task)
        rows.append(row)
    if placed:
        session.state.unplace(job, placed)
    return rows


@pytest.mark.parametrize("most_kinds", [1, 64], ids=["own states for every mask", "shared states"])
@pytest.mark.parametrize("orders", _ORDERS)
@given(nodes=_nodes, steps=_steps)
def test_after_any_history_rows_are_chosen_as_by_a_full_scan(
    orders: str, most_kinds: int, nodes: list[tuple[str, str]], steps: list[tuple[int, int, str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_classes, "_MAX_STATIC_GROUPS", most_kinds)
        lazy, plain = (_cluster(_ORDERS[orders], nodes) for _ in range(2))
        later: list[tuple[int, list[Task]]] = []
        for index, count, fate in steps:
            tasks = _pending(lazy, index)[:count]
            if not tasks:
                continue
            job, twin = (session.state.jobs[f"default/g{index}"] for session in (lazy, plain))
            ranking = lazy.engine.ranking(lazy.engine.signature(lazy.queues["q"], tasks[0]))
            assert not ranking.is_per_node
            rows = ranking.take(len(tasks), None, ())
            assert rows == _by_scan(plain, index, len(tasks))
            if not rows:
                continue
            run = tasks[: len(rows)]
            lazy.state.place(job, run, [lazy.nodes.nodes[row] for row in rows], TaskStatus.ALLOCATED)
            if fate == "undone":
                lazy.state.unplace(job, run)
                continue
            ranking.applied()
            same = [plain.state.tasks[task.uid] for task in run]
            plain.state.place(twin, same, [plain.nodes.nodes[row] for row in rows], TaskStatus.ALLOCATED)
            if fate == "undone later":
                later.append((index, run))
            elif later:
                other, undone = later.pop()
                for session in (lazy, plain):
                    own = [session.state.tasks[task.uid] for task in undone]
                    session.state.unplace(session.state.jobs[f"default/g{other}"], own)


_deltas = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), st.integers(0, len(_CLASSES) - 1), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("node"), st.integers(0, 14), st.sampled_from([4, 6, 8])),
        st.tuples(st.just("pool"), st.integers(0, 14), st.sampled_from([0, 1])),
        st.tuples(st.just("no node"), st.integers(0, 14), st.just(0)),
    ),
    max_size=5,
)


def _days(orders: str, nodes: list[tuple[str, str]], days: list[list[tuple[str, int, int]]]) -> list[dict[str, str]]:
    """The placements after each day; a session ends it."""
    h = Harness(_CONF.format(orders=orders), run=True)
    known = {f"n{index:02d}": node for index, node in enumerate(nodes)}

    def put(name: str) -> None:
        cpu, pool = known[name]
        h.node(name, cpu=cpu, memory="16Gi", labels={"pool": pool, "kubernetes.io/hostname": name})

    for name in known:
        put(name)
    h.queue("q")
    made, found = 0, []
    for day in days:
        for what, which, how in day:
            name = f"n{which:02d}"
            if what == "pods":
                for _ in range(how):
                    h.group(f"g{made}")
                    h.pod(f"g{made}-w-0", group=f"g{made}", **_CLASSES[which])
                    made += 1
            elif what == "end" and h.binds:
                pod = sorted(h.binds)[which % len(h.binds)]
                del h.binds[pod]
                h.delete_pod(pod)
            elif what == "node":
                known[name] = str(how), known.get(name, ("", "a"))[1]
                put(name)
            elif what == "pool" and name in known:
                known[name] = known[name][0], "ab"[how]
                put(name)
            elif what == "no node" and name in known:
                del known[name]
                h.delete_node(name)
        h.step()
        found.append(dict(h.binds))
    return found


@given(st.sampled_from(sorted(_ORDERS)), _nodes, st.lists(_deltas, min_size=2, max_size=8))
def test_states_that_go_on_choose_as_new_ones(
    orders: str, nodes: list[tuple[str, str]], days: list[list[tuple[str, int, int]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_classes.NodeClasses, "is_reusable", lambda *_: False)
        expected = _days(_ORDERS[orders], nodes, days)
    assert _days(_ORDERS[orders], nodes, days) == expected
