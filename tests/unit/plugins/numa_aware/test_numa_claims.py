"""Assigned CPUs count once, from the placement until the Numatopology shows them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capcard_sched.model.numa import BEST_EFFORT, format_cpus, parse_cpus
from capcard_sched.plugins.numa_aware.node_cpus import SETTLE_SECONDS, CpuPlan, NodeCpus, plan
from capcard_sched.testing import Harness
from tests.unit.plugins.numa_aware.machines import RESTRICTED, SINGLE, conf, numatopology, whole


def cpus(h: Harness, node: str = "n") -> NodeCpus:
    found: NodeCpus = h.plugin("numa-aware")._rows._nodes[node]
    return found


def named(*names: str) -> tuple[dict[str, str], ...]:
    return tuple({"uid": f"default-{name}-uid"} for name in names)


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
