"""Statement: operations that are committed together or not at all."""

from __future__ import annotations

from typing import ClassVar

import pytest

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.plugin import Placement, Plugin
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.document import to_document
from tests.accounting import rebuilt, recorded
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "allocate"
tiers: [{plugins: [{name: gang}, {name: ledger}, {name: moody}]}]
"""


class _Ledger(Plugin):
    """Keeps accounts of its own from event hooks, as quota plugins do."""

    name: ClassVar[str] = "ledger"

    def __init__(self, arguments: object = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self.placed: dict[str, tuple[str, TaskStatus]] = {}
        self.calls: list[tuple[str, list[str]]] = []

    def on_allocate(self, placement: Placement) -> None:
        self.calls.append(("allocate", [task.name for task in placement.tasks]))
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            assert task.node is node
            self.placed[task.name] = node.name, task.status

    def on_deallocate(self, placement: Placement) -> None:
        self.calls.append(("deallocate", [task.name for task in placement.tasks]))
        for task in placement.tasks:
            self.placed.pop(task.name, None)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]]:
        return {task.uid: {"placed-on": node.name} for task, node in zip(placement.tasks, placement.nodes, strict=True)}


class _Moody(Plugin):
    """Fails in the configured hooks."""

    name: ClassVar[str] = "moody"

    def __init__(self, arguments: object = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self.fails: set[str] = set()

    def _mood(self, hook: str) -> None:
        if hook in self.fails:
            raise RuntimeError(f"no {hook} today")

    def on_allocate(self, placement: Placement) -> None:
        self._mood("on_allocate")

    def on_deallocate(self, placement: Placement) -> None:
        self._mood("on_deallocate")

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]]:
        self._mood("bind_annotations")
        return {task.uid: {"also": "this"} for task in placement.tasks}


def _cluster() -> tuple[VectorHarness, Session]:
    h = VectorHarness(_CONF, plugins=[_Ledger, _Moody])
    h.do("node n1 cpu=8; node n2 cpu=8; queue q; group g min=3 roles=a:1,b:2; pod a0 cpu=2 role=a; pod b0 role=b")
    h.do("pod b1 role=b; pod idle role=b requests={}; group old min=1; pod old/running @n1; pod old/leaving @n2 cpu=6")
    h.do("terminate leaving")
    return h, h.session()


def test_discard_gives_every_byte_back() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    before = to_document(h.state)
    books = h.plugin("ledger")
    statement = Statement(session)
    statement.allocate(job, [h.task("a0")], [n1])
    statement.evict(h.task("running"), "make room")
    statement.pipeline(job, [h.task("b0"), h.task("b1")], [n2, n1])
    statement.allocate(job, [h.task("idle")], [n2])
    assert recorded(h.state) == rebuilt(h.state)
    assert to_document(h.state) != before
    assert (len(statement), len(books.placed)) == (4, 4)
    statement.discard()
    assert to_document(h.state) == before
    assert recorded(h.state) == rebuilt(h.state)
    assert (len(statement), set(books.placed)) == (0, {"running"})
    assert [entry[1] for entry in books.calls[-4:]] == [["idle"], ["b0", "b1"], ["running"], ["a0"]]
    assert not session.results.binds
    assert not session.results.evictions


def test_discard_keeps_the_proposed_node_of_each_task() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    statement = Statement(session)
    statement.allocate(job, [h.task("a0")], [n1])
    statement.pipeline(job, [h.task("b0")], [n2])
    statement.discard()
    found = {h.state.tasks[uid].name: (o.kind, o.node) for uid, o in session.results.outcomes.items()}
    assert found == {"a0": ("schedulable", "n1"), "b0": ("pipelined", "n2")}


def test_commit_emits_binds_and_evictions_and_keeps_nominations() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    statement = Statement(session)
    statement.allocate(job, [h.task("a0")], [n1])
    statement.pipeline(job, [h.task("b0")], [n2])
    statement.evict(h.task("running"), "make room")
    statement.commit()
    assert session.results.binds == [
        Bind("default", "a0", "default-a0-uid", "n1", {"placed-on": "n1", "also": "this"}, queue="q"),
    ]
    assert session.results.evictions == [
        Evict("default", "running", "default-running-uid", "make room", "make room", "n1")
    ]
    statuses = [h.task(name).status for name in ("a0", "b0", "running")]
    assert statuses == [TaskStatus.BINDING, TaskStatus.PIPELINED, TaskStatus.RELEASING]
    assert recorded(h.state) == rebuilt(h.state)
    assert len(statement) == 0
    statement.discard()
    assert h.task("a0").status is TaskStatus.BINDING, "what is committed cannot be discarded"


def test_a_statement_can_be_used_again_after_its_end() -> None:
    h, session = _cluster()
    job, (n1, _) = h.job("g"), session.nodes.nodes
    before = to_document(h.state)
    statement = Statement(session)
    for _ in range(3):
        statement.allocate(job, [h.task("b0")], [n1])
        statement.discard()
    assert to_document(h.state) == before


def test_statements_may_interleave() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    before = to_document(h.state)
    one, two = Statement(session), Statement(session)
    one.allocate(job, [h.task("a0")], [n1])
    two.allocate(job, [h.task("b0")], [n1])
    one.pipeline(job, [h.task("b1")], [n2])
    one.discard()
    assert h.task("b0").status is TaskStatus.ALLOCATED
    two.discard()
    assert to_document(h.state) == before


@pytest.mark.parametrize("back", [["running"], ["second"], ["running", "second"], []])
def test_evictions_are_taken_back_alone(back: list[str]) -> None:
    h, _ = _cluster()
    h.do("pod old/second @n1")
    session = h.session()
    job, (n1, n2), changes = h.job("g"), session.nodes.nodes, h.state.changes
    statement, expected = Statement(session), Statement(session)
    stay = [name for name in ("running", "second") if name not in back]
    for marked in (changes.jobs, changes.queues, changes.nodes):
        marked.clear()
    before = to_document(h.state)
    for name in stay:
        expected.evict(h.task(name), "make room")
    after, marks = to_document(h.state), (set(changes.jobs), set(changes.queues), set(changes.nodes))
    expected.rollback(0)
    statement.evict(h.task("running"), "make room")
    statement.pipeline(job, [h.task("a0")], [n1])
    statement.evict(h.task("second"), "make room")
    statement.pipeline(job, [h.task("b0"), h.task("b1")], [n2, n1])
    placed = statement.take_back({h.task(name).uid for name in back})
    assert [([task.name for task in one.tasks], one.nodes) for one in placed] == [
        (["a0"], [n1]),
        (["b0", "b1"], [n2, n1]),
    ]
    assert [task.name for task in statement.evicted] == stay
    assert to_document(h.state) == after
    assert (changes.jobs, changes.queues, changes.nodes) == marks
    assert recorded(h.state) == rebuilt(h.state)
    statement.rollback(0)
    assert to_document(h.state) == before
    assert (changes.jobs, changes.queues, changes.nodes) == (set(), set(), set())


# --- plugins that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["allocate", "pipeline"])
def test_an_operation_whose_event_hook_fails_is_undone_alone(operation: str) -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    statement = Statement(session)
    statement.allocate(job, [h.task("a0")], [n1])
    before, books = to_document(h.state), dict(h.plugin("ledger").placed)
    h.plugin("moody").fails = {"on_allocate"}
    with pytest.raises(HookFailed) as caught:
        getattr(statement, operation)(job, [h.task("b0"), h.task("b1")], [n1, n2])
    assert (caught.value.plugin, caught.value.hook) == ("moody", "on_allocate")
    assert to_document(h.state) == before
    assert h.plugin("ledger").placed == books, "the notified plugins get the undo"
    assert len(statement) == 1


def test_an_eviction_whose_event_hook_fails_is_undone() -> None:
    h, session = _cluster()
    before = to_document(h.state)
    h.plugin("moody").fails = {"on_deallocate"}
    statement = Statement(session)
    with pytest.raises(HookFailed):
        statement.evict(h.task("running"), "make room")
    assert to_document(h.state) == before
    assert h.plugin("ledger").placed == {"running": ("n1", TaskStatus.RUNNING)}
    assert len(statement) == 0


def test_discard_undoes_everything_although_a_plugin_fails_each_time() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    before = to_document(h.state)
    statement = Statement(session)
    statement.allocate(job, [h.task("a0")], [n1])
    statement.allocate(job, [h.task("b0")], [n2])
    statement.evict(h.task("running"), "make room")
    h.plugin("moody").fails = {"on_allocate", "on_deallocate"}
    statement.discard()
    assert to_document(h.state) == before
    assert set(h.plugin("ledger").placed) == {"running"}
    assert [(error.plugin, error.hook) for error in session.results.report.errors] == [
        ("moody", "on_allocate"),
        ("moody", "on_deallocate"),
        ("moody", "on_deallocate"),
    ]


def test_nothing_is_committed_when_the_pod_annotations_of_a_plugin_fail() -> None:
    h, session = _cluster()
    job, (n1, n2) = h.job("g"), session.nodes.nodes
    before = to_document(h.state)
    statement = Statement(session)
    statement.allocate(job, [h.task("b0"), h.task("b1")], [n1, n2])
    statement.evict(h.task("running"), "make room")
    h.plugin("moody").fails = {"bind_annotations"}
    with pytest.raises(HookFailed) as caught:
        statement.commit()
    assert (caught.value.plugin, caught.value.hook) == ("moody", "bind_annotations")
    assert (session.results.binds, session.results.evictions, session.results.report.bound) == ([], [], [])
    statement.discard()
    assert to_document(h.state) == before


def test_a_pod_that_is_evicted_twice_leaves_once() -> None:
    h, session = _cluster()
    before = to_document(h.state)
    statement = Statement(session)
    for _ in range(2):
        statement.evict(h.task("running"), "make room")
        assert recorded(h.state) == rebuilt(h.state)
    statement.discard()
    assert to_document(h.state) == before
