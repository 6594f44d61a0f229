"""`explain --fix`: the right fixes of every situation, and every fix of random clusters proven on another cluster."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from capcard_sched.cli.main import run
from capcard_sched.framework.core import StepResult
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.insight.fixes.kinds import KINDS
from capcard_sched.insight.fixes.search import suggest_fixes
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.preemption import begin_trial
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import Evict
from capcard_sched.model.trials import FixSearch, SuggestedChange
from capcard_sched.testing import Harness
from tests.insight.json_schema import violations
from tests.insight.test_situations import HERE, SCHEMA, explained
from tests.scenarios.notation import expanded

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "fixes.yaml").read_text())


def check_fixes(case: dict[str, Any], text: str, document: dict[str, Any]) -> None:
    """Compare the fixes of an answer, as text and as JSON, with a case."""
    assert violations(document, SCHEMA, SCHEMA) == []
    found = [[change["text"] for change in fix["changes"]] for fix in document["fixes"]["fixes"]]
    for wanted in case["fixes"]:
        assert any(_is(changes, wanted) for changes in found), f"{wanted} is missing: {found}"
    assert bool(found) == bool(case["fixes"]), found
    assert not [
        other for other in case.get("lacks", ()) if any(other in change for changes in found for change in changes)
    ]
    assert case.get("reach", "") in text
    assert "(0 trials" not in text
    assert all(command in text for command in case.get("commands", ()))
    assert document["fixes"]["reason"] == case.get("reason", "")
    assert document["fixes"]["reason"] in text
    for change in (change for fix in document["fixes"]["fixes"] for change in fix["changes"]):
        assert change["text"] in text
    for line in (line for fix in document["fixes"]["fixes"] for line in fix["lines"]):
        assert line in text


def _is(changes: list[str], wanted: list[str]) -> bool:
    """Whether the texts begin as wanted: names of single pods may follow."""
    return len(changes) == len(wanted) and all(any(text.startswith(one) for text in changes) for one in wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}, {case['name']}")
def test_the_fix_of_a_situation_is_proposed(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = str(expanded(HERE / "situations" / f"{case['file']}.yaml"))
    check_fixes(case, *explained(capsys, case["name"], "-f", file, "--until", case["until"], "--fix"))


def test_another_card_of_a_job_without_pods_names_those_of_its_templates(capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(HERE.parents[1] / "config" / "examples" / "demo")
    assert run(["explain", "llm-tuning", "-f", demo, "--until", "1m", "--fix", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["fixes"]["fixes"]
    (change, *_) = [change for fix in found for change in fix["changes"] if change["kind"] == "AcceptCard"]
    assert (change["before"], change["after"]) == ("NVIDIA-H200", "NVIDIA-H200|NVIDIA-A100-80GB")
    assert change["text"] == "job/llm-tuning accepts NVIDIA-H200|NVIDIA-A100-80GB"


# --- random clusters ------------------------------------------------------------------------------------------------

H200, A100 = "NVIDIA-H200", "NVIDIA-A100-80GB"
TAINT = {"key": "dedicated", "value": "llm", "effect": "NoSchedule"}
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}
CONF = """
actions: "{actions}"
tiers: [{{plugins: [{{name: priority}}, {{name: gang, enablePreemptable: false}}, {{name: predicates}},
  {{name: capacity-card}}]}}]
"""


class Spec(NamedTuple):
    """A random cluster."""

    actions: str
    #: Card, number of cards, state.
    nodes: list[tuple[str, int, str]]
    #: Quotas of H200 and A100 of queue a, of H200 of queue b, and of H200 of their parent (None: no limit).
    quotas: tuple[int, int, int, int | None]
    #: Capability cpu of queue a; None for none.
    cpu: int | None
    #: Queue, node, cards and priority of one running pod.
    pods: list[tuple[str, int, int, int]]
    #: Queue, pods, cards of one pod of pending gangs.
    others: list[tuple[str, int, int]]
    #: Card, pods, cards of one pod.
    gang: tuple[str, int, int]
    #: The card of one more pod of the gang; "" for none.
    other_card: str = ""


SPECS = st.builds(
    Spec,
    actions=st.sampled_from(["enqueue, allocate", "enqueue, allocate", "enqueue, allocate, preempt"]),
    nodes=st.lists(
        st.tuples(
            st.sampled_from([H200, H200, A100]), st.integers(2, 8), st.sampled_from(["", "", "cordoned", "tainted"])
        ),
        min_size=1,
        max_size=4,
    ),
    quotas=st.tuples(
        st.sampled_from([0, 3, 6, 20]),
        st.sampled_from([0, 8]),
        st.sampled_from([4, 20]),
        st.sampled_from([None, None, 6, 40]),
    ),
    cpu=st.sampled_from([None, None, 3, 40]),
    pods=st.lists(
        st.tuples(st.sampled_from("aab"), st.integers(0, 3), st.integers(1, 4), st.sampled_from([0, 50])), max_size=6
    ),
    others=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 4)), max_size=2),
    gang=st.tuples(
        st.sampled_from([H200, H200, A100, "NVIDIA-H-200"]), st.integers(1, 4), st.sampled_from([1, 2, 4, 8])
    ),
    other_card=st.sampled_from(["", "", H200, A100, "NVIDIA-A100"]),
)


class FixedCluster(Harness):
    """A cluster of a `Spec`. Evicted pods end at once; bound pods run."""

    def __init__(self, spec: Spec, changes: Iterable[SuggestedChange] = ()) -> None:
        super().__init__(CONF.format(actions=spec.actions), run=True)
        self.spec, self.seen = spec, list[Delta]()
        self._cards = [spec.gang[0]] * spec.gang[1] + [spec.other_card] * bool(spec.other_card)
        self._gang: dict[str, Any] = {"min_member": len(self._cards), "priority_class": ""}
        self._pods_of_gang: dict[str, Any] = {}
        self._quotas = {"a": {H200: spec.quotas[0], A100: spec.quotas[1]}, "b": {H200: spec.quotas[2]}}
        if spec.quotas[3] is not None:
            self._quotas["p"] = {H200: spec.quotas[3], A100: 40}
        self._cpu = spec.cpu
        self._build()
        self.run()
        for change in changes:
            self._change(change)
        self.run()

    def step(self, now: float | None = None, cuts: Mapping[str, Any] | None = None) -> StepResult:
        self.seen += self._deltas
        return super().step(now, cuts)

    def run(self) -> None:
        for _ in range(40):
            result = self.step()
            evicted = [intent for intent in result.intents if isinstance(intent, Evict)]
            for intent in evicted:
                self.delete_pod(intent.name)
            if result.idle and not evicted:
                return
        raise AssertionError("still busy")

    @property
    def starts(self) -> bool:
        return self.job("gang").is_ready()

    def _build(self) -> None:
        self.priority_class("middle", 100)
        self.priority_class("some", 50)
        for index in range(len(self.spec.nodes)):
            self._node(index)
        if "p" in self._quotas:
            self._queue("p")
        for name in "ab":
            self._queue(name)
        free = [count for _, count, _ in self.spec.nodes]
        for number, (queue, node, cards, priority) in enumerate(self.spec.pods):
            if node < len(free) and free[node] >= cards:
                free[node] -= cards
                self.group(f"run{number}", queue=queue, phase="Running", priority_class="some" if priority else "")
                card = self.spec.nodes[node][0]
                more: dict[str, Any] = {"node": f"n{node}", "phase": "Running", "priority": priority}
                self.pod(f"run{number}", group=f"run{number}", card=card, cards=cards, **more)
        for number, (queue, size, cards) in enumerate(self.spec.others):
            self.group(f"other{number}", queue=queue, min_member=size)
            for index in range(size):
                self.pod(f"other{number}-{index}", group=f"other{number}", card=H200, cards=cards)
        self._make_gang()

    def _node(self, index: int, **state: bool) -> None:
        card, count, written = self.spec.nodes[index]
        cordoned, tainted = state.get("cordoned", written == "cordoned"), state.get("tainted", written == "tainted")
        self.gpu_node(f"n{index}", card, count, unschedulable=cordoned, taints=[TAINT] if tainted else [])

    def _queue(self, name: str) -> None:
        cpu = {"cpu": str(self._cpu)} if name == "a" and self._cpu is not None else None
        parent = "p" if name != "p" and "p" in self._quotas else None
        self.queue(name, cards=self._quotas[name], capability=cpu, parent=parent)

    def _make_gang(self) -> None:
        self.group("gang", queue="a", phase=self.phases.get("gang", "Inqueue"), **self._gang)
        for index, card in enumerate(self._cards):
            self.pod(f"gang-{index}", group="gang", card=card, cards=self.spec.gang[2], **self._pods_of_gang)

    def _change(self, change: SuggestedChange) -> None:
        """Make a change by its data."""
        _, _, name = change.object.partition(" ")
        match change.kind:
            case "Quota":
                self._quotas[name][change.subject] = int(change.after)
                self._queue(name)
            case "Capability":
                self._cpu = int(change.after)
                self._queue(name)
            case "Uncordon":
                self._node(int(name[1:]), cordoned=False)
            case "Untaint":
                self._node(int(name[1:]), tainted=False)
            case "Tolerate":
                self._pods_of_gang["tolerations"] = [TOLERATION]
                self._make_gang()
            case "AcceptCard":
                self._cards = [change.after if card == change.before else card for card in self._cards]
                self._make_gang()
            case "MinAvailable":
                self._gang["min_member"] = int(change.after)
                self._make_gang()
            case "Priority":
                self._gang["priority_class"] = change.after
                self._make_gang()
            case "Action":
                self.reconfigure(CONF.format(actions=change.after))
            case "End":
                group = name.partition("/")[2]
                for task in self.job(group).tasks.copy().values():
                    self.delete_pod(task.name)
                self.delete_group(group)
            case _:
                raise AssertionError(change)


def search(cluster: FixedCluster) -> FixSearch | None:
    job, core = cluster.job("gang"), cluster.core
    found = diagnose_job(core.snapshot(), job)
    trial = begin_trial(core, DeltaObjects(cluster.seen), job, cluster.now)
    if trial is not None:
        found = msgspec.structs.replace(found, preemption=trial.finding().result)
    return suggest_fixes(core, DeltaObjects(cluster.seen), job, found, cluster.now)


def smaller(change: SuggestedChange) -> SuggestedChange | None:
    """The change with an amount that is smaller by one; None without such an amount."""
    if change.kind not in {"Quota", "MinAvailable", "Capability"}:
        return None
    before, after = int(change.before), int(change.after)
    step = 1 if after > before else -1
    return None if abs(after - before) == 1 else msgspec.structs.replace(change, after=str(after - step))


@settings(max_examples=settings().max_examples // 3)
@given(SPECS)
def test_every_fix_starts_the_job_and_no_part_can_be_left_out(spec: Spec) -> None:
    cluster = FixedCluster(spec)
    assume(not cluster.starts)
    found = search(cluster)
    assert found is not None
    event(f"fixes: {len(found.fixes)}")
    for fix in found.fixes:
        assert fix.minimal or found.bound
        event("kinds: " + ", ".join(sorted({change.kind for change in fix.changes})))
        texts = [change.text for change in fix.changes]
        assert FixedCluster(spec, fix.changes).starts, texts
        for index, change in enumerate(fix.changes):
            if not fix.minimal:
                continue
            rest = [*fix.changes[:index], *fix.changes[index + 1 :]]
            assert not FixedCluster(spec, rest).starts, f"{change.text} is not needed: {texts}"
            less = smaller(change)
            if less is not None:
                assert not FixedCluster(spec, [*rest, less]).starts, f"{less} suffices: {texts}"


def all_changes(cluster: FixedCluster) -> list[SuggestedChange]:
    """Every change of a cluster, each as large as possible."""
    spec, found = cluster.spec, []

    def add(kind: str, name: str, subject: str = "", after: str = "", before: str = "") -> None:
        text = f"{kind} {name} {after}"
        found.append(SuggestedChange(kind=kind, object=name, subject=subject, before=before, after=after, text=text))

    for queue, card in (("a", H200), ("a", A100), ("b", H200), *([("p", H200)] if spec.quotas[3] is not None else [])):
        add("Quota", f"Queue {queue}", card, "100")
    if spec.cpu is not None:
        add("Capability", "Queue a", "cpu", "1000")
    for index, (_, _, state) in enumerate(spec.nodes):
        if state:
            add("Uncordon" if state == "cordoned" else "Untaint", f"Node n{index}")
    for own in filter(None, dict.fromkeys((spec.gang[0], spec.other_card))):
        for card in (H200, A100):
            if card != own:
                add("AcceptCard", "Job default/gang", before=own, after=card)
    for size in range(1, cluster.job("gang").min_available):
        add("MinAvailable", "Job default/gang", after=str(size))
    for job in cluster.state.jobs.values():
        if job.name != "gang":
            add("End", f"Job default/{job.name}")
    return found


def test_two_changes_are_tried_together_where_neither_shows_the_other() -> None:
    found = search(FixedCluster(Spec("enqueue, allocate", [(H200, 6, "")], (6, 0, 4, 40), 3, [], [], (A100, 6, 1))))
    assert found is not None
    assert [sorted(change.kind for change in fix.changes) for fix in found.fixes] == [["AcceptCard", "Capability"]]


def test_tasks_of_two_short_cards_are_two_changes() -> None:
    nodes = [(H200, 4, ""), (A100, 4, "")]
    spec = Spec("enqueue, allocate", nodes, (8, 8, 4, None), None, [], [], ("NVIDIA-H-200", 2, 2), "NVIDIA-A100")
    found = search(FixedCluster(spec))
    assert found is not None
    changes = [(change.before, change.after) for fix in found.fixes for change in fix.changes]
    assert sorted(changes[:2]) == [("NVIDIA-A100", A100), ("NVIDIA-H-200", H200)]


def test_a_gang_larger_than_a_full_cluster_starts_smaller_after_the_end_of_a_job() -> None:
    pods = [("a", 0, 4, 0), ("a", 1, 4, 0)]
    spec = Spec("enqueue, allocate", [(H200, 4, "")] * 2, (20, 0, 4, None), None, pods, [], (H200, 5, 4))
    found = search(FixedCluster(spec))
    assert found is not None
    texts = [[change.text.split(" (")[0] for change in fix.changes] for fix in found.fixes]
    assert texts[:2] == [
        ["minAvailable of podgroup/gang: 5 → 1", "end default/podgroup/run0"],
        ["minAvailable of podgroup/gang: 5 → 2", "end default/podgroup/run0", "end default/podgroup/run1"],
    ]


@settings(max_examples=settings().max_examples // 10)
@given(SPECS)
def test_without_a_fix_no_two_changes_start_the_job(spec: Spec) -> None:
    # Pods that few nodes, or none, can take.
    cluster = FixedCluster(spec._replace(gang=(*spec.gang[:2], 8), nodes=spec.nodes[:2]))
    spec = cluster.spec
    assume(not cluster.starts)
    found = search(cluster)
    assert found is not None
    event(f"fixes: {bool(found.fixes)}, bound: {bool(found.bound)}")
    assume(not found.fixes and not found.bound)
    changes = all_changes(cluster)
    for tried in (*((one,) for one in changes), *itertools.combinations(changes, 2)):
        assert not FixedCluster(spec, tried).starts, [change.text for change in tried]
    smallest = [change for change in changes if change.kind == "MinAvailable"][:1]
    ended = [change for change in changes if change.kind == "End"]
    placed = [FixedCluster(spec, tried).job("gang").ready_tasks for tried in (smallest, [*smallest, *ended])]
    assert found.reach is not None
    assert [found.reach.now, found.reach.alone] == placed
    assert found.reach.wanted == cluster.job("gang").min_available


# --- scheduler-confs, and the bound -----------------------------------------------------------------------------------


def fixes_of(h: Harness, seen: list[Delta]) -> list[list[str]]:
    found = suggest_fixes(
        h.core, DeltaObjects(seen), h.job("waits"), diagnose_job(h.core.snapshot(), h.job("waits")), h.now
    )
    assert found is not None
    return [[change.text for change in fix.changes] for fix in found.fixes]


def waiting(conf: str, running: int = 0) -> tuple[Harness, list[Delta]]:
    """A job that needs 4 of the 8 cards, of which a pod of lower priority uses `running`."""
    h = Harness(conf)
    h.gpu_node("n1")
    h.queue("q", cards={H200: 8})
    h.priority_class("urgent", 1000)
    if running:
        h.group("runs", phase="Running")
        h.pod("runs", group="runs", card=H200, cards=running, node="n1", phase="Running", priority=0)
    h.group("waits", priority_class="urgent")
    h.pod("waits", group="waits", card=H200, cards=4, priority=1000)
    seen = list(h._deltas)
    h.step()
    return h, seen


def test_a_missing_action_is_switched_on() -> None:
    assert fixes_of(*waiting(CONF.format(actions="enqueue"))) == [["action allocate in the scheduler-conf"]]


def test_a_missing_plugin_is_switched_on() -> None:
    conf = CONF.format(actions="enqueue, allocate, preempt").replace("{name: priority}, ", "")
    assert ["plugin priority in the scheduler-conf"] in fixes_of(*waiting(conf, running=8))


@pytest.mark.parametrize("has_rival", [False, True])
def test_jobs_that_end_one_after_the_other_leave_nothing_to_others(has_rival: bool) -> None:
    """A gang of two nodes, each held by a job: it is nominated to the second, so that no job takes the first."""
    h = Harness(CONF.format(actions="enqueue, allocate"))
    h.queue("q", cards={H200: 12})
    for number, name in enumerate(("x", "y")):
        h.gpu_node(f"n{number}", H200, 4)
        h.group(name, phase="Running")
        h.pod(name, group=name, card=H200, cards=4, node=f"n{number}", phase="Running")
    h.priority_class("urgent", 1000)
    h.group("waits", min_member=2, priority_class="urgent")
    for name in ("w0", "w1"):
        h.pod(name, group="waits", card=H200, cards=4, priority=1000)
    if has_rival:
        h.group("rival")
        h.pod("rival", group="rival", card=H200, cards=4)
    seen = list(h._deltas)
    h.step()
    ends = ["end default/podgroup/x (1 pod)", "end default/podgroup/y (1 pod)"]
    assert ends in list(map(sorted, fixes_of(h, seen)))


def test_the_bound_that_ends_a_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capcard_sched.insight.fixes.search.MAX_TRIALS", 1)
    h, seen = waiting(CONF.format(actions="enqueue, allocate"), running=8)
    job = h.job("waits")
    found = suggest_fixes(h.core, DeltaObjects(seen), job, diagnose_job(h.core.snapshot(), job), h.now)
    assert found is not None
    assert found.bound == "1 trials"


def test_a_search_changes_nothing() -> None:
    h, seen = waiting(CONF.format(actions="enqueue, allocate"), running=8)
    before = h.core.snapshot()
    assert fixes_of(h, seen) == fixes_of(h, seen)
    assert h.core.snapshot() == before
    assert h.job("waits").pending


def test_every_kind_of_change_is_documented() -> None:
    text = (HERE.parents[1] / "docs" / "fixes.md").read_text()
    table = text[text.index("| Kind | Change |") :].split("\n\n")[0]
    assert sorted(set(re.findall(r"`([A-Z]\w+)`", table)) - {"PriorityClass"}) == sorted(KINDS)
