"""Searches for victims that failed: which change has them repeated, and on which nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.framework.backlog.failed_searches import (
    EvictionInputs,
    FailedSearches,
    RepeatedSearch,
    SearchId,
    SearchVersion,
    _reordered,
)
from capcard_sched.framework.backlog.queue_books import QueueBooks
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.intents import Evict
from tests.vectors.notation import VectorHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue


def _conf(*plugins: str, actions: str = "preempt, reclaim") -> str:
    gang = "{name: gang, enablePreemptable: false, enableReclaimable: false}"
    listed = ", ".join(f"{{name: {name}}}" for name in ("predicates", *plugins))
    tiers = f"tiers: [{{plugins: [{{name: priority}}, {gang}, {listed}]}}]"
    return f'actions: "enqueue, allocate, {actions}, backfill"\n{tiers}'


def _budget(allowed: int) -> str:
    selector = "{selector: {matchLabels: {app: web}}}"
    return (
        f"object budget kind=PodDisruptionBudget metadata={{namespace: default}} spec={selector} "
        f"status={{disruptionsAllowed: {allowed}}}"
    )


def _victims(queue: str = "q", pod: str = "") -> str:
    """A running pod on each of two nodes, which it fills."""
    return "; ".join(
        f"node n{i} cpu=4 labels=kind:full; group {queue}/low-{i}; pod low-{i}/low-{i} @n{i} cpu=3 {pod}"
        for i in range(2)
    )


def _world(
    conf: str, given: str, *, members: int = 2, refused: str = "", plugins: Sequence[type[Plugin]] = ()
) -> VectorHarness:
    """The statements, a free node of another kind, and a gang of high priority that waits for the full nodes."""
    h = VectorHarness(conf, run=True, plugins=plugins)
    h.do(f"priority_class high 100; {given}")
    h.step()
    if refused:  # by the API server, a short time ago
        h.core._memory.refuse_eviction(h.task(refused).uid, h.now + 120)
    h.do("" if "q" in h.state.queues else "queue q deserved=cpu:1")
    h.do(f"queue late deserved=cpu:50 weight=50; node spare cpu=50 labels=kind:spare; group g min={members} class=high")
    h.do(f"pod g-0..{members - 1} cpu=3 nodeSelector=kind:full")
    h.settle_for(3)
    assert h.core.snapshot().failed_attempts.get("default/g") is not None
    return h


def _late(h: VectorHarness, kind: str, name: str = "late") -> int:
    """The nodes examined for victims in the session of a new pod that fits a node of a kind."""
    h.do(f"group late/{name}; pod {name}/{name} cpu=1 nodeSelector=kind:{kind}")
    h.step()
    assert h.binds[name]
    return h.last_session.results.report.examined_nodes


def _evicted(h: VectorHarness) -> set[str]:
    return {intent.name for intent in h.step().intents if isinstance(intent, Evict)}


WEB = "labels=app:web"
_SCHEDULED = "conditions=[{type: PodScheduled, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}]"


class _Case(NamedTuple):
    """A plugin and statements that protect the victims, and what ends the protection: statements, seconds."""

    plugin: str
    given: str
    change: str = ""
    wait: int = 0
    #: The members of the gang, each of which takes the node of one victim.
    members: int = 2
    #: The victim whose eviction the API server refused.
    refused: str = ""


_CASES = {
    "budget": _Case("pdb", f"{_budget(0)}; queue other; {_victims(pod=WEB)}", _budget(2)),
    "cool-down": _Case("cdp", _victims(pod=f"labels={COOLDOWN_TIME}:2m {_SCHEDULED}"), wait=120),
    "conformance": _Case("conformance", _victims(pod="priorityClassName=system-node-critical"), _victims()),
    "refused eviction": _Case("conformance", _victims(), wait=120, refused="low-0"),
    # Shares of the cluster no longer cover what the queues request.
    "proportion": _Case(
        "proportion",
        f"queue other; queue q weight=100; {_victims('other')}",
        "group late/big; pod big/big cpu=50 nodeSelector=kind:none",
        members=1,
    ),
    "capacity": _Case(
        "capacity",
        f"queue other deserved=cpu:6; {_victims('other')}",
        "queue q deserved=cpu:6; queue other deserved=cpu:1",
    ),
    "reclaimable": _Case(
        "capacity", f"queue other -reclaimable; queue q deserved=cpu:6; {_victims('other')}", "queue other"
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_a_search_that_failed_is_not_repeated_until_its_protection_ends(name: str) -> None:
    case = _CASES[name]
    h = _world(_conf(case.plugin), case.given, members=case.members, refused=case.refused)
    assert _late(h, "spare") == 0, "a node changed that the gang cannot use"
    assert not h.last_session.results.preemption_reports
    assert not _evicted(h)
    h.do(case.change)
    h.now += case.wait
    evicted = _evicted(h)
    assert evicted <= {"low-0", "low-1"}
    assert len(evicted) == case.members


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_only_changed_nodes_are_examined_again(action: str) -> None:
    victims = _victims("q" if action == "preempt" else "other", WEB)
    h = _world(_conf("pdb", actions=action), f"{_budget(0)}; queue other; {victims}")
    assert _late(h, "full") == 1, "of two nodes"
    h.settle()  # the new pod runs
    assert _late(h, "spare", "another") == 0


def test_without_the_eviction_version_of_a_plugin_every_session_searches() -> None:
    class Guarding(Plugin):
        name = "guarding"

        def preemptable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
            return VictimDecision(dict.fromkeys([candidate.uid for candidate in candidates], "guarded"))

    class Declaring(Guarding):
        name = "declaring"

        def eviction_version(self, hook: str, queue: Queue, role: str) -> int:
            return 1

    for plugin, searches in (Guarding, True), (Declaring, False):
        h = _world(_conf(plugin.name, actions="preempt"), _victims(), plugins=[plugin])
        assert (_late(h, "spare") > 0) is searches, plugin.name


def test_free_capacity_that_satisfies_no_gang_leaves_the_search_failed() -> None:
    h = _world(_conf("pdb"), _CASES["budget"].given, members=3)
    h.do("node n2 cpu=4 labels=kind:full")
    h.settle()
    assert h.core.snapshot().failed_attempts.get("default/g") is not None
    assert _late(h, "spare") == 0
    h.set_phase("low-0", "Succeeded")
    h.step()
    assert h.last_session.results.report.examined_nodes <= 2, "the nodes of the pod that ended, for each action"
    assert not h.binds.keys() & {"g-0", "g-1", "g-2"}
    h.do(_budget(1))
    assert _evicted(h) == {"low-1"}


def test_free_capacity_may_change_again_and_again_below_what_a_gang_needs() -> None:
    third = f"{_CASES['budget'].given}; node n2 cpu=6 labels=kind:full,own:yes"
    h = _world(_conf("pdb", actions="preempt"), third, members=3)
    assert _late(h, "full") == 1, "of two nodes; two pods of the gang fit the third"
    h.settle()
    for i in range(4):
        h.do(f"group late/own-{i}; pod own-{i}/own-{i} cpu=1 nodeSelector={{own: 'yes'}}")
        for _ in range(3):
            h.step()
            assert (h.last_session.results.report.errors, h.last_session.results.report.examined_nodes) == ([], 0)
        assert h.binds[f"own-{i}"] == "n2"
    h.do(_budget(2))
    assert not _evicted(h), "for two of three pods"


def test_a_queue_that_uses_less_leaves_the_search_failed() -> None:
    own = "queue q capability=cpu:12; node n2 cpu=4 labels=kind:own; group own; pod own/own @n2 cpu=3"
    h = _world(_conf("pdb", "proportion", actions="preempt"), f"{_CASES['budget'].given}; {own}")
    h.set_phase("own", "Succeeded")
    h.step()
    assert h.last_session.results.report.examined_nodes == 0
    assert h.last_session.results.report.visited_jobs == 0
    h.do(_budget(2))
    assert _evicted(h) == {"low-0", "low-1"}


def test_victims_have_no_bound_for_a_job_that_preempts_and_has_pods() -> None:
    for given, is_bound in ("", True), ("pod g-1 @n cpu=1", False):
        h = VectorHarness(_conf())
        h.do(f"node n cpu=4; queue q; group g min=2; pod g-0 cpu=1; {given}")
        needs = h.session().eviction_needs(h.job("g"))
        assert needs["reclaimable"] is not None
        assert (needs["preemptable"] is not None) is is_bound


def test_rows_that_change_before_a_search_are_examined_together() -> None:
    asked: list[Sequence[int]] = []
    version = SearchVersion(1, 1)

    def repeat(_: Job, rows: Sequence[int]) -> RepeatedSearch:
        asked.append(rows)
        return RepeatedSearch(0, by_tiers=False, within_quota=True)

    h = VectorHarness(_conf())
    h.do("queue q; group g; pod g-0")
    h.session()
    searches = FailedSearches(lambda _: (), QueueBooks())
    search = SearchId("preemptable", "q", 0, "")
    searches.begin("preemptable", EvictionInputs(lambda _: version, {}, lambda _: (), False, repeat))
    searches.note(search, 1, RepeatedSearch(0, by_tiers=False, within_quota=True), is_planned=False)
    searches.keep(search)
    searches.note_rows([search], [2])
    searches.note_rows([search], [1])
    assert searches.failing(search, [1], lambda _: h.job("g")) == 1
    assert asked == [[1, 2]]


@pytest.mark.parametrize(
    ("now", "moved"), [("abcd", ""), ("bcad", "abc"), ("abdc", "cd"), ("xcabd", "abc"), ("dc", "cd"), ("bacd", "ab")]
)
def test_only_names_with_others_before_them_than_before_are_reordered(now: str, moved: str) -> None:
    assert _reordered("abcd", now) == set(moved)


def test_each_eviction_of_a_session_is_counted() -> None:
    h = VectorHarness(_conf())
    engine = h.session().engine
    for number in range(1, 4):
        engine.note_release()
        assert engine.releases == number
