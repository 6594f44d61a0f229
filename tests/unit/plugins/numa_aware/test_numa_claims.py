"""Assigned CPUs count once, from the placement until the Numatopology shows them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import deltas
from capcard_sched.model.numa import BEST_EFFORT, format_cpus, parse_cpus
from capcard_sched.plugins.numa_aware.node_cpus import SETTLE_SECONDS, CpuPlan, NodeCpus, plan
from capcard_sched.testing import Harness
from tests.unit.plugins.numa_aware.machines import RESTRICTED, SINGLE, cluster, conf, container, numatopology, whole


def cpus(h: Harness, node: str = "n") -> NodeCpus:
    found: NodeCpus = h.plugin("numa-aware")._rows._nodes[node]
    return found


def available(h: Harness) -> str:
    return format_cpus(cpus(h).available)


def claims(h: Harness) -> dict[str, str]:
    return {h.state.tasks[uid].name: format_cpus(claim.plan.cpus) for uid, claim in cpus(h).claims.items()}


def named(*names: str) -> tuple[dict[str, str], ...]:
    return tuple({"uid": f"default-{name}-uid"} for name in names)


def placed(*pods: tuple[str, int], policy: str = SINGLE, free: str = "0-15") -> Harness:
    """Pods that were placed on one node of two NUMA nodes, bound, and not seen running."""
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", free, policy))
    for name, count in pods:
        whole(h, name, count)
    h.step()
    assert set(h.binds) == {name for name, _ in pods}
    h.step()
    return h


# --- from the placement to the object ---------------------------------------------------------------------------------


def test_assigned_cpus_stay_taken_until_the_object_shows_them() -> None:
    h = placed(("p", 6))
    assert (claims(h), available(h)) == ({"p": "0-5"}, "6-15")
    h.set_phase("p", "Running")
    h.step()
    assert available(h) == "6-15"
    whole(h, "r", 8)
    whole(h, "s", 3)
    h.step()
    assert (claims(h), "s" in h.binds) == ({"p": "0-5", "r": "8-15"}, False)


def test_an_object_that_names_pods_ends_the_claims_of_those_it_names() -> None:
    h = placed(("p", 6), ("r", 6))
    assert claims(h) == {"p": "0-5", "r": "8-13"}
    h.apply(numatopology("n", "6-15", pods=named("p")))
    h.step()
    assert (claims(h), available(h)) == ({"r": "8-13"}, "6-7,14-15")
    by_name = ({"namespace": "default", "name": "p"}, {"namespace": "default", "name": "r"})
    h.apply(numatopology("n", "6-7,14-15", pods=by_name))
    h.step()
    assert (claims(h), available(h)) == ({}, "6-7,14-15")


def test_cpus_that_a_kubelet_chose_otherwise_are_not_counted_twice() -> None:
    h = placed(("p", 6))
    h.apply(numatopology("n", "0-7,14-15", pods=named("p")))
    h.step()
    assert available(h) == "0-7,14-15"


def test_a_claim_whose_cpus_another_pod_got_is_planned_again() -> None:
    h = placed(("p", 6), ("r", 6))
    h.apply(numatopology("n", "0-7,14-15", pods=named("p")))
    h.step()
    assert (claims(h), available(h)) == ({"r": "0-5"}, "6-7,14-15")


def test_an_object_without_pods_ends_a_claim_when_its_cpus_are_in_use_and_the_pod_runs() -> None:
    h = placed(("p", 6))
    h.apply(numatopology("n", "6-15"))
    h.step()
    assert (claims(h), available(h)) == ({"p": "0-5"}, "6-15")
    h.set_phase("p", "Running")
    h.step()
    assert (claims(h), available(h)) == ({}, "6-15")
    h.delete_pod("p")
    h.step()
    assert available(h) == "6-15", "they are free again when the object shows it"
    h.apply(numatopology("n", "0-15"))
    h.step()
    assert available(h) == "0-15"


def test_an_object_without_pods_ends_a_claim_half_a_minute_after_the_pod_began_to_run() -> None:
    """The kubelet chose other CPUs: both sets count until the object certainly includes this pod."""
    h = placed(("p", 6))
    h.apply(numatopology("n", "0-7,14-15"))
    h.set_phase("p", "Running")
    h.step()
    since = h.now
    assert available(h) == "6-7,14-15"
    whole(h, "waits", 8)
    assert h.step().next_wakeup == since + SETTLE_SECONDS
    h.step(since + SETTLE_SECONDS)
    assert h.binds["waits"] == "n"
    assert claims(h) == {"waits": "0-7"}


def test_claims_trigger_no_session_while_no_pod_is_pending() -> None:
    h = placed(("p", 6))
    h.apply(numatopology("n", "0-7,14-15"))
    h.set_phase("p", "Running")
    assert h.step().next_wakeup is None


def test_a_stale_object_ends_no_claim() -> None:
    h = placed(("p", 6))
    h.set_phase("p", "Running")
    h.step()
    for _ in range(3):
        h.state.changes.nodes.add("n")
        h.step(h.now + 2 * SETTLE_SECONDS)
    assert available(h) == "6-15"


def test_the_object_is_a_reason_for_a_session() -> None:
    h = placed(("p", 8))
    whole(h, "r", 8)
    whole(h, "s", 8)
    h.settle()
    assert "s" not in h.binds
    h.delete_pod("p")
    h.apply(numatopology("n", "8-15", pods=named("p")))
    h.settle()
    assert "s" not in h.binds, "the kubelet has not let go of them"
    h.apply(numatopology("n", "0-15"))
    assert not h.step().idle
    assert h.binds["s"] == "n"


def test_other_schedulers_do_not_notice_the_object() -> None:
    h = cluster('actions: "allocate"\ntiers: [{plugins: [{name: priority}]}]\n')
    h.node("n")
    h.settle()
    h.apply(numatopology("n", "0-15"))
    assert h.step().idle


# --- ends that come otherwise -----------------------------------------------------------------------------------------


def test_a_binding_that_is_refused_gives_the_cpus_back() -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-7", nodes=1))
    whole(h, "p", 8)
    h._bound = lambda bind: None  # type: ignore[method-assign]  # the watch shows nothing
    h.step()
    assert claims(h) == {"p": "0-7"}
    h.apply(deltas.BindFailed(uid="default-p-uid", namespace="default", name="p", message="no", retry_after=60.0))
    whole(h, "r", 8)
    h.step()
    assert claims(h) == {"r": "0-7"}


def test_a_pod_that_leaves_before_the_object_shows_it_leaves_its_cpus() -> None:
    h = placed(("p", 6))
    h.delete_pod("p")
    h.step()
    assert (claims(h), available(h)) == ({}, "0-15")


def test_a_terminating_pod_keeps_its_cpus() -> None:
    h = placed(("p", 6))
    h.terminate("p")
    h.step()
    assert (claims(h), available(h)) == ({"p": "0-5"}, "6-15")


def test_a_node_that_goes_and_comes_back_has_the_cpus_of_its_pods_taken() -> None:
    h = placed(("p", 6))
    h.delete_node("n")
    h.step()
    h.node("n")
    h.step()
    assert (claims(h), available(h)) == ({"p": "0-5"}, "6-15")


def test_other_nodes_that_come_and_go_change_nothing() -> None:
    h = placed(("p", 6))
    h.node("a")
    h.apply(numatopology("a", "0-31", nodes=4))
    h.step()
    h.delete_node("a")
    h.step()
    whole(h, "r", 8)
    whole(h, "s", 3)
    h.step()
    assert claims(h) == {"p": "0-5", "r": "8-15"}


def test_without_an_object_nothing_is_kept_and_with_one_it_is_planned_again() -> None:
    h = placed(("p", 6))
    h.apply(deltas.ObjectGone("Numatopology", "", "n"))
    h.step()
    assert h.plugin("numa-aware")._rows._nodes == {}
    h.apply(numatopology("n", "0-15"))
    h.step()
    assert claims(h) == {"p": "0-5"}


# --- pods without a plan ----------------------------------------------------------------------------------------------


def test_after_a_restart_pods_that_do_not_run_yet_have_their_cpus() -> None:
    h = placed(("p", 6), ("r", 6))
    h.reconfigure(conf())
    h.step()
    assert (claims(h), available(h)) == ({"p": "0-5", "r": "8-13"}, "6-7,14-15")


@pytest.mark.parametrize(
    ("free", "names", "expected"),
    [
        pytest.param("6-15", (), {"younger": "8-13"}, id="as many are gone as the oldest need"),
        pytest.param("6-7,14-15", (), {}, id="all are shown"),
        pytest.param("6-15", named("younger"), {"older": "8-13"}, id="named"),
    ],
)
def test_after_a_restart_pods_that_run_have_theirs_as_far_as_the_object_does_not_show_them(
    free: str, names: Any, expected: dict[str, str]
) -> None:
    h = cluster()
    h.node("n")
    for name in ("older", "younger"):
        whole(h, name, 6, node="n")
    h.apply(numatopology("n", free, pods=names))
    h.step()
    assert claims(h) == expected


def test_pods_of_other_schedulers_take_cpus_too() -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-15"))
    h.step()
    whole(h, "foreign", 6, node="n", phase="Pending", group=None, scheduler="default-scheduler")
    h.step()
    assert (claims(h), available(h)) == ({"foreign": "0-5"}, "6-15")


def test_a_running_pod_that_fits_no_policy_takes_the_remaining_cpus() -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-2,8-9"))
    h.pod("p", node="n", phase="Pending", containers=[container("x", 4), container("y", 4)])
    h.step()
    assert (claims(h), available(h)) == ({"p": "0-2,8-9"}, "")


# --- evictions --------------------------------------------------------------------------------------------------------


def test_evicted_pods_keep_their_cpus_until_they_are_gone() -> None:
    h = placed(("p", 6))
    h.set_phase("p", "Running")
    session = h.session()
    before = available(h)
    statement = Statement(session)
    statement.evict(h.task("p"), "preempt")
    assert available(h) == before
    statement.discard()
    assert (claims(h), available(h)) == ({"p": "0-5"}, before)


def test_no_pod_is_evicted_for_a_pod_that_lacks_aligned_cpus() -> None:
    """As in Volcano the rejection is unresolvable: the CPUs that an eviction frees are unknown."""
    plugins = ", {name: priority}, {name: gang}, {name: conformance}"
    h = cluster(conf(others=plugins).replace("allocate", "allocate, preempt"), run=True)
    h.priority_class("high", 100)
    h.node("n", cpu="16")
    h.apply(numatopology("n", "0-15"))
    for name in ("p", "r"):
        whole(h, name, 6)
    h.settle()
    h.group("urgent", priority_class="high")
    whole(h, "u", 4, SINGLE, group="urgent")
    for _ in range(3):
        assert h.step().report.evicted == []
    assert h.pod_message("u") == "0/1 nodes are unavailable: 1 container main cannot be assigned by numa."
    h.delete_pod("p")
    h.settle()
    assert h.binds["u"] == "n"


# --- histories --------------------------------------------------------------------------------------------------------

ALL = parse_cpus("0-15")


class Histories(RuleBasedStateMachine):
    """Pods come and go, a kubelet admits them in any order and an exporter writes when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.births = 0
        #: CPUs that the kubelet has assigned, by pod; those of deleted pods until it notices.
        self.given: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.h = Harness(conf())
        self.free = ALL

    @initialize(names=st.booleans(), policy=st.sampled_from([SINGLE, RESTRICTED, BEST_EFFORT]))
    def start(self, policy: str, *, names: bool) -> None:
        self.names, self.policy = names, policy
        self.h.queue("q")
        self.h.group("g")
        self.h.node("n", cpu="16")
        self.export()
        self.h.step()

    @rule()
    def export(self) -> None:
        self.free = ALL
        for taken in self.given.values():
            self.free &= ~taken
        pods = named(*self.given) if self.names else ()
        self.h.apply(numatopology("n", format_cpus(self.free), self.policy, pods=pods))

    @rule(count=st.integers(1, 9))
    def create(self, count: int) -> None:
        self.births += 1
        name = f"p{self.births}"
        self.wanted[name] = count
        whole(self.h, name, count)
        self.h.step()
        self.h.step()

    def bound(self) -> list[str]:
        return sorted(name for name in self.wanted if name in self.h.binds)

    def waiting(self) -> list[str]:
        return [name for name in self.bound() if name not in self.given]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """The kubelet first forgets pods that are gone, then plans by itself."""
        self.forget()
        name = data.draw(st.sampled_from(self.waiting()))
        free = ALL
        for taken in self.given.values():
            free &= ~taken
        topology = cpus(self.h).facts.topology
        found = plan(topology, free, BEST_EFFORT, [self.wanted[name]])
        assert isinstance(found, CpuPlan), "more was given away than there is"
        self.given[name] = found.cpus
        if data.draw(st.booleans()):
            self.export()
        self.h.set_phase(name, "Running")
        self.h.step()

    @rule()
    def forget(self) -> None:
        self.given = {name: taken for name, taken in self.given.items() if name in self.wanted}

    @precondition(lambda self: self.bound())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.bound()))
        del self.wanted[name]
        self.h.delete_pod(name)
        self.h.step()
        self.h.step()

    @rule()
    def restart(self) -> None:
        if not self.names:  # running pods are recognized by the CPUs in use: no pod may be starting
            self.forget()
            self.export()
        self.h.reconfigure(conf())
        self.h.step()
        self.h.step()

    @rule()
    def wait(self) -> None:
        """Long enough for every reader to have looked."""
        self.forget()
        self.export()
        self.h.state.changes.nodes.add("n")
        self.h.step(self.h.now + 2 * SETTLE_SECONDS)
        self.h.step()
        if not self.waiting():
            assert cpus(self.h).claims == {}
            assert cpus(self.h).available == self.free

    @invariant()
    def sets_are_disjoint_and_within_what_is_shown(self) -> None:
        if "n" not in self.h.plugin("numa-aware")._rows._nodes:
            return
        found = cpus(self.h)
        taken = 0
        for claim in found.claims.values():
            assert not claim.plan.cpus & taken
            taken |= claim.plan.cpus
        assert not found.available & ~found.shown
        assert not found.available & taken

    @invariant()
    def nothing_is_given_away_twice(self) -> None:
        if self.h.plugin("numa-aware")._rows._nodes:
            needed = sum(self.wanted[name] for name in self.bound())
            assert cpus(self.h).available.bit_count() + needed <= ALL.bit_count()


TestHistories = Histories.TestCase
